"""The guide and the reference of devices: examples work, and every reason has a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dranet.cel import CelError, DeviceExpression
from dranet.inventory.build import OFFERED_KINDS
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN, ServedGpus, take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.rules import parse_rules
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import (
    CharDevice,
    Gpu,
    Link,
    NodeFacts,
    PciFunction,
    ProtectedLink,
    RdmaDevice,
    RdmaPort,
    Route,
)
from dranet.settings import PublishGpus

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join((DOCS / folder / "devices.md").read_text() for folder in ("reference", "guides"))
TABLED_REASONS = re.findall(r"^\| `((?:is|carries|has|does|fails) [^`]*)` \|", PAGE, re.MULTILINE)
NIC: dict[str, AttributeValue] = {
    "dra.net/ifName": "gpu1rdma0",
    "dra.net/type": "device",
    "dra.net/rdma": True,
    "dra.net/virtual": False,
    "dra.net/mac": "42:01:0a:00:00:05",
    "resource.kubernetes.io/numaNode": (0, 1),
}
RDMA_ONLY: dict[str, AttributeValue] = {"dra.net/rdma": True, "dra.net/virtual": False}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def given(text: str, attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    own, problems = parse_rules(yaml.safe_load(text), "dra.net")
    assert problems == ()
    found = own.attributes_for(Device("x", DeviceKind.NIC, attributes))
    assert found.warnings == ()
    return dict(found.attributes)


@pytest.mark.parametrize("expression", blocks("cel"))
def test_every_expression_of_the_page_is_true_of_a_card(expression: str) -> None:
    assert DeviceExpression(expression, "dra.net").matches(NIC)


@pytest.mark.parametrize("expression", blocks("cel")[1:])
def test_no_filter_of_the_page_fails_on_an_rdma_only_device(expression: str) -> None:
    assert DeviceExpression(expression, "dra.net").matches(RDMA_ONLY)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("`format.*()`", 'format.dns1123Label().validate("a") == optional.none()'),
        ("`indexOf()` of a list", '["a"].indexOf("a") == 0'),
    ],
)
def test_functions_that_the_page_calls_missing_are_refused(name: str, expression: str) -> None:
    assert name in PAGE
    with pytest.raises(CelError, match="lacks Kubernetes'"):
        DeviceExpression(expression, "dra.net")


@pytest.mark.parametrize(
    "expression",
    [
        'ip("10.0.0.1").family() == 4',
        'cidr("10.0.0.0/8").containsIP("10.0.0.1")',
        'url("https://a/b").getHost() == "a"',
        '"abc".find("b+") == "b"',
        "sets.contains([1, 2], [1])",
    ],
)
def test_functions_that_the_page_says_are_there_are(expression: str) -> None:
    assert DeviceExpression(expression, "dra.net").matches(NIC)


def test_the_rules_of_the_page_give_what_it_says() -> None:
    rules, configmap = (
        block for block in blocks("yaml") if re.search(r"^ *attributes(\.yaml)?:", block, re.MULTILINE)
    )
    all_have = {"example.com/fabric": "blue", "dra.net/tenant": "a"}

    assert given(rules, NIC) == {"dra.net/rail": 1, **all_have}
    assert given(rules, RDMA_ONLY) == all_have
    data = yaml.safe_load(configmap)["data"]["attributes.yaml"]
    assert given(data, NIC) == {"gce.dra.net/networkName": "rdma-0"}
    assert given(data, RDMA_ONLY) == {}


def test_the_offered_kinds_are_those_of_the_page() -> None:
    (row,) = re.findall(r"^\| software interface \| of kind (.*), unless", PAGE, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", row)) == OFFERED_KINDS - {"", "ipoib"}


def held_back_for_every_reason() -> set[str]:
    """A node that has something to keep for each reason."""
    functions = [
        PciFunction(f"0000:1a:00.{index}", 0x020000, 1, 2, driver=driver, path=(f"0000:1a:00.{index}",))
        for index, driver in enumerate(("x", "vfio-pci", ""))
    ]
    gone = Device("gone", DeviceKind.NIC, pci_address="0000:1b:00.0", pci_path=("0000:1b:00.0",))
    links = (
        Link(1, "lo", flags=9),
        Link(2, "eth0", flags=1, carrier=True),
        Link(3, "eth1"),
        Link(4, "eth2"),
        Link(5, "eth0.5", kind="vlan", lower=2),
        Link(6, "br0", kind="bridge"),
        Link(7, "eth3", master=6),
        Link(8, "eth4"),
        Link(9, "eth4.5", kind="vlan", lower=8),
        Link(10, "eth5", phys_port_name="pf0vf0"),
        Link(11, "eth6", mtu=1),
        Link(12, "eth7", mtu=2),
        Link(13, "eth8"),
    )
    functions.append(PciFunction("0000:1c:00.0", 0x020000, 1, 2, driver="efa", path=("0000:1c:00.0",)))
    facts = NodeFacts(
        links=links,
        pci_functions=tuple(functions),
        rdma_devices=(
            RdmaDevice("efa_0", "0000:1c:00.0", ports=(RdmaPort(1),)),
            RdmaDevice("rxe0", ports=(RdmaPort(1, netdevs=("eth8",)),)),
        ),
        rdma_netns_exclusive=True,
        gpus=(
            Gpu("0000:2a:00.0", "nvidia"),
            Gpu("0000:2c:00.0", "intel", parts="tiles"),
            Gpu("0000:2b:00.0", "amd", char_devices=(CharDevice("/dev/dri/renderD128", 226, 128),)),
            Gpu("0000:2d:00.0", "nvidia", char_devices=(CharDevice("/dev/nvidia0", 195, 0),)),
            Gpu("0000:2e:00.0", "1af4"),
        ),
        default_routes=(Route("0.0.0.0/0", ifindex=2),),
        protected_links=(
            ProtectedLink("the node's address", "10.0.0.5", 3),
            ProtectedLink("the route to the API server", "10.9.0.1", 4),
        ),
    )
    choice = DeviceExpression(
        'device.attributes["dra.net"].mtu == 1 ? 1/0 == 1 : device.attributes["dra.net"].mtu == 3', "dra.net"
    )
    served = ServedGpus(by_vendor={"amd": "the DRA driver gpu.amd.com"})
    looks = (
        (Policy(publish_gpus=PublishGpus.NEVER), NO_OTHER_SERVER),
        (Policy(), UNKNOWN),
        (Policy(filter=choice), served),
    )
    found = (
        decision
        for policy, who in looks
        for decision in take_inventory(facts, {"gone": gone}, policy, who)
        if not decision.published
    )
    return {decision.reason for decision in found}


def test_the_table_has_every_reason_and_no_other() -> None:
    reasons = held_back_for_every_reason()
    starts = {text: text.split("…")[0] for text in TABLED_REASONS}

    assert [r for r in reasons if not any(r.startswith(start) for start in starts.values())] == []
    assert [text for text, start in starts.items() if not any(r.startswith(start) for r in reasons)] == []

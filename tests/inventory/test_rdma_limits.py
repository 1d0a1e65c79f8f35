"""RDMA devices that end with the move of their link, or cannot move, are offered only where they work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.inventory.build import build_devices
from dranet.inventory.offer import decide
from dranet.inventory.policy import DEFAULT_POLICY, Decision, Policy
from dranet.model.device import AttributeValue, DeviceKind
from dranet.model.facts import Host, Link, NodeFacts, PciFunction, RdmaDevice, RdmaPort

ADDRESS = "0000:3b:00.0"


def function(driver: str, class_code: int = 0x020000) -> PciFunction:
    return PciFunction(ADDRESS, class_code, 0x14E4, 0x1750, driver=driver, path=(ADDRESS,))


def nic(name: str = "ens1", index: int = 5, **changes: Any) -> Link:
    return replace(Link(index, name, parent_bus="pci", parent_device=ADDRESS, pci_address=ADDRESS), **changes)


def adapter(name: str, layer: str = "Ethernet", **changes: Any) -> RdmaDevice:
    return replace(RdmaDevice(name, ADDRESS, ports=(RdmaPort(1, link_layer=layer),)), **changes)


def decide_one(policy: Policy = DEFAULT_POLICY, **facts: Any) -> Decision:
    node = NodeFacts(**facts)
    (decision,) = decide(build_devices(node, {}, policy), node, policy)
    return decision


class All:
    def matches(self, _: Mapping[str, AttributeValue]) -> bool:
        return True


@pytest.mark.parametrize(
    ("kernel", "auxiliary", "offered"),
    [
        ("5.15.0-119-generic", False, False),
        ("6.1.0-28-amd64", False, False),
        ("6.2.16-3-pve", False, False),
        ("6.3.0", False, True),
        ("6.12.95+deb12-amd64", False, True),
        ("5.14.0-427.el9.x86_64", True, True),  # brought back by the distribution
        ("", False, True),
    ],
)
def test_bnxt_re_before_linux_6_3_is_not_offered_with_its_link(
    kernel: str, auxiliary: bool, offered: bool
) -> None:
    decision = decide_one(
        links=(nic(),),
        pci_functions=(function("bnxt_en"),),
        rdma_devices=(adapter("bnxt_re0", auxiliary=auxiliary),),
        host=Host(kernel=kernel),
    )
    assert decision.published is offered
    assert offered or decision.reason.startswith(
        f"has the RDMA device bnxt_re0, which ends when the interface moves: its driver is bnxt_re of Linux "
        f"{kernel[:3].rstrip('.')}"
    )


def test_a_bnxt_nic_without_rdma_is_offered_on_any_kernel() -> None:
    old = Host(kernel="5.15.0")
    assert decide_one(links=(nic(),), pci_functions=(function("bnxt_en"),), host=old).published


def test_a_shared_nic_whose_rdma_device_would_end_is_offered_because_it_stays() -> None:
    decision = decide_one(
        replace(DEFAULT_POLICY, shared=All()),
        links=(nic(),),
        pci_functions=(function("bnxt_en"),),
        rdma_devices=(adapter("bnxt_re0"),),
        host=Host(kernel="5.15.0"),
    )
    assert (decision.published, decision.device.shared) == (True, True)


@pytest.mark.parametrize("exclusive", [True, False])
def test_efa_is_offered_in_shared_mode_alone(exclusive: bool) -> None:
    decision = decide_one(
        pci_functions=(function("efa"),),
        rdma_devices=(adapter("rdmap1s0", "Unspecified"),),
        rdma_netns_exclusive=exclusive,
    )
    assert (decision.published, decision.device.kind) == (not exclusive, DeviceKind.RDMA)
    if exclusive:
        assert decision.reason == (
            "has the RDMA device rdmap1s0, which must move in exclusive RDMA mode: the driver efa cannot"
        )


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_card_below_software_rdma_is_not_offered_in_either_mode(exclusive: bool) -> None:
    soft = RdmaDevice("rxe0", ports=(RdmaPort(1, link_layer="Ethernet", netdevs=("ens1",)),))
    decision = decide_one(
        links=(nic(),),
        pci_functions=(function("igb"),),
        rdma_devices=(soft,),
        rdma_netns_exclusive=exclusive,
    )
    assert not decision.published
    assert "rxe0, which ends when the interface moves" in decision.reason


def an_infiniband_node(*links: Link, exclusive: bool) -> dict[str, Any]:
    return {
        "links": (nic("ib0", 5, kind="ipoib", arp_type=32), *links),
        "pci_functions": (function("mlx5_core", 0x020700),),
        "rdma_devices": (adapter("mlx5_0", "InfiniBand"),),
        "rdma_netns_exclusive": exclusive,
    }


def test_ipoib_is_an_interface_in_shared_mode_and_stays_with_the_node_in_exclusive_mode() -> None:
    shared, exclusive = (decide_one(**an_infiniband_node(exclusive=mode)) for mode in (False, True))
    assert (shared.device.kind, shared.device.ifname) == (DeviceKind.NIC, "ib0")
    assert (exclusive.device.kind, exclusive.device.ifname) == (DeviceKind.RDMA, "")
    assert shared.published
    assert exclusive.published
    assert "its IPoIB interface ib0 is not offered: in exclusive RDMA mode" in exclusive.reason


def test_an_adapter_with_a_partition_or_an_enslaved_ipoib_link_is_not_offered_in_exclusive_mode() -> None:
    child = nic("ib0.8001", 6, kind="ipoib", arp_type=32, lower=5)
    assert decide_one(**an_infiniband_node(child, exclusive=True)).reason == (
        "carries another interface: ib0.8001 on ib0 would be lost"
    )
    enslaved = an_infiniband_node(exclusive=True)
    enslaved["links"] = (replace(enslaved["links"][0], master=9),)
    assert decide_one(**enslaved).reason == "is enslaved: ib0 is a port of interface 9"


def test_the_rdma_device_of_a_pod_is_known_by_its_guid_whatever_its_name_is_by_now() -> None:
    guid, other = "0200:0000:0000:0001", "0200:0000:0000:0002"
    soft = RdmaDevice("siw0", node_guid=guid, ports=(RdmaPort(1, link_layer="Ethernet"),))
    (held,) = build_devices(NodeFacts(rdma_devices=(soft,)), {})
    seen = NodeFacts(rdma_devices=(replace(soft, name="ibdev0"), replace(soft, name="siw1", node_guid=other)))
    devices = {device.name: device.rdma_guid for device in build_devices(seen, {held.name: held})}
    assert devices == {"rdma-siw0": guid, "rdma-siw1": other}

"""A cloud is recognised without asking any network; labels of the Node become attributes."""

from __future__ import annotations

import pytest

from dranet.providers.cloud.detect import DmiHints, NodeHints, detect
from dranet.providers.cloud.labels import apply_rule, read_aws, read_coreweave
from dranet.settings import CloudProvider
from tests.providers.cloud.machines import MACHINES, Machine

COREWEAVE = {
    "cks.coreweave.com/cluster": "a1b2",
    "backend.coreweave.cloud/flavor": "infiniband",
    "backend.coreweave.cloud/fabric": "f0",
    "backend.coreweave.cloud/superpod": "2",
    "backend.coreweave.cloud/leafgroup": "7",
    "backend.coreweave.cloud/neighbors.expected.ibp0.device": "leaf-7-0",
    "backend.coreweave.cloud/neighbors.expected.ibp1.device": "leaf-7-1",
    "node.coreweave.cloud/rack": "r12",
    "node.kubernetes.io/instance-type": "gd-8xh100ib-i128",
}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_provider_id_names_the_cloud(machine: Machine) -> None:
    hints = NodeHints(machine.node["providerID"], machine.node["labels"])
    assert detect(hints, DmiHints()) == machine.provider


@pytest.mark.parametrize(
    ("vendor", "asset_tag", "provider"),
    [
        ("Google", "", CloudProvider.GCE),
        ("Amazon EC2", "Amazon EC2", CloudProvider.AWS),
        ("Microsoft Corporation", "7783-7084-3265-9085-8269-3286-77", CloudProvider.AZURE),
        ("Microsoft Corporation", "", CloudProvider.OFF),
        ("QEMU", "OracleCloud.com", CloudProvider.OKE),
        ("Alibaba Cloud", "", CloudProvider.ALIBABA),
        ("NVIDIA", "DGXH100", CloudProvider.OFF),
        ("", "", CloudProvider.OFF),
    ],
)
def test_dmi_names_it_where_the_node_object_does_not(
    vendor: str, asset_tag: str, provider: CloudProvider
) -> None:
    for provider_id in ("", "kind://docker/a/b", "metal3://x"):
        assert detect(NodeHints(provider_id), DmiHints(vendor, asset_tag)) is provider


def test_coreweave_is_its_labels() -> None:
    assert detect(NodeHints("", COREWEAVE), DmiHints("Supermicro")) is CloudProvider.COREWEAVE
    facts = read_coreweave(COREWEAVE)
    assert facts.node == {
        "coreweave.dra.net/fabricFlavor": "infiniband",
        "coreweave.dra.net/fabric": "f0",
        "coreweave.dra.net/superpod": "2",
        "coreweave.dra.net/leafgroup": "7",
        "coreweave.dra.net/rack": "r12",
        "coreweave.dra.net/instanceType": "gd-8xh100ib-i128",
    }
    assert facts.by_rdma["ibp1"] == {"coreweave.dra.net/leafSwitch": "leaf-7-1"}


@pytest.mark.parametrize("machine", [m for m in MACHINES if m.provider == "aws"], ids=lambda m: m.name)
def test_aws_network_nodes_and_capacity_blocks_come_from_labels(machine: Machine) -> None:
    found = read_aws(machine.node["labels"])
    assert len(found) >= 3
    assert found == {name: machine.attributes[name] for name in found}


def test_the_operators_rule_takes_labels_that_are_there() -> None:
    rule = (("topology.kubernetes.io/zone", "dra.net/zone"), ("example.com/rack", "example.com/rack"))
    assert apply_rule(rule, {"topology.kubernetes.io/zone": "z1"}) == {"dra.net/zone": "z1"}

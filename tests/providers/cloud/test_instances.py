"""Instances of each cloud with the attributes of its documented answers: what DraNet's manifests select."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dranet.desk.cel import DeviceSelector
from dranet.inventory.offer import NO_OTHER_SERVER, take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import plan_slices
from dranet.model import attributes as a
from dranet.model.cloud_attributes import CLOUD_CATALOGUE
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import ProvidedFacts
from dranet.model.provider import check_attributes
from dranet.settings import PublishGpus
from tests.data.machines.cloud_instances import INSTANCES
from tests.providers.cloud.machines import MACHINES, Machine, read_machine

LAST = a.PLACES[a.LINK_SPEED.qualified]
OURS = 'device.attributes["dra.net"]'


def publish(name: str) -> Sequence[Device]:
    """The devices in the slices of the instance, without GPUs, which a vendor's driver serves there."""
    return [published for _, published in publish_with_original(name)]


def publish_with_original(name: str) -> Sequence[tuple[Device, Device]]:
    """Each device with all that is known of it, and as published."""
    machine = read_machine(name)
    provided = [ProvidedFacts(attributes=check_attributes(machine.attributes).attributes)]
    for mac, values in machine.interfaces.items():
        provided.append(ProvidedFacts(mac=mac, attributes=check_attributes(values).attributes))
    facts = replace(INSTANCES[name](), provided=tuple(provided))
    policy = Policy(publish_gpus=PublishGpus.NEVER)
    offered = [d.device for d in take_inventory(facts, {}, policy, NO_OTHER_SERVER) if d.published]
    plan = plan_slices(offered, policy)
    assert plan.losses == ()
    published = [device for page in plan.pages for device in page]
    return list(zip(offered, published, strict=True))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_device_has_the_clouds_attributes_within_the_limits_of_a_slice(machine: Machine) -> None:
    devices = publish(machine.name)
    assert devices
    for device in devices:
        mac = str(device.attributes.get("dra.net/mac", ""))
        given = {**machine.attributes, **machine.interfaces.get(mac, {})}
        wanted = {name: value for name, value in given.items() if name not in LEFT_OUT.get(machine.name, ())}
        assert wanted.items() <= device.attributes.items()
        assert len(device.attributes) <= 32


LEFT_OUT = {
    "aws-p6e-gb200-36xlarge": [
        "aws.dra.net/networkNodeLayer1",
        "aws.dra.net/placementGroup",
        "aws.dra.net/availabilityZoneId",
        "aws.dra.net/availabilityZone",
    ],
    "gce-a3-ultragpu-8g": ["dra.net/linkSpeedMbps"],
    "gce-a4-highgpu-8g": ["dra.net/linkSpeedMbps"],
    "oke-bm-gpu-gb200-4": [
        "dra.net/linkSpeedMbps",
        "oke.dra.net/shape",
        "oke.dra.net/faultDomain",
        "oke.dra.net/availabilityDomain",
    ],
    "oke-bm-gpu-h100-8": [
        "oke.dra.net/shape",
        "oke.dra.net/faultDomain",
        "oke.dra.net/availabilityDomain",
    ],
}
"""What a slice has no room for, of the cloud's attributes and of those that claims align by."""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_what_claims_align_by_is_published_and_what_is_left_out_is_known(machine: Machine) -> None:
    aligned = {one.qualified for one in a.CATALOGUE if a.PLACES[one.qualified] <= LAST}
    watched = aligned | {one.qualified for one in CLOUD_CATALOGUE}
    expected = set(LEFT_OUT.get(machine.name, ()))
    lost: set[str] = set()
    for known, published in publish_with_original(machine.name):
        missing = known.attributes.keys() - published.attributes.keys()
        assert missing & watched in (expected, set()), known.name
        lost |= missing & watched
    assert lost == expected


RDMA = f"{OURS}.rdma == true"
GCE, AWS, AZURE, OKE, ALIBABA = (
    f'device.attributes["{cloud}.dra.net"]' for cloud in ("gce", "aws", "azure", "oke", "alibaba")
)
GROUP = f'{AZURE}["placementGroupId"] == "12345678-1234-1234-1234-123456789012"'
SUBGROUP = f'{AZURE}["interconnectSubgroupId"] == "0123abcd-0000-4000-8000-000000000002"'
ON_NODE_0 = f"{RDMA} && {OURS}.virtual == false && {OURS}.numaNode == 0"
EFA = f"{OURS}.pciDevice == 'Elastic Fabric Adapter (EFA)'"
LAYER = f'{AWS}.networkNodeLayer3 == "nn-0123456789abcdef3"'
HAS_ERDMA = f'"alibaba.dra.net" in device.attributes && {ALIBABA}.?erdma.orValue(false)'
ECS = f'{ALIBABA}.instanceType == "ecs.ebmgn8v.48xlarge" && {OURS}.?ifName.orValue("") == "eth1"'

SELECTED = [
    ("gce-a4-highgpu-8g", f'{GCE}.networkName.startsWith("gpu-net")', 9),
    ("gce-a4-highgpu-8g", f'{RDMA} && {GCE}.machineType == "a4-highgpu-8g"', 8),
    ("gce-a3-ultragpu-8g", f'{RDMA} && {GCE}.subBlock == "0123456789abcdef0123456789abcde5"', 8),
    ("gce-a3-megagpu-8g", f'{GCE}.networkName.startsWith("gpu-net")', 8),
    ("gce-a3-megagpu-8g", f"{GCE}.networkProjectNumber == 123456789012", 8),
    ("azure-nd-h100-v5", f'{AZURE}["vmSize"] == "Standard_ND96isr_H100_v5"', 8),
    ("azure-nd-gb300-v6", f"{GROUP} && {RDMA}", 4),
    ("azure-nd-gb300-v6", SUBGROUP, 4),
    ("oke-bm-gpu-gb200-4", f'{ON_NODE_0} && {OKE}.localBlockId == "{"c" * 60}"', 4),
    ("oke-bm-gpu-h100-8", f'{RDMA} && {OKE}.hpcIslandId == "{"a" * 60}"', 16),
    ("aws-p5-48xlarge", EFA, 32),
    ("aws-p6-b200-48xlarge", EFA, 8),
    ("aws-p6-b200-48xlarge", LAYER, 8),
    ("alibaba-ebmgn8v", HAS_ERDMA, 2),
    ("alibaba-ebmgn8v", ECS, 1),
]
"""Selectors of DraNet's examples and guides, with the values of the documented answers, and ours for AWS."""


@pytest.mark.parametrize(("name", "expression", "count"), SELECTED)
def test_a_selector_for_that_cloud_selects_the_devices_that_it_means(
    name: str, expression: str, count: int
) -> None:
    selector = DeviceSelector.compile(expression)
    matched = [device for device in publish(name) if selector.matches("dra.net", device.attributes)]
    assert len(matched) == count
    assert not any(device.kind is DeviceKind.GPU for device in matched)

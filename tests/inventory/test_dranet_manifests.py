"""What DraNet's published manifests select by, on the layouts: the same devices, and no error.

The selectors are those of its examples, its site and its end-to-end tests, without the ones for names that
it does not publish any more (``name``, ``cloudNetwork``) or takes from a cloud's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dranet.cel import CelError, DeviceExpression
from dranet.desk.cel import DeviceSelector
from dranet.inventory.slices import build_slices
from dranet.model.device import Device, DeviceKind
from tests.data.layouts import LAYOUTS, take_layout

OURS = 'device.attributes["dra.net"]'
RDMA = f'{OURS}["rdma"] == true'
HARDWARE = f"{OURS}.rdma == true && {OURS}.virtual == false"
EFA = f"device.driver == \"dra.net\" && {OURS}.pciDevice == 'Elastic Fabric Adapter (EFA)'"
ERDMA = '"alibaba.dra.net" in device.attributes && device.attributes["alibaba.dra.net"]["erdma"] == true'

FOR_EVERY_DEVICE = [
    'device.driver == "dra.net"',
    f"{OURS}.rdma",
    f"{OURS}.rdma == true",
    f'device.driver == "dra.net" && {OURS}.rdma == true',
    HARDWARE,
    ERDMA,
    f'has({OURS}.ifName) && {OURS}.ifName == "dummy0"',
    f'has({OURS}.ifName) && ({OURS}.ifName == "dummy0" || {OURS}.ifName == "dummy1")',
    f'has({OURS}.type) && {OURS}.type == "dummy"',
]
"""Guarded, or by what each device has."""

SELECTED = [
    ("aws-p5", EFA, 32),
    ("aws-p5", f"{RDMA} && {OURS}.numaNode == 0", 16),
    ("azure-gb300", RDMA, 4),
    ("azure-gb300", f'{RDMA} && {OURS}["numaNode"] == 0', 2),
    ("azure-gb300", f'{OURS}["rdmaDevice"] == "mlx5_0"', 1),
    ("azure-gb300", f'{OURS}["rdmaDevice"] == "mlx5_2"', 1),
    ("azure-nd-h100-v5", f'{RDMA} && {OURS}["numaNode"] == 1', 4),
    ("dgx-h100", HARDWARE, 12),
    ("mi300x", f'{RDMA} && {OURS}["numaNode"] == 1', 4),
    ("oci-gb200", HARDWARE, 8),
    ("oci-gb200", f"{HARDWARE} && {OURS}.numaNode == 0", 4),
    ("oci-gb200", f"{HARDWARE} && {OURS}.numaNode == 1", 4),
    ("oci-gb200", f'{OURS}.rdma == true && {OURS}.ifName.startsWith("rdma")', 8),
    ("oci-gb200", f'{OURS}.ifName == "rdma3"', 1),
    ("plain-server", f'has({OURS}.type) && {OURS}.type == "dummy"', 1),
    ("plain-server", f'has({OURS}.ifName) && {OURS}.ifName == "dummy0"', 1),
]

FILTERS = [
    ('!("dra.net/type" in attributes) || attributes["dra.net/type"].StringValue != "veth"', 1.0),
    ('attributes["dra.net/virtual"].BoolValue == false', 1.0),
    (
        """"dra.net/pciDevice" in attributes &&
           attributes["dra.net/pciDevice"].StringValue == "Elastic Fabric Adapter (EFA)" """,
        0.8,
    ),
]
"""Values of ``--filter`` in its chart and guides, and how much of AWS P5 they leave."""


def published(layout: str) -> Iterator[Device]:
    for page in build_slices([d.device for d in take_layout(layout) if d.published]):
        yield from page


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("expression", FOR_EVERY_DEVICE)
def test_what_every_device_is_asked_is_never_an_error_and_never_true_of_a_gpu(
    layout: str, expression: str
) -> None:
    selector = DeviceSelector.compile(expression)
    matched = [device for device in published(layout) if selector.matches("dra.net", device.attributes)]

    if expression != FOR_EVERY_DEVICE[0]:
        assert [device.name for device in matched if device.kind is DeviceKind.GPU] == []


@pytest.mark.parametrize(("layout", "expression", "count"), SELECTED)
def test_what_a_manifest_for_that_machine_selects(layout: str, expression: str, count: int) -> None:
    selector = DeviceSelector.compile(expression)
    matched = [device for device in published(layout) if selector.matches("dra.net", device.attributes)]

    assert len(matched) == count
    assert not any(device.kind is DeviceKind.GPU for device in matched)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ifName", "rdmaDevice", "pciDevice"])
def test_only_what_lacks_a_name_in_dranet_lacks_it_here(layout: str, name: str) -> None:
    """Unguarded, as in its manifests: an RDMA-only device has no interface, a NIC perhaps no RDMA."""
    selector = DeviceSelector.compile(f'{OURS}.{name} == "nothing has this name"')

    for device in published(layout):
        lacks = {
            "ifName": device.kind is DeviceKind.RDMA,
            "rdmaDevice": device.kind is DeviceKind.NIC and not device.rdma_device,
            "pciDevice": not device.pci_address,
        }
        if lacks[name]:
            with pytest.raises(CelError, match="has no attribute"):
                selector.matches("dra.net", device.attributes)
        else:
            assert selector.matches("dra.net", device.attributes) is False


@pytest.mark.parametrize(("expression", "share"), FILTERS)
def test_filters_of_dranets_deployments_leave_the_same_devices(expression: str, share: float) -> None:
    chosen = DeviceExpression(expression, "dra.net")
    devices = [*published("aws-p5")]

    assert sum(chosen.matches(device.attributes) for device in devices) == share * len(devices)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_class_that_asks_for_the_driver_alone_gets_cards_then_software_then_gpus(layout: str) -> None:
    def rank(device: Device) -> tuple[bool, bool, bool, str]:
        has_vfs = device.attributes.get("dra.net/sriovVfs", 0) != 0
        return (device.kind is DeviceKind.GPU, not device.pci_address, has_vfs, device.name)

    ranks = [rank(device) for device in published(layout)]

    assert ranks == sorted(ranks)

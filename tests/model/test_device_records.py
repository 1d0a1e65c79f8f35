"""Devices on disk: what the store wrote before an upgrade and after it comes back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.inventory.offer import take_inventory
from dranet.inventory.slices import fit_attributes
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice, NodeFacts
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from tests.data.layouts import LAYOUTS, take_layout
from tests.support.records import write_record

FULL = Device(
    "pci-0000-1a-01-0",
    DeviceKind.NIC,
    {
        "resource.kubernetes.io/numaNode": (1, 0),
        "dra.net/rdma": True,
        "dra.net/sriovVfIndex": 1,
        "example.com/rail": "1",
    },
    ifname="eth1",
    pci_address="0000:1a:01.0",
    pci_path=("0000:19:00.0", "0000:1a:01.0"),
    pcie_root="pci0000:17",
    physical_function="0000:1a:00.0",
    numa_node=1,
    rdma_device="mlx5_1",
    char_devices=(CharDevice("infiniband/uverbs1", 231, 193),),
    left_out={"dra.net/alias": "is no text (bytes that are not UTF-8)"},
)

OLD_RECORD = """{
 "claim": {"namespace": "default", "name": "claim", "uid": "uid-1"},
 "pod": {"namespace": "default", "name": "pod", "uid": "pod-1"},
 "devices": [{
  "request": "nic", "pool": "node", "cdi_ids": [], "plan": null,
  "device": {
   "name": "pci-0000-1a-00-0", "kind": "nic",
   "attributes": {"dra.net/rdma": true, "dra.net/mtu": 9000, "dra.net/ifName": "eth1"},
   "ifname": "eth1", "pci_address": "0000:1a:00.0", "pci_path": ["0000:1a:00.0"], "pcie_root": "pci0000:17",
   "numa_node": 0, "rdma_device": "mlx5_0", "char_devices": []
  }
 }],
 "boot_id": "boot"
}"""
"""As the version wrote it that did not know physical functions, lists, or what was left out."""


def holding(*devices: Device) -> PreparedClaim:
    prepared = tuple(PreparedDevice("nic", "node", device, (), None) for device in devices)
    return PreparedClaim(
        ClaimRef("default", "claim", "uid-1"), PodRef("default", "pod", "pod-1"), prepared, "boot"
    )


def reopened(path: Path) -> tuple[Device, ...]:
    store = ClaimStore(path)
    store.open()
    record = store.get("uid-1")
    store.close()
    assert (store.quarantined, record is None) == ((), False)
    return tuple(prepared.device for prepared in record.devices) if record else ()


def stored(path: Path, *devices: Device) -> tuple[Device, ...]:
    store = ClaimStore(path)
    store.open()
    store.put(holding(*devices))
    store.close()
    return reopened(path)


def test_lists_and_what_was_left_out_survive_and_no_value_changes_its_type(tmp_path: Path) -> None:
    (device,) = stored(tmp_path / "claims", FULL)

    assert device == FULL
    assert [*map(type, device.attributes.values())] == [tuple, bool, int, str]


def test_a_record_of_the_version_before_is_read_and_its_device_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    stored(path, FULL)
    write_record(path, "uid-1", OLD_RECORD)
    (device,) = reopened(path)
    (decision,) = take_inventory(NodeFacts(), {device.name: device})

    assert (device.physical_function, device.left_out) == ("", {})
    assert fit_attributes(device).kept == device.attributes
    assert decision.reason == "is gone while a pod has it: there is no 0000:1a:00.0 any more"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_device_that_is_offered_can_be_recorded(layout: str, tmp_path: Path) -> None:
    offered = tuple(decision.device for decision in take_layout(layout) if decision.published)

    assert stored(tmp_path / "claims", *offered) == offered

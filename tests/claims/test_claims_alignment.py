"""The verdict how near a network device is to the GPUs of its pod."""

from __future__ import annotations

import pytest

from dranet.claims.alignment import find_gpus, judge, judge_by_claim
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.status import Condition, ConditionType, DeviceStatus


def place(name: str, root: str = "", numa: int | None = None, *path: str, gpu: bool = False) -> Device:
    kind = DeviceKind.GPU if gpu else DeviceKind.NIC
    return Device(name, kind, pcie_root=root, numa_node=numa, pci_path=(*path, name))


def gpu(name: str, root: str = "", numa: int | None = None, *path: str) -> Device:
    return place(name, root, numa, *path, gpu=True)


NIC = place("nic", "pci0000:10", 0, "bridge-1", "switch-1")
SWITCH = gpu("gpu-switch", "pci0000:10", 0, "bridge-1", "switch-1")
ROOT = gpu("gpu-root", "pci0000:10", 0, "bridge-2")
NODE = gpu("gpu-node", "pci0000:20", 0)
FAR = gpu("gpu-far", "pci0000:80", 1)
LOST = gpu("gpu-lost")


@pytest.mark.parametrize(
    ("gpus", "status", "reason", "named"),
    [
        ((FAR, NODE, ROOT, SWITCH), True, "SamePCIeRoot", "gpu-switch: the same PCIe root and PCIe bridge"),
        ((FAR, NODE, ROOT), True, "SamePCIeRoot", "gpu-root: the same PCIe root (pci0000:10)"),
        ((FAR, NODE), True, "SameNUMANode", "gpu-node: the same NUMA node 0"),
        ((FAR,), False, "FarFromGPUs", "gpu-far on NUMA node 1"),
        ((LOST, ROOT), True, "SamePCIeRoot", "gpu-root"),
        ((LOST, NODE), True, "SameNUMANode", "gpu-node"),
        ((LOST, FAR), None, "PlaceUnknown", "does not tell"),
        ((LOST,), None, "PlaceUnknown", "does not tell"),
    ],
)
def test_the_nearest_gpu_of_the_pod_counts(
    gpus: tuple[Device, ...], status: bool | None, reason: str, named: str
) -> None:
    verdict = judge(NIC, gpus)
    assert verdict is not None
    assert (verdict.type, verdict.status, verdict.reason) == (ConditionType.ALIGNED, status, reason)
    assert named in verdict.message


def test_without_a_gpu_there_is_nothing_to_be_near_to() -> None:
    assert judge(NIC, ()) is None


def test_a_device_whose_place_nobody_tells_is_not_called_near() -> None:
    nowhere = place("nic")
    verdict = judge(nowhere, (LOST, FAR))
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (None, "PlaceUnknown")


def test_the_gpus_of_all_claims_of_the_pod_count_and_no_admin_access() -> None:
    def record(uid: str, *devices: PreparedDevice) -> PreparedClaim:
        return PreparedClaim(ClaimRef("team", uid, uid), PodRef("team", "p", "pod"), devices, "boot")

    watched = PreparedDevice("all", "node", FAR, admin_access=True)
    nic = PreparedDevice("nic", "node", NIC, plan=AttachPlan("nic"))
    records = [record("a", nic, watched), record("b", PreparedDevice("gpu", "node", NODE))]

    assert find_gpus(records) == (NODE,)


# --- what only the claim tells -------------------------------------------------------------------------

ATTACHED = Condition(ConditionType.ATTACHED, True, "DeviceAttached")


def claim_with(*drivers: str) -> Claim:
    results = tuple(AllocationResult("r", driver, "pool", f"of-{driver}") for driver in drivers)
    return Claim(ClaimRef("team", "c", "uid"), True, results)


def status(*conditions: Condition) -> DeviceStatus:
    return DeviceStatus("dra.net", "pool", "nic", conditions)


def alignment(statuses: list[DeviceStatus], *drivers: str) -> list[tuple[bool | None, str, str]]:
    return [
        (c.status, c.reason, c.message)
        for one in judge_by_claim(claim_with(*drivers), statuses)
        for c in one.conditions
        if c.type is ConditionType.ALIGNED
    ]


def test_where_another_driver_gave_devices_the_place_of_ours_among_them_is_unknown() -> None:
    ((verdict, reason, message),) = alignment([status(ATTACHED)], "dra.net", "gpu.example", "cpu.example")
    assert (verdict, reason) == (None, "DevicesOfAnotherDriver")
    assert "gpu.example, cpu.example" in message


def test_a_claim_of_our_devices_alone_says_nothing_more() -> None:
    assert alignment([status(ATTACHED)], "dra.net") == []


def test_a_verdict_by_our_own_gpus_stands() -> None:
    own = judge(NIC, (ROOT,))
    assert own is not None
    ((verdict, reason, _),) = alignment([status(ATTACHED, own)], "dra.net", "gpu.example")
    assert (verdict, reason) == (True, "SamePCIeRoot")


@pytest.mark.parametrize("attached", [None, False])
def test_a_device_that_is_in_no_pod_gets_no_verdict(attached: bool | None) -> None:
    waiting = status(Condition(ConditionType.ATTACHED, attached, "X"))
    gpu_status = status(Condition(ConditionType.READY, True, "DeviceReady"))
    assert alignment([waiting, gpu_status], "dra.net", "gpu.example") == []

"""How near a network device is to the GPUs of its pod: the condition ``TopologyAligned``.

From what the records of the pod say of its devices when they were prepared, so a restart gives the same
verdict. Of several GPUs the nearest counts: in a pod with eight of each, every NIC has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dranet.model.claim import Claim
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import PreparedClaim
from dranet.model.status import Condition, ConditionReason, ConditionType, DeviceStatus


def find_gpus(records: Iterable[PreparedClaim]) -> tuple[Device, ...]:
    """The GPUs that a pod has from this driver by these claims, those of admin access left out."""
    return tuple(
        prepared.device
        for record in records
        for prepared in record.devices
        if prepared.device.kind is DeviceKind.GPU and not prepared.admin_access
    )


def judge(device: Device, gpus: Sequence[Device]) -> Condition | None:
    """The verdict for one network device; ``None`` where there is no GPU to be near to."""
    if not gpus:
        return None
    roots = [gpu for gpu in gpus if device.pcie_root and gpu.pcie_root == device.pcie_root]
    if roots:
        nearest = max(roots, key=lambda gpu: _shared_bridges(device, gpu))
        bridge = " and PCIe bridge" if _shared_bridges(device, nearest) else ""
        where = f"{nearest.name}: the same PCIe root{bridge} ({device.pcie_root})"
        return _condition(True, ConditionReason.SAME_PCIE_ROOT, where)
    known = [gpu for gpu in gpus if gpu.numa_node is not None]
    if device.numa_node is None or not known:
        return _condition(None, ConditionReason.PLACE_UNKNOWN, "the node does not tell the NUMA node")
    near = [gpu.name for gpu in known if gpu.numa_node == device.numa_node]
    if near:
        where = f"{near[0]}: the same NUMA node {device.numa_node}, another PCIe root"
        return _condition(True, ConditionReason.SAME_NUMA_NODE, where)
    if len(known) < len(gpus):
        return _condition(None, ConditionReason.PLACE_UNKNOWN, "the node does not tell the NUMA node of all")
    far = ", ".join(f"{gpu.name} on NUMA node {gpu.numa_node}" for gpu in gpus)
    return _condition(False, ConditionReason.FAR_FROM_GPUS, f"NUMA node {device.numa_node}; {far}")


def judge_by_claim(claim: Claim, statuses: Sequence[DeviceStatus]) -> Sequence[DeviceStatus]:
    """Say of attached network devices without a verdict that devices of other drivers came with them.

    Where those sit is not known here. Nobody but the claim itself tells that they are there.
    """
    drivers = {status.driver for status in statuses}
    others = dict.fromkeys(result.driver for result in claim.results if result.driver not in drivers)
    if not others:
        return statuses
    where = f"devices of {', '.join(others)}: this driver does not know where they sit"
    unknown = _condition(None, ConditionReason.OTHER_DRIVERS_DEVICES, where)
    return [
        replace(status, conditions=tuple(_insert(status.conditions, unknown)))
        if _is_attached(status)
        else status
        for status in statuses
    ]


def _shared_bridges(device: Device, other: Device) -> int:
    """Bridges and switch ports from below the root down that both are below of."""
    count = 0
    for one, two in zip(device.pci_path[:-1], other.pci_path[:-1], strict=False):
        if one != two:
            break
        count += 1
    return count


def _is_attached(status: DeviceStatus) -> bool:
    return any(c.type is ConditionType.ATTACHED and c.status for c in status.conditions)


def _insert(conditions: Iterable[Condition], verdict: Condition) -> Iterator[Condition]:
    """With the verdict, unless there is one."""
    given = tuple(conditions)
    yield from given
    if not any(condition.type is ConditionType.ALIGNED for condition in given):
        yield verdict


def _condition(status: bool | None, reason: ConditionReason, message: str) -> Condition:
    return Condition(ConditionType.ALIGNED, status, reason, message)

"""Every condition that the driver writes, with the meaning that ``docs/reference/status.md`` gives.

:mod:`dranet.claims.report` writes the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dranet.model.status import ConditionReason, ConditionType

OF_THE_ERROR = ""
"""In :data:`CONDITIONS`: the reason is that of the error (:class:`dranet.errors.Reason`)."""


class ConditionMeaning(NamedTuple):
    """A row of the table for users. ``status`` ``None`` is Unknown."""

    type: ConditionType
    status: bool | None
    reason: str
    meaning: str


_NOT_YET = "prepared; the pod's sandbox does not run yet"
_OVER = "the pod's sandbox has ended"
_UNDONE = "the attach failed and was undone; the kubelet retries"
_OR_LEASE = f"{_UNDONE}; or a DHCP lease has ended (`DHCPLeaseExpired`, `DHCPLeaseRefused`)"

_OF_THE_POD = (
    (
        ConditionType.ATTACHED,
        {ConditionReason.DEVICE_ATTACHED: "in the pod's network namespace, verified there"},
        _UNDONE,
    ),
    (
        ConditionType.CONFIGURED,
        {ConditionReason.DEVICE_CONFIGURED: "everything that the claim asks for is set and was read back"},
        _OR_LEASE,
    ),
    (
        ConditionType.RDMA_LINK_READY,
        {ConditionReason.RDMA_LINK_READY: "the RDMA device is in the pod's namespace"},
        _UNDONE,
    ),
    (
        ConditionType.NETWORK_READY,
        {
            ConditionReason.NETWORK_DEVICE_READY: "the pod can use the interface",
            ConditionReason.RDMA_ONLY_DEVICE_READY: "the pod can use the RDMA device, which has no interface",
        },
        _OR_LEASE,
    ),
    (
        ConditionType.READY,
        {
            ConditionReason.NETWORK_DEVICE_READY: "an interface: every condition above is True",
            ConditionReason.RDMA_ONLY_DEVICE_READY: "the same for an RDMA device without one",
            ConditionReason.DEVICE_READY: "a GPU, or admin access: nothing beyond Prepared applies",
        },
        "a condition above is False for this reason",
    ),
)


def _rows_of_the_pod() -> Iterator[ConditionMeaning]:
    for kind, good, bad in _OF_THE_POD:
        yield ConditionMeaning(kind, None, ConditionReason.WAITING_FOR_POD, _NOT_YET)
        for reason, meaning in good.items():
            yield ConditionMeaning(kind, True, reason, meaning)
        yield ConditionMeaning(kind, False, OF_THE_ERROR, bad)
        yield ConditionMeaning(kind, False, ConditionReason.DEVICE_RELEASED, _OVER)


def _row(kind: ConditionType, status: bool | None, reason: str, meaning: str) -> ConditionMeaning:
    return ConditionMeaning(kind, status, reason, meaning)


_PREPARED, _ALIGNED, _RELEASED = ConditionType.PREPARED, ConditionType.ALIGNED, ConditionType.RELEASED

CONDITIONS = (
    _row(_PREPARED, True, ConditionReason.DEVICE_PREPARED, "planned, and the plan is on disk"),
    _row(_PREPARED, False, OF_THE_ERROR, "the claim is refused for now; the pod waits, the kubelet retries"),
    *_rows_of_the_pod(),
    _row(_ALIGNED, True, ConditionReason.SAME_PCIE_SWITCH, "PIX: below the same PCIe switch as its GPU"),
    _row(
        _ALIGNED,
        True,
        ConditionReason.SAME_PCIE_ROOT,
        "PXB or PHB: below the same PCIe root, and nothing closer on this node",
    ),
    _row(
        _ALIGNED,
        True,
        ConditionReason.SAME_NUMA_NODE,
        "NODE: on the same NUMA node, and nothing closer on this node",
    ),
    _row(
        _ALIGNED,
        True,
        ConditionReason.NEAREST_POSSIBLE,
        "SYS: on another NUMA node, and nothing closer on this node",
    ),
    _row(
        _ALIGNED,
        False,
        ConditionReason.WORSE_THAN_POSSIBLE,
        "the node has a closer device of this kind; the message names it and its holder",
    ),
    _row(_ALIGNED, None, ConditionReason.PLACE_UNKNOWN, "the node does not report their PCIe location"),
    _row(
        _ALIGNED,
        None,
        ConditionReason.OTHER_DRIVERS_DEVICES,
        "the pod has devices of another driver, and its slices do not report their PCIe location",
    ),
    _row(
        _ALIGNED,
        None,
        ConditionReason.GPUS_UNCLEAR,
        "its containers have GPUs, but it is unknown which; the message names what was seen",
    ),
    _row(
        _RELEASED, True, ConditionReason.DEVICE_RELEASED, "the node has the device back in its earlier state"
    ),
    _row(
        _RELEASED,
        False,
        ConditionReason.HOST_STATE_NOT_RESTORED,
        "the device was returned to the node but not fully restored; the message names what differs",
    ),
    _row(
        _RELEASED,
        False,
        OF_THE_ERROR,
        "it is still in the namespace of the ended pod; the release is retried",
    ),
)

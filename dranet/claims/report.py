"""What became of a device -> its entry in ``ResourceClaim.status.devices``.

Condition types and the reasons of success are DraNet's; a failure carries the reason of its error. An entry
replaces the one before (server-side apply owns the whole of it), so each holds all that is known by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from dranet.errors import DranetError
from dranet.model.claim import AllocationResult
from dranet.model.device import DeviceKind
from dranet.model.plan import MoveRdma, PreparedDevice
from dranet.model.status import AttachedLink, Condition, ConditionType, DeviceStatus

MAX_IPS = 16
"""``networkData.ips`` of ``resource.k8s.io/v1``; one more and the whole update is refused."""
_MAX_MESSAGE = 32768
"""``metav1.Condition.message``."""

_READY_REASONS = {
    DeviceKind.NIC: "NetworkDeviceReady",
    DeviceKind.RDMA: "RDMAOnlyDeviceReady",
    DeviceKind.GPU: "DeviceReady",
}
_PREPARED = Condition(ConditionType.PREPARED, True, "DevicePrepared")


def report_prepared(driver: str, prepared: PreparedDevice) -> DeviceStatus:
    """Prepared. A device that has nothing to attach (a GPU, admin access) is ready with that."""
    ready = () if prepared.plan is not None else _ready(prepared)
    return _status(driver, prepared, (_PREPARED, *ready))


def report_prepare_failed(result: AllocationResult, error: DranetError) -> DeviceStatus:
    """Prepare refused the claim, for this device or for another one of it."""
    return DeviceStatus(
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        conditions=tuple(_failed(t, error) for t in (ConditionType.PREPARED, ConditionType.READY)),
    )


def find_attached(prepared: PreparedDevice, links: Iterable[AttachedLink]) -> AttachedLink | None:
    """The device's own link among those of its pod; ``None`` for a device without one.

    By its name in the pod too, where no two are alike: links on top of one device all belong to that device.
    """
    if prepared.plan is None or not prepared.plan.pod_ifname:
        return None
    wanted = (prepared.device.name, prepared.plan.pod_ifname)
    return next((link for link in links if (link.device, link.pod_ifname) == wanted), None)


def report_attached(driver: str, prepared: PreparedDevice, link: AttachedLink | None) -> DeviceStatus:
    """The device is in the pod; ``link`` is as read back there, ``None`` for a device without one."""
    conditions = (_PREPARED, *_ready(prepared))
    if link is None:
        return _status(driver, prepared, conditions)
    return DeviceStatus(
        driver=driver,
        pool=prepared.pool,
        device=prepared.device.name,
        share_id=prepared.share_id,
        conditions=conditions,
        interface_name=link.pod_ifname,
        hardware_address=link.mac,
        ips=tuple(dict.fromkeys(link.addresses))[:MAX_IPS],
    )


def report_attach_failed(driver: str, prepared: PreparedDevice, error: DranetError) -> DeviceStatus:
    """The attach failed and was undone: every condition that success would set is False."""
    failed = tuple(_failed(condition.type, error) for condition in _ready(prepared))
    return _status(driver, prepared, (_PREPARED, *failed))


def _ready(prepared: PreparedDevice) -> tuple[Condition, ...]:
    kind = prepared.device.kind
    has_network = kind is not DeviceKind.GPU and not prepared.admin_access
    reason = _READY_REASONS[kind if has_network else DeviceKind.GPU]
    conditions = [Condition(ConditionType.READY, True, reason)]
    if has_network:
        conditions.append(Condition(ConditionType.NETWORK_READY, True, reason))
    if _moves_rdma(prepared):
        conditions.append(Condition(ConditionType.RDMA_LINK_READY, True, "RDMALinkReady"))
    return tuple(conditions)


def _moves_rdma(prepared: PreparedDevice) -> bool:
    """Exclusive mode is a fact of the plan: only there has it this step."""
    return prepared.plan is not None and any(isinstance(step, MoveRdma) for step in prepared.plan.steps)


def _failed(condition_type: ConditionType, error: DranetError) -> Condition:
    return Condition.failed(condition_type, error.reason, str(error)[:_MAX_MESSAGE])


def _status(driver: str, prepared: PreparedDevice, conditions: tuple[Condition, ...]) -> DeviceStatus:
    return DeviceStatus(
        driver=driver,
        pool=prepared.pool,
        device=prepared.device.name,
        share_id=prepared.share_id,
        conditions=conditions,
    )

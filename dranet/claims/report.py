"""Build the entry of a device in ``ResourceClaim.status.devices``.

Condition types and the reasons of success are DraNet's; a failure carries the reason of its error. An entry
replaces the one before (server-side apply owns the whole of it), so each holds all that is known by then, and
what has not happened yet is Unknown. :mod:`tools.pages.conditions` has every condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from dranet.claims.alignment import Verdict, build_alignment, build_condition
from dranet.errors import DranetError
from dranet.model.claim import AllocationResult
from dranet.model.device import DeviceKind
from dranet.model.facts import TABLE_MAIN
from dranet.model.plan import (
    AddRule,
    AttachPlan,
    CreateLink,
    DhcpLease,
    JoinVrf,
    MoveLink,
    MoveRdma,
    PreparedDevice,
)
from dranet.model.status import (
    AttachedLink,
    AttachedRoute,
    Condition,
    ConditionReason,
    ConditionType,
    DeviceStatus,
)

MAX_IPS = 16
"""``networkData.ips`` of ``resource.k8s.io/v1``; one more and the whole update is refused."""
_READY_REASONS = {
    DeviceKind.NIC: ConditionReason.NETWORK_DEVICE_READY,
    DeviceKind.RDMA: ConditionReason.RDMA_ONLY_DEVICE_READY,
    DeviceKind.GPU: ConditionReason.DEVICE_READY,
}
_PREPARED = Condition(ConditionType.PREPARED, True, ConditionReason.DEVICE_PREPARED)
_BY_THE_LEASE = (ConditionType.CONFIGURED, ConditionType.NETWORK_READY, ConditionType.READY)


def report_prepared(driver: str, prepared: PreparedDevice) -> DeviceStatus:
    """Prepared. A device that has nothing to attach (a GPU, admin access) is ready with that."""
    if prepared.plan is None:
        return _status(driver, prepared, _ready(prepared))
    waiting = (Condition(c.type, None, ConditionReason.WAITING_FOR_POD) for c in _ready(prepared))
    return _status(driver, prepared, waiting)


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
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    status = replace(_status(driver, prepared, _ready(prepared)), data=build_data(prepared, link))
    if link is None:
        return status
    return replace(
        status,
        interface_name=link.pod_ifname,
        hardware_address=link.mac,
        ips=tuple(dict.fromkeys(link.addresses))[:MAX_IPS],
    )


def add_alignment(status: DeviceStatus, alignment: Verdict) -> DeviceStatus:
    """Add the alignment verdict to the status of an attached device."""
    known = {**status.data, "alignment": build_alignment(alignment)}
    return replace(
        status,
        conditions=(*status.conditions, build_condition(alignment)),
        data={key: known[key] for key in DATA_KEYS if key in known},
    )


def has_alignment(entry: JsonObject, *, certain: bool = False) -> bool:
    """Whether an entry of the claim's status has an alignment verdict; ``certain``: one other than
    Unknown."""
    found = [c for c in entry.get("conditions") or () if c.get("type") == ConditionType.ALIGNED]
    return any(not certain or condition.get("status") in ("True", "False") for condition in found)


def keep_alignment(status: DeviceStatus, entry: JsonObject) -> DeviceStatus:
    """Keep the alignment verdict of the existing entry."""
    found = [c for c in entry.get("conditions") or () if c.get("type") == ConditionType.ALIGNED]
    kept = (
        Condition(
            ConditionType.ALIGNED,
            {"True": True, "False": False}.get(str(c.get("status"))),
            str(c.get("reason") or ""),
            str(c.get("message") or ""),
        )
        for c in found
    )
    known = dict(status.data)
    if found and isinstance(alignment := (entry.get("data") or {}).get("alignment"), dict):
        known["alignment"] = alignment
    return replace(
        status,
        conditions=(*status.conditions, *kept),
        data={key: known[key] for key in DATA_KEYS if key in known},
    )


def report_lease_lost(status: DeviceStatus, error: DranetError) -> DeviceStatus:
    """An attached device whose DHCP lease has ended: its address is gone, or never got there."""
    conditions = (_failed(c.type, error) if c.type in _BY_THE_LEASE else c for c in status.conditions)
    return replace(status, conditions=tuple(conditions))


def report_attach_failed(driver: str, prepared: PreparedDevice, error: DranetError) -> DeviceStatus:
    """The attach failed and was undone: every condition that success would set is False."""
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    return _status(driver, prepared, (_failed(condition.type, error) for condition in _ready(prepared)))


def report_released(driver: str, prepared: PreparedDevice, problems: Sequence[str]) -> DeviceStatus:
    """The pod's sandbox has ended, and the node has the device back.

    ``problems`` are the parts of the host state that were not restored: those of this device, and those of
    the claim that name no device.
    """
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    over = [Condition(c.type, False, ConditionReason.DEVICE_RELEASED) for c in _ready(prepared)]
    reason = ConditionReason.HOST_STATE_NOT_RESTORED if problems else ConditionReason.DEVICE_RELEASED
    released = Condition(ConditionType.RELEASED, not problems, reason, "; ".join(problems))
    return _status(driver, prepared, (*over, released))


def report_release_failed(driver: str, prepared: PreparedDevice, error: DranetError) -> DeviceStatus:
    """The pod's sandbox has ended, and the device may still be in its namespace."""
    status = report_released(driver, prepared, ())
    failed = (_failed(c.type, error) if c.type is ConditionType.RELEASED else c for c in status.conditions)
    return replace(status, conditions=tuple(failed))


def _ready(prepared: PreparedDevice) -> tuple[Condition, ...]:
    """Return the conditions of an attached device except Prepared; Ready, the summary, comes last."""
    if prepared.plan is None:
        return (Condition(ConditionType.READY, True, ConditionReason.DEVICE_READY),)
    reason = _READY_REASONS[prepared.device.kind]
    conditions = [
        Condition(ConditionType.ATTACHED, True, ConditionReason.DEVICE_ATTACHED),
        Condition(ConditionType.CONFIGURED, True, ConditionReason.DEVICE_CONFIGURED),
    ]
    if _moves_rdma(prepared):
        conditions.append(Condition(ConditionType.RDMA_LINK_READY, True, ConditionReason.RDMA_LINK_READY))
    conditions.append(Condition(ConditionType.NETWORK_READY, True, reason))
    conditions.append(Condition(ConditionType.READY, True, reason))
    return tuple(conditions)


def _moves_rdma(prepared: PreparedDevice) -> bool:
    """Whether the RDMA device moves: only plans of exclusive mode have the step."""
    return prepared.plan is not None and any(isinstance(step, MoveRdma) for step in prepared.plan.steps)


def _failed(condition_type: ConditionType, error: DranetError) -> Condition:
    return Condition.failed(condition_type, error.reason, str(error))


def _status(driver: str, prepared: PreparedDevice, conditions: Iterable[Condition]) -> DeviceStatus:
    return DeviceStatus(
        driver=driver,
        pool=prepared.pool,
        device=prepared.device.name,
        share_id=prepared.share_id,
        conditions=(replace(_PREPARED, message=_gpu_access(prepared)), *conditions),
    )


def _gpu_access(prepared: PreparedDevice) -> str:
    """Return how containers get a GPU: with the vendor's libraries, or bare."""
    if prepared.device.kind is not DeviceKind.GPU:
        return ""
    if prepared.vendor_cdi_id:
        return f"given by the vendor's CDI device {prepared.vendor_cdi_id}"
    return "given by its device nodes, without the vendor's libraries: no CDI spec of the vendor has it"


JsonObject = dict[str, Any]

DATA_KEYS = {
    "interfaceName": "the interface in the pod",
    "hostInterfaceName": "the interface on the node: the one that moved, or the one below",
    "type": "`passthrough` (the device itself moved), or `macvlan`, `ipvlan`, `vlan` on top of it",
    "hardwareAddress": "hardware address of the interface in the pod",
    "mtu": "MTU of the interface in the pod, in bytes",
    "rdmaDevice": "the RDMA device that belongs to it",
    "pciAddress": "address of the PCI function",
    "pcieRoot": "the PCIe root above it",
    "numaNode": "the NUMA node that it is on",
    "alignment": "how far it is from each GPU of its pod, and the best that the node could have given "
    "([table](alignment.md#in-the-claims-status))",
    "vrf": "the VRF that it joined",
    "dhcp": "`server` and `leaseSeconds` of the lease that the address is from",
    "routeCount": "routes through it in the pod, without those that the kernel makes by itself",
    "addresses": "all its addresses in CIDR form; `networkData.ips` holds 16",
    "gids": "GIDs of its RDMA ports as they were after the attach",
    "routes": "`destination`, and where there is one `gateway`, and `table` if it is not main, of each of "
    "those routes",
    "rules": "policy rules that came with it, as read back: `priority`, `table` and what they select",
}
"""Every key with its meaning; ``docs/user/status.md`` lists them. The last give way first."""


def build_data(prepared: PreparedDevice, link: AttachedLink | None) -> JsonObject:
    """What is known of an attached device, without what is empty."""
    known = {**_of_device(prepared), **_of_plan(prepared.plan), **_of_link(link)}
    return {key: known[key] for key in DATA_KEYS if known.get(key) not in (None, "", [], {})}


def _of_device(prepared: PreparedDevice) -> JsonObject:
    device = prepared.device
    return {
        "rdmaDevice": (prepared.rdma.pod_name or device.rdma_device) if prepared.rdma.nodes else "",
        "pciAddress": device.pci_address,
        "pcieRoot": device.pcie_root,
        "numaNode": device.numa_node,
    }


def _of_plan(plan: AttachPlan | None) -> JsonObject:
    if plan is None:
        return {}
    return {
        **_of_origin(plan),
        "vrf": next((step.name for step in plan.steps if isinstance(step, JoinVrf)), ""),
        "dhcp": _describe_lease(plan.lease),
    }


def _of_origin(plan: AttachPlan) -> JsonObject:
    for step in plan.steps:
        if isinstance(step, CreateLink):
            return {"type": step.kind, "hostInterfaceName": step.parent_ifname}
        if isinstance(step, MoveLink):
            return {"type": "passthrough", "hostInterfaceName": plan.host.ifname if plan.host else ""}
    return {}


def _of_link(link: AttachedLink | None) -> JsonObject:
    if link is None:
        return {}
    known: JsonObject = {
        "interfaceName": link.pod_ifname,
        "hardwareAddress": link.mac,
        "mtu": link.mtu,
        "addresses": list(link.addresses),
        "gids": list(link.gids),
        "routeCount": len(link.routes) or None,
        "routes": [_describe_route(route) for route in link.routes],
        "rules": [_describe_rule(rule) for rule in link.rules],
    }
    return {**known, "rdmaDevice": link.rdma_device} if link.rdma_device else known


def _describe_route(route: AttachedRoute) -> JsonObject:
    texts = dict(_present(destination=route.destination, gateway=", ".join(route.gateways)))
    return texts if route.table == TABLE_MAIN else {**texts, "table": route.table}


def _describe_rule(rule: AddRule) -> JsonObject:
    """With the names of the claim's parameters."""
    texts = _present(
        source=rule.source,
        destination=rule.destination,
        mark="" if rule.mark is None else f"{rule.mark:#x}",
        mask="" if rule.mark is None or rule.mask is None else f"{rule.mask:#x}",
        inputInterface=rule.input_interface,
        outputInterface=rule.output_interface,
    )
    version = {} if rule.source or rule.destination else {"family": f"IPv{rule.family}"}
    return {"priority": rule.priority, "table": rule.table, **dict(texts), **version}


def _describe_lease(lease: DhcpLease | None) -> JsonObject:
    return {} if lease is None else {"server": lease.server, "leaseSeconds": lease.lease_seconds}


def _present(**texts: str) -> Iterator[tuple[str, str]]:
    return ((key, text) for key, text in texts.items() if text)

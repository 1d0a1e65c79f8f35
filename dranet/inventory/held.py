"""Devices that pods have: their links are out of the scan's sight, so the records of their claims speak for
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dranet.inventory.offer import HELD, OUT_OF_SIGHT
from dranet.inventory.policy import Decision
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim, PreparedDevice


def find_held(records: Iterable[PreparedClaim]) -> dict[str, Device]:
    """Devices in the namespace of a pod, and GPUs of pods, as recorded at Prepare. A device with a pod's link
    on top of it is not held."""
    return {prepared.device.name: prepared.device for _, prepared in _iter_held(records)}


def find_pods(records: Iterable[PreparedClaim]) -> dict[str, str]:
    """Return the pod, as ``namespace/name``, that holds a device, by the device's name."""
    return {prepared.device.name: str(record.pod) for record, prepared in _iter_held(records)}


def _iter_held(records: Iterable[PreparedClaim]) -> Iterator[tuple[PreparedClaim, PreparedDevice]]:
    return ((record, one) for record in records for one in record.devices if _is_held(one, record))


def _is_held(prepared: PreparedDevice, record: PreparedClaim) -> bool:
    if prepared.device.kind is DeviceKind.GPU:
        return not prepared.admin_access
    return bool(record.netns_path) and prepared.plan is not None and not prepared.plan.is_on_top


def find_set_down(records: Iterable[PreparedClaim], facts: NodeFacts) -> dict[str, Device]:
    """Devices whose links Prepare has set down for their pods; they stay published as they were."""
    down = {link.pci_address for link in facts.links if not link.is_up}
    return {
        prepared.device.name: prepared.device
        for record in records
        for prepared in record.devices
        if not record.netns_path and prepared.is_set_down_early and prepared.device.pci_address in down
    }


def keep_link_names(
    decisions: Iterable[Decision], records: Iterable[PreparedClaim], facts: NodeFacts
) -> Iterator[Decision]:
    """Yield the decisions; a NIC in a pod has the name that its link had, and will have, on the node."""
    names = {
        prepared.device.name: prepared.plan.host.ifname
        for record in records
        for prepared in record.devices
        if prepared.plan is not None and prepared.plan.host is not None
    }
    taken = {link.ifname for link in facts.links}
    for decision in decisions:
        ifname = names.get(decision.device.name, "")
        if decision.device.ifname or ifname in taken:
            yield decision
        else:
            yield replace(decision, device=replace(decision.device, ifname=ifname))


def name_pods(decisions: Iterable[Decision], pods: Mapping[str, str]) -> tuple[Decision, ...]:
    """Name the pod that has a device. If only the pod is known, as in a support bundle, the device is offered
    with the attributes that the scan still sees."""
    return tuple(
        replace(one, published=True, reason=HELD, pod=pods[one.device.name])
        if one.device.name in pods and one.reason in (HELD, OUT_OF_SIGHT)
        else one
        for one in decisions
    )


def doubt(decisions: Sequence[Decision], where: str) -> tuple[Decision, ...]:
    """Add to the reason that a pod may have the device, while the records are unknown; ``where`` names the
    command that shows them."""
    return tuple(
        replace(one, reason=f"{one.reason} (a pod may have it{where})") if one.reason == OUT_OF_SIGHT else one
        for one in decisions
    )

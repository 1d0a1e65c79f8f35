"""What the containers that name a claim get of its devices, as CDI says it."""

from __future__ import annotations

from collections.abc import Callable

from dranet.driver.gate import ReadyGate
from dranet.driver.gpus.containers import find_environment
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.runtime.cdi import CdiDevice


def build_cdi_devices(
    record: PreparedClaim, gate: ReadyGate, device_id: Callable[[str, str], str]
) -> tuple[CdiDevice, ...]:
    """One entry for each device that the kubelet was given an id of; several shares of a device are one."""
    entries: dict[str, CdiDevice] = {}
    for prepared in record.devices:
        if device_id(record.claim.uid, prepared.device.name) in prepared.cdi_ids:
            entries[prepared.device.name] = _build(record, prepared, gate)
    return tuple(entries.values())


def _build(record: PreparedClaim, prepared: PreparedDevice, gate: ReadyGate) -> CdiDevice:
    """GPU nodes go to the containers that name the claim, unless the vendor's CDI device brings them; a
    device that moves brings the ready gate."""
    is_gpu = prepared.device.kind is DeviceKind.GPU
    return CdiDevice(
        name=prepared.device.name,
        char_devices=prepared.device.char_devices if is_gpu and not prepared.vendor_cdi_id else (),
        mounts=(gate.mount_for(record.claim.uid),) if prepared.plan is not None else (),
        env=find_environment(prepared.device) if is_gpu else (),
    )

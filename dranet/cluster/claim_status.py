"""Our device statuses as entries of ``ResourceClaim.status.devices``, within the API's limits (pure).

Status is for people and controllers to read and never worth losing whole: what is too long is cut, and
says so where there is room. Limits: ``resource.k8s.io/v1`` AllocatedDeviceStatus and ``metav1.Condition``.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from dranet.cluster.client import JsonObject
from dranet.model.status import Condition, DeviceStatus

MAX_CONDITIONS = 8
MAX_IPS = 16
MAX_DATA_BYTES = 10 * 1024
MAX_INTERFACE_NAME_BYTES = 256
MAX_HARDWARE_ADDRESS_BYTES = 128
MAX_REASON_BYTES = 1024
MAX_MESSAGE_BYTES = 32768

_KEYS = ("driver", "pool", "device", "shareID")


def build_entries(
    statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject], now: datetime
) -> list[JsonObject]:
    """One entry for each status. A condition keeps its ``lastTransitionTime`` from ``existing`` as long
    as its status does not change.

    Raises:
        ValueError: more than eight conditions, or an address that is none: a fault of the caller.
    """
    known = {_key(entry): entry for entry in existing}
    return [_build_entry(status, known, now) for status in statuses]


def same_entries(entries: Sequence[JsonObject], existing: Sequence[JsonObject]) -> bool:
    """Whether ``existing`` says the same of the pools concerned, no more and no less."""
    wanted = {_key(entry): entry for entry in entries}
    pools = {key[:2] for key in wanted}
    found = {_key(entry): entry for entry in existing if _key(entry)[:2] in pools}
    return bool(wanted) and wanted == found


def _key(entry: JsonObject) -> tuple[str, ...]:
    driver, pool, device, share_id = (str(entry.get(key) or "") for key in _KEYS)
    return (driver, pool, device, share_id)


def _build_entry(
    status: DeviceStatus, known: Mapping[tuple[str, ...], JsonObject], now: datetime
) -> JsonObject:
    if len(status.conditions) > MAX_CONDITIONS:
        raise ValueError(f"device {status.device}: {len(status.conditions)} conditions, {MAX_CONDITIONS} fit")
    entry: JsonObject = {"driver": status.driver, "pool": status.pool, "device": status.device}
    if status.share_id:
        entry["shareID"] = status.share_id
    times = _read_transitions(known.get(_key(entry), {}))
    if status.conditions:
        entry["conditions"] = [_build_condition(item, times, now) for item in status.conditions]
    if status.data:
        entry["data"] = _build_data(status)
    if network := _build_network_data(status):
        entry["networkData"] = network
    return entry


def _read_transitions(entry: JsonObject) -> dict[tuple[str, str], str]:
    """``lastTransitionTime`` by condition type and status."""
    return {
        (str(item.get("type")), str(item.get("status"))): str(item["lastTransitionTime"])
        for item in entry.get("conditions") or ()
        if item.get("lastTransitionTime")
    }


def _build_condition(condition: Condition, times: Mapping[tuple[str, str], str], now: datetime) -> JsonObject:
    status = "True" if condition.status else "False"
    fresh = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": str(condition.type),
        "status": status,
        "reason": _cut(condition.reason, MAX_REASON_BYTES),
        "message": _cut(condition.message, MAX_MESSAGE_BYTES),
        "lastTransitionTime": times.get((str(condition.type), status), fresh),
    }


def _build_data(status: DeviceStatus) -> JsonObject:
    data = dict(status.data)
    size = len(json.dumps(data, separators=(",", ":")).encode())
    if size <= MAX_DATA_BYTES:
        return data
    return {"omitted": f"{size} bytes of data, {MAX_DATA_BYTES} fit"}


def _build_network_data(status: DeviceStatus) -> JsonObject:
    network: JsonObject = {}
    if status.interface_name:
        network["interfaceName"] = _cut(status.interface_name, MAX_INTERFACE_NAME_BYTES)
    if status.hardware_address:
        network["hardwareAddress"] = _cut(status.hardware_address, MAX_HARDWARE_ADDRESS_BYTES)
    if addresses := list(dict.fromkeys(_canonical_address(ip) for ip in status.ips)):
        network["ips"] = addresses[:MAX_IPS]
    return network


def _canonical_address(text: str) -> str:
    """An interface address with its prefix length, host bits kept, as RFC 5952 has it."""
    return ipaddress.ip_interface(text).with_prefixlen


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    return encoded[: max_bytes - 3].decode(errors="ignore") + "..."

"""Our device statuses as entries of ``ResourceClaim.status.devices``, within the API's limits (pure).

Status is for people and controllers to read and never worth losing whole: what is too long is cut, and marked
as cut where there is room. Limits: ``resource.k8s.io/v1`` AllocatedDeviceStatus and ``metav1.Condition``.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from dranet.cluster.client import JsonObject
from dranet.errors import ClusterError, Reason
from dranet.model.status import Condition, DeviceStatus

MAX_CONDITIONS = 8
MAX_IPS = 16
MAX_DATA_BYTES = 10 * 1024
MAX_INTERFACE_NAME_BYTES = 256
MAX_HARDWARE_ADDRESS_BYTES = 128
MAX_REASON_BYTES = 1024
MAX_MESSAGE_BYTES = 2048
"""The API takes 32 KiB, in each of eight conditions of each of 32 devices; its store takes 1.5 MiB in all."""

_KEYS = ("driver", "pool", "device", "shareID")
_CONDITION_STATUS = {True: "True", False: "False", None: "Unknown"}

OMITTED = "omitted"
"""The key of ``data`` that names those which did not fit."""
_ESCAPED = "<>&"
"""Characters that the server writes as six (Go's ``encoding/json``)."""


def build_entries(
    statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject], now: datetime
) -> list[JsonObject]:
    """One entry for each status. A condition keeps its ``lastTransitionTime`` from ``existing`` while
    its status does not change.

    Raises:
        ValueError: more than eight conditions: a fault of the caller.
    """
    known = {key_of(entry): entry for entry in existing}
    return [_build_entry(status, known, now) for status in statuses]


def same_entries(entries: Sequence[JsonObject], existing: Sequence[JsonObject]) -> bool:
    """Whether ``existing`` has exactly these entries for the pools concerned."""
    wanted = {key_of(entry): entry for entry in entries}
    pools = {key[:2] for key in wanted}
    found = {key_of(entry): entry for entry in existing if key_of(entry)[:2] in pools}
    return bool(wanted) and wanted == found


def merge_entries(entries: Sequence[JsonObject], existing: Sequence[JsonObject]) -> list[JsonObject]:
    """``entries`` in place of all that ``existing`` has of their pools."""
    pools = {key_of(entry)[:2] for entry in entries}
    return [*(entry for entry in existing if key_of(entry)[:2] not in pools), *entries]


def key_of(entry: JsonObject) -> tuple[str, str, str, str]:
    """The identity of an entry of ``status.devices``, and of an allocation result."""
    driver, pool, device, share_id = (str(entry.get(key) or "") for key in _KEYS)
    return (driver, pool, device, share_id)


def _build_entry(
    status: DeviceStatus, known: Mapping[tuple[str, str, str, str], JsonObject], now: datetime
) -> JsonObject:
    if len(status.conditions) > MAX_CONDITIONS:
        raise ValueError(f"device {status.device}: {len(status.conditions)} conditions, {MAX_CONDITIONS} fit")
    entry: JsonObject = {"driver": status.driver, "pool": status.pool, "device": status.device}
    if status.share_id:
        entry["shareID"] = status.share_id
    times = _read_transitions(known.get(key_of(entry), {}))
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
    status = _CONDITION_STATUS[condition.status]
    fresh = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": str(condition.type),
        "status": status,
        "reason": _cut(condition.reason, MAX_REASON_BYTES),
        "message": _cut(condition.message, MAX_MESSAGE_BYTES),
        "lastTransitionTime": times.get((str(condition.type), status), fresh),
    }


def _build_data(status: DeviceStatus) -> JsonObject:
    """Whole keys only. Those that come last give way first, and are named."""
    kept, omitted = dict(status.data), list[str]()
    while _size({**kept, OMITTED: omitted} if omitted else kept) > MAX_DATA_BYTES and kept:
        omitted.insert(0, kept.popitem()[0])
    return {**kept, OMITTED: omitted} if omitted else kept


def _size(data: JsonObject) -> int:
    """Bytes as the server counts them, or a few more."""
    text = json.dumps(data, separators=(",", ":"))
    return len(text) + 5 * sum(text.count(character) for character in _ESCAPED)


def _build_network_data(status: DeviceStatus) -> JsonObject:
    network: JsonObject = {}
    if status.interface_name:
        network["interfaceName"] = _cut(status.interface_name, MAX_INTERFACE_NAME_BYTES)
    if status.hardware_address:
        network["hardwareAddress"] = _cut(status.hardware_address, MAX_HARDWARE_ADDRESS_BYTES)
    if addresses := list(dict.fromkeys(filter(None, map(_canonical_address, status.ips)))):
        network["ips"] = addresses[:MAX_IPS]
    return network


def _canonical_address(text: str) -> str:
    """An interface address with its prefix length, host bits kept, as RFC 5952 has it.

    Empty for one that the server would refuse, and with it the whole status: with a zone, an IPv4 address
    mapped into IPv6 (Go writes it as IPv4 again, so no form of it is canonical), or none at all.
    """
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        return ""
    is_odd = isinstance(address, ipaddress.IPv6Interface) and (address.scope_id or address.ipv4_mapped)
    return "" if is_odd else address.with_prefixlen


def explain_forbidden(error: ClusterError, statuses: Sequence[DeviceStatus]) -> ClusterError | None:
    """The refusal of a caller who may change statuses, but not those of this driver's devices; ``None`` for
    any other error.

    Servers with DRAResourceClaimGranularStatusAuthorization (1.36) ask for the synthetic resource
    ``resourceclaims/driver``. They look at it when they validate, so it comes as an invalid object (422).
    """
    if error.status not in (403, 422) or "resourceclaims/driver" not in error.message:
        return None
    drivers = ", ".join(dict.fromkeys(status.driver for status in statuses))
    rule = "associated-node:patch resourceclaims/driver in resource.k8s.io"
    hint = f"the RBAC rule it takes: {rule}, for {drivers}"
    if "associated-node:" not in error.message:
        hint += (
            "; and the driver's token must be one that the kubelet of the allocation's node gave to its pod, "
            "or the rule be arbitrary-node:patch"
        )
    return ClusterError(error.message, status=error.status, reason=Reason.API_FORBIDDEN, hint=hint)


def is_rewritten_allocation(error: ClusterError) -> bool:
    """Whether the server refuses a status because it would change the allocation, which we never send."""
    return error.reason is Reason.API_INVALID and "status.allocation:" in error.message


def explain_rewritten(error: ClusterError) -> ClusterError:
    """Explain the refusal of a merge patch.

    The server compares the bytes of the parameters. Its own JSON has no spaces and escapes <, > and &, so a
    patch cannot keep parameters that were stored in another form.
    """
    hint = (
        "the claim's parameters are stored with spaces between values or with an unescaped <, > or &; "
        "a claim that kubectl creates can have a status"
    )
    return ClusterError(error.message, status=error.status, reason=error.reason, hint=hint)


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode(errors="replace")  # names of files and links need not be UTF-8
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode(errors="ignore") + "..."

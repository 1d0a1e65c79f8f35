"""ResourceClaims and the pods that use them: read the part that concerns us, report device status.

Status goes by server-side apply, so that the entries of other drivers (and of this driver on other
nodes) stay untouched. Where the server refuses every apply to a claim it goes by a merge patch. The claim's
uid travels with each write, because a name can be reused. What is too long for the API is cut, so that the
rest of a status is not lost (``resource.k8s.io/v1`` AllocatedDeviceStatus, ``metav1.Condition``).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.messages import (
    check_stored,
    format_time,
    get_field,
    get_items,
    get_object,
    get_text,
    get_texts,
    utc_now,
)
from dranet.errors import ClaimError, ClusterError, ProtocolError, Reason
from dranet.model.attributes import BANDWIDTH
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig, PodRef
from dranet.model.status import Condition, DeviceStatus
from dranet.terminal import cut_bytes

API_VERSION = "resource.k8s.io/v1"

FIELD_MANAGER_MAX_CHARACTERS = 128
"""The API server's limit."""
_DIGEST_CHARACTERS = 16

Complete = Callable[[Claim, Sequence[DeviceStatus], Sequence[JsonObject]], Sequence[DeviceStatus]]
"""Adds to statuses what is known only when they are written; the last are the entries of all drivers now."""

OnWritten = Callable[[Claim, Sequence[JsonObject], Sequence[JsonObject]], None]
"""Called with the claim's status: the entries of all drivers before a write, and ours as written. Also where
they were the same, so that there was nothing to write."""


async def fetch_claim(client: ApiClient, ref: ClaimRef) -> Claim:
    """The claim as the API server has it now, allocated.

    Raises:
        ClaimError: CLAIM_NOT_FOUND, CLAIM_REPLACED (another claim has the name) or
            CLAIM_NOT_ALLOCATED.
        ClusterError: no answer, or a refusal.
        ProtocolError: the claim is not what the API promises.
    """
    body = await _get_if_there(client, paths.resource_claim(ref.namespace, ref.name))
    if body is None:
        raise ClaimError(f"claim {ref} does not exist", reason=Reason.CLAIM_NOT_FOUND)
    claim = parse_claim(body)
    if claim.ref.uid != ref.uid:
        raise ClaimError(
            f"claim {ref} was replaced: its uid is {claim.ref.uid}, not {ref.uid}",
            reason=Reason.CLAIM_REPLACED,
        )
    if not claim.allocated:
        raise ClaimError(f"claim {ref} is not allocated", reason=Reason.CLAIM_NOT_ALLOCATED)
    return claim


def parse_claim(body: JsonObject) -> Claim:
    """API JSON to our noun.

    Raises:
        ProtocolError: a field that we read has another shape than ``resource.k8s.io/v1`` gives it.
    """
    metadata = get_object(body, "metadata")
    annotations = get_object(metadata, "annotations")
    spec_devices = get_object(get_object(body, "spec"), "devices")
    status = get_object(body, "status")
    allocation = get_field(status, "allocation", dict)
    devices = get_object(allocation or {}, "devices")
    return Claim(
        ref=ClaimRef(*(get_text(metadata, key) for key in ("namespace", "name", "uid"))),
        allocated=allocation is not None,
        results=tuple(_parse_result(item) for item in get_items(devices, "results")),
        configs=tuple(_parse_config(item) for item in get_items(devices, "config") if "opaque" in item),
        reserved_for=tuple(_parse_consumer(item) for item in get_items(status, "reservedFor")),
        annotations={key: get_text(annotations, key) for key in annotations},
        request_classes=dict(
            named for item in get_items(spec_devices, "requests") for named in _parse_request(item)
        ),
        node_name=_parse_node_name(get_object(allocation or {}, "nodeSelector")),
    )


def build_field_manager(driver_name: str, node_name: str) -> str:
    """Return the field manager of this driver's status entries on this node, the same for all its instances.

    One that is too long for the API keeps its beginning and ends in a digest of the whole, so that two nodes
    never own each other's entries.
    """
    manager = f"{driver_name}-{node_name}"
    if len(manager) <= FIELD_MANAGER_MAX_CHARACTERS:
        return manager
    digest = hashlib.sha256(manager.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{manager[: FIELD_MANAGER_MAX_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"


async def apply_device_statuses(
    client: ApiClient,
    claim: ClaimRef,
    field_manager: str,
    statuses: Sequence[DeviceStatus],
    *,
    complete: Complete = lambda _, statuses, __: statuses,
    on_dropped: Callable[[], None] = lambda: None,
    on_written: OnWritten = lambda *_: None,
    now: Callable[[], datetime] = utc_now,
) -> bool:
    """Report all our devices of a claim in one apply: entries of this ``field_manager`` that are left out
    are removed. Nothing is written when the claim has them already. ``on_dropped`` is called when the server
    accepts a write and keeps nothing of it: a feature gate is off.

    Returns:
        Whether the claim is there to hold it; false: gone, replaced or given other devices meanwhile, so
        there is nothing to report to.

    Raises:
        ClusterError: API_FORBIDDEN, also for the finer rule of servers that ask for it, named in the hint;
            and whatever else the server refuses.
        ProtocolError: the claim is not what the API promises.
    """
    body = await _get_if_held(client, claim, statuses)
    if body is None:
        return False
    existing = get_items(get_object(body, "status"), "devices")
    parsed = parse_claim(body)
    entries = build_entries(complete(parsed, statuses, existing), existing, now())
    if same_entries(entries, existing):
        on_written(parsed, existing, entries)
        return True
    try:
        kept = await _write(client, claim, field_manager, entries, body)
    except ClusterError as error:
        if (forbidden := explain_forbidden(error, statuses)) is not None:
            raise forbidden from error
        # With force there is no conflict about fields: either the claim is another one by now, or has other
        # devices, or the server lost too many races and the same call may be tried again.
        outdated = error.reason in (Reason.API_NOT_FOUND, Reason.API_CONFLICT, Reason.API_INVALID)
        if outdated and await _get_if_held(client, claim, statuses) is None:
            return False
        raise
    on_written(parsed, existing, entries)
    if entries and not kept:
        on_dropped()
    return True


async def _write(
    client: ApiClient, claim: ClaimRef, field_manager: str, entries: Sequence[JsonObject], body: JsonObject
) -> list[JsonObject]:
    """Write our entries; the entries of all drivers after it.

    Server-side apply also rewrites the parameters in ``status.allocation``: it sorts the keys and has one
    form for numbers. Where a client wrote them in another form the server sees a changed allocation and
    refuses the apply. A merge patch keeps the keys and numbers as they are.
    """
    try:
        return await _apply(client, claim, field_manager, entries)
    except ClusterError as error:
        if not entries or not is_rewritten_allocation(error):
            raise
    try:
        return await _patch(client, claim, entries, body)
    except ClusterError as error:
        if is_rewritten_allocation(error):
            raise explain_rewritten(error) from error
        raise


async def _patch(
    client: ApiClient, claim: ClaimRef, entries: Sequence[JsonObject], body: JsonObject
) -> list[JsonObject]:
    """Replace our entries in ``body``, which must still be what the server has."""
    version = get_text(get_object(body, "metadata"), "resourceVersion")
    existing = get_items(get_object(body, "status"), "devices")
    patch = {
        "metadata": {"uid": claim.uid, "resourceVersion": version},
        "status": {"devices": merge_entries(entries, existing)},
    }
    path = paths.resource_claim_status(claim.namespace, claim.name)
    stored = check_stored(await client.patch(path, patch), f"a PATCH of {path}")
    return get_items(get_object(stored, "status"), "devices")


async def _apply(
    client: ApiClient, claim: ClaimRef, field_manager: str, entries: Sequence[JsonObject]
) -> list[JsonObject]:
    """The entries of all drivers after it."""
    applied = {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": list(entries)},
    }
    path = paths.resource_claim_status(claim.namespace, claim.name)
    stored = check_stored(await client.apply(path, applied, field_manager), f"a PATCH of {path}")
    return get_items(get_object(stored, "status"), "devices")


async def _get_if_held(
    client: ApiClient, claim: ClaimRef, statuses: Sequence[DeviceStatus]
) -> JsonObject | None:
    """The claim, if it is still this one and all these devices are allocated to it."""
    body = await _get_if_there(client, paths.resource_claim(claim.namespace, claim.name))
    if body is None or get_text(get_object(body, "metadata"), "uid") != claim.uid:
        return None
    allocation = get_object(get_object(body, "status"), "allocation")
    allocated = {key_of(result) for result in get_items(get_object(allocation, "devices"), "results")}
    reported = {(status.driver, status.pool, status.device, status.share_id or "") for status in statuses}
    return body if reported <= allocated else None


def _parse_request(item: JsonObject) -> Iterator[tuple[str, str]]:
    """Each name by which a result may call the request, with the DeviceClass behind it."""
    name = get_text(item, "name")
    exactly = get_object(item, "exactly")
    if exactly:
        yield name, get_text(exactly, "deviceClassName")
    for alternative in get_items(item, "firstAvailable"):
        yield f"{name}/{get_text(alternative, 'name')}", get_text(alternative, "deviceClassName")


def _parse_result(item: JsonObject) -> AllocationResult:
    return AllocationResult(
        request=get_text(item, "request"),
        driver=get_text(item, "driver"),
        pool=get_text(item, "pool"),
        device=get_text(item, "device"),
        admin_access=get_field(item, "adminAccess", bool) or False,
        share_id=get_text(item, "shareID") or None,
        bandwidth=_parse_bandwidth(item),
    )


def _parse_bandwidth(item: JsonObject) -> int | None:
    text = get_text(get_object(item, "consumedCapacity"), BANDWIDTH)
    if not text:
        return None
    from dranet.quantity import NANO, parse_quantity  # few claims are for shares

    try:
        return -(-parse_quantity(text) // NANO)
    except ValueError as error:
        raise ProtocolError(f"claim: consumedCapacity of {BANDWIDTH}: {error}") from error


def _parse_config(item: JsonObject) -> OpaqueConfig:
    opaque = get_object(item, "opaque")
    source = get_text(item, "source")
    if source not in tuple(ConfigSource):
        raise ProtocolError(f"claim: allocation config of unknown source {source!r}")
    return OpaqueConfig(
        source=ConfigSource(source),
        driver=get_text(opaque, "driver"),
        parameters=get_object(opaque, "parameters"),
        requests=get_texts(item, "requests"),
    )


def _parse_consumer(item: JsonObject) -> Consumer:
    return Consumer(
        resource=get_text(item, "resource"),
        name=get_text(item, "name"),
        uid=get_text(item, "uid"),
        api_group=get_text(item, "apiGroup"),
    )


def _parse_node_name(selector: JsonObject) -> str:
    """Read the one form that the scheduler gives to an allocation of node-local devices; empty for others."""
    terms = get_items(selector, "nodeSelectorTerms")
    if len(terms) != 1 or get_items(terms[0], "matchExpressions"):
        return ""
    fields = get_items(terms[0], "matchFields")
    if len(fields) != 1 or (fields[0].get("key"), fields[0].get("operator")) != ("metadata.name", "In"):
        return ""
    values = get_texts(fields[0], "values")
    return values[0] if len(values) == 1 else ""


async def fetch_claim_for_node(client: ApiClient, ref: ClaimRef, node_name: str) -> Claim:
    """The claim as the API server has it now, allocated on this node, with pods as its consumers.

    Raises:
        ClaimError: as :func:`~dranet.cluster.claims.fetch_claim`; UnsupportedClaim when it is allocated on
            another node; as :func:`resolve_pod_groups`.
        ClusterError: no answer, or a refusal.
        ProtocolError: the claim, or a pod, is not what the API promises.
    """
    claim = await fetch_claim(client, ref)
    if claim.node_name not in ("", node_name):
        # Devices of several nodes have the same names: ours must not go for those of another node.
        raise ClaimError(
            f"claim {ref} is allocated on node {claim.node_name}, not on this one ({node_name})",
            hint="was the pod bound by hand? delete it and let the scheduler choose the node",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    return await resolve_pod_groups(client, claim, node_name)


async def resolve_pod_groups(client: ApiClient, claim: Claim, node_name: str) -> Claim:
    """The claim with each PodGroup of ``reserved_for`` replaced by its pods on this node that use the claim.

    Raises:
        ClaimError: ClaimNotReserved, to be tried again: no such pod.
        ClusterError: no answer, or a refusal; the role needs ``list`` on ``pods``.
        ProtocolError: a pod is not what the API promises.
    """
    groups = {consumer.name for consumer in claim.reserved_for if consumer.is_pod_group}
    if not groups:
        return claim
    listed = await client.list(paths.pods(claim.ref.namespace), field_selector=f"spec.nodeName={node_name}")
    users = [_consumer(pod) for pod in get_items(listed, "items") if _uses(pod, claim.ref.name, groups)]
    if not users:
        raise ClaimError(
            f"claim {claim.ref} is reserved for PodGroup {', '.join(sorted(groups))}, and no pod of it on "
            "this node uses the claim",
            hint="this is tried again; was the pod deleted?",
            reason=Reason.CLAIM_NOT_RESERVED,
            retryable=True,
        )
    others = [consumer for consumer in claim.reserved_for if not consumer.is_pod_group]
    return replace(claim, reserved_for=(*others, *users))


def _uses(pod: JsonObject, claim_name: str, groups: set[str]) -> bool:
    """Whether a pod that may still start containers is of one of the groups, and has the claim."""
    spec, status = get_object(pod, "spec"), get_object(pod, "status")
    group = get_text(get_object(spec, "schedulingGroup"), "podGroupName")
    is_deleted = bool(get_object(pod, "metadata").get("deletionTimestamp"))
    may_start = not is_deleted and get_text(status, "phase") not in ("Succeeded", "Failed")
    return may_start and group in groups and claim_name in _claim_names(spec, status)


def _claim_names(spec: JsonObject, status: JsonObject) -> Iterator[str]:
    """Claims that the pod names, and those that were made for it or its group from a template."""
    for item in (*get_items(spec, "resourceClaims"), *get_items(status, "resourceClaimStatuses")):
        yield get_text(item, "resourceClaimName")


async def fetch_other_results(
    client: ApiClient, pod: PodRef, known: frozenset[str]
) -> tuple[AllocationResult, ...]:
    """Return the allocation results of the pod's claims, except those named in ``known``; none for a pod or a
    claim that no longer exists.

    Raises:
        ClusterError: no answer, or a refusal; the role needs ``get`` on ``pods``.
        ProtocolError: the pod, or a claim, is not what the API promises.
    """
    body = await _get_if_there(client, paths.pod(pod.namespace, pod.name))
    if body is None or get_text(get_object(body, "metadata"), "uid") != pod.uid:
        return ()
    spec, status = get_object(body, "spec"), get_object(body, "status")
    extended = get_text(get_object(status, "extendedResourceClaimStatus"), "resourceClaimName")
    names = dict.fromkeys(filter(None, (*_claim_names(spec, status), extended)))
    results: list[AllocationResult] = []
    for name in names:
        if name not in known:
            claim = await _get_if_there(client, paths.resource_claim(pod.namespace, name))
            results += parse_claim(claim).results if claim is not None else ()
    return tuple(results)


async def _get_if_there(client: ApiClient, path: str) -> JsonObject | None:
    try:
        return check_stored(await client.get(path), f"a GET of {path}")
    except ClusterError as error:
        if error.reason is Reason.API_NOT_FOUND:
            return None
        raise


def _consumer(pod: JsonObject) -> Consumer:
    metadata = get_object(pod, "metadata")
    return Consumer("pods", get_text(metadata, "name"), get_text(metadata, "uid"))


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
    return {
        (str(item.get("type")), str(item.get("status"))): str(item["lastTransitionTime"])
        for item in entry.get("conditions") or ()
        if item.get("lastTransitionTime")
    }


def _build_condition(condition: Condition, times: Mapping[tuple[str, str], str], now: datetime) -> JsonObject:
    status = _CONDITION_STATUS[condition.status]
    return {
        "type": str(condition.type),
        "status": status,
        "reason": cut_bytes(condition.reason, MAX_REASON_BYTES),
        "message": cut_bytes(condition.message, MAX_MESSAGE_BYTES),
        "lastTransitionTime": times.get((str(condition.type), status), format_time(now)),
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
        network["interfaceName"] = cut_bytes(status.interface_name, MAX_INTERFACE_NAME_BYTES)
    if status.hardware_address:
        network["hardwareAddress"] = cut_bytes(status.hardware_address, MAX_HARDWARE_ADDRESS_BYTES)
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

"""ResourceClaims: fetch one live and read the part that concerns us; report device status.

Status goes by server-side apply, so that the entries of other drivers (and of this driver on other
nodes) stay untouched; the claim's uid travels with each write, because a name can be reused. The shape
of one status entry is built in :mod:`dranet.cluster.claim_status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from dranet.cluster import paths
from dranet.cluster.claim_status import build_entries, same_entries
from dranet.cluster.client import ApiClient, JsonObject
from dranet.errors import ClaimError, ClusterError, ProtocolError, Reason
from dranet.model.claim import (
    AllocationResult,
    Claim,
    ClaimRef,
    ConfigSource,
    Consumer,
    OpaqueConfig,
)
from dranet.model.status import DeviceStatus

API_VERSION = "resource.k8s.io/v1"

_T = TypeVar("_T")


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def fetch_claim(client: ApiClient, ref: ClaimRef) -> Claim:
    """The claim as the API server has it now, allocated.

    Raises:
        ClaimError: CLAIM_NOT_FOUND, CLAIM_REPLACED (another claim has the name) or
            CLAIM_NOT_ALLOCATED.
        ClusterError: no answer, or a refusal.
        ProtocolError: the claim is not what the API promises.
    """
    try:
        body = await client.get(paths.resource_claim(ref.namespace, ref.name))
    except ClusterError as error:
        if error.reason is not Reason.API_NOT_FOUND:
            raise
        message = f"claim {ref} does not exist"
        raise ClaimError(message, reason=Reason.CLAIM_NOT_FOUND) from error
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
    metadata = _object(body, "metadata")
    ref = ClaimRef(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
    )
    spec_devices = _object(_object(body, "spec"), "devices")
    status = _object(body, "status")
    allocation = _field(status, "allocation", dict)
    devices = _object(allocation or {}, "devices")
    return Claim(
        ref=ref,
        allocated=allocation is not None,
        results=tuple(_parse_result(item) for item in _items(devices, "results")),
        configs=tuple(_parse_config(item) for item in _items(devices, "config") if "opaque" in item),
        reserved_for=tuple(_parse_consumer(item) for item in _items(status, "reservedFor")),
        annotations=_object(metadata, "annotations"),
        request_classes=dict(
            named for item in _items(spec_devices, "requests") for named in _parse_request(item)
        ),
    )


async def apply_device_statuses(
    client: ApiClient,
    claim: ClaimRef,
    field_manager: str,
    statuses: Sequence[DeviceStatus],
    *,
    now: Callable[[], datetime] = _utc_now,
) -> bool:
    """Report all our devices of a claim in one apply: entries of this ``field_manager`` that are left out
    are removed. Nothing is written when the claim says so already.

    Returns:
        Whether the claim is there to hold it; false: gone or replaced meanwhile, nothing to report to.

    Raises:
        ClusterError: API_INVALID when a device is not allocated to the claim (any more), and whatever
            else the server refuses.
    """
    body = await _get_if_same(client, claim)
    if body is None:
        return False
    existing = _items(_object(body, "status"), "devices")
    entries = build_entries(statuses, existing, now())
    if same_entries(entries, existing):
        return True
    applied = {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": entries},
    }
    path = paths.resource_claim_status(claim.namespace, claim.name)
    try:
        await client.apply(path, applied, field_manager)
    except ClusterError as error:
        if error.reason not in (Reason.API_NOT_FOUND, Reason.API_CONFLICT):
            raise
        # With force there is no conflict about fields: either another claim has the name by now, or the
        # server lost too many races and the same call may be tried again.
        if await _get_if_same(client, claim) is None:
            return False
        raise
    return True


async def _get_if_same(client: ApiClient, claim: ClaimRef) -> JsonObject | None:
    try:
        body = await client.get(paths.resource_claim(claim.namespace, claim.name))
    except ClusterError as error:
        if error.reason is Reason.API_NOT_FOUND:
            return None
        raise
    return body if _text(_object(body, "metadata"), "uid") == claim.uid else None


def _parse_request(item: JsonObject) -> Iterator[tuple[str, str]]:
    """Each name by which a result may call the request, with the DeviceClass behind it."""
    name = _text(item, "name")
    exactly = _object(item, "exactly")
    if exactly:
        yield name, _text(exactly, "deviceClassName")
    for alternative in _items(item, "firstAvailable"):
        yield f"{name}/{_text(alternative, 'name')}", _text(alternative, "deviceClassName")


def _parse_result(item: JsonObject) -> AllocationResult:
    return AllocationResult(
        request=_text(item, "request"),
        driver=_text(item, "driver"),
        pool=_text(item, "pool"),
        device=_text(item, "device"),
        admin_access=_field(item, "adminAccess", bool) or False,
        share_id=_text(item, "shareID") or None,
    )


def _parse_config(item: JsonObject) -> OpaqueConfig:
    opaque = _object(item, "opaque")
    source = _text(item, "source")
    if source not in tuple(ConfigSource):
        raise ProtocolError(f"claim: allocation config of unknown source {source!r}")
    requests = _field(item, "requests", list) or ()
    return OpaqueConfig(
        source=ConfigSource(source),
        driver=_text(opaque, "driver"),
        parameters=_object(opaque, "parameters"),
        requests=tuple(str(request) for request in requests),
    )


def _parse_consumer(item: JsonObject) -> Consumer:
    return Consumer(
        resource=_text(item, "resource"),
        name=_text(item, "name"),
        uid=_text(item, "uid"),
        api_group=_text(item, "apiGroup"),
    )


def _field(parent: JsonObject, key: str, kind: type[_T]) -> _T | None:
    """A field of a known JSON type; ``None`` where it is absent or null."""
    value = parent.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise ProtocolError(f"claim: field {key!r} is a {type(value).__name__}, not a {kind.__name__}")


def _object(parent: JsonObject, key: str) -> JsonObject:
    return _field(parent, key, dict) or {}


def _text(parent: JsonObject, key: str) -> str:
    return _field(parent, key, str) or ""


def _items(parent: JsonObject, key: str) -> list[JsonObject]:
    items: list[Any] = _field(parent, key, list) or []
    for item in items:
        if not isinstance(item, dict):
            raise ProtocolError(f"claim: an entry of {key!r} is a {type(item).__name__}, not an object")
    return items

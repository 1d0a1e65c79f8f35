"""Objects of older versions of ``resource.k8s.io``, written in v1.

Until v1beta1 a request had its fields next to its name, and a device of a slice had them below ``basic``.
v1beta2 has the fields of v1. In v1alpha3 a capacity was a plain quantity. A server of 1.34 or later refuses
all of these versions by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.shapes import ALTERNATIVE, get_fields

GROUP = "resource.k8s.io"
CURRENT = f"{GROUP}/v1"
CONVERTED = tuple(f"{GROUP}/{version}" for version in ("v1beta2", "v1beta1", "v1alpha3"))
NOT_CONVERTED = tuple(f"{GROUP}/{version}" for version in ("v1alpha2", "v1alpha1"))
"""Older ones, in which claims had other fields."""
_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")
_OF_REQUEST = frozenset(get_fields(ALTERNATIVE)) | {"adminAccess"}


def has_other_version(body: Mapping[str, Any]) -> bool:
    """Whether it is of a kind that v1 has, and of another version. DeviceTaintRules are left alone: their
    versions are of another time."""
    version = str(body.get("apiVersion"))
    return body.get("kind") in _KINDS and version.startswith(f"{GROUP}/") and version != CURRENT


def can_convert(body: Mapping[str, Any]) -> bool:
    """Whether :func:`convert` makes it an object of v1."""
    return body.get("kind") in _KINDS and body.get("apiVersion") in (CURRENT, *CONVERTED)


def convert(body: JsonObject) -> JsonObject:
    """The object in v1, also where its version is v1 and a request has the form of v1beta1; the same object
    if nothing changes, or if this is another kind or a version that cannot be converted."""
    if not can_convert(body):
        return body
    changed = {**body, "apiVersion": CURRENT}
    match body["kind"]:
        case "ResourceClaim":
            changed = _at(changed, _convert_claim, "spec")
        case "ResourceClaimTemplate":
            changed = _at(changed, _convert_claim, "spec", "spec")
        case "ResourceSlice":
            changed = _each(changed, _convert_device, "spec", "devices")
    return body if changed == body else changed


def _convert_claim(spec: JsonObject) -> Any:
    return _each(spec, _convert_request, "devices", "requests")


def _convert_request(request: JsonObject) -> JsonObject:
    """Fields next to ``firstAvailable`` would have no place in v1; they stay, to be refused by name."""
    flat = {key: value for key, value in request.items() if key in _OF_REQUEST}
    exactly = request.get("exactly", {})
    if not flat or request.get("firstAvailable") or not isinstance(exactly, dict):
        return request
    kept = {key: value for key, value in request.items() if key not in flat and key != "exactly"}
    return {**kept, "exactly": {**flat, **exactly}}


def _convert_device(device: JsonObject) -> JsonObject:
    basic = device.get("basic")
    if not isinstance(basic, dict):
        return device
    lifted = {**{key: value for key, value in device.items() if key != "basic"}, **basic}
    if isinstance(capacity := lifted.get("capacity"), dict):
        amounts = {n: one if isinstance(one, dict) else {"value": one} for n, one in capacity.items()}
        lifted["capacity"] = amounts
    return lifted


def _at(value: Any, change: Callable[[Any], Any], *path: str) -> Any:
    """``value`` with what is at ``path`` changed, if that is a mapping."""
    if not isinstance(value, dict):
        return value
    if not path:
        return change(value)
    key, *rest = path
    return {**value, key: _at(value[key], change, *rest)} if key in value else value


def _each(value: Any, change: Callable[[Any], Any], *path: str) -> Any:
    """``value`` with every mapping of the list at ``path`` changed."""
    *outer, last = path

    def change_all(owner: JsonObject) -> JsonObject:
        entries = owner.get(last)
        if not isinstance(entries, list):
            return owner
        return {**owner, last: [change(one) if isinstance(one, dict) else one for one in entries]}

    return _at(value, change_all, *outer)

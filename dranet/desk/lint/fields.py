"""Fields that ``resource.k8s.io/v1`` does not have: misspelt, misplaced, or from a version before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dranet.desk.lint import rules
from dranet.desk.lint.findings import Finding, JsonObject, show, suggest

_Known = Mapping[str, Any]
"""Field -> the fields of its object, of the objects of its list (in a list), or ``None``: not looked into."""

_SELECTORS = [{"cel": {"expression": None}}]
_TOLERATION = dict.fromkeys(("key", "operator", "value", "effect", "tolerationSeconds"))
_DEMAND = {
    "deviceClassName": None,
    "selectors": _SELECTORS,
    "allocationMode": None,
    "count": None,
    "tolerations": [_TOLERATION],
    "capacity": {"requests": None},
    "derivedAttributes": None,
}
_CONFIG = {"opaque": {"driver": None, "parameters": None}}
_CLAIM_SPEC = {
    "devices": {
        "requests": [
            {
                "name": None,
                "exactly": {**_DEMAND, "adminAccess": None},
                "firstAvailable": [{"name": None, **_DEMAND}],
            }
        ],
        "constraints": [dict.fromkeys(("requests", "matchAttribute", "distinctAttribute"))],
        "config": [{"requests": None, **_CONFIG}],
    }
}
_CLASS_SPEC = {"selectors": _SELECTORS, "config": [_CONFIG], "extendedResourceName": None}
_POD_CLAIM = dict.fromkeys(("name", "resourceClaimName", "resourceClaimTemplateName"))
_CONTAINER_CLAIM = dict.fromkeys(("name", "request"))
_CLAIMS_GO = "it is resources.claims"
_UNKNOWN = "unknown field {}"
_OBJECT = dict.fromkeys(("apiVersion", "kind", "metadata", "status"))
_KNOWN: Mapping[str, _Known] = {
    "ResourceClaim": {**_OBJECT, "spec": _CLAIM_SPEC},
    "ResourceClaimTemplate": {**_OBJECT, "spec": {"metadata": None, "spec": _CLAIM_SPEC}},
    "DeviceClass": {**_OBJECT, "spec": _CLASS_SPEC},
}


def find_unknown_fields(body: JsonObject) -> Iterator[Finding]:
    """In a claim, a template or a class; of other kinds nothing is known here."""
    known = _KNOWN.get(body.get("kind", ""))
    return _find(body, known, "") if known else iter(())


def find_unknown_pod_fields(spec: JsonObject, path: str) -> Iterator[Finding]:
    """What a pod says of claims; nothing is known here of its other fields."""
    yield from _find(spec.get("resourceClaims"), [_POD_CLAIM], f"{path}.resourceClaims")
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            where = f"{path}.{kind}[{number}]"
            if "claims" in container:
                yield Finding(rules.UNKNOWN_FIELD, f"{where}.claims", _UNKNOWN.format("'claims'"), _CLAIMS_GO)
            uses = (container.get("resources") or {}).get("claims")
            yield from _find(uses, [_CONTAINER_CLAIM], f"{where}.resources.claims")


def _find(value: Any, known: Any, path: str) -> Iterator[Finding]:
    if isinstance(known, list) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find(item, known[0], f"{path}[{number}]")
    if not (isinstance(known, Mapping) and isinstance(value, Mapping)):
        return
    for name, inner in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name in known:
            yield from _find(inner, known[name], where)
        else:
            yield Finding(rules.UNKNOWN_FIELD, where, _UNKNOWN.format(show(name)), _mend(name, known))


def _mend(name: str, known: _Known) -> str:
    if "exactly" in known and name in _DEMAND:
        return f"in v1 it is exactly.{name}; v1beta1 had it here"
    if name == "source" and known is _POD_CLAIM:
        return "what is in it stands here: resourceClaimTemplateName, resourceClaimName"
    if "opaque" in known and name in known["opaque"]:
        return f"it is opaque.{name}"
    return suggest(name, known, f"fields are {', '.join(known)}")

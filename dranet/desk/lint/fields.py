"""Fields that ``resource.k8s.io/v1`` does not have: misspelt, misplaced, or from a version before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.shapes import ALTERNATIVE, CONTAINER_CLAIM, POD_CLAIM, SHAPES, FieldShape, get_fields
from dranet.desk.lint import rules
from dranet.desk.lint.rules import LintFinding, show, suggest

_CLAIMS_GO = "it is resources.claims"
_UNKNOWN = "unknown field {}"
_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
_OBJECT = ("apiVersion", "kind", "metadata", "status")
_ALTERNATIVE = get_fields(ALTERNATIVE)


def find_unknown_fields(body: JsonObject) -> Iterator[LintFinding]:
    """Find unknown fields of a claim, a template or a class; other kinds are not looked into."""
    kind = body.get("kind", "")
    if kind in _KINDS:
        yield from _find(body, {**dict.fromkeys(_OBJECT), **get_fields(SHAPES[kind]), "status": None}, "")


def find_unknown_pod_fields(spec: JsonObject, path: str) -> Iterator[LintFinding]:
    """Find unknown fields of a pod that are about claims; its other fields are not looked into."""
    yield from _find(spec.get("resourceClaims"), [POD_CLAIM], f"{path}.resourceClaims")
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            where = f"{path}.{kind}[{number}]"
            if "claims" in container:
                yield LintFinding(
                    rules.UNKNOWN_FIELD, f"{where}.claims", _UNKNOWN.format("'claims'"), _CLAIMS_GO
                )
            uses = (container.get("resources") or {}).get("claims")
            yield from _find(uses, [CONTAINER_CLAIM], f"{where}.resources.claims")


def _find(value: Any, shape: FieldShape, path: str) -> Iterator[LintFinding]:
    if isinstance(shape, list) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find(item, shape[0], f"{path}[{number}]")
    known = get_fields(shape)
    if not known or not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name not in known:
            yield LintFinding(rules.UNKNOWN_FIELD, where, _UNKNOWN.format(show(name)), _find_fix(name, known))
        elif name != "metadata":
            yield from _find(inner, known[name], where)


def _find_fix(name: str, known: Mapping[str, FieldShape]) -> str:
    if "exactly" in known and name in _ALTERNATIVE:
        return f"in v1 it is exactly.{name}; v1beta1 had it here"
    if name == "source" and known.keys() == get_fields(POD_CLAIM).keys():
        return "its content belongs here: resourceClaimTemplateName, resourceClaimName"
    if name in get_fields(known.get("opaque")):
        return f"it is opaque.{name}"
    return suggest(name, known, f"fields are {', '.join(known)}")

"""Is an object valid by the published schemas of several Kubernetes versions?

The schemas are those of ``kubernetes-validate``, made from the OpenAPI documents of each version, strict: an
unknown field is a fault. A field that is newer than a version is a fault there, too, unless that version's
server drops it without a word, which the table below must say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

JsonObject = dict[str, Any]

MINORS = (34, 35, 36, 37)

_DEFINITIONS = {
    "ResourceSlice": "io.k8s.api.resource.v1.ResourceSlice",
    "ResourceClaim": "io.k8s.api.resource.v1.ResourceClaim",
    "Event": "io.k8s.api.core.v1.Event",
}
_LISTS_OF_PARTS = {"ResourceSlice": "spec", "ResourceClaim": "status"}
"""Where the list ``devices`` is."""
_PARTS = {
    "ResourceSlice": "io.k8s.api.resource.v1.Device",
    "ResourceClaim": "io.k8s.api.resource.v1.AllocatedDeviceStatus",
}
_TEXTS = frozenset(
    {
        *("name", "namespace", "uid", "resourceVersion", "message", "creationTimestamp", "deletionTimestamp"),
        *(
            "time",
            "timeAdded",
            "lastTransitionTime",
            "firstTimestamp",
            "lastTimestamp",
            "allocationTimestamp",
        ),
    }
)
_BASE = "/api/_definitions.json"

NEWER_FIELDS: Mapping[str, int] = {
    **{f"spec.devices.[].attributes.{{}}.{kind}": 36 for kind in ("ints", "bools", "strings", "versions")},
    "spec.devices.[].nodeAllocatableResources": 37,
    "spec.devices.[].consumesCounters.[].compatibilityGroups": 37,
    "spec.partitionTypeAttribute": 37,
    "spec.skipNodeOperations": 37,
}
"""Field -> the first minor version that knows it; earlier servers drop it."""


def find_schema_faults(body: JsonObject) -> list[str]:
    """What each version has against an object of a kind that the driver writes."""
    kind = body["kind"]
    whole, parts = _take_apart(kind, _same_texts(body))
    texts = [json.dumps(part, sort_keys=True) for part in (whole, *parts)]
    faults = [_check(kind, text, minor) for minor in MINORS for text in dict.fromkeys(texts)]
    return [fault for found in faults for fault in found]


def find_definition_faults(definition: str, body: JsonObject) -> list[str]:
    """What each version has against an object, or a part of one, that a person or a chart wrote."""
    return [fault for minor in MINORS for fault in _complain(definition, body, minor)]


def _take_apart(kind: str, body: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """An object without the entries of its list of devices, and an object for each of them: most objects of a
    run have entries in common, and each is judged once."""
    where = _LISTS_OF_PARTS.get(kind)
    entries = (body.get(where) or {}).get("devices") if where else None
    if not where or not entries:
        return body, []
    return {**body, where: {**body[where], "devices": []}}, [{where: {"devices": [one]}} for one in entries]


def _same_texts(value: Any, key: str = "") -> Any:
    """With the same text for every name, time and uid: a schema asks no more than that it is a text."""
    if isinstance(value, dict):
        return {name: _same_texts(child, name) for name, child in value.items() if name != "managedFields"}
    if isinstance(value, list):
        return [_same_texts(child) for child in value]
    return "text" if isinstance(value, str) and key in _TEXTS else value


@cache
def _check(kind: str, text: str, minor: int) -> tuple[str, ...]:
    body = json.loads(text)
    _drop_newer(body, minor)
    if "metadata" in body:
        return tuple(_complain(_DEFINITIONS[kind], body, minor))
    where = _LISTS_OF_PARTS[kind]
    return tuple(_complain(_PARTS[kind], body[where]["devices"][0], minor))


def _complain(definition: str, body: JsonObject, minor: int) -> Iterator[str]:
    for error in _validator(definition, minor).iter_errors(body):
        yield f"1.{minor}: {definition.rpartition('.')[2]} {error.json_path}: {error.message[:300]}"


@cache
def _validator(definition: str, minor: int) -> Draft202012Validator:
    registry = Registry().with_resource(_BASE, _read_definitions(minor))
    return Draft202012Validator({"$ref": f"{_BASE}#/$defs/{definition}"}, registry=registry)


@cache
def _read_definitions(minor: int) -> Resource[Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v1.{minor}.0-local-strict"
    return Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))


def _drop_newer(body: JsonObject, minor: int) -> None:
    for path, since in NEWER_FIELDS.items():
        if minor < since:
            *parents, name = path.split(".")
            for parent in find_values(body, ".".join(parents)):
                if isinstance(parent, dict):
                    parent.pop(name, None)


def find_values(body: Any, path: str) -> list[Any]:
    """Everything at a path; ``[]`` is each entry of a list, ``{}`` each value of a map; empty is ``body``."""
    nodes = [body]
    for step in path.split(".") if path else ():
        nodes = [child for node in nodes for child in _children(node, step)]
    return nodes


def _children(node: Any, step: str) -> list[Any]:
    if step == "[]":
        return node if isinstance(node, list) else []
    if not isinstance(node, dict):
        return []
    if step == "{}":
        return list(node.values())
    return [node[step]] if node.get(step) is not None else []

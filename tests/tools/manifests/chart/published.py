"""Is an object valid by the published schemas of a Kubernetes version, strict, or by ours for the kinds of
the Prometheus operator?"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.tools.manifests.chart.crds import CUSTOM_KINDS

pytest.importorskip("kubernetes_validate", reason="the published schemas of Kubernetes are not installed")

MINORS = (34, 35, 36, 37)
_BASE = "/definitions.json"


def check(item: dict[str, Any], minors: tuple[int, ...] = MINORS) -> None:
    _check(json.dumps(item, sort_keys=True), minors)


@cache
def _check(text: str, minors: tuple[int, ...]) -> None:
    item = json.loads(text)
    if schema := CUSTOM_KINDS.get(item["kind"]):
        Draft202012Validator(schema).validate(item)
        return
    for minor in minors:
        _validator(item["apiVersion"], item["kind"], minor).validate(item)


@cache
def _validator(api_version: str, kind: str, minor: int) -> Draft202012Validator:
    document = _read(minor)
    group, _, version = api_version.rpartition("/")
    of_type = {"group": group, "kind": kind, "version": version}
    (name,) = [
        name
        for name, schema in document["$defs"].items()
        if of_type in schema.get("x-kubernetes-group-version-kind", ())
    ]
    registry = Registry().with_resource(_BASE, _resource(minor))
    return Draft202012Validator({"$ref": f"{_BASE}#/$defs/{name}"}, registry=registry)


@cache
def _read(minor: int) -> dict[str, Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v1.{minor}.0-local-strict"
    document: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())
    return document


@cache
def _resource(minor: int) -> Resource[Any]:
    return Resource.from_contents(_read(minor))

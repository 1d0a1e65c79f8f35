"""CustomResourceDefinitions for the kinds of the Prometheus operator, as far as the chart writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from dranet.cluster.client import ApiClient
from e2e.tests.pods import wait_until
from tests.tools.manifests.chart.crds import CUSTOM_KINDS, Schema

_GROUP = "monitoring.coreos.com"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def serve_custom_kinds(api: ApiClient) -> AsyncIterator[None]:
    """Let the API server know them while the block runs."""
    definitions = [_build_definition(kind, schema) for kind, schema in CUSTOM_KINDS.items()]
    paths = [f"{_PATH}/{definition['metadata']['name']}" for definition in definitions]
    try:
        for definition in definitions:
            await api.create(_PATH, definition)
        for path in paths:
            await wait_until(partial(_is_established, api, path), f"{path} is established")
        yield
    finally:
        for path in paths:
            await api.delete(path)


async def _is_established(api: ApiClient, path: str) -> bool:
    conditions = (await api.get(path)).get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _build_definition(kind: str, schema: Schema) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    spec = _make_structural(schema["properties"]["spec"])
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def _make_structural(schema: Schema) -> Schema:
    """Write it as an API server takes it: its objects are implicitly closed."""
    made = {key: value for key, value in schema.items() if key not in ("additionalProperties", "required")}
    if made.get("type") == ["string", "integer"]:
        return {"x-kubernetes-int-or-string": True}
    if "enum" in made:
        made["type"] = "string"
    if schema.get("required"):
        made["required"] = schema["required"]
    if "items" in made:
        made["items"] = _make_structural(made["items"])
    if isinstance(values := schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _make_structural(values)
    if "properties" in made:
        made["properties"] = {name: _make_structural(value) for name, value in made["properties"].items()}
    return made

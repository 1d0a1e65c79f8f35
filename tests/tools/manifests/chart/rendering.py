"""The chart as Helm renders it: Helm itself, as a library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

helm = pytest.importorskip(
    "helm_python", reason="Helm's library is not installed (it is built for x86-64 alone)"
)

JsonObject = dict[str, Any]

REPOSITORY = Path(__file__).parents[4]
CHART = REPOSITORY / "charts" / "dranet"
NAMESPACE = "dranet-system"


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that stands twice, of which YAML readers otherwise keep either."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(map(repr, keys))), f"a key stands twice: {keys}{node.start_mark}"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


@cache
def load_chart() -> Any:
    helm.disable_logging()
    return helm.Chart.load(CHART)


def render_texts(
    values: JsonObject | None = None, name: str = "dranet", namespace: str = NAMESPACE
) -> Mapping[str, str]:
    """Template -> what came of it. Raises what Helm raises."""
    return _render_texts(json.dumps(values or {}), name, namespace)


@lru_cache(maxsize=256)
def _render_texts(values: str, name: str, namespace: str) -> Mapping[str, str]:
    """The same values are asked about by many tests, and each rendering takes some 30 ms."""
    rendered = load_chart().render(json.loads(values), name=name, namespace=namespace)
    return MappingProxyType({Path(path).name: text for path, text in rendered.items()})


def render(
    values: JsonObject | None = None, name: str = "dranet", namespace: str = NAMESPACE
) -> list[JsonObject]:
    """Every object, in the order of the templates."""
    return [
        document
        for file, text in render_texts(values, name, namespace).items()
        if file != "NOTES.txt"
        for document in parse(text)
    ]


def parse(text: str) -> Iterator[JsonObject]:
    """The objects are shared: most texts come again and again."""
    parts = re.split(r"^---$", text, flags=re.MULTILINE)
    return (_parse_one(part) for part in parts if part.strip())


@cache
def _parse_one(text: str) -> JsonObject:
    document = yaml.load(text, Loader=_StrictLoader)
    assert isinstance(document, dict), f"no object: {document!r}"
    return document


def refusal(values: JsonObject, name: str = "dranet") -> str:
    """What Helm says to values that it must refuse."""
    with pytest.raises(helm.HelmError) as caught:
        render_texts(values, name)
    return str(caught.value)


def of_kind(objects: list[JsonObject], kind: str) -> list[JsonObject]:
    return [item for item in objects if item["kind"] == kind]


def find(objects: list[JsonObject], kind: str, component: str = "driver") -> JsonObject:
    """The only one of its kind."""
    label = "app.kubernetes.io/component"
    (found,) = (item for item in of_kind(objects, kind) if item["metadata"]["labels"][label] == component)
    return found


def is_hook(item: JsonObject) -> bool:
    return "helm.sh/hook" in item["metadata"].get("annotations", {})


def pod_of(daemonset: JsonObject) -> JsonObject:
    spec: JsonObject = daemonset["spec"]["template"]["spec"]
    return spec


def container_of(daemonset: JsonObject) -> JsonObject:
    """The driver's."""
    (container,) = pod_of(daemonset)["containers"]
    return dict(container)


def settings_of(config_map: JsonObject) -> JsonObject:
    settings = yaml.safe_load(config_map["data"]["settings.yaml"])
    assert isinstance(settings, dict)
    return settings


def identity(item: JsonObject) -> tuple[str, str, str]:
    """What no two objects of a cluster share."""
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]

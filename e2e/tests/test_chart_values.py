"""Each value of the chart, rendered by the real helm, as a real API server takes it.

Nothing is kept: kubectl sends every object with ``--dry-run=server``, and unknown fields are errors.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest_asyncio
import yaml

from dranet.cluster.client import ApiClient
from dranet.quantity import normalize_quantity
from e2e.cluster.local import LocalCluster
from e2e.objects import JsonObject
from e2e.tests.custom_kinds import serve_custom_kinds
from e2e.tests.shell import Shell
from tests.tools.manifests.chart.each_value import LEAVES, build_pair
from tests.tools.manifests.chart.value_sets import VALUE_SETS

_RENDERERS = 2
_NAMESPACES = ("monitoring", "grafana")
"""The tables of values name these for the dashboard."""
_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


class Chart:
    """What helm renders, and what the API server makes of it."""

    def __init__(self, shell: Shell, namespace: str, version: str) -> None:
        self._shell = shell
        self._namespace = namespace
        self._template = (
            f"helm template dranet ./charts/dranet --namespace {namespace} --kube-version {version} -f -"
        )
        self._free = asyncio.Semaphore(_RENDERERS)

    async def render(self, values: JsonObject) -> list[str]:
        """Return the text of each object."""
        async with self._free:
            output = await self._shell.run(self._template, json.dumps(values))
        return [text for text in re.split(r"^---\n", output, flags=re.MULTILINE) if text.strip()]

    async def create_accounts(self, texts: Sequence[str]) -> None:
        """The server takes no pod whose account it does not have."""
        pods = [item for item in map(_parse, texts) if item["kind"] == "Pod"]
        names = sorted({pod["spec"]["serviceAccountName"] for pod in pods})
        command = f"kubectl -n {self._namespace} create serviceaccount"
        await self._shell.run("\n".join(f"{command} {name}" for name in names))

    async def send(self, texts: Sequence[str]) -> Mapping[str, JsonObject]:
        """Return what the server answers to each of them."""
        command = "kubectl apply --server-side --dry-run=server --validate=strict -o json -f -"
        answer = json.loads(await self._shell.run(command, "---\n".join(texts)))
        return dict(zip(texts, map(_drop_server_fields, answer["items"]), strict=True))


@pytest_asyncio.fixture
async def chart(cluster: LocalCluster, api: ApiClient, shell: Shell, namespace: str) -> AsyncIterator[Chart]:
    names = " ".join(_NAMESPACES)
    async with serve_custom_kinds(api):
        await shell.run(f"for name in {names}; do kubectl create namespace $name; done")
        yield Chart(shell, namespace, cluster.plane.kit.kubernetes.version)
        await shell.run(f"kubectl delete namespace --wait=false {names}")


async def test_the_server_keeps_every_field_and_each_value_has_its_effect(chart: Chart) -> None:
    pairs = dict(zip(LEAVES, map(build_pair, LEAVES), strict=True))
    every = [*VALUE_SETS.values(), *(values for pair in pairs.values() for values in pair)]
    distinct = {json.dumps(values): values for values in every}
    rendered = dict(zip(distinct, await asyncio.gather(*map(chart.render, distinct.values())), strict=True))
    texts = list(dict.fromkeys(text for texts in rendered.values() for text in texts))
    await chart.create_accounts(texts)
    answers = await chart.send(texts)

    lost = [loss for text, answer in answers.items() for loss in _find_losses(_parse(text), answer)]
    assert sorted(set(lost)) == []

    def get_answers(values: JsonObject) -> list[JsonObject]:
        return [answers[text] for text in rendered[json.dumps(values)]]

    without_effect = [
        path for path, (without, other) in pairs.items() if get_answers(without) == get_answers(other)
    ]
    assert without_effect == []


@cache
def _parse(text: str) -> JsonObject:
    item: JsonObject = yaml.safe_load(text)
    return item


def _drop_server_fields(item: JsonObject) -> JsonObject:
    metadata = {key: value for key, value in item["metadata"].items() if key not in _BY_SERVER}
    return {**item, "metadata": metadata}


def _find_losses(sent: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Name what was sent and is not kept. The server leaves out what is empty or false."""
    if isinstance(sent, dict):
        kept = kept if isinstance(kept, dict) else {}
        name = place or f"{sent['kind']} {sent['metadata']['name']}: "
        for key, value in sent.items():
            yield from _find_losses(value, kept.get(key), f"{name}.{key}")
    elif isinstance(sent, list):
        kept = kept if isinstance(kept, list) else []
        for number, value in enumerate(sent):
            there = kept[number] if number < len(kept) else None
            yield from _find_losses(value, there, f"{place}[{number}]")
    elif sent and not _is_same(sent, kept):
        yield f"{place}: {sent!r} became {kept!r}"


def _is_same(sent: object, kept: object) -> bool:
    """The server writes 4000 pods as 4k."""
    if isinstance(sent, str) and isinstance(kept, str):
        return normalize_quantity(sent) == normalize_quantity(kept)
    return sent == kept

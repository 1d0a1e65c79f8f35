"""Which ResourceSlices of a pool are current."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from dranet.desk.kubeapi.objects import JsonObject


def choose_newest(slices: Collection[JsonObject]) -> Iterator[JsonObject]:
    """Those of the highest generation of their pool: the others are about to be deleted."""
    generations: Counter[tuple[str, str]] = Counter()
    for body in slices:
        pool = body["spec"]["driver"], body["spec"]["pool"]["name"]
        generations[pool] = max(generations[pool], _generation(body))
    for body in slices:
        if _generation(body) == generations[body["spec"]["driver"], body["spec"]["pool"]["name"]]:
            yield body


def _generation(body: JsonObject) -> int:
    return int(body["spec"]["pool"].get("generation") or 0)

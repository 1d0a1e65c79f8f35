"""Nodes that get one pod after the other from a real scheduler until they are full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from tests.desk.scheduler.cases import NAMESPACE, Case, Json
from tests.desk.scheduler.layouts import instantiate
from tests.desk.scheduler.predictions import Foretold, foretell
from tests.desk.scheduler.submission import Given, await_seen, schedule

_PATIENCE_SECONDS = 400.0
"""Of one round; a scheduler takes ten seconds to give up on a pod."""
_TIMED_OUT = "timed out trying to allocate devices"


@dataclass(frozen=True, slots=True)
class Step:
    """One pod: what ``explain`` said of it beforehand, and what became of it."""

    given: Given
    foretold: Foretold

    @property
    def message(self) -> str:
        return self.given.answer.message if self.given.answer else ""

    @property
    def is_given_up(self) -> bool:
        """Whether the scheduler ran out of time: it tries what the allocator leaves out."""
        return _TIMED_OUT in self.message

    @property
    def devices(self) -> frozenset[str]:
        """What the pod has; empty if nothing."""
        allocations = self.given.answer.allocations if self.given.answer else ()
        return frozenset(r["device"] for entry in allocations for r in entry["devices"]["results"])


@dataclass
class Filling:
    """A node with the pods that it got."""

    title: str
    nodes: list[Json]
    """One, as the server keeps it."""
    slices: list[Json]
    manifests: Sequence[Json]
    """A pod with its templates, or one for each template to choose from."""
    steps: list[Step] = field(default_factory=list)
    holders: list[Json] = field(default_factory=list)
    """The claims that have devices."""

    @property
    def is_over(self) -> bool:
        """Whether each kind of pod was refused once."""
        return self._refusals == len([item for item in self.manifests if item["kind"] == "Pod"])

    @property
    def _refusals(self) -> int:
        return sum(not step.devices for step in self.steps)

    @property
    def pods(self) -> Iterator[frozenset[str]]:
        """The devices of each pod."""
        return (step.devices for step in self.steps if step.devices)

    def build_case(self, number: int) -> Case:
        """The next pod: of the first kind that was not refused."""
        node = self.nodes[0]["metadata"]["name"]
        claims, pod = instantiate(self.manifests, f"{node}-{len(self.steps)}", node, self._refusals)
        return Case(number, self.title, self.nodes, [], [], self.slices, self.holders, claims, pod)


async def fill(api: ApiClient, fillings: Sequence[Filling], classes: Sequence[Json]) -> None:
    """A pod for each node, and again, until each node has refused one."""
    numbers = count()
    while left := [filling for filling in fillings if not filling.is_over]:
        given = [await _create_claims(api, one, classes, next(numbers)) for one in left]
        await await_seen(api, given)
        steps = [Step(one, foretell(one)) for one in given]
        await schedule(api, given, _PATIENCE_SECONDS)
        for filling, step in zip(left, steps, strict=True):
            filling.steps.append(step)
            if step.devices:
                names = [claim["metadata"]["name"] for claim in step.given.claims]
                filling.holders += [await api.get(paths.resource_claim(NAMESPACE, name)) for name in names]


async def _create_claims(api: ApiClient, filling: Filling, classes: Sequence[Json], number: int) -> Given:
    case = filling.build_case(number)
    collection = paths.resource_claims(NAMESPACE)
    return Given(
        case,
        nodes=filling.nodes,
        classes=list(classes),
        slices=filling.slices,
        holders=list(filling.holders),
        claims=[await api.create(collection, body) for body in case.claims],
    )

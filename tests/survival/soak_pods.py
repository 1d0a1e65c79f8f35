"""The pods of the soak: random kinds, lifetimes and ends, each with as many NICs as its kind wants."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from functools import partial

from dranet.cluster import paths
from dranet.errors import ClusterError, Reason
from testbed.cluster import NAMESPACE, JsonObject
from testbed.kubelet.nouns import PodStage
from tests.survival.environment import Stage
from tests.survival.objects import Way, build_pod

POD_SECONDS = 90.0
"""A pod that takes longer to come or to go is lost: longer than any of the faults, and a retry."""
_LONGEST_LIFE_SECONDS = 2.5
_HURRIED = 0.15
"""Part of the pods that are deleted while they start."""
_RETRY_SECONDS = 0.3
_LOOK_SECONDS = 0.05


class Kind(StrEnum):
    """What a pod has, and how."""

    ONE_NIC = "one NIC"
    SEVERAL_NICS = "several NICs"
    MACVLANS = "macvlans on a shared NIC"
    POD_LEVEL = "a claim that no container names"
    BY_TURNS = "a claim that two pods use by turns"


_BY_WORKER = (Kind.ONE_NIC, Kind.SEVERAL_NICS, Kind.MACVLANS, Kind.POD_LEVEL, Kind.BY_TURNS)
"""One pod of each at a time: together no more NICs than the node has."""


class PodTraffic:
    """Pods come and go while :attr:`flowing`; :meth:`hold` lets those that are there end."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._seed = seed
        self._numbers = itertools.count(1)
        self._go = asyncio.Event()
        self._idle = [asyncio.Event() for _ in _BY_WORKER]
        self.attendance = asyncio.Lock()
        """Held by a pod whose container nothing but our hook can hold back, until it runs; and by what keeps
        hooks from being answered."""
        self.kinds: Counter[Kind] = Counter()
        """Pods that have run."""
        self.hurried = 0
        self.lost: list[str] = []

    async def run(self) -> None:
        """For ever; cancel it while it is held."""
        async with asyncio.TaskGroup() as tasks:
            for kind, idle in zip(_BY_WORKER, self._idle, strict=True):
                tasks.create_task(self._work(kind, idle), name=f"pods: {kind}")

    def flow(self) -> None:
        self._go.set()

    async def hold(self) -> None:
        """No more pods; until those that are there are gone."""
        self._go.clear()
        for idle in self._idle:
            await idle.wait()

    async def _work(self, kind: Kind, idle: asyncio.Event) -> None:
        chance = random.Random(f"{self._seed} {kind}")
        while True:
            idle.set()
            await self._go.wait()
            idle.clear()
            number = next(self._numbers)
            name = f"{kind.name.lower().replace('_', '-')}{number}"
            try:
                async with asyncio.timeout(POD_SECONDS):
                    await self._live(kind, name, number, chance)
            except TimeoutError:
                self.lost.append(self._describe(name))

    async def _live(self, kind: Kind, name: str, number: int, chance: random.Random) -> None:
        if kind is Kind.BY_TURNS:
            await self._take_turns(name, chance)
            return
        claims = chance.randint(2, 3) if kind in (Kind.SEVERAL_NICS, Kind.MACVLANS) else 1
        objects = build_pod(name, Way.SHARED if kind is Kind.MACVLANS else Way.MOVED, number, claims)
        if kind is Kind.POD_LEVEL:
            _forget_claims_of_containers(objects[-1])
            async with self.attendance:
                await persist(lambda: self._stage.testbed.apply(objects))
                await self._wait_running(name, kind)
            await asyncio.sleep(chance.uniform(0.0, _LONGEST_LIFE_SECONDS))
            await self._end(name)
            await self._delete_claims(objects)
            return
        await persist(lambda: self._stage.testbed.apply(objects))
        if chance.random() < _HURRIED:
            self.hurried += 1
            await asyncio.sleep(chance.uniform(0.0, 0.6))
        else:
            await self._run_for_a_while(name, kind, chance)
        await self._end(name)
        await self._delete_claims(objects)

    async def _take_turns(self, name: str, chance: random.Random) -> None:
        """The second pod comes while the first one has the claim, and waits for its end."""
        *claims, first = build_pod(name)
        second = {**first, "metadata": {"name": f"{name}b"}}
        await persist(lambda: self._stage.testbed.apply([*claims, first]))
        await self._run_for_a_while(name, Kind.BY_TURNS, chance)
        if self._is_window_open(claims):
            await self._end(name)
        else:
            await persist(lambda: self._stage.testbed.apply([second]))
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await self._end(name)
            await self._run_for_a_while(f"{name}b", Kind.BY_TURNS, chance)
            await self._end(f"{name}b")
        await self._delete_claims(claims)

    def _is_window_open(self, claims: Iterable[JsonObject]) -> bool:
        """A driver that was killed or stopped at the very moment when the first pod's container was started
        has left the ready file behind, and a second pod gets past it."""
        names = {claim["metadata"]["name"] for claim in claims}
        ready = self._stage.testbed.places.work_dir / "state" / "ready"
        found = self._stage.testbed.server.objects("resourceclaims")
        return any(
            os.path.lexists(ready / c["metadata"]["uid"]) for c in found if c["metadata"]["name"] in names
        )

    async def _run_for_a_while(self, name: str, kind: Kind, chance: random.Random) -> None:
        await self._wait_running(name, kind)
        await asyncio.sleep(chance.uniform(0.0, _LONGEST_LIFE_SECONDS))

    async def _wait_running(self, name: str, kind: Kind) -> None:
        await self._stage.testbed.kubelet.wait_running(self._stage.testbed.pod_uid(name))
        self.kinds[kind] += 1

    async def _end(self, name: str) -> None:
        testbed = self._stage.testbed
        await persist(lambda: testbed.delete_pod(name))
        uid, kubelet = testbed.pod_uid(name), testbed.kubelet
        while kubelet.stage(uid) is not PodStage.GONE:
            there = any(pod["metadata"]["uid"] == uid for pod in testbed.server.objects("pods"))
            if not there and kubelet.stage(uid) is PodStage.PENDING:
                return  # deleted before a node had it
            await asyncio.sleep(_LOOK_SECONDS)

    async def _delete_claims(self, objects: list[JsonObject]) -> None:
        for found in objects:
            if found["kind"] == "ResourceClaim":
                path = paths.resource_claim(NAMESPACE, found["metadata"]["name"])
                await persist(partial(self._stage.testbed.api.delete, path))

    def _describe(self, name: str) -> str:
        kubelet, uids = self._stage.testbed.kubelet, self._stage.testbed.applied_pods
        told = [
            f"{pod} is {kubelet.stage(uids[pod]).name}: {kubelet.failure(uids[pod])}"
            for pod in (name, f"{name}b")
            if pod in uids
        ]
        return "; ".join(told) or "was not applied"


async def persist(call: Callable[[], Awaitable[object]]) -> None:
    """Until the API server has done it: it may be away. What is gone already is deleted."""
    while True:
        try:
            await call()
        except (ClusterError, OSError) as error:
            if isinstance(error, ClusterError) and error.reason is Reason.API_NOT_FOUND:
                return
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return


def _forget_claims_of_containers(pod: JsonObject) -> None:
    for container in pod["spec"]["containers"]:
        with suppress(KeyError):
            del container["resources"]

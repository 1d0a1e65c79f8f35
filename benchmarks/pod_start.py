"""A pod's start and end on a real cluster: without a claim, with one NIC, with eight.

API server, scheduler, controller manager, kubelet and containerd are real and run on this machine; the driver
is the pod of its DaemonSet. A start lasts from the creation of the pod until its condition Ready, an end from
its deletion until it is gone, both as a watch of pods sees them. The kinds come in random order in each
round, and a start costs the difference to that of the pod without a claim of the same round. NICs are
software links (ifb; ends of veth pairs): a card's own firmware comes on top. What the kernel takes alone is
``ip`` moving as many links of the kind.

The kubelet looks at its containers once in a second, and ends pods only then: an end lasts up to a second
longer, by chance, whatever a driver does. So the pods of each kind are deleted at moments that are spread
evenly over that second, in an order of their own, and an end costs the difference of two medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.measure import Result, Series, time_ms
from benchmarks.pod_start_steps import ENDS, PROCESSORS, STARTS, Meters, Step, build_profile, subtract
from e2e.cluster import build, local
from e2e.cluster.local import ClusterKit, LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.objects import NAMESPACE, JsonObject, fit
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.iproute import in_namespace, run_batch, run_ip

HARDWARE = "dgx-h100"
"""Its NICs are ends of veth pairs."""
IFB_LINKS = 8
ROUNDS = 20
SEED = 6
READY_SECONDS = 120.0
RELIST_SECONDS = 1.003
"""The kubelet's period: a second after the end of each look at its containers (PLEG)."""
STEADY_SECONDS = 1.1
"""How long a pod runs at least: the kubelet has then seen that it does."""
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_LOGS = Path(".cache/benchmarks/pod_start").resolve()


class Kind(Enum):
    """What a pod claims, and how many milliseconds more than without a claim it may take to start and end."""

    NO_CLAIM = "no claim", "", 0, None, None
    ONE_IFB = "1 NIC (ifb)", "ifb", 1, 30.0, 50.0
    EIGHT_IFB = "8 NICs (ifb)", "ifb", 8, 180.0, 50.0
    ONE_VETH = "1 NIC (veth)", "veth", 1, 30.0, 50.0
    EIGHT_VETH = "8 NICs (veth)", "veth", 8, 180.0, 50.0

    def __init__(
        self, title: str, link: str, nics: int, start_bound: float | None, end_bound: float | None
    ) -> None:
        self.title = title
        self.link = link
        self.nics = nics
        self.start_bound = start_bound
        self.end_bound = end_bound

    @property
    def template(self) -> str:
        return f"{self.link}-{self.nics}"


@dataclass(frozen=True, slots=True)
class Life:
    """One pod, in milliseconds."""

    start: float
    bound: float
    """The part of ``start`` until the pod had a node."""
    end: float
    starts: Mapping[Step, float]
    processors: Mapping[Step, float]
    ends: Mapping[Step, float]


Lives = Mapping[Kind, Sequence[Life]]
Floors = Mapping[Kind, Sequence[float]]
_KIT: list[ClusterKit] = []
"""Set by :func:`fetch`, outside the private tree, which has no way to the network."""


def fetch() -> None:
    """Find or build what has to be here before the private tree is entered.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: a package cannot be had.
    """
    _KIT.append(local.prepare(build.print_progress))


def run() -> Iterator[Result]:
    lives, floors = asyncio.run(_measure(_KIT[-1]))
    for kind in Kind:
        yield _plain(f"creation to Ready, {kind.title}", [life.start for life in lives[kind]])
    for kind in Kind:
        yield _plain(f"creation to bound, {kind.title}", [life.bound for life in lives[kind]])
    for kind in Kind:
        yield _plain(f"deletion to gone, {kind.title}", [life.end for life in lives[kind]])
    for kind in floors:
        yield _plain(f"the kernel alone, {kind.title}", floors[kind])
    for kind in filter(lambda kind: kind.nics, Kind):
        yield from _compare(kind, lives[kind], lives[Kind.NO_CLAIM])
    by_title = {kind.title: lives[kind] for kind in Kind}
    starts = {title: [life.starts for life in seen] for title, seen in by_title.items()}
    worked = {title: [life.processors for life in seen] for title, seen in by_title.items()}
    ends = {title: [life.ends for life in seen] for title, seen in by_title.items()}
    print(build_profile("A START, MEDIAN MS", STARTS, starts))
    print(build_profile("AN END, MEDIAN MS", ENDS, ends))
    print(build_profile("PROCESSOR TIME OF A START, MEDIAN MS", PROCESSORS, worked))


def _compare(kind: Kind, ours: Sequence[Life], floor: Sequence[Life]) -> Iterator[Result]:
    starts = [one.start - other.start for one, other in zip(ours, floor, strict=True)]
    bound = [one.bound - other.bound for one, other in zip(ours, floor, strict=True)]
    end = statistics.median(life.end for life in ours) - statistics.median(life.end for life in floor)
    yield _plain(f"start, more than without a claim, {kind.title}", starts, kind.start_bound)
    yield _plain(f"of it until the pod was bound, {kind.title}", bound)
    yield _plain(f"end, more than without a claim, {kind.title}", [end], kind.end_bound)


def _plain(title: str, samples: Sequence[float], bound: float | None = None) -> Result:
    return Result(title, Series(title, tuple(samples)), bound=bound)


async def _measure(kit: ClusterKit) -> tuple[Lives, Floors]:
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    async with local.open_cluster(kit, load_hardware(HARDWARE), WORK_DIR, _LOGS) as cluster:
        floors = {kind: [_time_moves(kind) for _ in range(rounds)] for kind in Kind if kind.nics}
        for number in range(IFB_LINKS):
            run_ip("link", "add", f"fast{number}", "type", "ifb")
        async with LiveCluster(cluster.build_access()) as live:
            await live.driver.start({"offer_link_kinds": "ifb", "log_level": "debug"})
            await live.driver.wait_ready(READY_SECONDS)
            await live.apply(build_objects())
            meters = Meters(live.access.kubeconfig, await _find_pids(cluster, live))
            return await _Stage(cluster, live, rounds, meters).measure(), floors


async def _find_pids(cluster: LocalCluster, live: LiveCluster) -> dict[str, int]:
    """The process of each program whose time is looked at."""
    (pod,) = await live.driver.fetch_pods()
    assert live.access.hands is not None
    container = await live.access.hands.inspect_container(pod["metadata"]["uid"])
    assert container is not None
    others = {"dranet": int(container.id), "containerd": cluster.node.runtime.pid}
    names = {step.title for step in PROCESSORS} - others.keys()
    return others | {name: cluster.plane.programs.pid(name) for name in names}


def _time_moves(kind: Kind) -> float:
    """Milliseconds that the kernel takes to move as many links of this kind, which are up."""
    names = [f"floor{number}" for number in range(kind.nics)]
    run_batch(line for name in names for line in (f"link add {name} type {kind.link}", f"link set {name} up"))
    run_ip("netns", "add", "floor")
    try:
        return time_ms(lambda: run_batch(f"link set {name} netns floor" for name in names))
    finally:
        run_batch((f"link del {name}" for name in names), netns="floor")
        run_ip("netns", "del", "floor")


class _Stage:
    def __init__(self, cluster: LocalCluster, live: LiveCluster, rounds: int, meters: Meters) -> None:
        self._cluster = cluster
        self._live = live
        self._rounds = rounds
        self._chance = random.Random(SEED)
        self._meters = meters
        self._looked = 0.0
        """When the kubelet last looked, as far as the end of a pod shows."""

    async def measure(self) -> Lives:
        """The first round warms up and is not counted."""
        lives = {kind: list[Life]() for kind in Kind}
        moments = {kind: self._spread() for kind in Kind}
        for turn in range(self._rounds + 1):
            for kind in self._chance.sample(tuple(Kind), len(Kind)):
                moment = moments[kind][turn % self._rounds]
                life = await self._live_once(
                    kind, f"pod-{turn}-{kind.name.lower().replace('_', '-')}", moment
                )
                if turn:
                    lives[kind].append(life)
        return lives

    def _spread(self) -> list[float]:
        """Moments of the kubelet's period, each of them once, in random order."""
        moments = [(number + 0.5) / self._rounds * RELIST_SECONDS for number in range(self._rounds)]
        return self._chance.sample(moments, len(moments))

    async def _live_once(self, kind: Kind, name: str, moment: float) -> Life:
        """Run one pod, and delete it at that moment of the kubelet's period."""
        pod = fit(_pod(name, kind), self._live.access.pod_image)
        new = await asyncio.to_thread(self._meters.read)
        async with self._cluster.plane.connect() as api:
            version = str((await api.list(_PODS))["metadata"]["resourceVersion"])
            worked = self._meters.read_processors()
            begin, bound, ready, deletion = time.monotonic(), 0.0, 0.0, 0.0
            await api.create(_PODS, pod)
            async with aclosing(api.watch(_PODS, resource_version=version)) as events:
                async for event in events:
                    if event.object.get("metadata", {}).get("name") != name:
                        continue
                    if event.type == "DELETED":
                        break
                    if not bound and event.object["spec"].get("nodeName"):
                        bound = time.monotonic()
                    if not ready and is_ready(event.object):
                        ready = time.monotonic()
                        worked = subtract(self._meters.read_processors(), worked)
                        await self._check_nics(event.object, kind)
                        await asyncio.sleep(STEADY_SECONDS)
                        running = await asyncio.to_thread(self._meters.read)
                        await asyncio.sleep((self._looked + moment - time.monotonic()) % RELIST_SECONDS)
                        deletion = time.monotonic()
                        await api.delete(f"{_PODS}/{name}")
            self._looked = time.monotonic()
            gone = await asyncio.to_thread(self._meters.read)
            return Life(
                (ready - begin) * 1000,
                (bound - begin) * 1000,
                (self._looked - deletion) * 1000,
                subtract(running, new),
                worked,
                subtract(gone, running),
            )

    async def _check_nics(self, pod: JsonObject, kind: Kind) -> None:
        """What is timed must have happened."""
        assert self._live.access.hands is not None
        netns = await self._live.access.hands.find_netns(pod["metadata"]["uid"])
        links = await self._live.access.hands.run(*in_namespace(netns, "ip", "-json", "link"))
        found = [link for link in json.loads(links) if link["ifname"] not in ("lo", "eth0")]
        if len(found) != kind.nics:
            raise RuntimeError(f"a pod of kind {kind.title} has {len(found)} NICs")


def build_objects() -> list[JsonObject]:
    """A class for each kind of link, and a template for each kind of pod."""
    prefixes = {"ifb": "fast", "veth": "enp"}
    classes = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": link},
            "spec": {"selectors": [{"cel": {"expression": _SELECTOR.format(prefix)}}]},
        }
        for link, prefix in prefixes.items()
    ]
    templates = [_template(kind) for kind in Kind if kind.nics]
    return [*classes, *templates]


_SELECTOR = 'device.driver == "dra.net" && device.attributes["dra.net"].?ifName.orValue("").startsWith("{}")'


def _template(kind: Kind) -> JsonObject:
    requests = [{"name": "nic", "exactly": {"deviceClassName": kind.link, "count": kind.nics}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": kind.template},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def _pod(name: str, kind: Kind) -> JsonObject:
    """Its container ends at once when asked to, so that an end is the cluster's time alone."""
    container: JsonObject = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "trap exit TERM; sleep infinity & wait"],
    }
    spec: JsonObject = {"containers": [container]}
    if kind.nics:
        container["resources"] = {"claims": [{"name": "nic"}]}
        spec["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": kind.template}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

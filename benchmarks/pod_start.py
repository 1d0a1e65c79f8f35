"""A pod's start and end on a real cluster: without a claim, with one NIC, with eight.

API server, scheduler, controller manager, kubelet and containerd are real and run on this machine; the driver
is the pod of its DaemonSet. A start lasts from the creation of the pod until its condition Ready, an end from
its deletion until it is gone, both as a watch of pods sees them. The kinds come in random order in each
round, and what a kind costs is its difference to the pod without a claim of the same round. NICs are software
links (ifb; ends of veth pairs): a card's own firmware comes on top.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.measure import Result, Series
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.node.iproute import in_namespace, run_ip
from e2e.cluster import build, local
from e2e.cluster.local import ClusterKit, LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.objects import NAMESPACE, JsonObject, fit

HARDWARE = "dgx-h100"
"""Its NICs are ends of veth pairs."""
IFB_LINKS = 8
ROUNDS = 20
SEED = 6
READY_SECONDS = 120.0
RELIST_SECONDS = 1.0
"""How often the kubelet looks at its containers (PLEG): by chance an end lasts up to that much longer."""
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
    end: float


Lives = Mapping[Kind, Sequence[Life]]
_KIT: list[ClusterKit] = []
"""Set by :func:`fetch`, outside the private tree, which has no way to the network."""


def fetch() -> None:
    """Find or build what has to be here before the private tree is entered.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: a package cannot be had.
    """
    _KIT.append(local.prepare(build.say))


def run() -> Iterator[Result]:
    lives = asyncio.run(_measure(_KIT[-1]))
    for kind in Kind:
        yield _plain(f"creation to Ready, {kind.title}", [life.start for life in lives[kind]])
    for kind in Kind:
        yield _plain(f"deletion to gone, {kind.title}", [life.end for life in lives[kind]])
    for kind in filter(lambda kind: kind.nics, Kind):
        pairs = list(zip(lives[kind], lives[Kind.NO_CLAIM], strict=True))
        starts = [one.start - other.start for one, other in pairs]
        ends = [one.end - other.end for one, other in pairs]
        yield _plain(f"start, more than without a claim, {kind.title}", starts, kind.start_bound)
        yield _plain(f"end, more than without a claim, {kind.title}", ends, kind.end_bound)


def _plain(title: str, samples: Sequence[float], bound: float | None = None) -> Result:
    return Result(title, Series(title, tuple(samples)), bound=bound)


async def _measure(kit: ClusterKit) -> Lives:
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    async with local.open_cluster(kit, load_hardware(HARDWARE), WORK_DIR, _LOGS) as cluster:
        for number in range(IFB_LINKS):
            run_ip("link", "add", f"fast{number}", "type", "ifb")
        async with LiveCluster(cluster.build_access()) as live:
            await live.driver.start({"offer_link_kinds": "ifb", "log_level": "debug"})
            await live.driver.wait_ready(READY_SECONDS)
            await live.apply(build_objects())
            return await _Stage(cluster, live).measure(rounds)


class _Stage:
    def __init__(self, cluster: LocalCluster, live: LiveCluster) -> None:
        self._cluster = cluster
        self._live = live
        self._chance = random.Random(SEED)

    async def measure(self, rounds: int) -> Lives:
        """The first round warms up and is not counted."""
        lives = {kind: list[Life]() for kind in Kind}
        for turn in range(rounds + 1):
            for kind in self._chance.sample(tuple(Kind), len(Kind)):
                life = await self._live_once(kind, f"pod-{turn}-{kind.name.lower().replace('_', '-')}")
                if turn:
                    lives[kind].append(life)
        return lives

    async def _live_once(self, kind: Kind, name: str) -> Life:
        """Run one pod, and delete it at a random moment of the kubelet's period."""
        pod = fit(_pod(name, kind), self._live.access.pod_image)
        async with self._cluster.plane.connect() as api:
            version = str((await api.list(_PODS))["metadata"]["resourceVersion"])
            begin, ready, deletion = time.monotonic(), 0.0, 0.0
            await api.create(_PODS, pod)
            async with aclosing(api.watch(_PODS, resource_version=version)) as events:
                async for event in events:
                    if event.object.get("metadata", {}).get("name") != name:
                        continue
                    if event.type == "DELETED":
                        break
                    if not ready and is_ready(event.object):
                        ready = deletion = time.monotonic()
                        await self._check_nics(event.object, kind)
                        await asyncio.sleep(self._chance.uniform(0, RELIST_SECONDS))
                        deletion = time.monotonic()
                        await api.delete(f"{_PODS}/{name}")
            return Life((ready - begin) * 1000, (time.monotonic() - deletion) * 1000)

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
    """Its container ends at once when it is told to, so that an end is the cluster's time alone."""
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

"""A pod's start on a real containerd and runc: without NRI, without a plugin, with the driver, with NICs.

A start is what the kubelet asks of the runtime: RunPodSandbox, CreateContainer, StartContainer, each timed
over the CRI. Three containerds of one version run at the same time, so that all five kinds of start can be
mixed: one with NRI switched off, one with NRI and no plugin, one with the driver. One pod at a time. The
kinds come in random order in each round, and a round's start with no plugin is what its others are compared
with. Prepare comes before the sandbox and is no part of the start: it is shown by itself.

API server and scheduler run in the measuring process and answer the driver while a container is made; on a
cluster they are on another machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import Enum

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import Result, Series
from testbed.cluster import NAMESPACE, JsonObject, Places, RuntimeFactory, Testbed
from testbed.containerd.fetch import Toolchain, default_cache_dir, fetch_toolchain, find_toolchain
from testbed.containerd.node import check_root
from testbed.containerd.runtime import ContainerdRuntime
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.node import Node
from testbed.runtime.contract import ContainerSpec, PodRuntime, SandboxSpec

HARDWARE = "dgx-h100"
ROUNDS = 30
SEED = 6
CALLS = ("RunPodSandbox", "CreateContainer", "StartContainer")

SETTLE_SECONDS = 0.2
"""A pause before each start, so that nothing is still busy with the one before."""

_HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds_sum"


class Kind(Enum):
    """What a start is measured with, and the most that it may take of a start with no plugin.

    A namespace move waits for the kernel, and a start does not: each NIC costs a tenth of one, here.
    """

    NO_NRI = "without NRI", 0, None
    NO_PLUGIN = "no plugin", 0, None
    NO_CLAIM = "driver, no claim", 0, 1.25
    ONE_NIC = "driver, 1 NIC", 1, 1.75
    EIGHT_NICS = "driver, 8 NICs", 8, 3.0

    def __init__(self, title: str, nics: int, bound: float | None) -> None:
        self.title = title
        self.nics = nics
        self.bound = bound

    @property
    def has_driver(self) -> bool:
        return self not in (Kind.NO_NRI, Kind.NO_PLUGIN)


@dataclass(slots=True)
class Start:
    """One start, in milliseconds."""

    calls: dict[str, float] = field(default_factory=dict)
    hooks: float = 0.0
    """What the driver itself counts for all hooks of this pod until it runs."""
    prepare: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.calls[name] for name in CALLS)


Starts = Mapping[Kind, Sequence[Start]]


def fetch() -> None:
    """What has to be here before the private tree is entered, which has no network.

    Raises:
        ContainerdUnavailable: it cannot be had on this machine.
    """
    check_root()
    fetch_toolchain(default_cache_dir(), report=print)


def run() -> Iterator[Result]:
    starts = asyncio.run(_measure())
    for kind in Kind:
        yield _compare(starts, kind)
    for kind in Kind:
        if kind is not Kind.NO_PLUGIN:
            yield _difference(starts, kind)
    for name, kind in itertools.product(CALLS, Kind):
        yield _result(f"{name}, {kind.title}", [start.calls[name] for start in starts[kind]])
    for kind in filter(lambda kind: kind.has_driver, Kind):
        yield _result(f"the driver's hooks of it, {kind.title}", [start.hooks for start in starts[kind]])
    for kind in filter(lambda kind: kind.nics, Kind):
        yield _result(f"Prepare before it, {kind.title}", [start.prepare for start in starts[kind]])


def _compare(starts: Starts, kind: Kind) -> Result:
    ours, floor = (Series(k.title, tuple(start.total for start in starts[k])) for k in (kind, Kind.NO_PLUGIN))
    return Result(f"pod start, {kind.title}", ours, floor, kind.bound)


def _difference(starts: Starts, kind: Kind) -> Result:
    pairs = zip(starts[kind], starts[Kind.NO_PLUGIN], strict=True)
    return _result(
        f"more than with no plugin, {kind.title}", [one.total - other.total for one, other in pairs]
    )


def _result(title: str, samples: Sequence[float]) -> Result:
    low, _, high = statistics.quantiles(samples, n=4)
    return Result(f"{title} (quartiles {low:.0f}, {high:.0f})", Series(title, tuple(samples)))


async def _measure() -> Starts:
    toolchain = find_toolchain(default_cache_dir())
    if toolchain is None:
        raise RuntimeError("no containerd was fetched")
    async with AsyncExitStack() as stack:
        stopwatch = _Stopwatch()
        bare = {
            kind: await _start_bare(toolchain, kind, stopwatch, stack)
            for kind in (Kind.NO_NRI, Kind.NO_PLUGIN)
        }
        testbed = await stack.enter_async_context(
            Testbed(load_hardware(HARDWARE), _timed(toolchain, stopwatch), WORK_DIR)
        )
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        await testbed.apply([_CLASS, _TEMPLATE])
        testbed.kubelet.hold_sandboxes(True)
        return await _Stage(testbed, bare, stopwatch).measure()


async def _start_bare(
    toolchain: Toolchain, kind: Kind, stopwatch: _Stopwatch, stack: AsyncExitStack
) -> PodRuntime:
    """A containerd without a cluster."""
    folder = WORK_DIR / kind.name.lower()
    folder.mkdir()
    has_nri = kind is not Kind.NO_NRI
    runtime = ContainerdRuntime(
        toolchain, folder, folder / "nri.sock", folder / "cdi", has_nri=has_nri, on_call=stopwatch.note
    )
    await runtime.start()
    stack.push_async_callback(runtime.stop)
    return runtime


def _timed(toolchain: Toolchain, stopwatch: _Stopwatch) -> RuntimeFactory:
    def make(places: Places, _: Node) -> PodRuntime:
        folder = places.work_dir / "driven"
        folder.mkdir()
        return ContainerdRuntime(toolchain, folder, places.nri_socket, places.cdi_dir, on_call=stopwatch.note)

    return make


class _Stopwatch:
    """Milliseconds of the last call of each method of the CRI."""

    def __init__(self) -> None:
        self.calls: dict[str, float] = {}

    def note(self, method: str, seconds: float) -> None:
        self.calls[method] = seconds * 1000


@dataclass(frozen=True, slots=True)
class _Stage:
    """The containerds, and the cluster around one of them. Its kubelet prepares pods and runs none."""

    testbed: Testbed
    bare: Mapping[Kind, PodRuntime]
    stopwatch: _Stopwatch

    async def measure(self) -> Starts:
        """The first round warms up and is not counted."""
        chance = random.Random(SEED)
        starts: dict[Kind, list[Start]] = {kind: [] for kind in Kind}
        for turn in range(ROUNDS + 1):
            for kind in chance.sample(tuple(Kind), len(Kind)):
                start = await self._start(kind, f"{kind.name.lower().replace('_', '-')}-{turn}")
                if turn:
                    starts[kind].append(start)
        return starts

    async def _start(self, kind: Kind, name: str) -> Start:
        if not kind.nics:
            runtime = self.bare.get(kind, self.testbed.runtime)
            return await self._run(runtime, SandboxSpec(NAMESPACE, name, uid=name), (), kind)
        await self.testbed.apply([_pod(name, kind.nics)])
        uid = self.testbed.pod_uid(name)
        await self.testbed.kubelet.wait_prepared(uid)
        spec = SandboxSpec(NAMESPACE, name, uid)
        start = await self._run(self.testbed.runtime, spec, self._read_cdi_names(), kind)
        await self.testbed.delete_pod(name)
        await self.testbed.kubelet.wait_gone(uid)
        prepared = self.testbed.kubelet.timings(uid).prepare_seconds
        return replace(start, prepare=(prepared or 0.0) * 1000)

    async def _run(self, runtime: PodRuntime, pod: SandboxSpec, cdi: tuple[str, ...], kind: Kind) -> Start:
        """Start and remove one pod."""
        await asyncio.sleep(SETTLE_SECONDS)
        hooks = await self._read_hooks() if kind.has_driver else 0.0
        sandbox = await runtime.run_sandbox(pod)
        await runtime.create_container(sandbox, ContainerSpec("main", cdi))
        start = Start({name: self.stopwatch.calls[name] for name in CALLS})
        if kind.has_driver:
            start.hooks = await self._read_hooks() - hooks
            await self._check_nics(sandbox.netns_path, kind)
        await runtime.remove_sandbox(sandbox.id)
        return start

    async def _check_nics(self, netns_path: str, kind: Kind) -> None:
        """What is timed must have happened."""
        found = await asyncio.to_thread(self.testbed.node.nics_in, netns_path)
        if len(found) != kind.nics:
            raise RuntimeError(f"a pod of kind {kind.title} has {len(found)} NICs")

    def _read_cdi_names(self) -> tuple[str, ...]:
        """The devices of everything that is prepared, which belongs to one pod."""
        names = []
        for file in sorted(self.testbed.places.cdi_dir.glob("*.json")):
            spec = json.loads(file.read_text())
            names += [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
        return tuple(names)

    async def _read_hooks(self) -> float:
        """Milliseconds in hooks since the driver's start, in its own words."""
        text = await asyncio.to_thread(_fetch_metrics)
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return 1000 * sum(sample.value for sample in samples if sample.name == _HOOKS)


def _fetch_metrics() -> str:
    with urllib.request.urlopen("http://127.0.0.1:9177/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


_CLASS: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "rail"},
    "spec": {"selectors": [{"cel": {"expression": 'device.attributes["dra.net"].rdma'}}]},
}
_TEMPLATE: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "rail"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": "rail"}}],
            }
        }
    },
}


def _pod(name: str, nics: int) -> JsonObject:
    """A claim for each NIC."""
    claims = [{"name": f"nic{number}"} for number in range(nics)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{**claim, "resourceClaimTemplateName": "rail"} for claim in claims],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": claims}}],
        },
    }

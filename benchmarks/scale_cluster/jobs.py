"""Jobs of many pods: how long the scheduler takes to place them, with generated claims and without.

The claims are those of ``dranet claim new`` for the slices of this cluster. Each pod gets its claim from the
template, as the controller manager makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from benchmarks.measure import read_processor_seconds
from benchmarks.scale_cluster.cluster import EVERYTHING, FIELD_MANAGER, UNLIMITED, each, start_controllers
from benchmarks.scale_cluster.phases import PROGRAMS, print_progress
from dranet.cluster import paths
from dranet.cluster.client import ApiClient, EventType, Snapshot, list_and_watch
from dranet.errors import ClusterError
from e2e.cluster.controlplane import ControlPlane
from e2e.objects import JsonObject, path_of

NAMESPACE = "training"
PLACED_SECONDS = 900.0
POLL_SECONDS = 0.5
_ACCOUNT = f"{paths.namespace(NAMESPACE)}/serviceaccounts/default"


class Kind(Enum):
    """What each pod claims: the arguments of ``dranet claim new``."""

    NOTHING = "no claim", ()
    PAIR = "1 GPU and 1 NIC below one PCIe root", ("--gpus", "1", "--nics", "1")
    NODE = "8 GPUs and 8 NICs, all of a node", ("--per-node",)

    def __init__(self, title: str, ask: tuple[str, ...]) -> None:
        self.title = title
        self.ask = ask


class Limits(Enum):
    """Requests a second that scheduler and controller manager allow themselves."""

    DEFAULT = "the programs' own limits of requests", ()
    NONE = "no such limits", UNLIMITED

    def __init__(self, title: str, flags: tuple[str, ...]) -> None:
        self.title = title
        self.flags = flags


PLAN: Sequence[tuple[Limits, Sequence[Kind]]] = (
    (Limits.NONE, tuple(Kind)),
    (Limits.DEFAULT, (Kind.NOTHING, Kind.PAIR)),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table."""

    kind: Kind
    limits: Limits
    pods: int
    seconds: float
    """From the creation of the first pod until the last one has a node."""
    processor: Mapping[str, float]

    @property
    def title(self) -> str:
        return f"{self.pods} pods, {self.kind.title}; {self.limits.title}"

    def as_json(self) -> dict[str, Any]:
        processor = {name: round(value, 1) for name, value in self.processor.items()}
        seconds = round(self.seconds, 2)
        return {"title": self.title, "pods": self.pods, "seconds": seconds, "processor_seconds": processor}


async def run_jobs(plane: ControlPlane, api: ApiClient, pods: int) -> list[Job]:
    await api.create(paths.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    jobs = []
    for limits, kinds in PLAN:
        await start_controllers(plane, *limits.flags)
        await wait_account(api)
        specs = {kind: await _make_template(plane, api, kind) for kind in kinds}
        await run_pods(plane, api, specs[kinds[-1]], 1)  # the caches are full then
        for kind in kinds:
            print_progress(f"a job of {pods} pods, {kind.title}, {limits.title} ...")
            seconds, processor = await run_pods(plane, api, specs[kind], pods)
            print_progress(f"  {seconds:.1f} s")
            jobs.append(Job(kind, limits, pods, seconds, processor))
    return jobs


async def wait_account(api: ApiClient) -> None:
    """Pods cannot be created before the controller manager has made their account."""
    async with asyncio.timeout(PLACED_SECONDS):
        while True:
            with contextlib.suppress(ClusterError):
                await api.get(_ACCOUNT)
                return
            await asyncio.sleep(POLL_SECONDS)


async def _make_template(plane: ControlPlane, api: ApiClient, kind: Kind) -> JsonObject:
    """Apply what ``dranet claim new`` writes for this cluster, and return the spec of its pod."""
    if not kind.ask:
        return {"containers": [{"name": "main", "image": "trainer"}]}
    *others, pod = await write_claim(plane, kind.ask)
    for item in others:
        await api.apply(path_of(item), item, FIELD_MANAGER)
    spec: JsonObject = pod["spec"]
    return spec


async def write_claim(plane: ControlPlane, ask: Sequence[str]) -> list[JsonObject]:
    """Return what ``dranet claim new`` writes for this cluster; the pod is last."""
    command = ("claim", "new", *ask, "-n", NAMESPACE, "-o", "json")
    kubeconfig = ("--kubeconfig", str(plane.plan.kubeconfig("admin")))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dranet", *command, *kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    text, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"dranet {' '.join(command)} ended with {process.returncode}")
    items: list[JsonObject] = json.loads(text)["items"]
    return items


async def run_pods(
    plane: ControlPlane, api: ApiClient, spec: JsonObject, pods: int
) -> tuple[float, dict[str, float]]:
    """Delete those before, create the pods, wait until each has a node; return seconds and processor time."""
    await _delete_pods(api)
    before, began = _read_processor(plane), time.perf_counter()
    body = {"metadata": {"generateName": "pod-"}, "spec": {**spec, "tolerations": [EVERYTHING]}}
    async with asyncio.timeout(PLACED_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(_wait_placed(api, pods))
        tasks.create_task(each(map(str, range(pods)), lambda _: api.create(paths.pods(NAMESPACE), body)))
    seconds, after = time.perf_counter() - began, _read_processor(plane)
    return seconds, {name: after[name] - before[name] for name in after}


async def _wait_placed(api: ApiClient, pods: int) -> None:
    placed: set[str] = set()
    async with contextlib.aclosing(list_and_watch(api, paths.pods(NAMESPACE))) as news:
        async for item in news:
            if isinstance(item, Snapshot) or item.type is EventType.DELETED:
                continue
            if item.object["spec"].get("nodeName"):
                placed.add(item.object["metadata"]["name"])
                print_progress(f"  {len(placed)} of {pods} pods have a node", "\r")
            if len(placed) >= pods:
                return


async def _delete_pods(api: ApiClient) -> None:
    """And wait until their claims are gone, and the devices free."""
    await api.delete(paths.pods(NAMESPACE), grace_period_seconds=0)
    async with asyncio.timeout(PLACED_SECONDS):
        while (await api.list(paths.resource_claims(NAMESPACE)))["items"]:
            await asyncio.sleep(POLL_SECONDS)


def _read_processor(plane: ControlPlane) -> dict[str, float]:
    return {name: read_processor_seconds(plane.programs.pid(name)) for name in PROGRAMS}

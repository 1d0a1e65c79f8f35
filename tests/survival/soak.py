"""A soak: random pods, and random faults one after the other, for minutes, on one node; what is left then?

First the driver's process lives on while its peers fail, and its memory, descriptors and threads are
measured between rounds of faults, each time when no pod is left. Then the driver itself is killed, restarted
and updated. At the end everything must be as at the beginning. The same seed gives the same pods and faults,
as far as time lets it. Runs inside a private tree (``python -m tests.survival``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dranet.errors import DranetError
from testbed.cluster import Places, RuntimeFactory, Testbed
from testbed.containerd.runtime import ContainerdRuntime, _parse_netns_path
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.node import Node
from testbed.runtime.contract import (
    ContainerSpec,
    ExecResult,
    PodRuntime,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from testbed.runtime.pod_netns import held_netns
from tests.survival.environment import CONTAINERD, READY_SECONDS, STAND_IN, Stage
from tests.survival.objects import CLASSES
from tests.survival.soak_faults import OF_DRIVER, OF_PEERS, UNATTENDED, Fault
from tests.survival.soak_pods import POD_SECONDS, PodTraffic
from tests.survival.soak_signs import Measure, find_growth, list_left, measure
from tests.survival.table import Row
from tests.survival.verification import Judge

HARDWARE = "dgx-h100"
SETTINGS = {
    "shared_devices": 'device.attributes["dra.net"].ifName == "enp24s0np0"',
    "rescan_seconds": "5",
    "reconcile_seconds": "5",
    "drain_seconds": "5",
}
"""Everything that a driver does now and then, often enough for a short soak."""
PEERS_SHARE = 0.6
"""Of the time, while the driver's process lives on."""
PAUSE_SECONDS = (0.2, 1.2)
"""Between two faults."""
_LOOK_SECONDS = 0.2
_RESERVED = re.compile(r'reserve container name.*is reserved for "([0-9a-f]+)"')
"""containerd on a container of a call that was cut off."""
RUNTIMES = (CONTAINERD, STAND_IN)

Tell = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What was done, and what is wrong."""

    seed: int
    runtime: str
    pods: dict[str, int] = field(default_factory=dict)
    """Pods that ran, by kind. No ``Counter``: ``asdict`` cannot copy one before Python 3.12."""
    hurried: int = 0
    """Pods that were deleted while they started."""
    faults: dict[str, int] = field(default_factory=dict)
    measures: list[Measure] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class _PhysicalNics:
    """A containerd on a node of veth pairs: what is in a namespace that dies falls back to the node, as the
    kernel has it for hardware, whoever removes the namespace and whenever. It also looks after what a
    call that was cut off has left, as a kubelet does. Implements ``PodRuntime``."""

    inner: ContainerdRuntime
    node: Node
    namespaces: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.inner.name

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox:
        try:
            sandbox = await self.inner.run_sandbox(spec)
        except RuntimeFailure:
            await self._remove_unfinished(spec.uid)
            raise
        self.namespaces[sandbox.id] = sandbox.netns_path
        return sandbox

    async def _remove_unfinished(self, pod_uid: str) -> None:
        """The call may have been cut off by the end of containerd, which goes on with what it had begun: as a
        kubelet that looks which sandboxes there are."""
        async with asyncio.timeout(POD_SECONDS):
            while True:
                with contextlib.suppress(RuntimeFailure):
                    for found in await self.inner._cri.list_pod_sandboxes():
                        if found.metadata.uid == pod_uid:
                            status = await self.inner._cri.fetch_pod_sandbox_status(found.id)
                            self.namespaces[found.id] = _parse_netns_path(status.info["info"])
                            await self.remove_sandbox(found.id)
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        try:
            return await self.inner.create_container(sandbox, spec)
        except RuntimeFailure as failure:
            left = _RESERVED.search(str(failure))
            if left is not None:
                with contextlib.suppress(RuntimeFailure):
                    await self.inner._cri.remove_container(left[1])
            raise

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult:
        return await self.inner.exec_in_container(container, command)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        async with self._outliving(sandbox_id):
            await self.inner.stop_sandbox(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        async with self._outliving(sandbox_id):
            await self.inner.remove_sandbox(sandbox_id)
        self.namespaces.pop(sandbox_id, None)

    @contextlib.asynccontextmanager
    async def _outliving(self, sandbox_id: str) -> AsyncIterator[None]:
        """The namespace lives until its NICs are home, should its name go meanwhile."""
        path = self.namespaces.get(sandbox_id, "")
        with held_netns(Path(path)) as held:
            try:
                yield
            finally:
                if held is not None and not _is_namespace(path):
                    await asyncio.to_thread(self.node.reclaim, held)


def _is_namespace(path: str) -> bool:
    return os.path.ismount(path)


class Soak:
    """One soak on a stage with a driver."""

    def __init__(self, stage: Stage, seed: int, tell: Tell) -> None:
        self._stage = stage
        self._chance = random.Random(seed)
        self._traffic = PodTraffic(stage, seed)
        self._tell = tell
        self._begin = time.monotonic()
        self.report = Report(seed, stage.runtime.name)

    async def run(self, seconds: float) -> Report:
        """For about so long, and at least until each fault has happened."""
        before = self._list_left()
        traffic = asyncio.create_task(self._traffic.run(), name="pods")
        await self._rounds(OF_PEERS, self._begin + seconds * PEERS_SHARE, self._measure)
        await self._rounds(OF_DRIVER, self._begin + seconds, self._traffic.hold)
        traffic.cancel()
        await asyncio.wait({traffic})
        await self._conclude(before)
        return self.report

    async def _rounds(self, faults: Mapping[str, Fault], until: float, between: Callable[[], object]) -> None:
        while True:
            self._traffic.flow()
            for name in self._chance.sample(sorted(faults), len(faults)):
                await asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS))
                await self._befall(name, faults[name])
            ended = between()
            assert asyncio.iscoroutine(ended)
            await ended
            if time.monotonic() >= until:
                return

    async def _befall(self, name: str, fault: Fault) -> None:
        self._say(name)
        try:
            async with self._traffic.attendance if name in UNATTENDED else contextlib.nullcontext():
                await fault(self._stage, self._chance)
        except (AssertionError, DranetError) as error:
            self._complain(f"{name}: {error}")
            await self._stage.ensure_driver()
        else:
            self.report.faults[name] = self.report.faults.get(name, 0) + 1

    async def _measure(self) -> None:
        await self._traffic.hold()
        found = await measure(self._stage.driver.pid)
        self.report.measures.append(found)
        self._say(f"at rest: {found}")

    async def _conclude(self, before: Sequence[str]) -> None:
        report, traffic = self.report, self._traffic
        report.pods.update({str(kind): count for kind, count in traffic.kinds.items()})
        report.hurried = traffic.hurried
        verdict = await self._stage.judge.settle()
        report.row = verdict.row("soak", report.runtime, sum(report.faults.values()))
        if not verdict.is_clean:
            self._complain(str(verdict))
        for lost in traffic.lost:
            self._complain(f"lost pod: {lost}")
        with contextlib.suppress(AssertionError):
            await self._stage.until(lambda: self._list_left() == before, "nothing is left")
        for line in sorted((Counter(self._list_left()) - Counter(before)).elements()):
            self._complain(f"left: {line}")
        for growth in find_growth(report.measures):
            self._complain(f"grows: {growth}")

    def _list_left(self) -> list[str]:
        runtime = self._stage.runtime
        cgroup = runtime._layout.cgroup if isinstance(runtime, ContainerdRuntime) else ""
        return list_left(self._stage.testbed, cgroup)

    def _complain(self, what: str) -> None:
        self.report.wrong.append(what)
        self._say(f"WRONG: {what}")

    def _say(self, what: str) -> None:
        pods = sum(self._traffic.kinds.values())
        self._tell(f"{time.monotonic() - self._begin:6.1f} s  {pods:4d} pods  {what}")


async def soak(
    seconds: float, make_runtime: RuntimeFactory, seed: int, tell: Tell, logs: Path | None = None
) -> Report:
    """In a private tree: boot, soak for about ``seconds`` and take all down. ``logs`` is a folder for what
    drivers and containerd have written, kept where something is wrong.

    Raises:
        DranetError: the testbed does not come up.
    """
    judge, made = Judge(), list[PodRuntime]()
    folder = Path(tempfile.mkdtemp(dir=WORK_DIR))
    make = judge.watch(_keeping(make_runtime, made))
    async with Testbed(load_hardware(HARDWARE), make, folder, SETTINGS) as testbed:
        await judge.take_case(testbed)
        await testbed.apply(CLASSES)
        testbed.driver = testbed.add_instance()
        stage = Stage(testbed, judge, made[0])
        await testbed.driver.start()
        await testbed.driver.wait_ready(READY_SECONDS)
        soaking = Soak(stage, seed, tell)
        try:
            return await soaking.run(seconds)
        finally:
            if soaking.report.wrong and logs is not None:
                await asyncio.to_thread(_keep_logs, folder, logs)


def _keep_logs(folder: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for log in (*folder.glob("*.log"), *folder.glob("containerd/*.log")):
        shutil.copy(log, logs)


def _keeping(make_runtime: RuntimeFactory, made: list[PodRuntime]) -> RuntimeFactory:
    """Puts what it makes into ``made``."""

    def make(places: Places, node: Node) -> PodRuntime:
        inner = make_runtime(places, node)
        made.append(inner)
        return _PhysicalNics(inner, node) if isinstance(inner, ContainerdRuntime) else inner

    return make

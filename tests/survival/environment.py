"""A testbed for stories of survival, in a private tree and a process of its own, with results back to pytest.

A *story* is an async function of a module that takes a :class:`Stage` (and what else JSON can carry).
:func:`perform` tells one after the other on one testbed in a child process and says what became of
each. After one that fails the rest is told on a new testbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dranet.cluster import paths
from dranet.errors import ClusterError, Reason
from testbed.cluster import NAMESPACE, RuntimeFactory, Testbed
from testbed.containerd.fetch import ContainerdUnavailable, fetch_toolchain
from testbed.driver.process import DriverProcess
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from testbed.node.hardware import load_hardware
from testbed.runtime.contract import PodRuntime
from testbed.runtimes import containerd, stand_in
from tests.support.waiting import until_in_thread
from tests.survival.objects import CLASSES, SHARE_SETTING, Way, build_pod
from tests.survival.table import Row, dump, load
from tests.survival.verification import PATIENCE_SECONDS, Judge

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_IN, CONTAINERD = "stand-in", "containerd"
READY_SECONDS = 30.0
_REFUSED = 77
"""Exit code of a child that cannot have its private tree, or its runtime, here."""

Argument = str | int | float


@dataclass(frozen=True, slots=True)
class Story:
    """``tell`` is a function of a module: the child process imports it by name."""

    tell: Callable[..., Awaitable[None]]
    arguments: tuple[Argument, ...] = ()

    @property
    def name(self) -> str:
        return "-".join((self.tell.__name__, *map(str, self.arguments)))


@dataclass(frozen=True, slots=True)
class Scene:
    """Where stories are told. ``runtime`` is :data:`STAND_IN` or :data:`CONTAINERD`; ``settings`` go to the
    driver."""

    runtime: str = STAND_IN
    hardware: str = "two-nic"
    settings: Mapping[str, str] = field(default_factory=lambda: SHARE_SETTING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one story. ``error`` is empty when it came to its end."""

    story: str
    error: str = ""
    skipped: str = ""
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0


class Stage:
    """A running testbed with its judge, and the hand that most stories need."""

    def __init__(self, testbed: Testbed, judge: Judge, runtime: PodRuntime) -> None:
        self.testbed = testbed
        self.judge = judge
        self.runtime = runtime
        """The runtime itself, without the judge in front of it."""
        self.rows: list[Row] = []

    @property
    def driver(self) -> DriverProcess:
        return self.testbed.driver

    async def start_driver(
        self, settings: Mapping[str, str] | None = None, command: Sequence[str] = ()
    ) -> None:
        """Start it, as another build where a ``command`` is given, and wait until it is ready."""
        await self.driver.start(settings, command=command)
        await self.driver.wait_ready(READY_SECONDS)

    async def ensure_driver(self) -> None:
        """The ordinary driver, ready; started where it does not run."""
        if not self.driver.is_running:
            await self.driver.start()
        await self.driver.wait_ready(READY_SECONDS)

    async def add_pod(self, name: str, way: Way = Way.MOVED, number: int = 1, claims: int = 1) -> None:
        """Apply it with its claims; does not wait. See :func:`tests.survival.objects.build_pod`."""
        await self.testbed.apply(build_pod(name, way, number, claims))

    async def wait_running(self, *pods: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Until they all run, each within so many seconds after the one before; says what holds one up."""
        kubelet = self.testbed.kubelet
        for pod in pods:
            uid = self.testbed.pod_uid(pod)
            try:
                async with asyncio.timeout(seconds):
                    await kubelet.wait_running(uid)
            except TimeoutError:
                raise AssertionError(
                    f"{pod} does not run: {kubelet.stage(uid).name}: {kubelet.failure(uid)}"
                ) from None

    async def delete_pods(self, *pods: str) -> None:
        """Ask for their ends and wait until they and their claims are gone."""
        uids = [self.testbed.pod_uid(pod) for pod in pods]
        for pod in pods:
            await self.testbed.delete_pod(pod)
        for pod, uid in zip(pods, uids, strict=True):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self.testbed.kubelet.wait_gone(uid)
            except TimeoutError:
                raise AssertionError(f"{pod} does not go: {self.testbed.kubelet.failure(uid)}") from None
        for claim in self._claims_of(pods):
            await self._delete_claim(claim)
        await self.until(lambda: not self._claims_of(pods), "the claims are gone")

    def _claims_of(self, pods: Sequence[str]) -> list[str]:
        names = (claim["metadata"]["name"] for claim in self.testbed.server.objects("resourceclaims"))
        return [name for name in names if name.rpartition("-")[0] in pods]

    async def _delete_claim(self, name: str) -> None:
        try:
            await self.testbed.api.delete(paths.resource_claim(NAMESPACE, name))
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise

    async def delete_all_pods(self) -> None:
        """As :meth:`delete_pods`, of every pod that there is."""
        await self.delete_pods(*(pod["metadata"]["name"] for pod in self.testbed.server.objects("pods")))

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Look, in a thread, until it is so.

        Raises:
            AssertionError: the time is over.
        """
        await until_in_thread(condition, what, seconds)

    def log(self, since: int = 0) -> str:
        """What the driver wrote, from a byte on; see :meth:`log_size`."""
        return self.driver.log_file.read_bytes()[since:].decode(errors="replace")

    def log_size(self) -> int:
        return self.driver.log_file.stat().st_size

    async def assert_well(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Nothing is amiss now, or soon, with whatever pods there are; enters no row."""
        verdict = await self.judge.settle(seconds)
        assert verdict.is_clean, str(verdict)

    async def conclude(self, fault: str, tries: int = 1) -> None:
        """All pods go; the judge's row is entered, and must be clean."""
        failure = ""
        try:
            await self.delete_all_pods()
        except AssertionError as error:
            failure = f"{error}\n"
        await self.enter(fault, tries, failure)

    async def enter(self, fault: str, tries: int = 1, failure: str = "") -> None:
        """The judge's row as things are now; it must be clean. Bare containers count for this row alone."""
        verdict = await self.judge.settle()
        self.judge.bare.clear()
        self.rows.append(verdict.row(fault, self.runtime.name, tries))
        if failure or not verdict.is_clean:
            raise AssertionError(f"{failure}{verdict}")


@contextlib.asynccontextmanager
async def on_stage(scene: Scene, folder: Path) -> AsyncIterator[Stage]:
    """A testbed with the judge on its case and the DeviceClasses there; the driver is not started."""
    judge = Judge()
    testbed = Testbed(
        load_hardware(scene.hardware), judge.watch(find_runtime(scene.runtime)), folder, scene.settings
    )
    async with testbed:
        try:
            await judge.take_case(testbed)
            await testbed.apply(CLASSES)
            assert judge.inner_runtime is not None
            yield Stage(testbed, judge, judge.inner_runtime)
        finally:
            if testbed.driver.pid:  # one that is stopped cannot be told to end
                os.kill(testbed.driver.pid, signal.SIGCONT)


def find_runtime(name: str) -> RuntimeFactory:
    """Fetches what is not here yet: call it outside of the private tree, which has no network.

    Raises:
        ContainerdUnavailable: this machine cannot have it.
    """
    if name == STAND_IN:
        return stand_in
    return containerd(fetch_toolchain(REPOSITORY / ".cache" / "containerd", report=print))


# --- from pytest to the child process and back ----------------------------------------------------------


def perform(
    stories: Sequence[Story], scene: Scene | None = None, timeout_seconds: float = 240.0
) -> dict[str, Outcome]:
    """Tell the stories in a private tree: story name -> what became of it."""
    scene, outcomes, left = scene or Scene(), dict[str, Outcome](), list(stories)
    if refusal := _fetch_refusal(scene):
        return {story.name: Outcome(story.name, skipped=refusal) for story in stories}
    deadline = time.monotonic() + timeout_seconds
    while left:
        told = _perform_once(left, scene, max(deadline - time.monotonic(), 1.0))
        outcomes |= {outcome.story: outcome for outcome in told}
        left = [story for story in left if story.name not in outcomes]
    return outcomes


def _fetch_refusal(scene: Scene) -> str:
    """Fetch what the scene needs, here where there is a network; why that cannot be."""
    try:
        find_runtime(scene.runtime)
    except ContainerdUnavailable as unavailable:
        return str(unavailable)
    return ""


def _perform_once(stories: Sequence[Story], scene: Scene, timeout_seconds: float) -> list[Outcome]:
    """At least one outcome."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(_encode(stories, scene))
        child = [sys.executable, "-m", "tests.survival.environment", str(request), str(answer)]
        try:
            done = subprocess.run(
                child,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as expired:
            code, output = -1, f"no end within {timeout_seconds:.0f} s: {expired.stdout!r} {expired.stderr!r}"
        if code == _REFUSED:
            return [Outcome(story.name, skipped=output.strip()) for story in stories]
        told = _decode(answer.read_text()) if answer.exists() else []
    if code != 0 and len(told) < len(stories) and not any(outcome.error for outcome in told):
        return [*told, Outcome(stories[len(told)].name, error=output or f"it ended with {code}")]
    return told


def _encode(stories: Sequence[Story], scene: Scene) -> str:
    where = [(story.tell.__module__, story.tell.__qualname__, story.arguments) for story in stories]
    return json.dumps([where, [scene.runtime, scene.hardware, dict(scene.settings)]])


def _decode(text: str) -> list[Outcome]:
    return [
        Outcome(told["story"], told["error"], rows=tuple(load(told["rows"])), seconds=told["seconds"])
        for told in json.loads(text)
    ]


def main(request: Path, answer: Path) -> int:
    """In the child: tell the stories, and write after each what became of it."""
    where, (runtime, hardware, settings) = json.loads(request.read_text())
    stories = [
        Story(getattr(importlib.import_module(module), name), tuple(arguments))
        for module, name, arguments in where
    ]
    try:
        return run_isolated(
            lambda: asyncio.run(_tell_all(stories, Scene(runtime, hardware, settings), answer))
        )
    except IsolationRefused as refused:
        sys.stdout.write(f"{refused}\n")
        return _REFUSED


async def _tell_all(stories: Sequence[Story], scene: Scene, answer: Path) -> int:
    told: list[dict[str, object]] = []
    folder = Path(tempfile.mkdtemp(dir=WORK_DIR))
    try:
        async with on_stage(scene, folder) as stage:
            for story in stories:
                begin, stage.rows = time.monotonic(), []
                error = await _tell(story, stage)
                seconds = round(time.monotonic() - begin, 2)
                told.append(
                    {"story": story.name, "error": error, "rows": dump(stage.rows), "seconds": seconds}
                )
                await asyncio.to_thread(answer.write_text, json.dumps(told))
                if error:
                    return 1
    except ContainerdUnavailable as error:
        sys.stdout.write(f"{error}\n")
        return _REFUSED
    return 0


async def _tell(story: Story, stage: Stage) -> str:
    """Its traceback, or nothing."""
    [failure] = await asyncio.gather(story.tell(stage, *story.arguments), return_exceptions=True)
    if failure is None:
        return ""
    return "".join(traceback.format_exception(failure)) + stage.driver.log_tail()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

"""The driver as a whole: its services (``assembly``) started in order, drained and stopped within their time.

Stop: not ready, refuse Prepare, wait for pods that are prepared but not yet running, then kubelet, runtime,
reports, store. Slices stay published: a quick restart keeps them, and the kubelet wipes them after 30 s if we
do not come back. Two instances may overlap on a node (``driver.instances``): both answer the kubelet and the
runtime, and one of them leads. The one that leaves waits until the other is ready, and refuses no call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from sys import _current_frames as read_frames
from types import CoroutineType, TracebackType
from typing import Any, Self

from dranet import __version__
from dranet.cluster.client import ApiClient
from dranet.driver.assembly import Services
from dranet.driver.executor import DriverExecutor, describe_place, describe_threads, is_any_active
from dranet.driver.instances.leader import InstanceState
from dranet.driver.publish import FactsReader
from dranet.errors import DranetError, KernelError
from dranet.files import FileLock
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.sysfs.files import use_node_proc
from dranet.settings import Settings
from dranet.telemetry import Metrics
from dranet.view.options import CapturedFacts
from dranet.view.policy import PolicySource

log = logging.getLogger(__name__)

EXIT_FORCED = 3
"""Something was still at work when the time was over. (1 and 2: ``cli.main``.)"""
END_SECONDS = 15.0
"""From the end of the drain to the end of the process, at most. The pod's grace period must be longer than
both together."""
LAST_LOG_SECONDS = 1.0
"""For the last line of the log: the reader of our output may also hang."""
CANCEL_AGAIN_SECONDS = 0.5
LOOK_SECONDS = 0.02
RUNTIME_SECONDS = 5.0
"""How long an instance that is not alone waits for the runtime before it registers with the kubelet."""
WORKER_THREADS = 4
"""For blocking kernel and disk work, which one lock serialises for the most part."""
MAIN_TASK = "driver"
"""Name of the task that starts and stops the parts."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Hears the signals from ``with`` on; its end waits for the threads that are at work.

    For the main thread, before others are started: they inherit that signals are not theirs. A thread of its
    own takes them, so they are heard, and the time runs, also while the event loop hangs. If the end takes
    longer than :data:`END_SECONDS` after the drain, the log lists what is still at work, and the process ends
    with :data:`EXIT_FORCED`; it leaves what a SIGKILL leaves. The kubelet and the runtime may repeat SIGTERM:
    that is logged and changes nothing. A second SIGINT comes from a person at the keyboard, and ends the
    process at once."""

    def __init__(self, drain_seconds: float) -> None:
        self._seconds = drain_seconds + END_SECONDS
        self._lock = threading.Lock()
        self._asked = False
        self._closed = False
        self._on_stop: Callable[[], object] | None = None
        self._mask: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._describe_work: Callable[[], Sequence[str]] = tuple

    def __enter__(self) -> Self:
        self._mask = {*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS))}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begin()
        while is_any_active():
            time.sleep(LOOK_SECONDS)
        self._closed = True
        self._wake()
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def stop_with(self, on_stop: Callable[[], object]) -> None:
        """Call this, on the event loop that runs here, when the process is asked to stop, or has been."""
        loop = self._loop = asyncio.get_running_loop()
        with self._lock:
            self._on_stop = lambda: loop.call_soon_threadsafe(on_stop)
            if self._asked:
                self._on_stop()

    def describe_with(self, describe_work: Callable[[], Sequence[str]]) -> None:
        """Add these lines to the report of what is still at work: work that no thread shows. Called on the
        thread of the signals."""
        self._describe_work = describe_work

    def begin(self) -> None:
        """The end has come for another reason than a signal: its time runs from now on. Repeatable."""
        with self._lock:
            if self._asked:
                return
        self._wake()

    def _wake(self) -> None:
        if self._thread.ident is not None and self._thread.is_alive():
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)

    # On the thread

    def _watch(self) -> None:
        signal.sigwait(_SIGNALS)
        deadline = time.monotonic() + self._seconds
        with self._lock:
            self._asked = True
            if self._on_stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                    self._on_stop()
        while not self._closed:
            again = signal.sigtimedwait(_SIGNALS, max(0.0, deadline - time.monotonic()))
            if again is None:
                self._force(f"not done within {self._seconds:g} s")
            elif again.si_signo == signal.SIGINT:
                self._force("stopped again (SIGINT)")
            elif not self._closed:
                left = deadline - time.monotonic()
                log.info("asked to stop again; the end takes %.0f s more at most: %s", left, self._describe())

    def _force(self, why: str) -> None:
        logger = threading.Thread(target=self._log_force, args=(why,), daemon=True)
        logger.start()
        logger.join(LAST_LOG_SECONDS)
        os._exit(EXIT_FORCED)

    def _log_force(self, why: str) -> None:
        log.error("ending by force, %s; still at work: %s", why, self._describe())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

    def _describe(self) -> str:
        lines = [*self._describe_work(), *describe_threads()]
        if self._loop is not None and not self._loop.is_closed():
            lines += [_describe_loop(self._loop)]
        return "; ".join(line for line in lines if line) or "nothing that is known"


def _describe_loop(loop: asyncio.AbstractEventLoop) -> str:
    """Where the loop hangs, or where the task that stops the parts waits."""
    frame = read_frames().get(threading.main_thread().ident or 0)
    place = describe_place(frame)
    inner = frame.f_code.co_name if frame is not None else ""
    if place and inner != "select":
        return f"event loop{place}"
    waits = [_describe_wait(task) for task in asyncio.all_tasks(loop) if task.get_name() == MAIN_TASK]
    return next((f"the end waits{place}" for place in waits if place), "")


def _describe_wait(task: asyncio.Task[object]) -> str:
    """The innermost coroutine of ours that it awaits."""
    place = ""
    awaited: object = task.get_coro()
    while isinstance(awaited, CoroutineType):
        place = describe_place(awaited.cr_frame) or place
        awaited = awaited.cr_await
    return place


async def run_driver(settings: Settings, ending: Shutdown) -> None:
    """Run until SIGTERM or SIGINT, then drain. Raises SettingsError, StoreError, or KernelError where changes
    of the node cannot be followed any more."""
    stop = asyncio.Event()
    ending.stop_with(stop.set)
    asyncio.get_running_loop().set_default_executor(DriverExecutor(WORKER_THREADS))
    FileLock.pod_uid = settings.pod_uid
    use_node_proc(settings.procfs_root)
    if (task := asyncio.current_task()) is not None:
        task.set_name(MAIN_TASK)
    try:
        # What the operator wrote is judged before anything outside is asked.
        policy, reader = PolicySource(settings), _open_reader(settings)
        metrics = Metrics()
        async with _api_client(settings, metrics) as client:
            driver = Driver(Services(settings, client, policy, reader, metrics))
            ending.describe_with(driver.describe_work)
            await driver.run(stop)
    except ExceptionGroup as group:
        first: Exception = group
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from group
    finally:
        ending.begin()


def _open_reader(settings: Settings) -> FactsReader:
    if settings.facts_file is None:
        return NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    captured = CapturedFacts(str(settings.facts_file))
    captured.read()
    return captured


class Driver:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, stop: asyncio.Event) -> None:
        """Start every part in order, serve until ``stop`` is set, then drain and stop in reverse. A second
        driver on the node that is not to overlap is refused before it touches anything that the first one
        uses."""
        self._services.kubelet.take_ownership()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._services.leadership.leave)
            self._services.leadership.join()
            self._services.store.open()
            stack.enter_context(contextlib.closing(self._services.store))
            stack.enter_context(contextlib.closing(self._services.pod_links))
            stack.enter_context(contextlib.closing(self._services.attachments))
            if self._services.neighbours is not None:
                stack.enter_context(contextlib.closing(self._services.neighbours))
            if await _done_before(stop, self._prepare_state()):
                await stack.enter_async_context(self._serving(stop))
                await self._work_until(stop)

    def describe_work(self) -> Sequence[str]:
        """What the end may wait for, in memory alone: calls of the kubelet, pods that were promised a NIC."""
        calls = [f"{call} for {seconds:.1f} s" for call, seconds in self._services.kubelet.list_calls()]
        pods = self._services.drain.waiting_for
        return calls + ([f"sandboxes of prepared pods have not run: {', '.join(pods)}"] if pods else [])

    async def _work_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            work = {
                "probes": self._services.probes.run(),
                "kubelet": self._services.kubelet.watch(),
                "publish: scan": self._services.publish.run(),
                "report": self._services.reporter.run(),
                "reconcile": self._services.reconcile.run(),
                "reassign": self._services.reassigner.run(),
                "alignment": self._services.alignment.run(),
                "protected addresses": self._services.protected_addresses.run(),
                "slices of others": self._services.node_devices.run(),
                "whose the GPUs are": self._services.gpu_inquiry.run(),
                "cloud": self._services.cloud.run(),
                "webhook provider": self._services.providers.run(),
                "health": self._services.health.run(),
                "hand-over": self._services.leadership.run(self._lead),
            }
            if self._services.neighbours is not None:
                work["LLDP"] = self._services.follow_neighbours()
            if self._services.ready_file is not None:
                work["ready file"] = self._services.ready_file.run()
            background = [tasks.create_task(run, name=name) for name, run in work.items()]
            gc.collect()
            gc.freeze()  # what the start has made lives until the process ends
            log.info("started", extra={"context": {"version": __version__}})
            await stop.wait()
            await self._services.drain.run(self._services.settings.drain_seconds)
            await _end(background)

    async def _lead(self) -> None:
        """Do what one instance of the node does for all, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._services.publisher.run(), name="publish: slices")
            tasks.create_task(self._services.leases.run(), name="leases")
            if (functions := self._services.virtual_functions) is not None:
                tasks.create_task(functions.run(), name="virtual functions")
            tasks.create_task(self._services.reconcile.run_regularly(), name="reconcile: regularly")

    async def _prepare_state(self) -> None:
        """Before the first call: remove what a reboot made void, and scan the node once. While a node boots,
        its tables may change too fast to be read. Prepare and publish scan again."""
        for tidy in (self._services.files.forget_other_boots, self._services.files.sweep_leftovers):
            try:
                await asyncio.to_thread(tidy)
            except DranetError as error:
                log.warning("not tidied up yet: %s", error)
        await asyncio.to_thread(self._services.health.recall)
        try:
            await asyncio.to_thread(self._services.inventory.scan)
        except KernelError as error:
            log.warning("the first scan failed, and is done again: %s", error)

    @contextlib.asynccontextmanager
    async def _serving(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Probes, runtime and kubelet, in this order; stopped in reverse."""
        async with contextlib.AsyncExitStack() as stack:
            await self._services.probes.start()
            stack.push_async_callback(self._services.probes.stop)
            if self._services.ready_file is not None:
                stack.callback(self._services.ready_file.remove)
                self._services.ready_file.start()
            self._services.nri.start()
            stack.push_async_callback(asyncio.to_thread, self._services.nri.stop)
            await _done_before(stop, self._wait_for_runtime())
            await self._services.kubelet.start()
            stack.push_async_callback(self._services.kubelet.stop)
            yield

    async def _wait_for_runtime(self) -> None:
        """The kubelet calls the instance that registered last, and that refuses claims until the runtime
        knows it. A runtime that starts many pods takes a while; another instance prepares claims
        meanwhile."""
        deadline = time.monotonic() + RUNTIME_SECONDS
        while self._services.leadership.state is InstanceState.WAITING and time.monotonic() < deadline:
            if self._services.nri.is_ready:
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _done_before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do ``work``, unless ``stop`` is set before it has ended. What hangs in a thread then goes on there."""
    stopped, working = asyncio.create_task(stop.wait()), asyncio.create_task(work, name="start")
    try:
        await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return not stop.is_set()
    finally:
        await _end({stopped, working})


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel, until they have ended: where a cancellation meets the end of a wait, it may be lost
    (``asyncio.wait_for`` before Python 3.12)."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)


def _api_client(settings: Settings, metrics: Metrics) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig, observer=metrics.api)
    return ApiClient.from_in_cluster(observer=metrics.api)

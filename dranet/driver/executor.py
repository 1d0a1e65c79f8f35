"""Threads for blocking work, each with a note of what it does.

:class:`DriverExecutor` has a few threads for the kernel and the disk, and others for name look-ups: a name
server that does not answer holds a look-up for minutes, and must leave threads for scans and claims.
:func:`run_with_deadline` is for hooks: a system call that hangs in a driver cannot be cancelled, so the hook
answers without the result, and the thread goes on. The notes name what the end of the process waits for.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sys import _current_frames as read_frames
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from msgspec import Struct

from dranet.errors import DranetError, HookDeadlineError

_PACKAGE = Path(__file__).parents[1]
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None)
_M_ARENA_MAX = -8
"""``malloc.h``"""


class _Activity(Struct, frozen=True):
    work: object
    """Text, or what is called."""
    since: float
    """``time.monotonic()``."""


_jobs: dict[int, _Activity] = {}
"""By thread."""


@contextmanager
def noted(work: object) -> Iterator[None]:
    """This thread is at ``work`` (a text, or what is called) until the block ends."""
    thread = threading.get_ident()
    _jobs[thread] = _Activity(work, time.monotonic())
    try:
        yield
    finally:
        del _jobs[thread]


def is_any_active() -> bool:
    """Whether any thread is at work."""
    return bool(_jobs)


def describe_threads() -> list[str]:
    """A line for each thread at work: its name, at what, since when and where in the code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames, now = read_frames(), time.monotonic()
    return [
        f"thread {names.get(ident, ident)}: {_describe(job.work)} for {now - job.since:.1f} s"
        f"{describe_place(frames.get(ident))}"
        for ident, job in tuple(_jobs.items())
    ]


def describe_place(frame: FrameType | None) -> str:
    """The innermost line of ours that a thread or coroutine is in; empty if there is no such line."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE) and path != Path(__file__):
            return f" in {path.relative_to(_PACKAGE.parent)}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return ""


def _describe(work: object) -> str:
    """The function below the wrappings of asyncio (``to_thread``: ``Context.run`` of it) and of ours."""
    while isinstance(work, functools.partial):
        inner = work.args[0] if work.args and callable(work.args[0]) else None
        is_wrapping = getattr(work.func, "__name__", "") in ("run", "_run")
        work = inner if is_wrapping and inner is not None else work.func
    return work if isinstance(work, str) else str(getattr(work, "__qualname__", work))


class NotedThreadPool(ThreadPoolExecutor):
    """A pool whose threads note what they work on."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(_noted, partial(fn, *args, **kwargs))


def _noted(call: Callable[[], T]) -> T:
    with noted(call):
        return call()


class DriverExecutor(NotedThreadPool):
    """The default executor of the driver's event loop.

    A look-up gets a thread of its own that is never joined. Callers that ask for the same name while it runs
    share its answer, so there is at most one thread per name.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads, thread_name_prefix="worker")
        self._look_ups: dict[Any, Future[Any]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = partial(fn, *args, **kwargs)
        if fn is not socket.getaddrinfo:
            return super().submit(_run, call)
        key = args, tuple(kwargs.items())
        running = self._look_ups.get(key)
        if running is None or running.done():
            running = self._look_ups[key] = _look_up(call)
        return running


def _run(call: Callable[[], T]) -> T:
    """A scan or a claim needs much for a moment. A failure keeps it until its error has been logged."""
    answer = call()
    trim()
    return answer


def _look_up(call: Callable[[], T]) -> Future[T]:
    found: Future[T] = Future()
    found.set_running_or_notify_cancel()  # not cancellable: others may also wait for it

    def run() -> None:
        try:
            found.set_result(call())
        except (OSError, ValueError) as error:
            found.set_exception(error)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return found


def run_with_deadline(work: Callable[[], T], seconds: float, what: str) -> T:
    """Return what ``work`` returns, if it ends within ``seconds``.

    Args:
        work: runs in a thread of its own.
        seconds: how long to wait for it.
        what: reads after "still" in the error's text.

    Raises:
        HookDeadlineError: it goes on in its thread.
        Exception: whatever ``work`` raised in time. What it raises later goes to the log.
    """
    job = _Job(work, what)
    threading.Thread(target=job.run, name="hook", daemon=True).start()
    return job.wait(seconds)


class _Job(Generic[T]):
    """Shared by the hook and the thread. The first to take the lock decides whether the end is late."""

    def __init__(self, work: Callable[[], T], what: str) -> None:
        self._work = work
        self._what = what
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = False
        self._results: list[T] = []
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep what was raised for the waiting caller."""
        self._error = error
        return True

    def run(self) -> None:
        with self, noted(self._what):
            self._results.append(self._work())
        with self._lock:
            self._ended.set()
            late = self._abandoned
        if late:
            self._end_late()

    def wait(self, seconds: float) -> T:
        self._ended.wait(seconds)
        with self._lock:
            self._abandoned = not self._ended.is_set()
        if self._abandoned:
            raise HookDeadlineError(
                f"still {self._what} after {seconds:.3g} s", operation="answer the runtime in time"
            )
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _end_late(self) -> None:
        if self._error is None:
            log.info("%s has ended, behind the runtime's answer", self._what)
        elif isinstance(self._error, DranetError):
            log.warning("%s has failed, behind the runtime's answer: %s", self._what, self._error)
        else:
            log.error("bug while %s", self._what, exc_info=self._error)


def use_one_heap() -> None:
    """For threads that are yet to be started; to be called before there are any."""
    set_option = getattr(_libc, "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return free memory to the kernel: a third of a millisecond after a scan of a thousand links."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))

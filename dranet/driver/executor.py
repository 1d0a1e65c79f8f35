"""Threads for blocking work, each with a note of what it does, for which the end of the process waits.

A name server that does not answer holds a look-up for minutes, and must leave threads for scans and claims. A
system call that hangs in a driver cannot be cancelled, so a hook answers without the result."""

from __future__ import annotations

import ctypes
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from sys import _current_frames as read_frames
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from dranet.errors import DranetError, HookDeadlineError

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]
P = ParamSpec("P")
T = TypeVar("T")
_libc = ctypes.CDLL(None)
_M_ARENA_MAX = -8
"""``malloc.h``"""

_jobs: dict[int, tuple[object, float]] = {}
"""By thread: its work (a text, or what is called), and since when (``time.monotonic()``)."""


@contextmanager
def noted(work: object) -> Iterator[None]:
    """This thread is at ``work`` until the block ends."""
    thread = threading.get_ident()
    _jobs[thread] = work, time.monotonic()
    try:
        yield
    finally:
        del _jobs[thread]


def is_any_active() -> bool:
    return bool(_jobs)


def describe_threads() -> list[str]:
    """A line for each thread at work: its name, at what, since when and where in the code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames, now = read_frames(), time.monotonic()
    return [
        f"thread {names.get(ident, ident)}: {_describe(work)} for {now - since:.1f} s"
        f"{describe_place(frames.get(ident))}"
        for ident, (work, since) in tuple(_jobs.items())
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
    """The default executor of the event loop. A look-up gets a thread of its own; callers that ask for the
    same name while it runs share its answer."""

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
            running = self._look_ups[key] = _start(call, "look-up")
        return running


def _run(call: Callable[[], T]) -> T:
    """A scan or a claim needs much for a moment. A failure keeps it until its error has been logged."""
    answer = call()
    trim()
    return answer


def _start(call: Callable[[], T], name: str) -> Future[T]:
    """Call it in a thread of its own that is never joined. The future cannot be cancelled."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def keep(_: object, error: BaseException | None, __: object) -> bool:
        if error is not None:
            future.set_exception(error)
        return True

    def run() -> None:
        with ExitStack() as stack:
            stack.push(keep)
            future.set_result(call())

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_with_deadline(work: Callable[[], T], seconds: float, what: str) -> T:
    """Return what ``work`` returns, or raise what it raises, if it ends within ``seconds``; else it goes on
    in its thread, and HookDeadlineError is raised. ``what`` reads after "still" in its text."""

    def run() -> T:
        with noted(what):
            return work()

    job = _start(run, "hook")
    wait((job,), seconds)
    if job.done():
        return job.result()
    job.add_done_callback(partial(_log_late_end, what))
    raise HookDeadlineError(f"still {what} after {seconds:.3g} s", operation="answer the runtime in time")


def _log_late_end(what: str, job: Future[T]) -> None:
    error = job.exception()
    if error is None:
        log.info("%s has ended, behind the runtime's answer", what)
    elif isinstance(error, DranetError):
        log.warning("%s has failed, behind the runtime's answer: %s", what, error)
    else:
        log.error("bug while %s", what, exc_info=error)


def use_one_heap() -> None:
    """By default threads get heaps of their own, so that none waits for another; ours take turns at Python's
    lock. To be called before there are any. Another C library (musl) has no such option."""
    set_option = getattr(_libc, "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return free memory below what lives on to the kernel (``malloc_trim(3)``): a third of a millisecond
    after a scan of a thousand links, which leaves a megabyte of holes."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))

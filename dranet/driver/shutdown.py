"""The end of the process within its time, whatever hangs; and the reason, where the end had to be forced.

SIGTERM and SIGINT are taken by a thread of its own: they are heard, and the time runs, also while the event
loop hangs on a disk or the end waits for a thread that the kernel does not let go. An end in order takes a
second or two; what has a time limit on the way out (the drain, the last statuses, a hook) keeps its own. If
all of them together, or something without one, take longer than :data:`END_SECONDS` after the drain, then the
log lists what is still at work and since when, and the process ends with :data:`EXIT_FORCED`. What it leaves
is what a SIGKILL leaves: the next start goes on from it.

The kubelet and the runtime may repeat SIGTERM, when one of them restarts meanwhile. So a second one is logged
and changes nothing. A second SIGINT comes from a person at the keyboard, and ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from sys import _current_frames as read_frames
from types import CoroutineType, TracebackType
from typing import Self

from dranet.driver.executor import describe_place, describe_threads, is_any_active

log = logging.getLogger(__name__)

EXIT_FORCED = 3
"""Something was still at work when the time was over. (1 and 2: ``cli.main``.)"""
END_SECONDS = 15.0
"""From the end of the drain to the end of the process, at most. The pod's grace period must be longer than
both together."""
LAST_LOG_SECONDS = 1.0
"""For the last line of the log: the reader of our output may also hang."""
_LOOK_SECONDS = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Hears the signals from ``with`` on; its end waits for the threads that are at work.

    For the main thread of the process, before others are started: they inherit that signals are not theirs.
    """

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
            time.sleep(_LOOK_SECONDS)
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
        self._ask()
        while not self._closed:
            again = signal.sigtimedwait(_SIGNALS, max(0.0, deadline - time.monotonic()))
            if again is None:
                self._force(f"not done within {self._seconds:g} s")
            elif again.si_signo == signal.SIGINT:
                self._force("stopped again (SIGINT)")
            elif not self._closed:
                left = deadline - time.monotonic()
                log.info("asked to stop again; the end takes %.0f s more at most: %s", left, self._describe())

    def _ask(self) -> None:
        with self._lock:
            self._asked = True
            if self._on_stop is not None:
                with suppress(RuntimeError):  # the loop has ended by itself
                    self._on_stop()

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


MAIN_TASK = "driver"
"""Name of the task that starts and stops the parts."""


def _describe_wait(task: asyncio.Task[object]) -> str:
    """The innermost coroutine of ours that it awaits."""
    place = ""
    awaited: object = task.get_coro()
    while isinstance(awaited, CoroutineType):
        place = describe_place(awaited.cr_frame) or place
        awaited = awaited.cr_await
    return place

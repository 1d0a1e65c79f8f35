"""Work that a hook waits for, but only so long: the runtime hears an answer in time whatever the kernel does.

A system call that hangs in a driver cannot be called off, so such work runs in a thread of its own. When the
time is over the hook answers with an error and leaves the thread to finish, and to clean up, behind it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from dranet.driver.at_work import noted
from dranet.errors import DranetError, KernelError, Reason

log = logging.getLogger(__name__)

T = TypeVar("T")


def run_in_time(
    work: Callable[[], T],
    seconds: float,
    what: str,
    after_late_end: Callable[[T], None] | None = None,
    *,
    heard_until: float = math.inf,
) -> T:
    """What ``work`` returns, if it ends within ``seconds``.

    Args:
        work: runs in a thread of its own.
        seconds: how long to wait for it.
        what: reads after "still" in the error's text.
        after_late_end: called in that thread with the result when ``work`` ended well, but too late.
        heard_until: by ``time.monotonic()``. An error that comes later (the process got no time) is one that
            nobody waits for any more: who had the work done goes on without it, so ``after_late_end`` is not
            called.

    Raises:
        KernelError: ``HookDeadlineExceeded``: it goes on in its thread.
        Exception: whatever ``work`` raised in time. What it raises later goes to the log.
    """
    job = _Job(work, what, after_late_end, heard_until)
    threading.Thread(target=job.run, name="hook", daemon=True).start()
    return job.wait(seconds)


class _Job(Generic[T]):
    """Shared by the hook and the thread. Whoever takes the lock first decides whether the end is late."""

    def __init__(
        self,
        work: Callable[[], T],
        what: str,
        after_late_end: Callable[[T], None] | None,
        heard_until: float,
    ) -> None:
        self._work = work
        self._what = what
        self._after_late_end = after_late_end
        self._heard_until = heard_until
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self._is_heard = True
        self._results: list[T] = []
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Whatever was raised is for who waits."""
        self._error = error
        return True

    def run(self) -> None:
        with self, noted(self._what):
            self._results.append(self._work())
        with self._lock:
            self._ended.set()
            late = self._given_up
        if late:
            self._end_late()

    def wait(self, seconds: float) -> T:
        self._ended.wait(seconds)
        with self._lock:
            self._given_up = not self._ended.is_set()
            self._is_heard = time.monotonic() < self._heard_until
        if self._given_up:
            raise KernelError(
                f"still {self._what} after {seconds:.3g} s",
                operation="answer the runtime in time",
                reason=Reason.HOOK_DEADLINE_EXCEEDED,
                hint="raise the runtime's plugin_request_timeout, and --hook-budget-seconds with it",
            )
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _end_late(self) -> None:
        if self._error is None:
            log.warning("%s has ended, too late for the runtime", self._what)
            if self._after_late_end is not None and self._is_heard:
                self._clean_up(self._after_late_end)
        elif isinstance(self._error, DranetError):
            log.warning("%s has failed, too late for the runtime: %s", self._what, self._error)
        else:
            log.error("bug while %s", self._what, exc_info=self._error)

    def _clean_up(self, after_late_end: Callable[[T], None]) -> None:
        try:
            after_late_end(self._results[0])
        except DranetError as error:
            log.warning("%s: what it left is not cleaned up: %s", self._what, error)
        except Exception:
            log.exception("bug in the clean-up after %s", self._what)

"""Work that a hook waits for, but only so long: the runtime hears an answer in time whatever the kernel does.

A system call that hangs in a driver cannot be cancelled, so such work runs in a thread of its own. When the
time is over the hook answers without it, and the thread goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from dranet.driver.at_work import noted
from dranet.errors import DranetError, HookDeadlineError

log = logging.getLogger(__name__)

T = TypeVar("T")


def run_in_time(work: Callable[[], T], seconds: float, what: str) -> T:
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
    """Shared by the hook and the thread. Whoever takes the lock first decides whether the end is late."""

    def __init__(self, work: Callable[[], T], what: str) -> None:
        self._work = work
        self._what = what
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
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
        if self._given_up:
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

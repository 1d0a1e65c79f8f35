"""The lock on the node's devices, for the threads of this process and for another instance of the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dranet.errors import HookDeadlineError, KernelError, Reason
from dranet.locks import FileLock

CLOSE_SECONDS = 5.0
"""How long the end of the driver waits for a hook that is left behind in the kernel."""


class NodeLock:
    """Repeatable within a thread. A process that ends, however it ends, holds nobody up any more."""

    def __init__(self, path: Path) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        """How often the thread that has the lock has taken it."""
        self._processes = FileLock(path)
        """Belongs to the thread that has ``_threads``."""

    @contextmanager
    def hold(self, timeout_seconds: float, reason: Reason | None) -> Iterator[None]:
        """Hold it, waiting at most so long.

        Raises:
            KernelError: somebody else has it for longer; with ``reason``.
            StoreError: the lock's file cannot be opened.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._threads.acquire(timeout=max(0.0, timeout_seconds)):
            is_ours = self._depth > 0  # else the thread that has it waits for another process, too
            raise _busy(timeout_seconds, reason, "" if is_ours else self._processes.describe_holder())
        try:
            if self._depth == 0 and not self._processes.acquire(deadline):
                raise _busy(timeout_seconds, reason, self._processes.describe_holder())
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._processes.release()
        finally:
            self._threads.release()

    @contextmanager
    def close(self) -> Iterator[bool]:
        """Hold off the threads of this process, then let the file go. Whether that could be: a thread that
        hangs in the kernel keeps all, and ends with the process."""
        if not self._threads.acquire(timeout=CLOSE_SECONDS):
            yield False
            return
        try:
            yield True
            self._processes.close()
        finally:
            self._threads.release()


def _busy(seconds: float, reason: Reason | None, holder: str = "") -> KernelError:
    where = holder and f", in {holder}"
    kind = HookDeadlineError if reason is Reason.HOOK_DEADLINE_EXCEEDED else KernelError
    return kind(
        f"another attach or release on this node took longer than {seconds:.3g} s{where}",
        operation="wait for the node's devices",
        reason=reason,
    )

"""The lock on the node's devices, for the threads of this process and for another instance of the driver."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path

from dranet.driver.instances.members import FOLDER, list_living
from dranet.errors import HookDeadlineError, KernelError, Reason
from dranet.files import FileLock, NamedLocks
from dranet.kubelet.plugin import ClaimLocks

CLOSE_SECONDS = 5.0
"""How long the end of the driver waits for a hook that is left behind in the kernel."""


class NodeLock:
    """Repeatable within a thread. A process that ends, however it ends, no longer blocks others."""

    def __init__(self, path: Path) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        """How often the thread that has the lock has taken it."""
        self._processes = FileLock(path)
        """Belongs to the thread that has ``_threads``."""

    @contextmanager
    def hold(self, timeout_seconds: float, reason: Reason | None) -> Iterator[None]:
        """Acquire the lock, waiting up to ``timeout_seconds``.

        Raises:
            KernelError: another thread or process has it for longer; with ``reason``.
            StoreError: the lock's file cannot be opened.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._threads.acquire(timeout=max(0.0, timeout_seconds)):
            is_ours = self._depth > 0  # else the thread that has it also waits for another process
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


LOCK_FILE = "work.lock"
"""Next to the store: instances that share the store share the locks."""
WAIT_SECONDS = 20.0
"""For another instance. Less than the kubelet's caller is given (``kubelet.plugin.ANSWER_SECONDS``), so that
the pod's Events name what it waits for."""


class Work(StrEnum):
    """Kinds of names; the same name of two kinds is two locks."""

    CLAIM = "claim"
    DEVICE = "device"
    LINK = "link"
    ENDING_LEASES = "ending leases of claim"
    """The claim's leases are being released, and its record follows them."""


class WorkLocks:
    """Locks by kind and name."""

    def __init__(self, folder: Path) -> None:
        self._here = ClaimLocks()
        """Tasks of this process wait in turn, and without asking the kernel again and again."""
        self._across = NamedLocks(folder / LOCK_FILE)
        self._folder = folder

    @asynccontextmanager
    async def hold(self, work: Work, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold all of them.

        Raises:
            KernelError: another instance has one of them for longer than :data:`WAIT_SECONDS`.
            StoreError: the lock file cannot be used.
        """
        keys = [f"{work} {name}" for name in names]
        async with self._here.hold(keys), AsyncExitStack() as held:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await held.enter_async_context(self._across.hold(keys))
            except TimeoutError:
                raise self._busy(keys) from None
            yield

    def _busy(self, keys: Iterable[str]) -> KernelError:
        living = ", ".join(list_living(self._folder / FOLDER)) or "none"
        return KernelError(
            f"another instance of the driver works on {', '.join(keys)}, for over {WAIT_SECONDS:g} s now",
            operation="wait for another instance",
            hint=f"does it hang, or is it stopped? Pods of the driver that live here: {living}",
        )

    def is_held(self, work: Work, name: str) -> bool:
        """Whether it is held, in this process or another.

        Raises:
            StoreError: the lock file cannot be used.
        """
        return self._across.is_held(f"{work} {name}")

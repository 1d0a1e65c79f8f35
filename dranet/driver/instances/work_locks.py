"""What is being worked on: one at a time for each claim, device or link, in all instances of the driver.

Who waits here is a task, and it may wait for long (:data:`WAIT_SECONDS`): a DHCP server is given seconds.
What must be quick, and holds all devices still, is ``node_lock``. A task that holds a claim may take devices,
and one that holds devices a link, never the other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path

from dranet.driver.instances.roster import FOLDER, list_living
from dranet.errors import KernelError
from dranet.kubelet.claim_locks import ClaimLocks
from dranet.locks import NamedLocks

LOCK_FILE = "work.lock"
"""Beside the store: who shares the one shares the other."""
WAIT_SECONDS = 20.0
"""For another instance. Less than the kubelet's caller is given (``kubelet.plugin.ANSWER_SECONDS``), so that
the pod's events say what is waited for."""


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
        """Whether anybody holds it, in this process or another.

        Raises:
            StoreError: the lock file cannot be used.
        """
        return self._across.is_held(f"{work} {name}")

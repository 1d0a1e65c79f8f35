"""What is being worked on: one at a time for each claim, device or link, in all instances of the driver.

Who waits here is a task, and it may wait for long: a DHCP server is given seconds. What must be quick, and
holds all devices still, is ``node_lock``. A task that holds a claim may take devices, and one that holds
devices a link, never the other way round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

from dranet.filelock import NamedLocks
from dranet.kubelet.claim_locks import ClaimLocks

LOCK_FILE = "work.lock"
"""Beside the store: who shares the one shares the other."""


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

    @asynccontextmanager
    async def hold(self, work: Work, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold all of them.

        Raises:
            StoreError: the lock file cannot be used.
        """
        keys = [f"{work} {name}" for name in names]
        async with self._here.hold(keys), self._across.hold(keys):
            yield

    def is_held(self, work: Work, name: str) -> bool:
        """Whether anybody holds it, in this process or another.

        Raises:
            StoreError: the lock file cannot be used.
        """
        return self._across.is_held(f"{work} {name}")

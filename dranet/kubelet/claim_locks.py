"""One lock for each claim that is being worked on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary


class ClaimLocks:
    """Locks by claim UID; those that nobody holds or waits for take no memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, uids: Iterable[str]) -> AsyncIterator[None]:
        """Hold all of them, taken in one order, so that two batches cannot block each other."""
        async with AsyncExitStack() as held:
            for uid in sorted(set(uids)):
                lock = self._locks.setdefault(uid, asyncio.Lock())
                await held.enter_async_context(lock)
            yield

"""What the runtime had at Synchronize, on its way from the NRI thread to reconcile on the event loop."""

from __future__ import annotations

import asyncio

from dranet.driver.reconcile.runtime_view import RuntimeSnapshot


class SnapshotQueue:
    """From the NRI thread to the event loop; only the newest snapshot counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: RuntimeSnapshot | None = None
        self._filled = asyncio.Event()

    def put(self, snapshot: RuntimeSnapshot) -> None:
        """Called on the NRI thread."""
        self._loop.call_soon_threadsafe(self._store, snapshot)

    async def get(self) -> RuntimeSnapshot:
        await self._filled.wait()
        self._filled.clear()
        assert self._newest is not None
        return self._newest

    def _store(self, snapshot: RuntimeSnapshot) -> None:
        self._newest = snapshot
        self._filled.set()

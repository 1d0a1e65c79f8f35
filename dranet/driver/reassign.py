"""Reassign a claim to its next pod when the first one has ended: the kubelet does not prepare it again.

Pods may use a claim one after another: a Deployment that replaces its pod names the same ResourceClaim in
the old one and the new. The kubelet prepares the claim for the first, adds the second without a word, and
unprepares when the last has ended. The second one's container is refused while the first has the devices,
and the kubelet tries it again every few seconds; each refusal is the moment to look whether the claim is the
second's by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dranet.model.claim import ClaimRef

Reassign = Callable[[ClaimRef], Awaitable[None]]
"""Prepares the claim again if its pod has changed; raises nothing (``Preparer.reassign``)."""


class ClaimReassigner:
    """Claims that a pod waits for, from the NRI thread to the event loop."""

    def __init__(self, reassign: Reassign) -> None:
        self._reassign = reassign
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, ClaimRef] = {}
        self._working: set[str] = set()
        self._news = asyncio.Event()

    def ask(self, claim: ClaimRef) -> None:
        """A pod was refused that brings a claim of another; called on any thread, never waits."""
        self._loop.call_soon_threadsafe(self._note, claim)

    def _note(self, claim: ClaimRef) -> None:
        self._asked[claim.uid] = claim
        self._news.set()

    async def run(self) -> None:
        """Look at each claim that was asked for, one task per claim, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._news.wait()
                self._news.clear()
                for uid in self._asked.keys() - self._working:
                    self._working.add(uid)
                    tasks.create_task(self._look(self._asked.pop(uid)), name=f"reassign: {uid}")

    async def _look(self, claim: ClaimRef) -> None:
        try:
            await self._reassign(claim)
        finally:
            self._working.discard(claim.uid)
            self._news.set()

"""How an instance leaves: into the hands of another one that is ready, or alone, with new work refused."""

from __future__ import annotations

import asyncio
import logging

from dranet.driver.instances.handover import Handover
from dranet.driver.reports.reporter import Reporter
from dranet.failpoints import Failpoint, reached
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""The last statuses and Events get this long."""
DRAIN_POLL_SECONDS = 0.25
LINGER_SECONDS = 2.0
"""The kubelet notices within a second that a registration socket is gone; until then it may call us."""


class Leaving:
    """The walk out, begun once; what serves goes on until it has ended."""

    def __init__(
        self, handover: Handover, kubelet: KubeletPlugin, store: ClaimStore, reporter: Reporter
    ) -> None:
        self._handover = handover
        self._kubelet = kubelet
        self._store = store
        self._reporter = reporter
        self.begun = False
        self.waiting_for: tuple[str, ...] = ()
        """Pods whose sandboxes are waited for, as last seen."""

    async def run(self, seconds: float) -> None:
        """End our part of the work, within about so many seconds, and say the last words."""
        log.info("draining", extra={"context": {"seconds": seconds}})
        self.begun = True
        deadline = asyncio.get_running_loop().time() + seconds
        if await self._handover.relieve(seconds):
            await self._step_back(deadline)
        else:
            await self._drain(deadline)
        if not await self._reporter.flush(FLUSH_SECONDS):
            log.warning("some claim statuses or Events were not written in time")

    async def _step_back(self, deadline: float) -> None:
        """The other instance takes new work; ours is served to its end. The kubelet hangs up on who is not
        registered any more, so what it waits for is answered before."""
        loop = asyncio.get_running_loop()
        await self._kubelet.drain(deadline - loop.time())
        await self._kubelet.deregister()
        reached(Failpoint.HANDOVER_DEREGISTERED)
        await asyncio.sleep(LINGER_SECONDS)
        await self._kubelet.drain(deadline - loop.time())

    async def _drain(self, deadline: float) -> None:
        """Nobody else is there: refuse new work, and let what was promised happen."""
        loop = asyncio.get_running_loop()
        self._kubelet.refuse("the driver is stopping; the kubelet tries again with its successor")
        await self._kubelet.drain(deadline - loop.time())
        while (waiting := self._pods_waiting()) and loop.time() < deadline:
            if waiting != self.waiting_for:
                log.info("waiting for pod sandboxes to run: %s", ", ".join(waiting))
                self.waiting_for = waiting
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        self.waiting_for = ()
        if waiting:
            log.warning("stopping although prepared pods have not run yet: %s", ", ".join(waiting))

    def _pods_waiting(self) -> tuple[str, ...]:
        """Pods that were promised a NIC and whose sandbox has not run yet."""
        return tuple(
            str(record.pod) for record in self._store.get_all() if record.plans and not record.netns_path
        )

"""Which instance of the driver leads on this node, and how one leaves.

Two instances overlap during an update. Both answer the kubelet and the runtime; the leader alone publishes
slices, renews leases and looks around regularly. The leadership changes by two file locks and a request:

* A newcomer waits as successor; when it is fit, it leaves a request in the folder of instances.
* The leader ends its tasks and releases the lock. It answers calls until it is stopped, and leads again if
  its successor dies.
* A killed instance loses its locks, and the one that waits takes over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from dranet.driver.instances.members import Members
from dranet.driver.reports.reporter import Reporter
from dranet.failpoints import Failpoint, reached
from dranet.files import FileLock
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.sockets import FolderWatch
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import HandoverMetrics

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.2
"""Polling interval of an instance that waits to lead: a killed leader sends no message."""
OVERLAP_SECONDS = 1.0
"""Polling interval of the others, while there is more than one instance."""
PATIENCE_SECONDS = 10.0
"""A leader hands over within a second or two; if it takes longer, it hangs or is stopped."""


class InstanceState(StrEnum):
    """The role of an instance; the ``state`` label of the metric."""

    WAITING = "waiting"
    """New; another instance leads."""
    LEADER = "on-duty"
    RETIRED = "retired"
    """Has handed over; leads again if the successor dies."""
    ASIDE = "aside"
    """Does not lead until it is asked to come back."""


class Leadership:
    """This instance among the others.

    ``is_fit`` returns whether we may take over from a living predecessor. ``on_state`` hears of each change
    of :attr:`state`, ``on_gone`` when another instance has ended, and ``on_company`` every second while there
    is one: what it did may concern us.
    """

    def __init__(
        self,
        state_dir: Path,
        instances: Members,
        metrics: HandoverMetrics,
        *,
        is_fit: Callable[[], bool],
        on_state: Callable[[InstanceState], None],
        on_company: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._instances = instances
        self._metrics = metrics
        self._is_fit = is_fit
        self._on_state = on_state
        self._on_company = on_company
        self._on_gone = on_gone
        self._leader_lock = FileLock(state_dir / "duty.lock")
        self._successor = FileLock(state_dir / "successor.lock")
        self.state = InstanceState.WAITING
        self._elders: frozenset[str] = frozenset()
        self._leaving = False
        self._complain_at = 0.0
        """When to log that the leader does not hand over (``time.monotonic()``); 0: not asked yet."""
        self._changed = asyncio.Event()
        self.others: frozenset[str] = frozenset()
        """Pod UIDs of the other living instances, as last seen."""

    @property
    def newcomers(self) -> frozenset[str]:
        """Others that came while we lead, and do not lead yet."""
        return self.others - self._elders if self.state is InstanceState.LEADER else frozenset()

    def join(self) -> None:
        """Become one of the instances, and lead at once if no other does.

        Raises:
            SettingsError: a process with our pod UID lives.
            StoreError: the state folder cannot be used.
        """
        self._instances.join()
        self._look()
        if self._take():
            self._enter(InstanceState.LEADER)
        else:
            self._enter(InstanceState.WAITING)
            log.info("another instance leads on this node; taking over when ready")

    def leave(self) -> None:
        """Release everything; repeatable. Others see our end by it, so it comes last."""
        for lock in (self._leader_lock, self._successor):
            lock.close()
        self._instances.leave()

    async def run(self, duties: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run ``duties`` while we lead, until cancelled. What they raise ends this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_folder(), name="instances")
            while True:
                if self.state is InstanceState.LEADER:
                    async with asyncio.TaskGroup() as leading:
                        running = leading.create_task(duties(), name="duties")
                        await self._wait_wanted()
                        running.cancel()
                self._let_go()
                await self._wait_turn()

    async def relieve(self, timeout_seconds: float) -> bool:
        """We are about to leave: let a newcomer become ready first. Whether another instance stays.

        From now on we do not take the lead, and no other that leaves counts on us.
        """
        deadline = time.monotonic() + timeout_seconds
        self._leaving = True
        self._instances.announce_leaving()
        reached(Failpoint.HANDOVER_GOODBYE_SENT)
        if self.state is InstanceState.WAITING:
            self._successor.release()
        staying = self._find_staying()
        while self.newcomers & staying and time.monotonic() < deadline:
            await asyncio.sleep(WAIT_SECONDS)
            staying = self._find_staying()
        return bool(staying) and not self.newcomers & staying

    def _find_staying(self) -> frozenset[str]:
        """Others that are not leaving as well. If several leave at the same time, the last one stays for the
        pods that wait."""
        leaving = self._instances.find_leaving()  # first: one that has gone since is in no list
        self._look()
        return self.others - leaving

    def step_aside(self, why: str) -> None:
        """Stop leading, for instance because another instance's records cannot be read."""
        if self.state is not InstanceState.ASIDE:
            log.warning("stepping aside: %s", why)
            was_leader = self.state is InstanceState.LEADER
            self._enter(InstanceState.ASIDE)
            if not was_leader:
                self._successor.release()
            self._changed.set()

    def come_back(self) -> None:
        """The reason to step aside is gone: wait to lead again, if there is no other instance."""
        if self.state is InstanceState.ASIDE and not self._instances.find_others():
            log.info("not aside any more")
            self._enter(InstanceState.WAITING)

    # While it leads

    def _let_go(self) -> None:
        self._leader_lock.release()
        reached(Failpoint.HANDOVER_DUTIES_RELEASED)
        for asker in self._instances.find_askers():
            self._instances.withdraw_request(asker)
        if self.state is InstanceState.LEADER:
            self._metrics.handovers.labels("given").inc()
            log.info("handed the lead over; answering the kubelet and the runtime until stopped")
            self._enter(InstanceState.RETIRED)
            reached(Failpoint.HANDOVER_LEAD_PASSED)

    async def _wait_wanted(self) -> None:
        while self.state is InstanceState.LEADER:
            if self.others & self._instances.find_askers():
                return
            await self._wait_changed(OVERLAP_SECONDS if self.others else None)

    # While another leads

    async def _wait_turn(self) -> None:
        while True:
            if self.state is InstanceState.WAITING:
                await self._wait_changed(WAIT_SECONDS)
            else:  # in no hurry: the lock that was just let go is for the successor
                await asyncio.sleep(OVERLAP_SECONDS)
                self._look()
            if self._take():
                self._metrics.handovers.labels("taken").inc()
                log.info("took the lead")
                self._enter(InstanceState.LEADER)
                return
            if self.state is InstanceState.WAITING and self._is_fit():
                self._ask()

    def _ask(self) -> None:
        """Request to lead, and log after a while which process does not hand over."""
        if self._successor.held:
            self._instances.request()
        now = time.monotonic()
        self._complain_at = self._complain_at or now + PATIENCE_SECONDS
        if now >= self._complain_at:
            self._complain_at = math.inf
            waits_for = self._leader_lock if self._successor.held else self._successor
            log.warning(
                "ready to lead for %g s, but the lead is not handed over: %s has %s; here are also %s",
                PATIENCE_SECONDS,
                waits_for.describe_holder() or "another process",
                waits_for.path,
                ", ".join(sorted(self.others)) or "no others",
            )

    def _take(self) -> bool:
        """Take the lead if it is free and we are next; returns whether we lead now."""
        if self._leaving or self.state is InstanceState.ASIDE:
            return False
        if self.state is InstanceState.RETIRED:
            return self._take_again()
        if not (self._successor.try_acquire() and self._leader_lock.try_acquire()):
            return False
        reached(Failpoint.HANDOVER_LEAD_LOCKED)
        self._successor.release()
        self._instances.withdraw_request()
        reached(Failpoint.HANDOVER_DUTIES_TAKEN)
        return True

    def _take_again(self) -> bool:
        """Take the lead again, unless a successor lives that has not taken it yet."""
        if not self._leader_lock.try_acquire():
            return False
        if not self._successor.try_acquire():
            self._leader_lock.release()
            return False
        self._successor.release()
        return True

    def _enter(self, state: InstanceState) -> None:
        self.state = state
        self._complain_at = 0.0
        if state is InstanceState.LEADER:
            self._elders = self.others
        for known in InstanceState:
            self._metrics.state.labels(known).set(known is state)
        self._on_state(state)

    # Other instances

    async def _follow_folder(self) -> None:
        while True:  # a new watch each time: the folder itself may have been removed and made again
            with FolderWatch(self._instances.folder) as watch:
                self._changed.set()
                await watch.wait_changed()

    async def _wait_changed(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        self._look()

    def _look(self) -> None:
        self._instances.stay()
        before, self.others = self.others, self._instances.find_others()
        self._elders &= self.others
        self._metrics.instances.set(1 + len(self.others))
        for name in self.others - before:
            log.info("another instance of the driver is on this node", extra={"context": {"pod_uid": name}})
        for name in before - self.others:
            log.info("another instance of the driver is gone", extra={"context": {"pod_uid": name}})
        if before or self.others:
            self._on_company()
        if before - self.others:
            self._on_gone()


FLUSH_SECONDS = 2.0
"""The last statuses and Events get this long."""
DRAIN_POLL_SECONDS = 0.25
LINGER_SECONDS = 2.0
"""The kubelet notices within a second that a registration socket is gone; until then it may call us."""


class Drain:
    """The end of an instance, begun once; its services go on until it is done."""

    def __init__(
        self, handover: Leadership, kubelet: KubeletPlugin, store: ClaimStore, reporter: Reporter
    ) -> None:
        self._handover = handover
        self._kubelet = kubelet
        self._store = store
        self._reporter = reporter
        self.begun = False
        self.waiting_for: tuple[str, ...] = ()
        """Pods whose sandboxes are waited for, as last seen."""

    async def run(self, seconds: float) -> None:
        """End our part of the work within about this many seconds, and write the last reports."""
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
        """The other instance takes new work; ours is served to its end. The kubelet closes the connection of
        a driver that is no longer registered, so its calls are answered first."""
        loop = asyncio.get_running_loop()
        await self._kubelet.drain(deadline - loop.time())
        await self._kubelet.deregister()
        reached(Failpoint.HANDOVER_DEREGISTERED)
        await asyncio.sleep(LINGER_SECONDS)
        await self._kubelet.drain(deadline - loop.time())

    async def _drain(self, deadline: float) -> None:
        """Without another instance: refuse new work, and wait for the pods that were promised a NIC."""
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
        return tuple(
            str(record.pod) for record in self._store.get_all() if record.plans and not record.netns_path
        )

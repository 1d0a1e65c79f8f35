"""Leases in the records of their claims, and on the links of their pods: the two change together.

A lease that has ended is recorded with no time at all. So nobody puts its address back: not a hook that finds
it missing, and not a restart of the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from dranet.dataclass import dataclass
from dranet.driver.attachments import Attachments
from dranet.driver.instances.work_locks import Work, WorkLocks
from dranet.driver.lease_client import LeaseClient, check_namespace
from dranet.errors import DranetError
from dranet.model.plan import AttachPlan, CreateLink, DhcpLease, PreparedClaim
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease of a prepared claim, as its record has it."""

    record: PreparedClaim
    position: int
    """Of its device in the record."""
    plan: AttachPlan
    lease: DhcpLease

    @property
    def key(self) -> tuple[str, int]:
        return self.record.claim.uid, self.position

    @property
    def host_ifname(self) -> str:
        """The link on the host: the pod's own before and after, or the one below it."""
        if self.plan.host is not None:
            return self.plan.host.ifname
        parents = (step.parent_ifname for step in self.plan.steps if isinstance(step, CreateLink))
        return next(parents, "")


def iter_leases(records: Iterable[PreparedClaim]) -> Iterator[HeldLease]:
    """Every lease of the records."""
    for record in records:
        for position, device in enumerate(record.devices):
            if device.plan is not None and device.plan.lease is not None:
                yield HeldLease(record, position, device.plan, device.plan.lease)


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """What became of a lease that nobody renewed."""

    record: PreparedClaim
    lease: DhcpLease
    """Both as recorded now."""
    links: Sequence[AttachedLink] | None = None
    """Of the claim, as they are in the pod now; ``None`` where no pod has them, or nobody could look."""
    seconds_left: float = 0.0
    """The kernel gives the address so much time yet: it has not ended."""


class LeaseRecords:
    """Changes leases in the store, with the node's devices held still. Blocking."""

    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        client: LeaseClient,
        work: WorkLocks,
        released: Collection[str],
    ) -> None:
        """``released`` has the UIDs of claims whose leases are being released by this process."""
        self._store = store
        self._attachments = attachments
        self._client = client
        self._work = work
        self._released = released

    def keep(self, own: HeldLease, renewed: DhcpLease) -> bool:
        """Commit the lease into the record as it is now; whether the record still has the old one."""
        with self._attachments.locked():
            record = self._find(own)
            if record is not None:
                self._commit(record, own.position, renewed)
            return record is not None

    def end(self, own: HeldLease, *, is_refused: bool, is_over: bool) -> LeaseEnd | None:
        """Take the address of an ended lease from the pod; ``None`` where the link or the lease has changed
        meanwhile.

        ``is_refused``: its server has taken it back. ``is_over``: so says our clock, and the kernel's counts.
        """
        with self._attachments.locked():
            record = self._find(own)
            if record is None or record.sandbox_id != own.record.sandbox_id:
                return None
            links: Sequence[AttachedLink] | None = None
            if record.netns_path:
                seconds_left, links = self._take_from_pod(own, is_refused)
                if seconds_left:
                    return LeaseEnd(record, own.lease, None, seconds_left)
            if not (is_refused or is_over):  # a tenant may have removed the address, and may be given it anew
                return LeaseEnd(record, own.lease, links)
            ended = replace(own.lease, lease_seconds=0)
            return LeaseEnd(self._commit(record, own.position, ended), ended, links)

    def look(self, own: HeldLease) -> LeaseEnd | None:
        """The claim's links as they are in the pod; ``None`` where it is in none, or in another one by now.

        Raises:
            KernelError: nobody could look.
        """
        with self._attachments.locked():
            record = self._store.get(own.record.claim.uid)
            if record is None or not record.netns_path or record.sandbox_id != own.record.sandbox_id:
                return None
            return LeaseEnd(record, own.lease, self._client.look(record.plans, record.netns_path))

    def is_in_place(self, own: HeldLease) -> bool:
        """The link has not gone into a pod, or out of it, since the server was asked."""
        record = self._store.get(own.record.claim.uid)
        return record is not None and record.sandbox_id == own.record.sandbox_id

    def _take_from_pod(self, own: HeldLease, is_refused: bool) -> tuple[float, Sequence[AttachedLink] | None]:
        record = own.record
        try:
            if record.netns_id:
                check_namespace(record.netns_path, record.netns_id)
            name = own.plan.pod_ifname
            seconds_left = self._client.end(own.lease, record.netns_path, name, is_refused=is_refused)
            return seconds_left, self._client.look(record.plans, record.netns_path)
        except DranetError as error:
            log.warning("%s: the address of an ended lease is not taken away: %s", record.pod, error)
            return 0.0, None

    def _find(self, own: HeldLease) -> PreparedClaim | None:
        """The record as it is now, if it still has this lease."""
        record = self._store.get(own.record.claim.uid)
        if record is None or own.position >= len(record.devices):
            return None
        if record.claim.uid in self._released or self._work.is_held(Work.ENDING_LEASES, record.claim.uid):
            return None
        plan = record.devices[own.position].plan
        return record if plan is not None and plan.lease == own.lease else None

    def _commit(self, record: PreparedClaim, position: int, lease: DhcpLease) -> PreparedClaim:
        device = record.devices[position]
        assert device.plan is not None
        changed = replace(device, plan=replace(device.plan, lease=lease))
        devices = (*record.devices[:position], changed, *record.devices[position + 1 :])
        committed = replace(record, devices=devices)
        self._store.put_all([committed], durable=False)  # the server knows it, too
        return committed

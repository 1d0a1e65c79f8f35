"""DHCP leases of claims: taken at Prepare, renewed while the pod runs, released after the devices are back.

A renewal asks in the pod's namespace, where the address is, or on the host while no pod has the link. An
address whose lease has ended, or that its server has revoked, leaves the pod's link, and is recorded with no
time left, so neither a hook nor a restart puts it back. Lease times are unix time, because that survives a
restart; from then on they are measured on the monotonic clock."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.driver.attachments import Attachments
from dranet.driver.executor import NotedThreadPool
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DranetError, KernelError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.kernel.dhcp.message import FOR_EVER, leased_ip
from dranet.kernel.namespaces.netns import NetworkNamespace, read_netns_id
from dranet.model.plan import AttachPlan, CreateLink, DhcpLease, PreparedClaim
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import LeaseOutcome, Metrics, Outcome

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LinksListener = Callable[[PreparedClaim, Sequence[AttachedLink]], Sequence[AttachedLink]]
"""Takes the links of a claim as they are in its pod now; returns them with what belongs to them (RDMA)."""

THREADS = 16
"""A server that is silent holds a thread for ten seconds, and the kubelet asks for many claims at once."""
RETRY_SECONDS = 60.0
"""The least time between two attempts to renew (RFC 2131, 4.4.5)."""
JITTER = 0.1
"""A renewal begins up to this part of T1 early, so that pods that started together do not ask together."""
_ENDED = (Reason.DHCP_LEASE_EXPIRED, Reason.DHCP_LEASE_REFUSED)
"""Reasons after which there is nothing left to renew."""


class LeaseClient:
    """Conversations and looks; each raises KernelError."""

    def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
        from dranet.kernel.dhcp.client import acquire_lease

        return acquire_lease(ifname, mac, wanted=wanted)

    def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
        from dranet.kernel.dhcp.client import renew_lease

        with NetworkNamespace.open(netns_path) as netns:
            return renew_lease(lease, netns, ifname, rebind=rebind)

    def release(self, lease: DhcpLease, ifname: str) -> None:
        from dranet.kernel.dhcp.client import release_lease

        release_lease(lease, ifname)

    def end(self, lease: DhcpLease, netns_path: str, ifname: str, *, is_refused: bool) -> float:
        """Take the address from the pod's link; how many seconds it has if it may stay."""
        from dranet.kernel.dhcp.client import end_lease

        with NetworkNamespace.open(netns_path) as netns:
            return end_lease(lease, netns, ifname, is_refused=is_refused)

    def look(self, plans: Sequence[AttachPlan], netns_path: str) -> tuple[AttachedLink, ...]:
        """The links of a claim as they are in its pod now."""
        from dranet.kernel.attachment.checks import read_attached

        with NetworkNamespace.open(netns_path) as netns:
            return read_attached(plans, netns)


def _check_namespace(record: PreparedClaim) -> None:
    """Raises KernelError (``NetworkNamespaceGone``) where the path leads to no namespace, or that of a later
    pod, where another link has the name."""
    if not record.netns_id:
        return
    with NetworkNamespace.open(record.netns_path) as netns:
        found = read_netns_id(netns)
    if found != record.netns_id:
        raise KernelError(
            f"{record.netns_path} leads to another pod's network namespace by now",
            operation="renew DHCP lease",
            reason=Reason.NETNS_GONE,
        )


class HeldLease(Struct, frozen=True):
    """A lease of a prepared claim, as its record has it."""

    record: PreparedClaim
    position: int
    """Index of its device in the record."""
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
    for record in records:
        for position, device in enumerate(record.devices):
            if device.plan is not None and device.plan.lease is not None:
                yield HeldLease(record, position, device.plan, device.plan.lease)


class LeaseEnd(Struct, frozen=True):
    """What became of a lease that was not renewed."""

    record: PreparedClaim
    lease: DhcpLease
    """Both as recorded now."""
    links: Sequence[AttachedLink] | None = None
    """The claim's links, as they are in the pod now; ``None`` where no pod has them, or the look failed."""
    seconds_left: float = 0.0
    """The kernel gives the address so much time yet: it has not ended."""


class LeaseRequest(NamedTuple):
    device: str
    """Which device of the claim it is for: a key of the leases that :meth:`Planner.plan` takes."""
    ifname: str
    """The link on the node from which to ask."""
    mac: str
    """Whom the server is to see; that of the link in the pod."""


class Clock:
    """Time and chance, as far as leases need them."""

    def unix(self) -> float:
        """Wall clock; it may be set."""
        return time.time()

    def steady(self) -> float:
        """Monotonic clock; it means nothing after a restart."""
        return time.monotonic()

    def jitter(self) -> float:
        return secrets.SystemRandom().random()

    async def wait(self, news: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await news.wait()
        except TimeoutError:
            return


class _Watch(Struct):
    """When a lease is to be renewed next. Times are those of ``Clock.steady``."""

    lease: DhcpLease
    sandbox_id: str
    began: float
    due: float
    is_lost: bool = False
    """Its end was reported to users."""


class Leases:
    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        announcer: Announcer,
        metrics: Metrics,
        *,
        client: LeaseClient | None = None,
        clock: Clock | None = None,
        on_links: LinksListener = lambda _, links: links,
    ) -> None:
        self._store = store
        self._attachments = attachments
        self._announcer = announcer
        self._metrics = metrics.dhcp
        self._client = client or LeaseClient()
        self._clock = clock or Clock()
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._work = WorkLocks(store.folder)
        """A conversation may raise its link and lower it again, so one at a time on each."""
        self._released: set[str] = set()
        """UIDs of claims that are being unprepared: their leases are gone before their records are."""
        self._news = asyncio.Event()
        self._on_links = on_links
        self._metrics.leases.set_function(lambda: len(self._watches))

    # --- Prepare and Unprepare ---

    async def acquire(self, wanted: Sequence[LeaseRequest]) -> dict[str, DhcpLease]:
        """Take every lease, by ``device``; all or none. Raises KernelError (``DHCPFailed`` and the like) of
        the first that failed."""
        answers = await asyncio.gather(*map(self._acquire_one, wanted), return_exceptions=True)
        pairs = zip(wanted, answers, strict=True)
        leases = {asked.device: answer for asked, answer in pairs if isinstance(answer, DhcpLease)}
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            await self.release_unused(wanted, leases)
            raise errors[0]
        return leases

    async def _acquire_one(self, request: LeaseRequest) -> DhcpLease:
        outcome = Outcome.FAILED
        try:
            name = request.ifname
            lease = await self._on_link(name, self._client.acquire, name, request.mac)
            outcome = Outcome.SUCCESS
        finally:
            self._metrics.requests.labels(outcome).inc()
        reached(Failpoint.PREPARE_LEASE_TAKEN)
        context = {"link": request.ifname, "address": lease.address, "server": lease.server}
        log.info("leased", extra={"context": context})
        return lease

    async def release_unused(self, wanted: Iterable[LeaseRequest], leases: Mapping[str, DhcpLease]) -> None:
        """Release what a claim got that is not prepared after all. Raises nothing."""
        pairs = ((request.ifname, leases.get(request.device)) for request in wanted)
        await asyncio.gather(*(self._release_one(ifname, lease) for ifname, lease in pairs if lease))

    async def release(self, record: PreparedClaim) -> None:
        """Release a claim's leases from the host's links. Raises nothing: they also end by themselves."""
        self._released.add(record.claim.uid)  # at once: a renewal under way has to know
        held = tuple(iter_leases([record]))
        await asyncio.gather(*(self._release_one(own.host_ifname, own.lease) for own in held))
        reached(Failpoint.RELEASE_LEASES_ENDED)

    async def _release_one(self, ifname: str, lease: DhcpLease) -> None:
        context = {"link": ifname, "address": lease.address, "server": lease.server}
        try:
            await self._on_link(ifname, self._client.release, lease, ifname)
        except DranetError as error:
            log.warning("a lease is not released, it ends by itself: %s", error, extra={"context": context})
        else:
            log.info("lease released", extra={"context": context})

    def committed(self) -> None:
        """A record with leases is in the store: they are to be renewed from now on."""
        self._news.set()

    def forgotten(self, claim_uid: str) -> None:
        self._released.discard(claim_uid)
        self._news.set()

    # --- renewal ---

    async def run(self) -> None:
        """Renew what is due, until cancelled; after a restart first what became due meanwhile."""
        while True:
            self._news.clear()
            due = self._find_due()
            if due:
                await asyncio.gather(*(self._renew(held, watch) for held, watch in due))
            else:
                now = self._clock.steady()
                next_due = min((watch.due for watch in self._watches.values()), default=math.inf)
                await self._clock.wait(self._news, next_due - now)

    def _find_due(self) -> list[tuple[HeldLease, _Watch]]:
        records = (record for record in self._store.get_all() if record.claim.uid not in self._released)
        held = {own.key: own for own in iter_leases(records)}
        for key in self._watches.keys() - held.keys():
            del self._watches[key]
            self._announcer.lease_forgotten(key[0])
        for key, own in held.items():
            self._follow(key, own)
        now = self._clock.steady()
        return [(own, self._watches[key]) for key, own in held.items() if self._watches[key].due <= now]

    def _follow(self, key: tuple[str, int], own: HeldLease) -> None:
        watch = self._watches.get(key)
        if watch is None or watch.lease != own.lease:
            self._watches[key] = self._watch(own)
        elif watch.sandbox_id != own.record.sandbox_id:  # a report about an earlier sandbox does not count
            watch.sandbox_id, watch.is_lost = own.record.sandbox_id, False

    def _watch(self, own: HeldLease) -> _Watch:
        """What is known of a lease that we did not see being taken: its unix time."""
        lease, now = own.lease, self._clock.steady()
        age = self._clock.unix() - lease.obtained_at
        if age < 0:  # the clock was set back: its age is unknown, so it is time to ask
            age = lease.renew_seconds
        is_forever = lease.lease_seconds == FOR_EVER
        renewal_age = math.inf if is_forever else lease.renew_seconds * (1 - JITTER * self._clock.jitter())
        return _Watch(lease, own.record.sandbox_id, now - age, now - age + renewal_age)

    async def _renew(self, own: HeldLease, watch: _Watch) -> None:
        age = self._clock.steady() - watch.began
        rebind = age >= own.lease.rebind_seconds
        try:
            renewed = await self._ask(own, rebind)
            is_kept = await self._in_thread(self._keep, own, renewed)
        except DranetError as error:
            if self._is_in_place(own):  # else it is asked again at once, where the link is now
                await self._note_failure(own, watch, error)
            return
        if not is_kept:  # unprepared meanwhile: the server has just heard that we stay
            await self._release_one(own.host_ifname, renewed)
            return
        self._metrics.renewals.labels(LeaseOutcome.REBOUND if rebind else LeaseOutcome.RENEWED).inc()
        self._watches[own.key] = self._watch(replace(own, lease=renewed))
        if watch.is_lost:
            await self._report_back(own)

    async def _ask(self, own: HeldLease, rebind: bool) -> DhcpLease:
        if own.record.netns_path:
            return await self._in_thread(self._ask_in_pod, own, rebind)
        return await self._ask_on_host(own)

    def _ask_in_pod(self, own: HeldLease, rebind: bool) -> DhcpLease:
        record = own.record
        _check_namespace(record)
        return self._client.renew(own.lease, record.netns_path, own.plan.pod_ifname, rebind=rebind)

    async def _ask_on_host(self, own: HeldLease) -> DhcpLease:
        """No pod has the link, so no one would answer for the address: ask as if for a new lease."""
        name, address = own.host_ifname, leased_ip(own.lease)
        lease = await self._on_link(name, self._client.acquire, name, own.lease.client_mac, address)
        if leased_ip(lease) != address:
            await self._release_one(name, lease)
            raise KernelError(
                f"the DHCP lease of {own.lease.address} has ended: the server gives {lease.address} instead",
                operation="renew DHCP lease",
                link=name,
                reason=Reason.DHCP_LEASE_REFUSED,
            )
        return replace(lease, address=own.lease.address)

    async def _note_failure(self, own: HeldLease, watch: _Watch, error: DranetError) -> None:
        age = self._clock.steady() - watch.began
        self._metrics.renewals.labels(LeaseOutcome.FAILED).inc()
        context = {"claim": own.record.claim, "pod": own.record.pod, "address": own.lease.address}
        level = logging.DEBUG if watch.is_lost else logging.WARNING  # an end is logged once
        log.log(level, "a lease is not renewed: %s", error, extra={"context": context})
        has_ended = error.reason in _ENDED or age >= own.lease.lease_seconds
        watch.due = watch.began + (age + RETRY_SECONDS if has_ended else next_attempt_age(own.lease, age))
        if has_ended and not watch.is_lost:
            await self._end(own, watch, error)

    async def _end(self, own: HeldLease, watch: _Watch, error: DranetError) -> None:
        """The address leaves the pod, and users hear of it; unless the kernel gives it more time."""
        now = self._clock.steady()
        is_refused = error.reason is Reason.DHCP_LEASE_REFUSED
        is_over = now - watch.began >= own.lease.lease_seconds
        try:
            ended = await self._in_thread(self._end_on_record, own, is_refused=is_refused, is_over=is_over)
        except DranetError as problem:
            context = {"pod": own.record.pod}
            log.warning("an ended lease is looked at again: %s", problem, extra={"context": context})
            return
        if ended is None:
            return
        if ended.seconds_left:  # the wall clock was set while the driver was down
            watch.due = now + min(ended.seconds_left, RETRY_SECONDS)
            return
        watch.lease, watch.is_lost = ended.lease, True
        self._metrics.renewals.labels(LeaseOutcome.EXPIRED).inc()
        links = await self._note_links(ended)
        self._announcer.lease_lost(ended.record, own.position, _ended(own, error))
        if links is not None:
            self._announcer.attached([ended.record], links)

    async def _report_back(self, own: HeldLease) -> None:
        try:
            found = await self._in_thread(self._look, own)
        except DranetError as error:
            log.warning("the links of %s are not looked at: %s", own.record.pod, error)
            found = None
        if found is not None and (links := await self._note_links(found)) is not None:
            self._announcer.attached([found.record], links)
        self._announcer.lease_back(own.record, own.position)

    async def _note_links(self, found: LeaseEnd) -> Sequence[AttachedLink] | None:
        if found.links is None:
            return None
        return await self._in_thread(self._on_links, found.record, found.links)

    # --- the records, in a worker thread, with the node's devices held still ---

    def _keep(self, own: HeldLease, renewed: DhcpLease) -> bool:
        """Commit the lease into the record as it is now; whether the record still has the old one."""
        with self._attachments.locked():
            record = self._find(own)
            if record is not None:
                self._commit(record, own.position, renewed)
            return record is not None

    def _end_on_record(self, own: HeldLease, *, is_refused: bool, is_over: bool) -> LeaseEnd | None:
        """Take the address of an ended lease from the pod; ``None`` where the link or the lease has changed.
        ``is_refused``: its server has withdrawn it. ``is_over``: by our clock; the kernel's decides."""
        with self._attachments.locked():
            record = self._find(own)
            if record is None or record.sandbox_id != own.record.sandbox_id:
                return None
            links: Sequence[AttachedLink] | None = None
            if record.netns_path:
                seconds_left, links = self._take_from_pod(own, is_refused)
                if seconds_left:
                    return LeaseEnd(record, own.lease, None, seconds_left)
            if not (is_refused or is_over):  # a tenant may have removed the address, and may get it again
                return LeaseEnd(record, own.lease, links)
            ended = replace(own.lease, lease_seconds=0)
            return LeaseEnd(self._commit(record, own.position, ended), ended, links)

    def _look(self, own: HeldLease) -> LeaseEnd | None:
        """The claim's links as they are in the pod; ``None`` where it is in none, or in another by now."""
        with self._attachments.locked():
            record = self._store.get(own.record.claim.uid)
            if record is None or not record.netns_path or record.sandbox_id != own.record.sandbox_id:
                return None
            return LeaseEnd(record, own.lease, self._client.look(record.plans, record.netns_path))

    def _is_in_place(self, own: HeldLease) -> bool:
        """The link has not gone into a pod, or out of it, since the server was asked."""
        record = self._store.get(own.record.claim.uid)
        return record is not None and record.sandbox_id == own.record.sandbox_id

    def _take_from_pod(self, own: HeldLease, is_refused: bool) -> tuple[float, Sequence[AttachedLink] | None]:
        record = own.record
        try:
            _check_namespace(record)
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
        self._store.put_all([committed], durable=False)  # the server also knows it
        return committed

    # --- threads ---

    async def _on_link(self, ifname: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._work.hold(Work.LINK, [ifname]):
            return await self._in_thread(call, *args, **kwargs)

    async def _in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @functools.cached_property
    def _threads(self) -> NotedThreadPool:
        """A pool of its own: a silent server must not keep the driver from scanning. Made for the first
        lease."""
        return NotedThreadPool(THREADS, thread_name_prefix="dhcp")


def next_attempt_age(lease: DhcpLease, age: float) -> float:
    """At what age of the lease to ask again after a failure (RFC 2131, 4.4.5): half of the time left until
    T2, then until the end, at least a minute; after the end every minute."""
    for boundary in (lease.rebind_seconds, lease.lease_seconds):
        if age < boundary:
            left = boundary - age
            return age + min(left, max(left / 2, RETRY_SECONDS))
    return age + RETRY_SECONDS


def _ended(own: HeldLease, error: DranetError) -> DranetError:
    if error.reason in _ENDED:
        return error
    return KernelError(
        f"the DHCP lease of {own.lease.address} from {own.lease.server} has ended: {error.message}",
        operation="renew DHCP lease",
        link=own.plan.pod_ifname,
        reason=Reason.DHCP_LEASE_EXPIRED,
    )

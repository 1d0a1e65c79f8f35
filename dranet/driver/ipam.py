"""Addresses from IPAM plugins: asked for at Prepare, checked in reconcile, released after the claim.

The journal has a request before its plugin is asked, and until the plugin has released the address. A
claim's record contains those that are in use. What the journal has and no record uses is released:
before the claim is prepared again, after it was unprepared, and in each reconcile. So a kill at any point
loses no address, and none is released while a pod may have it.

A plugin that does not release an address keeps no pod from ending: the entry stays, and is tried again.
Plugins are run, and their modules loaded, only for claims that have requests.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from dranet.decoding import convert
from dranet.driver.executor import NotedThreadPool
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.reports.announcer import Announcer
from dranet.driver.rounds import Rounds
from dranet.errors import ClaimError, DranetError, IpamError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import ClaimRef
from dranet.model.ipam import AddressSource, CniNetwork, IpamAnswer, IpamRequest, IpamSource
from dranet.model.plan import DhcpLease, PreparedClaim
from dranet.settings import Settings
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal, JournalEntry
from dranet.telemetry import IpamCommand, Metrics, Outcome

if TYPE_CHECKING:
    from dranet.ipam.cni import CniPlugins
    from dranet.view.ipam_file import IpamFile

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 16
"""A plugin that hangs holds one until it is killed."""
ORPHAN_SECONDS = 5.0
"""How long a Prepare waits for a plugin that an earlier driver has left running."""
LOOK_SECONDS = 20.0
"""How long a reconcile goes on to release, and to check; with plugins that hang, the next does the rest."""
CHECKS_AT_ONCE = 4
"""The other threads are for claims that are prepared and unprepared meanwhile."""
KIND: Literal["ipam"] = "ipam"


class Obtained(Struct, frozen=True):
    """What was taken for a claim outside of the node, by the ``device`` of its request."""

    leases: Mapping[str, DhcpLease] = field(default_factory=dict)
    addresses: Mapping[str, IpamAnswer] = field(default_factory=dict)


def no_ipam_file(name: str) -> AddressSource:
    """What an entry of the file is, where there is no file."""
    raise ClaimError(
        f"interface.ipam: {name}: this driver has no ipam_file",
        hint="set interface.addresses, or ask the administrator for an ipam_file (docs/networking/ipam.md)",
    )


def open_ipam_file(settings: Settings) -> IpamFile | None:
    """Raises SettingsError."""
    if settings.ipam_file is None:
        return None
    from dranet.view.ipam_file import IpamFile

    return IpamFile(settings.ipam_file, settings.driver_name)


class IpamState(Struct, frozen=True):
    """For people."""

    sources: tuple[str, ...] = ()
    """Names of the file's entries."""
    problem: str = ""
    """Why the file, as it is now, is not in force."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """By name of an entry: why its plugin cannot be run."""
    unreleased: int = 0
    """Claims that are over, and whose addresses are not released."""
    unreleased_seconds: float = 0.0
    failed_checks: int = 0


class IpamClient:
    """Runs plugins; each call raises IpamError. ``inherited`` is a descriptor for them to keep open."""

    def __init__(self, bin_dirs: Sequence[Path] = ()) -> None:
        self._bin_dirs = bin_dirs

    @functools.cached_property
    def _cni(self) -> CniPlugins:
        from dranet.ipam.cni import CniPlugins

        return CniPlugins(self._bin_dirs)

    def add(self, request: IpamRequest, inherited: int) -> IpamAnswer:
        return self._cni.add(request, inherited)

    def check(self, request: IpamRequest, answer: IpamAnswer, inherited: int) -> bool:
        """Whether the plugin knows; the addresses are still ours then."""
        from dranet.ipam.cni import CheckUnsupported

        try:
            self._cni.check(request, answer, inherited)
        except CheckUnsupported as error:
            log.debug("%s", error)
            return False
        return True

    def delete(self, request: IpamRequest, inherited: int) -> None:
        self._cni.delete(request, inherited)

    def find(self, source: IpamSource) -> Path:
        return self._cni.find(source)


class Ipam:
    """The claim's callers hold it (``Work.CLAIM``)."""

    def __init__(
        self,
        store: ClaimStore,
        boot_id: str,
        announcer: Announcer,
        metrics: Metrics,
        client: IpamClient | None = None,
        file: IpamFile | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._journal = Journal(store.folder)
        self._boot_id = boot_id
        self._announcer = announcer
        self._metrics = metrics.ipam
        self._client = client or IpamClient()
        self._file = file
        self._now = now
        self._unreleased: dict[str, float] = {}
        """By claim UID: since when addresses are not released."""
        self._failed_checks: frozenset[str] = frozenset()
        """UIDs of claims."""
        self._releases, self._checks = Rounds(LOOK_SECONDS), Rounds(LOOK_SECONDS)
        self._metrics.unreleased.set_function(lambda: len(self._unreleased))
        self._metrics.unreleased_seconds.set_function(self._oldest_seconds)
        self._metrics.failed_checks.set_function(lambda: len(self._failed_checks))

    def _oldest_seconds(self) -> float:
        return self._now() - min(self._unreleased.values()) if self._unreleased else 0.0

    def find(self, name: str) -> AddressSource:
        """The source of that name, in the file as it is now; blocking. Raises ClaimError."""
        return no_ipam_file(name) if self._file is None else self._file.find(name)

    def read_state(self) -> IpamState | None:
        """``None`` where nothing is to be shown: no file, and no address that a claim has left."""
        if self._file is None and not self._unreleased:
            return None
        sources = self._file.sources if self._file else {}
        return IpamState(
            tuple(sources),
            self._file.problem if self._file else "",
            {name: why for name, source in sources.items() if (why := self._find_fault(source))},
            len(self._unreleased),
            self._oldest_seconds(),
            len(self._failed_checks),
        )

    def _find_fault(self, source: AddressSource) -> str:
        if not isinstance(source, CniNetwork):
            return ""
        try:
            self._client.find(source)
        except IpamError as error:
            return error.message
        return ""

    # --- Prepare and Unprepare ---

    def has_entries(self, claim_uid: str) -> bool:
        """Whether anything may have been taken for the claim."""
        return self._journal.has(claim_uid)

    async def acquire(self, claim: ClaimRef, wanted: Sequence[IpamRequest]) -> dict[str, IpamAnswer]:
        """Get every address, by ``device``; all or none. Raises IpamError of the first that failed, and
        StoreError. What an earlier Prepare of the claim got and did not record is released first."""
        if not wanted:
            await self.release_unused(claim)
            return {}
        await self._release(claim.uid)
        await asyncio.to_thread(self._journal.add, claim, [_entry(request) for request in wanted])
        reached(Failpoint.PREPARE_ADDRESS_NOTED)
        calls = (self._add(claim.uid, request) for request in wanted)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            await self.release_unused(claim)
            raise errors[0]
        return {
            request.device: answer
            for request, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, IpamAnswer)
        }

    async def _add(self, claim_uid: str, request: IpamRequest) -> IpamAnswer:
        answer = await self._call(IpamCommand.ADD, claim_uid, self._client.add, request)
        reached(Failpoint.PREPARE_ADDRESS_TAKEN)
        context = {"claim": claim_uid, "ipam": request.name, "addresses": ",".join(answer.addresses)}
        log.info("addresses taken", extra={"context": context})
        if answer.ignored:
            log.info("not used of the answer: %s", ", ".join(answer.ignored), extra={"context": context})
        return answer

    async def release_unused(self, claim: ClaimRef) -> None:
        """Release what the claim's record does not use. Raises nothing: it is tried again later."""
        if not self._journal.has(claim.uid):
            self._unreleased.pop(claim.uid, None)
            return
        try:
            await self._release(claim.uid)
        except DranetError as error:
            context = {"claim": claim, "reason": error.reason}
            log.warning("addresses are not released, this is retried: %s", error, extra={"context": context})
            if claim.uid not in self._unreleased:
                self._unreleased[claim.uid] = self._now()
                self._announcer.addresses_not_released(claim, error)
        else:
            self._unreleased.pop(claim.uid, None)

    async def _release(self, claim_uid: str) -> None:
        """All that no record uses; the first error, after the others were tried."""
        unused = await asyncio.to_thread(self._find_unused, claim_uid)
        if not unused:
            return
        wait = functools.partial(self._journal.wait_for_programs, claim_uid, ORPHAN_SECONDS)
        await self._in_thread(wait)
        calls = (self._delete(claim_uid, entry) for entry in unused)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        done = [entry for entry, error in zip(unused, answers, strict=True) if error is None]
        await asyncio.to_thread(self._journal.remove, claim_uid, done)
        for error in answers:
            if error is not None:
                raise error

    def _find_unused(self, claim_uid: str) -> list[JournalEntry]:
        """Entries of requests whose addresses no record of the claim has."""
        noted = self._journal.read(claim_uid)
        used = self._find_used(claim_uid)
        entries = noted.entries if noted is not None else ()
        return [entry for entry in entries if entry.kind == KIND and _key(entry) not in used]

    def _find_used(self, claim_uid: str) -> Mapping[Key, IpamAnswer]:
        """The claim's answers, by the keys of their requests; those of another boot are not in use."""
        record = self._store.get(claim_uid)
        return _answers(record) if record is not None and record.boot_id == self._boot_id else {}

    async def _delete(self, claim_uid: str, entry: JournalEntry) -> None:
        request = _decode(entry)
        await self._call(IpamCommand.DEL, claim_uid, self._client.delete, request)
        reached(Failpoint.RELEASE_ADDRESS_RETURNED)
        context = {"claim": claim_uid, "ipam": request.name, "container_id": request.container_id}
        log.info("addresses released", extra={"context": context})

    # --- reconcile ---

    async def look(self, work: WorkLocks) -> None:
        """Release what no claim uses, and check what claims use, both for a limited time. Raises DranetError
        where the disk or another instance keeps it from looking; the rest is looked at first."""
        failure: DranetError | None = None
        for claim_uid in self._releases.take(await asyncio.to_thread(self._journal.list_claims)):
            try:
                if await asyncio.to_thread(self._is_left, claim_uid):
                    async with work.hold(Work.CLAIM, [claim_uid]):
                        await self._release_left_over(claim_uid)
            except DranetError as error:
                failure = failure or error
        await self._check_all(work)
        if failure is not None:
            raise failure

    def _is_left(self, claim_uid: str) -> bool:
        """A claim whose record is damaged may be in its pod, with its addresses."""
        is_damaged = self._store.get(claim_uid) is None and self._store.has_set_aside(claim_uid)
        return not is_damaged and bool(self._find_unused(claim_uid))

    async def _release_left_over(self, claim_uid: str) -> None:
        self._store.check_version()
        noted = await asyncio.to_thread(self._journal.read, claim_uid)
        if noted is not None and await asyncio.to_thread(self._is_left, claim_uid):
            await self.release_unused(noted.claim)

    async def _check_all(self, work: WorkLocks) -> None:
        records = {record.claim.uid: record for record in self._store.get_all() if _answers(record)}
        is_lost = {uid: uid in self._failed_checks for uid in records}
        turns = self._checks.take(records)

        async def check_some() -> None:
            for uid in turns:
                is_lost[uid] = await self._has_lost_address(records[uid], work)

        await asyncio.gather(*(check_some() for _ in range(CHECKS_AT_ONCE)))
        self._failed_checks = frozenset(uid for uid, lost in is_lost.items() if lost)

    async def _has_lost_address(self, record: PreparedClaim, work: WorkLocks) -> bool:
        """Whether, by a plugin, the claim's addresses are no longer its own. An Unprepare waits meanwhile: it
        would take our plugin for one that an earlier driver has left running."""
        uid = record.claim.uid
        try:
            async with work.hold(Work.CLAIM, [uid]):
                checks = await asyncio.to_thread(self._find_checks, uid)
                failure = await self._find_failure(uid, checks)
        except DranetError as error:
            log.debug("addresses of %s are not checked: %s", record.claim, error)
            return False
        if failure is not None and uid not in self._failed_checks:
            self._announcer.address_check_failed(record, failure)
        return failure is not None

    async def _find_failure(
        self, claim_uid: str, checks: Sequence[tuple[IpamRequest, IpamAnswer]]
    ) -> IpamError | None:
        for request, answer in checks:
            try:
                await self._call(IpamCommand.CHECK, claim_uid, self._client.check, request, answer)
            except IpamError as error:
                return error
        return None

    def _find_checks(self, claim_uid: str) -> list[tuple[IpamRequest, IpamAnswer]]:
        noted, answers = self._journal.read(claim_uid), self._find_used(claim_uid)
        entries = noted.entries if noted is not None else ()
        requests = [_decode(entry) for entry in entries if entry.kind == KIND]
        return [(request, answers[request.key]) for request in requests if request.key in answers]

    # --- plugins, in threads ---

    async def _call(
        self,
        command: IpamCommand,
        claim_uid: str,
        call: Callable[..., T],
        *arguments: Any,
    ) -> T:
        outcome = Outcome.FAILED
        start = time.perf_counter()
        try:
            work = functools.partial(self._run, claim_uid, call, *arguments)
            answer = await self._in_thread(work)
            outcome = Outcome.SUCCESS
        finally:
            self._metrics.seconds.labels(command, outcome).observe(time.perf_counter() - start)
        return answer

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _run(self, claim_uid: str, call: Callable[..., T], *arguments: Any) -> T:
        with self._journal.running(claim_uid) as inherited:
            return call(*arguments, inherited)

    @functools.cached_property
    def _threads(self) -> NotedThreadPool:
        """A pool of its own: a plugin that hangs must not keep the driver from scanning."""
        return NotedThreadPool(THREADS, thread_name_prefix="ipam")


Key = tuple[object, object]
"""``IpamRequest.key``"""


def _answers(record: PreparedClaim) -> dict[Key, IpamAnswer]:
    plans = [(plan.pod_ifname, plan.ipam) for plan in record.plans]
    return {(answer.container_id, ifname): answer for ifname, answer in plans if answer is not None}


def _key(entry: JournalEntry) -> Key:
    return entry.request.get("container_id"), entry.request.get("ifname")


def _entry(request: IpamRequest) -> JournalEntry:
    return JournalEntry(KIND, request.device, msgspec.to_builtins(request))


def _decode(entry: JournalEntry) -> IpamRequest:
    """Raises IpamError for an entry that is no request: it was written by another version, or by hand."""
    try:
        return convert(dict(entry.request), IpamRequest)
    except (msgspec.ValidationError, ValueError) as error:
        raise IpamError(
            f"the journal's entry of device {entry.device} cannot be read: {error}",
            hint="release its address by hand, then remove the file",
            retryable=False,
        ) from error

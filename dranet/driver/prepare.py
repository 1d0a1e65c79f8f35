"""Prepare and Unprepare, and a claim's reassignment to its next pod.

Prepare: fetch -> decode -> profiles -> lease, IPAM -> read link state -> plan -> store -> CDI -> answer. Slow
work belongs here, so that the runtime's hook only replays a plan. Providers, DHCP servers and IPAM plugins
are asked before the node's devices are locked, and what is not used is released. The record is committed
before the kubelet hears "prepared". A claim's error goes into that claim's answer and never fails the batch.

Unprepare goes in reverse: devices -> leases -> files -> record -> addresses of IPAM plugins, profiles. Each
step may be repeated: the kubelet calls again until it hears of no error. If two instances are asked to
prepare one claim, the second waits for the first, finds its record, and gives the same answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.ipam import Ipam, Obtained, no_ipam_file
from dranet.driver.leases import LeaseRequest, Leases, iter_leases
from dranet.driver.reports.announcer import Announcer
from dranet.errors import (
    AddressTakenError,
    ClaimError,
    DeviceHeldError,
    DranetError,
    ProtocolError,
    ProviderError,
    Reason,
)
from dranet.failpoints import Failpoint, reached
from dranet.inventory.slices import may_be_gpu
from dranet.kubelet.plugin import PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import Claim, ClaimRef
from dranet.model.device import Device, DeviceKind
from dranet.model.ipam import AddressSource, IpamAnswer, PoolNode
from dranet.model.plan import DhcpLease, PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics, PreparePhase

if TYPE_CHECKING:
    from dranet.driver.planner import DecodedClaim, Planner
    from dranet.driver.profiles import Profiles
    from dranet.model.provider import ProvidedConfig

log = logging.getLogger(__name__)

RETURN_WAIT_SECONDS = 20.0
"""How long an Unprepare, which has 30 s, waits for NICs on their way back from a dead namespace."""
ADDRESS_ATTEMPTS = 8
"""How often a Prepare chooses addresses of a pool before the kubelet has to ask again; with each, another
claim was quicker."""
T = TypeVar("T")


AddressCheck: TypeAlias = "Callable[[DecodedClaim, Obtained], Awaitable[None]]"


class ClaimState(Struct, frozen=True):
    """Where the state of a prepared claim is, and the locks under which it changes."""

    store: ClaimStore
    attachments: Attachments
    leases: Leases
    files: ContainerFiles
    work: WorkLocks
    """By claim; and by device: two claims for one NIC would get one lease, and the loser would release it."""
    ipam: Ipam
    profiles: Profiles | None = None
    """``None``: no provider can be asked for one."""


class PrepareSources(Struct, frozen=True):
    """Where Prepare reads what a plan depends on."""

    fetch: Callable[[ClaimRef], Awaitable[Claim]]
    """The claim as the API server has it now; raises ClaimError or ClusterError."""
    get_offered: Callable[[str], Device]
    is_runtime_ready: Callable[[], bool]
    """Whether the runtime calls our hooks."""
    sysfs_root: Path = Path("/sys")
    procfs_root: Path = Path("/proc")
    find_vendor_device: Callable[[Device], str] | None = None
    """The vendor's CDI device of a GPU, or empty; ``None`` where GPUs are given by their device nodes."""
    find_ipam: Callable[[str], AddressSource] = no_ipam_file
    """The source of addresses of that name; raises ClaimError."""
    check_addresses: AddressCheck | None = None
    """Ask whether addresses are in use elsewhere; raises DeviceError to refuse the claim."""
    find_node: Callable[[], PoolNode] = PoolNode
    """This node, as address pools number it."""
    refresh_gpu_owners: Callable[[], Awaitable[None]] | None = None
    """Look again which driver serves GPUs; never fails."""
    find_provided: Callable[[Device], ProvidedConfig | None] = lambda _: None
    """What a provider wants for a device; raises ProviderError where that is not known yet."""


class PrepareListeners(Struct, frozen=True):
    """Called by the walks of the kubelet's calls; must be quick."""

    gpus_returned: Callable[[], None] | None = None
    """A claim no longer has GPUs that it had."""
    device_held: Callable[[str], None] | None = None
    """A device was allocated that another claim, with this UID, still holds here."""


class Preparer:
    """Answers the kubelet. Implements ``kubelet.plugin.ClaimHandler``."""

    def __init__(
        self,
        driver_name: str,
        boot_id: str,
        sources: PrepareSources,
        state: ClaimState,
        announcer: Announcer,
        metrics: Metrics,
        listeners: PrepareListeners | None = None,
    ) -> None:
        self._driver_name = driver_name
        self._boot_id = boot_id
        self._sources = sources
        self._store = state.store
        self._attachments = state.attachments
        self._leases = state.leases
        self._ipam = state.ipam
        self._files = state.files
        self._work = state.work
        self._profiles = state.profiles
        self._announcer = announcer
        self._metrics = metrics
        self._shown = metrics.prepare
        self._listeners = listeners or PrepareListeners()

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """One outcome for each claim, by UID."""
        with self._metrics.time_dra("PrepareResourceClaims"):
            outcomes = await asyncio.gather(*(self._prepare_one(ref) for ref in refs))
        reached(Failpoint.PREPARE_BEFORE_ANSWER)
        return {ref.uid: outcome for ref, outcome in zip(refs, outcomes, strict=True)}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        """One error text for each claim, by UID; empty is success. Unknown claims succeed."""
        with self._metrics.time_dra("UnprepareResourceClaims"):
            errors = [await self.forget(ref) for ref in refs]
        reached(Failpoint.RELEASE_BEFORE_ANSWER)
        return {ref.uid: error for ref, error in zip(refs, errors, strict=True)}

    async def _prepare_one(self, ref: ClaimRef) -> PrepareOutcome:
        with self._shown.claim(self._shown.prepare_seconds) as call:
            outcome = await self._try_to_prepare(ref)
            if not outcome.error:
                call.succeeded()
        return outcome

    async def _try_to_prepare(self, ref: ClaimRef) -> PrepareOutcome:
        claim: Claim | None = None
        try:
            self._store.check_version()
            async with self._hold(Work.CLAIM, [ref.uid]):
                record = self._store.get(ref.uid)
                if record is None or record.boot_id != self._boot_id:
                    with self._shown.phase(PreparePhase.FETCH):
                        claim = await self._sources.fetch(ref)
                    reached(Failpoint.PREPARE_CLAIM_FETCHED)
                    async with self._releasing_profiles(ref.uid):
                        record = await self._prepare_anew(claim)
                    self._announcer.prepared(record)
                    names = ",".join(device.device.name for device in record.devices)
                    about = {"claim": ref, "pod": record.pod, "devices": names} | _describe_gpus(record)
                    log.info("prepared", extra={"context": about})
                with self._shown.phase(PreparePhase.FILES):
                    await asyncio.to_thread(self._make_ready, record)
        except DranetError as error:
            context = {"claim": ref, "reason": error.reason}
            log.warning("prepare failed: %s", error, extra={"context": context})
            self._announcer.prepare_failed(ref, claim, error)
            if isinstance(error, DeviceHeldError) and self._listeners.device_held is not None:
                self._listeners.device_held(error.holder)
            return PrepareOutcome(devices=(), error=str(error))
        except Exception as error:  # the other claims of the call would go on behind the kubelet's back
            log.exception("bug in prepare", extra={"context": {"claim": ref}})
            return PrepareOutcome(error=_describe_bug(error))
        return PrepareOutcome(devices=tuple(_answer(device) for device in record.devices))

    def _make_ready(self, record: PreparedClaim) -> None:
        """In one thread: each change of threads waits for its turn, up to some milliseconds."""
        if any(device.is_set_down_early for device in record.devices):
            try:
                self._attachments.set_links_down(record.claim.uid)
            except DranetError as error:  # the attach only takes longer
                log.warning("links stay up: %s", error, extra={"context": {"claim": record.claim}})
        self._files.write(record)

    @contextlib.asynccontextmanager
    async def _hold(self, work: Work, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these names, and measure the wait."""
        async with contextlib.AsyncExitStack() as stack:
            with self._shown.phase(PreparePhase.WAIT):
                await stack.enter_async_context(self._work.hold(work, names))
            yield

    async def _prepare_anew(self, claim: Claim) -> PreparedClaim:
        async with self._hold(Work.DEVICE, self._devices_of(claim)):
            refresh = self._sources.refresh_gpu_owners
            if refresh is not None and any(map(may_be_gpu, self._devices_of(claim))):
                await refresh()
            for _ in range(ADDRESS_ATTEMPTS - 1):
                with contextlib.suppress(AddressTakenError):
                    return await self._prepare_held(claim)
            return await self._prepare_held(claim)

    async def _prepare_held(self, claim: Claim) -> PreparedClaim:
        """The caller holds the devices. Raises AddressTakenError where a claim for other devices was
        quicker."""
        decoded = await self._decode_with_profiles(claim)
        if decoded.dhcp or decoded.ipam:
            self._check_runtime()
        async with self._obtained(decoded, decoded.dhcp) as obtained:
            return await _run_cancellable(partial(self._plan_and_commit, claim, decoded, obtained))

    @contextlib.asynccontextmanager
    async def _obtained(self, decoded: DecodedClaim, dhcp: Sequence[LeaseRequest]) -> AsyncIterator[Obtained]:
        """Take what the claim needs from outside of the node; release it if the block fails."""
        addresses: Mapping[str, IpamAnswer] = {}
        leases: Mapping[str, DhcpLease] = {}
        try:
            if decoded.ipam or self._ipam.has_entries(decoded.claim.uid):
                with self._shown.phase(PreparePhase.IPAM):
                    addresses = await self._ipam.acquire(decoded.claim, decoded.ipam)
            if dhcp:
                with self._shown.phase(PreparePhase.LEASE):
                    leases = await self._leases.acquire(dhcp)
            obtained = Obtained(leases, addresses)
            if self._sources.check_addresses is not None:
                with self._shown.phase(PreparePhase.PROBE):
                    await self._sources.check_addresses(decoded, obtained)
            yield obtained
        except Exception:
            await self._leases.release_unused(dhcp, leases)
            await self._ipam.release_unused(decoded.claim)
            raise
        if leases:
            self._leases.committed()
        await self._ipam.release_unused(decoded.claim)  # what an earlier record of the claim used

    def _devices_of(self, claim: Claim) -> Iterator[str]:
        return (result.device for result in claim.results if result.driver == self._driver_name)

    async def _decode_with_profiles(self, claim: Claim) -> DecodedClaim:
        with self._shown.phase(PreparePhase.DECODE):
            decoded = await asyncio.to_thread(self._decode, claim)
        if self._profiles is None or not decoded.profiles:
            return decoded
        self._check_runtime()
        with self._shown.phase(PreparePhase.PROFILE):
            profiles = await self._profiles.get(claim.ref, decoded.profiles)
        with self._shown.phase(PreparePhase.DECODE):
            return await asyncio.to_thread(self._decode, claim, profiles)

    def _decode(self, claim: Claim, profiles: Mapping[str, ProvidedConfig] | None = None) -> DecodedClaim:
        return self._planner.decode(claim, profiles or {})

    @contextlib.asynccontextmanager
    async def _releasing_profiles(self, claim_uid: str) -> AsyncIterator[None]:
        """Release the profiles of a claim that is not prepared after all. A provider that has failed is not
        asked again, for the kubelet waits."""
        try:
            yield
        except Exception as error:
            if self._profiles is not None and not isinstance(error, ProviderError):
                await self._profiles.release_unused(claim_uid)
            raise

    # --- Unprepare ---

    async def forget(self, ref: ClaimRef) -> str:
        """Release a claim's devices and forget it. Returns the error text; empty is success."""
        with self._shown.claim(self._shown.unprepare_seconds) as call:
            error = await self._try_to_unprepare(ref)
            if not error:
                call.succeeded()
        return error

    async def _try_to_unprepare(self, ref: ClaimRef) -> str:
        try:
            self._store.check_version()
            async with self._work.hold(Work.CLAIM, [ref.uid]):
                record = self._store.get(ref.uid)
                report = await self._release(ref.uid)
                await self._ipam.release_unused(ref)
                if self._profiles is not None:
                    await self._profiles.release_unused(ref.uid)
        except DranetError as error:
            context = {"claim": ref, "reason": error.reason}
            log.warning("unprepare failed: %s", error, extra={"context": context})
            self._announcer.unprepare_failed(ref, error)
            return str(error)
        except Exception as error:
            log.exception("bug in unprepare", extra={"context": {"claim": ref}})
            return _describe_bug(error)
        self._leases.forgotten(ref.uid)
        if report is not None:
            self._announcer.released(report)
        if record is not None and _describe_gpus(record) and self._listeners.gpus_returned is not None:
            self._listeners.gpus_returned()
        log.info("unprepared", extra={"context": {"claim": ref}})
        return ""

    async def _release(self, claim_uid: str) -> ReleaseReport | None:
        """Leases are released from the host's links, once these are back, before another claim gets them."""
        record = self._store.get(claim_uid)
        release = partial(self._attachments.release_claim, claim_uid, return_seconds=RETURN_WAIT_SECONDS)
        report = await asyncio.to_thread(release)
        if record is None or not any(iter_leases([record])):
            return await _run_cancellable(partial(self._release_and_forget, claim_uid)) or report
        if report is not None:
            self._announcer.released(report)
        async with self._work.hold(Work.ENDING_LEASES, [claim_uid]):
            await self._leases.release(record)
            return await _run_cancellable(partial(self._release_and_forget, claim_uid))

    def _release_and_forget(self, claim_uid: str, check_goes_on: Callable[[], None]) -> ReleaseReport | None:
        with self._attachments.locked():
            check_goes_on()
            report = self._attachments.release_claim(claim_uid)
            self._files.remove_all(claim_uid)
            self._store.delete(claim_uid)
            reached(Failpoint.RELEASE_RECORD_DELETED)
        self._files.devices_moved()
        return report

    # --- reassignment, and what reconcile asks for ---

    async def reassign(self, ref: ClaimRef) -> None:
        """Prepare a claim for its next pod, when the one that it was prepared for is done with it. Nothing
        happens while that one has the devices, or the claim. Raises nothing: the kubelet tries the next pod's
        container again, and that asks for this again."""
        claim: Claim | None = None
        try:
            self._store.check_version()
            async with self._work.hold(Work.CLAIM, [ref.uid]):
                if not self._is_left(self._store.get(ref.uid)):
                    return
                claim = await self._sources.fetch(ref)
                record = await self._prepare_for_next(claim)
                if record is None:
                    return
                self._announcer.prepared(record)
                log.info("reassigned", extra={"context": {"claim": ref, "pod": record.pod}})
                await asyncio.to_thread(self._make_ready, record)
        except DranetError as error:
            context = {"claim": ref, "reason": error.reason}
            log.warning("not reassigned to the next pod: %s", error, extra={"context": context})
            self._announcer.prepare_failed(ref, claim, error)
        except Exception:
            log.exception("bug in handing on", extra={"context": {"claim": ref}})

    async def finish(self, record: PreparedClaim) -> bool:
        """Write the missing files of a prepared claim again; the kubelet has its answer and would not ask for
        them. Returns whether any were missing. Raises DranetError where a folder cannot be written, or
        another instance works on the claim for too long."""
        async with self._work.hold(Work.CLAIM, [record.claim.uid]):
            current = self._store.get(record.claim.uid)
            if current is None or not await asyncio.to_thread(self._files.are_missing, current):
                return False
            await asyncio.to_thread(self._files.write, current)
            return True

    def _is_left(self, record: PreparedClaim | None) -> TypeGuard[PreparedClaim]:
        """Prepared, and no sandbox has its devices."""
        return record is not None and record.boot_id == self._boot_id and not record.sandbox_id

    async def _prepare_for_next(self, claim: Claim) -> PreparedClaim | None:
        """The claim's leases stay, as they are of its devices; those that have ended are requested again. Its
        addresses are a pod's: the next one gets others, before those of the last are released."""
        async with self._work.hold(Work.DEVICE, self._devices_of(claim)):
            record = self._store.get(claim.ref.uid)
            if not self._is_left(record) or record.pod.uid in {user.uid for user in claim.reserved_for}:
                return None
            await asyncio.to_thread(self._attachments.release_claim, claim.ref.uid)  # links are up again
            decoded = await self._decode_with_profiles(claim)
            _check_same_devices(decoded, record)
            decoded = _with_answered_gpus(decoded, record)
            kept = _leases_of(decoded, record)
            missing = [request for request in decoded.dhcp if request.device not in kept]
            async with self._obtained(decoded, missing) as fresh:
                planned = await _run_cancellable(partial(self._plan_again_and_commit, claim, decoded, fresh))
            self._leases.committed()
            return planned

    def _plan_again_and_commit(
        self,
        claim: Claim,
        decoded: DecodedClaim,
        fresh: Obtained,
        check_goes_on: Callable[[], None],
    ) -> PreparedClaim | None:
        with self._attachments.locked():
            record = self._store.get(claim.ref.uid)  # a lease may have been renewed
            if not self._is_left(record):
                raise ProtocolError("another instance of the driver has changed its record", retryable=True)
            obtained = replace(fresh, leases={**_leases_of(decoded, record), **fresh.leases})
            return self._plan_and_commit(claim, decoded, obtained, check_goes_on)

    def _plan_and_commit(
        self,
        claim: Claim,
        decoded: DecodedClaim,
        obtained: Obtained,
        check_goes_on: Callable[[], None],
    ) -> PreparedClaim:
        """Blocking: reads links and writes the store, so it runs in a worker thread."""
        with self._attachments.locked():
            check_goes_on()
            with self._shown.phase(PreparePhase.PLAN):
                record = self._planner.plan(decoded, obtained)
                record = self._files.plan(claim, record)
            if record.plans:
                self._check_runtime()
            reached(Failpoint.PREPARE_STATE_READ)
            with self._shown.phase(PreparePhase.STORE):
                self._store.put(record)
            reached(Failpoint.PREPARE_RECORD_COMMITTED)
        return record

    @functools.cached_property
    def _planner(self) -> Planner:
        """Made for the first claim: what decodes and plans is 2 MB that an idle node does without."""
        from dranet.driver.node_reader import NodeReader
        from dranet.driver.planner import Lookups, Planner

        sources = self._sources
        return Planner(
            self._driver_name,
            self._boot_id,
            Lookups(
                sources.get_offered,
                sources.find_vendor_device,
                sources.find_ipam,
                sources.find_node,
                sources.find_provided,
                has_profiles=self._profiles is not None,
            ),
            self._store,
            self._files.device_id,
            NodeReader(sources.sysfs_root, sources.procfs_root),
        )

    def _check_runtime(self) -> None:
        if not self._sources.is_runtime_ready():
            raise ProtocolError(
                "not connected to the runtime's NRI socket: the pod would start without its NIC",
                hint="enable NRI in the runtime; this is retried",
                retryable=True,
            )


async def _run_cancellable(work: Callable[[Callable[[], None]], T]) -> T:
    """Do blocking work in a worker thread; ``work`` gets a check that raises where we were cancelled. The
    thread goes on after that, as at a stop, while the claim is no longer held for it and another instance may
    prepare or unprepare it: the work has to check under a lock that excludes others."""
    cancelled = threading.Event()

    def check_goes_on() -> None:
        if cancelled.is_set():
            raise ProtocolError("the driver is stopping", retryable=True)

    try:
        return await asyncio.to_thread(work, check_goes_on)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def _describe_bug(error: Exception) -> str:
    return f"bug in the driver: {error!r}"


def _describe_gpus(record: PreparedClaim) -> dict[str, object]:
    """How the claim's GPUs get into containers, for the log; empty without GPUs."""
    gpus = [device for device in record.devices if device.device.kind is DeviceKind.GPU]
    return {"gpus_by": ",".join(gpu.vendor_cdi_id or "device nodes" for gpu in gpus)} if gpus else {}


def _check_same_devices(decoded: DecodedClaim, record: PreparedClaim) -> None:
    """The kubelet gives the next pod the devices that we answered for the first."""
    found = [(own.result.main_request, own.device.name, own.result.share_id) for own in decoded.devices]
    answered = [(own.request, own.device.name, own.share_id) for own in record.devices]
    if found != answered:
        raise ClaimError(
            f"claim {record.claim} was allocated again while it was prepared for pod {record.pod}",
            hint="delete the pods that use it, so that the kubelet prepares it again",
            reason=Reason.UNSUPPORTED_CLAIM,
        )


def _with_answered_gpus(decoded: DecodedClaim, record: PreparedClaim) -> DecodedClaim:
    """GPUs keep the CDI device that the kubelet was given, even if the vendor's spec has changed since."""
    pairs = zip(decoded.devices, record.devices, strict=True)
    devices = tuple(replace(own, vendor_cdi_id=held.vendor_cdi_id) for own, held in pairs)
    return replace(decoded, devices=devices)


def _leases_of(decoded: DecodedClaim, record: PreparedClaim) -> dict[str, DhcpLease]:
    """Those that have not ended, by device."""
    pairs = zip(decoded.devices, record.devices, strict=True)
    leases = ((own.key, held.plan.lease) for own, held in pairs if held.plan is not None)
    return {key: lease for key, lease in leases if lease is not None and lease.lease_seconds}


def _answer(prepared: PreparedDevice) -> PreparedDeviceAnswer:
    return PreparedDeviceAnswer(
        request_names=(prepared.request,),
        pool=prepared.pool,
        device=prepared.device.name,
        cdi_ids=prepared.cdi_ids,
        share_id=prepared.share_id,
    )


class ClaimReassigner:
    """Claims that a pod waits for, from the NRI thread to the event loop.

    Pods may use a claim one after another: a Deployment that replaces its pod names the same ResourceClaim in
    both. The kubelet prepares it for the first, adds the second without a word, and unprepares when the last
    has ended. The second one's container is refused, again every few seconds; each time is the moment to look
    whether the claim is the second's by now."""

    def __init__(self, reassign: Callable[[ClaimRef], Awaitable[None]]) -> None:
        self._reassign = reassign
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, ClaimRef] = {}
        self._working: set[str] = set()
        self._news = asyncio.Event()

    def ask(self, claim: ClaimRef) -> None:
        """Look at a claim of another pod, for which a pod was refused. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._note, claim)

    def _note(self, claim: ClaimRef) -> None:
        self._asked[claim.uid] = claim
        self._news.set()

    async def run(self) -> None:
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

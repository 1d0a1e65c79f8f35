"""Prepare and Unprepare: fetch -> decode -> lease -> read link state -> plan -> store -> CDI -> answer.

Slow work belongs here, so that the runtime's hook only replays a plan. DHCP servers are asked while nobody
waits for the node's devices; what they gave goes back when the claim is not prepared after all. The record is
committed before the kubelet hears "prepared". One claim's error goes into that claim's answer and never fails
the batch.

During an update two instances of the driver may be asked for one claim. Whoever comes second waits for the
first, finds its record, and answers the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from msgspec.structs import replace

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.locks import Work, WorkLocks
from dranet.driver.leases import Leases, iter_leases
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.driver.workload.metadata import DeviceMetadata
from dranet.driver.workload.pack import WorkloadPack
from dranet.errors import ClaimError, DeviceHeldError, DranetError, ProtocolError, Reason, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.inventory.naming import may_be_gpu
from dranet.kubelet.plugin import PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import Claim, ClaimRef
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import DhcpLease, PreparedClaim, PreparedDevice
from dranet.runtime.cdi import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics, PreparePhase

if TYPE_CHECKING:
    from dranet.driver.planner import DecodedClaim, Offers, Planner

log = logging.getLogger(__name__)

T = TypeVar("T")

RETURN_WAIT_SECONDS = 20.0
"""How long an Unprepare, which has 30 s, waits for NICs on their way back from a dead namespace."""


async def _ask_nobody() -> None:
    """Nobody knows more."""


class Preparer:
    """Answers the kubelet. Implements ``kubelet.plugin.ClaimHandler``."""

    def __init__(
        self,
        *,
        driver_name: str,
        boot_id: str,
        sysfs_root: Path,
        fetch: Callable[[ClaimRef], Awaitable[Claim]],
        inventory: Offers,
        store: ClaimStore,
        attachments: Attachments,
        leases: Leases,
        cdi: CdiSpecs,
        gate: StartGate,
        runtime_ready: Callable[[], bool],
        announcer: Announcer,
        metrics: Metrics,
        metadata: DeviceMetadata | None = None,
        procfs_root: Path = Path("/proc"),
        vendor_device: Callable[[Device], str] = lambda _: "",
        on_gpus_free: Callable[[], None] = lambda: None,
        on_held: Callable[[str], None] = lambda _: None,
        ask_about_gpus: Callable[[], Awaitable[None]] = _ask_nobody,
        workload: WorkloadPack | None = None,
    ) -> None:
        """``metadata`` tells containers of their devices, ``workload`` has files for the programs in them;
        ``None``: nobody does. ``vendor_device``: the vendor's CDI device of a GPU, or empty.
        ``on_gpus_free``: a claim has given back GPUs. ``on_held``: a device was allocated that the claim of
        this UID still holds here. ``ask_about_gpus``: look once more whether somebody else serves them; never
        fails."""
        self._ask_about_gpus = ask_about_gpus
        self._vendor_device = vendor_device
        self._on_gpus_free = on_gpus_free
        self._on_held = on_held
        self._metadata = metadata
        self._driver_name = driver_name
        self._boot_id = boot_id
        self._sysfs_root, self._procfs_root = sysfs_root, procfs_root
        self._fetch = fetch
        self._inventory = inventory
        self._store = store
        self._attachments = attachments
        self._leases = leases
        self._work = WorkLocks(store.folder)
        """By claim; and by device: two claims for one NIC would get one lease, and the loser would give it
        back."""
        self._cdi = cdi
        self._gate = gate
        self._files = ContainerFiles(gate, cdi, metadata, workload)
        self._runtime_ready = runtime_ready
        self._announcer = announcer
        self._metrics = metrics
        self._shown = metrics.prepare

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """One outcome for each claim, by UID."""
        with self._metrics.time_dra("PrepareResourceClaims"):
            outcomes = await asyncio.gather(*(self._prepare_one(ref) for ref in refs))
        reached(Failpoint.PREPARE_BEFORE_ANSWER)
        return {ref.uid: outcome for ref, outcome in zip(refs, outcomes, strict=True)}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        """One error text for each claim, by UID; empty is success. Unknown claims succeed."""
        with self._metrics.time_dra("UnprepareResourceClaims"):
            errors = [await self._unprepare_one(ref) for ref in refs]
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
                        claim = await self._fetch(ref)
                    reached(Failpoint.PREPARE_CLAIM_FETCHED)
                    record = await self._prepare_anew(claim)
                    self._announcer.prepared(record)
                    context = {"claim": ref, "pod": record.pod, "devices": _names(record)}
                    context |= _gpus_by(record)
                    log.info("prepared", extra={"context": context})
                with self._shown.phase(PreparePhase.FILES):
                    await asyncio.to_thread(self._make_ready, record)
        except DranetError as error:
            log.warning(
                "prepare failed: %s", error, extra={"context": {"claim": ref, "reason": error.reason}}
            )
            self._announcer.prepare_failed(ref, claim, error)
            if isinstance(error, DeviceHeldError):
                self._on_held(error.holder)
            return PrepareOutcome(devices=(), error=str(error))
        except Exception as error:  # the other claims of the call would go on behind the kubelet's back
            log.exception("bug in prepare", extra={"context": {"claim": ref}})
            return PrepareOutcome(error=_describe_bug(error))
        return PrepareOutcome(devices=tuple(_answer(device) for device in record.devices))

    def _make_ready(self, record: PreparedClaim) -> None:
        """In one thread: each change of threads waits for its turn, up to some milliseconds."""
        self._set_links_down(record)
        self._files.write(record)

    def _set_links_down(self, record: PreparedClaim) -> None:
        """The attach copes with a link that is up; it only takes longer."""
        if any(device.is_set_down_early for device in record.devices):
            try:
                self._attachments.set_links_down(record.claim.uid)
            except DranetError as error:
                log.warning("links stay up: %s", error, extra={"context": {"claim": record.claim}})

    @contextlib.asynccontextmanager
    async def _hold(self, work: Work, names: Iterable[str]) -> AsyncIterator[None]:
        """With nobody else at work on them; the wait is told."""
        async with contextlib.AsyncExitStack() as stack:
            with self._shown.phase(PreparePhase.WAIT):
                await stack.enter_async_context(self._work.hold(work, names))
            yield

    async def _prepare_anew(self, claim: Claim) -> PreparedClaim:
        async with self._hold(Work.DEVICE, self._devices_of(claim)):
            if any(map(may_be_gpu, self._devices_of(claim))):
                await self._ask_about_gpus()
            with self._shown.phase(PreparePhase.DECODE):
                decoded = await asyncio.to_thread(self._decode, claim)
            if decoded.dhcp:
                self._check_runtime()
            leases = await self._take_leases(decoded)
            try:
                record = await _in_thread(partial(self._plan_and_commit, claim, decoded, leases))
            except Exception:
                await self._leases.release_unused(decoded.dhcp, leases)
                raise
        if leases:
            self._leases.committed()
        return record

    async def _take_leases(self, decoded: DecodedClaim) -> Mapping[str, DhcpLease]:
        if not decoded.dhcp:
            return {}
        with self._shown.phase(PreparePhase.LEASE):
            return await self._leases.acquire(decoded.dhcp)

    def _devices_of(self, claim: Claim) -> Iterator[str]:
        return (result.device for result in claim.results if result.driver == self._driver_name)

    def _decode(self, claim: Claim) -> DecodedClaim:
        return self._planner.decode(claim)

    async def reassign(self, ref: ClaimRef) -> None:
        """Prepare a claim for its next pod, when the one that it was prepared for is done with it.

        Nothing happens as long as that one has the devices, or the claim. Raises nothing: the kubelet tries
        the next pod's container again, and that asks for this again.
        """
        claim: Claim | None = None
        try:
            self._store.check_version()
            async with self._work.hold(Work.CLAIM, [ref.uid]):
                if not self._is_left(self._store.get(ref.uid)):
                    return
                claim = await self._fetch(ref)
                record = await self._prepare_for_next(claim)
                if record is None:
                    return
                self._announcer.prepared(record)
                log.info("handed on", extra={"context": {"claim": ref, "pod": record.pod}})
                await asyncio.to_thread(self._make_ready, record)
        except DranetError as error:
            context = {"claim": ref, "reason": error.reason}
            log.warning("not handed on to the next pod: %s", error, extra={"context": context})
            self._announcer.prepare_failed(ref, claim, error)
        except Exception:
            log.exception("bug in handing on", extra={"context": {"claim": ref}})

    async def finish(self, record: PreparedClaim) -> bool:
        """Write the files of a prepared claim again, which are missing; nobody would ask us to: the kubelet
        has its answer. Returns whether it was done.

        Raises:
            DranetError: a folder cannot be written, or another instance works on the claim for too long.
        """
        async with self._work.hold(Work.CLAIM, [record.claim.uid]):
            current = self._store.get(record.claim.uid)
            if current is None or not await asyncio.to_thread(self._files.are_missing, current):
                return False
            await asyncio.to_thread(self._files.write, current)
            return True

    async def forget(self, ref: ClaimRef) -> str:
        """Unprepare a claim that nobody has any more, without a call of the kubelet. Returns why it could not
        be done; empty is success."""
        return await self._unprepare_one(ref)

    def _is_left(self, record: PreparedClaim | None) -> TypeGuard[PreparedClaim]:
        """Prepared, and no sandbox has its devices."""
        return record is not None and record.boot_id == self._boot_id and not record.sandbox_id

    async def _prepare_for_next(self, claim: Claim) -> PreparedClaim | None:
        """The claim's leases stay, as they are of its devices; those that have ended are asked for anew."""
        async with self._work.hold(Work.DEVICE, self._devices_of(claim)):
            record = self._store.get(claim.ref.uid)
            if not self._is_left(record) or record.pod.uid in {user.uid for user in claim.reserved_for}:
                return None
            await asyncio.to_thread(self._attachments.release_claim, claim.ref.uid)  # links are up again
            decoded = await asyncio.to_thread(self._decode, claim)
            _check_same_devices(decoded, record)
            decoded = _given_as_told(decoded, record)
            kept = _leases_of(decoded, record)
            missing = [request for request in decoded.dhcp if request.device not in kept]
            fresh = await self._leases.acquire(missing)
            try:
                planned = await _in_thread(partial(self._plan_again_and_commit, claim, decoded, fresh))
            except Exception:
                await self._leases.release_unused(missing, fresh)
                raise
            self._leases.committed()
            return planned

    def _plan_again_and_commit(
        self,
        claim: Claim,
        decoded: DecodedClaim,
        fresh: Mapping[str, DhcpLease],
        is_cancelled: Callable[[], bool],
    ) -> PreparedClaim | None:
        with self._attachments.locked():
            record = self._store.get(claim.ref.uid)  # a lease may have been renewed
            if not self._is_left(record):
                raise ProtocolError("another instance of the driver has changed its record", retryable=True)
            leases = {**_leases_of(decoded, record), **fresh}
            return self._plan_and_commit(claim, decoded, leases, is_cancelled)

    async def _unprepare_one(self, ref: ClaimRef) -> str:
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
                report = await self._give_back(ref.uid)
        except DranetError as error:
            log.warning(
                "unprepare failed: %s", error, extra={"context": {"claim": ref, "reason": error.reason}}
            )
            self._announcer.unprepare_failed(ref, error)
            return str(error)
        except Exception as error:
            log.exception("bug in unprepare", extra={"context": {"claim": ref}})
            return _describe_bug(error)
        self._leases.forgotten(ref.uid)
        if report is not None:
            self._announcer.released(report)
        if record is not None and _gpus_by(record):
            self._on_gpus_free()
        log.info("unprepared", extra={"context": {"claim": ref}})
        return ""

    async def _give_back(self, claim_uid: str) -> ReleaseReport | None:
        """Leases go back from the host: after the links are back, before somebody else can be given them."""
        record = self._store.get(claim_uid)
        release = partial(self._attachments.release_claim, claim_uid, return_seconds=RETURN_WAIT_SECONDS)
        report = await asyncio.to_thread(release)
        if record is None or not any(iter_leases([record])):
            return await _in_thread(partial(self._release_and_forget, claim_uid)) or report
        if report is not None:
            self._announcer.released(report)
        async with self._work.hold(Work.ENDING_LEASES, [claim_uid]):
            await self._leases.release(record)
            return await _in_thread(partial(self._release_and_forget, claim_uid))

    def _release_and_forget(self, claim_uid: str, is_cancelled: Callable[[], bool]) -> ReleaseReport | None:
        with self._attachments.locked():
            _check_goes_on(is_cancelled)
            report = self._attachments.release_claim(claim_uid)
            self._shut_gate(claim_uid)
            self._files.remove(claim_uid)
            self._store.delete(claim_uid)
            reached(Failpoint.RELEASE_RECORD_DELETED)
        if self._metadata is not None:
            self._metadata.devices_moved()
        return report

    def _shut_gate(self, claim_uid: str) -> None:
        """It lies on the disk of the store, which holds up no pod's end, and leads to a sandbox that has
        ended. The regular look removes it later."""
        try:
            self._gate.close(claim_uid)
        except StoreError as error:
            log.warning("left behind: %s", error)

    def _plan_and_commit(
        self,
        claim: Claim,
        decoded: DecodedClaim,
        leases: Mapping[str, DhcpLease],
        is_cancelled: Callable[[], bool],
    ) -> PreparedClaim:
        """Blocking: reads links and writes the store, so it runs in a worker thread."""
        with self._attachments.locked():
            _check_goes_on(is_cancelled)
            with self._shown.phase(PreparePhase.PLAN):
                record = self._planner.plan(decoded, leases)
                if self._metadata is not None:
                    record = self._metadata.plan(claim, record)
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
        from dranet.driver.planner import NodeReader, Planner

        return Planner(
            self._driver_name,
            self._boot_id,
            self._inventory,
            self._store,
            self._cdi.device_id,
            NodeReader(self._sysfs_root, self._procfs_root),
            self._vendor_device,
        )

    def _check_runtime(self) -> None:
        if not self._runtime_ready():
            raise ProtocolError(
                "not connected to the runtime's NRI socket: the pod would start without its NIC",
                hint="enable NRI in the runtime; this is retried",
                retryable=True,
            )


async def _in_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Do blocking work in a worker thread, and tell it when we are cancelled, as at a stop.

    The thread goes on then, and nothing holds the claim for it any more: another instance may have prepared
    or unprepared it. So it has to look where nobody can come between.
    """
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(work, cancelled.is_set)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def _check_goes_on(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise ProtocolError("the driver is stopping", retryable=True)


def _check_same_devices(decoded: DecodedClaim, record: PreparedClaim) -> None:
    """The kubelet gives the next pod what it was told for the first."""
    found = [(own.result.main_request, own.device.name, own.result.share_id) for own in decoded.devices]
    told = [(own.request, own.device.name, own.share_id) for own in record.devices]
    if found != told:
        raise ClaimError(
            f"claim {record.claim} was allocated anew while it was prepared for pod {record.pod}",
            hint="delete the pods that use it, so that the kubelet prepares it again",
            reason=Reason.UNSUPPORTED_CLAIM,
        )


def _given_as_told(decoded: DecodedClaim, record: PreparedClaim) -> DecodedClaim:
    """GPUs go the way that the kubelet was told, whatever has become of the vendor's CDI spec meanwhile."""
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


def _describe_bug(error: Exception) -> str:
    return f"bug in the driver: {error!r}"


def _gpus_by(record: PreparedClaim) -> dict[str, object]:
    """Which way its GPUs get into containers, if it has any."""
    gpus = [device for device in record.devices if device.device.kind is DeviceKind.GPU]
    return {"gpus_by": ",".join(gpu.vendor_cdi_id or "device nodes" for gpu in gpus)} if gpus else {}


def _names(record: PreparedClaim) -> str:
    return ",".join(device.device.name for device in record.devices)

"""Unprepare: devices -> leases -> files -> record; what Prepare has made goes in reverse.

The devices return to the host first, then the DHCP leases are released from the host's links, and then the
record is deleted together with the files that it owns. Each step may be repeated: the kubelet calls again
until it hears of no error. The kernel's part of it is ``driver.attachments``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.locks import Work, WorkLocks
from dranet.driver.leases import Leases, iter_leases
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DranetError, ProtocolError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import ClaimRef
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore
from dranet.telemetry.metrics import PrepareMetrics

log = logging.getLogger(__name__)

T = TypeVar("T")

RETURN_WAIT_SECONDS = 20.0
"""How long an Unprepare, which has 30 s, waits for NICs on their way back from a dead namespace."""


class ClaimState(Struct, frozen=True):
    """Where the state of a prepared claim is, and the locks under which it changes."""

    store: ClaimStore
    attachments: Attachments
    leases: Leases
    files: ContainerFiles
    work: WorkLocks
    """By claim; and by device: two claims for one NIC would get one lease, and the loser would release it."""


class ClaimRelease:
    """Releases claims for the kubelet, and those that no pod uses any longer."""

    def __init__(
        self,
        state: ClaimState,
        announcer: Announcer,
        metrics: PrepareMetrics,
        on_gpus_returned: Callable[[], None] | None = None,
    ) -> None:
        self._store = state.store
        self._attachments = state.attachments
        self._leases = state.leases
        self._files = state.files
        self._work = state.work
        self._announcer = announcer
        self._metrics = metrics
        self._on_gpus_returned = on_gpus_returned

    async def unprepare(self, ref: ClaimRef) -> str:
        """Release a claim's devices and forget it. Returns the error text; empty is success."""
        with self._metrics.claim(self._metrics.unprepare_seconds) as call:
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
        except DranetError as error:
            log.warning(
                "unprepare failed: %s", error, extra={"context": {"claim": ref, "reason": error.reason}}
            )
            self._announcer.unprepare_failed(ref, error)
            return str(error)
        except Exception as error:
            log.exception("bug in unprepare", extra={"context": {"claim": ref}})
            return describe_bug(error)
        self._leases.forgotten(ref.uid)
        if report is not None:
            self._announcer.released(report)
        if record is not None and describe_gpus(record) and self._on_gpus_returned is not None:
            self._on_gpus_returned()
        log.info("unprepared", extra={"context": {"claim": ref}})
        return ""

    async def _release(self, claim_uid: str) -> ReleaseReport | None:
        """Leases are released from the host's links, once these are back, before another claim gets them."""
        record = self._store.get(claim_uid)
        release = partial(self._attachments.release_claim, claim_uid, return_seconds=RETURN_WAIT_SECONDS)
        report = await asyncio.to_thread(release)
        if record is None or not any(iter_leases([record])):
            return await run_cancellable(partial(self._release_and_forget, claim_uid)) or report
        if report is not None:
            self._announcer.released(report)
        async with self._work.hold(Work.ENDING_LEASES, [claim_uid]):
            await self._leases.release(record)
            return await run_cancellable(partial(self._release_and_forget, claim_uid))

    def _release_and_forget(self, claim_uid: str, is_cancelled: Callable[[], bool]) -> ReleaseReport | None:
        with self._attachments.locked():
            check_goes_on(is_cancelled)
            report = self._attachments.release_claim(claim_uid)
            self._files.remove_all(claim_uid)
            self._store.delete(claim_uid)
            reached(Failpoint.RELEASE_RECORD_DELETED)
        self._files.devices_moved()
        return report


async def run_cancellable(work: Callable[[Callable[[], bool]], T]) -> T:
    """Do blocking work in a worker thread; ``work`` gets a function that returns whether we were cancelled.

    The thread goes on after a cancellation, as at a stop, while the claim is no longer held for it: another
    instance may have prepared or unprepared it. So the work has to ask under a lock that excludes others.
    """
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(work, cancelled.is_set)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def check_goes_on(is_cancelled: Callable[[], bool]) -> None:
    """
    Raises:
        ProtocolError: the call was cancelled.
    """
    if is_cancelled():
        raise ProtocolError("the driver is stopping", retryable=True)


def describe_bug(error: Exception) -> str:
    """The answer to the kubelet where an exception is not one of ours."""
    return f"bug in the driver: {error!r}"


def describe_gpus(record: PreparedClaim) -> dict[str, object]:
    """How the claim's GPUs get into containers, for the log; empty without GPUs."""
    gpus = [device for device in record.devices if device.device.kind is DeviceKind.GPU]
    return {"gpus_by": ",".join(gpu.vendor_cdi_id or "device nodes" for gpu in gpus)} if gpus else {}

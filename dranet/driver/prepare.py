"""Prepare and Unprepare: fetch -> select -> read link state -> plan -> store -> CDI -> answer.

Slow work belongs here, so that the runtime's hook only replays a plan. The record is committed before the
kubelet hears "prepared". One claim's error goes into that claim's answer and never fails the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from dranet.claims.config import decode_configs
from dranet.claims.plan import check_pod_ifnames, plan_device
from dranet.claims.select import select_results
from dranet.driver.announce import Announcer
from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.gate import ReadyGate
from dranet.errors import ClaimError, DeviceError, DranetError, ProtocolError, Reason
from dranet.kernel.linkstate import read_link_state
from dranet.kubelet.plugin import PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.network import NetworkConfig
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.runtime.cdi import CdiDevice, CdiSpecs
from dranet.store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)


class Offers(Protocol):
    """What Prepare asks of the inventory."""

    @property
    def rdma_netns_exclusive(self) -> bool: ...

    def get_offered(self, name: str) -> Device:
        """Raises DeviceError for what is not on offer."""
        ...


class Preparer:
    """Answers the kubelet. Implements ``kubelet.plugin.ClaimHandler``."""

    def __init__(
        self,
        *,
        driver_name: str,
        boot_id: str,
        fetch: Callable[[ClaimRef], Awaitable[Claim]],
        inventory: Offers,
        store: ClaimStore,
        attachments: Attachments,
        cdi: CdiSpecs,
        gate: ReadyGate,
        runtime_ready: Callable[[], bool],
        announcer: Announcer,
        metrics: Metrics,
    ) -> None:
        self._driver_name = driver_name
        self._boot_id = boot_id
        self._fetch = fetch
        self._inventory = inventory
        self._store = store
        self._attachments = attachments
        self._cdi = cdi
        self._gate = gate
        self._runtime_ready = runtime_ready
        self._announcer = announcer
        self._metrics = metrics

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """One outcome for each claim, by UID."""
        with self._metrics.time_dra("PrepareResourceClaims"):
            outcomes = await asyncio.gather(*(self._prepare_one(ref) for ref in refs))
        return {ref.uid: outcome for ref, outcome in zip(refs, outcomes, strict=True)}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        """One error text for each claim, by UID; empty is success. Unknown claims succeed."""
        with self._metrics.time_dra("UnprepareResourceClaims"):
            errors = [await self._unprepare_one(ref) for ref in refs]
        return {ref.uid: error for ref, error in zip(refs, errors, strict=True)}

    async def _prepare_one(self, ref: ClaimRef) -> PrepareOutcome:
        claim: Claim | None = None
        try:
            record = self._store.get(ref.uid)
            if record is None or record.boot_id != self._boot_id:
                claim = await self._fetch(ref)
                record = await asyncio.to_thread(self._plan_and_commit, claim)
                self._announcer.prepared(record)
                context = {"claim": ref, "pod": record.pod, "devices": _names(record)}
                log.info("prepared", extra={"context": context})
            await asyncio.to_thread(self._write_cdi, record)
        except DranetError as error:
            log.warning(
                "prepare failed: %s", error, extra={"context": {"claim": ref, "reason": error.reason}}
            )
            self._announcer.prepare_failed(ref, claim, error)
            return PrepareOutcome(devices=(), error=str(error))
        return PrepareOutcome(devices=tuple(_answer(device) for device in record.devices))

    async def _unprepare_one(self, ref: ClaimRef) -> str:
        try:
            report = await asyncio.to_thread(self._release_and_forget, ref.uid)
        except DranetError as error:
            log.warning(
                "unprepare failed: %s", error, extra={"context": {"claim": ref, "reason": error.reason}}
            )
            self._announcer.unprepare_failed(ref, error)
            return str(error)
        if report is not None:
            self._announcer.released(report)
        log.info("unprepared", extra={"context": {"claim": ref}})
        return ""

    def _release_and_forget(self, claim_uid: str) -> ReleaseReport | None:
        with self._attachments.locked():
            report = self._attachments.release_claim(claim_uid)
            self._gate.close(claim_uid)
            self._cdi.remove(claim_uid)
            self._store.delete(claim_uid)
        return report

    def _plan_and_commit(self, claim: Claim) -> PreparedClaim:
        """Blocking: reads links and writes the store, so it runs in a worker thread."""
        pod = _consumer(claim)
        selections = select_results(claim, self._driver_name)
        with self._attachments.locked():
            offered = [self._inventory.get_offered(selection.result.device) for selection in selections]
            configs = decode_configs(
                [(selection, device.kind) for selection, device in zip(selections, offered, strict=True)]
            )
            devices = tuple(
                self._plan_one(claim.ref, selection.result, device, config)
                for selection, device, config in zip(selections, offered, configs, strict=True)
            )
            record = PreparedClaim(claim=claim.ref, pod=pod, devices=devices, boot_id=self._boot_id)
            check_pod_ifnames([*record.plans, *self._other_plans(record)])
            self._check_runtime(record)
            self._store.put(record)
        return record

    def _plan_one(
        self, claim: ClaimRef, result: AllocationResult, device: Device, config: NetworkConfig
    ) -> PreparedDevice:
        if not result.admin_access:
            self._check_free(device, claim)
        plan = None if result.admin_access else self._plan_device(device, config)
        has_edits = plan is not None or device.kind is DeviceKind.GPU
        return PreparedDevice(
            request=result.main_request,
            pool=result.pool,
            device=device,
            cdi_ids=(self._cdi.device_id(claim.uid, device.name),) if has_edits else (),
            plan=plan,
            share_id=result.share_id,
            admin_access=result.admin_access,
        )

    def _plan_device(self, device: Device, config: NetworkConfig) -> AttachPlan | None:
        host = read_link_state(device.ifname) if device.ifname else None
        plan = plan_device(device, host, config, rdma_exclusive=self._inventory.rdma_netns_exclusive)
        return None if device.kind is DeviceKind.GPU else plan

    def _other_plans(self, record: PreparedClaim) -> tuple[AttachPlan, ...]:
        """Plans of the pod's other claims: they share its interface names."""
        others = [c for c in self._store.get_by_pod(record.pod.uid) if c.claim.uid != record.claim.uid]
        return tuple(plan for other in others for plan in other.plans)

    def _check_runtime(self, record: PreparedClaim) -> None:
        if record.plans and not self._runtime_ready():
            raise ProtocolError(
                "not connected to the runtime's NRI socket: the pod would start without its NIC",
                hint="enable NRI in the runtime; this is retried",
                retryable=True,
            )

    def _check_free(self, device: Device, claim: ClaimRef) -> None:
        """The last line of defence against a double allocation."""
        for other in self._store.get_all():
            if other.claim.uid == claim.uid or other.boot_id != self._boot_id:
                continue
            if any(held.device.name == device.name and not held.admin_access for held in other.devices):
                raise DeviceError(
                    f"device {device.name} is prepared for claim {other.claim} (pod {other.pod})",
                    hint="it is free once that pod has ended",
                    reason=Reason.DEVICE_BUSY,
                )

    def _write_cdi(self, record: PreparedClaim) -> None:
        devices = [self._cdi_device(record, device) for device in record.devices if device.cdi_ids]
        if devices:
            self._cdi.write(record.claim.uid, devices)

    def _cdi_device(self, record: PreparedClaim, prepared: PreparedDevice) -> CdiDevice:
        """GPU nodes go to the containers that name the claim; a device that moves brings the ready gate."""
        is_gpu = prepared.device.kind is DeviceKind.GPU
        return CdiDevice(
            name=prepared.device.name,
            char_devices=prepared.device.char_devices if is_gpu else (),
            mounts=(self._gate.mount_for(record.claim.uid),) if prepared.plan is not None else (),
        )


def _consumer(claim: Claim) -> PodRef:
    """The one pod that the claim is reserved for."""
    pods = [c for c in claim.reserved_for if c.resource == "pods" and not c.api_group]
    others = [c for c in claim.reserved_for if c not in pods]
    if others:
        raise ClaimError(
            f"claim {claim.ref} is reserved for {others[0].resource} {others[0].name}",
            hint="only pods are supported as consumers",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    if not pods:
        raise ClaimError(
            f"claim {claim.ref} is not reserved for any pod",
            hint="the scheduler reserves it; was the pod bound by hand?",
            reason=Reason.CLAIM_NOT_RESERVED,
            retryable=True,
        )
    if len(pods) > 1:
        names = ", ".join(pod.name for pod in pods)
        raise ClaimError(
            f"claim {claim.ref} is reserved for {len(pods)} pods ({names}); a NIC can be in one pod only",
            hint="use a ResourceClaimTemplate, so that each pod gets a claim of its own",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    return PodRef(namespace=claim.ref.namespace, name=pods[0].name, uid=pods[0].uid)


def _answer(prepared: PreparedDevice) -> PreparedDeviceAnswer:
    return PreparedDeviceAnswer(
        request_names=(prepared.request,),
        pool=prepared.pool,
        device=prepared.device.name,
        cdi_ids=prepared.cdi_ids,
        share_id=prepared.share_id,
    )


def _names(record: PreparedClaim) -> str:
    return ",".join(device.device.name for device in record.devices)

"""Claim + inventory + link state -> :class:`PreparedClaim`: everything that the hook will replay, as data.

The one part of Prepare that decides. It reads links and the store but changes nothing; the caller holds the
node's devices still meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dranet.claims.config import decode_configs
from dranet.claims.plan import check_pod_ifnames, plan_device
from dranet.claims.select import select_results
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.kernel.attachment.linkstate import read_link_state
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.network import NetworkConfig
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.store import ClaimStore


class Offers(Protocol):
    """What Prepare asks of the inventory."""

    @property
    def rdma_netns_exclusive(self) -> bool: ...

    def get_offered(self, name: str) -> Device:
        """Raises DeviceError for what is not on offer."""
        ...


class Planner:
    """Plans claims. ``device_id`` names a claim's device for CDI."""

    def __init__(
        self,
        driver_name: str,
        boot_id: str,
        inventory: Offers,
        store: ClaimStore,
        device_id: Callable[[str, str], str],
    ) -> None:
        self._driver_name = driver_name
        self._boot_id = boot_id
        self._inventory = inventory
        self._store = store
        self._device_id = device_id

    def plan(self, claim: Claim) -> PreparedClaim:
        """Plan every device of the claim that is ours.

        Raises:
            ClaimError: the claim asks for something invalid or unsupported; every bad field at once.
            DeviceError: a device is gone, busy or held back.
        """
        pod = _consumer(claim)
        selections = select_results(claim, self._driver_name)
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
            cdi_ids=(self._device_id(claim.uid, device.name),) if has_edits else (),
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

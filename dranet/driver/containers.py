"""What the containers of a claim find: its CDI spec, and the files that the spec mounts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dranet.driver.gpus.containers import find_environment
from dranet.driver.start_gate import StartGate
from dranet.driver.workload.metadata import DeviceMetadata
from dranet.driver.workload.pack import WorkloadPack
from dranet.errors import StoreError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import Claim
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.runtime.cdi import CdiDevice, CdiSpecs

log = logging.getLogger(__name__)


def build_cdi_devices(
    record: PreparedClaim, gate: StartGate, device_id: Callable[[str, str], str]
) -> tuple[CdiDevice, ...]:
    """One entry for each device that the kubelet was given an id of; several shares of a device are one."""
    entries: dict[str, CdiDevice] = {}
    for prepared in record.devices:
        if device_id(record.claim.uid, prepared.device.name) in prepared.cdi_ids:
            entries[prepared.device.name] = _build(record, prepared, gate)
    return tuple(entries.values())


def _build(record: PreparedClaim, prepared: PreparedDevice, gate: StartGate) -> CdiDevice:
    """GPU nodes go to the containers that name the claim, unless the vendor's CDI device brings them; a
    device that moves brings the start gate's file."""
    is_gpu = prepared.device.kind is DeviceKind.GPU
    return CdiDevice(
        name=prepared.device.name,
        char_devices=prepared.device.char_devices if is_gpu and not prepared.vendor_cdi_id else (),
        mounts=(gate.mount_for(record.claim.uid),) if prepared.plan is not None else (),
        env=find_environment(prepared.device) if is_gpu else (),
    )


class ContainerFiles:
    """The files of every claim. Callable from any thread; one claim at a time."""

    def __init__(
        self,
        gate: StartGate,
        cdi: CdiSpecs,
        metadata: DeviceMetadata | None = None,
        workload: WorkloadPack | None = None,
    ) -> None:
        """
        Args:
            metadata: writes files that describe the devices; ``None``: switched off.
            workload: writes files for the programs of a container when it is created; ``None``: switched off.
        """
        self._gate = gate
        self._cdi = cdi
        self._metadata = metadata
        self._workload = workload

    def write(self, record: PreparedClaim) -> None:
        """Bring the files in line with the record; what a spec mounts exists before the spec.

        Raises:
            StoreError: a folder cannot be written.
        """
        if self._metadata is not None:
            self._metadata.prepare(record)
            reached(Failpoint.PREPARE_METADATA_WRITTEN)
        devices = self._build(record)
        if devices:
            self._cdi.write(record.claim.uid, devices)
            reached(Failpoint.PREPARE_CDI_WRITTEN)

    def plan(self, claim: Claim, record: PreparedClaim) -> PreparedClaim:
        """The record, with what the claim's containers are to read about its devices."""
        return record if self._metadata is None else self._metadata.plan(claim, record)

    def device_id(self, claim_uid: str, device: str) -> str:
        """The CDI device id of a claim's device."""
        return self._cdi.device_id(claim_uid, device)

    def devices_moved(self) -> None:
        """Describe the devices of running pods again: one has left its pod."""
        if self._metadata is not None:
            self._metadata.devices_moved()

    def _build(self, record: PreparedClaim) -> tuple[CdiDevice, ...]:
        devices = build_cdi_devices(record, self._gate, self._cdi.device_id)
        return devices if self._metadata is None else devices + self._metadata.cdi_devices(record)

    def are_missing(self, record: PreparedClaim) -> bool:
        """Whether there is no CDI spec although the claim's containers ask for one.

        Raises:
            StoreError: the folder cannot be read.
        """
        return not self._cdi.has(record.claim.uid) and bool(self._build(record))

    def remove(self, claim_uid: str) -> None:
        """Take the claim's files away; nothing there is fine.

        Raises:
            StoreError: the CDI folder cannot be written.
        """
        self._cdi.remove(claim_uid)
        reached(Failpoint.RELEASE_CDI_REMOVED)
        if self._metadata is not None:
            self._metadata.remove(claim_uid)
        if self._workload is not None:
            self._workload.remove(claim_uid)
        reached(Failpoint.RELEASE_METADATA_REMOVED)

    def remove_all(self, claim_uid: str) -> None:
        """Remove the ready file, which leads to a sandbox that has ended, and then the other files.

        A disk that does not let the ready file go holds up no pod's end; the regular look removes it later.

        Raises:
            StoreError: the CDI folder cannot be written.
        """
        try:
            self._gate.close(claim_uid)
        except StoreError as error:
            log.warning("left behind: %s", error)
        self.remove(claim_uid)

    def list_claims(self) -> set[str]:
        """Uids of all claims that have files, or what a crash left of one.

        Raises:
            StoreError: the CDI folder cannot be read.
        """
        metadata = self._metadata.list_claims() if self._metadata is not None else frozenset[str]()
        workload = self._workload.list_claims() if self._workload is not None else frozenset[str]()
        return self._cdi.list_claims() | metadata | workload

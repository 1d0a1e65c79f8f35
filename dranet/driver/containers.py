"""What the containers of a claim find: its CDI spec, the files that it mounts, and what programs get.

The last is decided when a container is created: only then its environment and the GPUs of device plugins are
known. A failure fails the container, which would otherwise silently run with less than was requested."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dranet import files
from dranet.claims.report import READ_ONLY
from dranet.driver.gpus import find_environment
from dranet.driver.metadata import DeviceMetadata
from dranet.driver.start_gate import ClaimFolders, StartGate
from dranet.errors import StoreError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import (
    AUTO,
    CONFIG_NAME,
    FOLDER,
    NO_WORKLOAD_SETTINGS,
    TOPOLOGY_NAME,
    Claim,
    Container,
    ContainerAdjustment,
    Mount,
    NcclSettings,
    PodSandbox,
    Processor,
    WorkloadSettings,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.runtime.containers import CdiDevice, CdiSpecs

if TYPE_CHECKING:
    from dranet.driver.workload import PodContext

log = logging.getLogger(__name__)

_NAMES = (TOPOLOGY_NAME, CONFIG_NAME)
_MOST_BYTES = 1 << 20


class WorkloadFiles(ClaimFolders):
    """``workload/<claim uid>/<container>/``, by the claim that requests them. Written again for each
    container that is created, so removed files come back."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / "workload", _NAMES, "files for containers")

    def write(self, claim_uid: str, container: str, contents: Mapping[str, str]) -> None:
        """Write the files of a container; those with the same content stay. Errors: :class:`ClaimFolders`."""
        with self.open_for_writing(claim_uid, container) as folder:
            for name in _NAMES:
                if name not in contents:
                    files.remove_file(folder / name)
            for name, text in contents.items():
                self._write_one(folder / name, text.encode())

    def _write_one(self, path: Path, content: bytes) -> None:
        with suppress(FileNotFoundError):
            if files.read_file(path, _MOST_BYTES) == content:
                return
        self.replace(path, content)


class WorkloadPack:
    """Decides what containers get. Callable from any thread."""

    def __init__(
        self,
        files: WorkloadFiles,
        gate: StartGate,
        sysfs_root: Path,
        read_facts: Callable[[], NodeFacts],
        get_gpus: Callable[[str], Sequence[Device]],
        can_set_memory_policy: Callable[[], bool],
        procfs_root: Path,
    ) -> None:
        """``get_gpus`` returns the GPUs of a pod by its UID, as far as known, in the order of PCI addresses;
        ``can_set_memory_policy`` whether the runtime can."""
        self._files = files
        self.remove = files.remove
        self.list_claims = files.list_claims
        self._gate = gate
        self._sysfs_root = sysfs_root
        self._read_facts = read_facts
        self._get_gpus = get_gpus
        self._can_set_memory_policy = can_set_memory_policy
        self._procfs_root = procfs_root
        self._processor = Processor()

    def adjust(
        self, pod: PodSandbox, container: Container, records: Sequence[PreparedClaim]
    ) -> ContainerAdjustment:
        """Return what a container gets in addition to its devices; DranetError where something cannot be
        provided. ``records`` are of all claims of the pod, whose devices are attached."""
        named = {self._gate.find_claim(mount.source) for mount in container.mounts}
        asking = [r for r in records if r.claim.uid in named and _asks(r)]
        return self._build(pod, container, records, asking) if asking else ContainerAdjustment()

    def _build(
        self,
        pod: PodSandbox,
        container: Container,
        records: Sequence[PreparedClaim],
        asking: Sequence[PreparedClaim],
    ) -> ContainerAdjustment:
        from dranet.claims.workload import has_other, merge_settings
        from dranet.driver.workload import build_content

        settings = merge_settings(asking)
        claim_uid = min(record.claim.uid for record in asking)
        folder = self._files.folder_of(claim_uid, container.name)
        if has_other(container.mounts, str(folder)):
            where = f"container {container.name} of {pod.namespace}/{pod.name}"
            log.info("%s has a mount of its own at %s: no files for NCCL", where, FOLDER)
            settings = replace(settings, nccl=NcclSettings())
        content = build_content(pod, container, settings, self._read_context(pod, records, settings))
        mounts: tuple[Mount, ...] = ()
        if content.files:
            self._files.write(claim_uid, container.name, content.files)
            reached(Failpoint.ATTACH_FILES_WRITTEN)
            mounts = (Mount(str(folder), FOLDER, options=READ_ONLY),)
        return ContainerAdjustment(
            env=content.environment,
            mounts=mounts,
            memory_nodes=content.memory_nodes,
            memory_policy=content.memory_policy,
        )

    def _read_context(
        self, pod: PodSandbox, records: Sequence[PreparedClaim], settings: WorkloadSettings
    ) -> PodContext:
        """Read as much as these requests need."""
        from dranet.driver.pod_devices import read_from_rdma_devices
        from dranet.driver.workload import PodContext
        from dranet.kernel.attachment.checks import read_pod_uplink
        from dranet.kernel.discovery.hardware import read_gid_table, read_nodes_with_memory

        root, nccl = self._sysfs_root, settings.nccl
        read_gids = partial(read_from_rdma_devices, root, records, pod.netns_path, read_gid_table)
        wants_uplink = nccl.config_file and not nccl.socket_interface
        return PodContext(
            records=records,
            gpus=self._get_gpus(pod.uid),
            facts=self._read_facts(),
            gids=read_gids() if nccl.gid_index == AUTO else {},
            can_set_memory_policy=self._can_set_memory_policy(),
            uplink=read_pod_uplink(pod.netns_path) if wants_uplink else "",
            processor=self._get_processor() if nccl.topology_file else Processor(),
            nodes_with_memory=read_nodes_with_memory(root) if settings.memory_policy else None,
        )

    def _get_processor(self) -> Processor:
        """Read it until it is known: the file also has the current speed of hundreds of CPUs."""
        from dranet.kernel.sysfs.files import read_processor

        if self._processor == Processor():
            self._processor = read_processor(self._procfs_root)
        return self._processor


def _asks(record: PreparedClaim) -> bool:
    return any(device.workload != NO_WORKLOAD_SETTINGS for device in record.devices)


def _build_cdi_device(record: PreparedClaim, prepared: PreparedDevice, gate: StartGate) -> CdiDevice:
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
    """The files of every claim. Callable from any thread; one claim at a time. :class:`StoreError`: a folder
    cannot be read or written."""

    def __init__(
        self,
        gate: StartGate,
        cdi: CdiSpecs,
        metadata: DeviceMetadata | None = None,
        workload: WorkloadPack | None = None,
    ) -> None:
        self._gate = gate
        self._cdi = cdi
        self.device_id = cdi.device_id
        self._metadata = metadata
        self._workload = workload

    def write(self, record: PreparedClaim) -> None:
        """Bring the files in line with the record; what a spec mounts exists before the spec."""
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

    def devices_moved(self) -> None:
        """Describe the devices of running pods again: one has left its pod."""
        if self._metadata is not None:
            self._metadata.devices_moved()

    def _build(self, record: PreparedClaim) -> tuple[CdiDevice, ...]:
        """One for each device that the kubelet was given an id of; several shares of a device are one."""
        devices = {
            prepared.device.name: _build_cdi_device(record, prepared, self._gate)
            for prepared in record.devices
            if self.device_id(record.claim.uid, prepared.device.name) in prepared.cdi_ids
        }
        described = self._metadata.cdi_devices(record) if self._metadata is not None else ()
        return (*devices.values(), *described)

    def are_missing(self, record: PreparedClaim) -> bool:
        """Whether there is no CDI spec although the claim's containers ask for one."""
        return not self._cdi.has(record.claim.uid) and bool(self._build(record))

    def remove(self, claim_uid: str) -> None:
        """Take the claim's files away; nothing there is fine."""
        self._cdi.remove(claim_uid)
        reached(Failpoint.RELEASE_CDI_REMOVED)
        if self._metadata is not None:
            self._metadata.remove(claim_uid)
        if self._workload is not None:
            self._workload.remove(claim_uid)
        reached(Failpoint.RELEASE_METADATA_REMOVED)

    def remove_all(self, claim_uid: str) -> None:
        """Remove the ready file, which leads to a sandbox that has ended, and then the other files. A disk
        that does not let the ready file go holds up no pod's end; the regular look removes it later."""
        try:
            self._gate.close(claim_uid)
        except StoreError as error:
            log.warning("left behind: %s", error)
        self.remove(claim_uid)

    def list_claims(self) -> set[str]:
        """Uids of all claims that have files, or what a crash left of one."""
        metadata = self._metadata.list_claims() if self._metadata is not None else frozenset[str]()
        workload = self._workload.list_claims() if self._workload is not None else frozenset[str]()
        return self._cdi.list_claims() | metadata | workload

"""Gives each container with a claim what the claim requests for the programs in it.

Decided when a container is created, because only then its environment and the GPUs of device plugins are
known. It takes no API server and no waiting: two small files. A failure fails the container, which the
kubelet retries; otherwise it would silently run with less than was requested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dranet import files
from dranet.driver.claim_folders import ClaimFolders
from dranet.driver.start_gate import StartGate
from dranet.failpoints import Failpoint, reached
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import Container, ContainerAdjustment, Mount, PodSandbox
from dranet.model.workload import (
    CONFIG_NAME,
    FOLDER,
    NO_WORKLOAD_SETTINGS,
    TOPOLOGY_NAME,
    NcclSettings,
    Processor,
    WorkloadSettings,
)

if TYPE_CHECKING:
    from dranet.driver.workload.content import PodContext

_NAMES = (TOPOLOGY_NAME, CONFIG_NAME)
_MOST_BYTES = 1 << 20


class WorkloadFiles:
    """The files on the host: ``workload/<claim uid>/<container>/``, by the claim that requests them. See
    :class:`ClaimFolders` for errors.

    They are written again for each container that is created, so removed files come back.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folders = ClaimFolders(state_dir / "workload", _NAMES, "files for containers")
        self.folder_of = self._folders.folder_of
        self.remove = self._folders.remove
        self.list_claims = self._folders.list_claims

    def write(self, claim_uid: str, container: str, contents: Mapping[str, str]) -> None:
        """Write the files of a container; those with the same content stay.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: one of the names cannot be part of a path.
        """
        with self._folders.open_for_writing(claim_uid, container) as folder:
            for name in _NAMES:
                if name not in contents:
                    files.remove_file(folder / name)
            for name, text in contents.items():
                self._write_one(folder / name, text.encode())

    def _write_one(self, path: Path, content: bytes) -> None:
        with suppress(FileNotFoundError):
            if files.read_file(path, _MOST_BYTES) == content:
                return
        self._folders.replace(path, content)


log = logging.getLogger(__name__)

READ_ONLY = ("ro", "bind", "nosuid", "nodev", "noexec")


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
        """Args:
        get_gpus: returns the GPUs of a pod by its UID, as far as known, in the order of PCI addresses.
        can_set_memory_policy: whether the runtime can."""
        self._files = files
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
        """Return what the container gets in addition to its devices; nothing if none of its claims requests
        anything.

        Args:
            pod: its devices are attached.
            container: about to be created.
            records: of all claims of the pod.

        Raises:
            DranetError: something cannot be provided.
        """
        named = {self._gate.find_claim(mount) for mount in container.mounts}
        asking = [record for record in records if record.claim.uid in named and _asks(record)]
        if not asking:
            return ContainerAdjustment()
        return self._build(pod, container, records, asking)

    def _build(
        self,
        pod: PodSandbox,
        container: Container,
        records: Sequence[PreparedClaim],
        asking: Sequence[PreparedClaim],
    ) -> ContainerAdjustment:
        from dranet.claims.nccl.user_overrides import has_other
        from dranet.claims.workload import merge_settings
        from dranet.driver.workload.content import build_content

        settings = merge_settings(asking)
        claim_uid = min(record.claim.uid for record in asking)
        folder = self._files.folder_of(claim_uid, container.name)
        if has_other(container.mounts, str(folder)):
            log.info(
                "container %s of %s/%s has a mount of its own at %s: no files for NCCL",
                container.name,
                pod.namespace,
                pod.name,
                FOLDER,
            )
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

    def remove(self, claim_uid: str) -> None:
        """Remove the files of an unprepared claim, as far as possible; none is fine."""
        self._files.remove(claim_uid)

    def list_claims(self) -> frozenset[str]:
        """Return UIDs of all claims with files, for the sweep at start."""
        return self._files.list_claims()

    def _read_context(
        self, pod: PodSandbox, records: Sequence[PreparedClaim], settings: WorkloadSettings
    ) -> PodContext:
        """Read as much as these requests need."""
        from dranet.driver.workload.content import PodContext, wants_gids, wants_uplink
        from dranet.driver.workload.gids import read_gid_tables
        from dranet.kernel.attachment.checks import read_pod_uplink
        from dranet.kernel.discovery.hardware import read_nodes_with_memory

        return PodContext(
            records=records,
            gpus=self._get_gpus(pod.uid),
            facts=self._read_facts(),
            gids=read_gid_tables(self._sysfs_root, records, pod.netns_path) if wants_gids(settings) else {},
            can_set_memory_policy=self._can_set_memory_policy(),
            uplink=read_pod_uplink(pod.netns_path) if wants_uplink(settings) else "",
            processor=self._get_processor() if settings.nccl.topology_file else Processor(),
            nodes_with_memory=read_nodes_with_memory(self._sysfs_root) if settings.memory_policy else None,
        )

    def _get_processor(self) -> Processor:
        """Read it until it is known. It is cached, because the file reports the current speed of hundreds of
        CPUs."""
        from dranet.kernel.sysfs.procfs import read_processor

        if self._processor == Processor():
            self._processor = read_processor(self._procfs_root)
        return self._processor


def _asks(record: PreparedClaim) -> bool:
    return any(device.workload != NO_WORKLOAD_SETTINGS for device in record.devices)

"""Gives each container that names a claim what the claim asks for the programs in it.

Asked when a container is created, because only then is known what its environment has already and which
GPUs a device plugin gave it. No API server, no waiting: two small files. What fails, fails the container,
which the kubelet tries again: it would run with less than was asked, and nobody would see it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dranet import marks
from dranet.driver.gate import ReadyGate
from dranet.driver.workload.files import WorkloadFiles
from dranet.errors import DranetError
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import Container, ContainerAdjustment, Mount, PodSandbox
from dranet.model.workload import FOLDER, NO_WISHES, NcclWishes, Processor

log = logging.getLogger(__name__)

READ_ONLY = ("ro", "bind", "nosuid", "nodev", "noexec")


class WorkloadPack:
    """What containers get. Callable from any thread."""

    def __init__(
        self,
        files: WorkloadFiles,
        gate: ReadyGate,
        sysfs_root: Path,
        read_facts: Callable[[], NodeFacts],
        get_gpus: Callable[[str], Sequence[Device]],
        can_set_memory_policy: Callable[[], bool],
        procfs_root: Path,
    ) -> None:
        """``get_gpus`` tells the GPUs of a pod (its UID), by PCI address, as far as they are known by now.
        ``can_set_memory_policy``: whether the runtime can."""
        self._files = files
        self._gate = gate
        self._sysfs_root = sysfs_root
        self._read_facts = read_facts
        self._get_gpus = get_gpus
        self._can_set_memory_policy = can_set_memory_policy
        self._procfs_root = procfs_root

    def adjust(
        self, pod: PodSandbox, container: Container, records: Sequence[PreparedClaim]
    ) -> ContainerAdjustment:
        """What the container gets beside its devices; nothing where none of its claims asks for it.

        Args:
            pod: with its devices attached.
            container: about to be created.
            records: of all claims of the pod.

        Raises:
            DranetError: it cannot be had.
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
        from dranet.claims.workload import merge_wishes
        from dranet.driver.workload.content import Surroundings, build_content, wants_gids
        from dranet.driver.workload.gid_tables import read_gid_tables
        from dranet.driver.workload.memory import read_nodes_with_memory
        from dranet.kernel.processor import read_processor

        wishes = merge_wishes(asking)
        claim_uid = min(record.claim.uid for record in asking)
        folder = self._files.folder_of(claim_uid, container.name)
        if _is_taken(container, folder):
            log.info(
                "container %s of %s/%s has a mount of its own at %s: no files for NCCL",
                container.name,
                pod.namespace,
                pod.name,
                FOLDER,
            )
            wishes = replace(wishes, nccl=NcclWishes())
        gids = read_gid_tables(self._sysfs_root, records, pod.netns_path) if wants_gids(wishes) else {}
        gpus = self._get_gpus(pod.uid)
        surroundings = Surroundings(
            records,
            gpus,
            self._read_facts(),
            gids,
            self._can_set_memory_policy(),
            read_processor(self._procfs_root) if wishes.nccl.topology_file else Processor(),
            read_nodes_with_memory(self._sysfs_root) if wishes.memory_policy else None,
        )
        content = build_content(pod, container, wishes, surroundings)
        mounts: tuple[Mount, ...] = ()
        if content.files:
            self._files.write(claim_uid, container.name, content.files)
            marks.reached(marks.Step.ATTACH_FILES_WRITTEN)
            mounts = (Mount(str(folder), FOLDER, options=READ_ONLY),)
        return ContainerAdjustment(
            env=content.environment,
            mounts=mounts,
            memory_nodes=content.memory_nodes,
            memory_policy=content.memory_policy,
        )

    def remove(self, claim_uid: str) -> None:
        """The claim is unprepared. What cannot be removed holds up no pod's end: it harms nobody, and the
        next start tries again."""
        try:
            self._files.remove(claim_uid)
        except DranetError as error:
            log.warning("left behind: %s", error)

    def list_claims(self) -> frozenset[str]:
        """Uids of all claims that have files, for the sweep; none where nobody can tell."""
        try:
            return self._files.list_claims()
        except DranetError as error:
            log.warning("not swept: %s", error)
            return frozenset()


def _is_taken(container: Container, folder: Path) -> bool:
    """By the container's own mount, which stays; not by that of another instance of the driver."""
    own = (mount for mount in container.mounts if mount.destination.rstrip("/") == FOLDER)
    return any(mount.source != str(folder) for mount in own)


def _asks(record: PreparedClaim) -> bool:
    return any(device.workload != NO_WISHES for device in record.devices)

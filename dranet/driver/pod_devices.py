"""Devices in pods: the namespaces that have them, their RDMA device nodes and GIDs.

Some runtimes remove a namespace before they report the pod's end (CRI-O); an open descriptor keeps it, and
links that exist only in it, alive until its devices are back. ``uverbsN``, ``umadN`` and ``issmN`` get the
lowest free number each time their device appears, at a move or when its driver recovers. So the nodes are
read again after an attach and for each container."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dranet.claims.report import pod_rdma_device
from dranet.errors import ClaimError, DeviceError, KernelError, Reason
from dranet.kernel.discovery.hardware import find_rdma_device, read_nodes_of
from dranet.kernel.namespaces.netns import NetworkNamespace, open_netns, open_sysfs
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rdma import LOST_WITH_LINK, describe_driver
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.claim import PodSandbox
from dranet.model.device import DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import MoveRdma, PreparedClaim, PreparedDevice

log = logging.getLogger(__name__)

OpenNamespace = Callable[[], AbstractContextManager[NetworkNamespace | None]]
"""The namespace of the pod; called where a device has moved there."""
_KIND = re.compile(r".*/([a-z_]+?)[0-9]*")
"""``/dev/infiniband/uverbs3``: ``uverbs``; ``rdma_cm`` has no number."""
T = TypeVar("T")


class HeldNamespaces:
    """By pod, for one sandbox each. Called with the node's devices held still."""

    def __init__(self, pod_links: PodLinks | None) -> None:
        self._pod_links = pod_links
        self._held: dict[str, tuple[str, NetworkNamespace]] = {}
        """By pod UID: the sandbox, and its namespace."""

    def hold(self, pod_uid: str, sandbox_id: str, netns: NetworkNamespace) -> None:
        """Keep it, instead of another of the pod, and close it at the end."""
        self._drop(pod_uid)
        self._held[pod_uid] = sandbox_id, netns
        if self._pod_links is not None:
            self._pod_links.follow(pod_uid, netns)

    @contextmanager
    def open(self, claim: PreparedClaim, path: str = "") -> Iterator[NetworkNamespace | None]:
        """That of the sandbox which has the claim's devices; where it is not held what is at ``path`` (by
        default the record's); ``None``: it died. Raises KernelError for what cannot be opened or entered."""
        sandbox_id, netns = self._held.get(claim.pod.uid, ("", None))
        if netns is not None and sandbox_id == claim.sandbox_id:
            yield netns
            return
        with open_netns(path or claim.netns_path, claim.netns_id) or nullcontext() as opened:
            yield opened

    def keep_only(self, claims: Iterable[PreparedClaim]) -> None:
        """Let go of every other, whichever instance of the driver has restored its devices."""
        if self._held:
            placed = {(claim.pod.uid, claim.sandbox_id) for claim in claims if claim.netns_path}
            for pod_uid, (sandbox_id, _) in tuple(self._held.items()):
                if (pod_uid, sandbox_id) not in placed:
                    self._drop(pod_uid)

    def _drop(self, pod_uid: str) -> None:
        _, netns = self._held.pop(pod_uid, ("", None))
        if netns is not None:
            if self._pod_links is not None:
                self._pod_links.forget(pod_uid)
            netns.close()


def nodes_of(prepared: PreparedDevice) -> tuple[CharDevice, ...]:
    """What the record has for containers. A record of an earlier version, which knew no link on top of a
    device, has the nodes with the device alone."""
    is_on_top = prepared.plan is not None and prepared.plan.is_on_top
    if prepared.rdma.nodes or is_on_top or prepared.device.kind is DeviceKind.GPU:
        return prepared.rdma.nodes
    return prepared.device.char_devices


def refresh_nodes(
    records: Sequence[PreparedClaim], open_namespace: OpenNamespace, sysfs_root: Path
) -> tuple[PreparedClaim, ...]:
    """The records with the nodes and the name that their RDMA devices have now. Raises DeviceError
    (``DeviceNotFound``) where one is not there, and KernelError where the pod's namespace could not be
    entered."""
    with ExitStack() as stack:
        pod: list[PseudoFiles] = []

        def choose_sysfs(prepared: PreparedDevice) -> PseudoFiles:
            if not _has_moved(prepared):
                return PseudoFiles(sysfs_root, [])
            if not pod:
                netns = stack.enter_context(open_namespace())
                if netns is None:
                    raise DeviceError(f"device {prepared.device.name}: the namespace of its pod is gone")
                pod.append(PseudoFiles(stack.enter_context(open_sysfs(netns)), []))
            return pod[0]

        def refresh(prepared: PreparedDevice) -> PreparedDevice:
            is_readable = prepared.plan is not None and prepared.device.rdma_device and nodes_of(prepared)
            return _refresh(prepared, choose_sysfs(prepared)) if is_readable else prepared

        return tuple(replace(record, devices=tuple(map(refresh, record.devices))) for record in records)


def _has_moved(prepared: PreparedDevice) -> bool:
    """Whether only the pod's namespace shows its RDMA device."""
    return prepared.plan is not None and any(isinstance(step, MoveRdma) for step in prepared.plan.steps)


def _refresh(prepared: PreparedDevice, sysfs: PseudoFiles) -> PreparedDevice:
    recorded, identity = nodes_of(prepared), prepared.device.rdma_identity
    name = find_rdma_device(sysfs, identity)
    if not name:
        raise DeviceError(
            f"device {prepared.device.name}: its RDMA device {identity.name}{describe_driver(identity)} is "
            "not where the pod could use it",
            hint=LOST_WITH_LINK,
        )
    kinds = [_kind(node) for node in recorded]
    nodes = read_nodes_of(sysfs, name, kinds)
    found = [_kind(node) for node in nodes]
    missing = sorted({kind for kind in kinds if found.count(kind) < kinds.count(kind)})
    if missing:
        raise DeviceError(
            f"device {prepared.device.name}: {name} has no device node {', '.join(missing)} now: "
            f"{'; '.join(sysfs.warnings) or 'sysfs shows none'}",
            hint="its driver may be recovering; are ib_uverbs, rdma_ucm and ib_umad loaded as they were?",
            reason=Reason.DEVICE_NOT_FOUND,
        )
    pod_name = "" if name == identity.name else name
    return replace(prepared, rdma=replace(prepared.rdma, nodes=nodes, pod_name=pod_name))


def _kind(node: CharDevice) -> str:
    found = _KIND.fullmatch(node.path)
    return found[1] if found else node.path


def iter_nodes(records: Sequence[PreparedClaim]) -> Iterator[CharDevice]:
    """The nodes of all devices that move or whose nodes are granted, each once (``rdma_cm`` is shared)."""
    devices = (device for record in records for device in record.devices if device.plan is not None)
    nodes = {node.path: node for prepared in devices for node in nodes_of(prepared)}
    yield from nodes.values()


def check_has_own_network(pod: PodSandbox, claims: Sequence[PreparedClaim]) -> None:
    """Raises ClaimError where the pod runs on the host's network and a device has to move. An RDMA device in
    shared mode stays where it is: its device nodes need no namespace."""
    needy = [plan.device for claim in claims for plan in claim.plans if plan.steps]
    if pod.is_on_host_network and needy:
        raise ClaimError(
            f"pod {pod.namespace}/{pod.name} claims {', '.join(needy)}, which needs a network namespace of "
            "the pod, but runs on the host's network",
            hint="set hostNetwork: false, or drop the claim; there a pod can have devices without a link and "
            "without settings: RDMA-only ones in shared mode, and GPUs",
            reason=Reason.UNSUPPORTED_CLAIM,
        )


def read_from_rdma_devices(
    sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str, read: Callable[[PseudoFiles, str], T]
) -> dict[str, T]:
    """What ``read`` finds of each RDMA device that the pod's containers can use, by name. The namespace is
    only entered for devices that moved into it; if it cannot be, they are left out."""
    devices = [prepared for record in records for prepared in record.devices if pod_rdma_device(prepared)]
    moved = {pod_rdma_device(prepared) for prepared in devices if _has_moved(prepared)}
    here = {*map(pod_rdma_device, devices)} - moved
    warnings: list[str] = []
    found = {name: read(PseudoFiles(sysfs_root, warnings), name) for name in here}
    if moved:
        try:
            with NetworkNamespace.open(netns_path) as netns, open_sysfs(netns) as root:
                found |= {name: read(PseudoFiles(root, warnings), name) for name in moved}
        except KernelError as error:
            log.warning("the GIDs of %s are not known: %s", ", ".join(sorted(moved)), error)
    for warning in warnings:
        log.debug("%s", warning)
    return found

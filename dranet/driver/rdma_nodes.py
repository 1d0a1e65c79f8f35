"""The character devices of RDMA devices as the kernel numbers them now.

``uverbsN``, ``umadN`` and ``issmN`` get the lowest free number each time their device comes: when it moves to
another namespace, when its driver recovers. What Prepare saw may be another device's by now, so the nodes are
read again after an attach and for each container. A handful of small reads for each device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from msgspec.structs import replace

from dranet.errors import DeviceError, Reason
from dranet.kernel.discovery.rdma import find_rdma_device, read_nodes_of
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.sysfs_mount import open_sysfs
from dranet.kernel.netlink.rdma import LOST_WITH_LINK, describe_driver
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.device import DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import MoveRdma, PreparedClaim, PreparedDevice

OpenNamespace = Callable[[], AbstractContextManager[NetworkNamespace | None]]
"""The namespace of the pod; called where a device has moved there."""

_KIND = re.compile(r".*/([a-z_]+?)[0-9]*")
"""``/dev/infiniband/uverbs3``: ``uverbs``; ``rdma_cm`` has no number."""


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
    """The records with the nodes and the name that their RDMA devices have now.

    Raises:
        DeviceError: a device, or a node of it, is not there (``DeviceNotFound``).
        KernelError: the namespace of the pod could not be entered.
    """
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
    """Of all devices that move or whose nodes are given, each once (``rdma_cm`` is shared)."""
    devices = (device for record in records for device in record.devices if device.plan is not None)
    nodes = {node.path: node for prepared in devices for node in nodes_of(prepared)}
    yield from nodes.values()

"""RDMA: whether the device moves, and what the pod's containers get of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import MoveRdma, RdmaAccess


def plan_rdma_move(device: Device, config: NetworkConfig, *, exclusive: bool) -> Iterator[MoveRdma]:
    """In exclusive mode the RDMA device goes where its link goes."""
    if exclusive and device.rdma_device and config.interface.is_passthrough:
        yield MoveRdma(device.rdma_device, node_guid=device.rdma_guid, pci_address=device.rdma_pci_address)


def plan_rdma_access(
    device: Device, config: NetworkConfig, management_nodes: Sequence[CharDevice] = (), *, exclusive: bool
) -> RdmaAccess:
    """What the containers get.

    With a link on top of the device they also get the verbs device, while the kernel lets other network
    namespaces use it (shared mode).

    Args:
        device: as on offer, with the nodes that every user of it needs.
        config: checked by :func:`check_rdma`.
        management_nodes: ``umad`` and ``issm`` of the device, for those who ask for them.
        exclusive: RDMA devices belong to one network namespace each.
    """
    if device.kind is DeviceKind.GPU or not device.rdma_device or not _reaches_pod(config, exclusive):
        return RdmaAccess()
    nodes = (*device.char_devices, *(management_nodes if config.rdma.management_devices else ()))
    return RdmaAccess(tuple(dict.fromkeys(nodes)), config.rdma.memlock)


def _reaches_pod(config: NetworkConfig, exclusive: bool) -> bool:
    return config.interface.is_passthrough or not exclusive


def check_rdma(device: Device, config: NetworkConfig, *, exclusive: bool) -> Iterator[str]:
    """RDMA settings for a device that has none, or that is not the pod's. "<field path>: ..."."""
    asked = []
    if config.rdma.management_devices is not None:
        asked.append("rdma.managementDevices")
    if config.rdma.memlock is not None:
        asked.append("rdma.memlock")
    if config.rdma.fork_safe is not None:
        asked.append("rdma.forkSafe")
    if config.rdma.huge_pages_safe is not None:
        asked.append("rdma.hugePagesSafe")
    if not device.rdma_device:
        yield from (f"{path}: the device has no RDMA" for path in asked)
    elif not _reaches_pod(config, exclusive):
        kind = config.interface.type
        why = f"in exclusive mode {device.rdma_device} stays on the node with the device below a {kind}"
        yield from (f"{path}: {why}" for path in asked)
    elif config.rdma.management_devices and not config.interface.is_passthrough:
        yield (
            "rdma.managementDevices: they manage the subnet for everybody on the device, which type "
            f"{config.interface.type} does not give to the pod"
        )

"""What the containers get beside the device, hints for libraries and memory: from the parameters alone."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.model.device import Device
from dranet.model.network import NetworkConfig
from dranet.model.network_workload import NcclConfig
from dranet.model.workload import NcclWishes, WorkloadWishes

_OF_THE_DEFAULT_ROUTE = "auto"


def plan_workload(config: NetworkConfig) -> WorkloadWishes:
    """What the config asks for."""
    nccl = config.nccl
    lines = nccl if nccl.config_file else NcclConfig()
    return WorkloadWishes(
        NcclWishes(
            bool(nccl.topology_file),
            bool(nccl.config_file),
            lines.gid_index,
            lines.cross_nic,
            "" if lines.socket_interface == _OF_THE_DEFAULT_ROUTE else lines.socket_interface or "",
        ),
        ucx_net_devices=bool(config.ucx.net_devices),
        fork_safe=bool(config.rdma.fork_safe),
        huge_pages_safe=bool(config.rdma.huge_pages_safe),
        memory_policy=config.memory.policy or "",
    )


def check_workload(device: Device, config: NetworkConfig) -> Iterator[str]:
    """What cannot be had with this device. "<field path>: ..."."""
    if config.memory.policy is not None and device.numa_node is None:
        yield "memory.policy: the node does not say on which NUMA node the device is"

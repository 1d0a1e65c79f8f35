"""What brings a workload near its device: near CPUs, hints for libraries, and where its memory comes from."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dranet.model.cpus import CpuLayout, CpuSurroundings, find_local_cpus
from dranet.model.device import Device
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.workload import NcclConfig
from dranet.model.plan import CpuState, LinkState, SetCpuLocality
from dranet.model.workload import NcclSettings, WorkloadSettings

_PATH = "cpuLocality"


def plan_cpu_locality(
    device: Device, config: NetworkConfig, cpus: CpuSurroundings | None
) -> Iterator[SetCpuLocality]:
    """One step for all that is asked; checked by :func:`check_cpu_locality`.

    Raises:
        ValueError: nothing was found out about the CPUs.
    """
    wanted = config.cpu_locality
    if not wanted.asked:
        return
    if cpus is None:
        raise ValueError(f"near CPUs for {device.name}, and the CPUs of the node were not read")
    order = _choose(cpus.layout, device)
    yield SetCpuLocality(order, device.pci_address, bool(wanted.irq), bool(wanted.xps), bool(wanted.rps))


def _choose(layout: CpuLayout, device: Device) -> tuple[int, ...]:
    """The near CPUs, from another one on for each device: otherwise the first ones would work for all virtual
    functions, which have few queues."""
    local = find_local_cpus(layout, device.numa_node)
    start = zlib.crc32(device.name.encode()) % len(local)
    return (*local[start:], *local[:start])


def record_cpus(config: NetworkConfig, cpus: CpuSurroundings | None) -> CpuState | None:
    """What the host gets back of it."""
    if cpus is None or not config.cpu_locality.asked:
        return None
    return CpuState(cpus.irqs, cpus.queues)


def check_cpu_locality(
    device: Device, config: NetworkConfig, cpus: CpuSurroundings | None, host: LinkState | None = None
) -> Iterator[str]:
    """Yield what this node cannot fulfil, as "<field path>: ..."."""
    wanted = config.cpu_locality
    if not wanted.asked or cpus is None:
        return
    try:
        find_local_cpus(cpus.layout, device.numa_node)
    except LookupError as error:
        yield f"{_PATH}: {error}"
    if wanted.irq:
        yield from _check_interrupts(device, cpus, host)


def _check_interrupts(device: Device, cpus: CpuSurroundings, host: LinkState | None) -> Iterator[str]:
    """Some drivers ask for interrupts when the link comes up; on one that is down there is nothing to see."""
    if not device.pci_address:
        yield f"{_PATH}.irq: the device is no PCI function, so it has no interrupts"
    elif not cpus.irqs and (host is None or host.up):
        yield (
            f"{_PATH}.irq: {device.pci_address} has no interrupts of its own (MSI), and a line may be shared "
            "with other devices"
        )
    if cpus.balancer:
        yield f"{_PATH}.irq: {cpus.balancer}"


_OF_THE_DEFAULT_ROUTE = "auto"


def plan_workload(config: NetworkConfig) -> WorkloadSettings:
    """What the config asks for."""
    nccl = config.nccl
    lines = nccl if nccl.config_file else NcclConfig()
    return WorkloadSettings(
        NcclSettings(
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
    """Yield what is impossible with this device, as "<field path>: ..."."""
    if config.memory.policy is not None and device.numa_node is None:
        yield "memory.policy: the node does not report on which NUMA node the device is"

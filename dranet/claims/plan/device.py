"""The ordered steps that put one device into a pod, as data, and the checks across the plans of a pod.

Everything that the hook will do is decided here, at Prepare, from the state that the link had then. What the
pod gets of the host's state, unless the config overrides it: name, MTU, hardware address, the global
addresses, and with those addresses the routes that need them; and, whatever its addresses, the link's policy
routing (other tables, the rules that look them up) and its permanent neighbours. A link on top of the device
(``interface.type``) gets nothing of that.

``link`` and ``routing`` have the steps for their parts, and the checks that only the link can answer, as
lines "<field path>: what is wrong". All lines of a device are one error.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from dranet.claims.plan.inputs import PlanInput
from dranet.claims.plan.link import (
    VRF_SYSCTLS,
    check_ethtool,
    check_link,
    check_namespace_sysctls,
    check_rdma,
    check_sysctls,
    plan_early_sysctls,
    plan_ethtool,
    plan_late_sysctls,
    plan_link,
    plan_properties,
    plan_rdma_move,
)
from dranet.claims.plan.routing import (
    check_addresses,
    check_neighbours,
    check_routes,
    check_rules,
    plan_addresses,
    plan_neighbours,
    plan_routes,
    plan_rules,
)
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.claim import NcclSettings, WorkloadSettings
from dranet.model.cpus import CpuSurroundings, find_local_cpus
from dranet.model.device import MEGABIT, Device, DeviceKind
from dranet.model.ipam import IpamAnswer
from dranet.model.parameters.network import NcclConfig, NetworkConfig
from dranet.model.plan import (
    AddAddress,
    AddRule,
    AttachPlan,
    CpuState,
    DhcpLease,
    IpoibState,
    JoinVrf,
    LinkState,
    SetCpuLocality,
    SetSysctl,
    SetUp,
    SetVf,
    Step,
)
from dranet.model.virtual_functions import VfSettings

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
    local = find_local_cpus(cpus.layout, device.numa_node)
    # From another one on for each device: else the first would work for all VFs, which have few queues.
    start = zlib.crc32(device.name.encode()) % len(local)
    order = (*local[start:], *local[:start])
    yield SetCpuLocality(order, device.pci_address, bool(wanted.irq), bool(wanted.xps), bool(wanted.rps))


def _record_cpus(config: NetworkConfig, cpus: CpuSurroundings | None) -> CpuState | None:
    return CpuState(cpus.irqs, cpus.queues) if cpus and config.cpu_locality.asked else None


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


def plan_workload(config: NetworkConfig) -> WorkloadSettings:
    nccl = config.nccl
    lines = nccl if nccl.config_file else NcclConfig()
    return WorkloadSettings(
        NcclSettings(
            bool(nccl.topology_file),
            bool(nccl.config_file),
            lines.gid_index,
            lines.cross_nic,
            "" if lines.socket_interface == "auto" else lines.socket_interface or "",
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


def plan_device(
    device: Device,
    host: LinkState | None,
    config: NetworkConfig,
    *,
    rdma_exclusive: bool,
    lease: DhcpLease | None = None,
    mac_seed: str = "",
    physical_function_mtu: int | None = None,
    cpus: CpuSurroundings | None = None,
    host_rules: tuple[AddRule, ...] = (),
    ipoib: tuple[IpoibState, ...] = (),
    vf: VfSettings | None = None,
    ipam: IpamAnswer | None = None,
    bandwidth: int | None = None,
) -> AttachPlan:
    """The plan for one device; without steps where nothing moves (a GPU, RDMA in shared mode).

    Args:
        device, host, config, lease, mac_seed, physical_function_mtu, cpus, host_rules, vf, ipam, bandwidth:
            as in :class:`PlanInput`; ``host`` is ``None`` for a device without a link.
        rdma_exclusive: RDMA devices belong to one network namespace each, so they also have to move.
        ipoib: the IPoIB interfaces of an RDMA device without a link, which end when it moves.

    Raises:
        ClaimError: UnsupportedClaim for what needs a link on a device without one; InvalidConfig for what
            this device cannot take. Either names every field.
        DeviceError: DeviceNotFound for a NIC whose link is not on the host.
        ValueError: the config wants DHCP or IPAM and there is no answer, or near CPUs and there is nothing
            about them.
    """
    if device.kind is not DeviceKind.NIC:
        plan = _plan_without_link(device, config, rdma_exclusive, cpus)
        return replace(plan, ipoib=ipoib)
    if host is None:
        raise DeviceError(f"device {device.name} has no network interface on the host")
    if config.interface.dhcp and lease is None:
        raise ValueError(f"no lease for device {device.name}")
    if config.interface.ipam and ipam is None:
        raise ValueError(f"no addresses for device {device.name}")
    inputs = PlanInput(
        device,
        host,
        config,
        lease,
        mac_seed,
        physical_function_mtu,
        cpus,
        host_rules,
        vf=vf,
        ipam=ipam,
        bandwidth=bandwidth,
    )
    _refuse(device, _check(inputs, rdma_exclusive))
    return AttachPlan(
        device.name,
        tuple(_steps(inputs, rdma_exclusive)),
        inputs.pod_ifname,
        # What cannot be changed would be a third of the record.
        replace(host, ethtool=replace(host.ethtool, fixed={}, refused={})) if inputs.moves else None,
        lease,
        _record_cpus(config, cpus),
        vf=_record_vf(inputs),
        ipam=ipam,
    )


def _plan_without_link(
    device: Device, config: NetworkConfig, rdma_exclusive: bool, cpus: CpuSurroundings | None
) -> AttachPlan:
    """An RDMA-only device brings settings of the namespace at most; a GPU brings nothing."""
    is_gpu = device.kind is DeviceKind.GPU
    what = "a GPU" if is_gpu else "RDMA-only"
    if config.needs_link or (is_gpu and not config.is_empty):
        fields = ", ".join(config.needs_link) or "parameters"
        raise ClaimError(
            f"device {device.name} is {what}: it has no network interface to configure ({fields})",
            hint="name the requests that the config is for",
            reason=Reason.UNSUPPORTED_CLAIM,
        )
    if is_gpu:
        return AttachPlan(device.name)
    problems = [*check_namespace_sysctls(config), *check_rdma(device, config, exclusive=rdma_exclusive)]
    problems += check_workload(device, config)
    _refuse(device, [*problems, *check_cpu_locality(device, config, cpus)])
    steps: tuple[Step, ...] = (
        *plan_cpu_locality(device, config, cpus),
        *plan_late_sysctls(config),
        *plan_rdma_move(device, config, exclusive=rdma_exclusive),
    )
    return AttachPlan(device.name, steps, cpus=_record_cpus(config, cpus))


def _check(inputs: PlanInput, rdma_exclusive: bool) -> Iterator[str]:
    yield from check_link(inputs)
    yield from _check_vf(inputs)
    yield from check_addresses(inputs)
    yield from check_routes(inputs)
    yield from check_rules(inputs)
    yield from check_neighbours(inputs)
    yield from check_ethtool(inputs)
    yield from check_sysctls(inputs)
    yield from check_rdma(inputs.device, inputs.config, exclusive=rdma_exclusive)
    yield from check_workload(inputs.device, inputs.config)
    yield from check_cpu_locality(inputs.device, inputs.config, inputs.cpus, inputs.host)


def _check_vf(inputs: PlanInput) -> Iterator[str]:
    device, asked = inputs.device, inputs.config.interface.vf.settings
    if not asked.is_empty and device.vf_index is None:
        yield "interface.vf: the device is no SR-IOV virtual function, so there is nothing to administer"
    elif not limit_vf(device, inputs.config).is_empty and device.vf_index is not None and inputs.vf is None:
        yield "interface.vf: the physical function does not report this virtual function"
    least = asked.min_tx_rate or 0
    if device.bandwidth is not None and least * MEGABIT > device.bandwidth.total:
        most = device.bandwidth.total // MEGABIT
        yield (
            f"interface.vf.minTxRate: {least} Mbit/s is more than the device's bandwidth of {most} Mbit/s, "
            "which stays its limit"
        )


def _plan_vf(inputs: PlanInput) -> Iterator[SetVf]:
    device, settings = inputs.device, limit_vf(inputs.device, inputs.config)
    if not settings.is_empty and device.vf_index is not None:
        yield SetVf(device.physical_function, device.vf_index, settings)


def limit_vf(device: Device, config: NetworkConfig) -> VfSettings:
    """What the config sets on a virtual function; the bandwidth that it is published with stays its limit.
    One without shares has that limit also where the config does not name it: its rule may have left it
    without, as while a claim had it."""
    settings, bandwidth = config.interface.vf.settings, device.bandwidth
    if device.vf_index is None or bandwidth is None or (device.shared and settings.max_tx_rate is None):
        return settings
    most = bandwidth.total // MEGABIT
    return replace(settings, max_tx_rate=min(settings.max_tx_rate or most, most))


def _record_vf(inputs: PlanInput) -> VfSettings | None:
    settings = limit_vf(inputs.device, inputs.config)
    return None if settings.is_empty or inputs.vf is None else inputs.vf.restricted_to(settings)


def _refuse(device: Device, problems: Iterable[str]) -> None:
    text = "; ".join(problems)
    if text:
        raise ClaimError(f"device {device.name}: {text}", reason=Reason.INVALID_CONFIG)


def _steps(inputs: PlanInput, rdma_exclusive: bool) -> Iterator[Step]:
    """In the order in which the kernel accepts them.

    Offloads and rings change while the link is down; a VRF takes the addresses off a link that joins it, so
    it comes before them; on a link that is up a limit would come late and wait for traffic to drain; a link
    must be up before it has neighbours and routes, and before its driver has placed its interrupts.
    """
    yield plan_link(inputs)
    yield from _plan_vf(inputs)
    yield from plan_ethtool(inputs)
    yield from plan_early_sysctls(inputs)
    yield from plan_properties(inputs)
    yield from map(AddAddress, plan_addresses(inputs))
    yield SetUp()
    yield from plan_cpu_locality(inputs.device, inputs.config, inputs.cpus)
    yield from plan_neighbours(inputs)
    yield from plan_routes(inputs)
    yield from plan_rules(inputs)
    yield from plan_late_sysctls(inputs.config)
    yield from plan_rdma_move(inputs.device, inputs.config, exclusive=rdma_exclusive)


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def check_pod(plans: Collection[AttachPlan]) -> None:
    """The devices of a pod share its interface names, routing tables and settings.

    Args:
        plans: the plans of every claim of the pod.

    Raises:
        ClaimError: InvalidConfig, with every clash and the devices of each.
    """
    if problems := [*_check_names(plans), *_check_vrfs(plans), *_check_sysctls(plans)]:
        raise ClaimError(
            "; ".join(problems),
            hint="give each device a config of its own, by the name of its request",
            reason=Reason.INVALID_CONFIG,
        )


def _check_names(plans: Collection[AttachPlan]) -> Iterator[str]:
    owners = _group((plan.pod_ifname, plan.device) for plan in plans if plan.pod_ifname)
    clashes = [f"{', '.join(names)} would all be {name}" for name, names in owners.items() if len(names) > 1]
    clashes += [
        f"{', '.join(owners[vrf.name])} and the VRF of {plan.device} would be {vrf.name}"
        for plan, vrf in _iter_vrfs(plans)
        if vrf.name in owners
    ]
    if clashes:
        yield f"interface.name: names must differ within a pod: {'; '.join(clashes)}"


def _check_vrfs(plans: Collection[AttachPlan]) -> Iterator[str]:
    vrfs = dict.fromkeys((vrf.name, vrf.table) for _, vrf in _iter_vrfs(plans))
    for name, tables in _group(vrfs).items():
        if len(tables) > 1:
            yield f"interface.vrf.table: VRF {name} would have the tables {', '.join(map(str, tables))}"
    for table, names in _group((table, name) for name, table in vrfs).items():
        if len(names) > 1:
            yield f"interface.vrf.table: the VRFs {', '.join(names)} would share {table}; give each its own"


def _check_sysctls(plans: Collection[AttachPlan]) -> Iterator[str]:
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for plan in plans:
        for step in plan.steps:
            if isinstance(step, SetSysctl) and not step.early:
                wanted[step.path].setdefault(step.value, plan.device)
    for plan, _ in _iter_vrfs(plans):
        for path in VRF_SYSCTLS:
            if path in wanted:
                wanted[path].setdefault("1", f"the VRF of {plan.device}")
    for path, values in wanted.items():
        if len(values) > 1:
            each = ", ".join(f"{value} by {owner}" for value, owner in values.items())
            yield f'sysctls["net.{path.replace("/", ".")}"]: the pod has one value, and would get {each}'


def _iter_vrfs(plans: Collection[AttachPlan]) -> Iterator[tuple[AttachPlan, JoinVrf]]:
    for plan in plans:
        yield from ((plan, step) for step in plan.steps if isinstance(step, JoinVrf))


def _group(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups

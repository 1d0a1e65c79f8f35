"""Device + link state + config -> AttachPlan: the ordered steps that put one device into a pod.

Pure: everything the hook will do is decided here, at prepare, from the state that the link had then. What
the pod gets of the host's state, unless the config overrides it: name, MTU, hardware address, the global
addresses, and with those addresses the routes that need them; and, whatever its addresses, the link's policy
routing (other tables, the rules that look them up) and its permanent neighbours. A link on top of the device
(``interface.type``) gets nothing of that.

Each of the other modules has the steps for its part, and the checks that only the link can answer, as lines
"<field path>: what is wrong". All lines of a device are one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from dranet.claims.plan.addresses import check_addresses, plan_addresses
from dranet.claims.plan.ethtool import check_ethtool, plan_ethtool
from dranet.claims.plan.inputs import PlanInput
from dranet.claims.plan.link import (
    check_link,
    plan_link,
    plan_programs,
    plan_properties,
    plan_rates,
    plan_token,
    plan_vrf,
)
from dranet.claims.plan.rdma import check_rdma, plan_rdma_move
from dranet.claims.plan.routes import check_routes, plan_routes
from dranet.claims.plan.rules import check_neighbours, check_rules, plan_neighbours, plan_rules
from dranet.claims.plan.sysctls import (
    check_namespace_sysctls,
    check_sysctls,
    plan_early_sysctls,
    plan_late_sysctls,
)
from dranet.claims.plan.workload import check_cpu_locality, check_workload, plan_cpu_locality, record_cpus
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.cpus import CpuSurroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AddAddress, AddRule, AttachPlan, DhcpLease, IpoibState, LinkState, SetUp, Step


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
) -> AttachPlan:
    """The plan for one device; without steps where nothing moves (a GPU, RDMA in shared mode).

    Args:
        device: the allocated device.
        host: the state of its link now; ``None`` for a device without a link.
        config: decoded and merged for this device.
        rdma_exclusive: RDMA devices belong to one network namespace each, so they also have to move.
        lease: what a DHCP server gave, where the config wants that.
        mac_seed: seed of a generated hardware address; different for each device of each claim.
        physical_function_mtu: MTU of the physical function above a virtual one, where it can be seen.
        cpus: the CPUs of the node, and those that work for the device now, if the config asks for near ones.
        host_rules: the policy rules of the host's namespace.
        ipoib: the IPoIB interfaces of an RDMA device without a link, which end when it moves.

    Raises:
        ClaimError: UnsupportedClaim for what needs a link on a device without one; InvalidConfig for what
            this device cannot take. Either names every field.
        DeviceError: DeviceNotFound for a NIC whose link is not on the host.
        ValueError: the config wants DHCP and there is no lease, or near CPUs and there is nothing about them.
    """
    if device.kind is not DeviceKind.NIC:
        plan = _plan_without_link(device, config, rdma_exclusive, cpus)
        return replace(plan, ipoib=ipoib)
    if host is None:
        raise DeviceError(f"device {device.name} has no network interface on the host")
    if config.interface.dhcp and lease is None:
        raise ValueError(f"no lease for device {device.name}")
    inputs = PlanInput(device, host, config, lease, mac_seed, physical_function_mtu, cpus, host_rules)
    _refuse(device, _check(inputs, rdma_exclusive))
    return AttachPlan(
        device.name,
        tuple(_steps(inputs, rdma_exclusive)),
        inputs.pod_ifname,
        _to_restore(host) if inputs.moves else None,
        lease,
        record_cpus(config, cpus),
    )


def _to_restore(host: LinkState) -> LinkState:
    """Drop what cannot be changed, which would be a third of the record."""
    return replace(host, ethtool=replace(host.ethtool, fixed={}, refused={}))


def _plan_without_link(
    device: Device, config: NetworkConfig, rdma_exclusive: bool, cpus: CpuSurroundings | None
) -> AttachPlan:
    """An RDMA-only device brings settings of the namespace at most; a GPU brings nothing."""
    is_gpu = device.kind is DeviceKind.GPU
    what = "a GPU" if is_gpu else "RDMA-only"
    misplaced = config.needs_link or (is_gpu and not config.is_empty)
    if misplaced:
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
    return AttachPlan(device.name, steps, cpus=record_cpus(config, cpus))


def _check(inputs: PlanInput, rdma_exclusive: bool) -> Iterator[str]:
    yield from check_link(inputs)
    yield from check_addresses(inputs)
    yield from check_routes(inputs)
    yield from check_rules(inputs)
    yield from check_neighbours(inputs)
    yield from check_ethtool(inputs)
    yield from check_sysctls(inputs)
    yield from check_rdma(inputs.device, inputs.config, exclusive=rdma_exclusive)
    yield from check_workload(inputs.device, inputs.config)
    yield from check_cpu_locality(inputs.device, inputs.config, inputs.cpus, inputs.host)


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
    yield from plan_ethtool(inputs)
    yield from plan_early_sysctls(inputs)
    yield from plan_properties(inputs)
    yield from plan_vrf(inputs)
    yield from plan_token(inputs)
    yield from plan_programs(inputs)
    yield from plan_rates(inputs)
    yield from map(AddAddress, plan_addresses(inputs))
    yield SetUp()
    yield from plan_cpu_locality(inputs.device, inputs.config, inputs.cpus)
    yield from plan_neighbours(inputs)
    yield from plan_routes(inputs)
    yield from plan_rules(inputs)
    yield from plan_late_sysctls(inputs.config)
    yield from plan_rdma_move(inputs.device, inputs.config, exclusive=rdma_exclusive)

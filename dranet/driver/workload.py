"""Builds what the programs of one container get. Loaded for the first container that asks for something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from dranet.claims.nccl_topology import (
    NCCL,
    UNKNOWN,
    Topology,
    TopologyError,
    build_topology,
    find_version,
    fits,
    parse_topology,
    render_topology,
)
from dranet.claims.workload import (
    CONF_FILE,
    VIRTUAL_TOPOLOGY,
    ConfigInput,
    PodNic,
    build_environment,
    choose_gid_index,
    has_config,
    has_topology,
    has_ucx_config,
    list_memory_nodes,
    list_nics,
    render_config,
)
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.claim import (
    AUTO,
    CONFIG_NAME,
    CONFIG_PATH,
    TOPOLOGY_NAME,
    TOPOLOGY_PATH,
    Container,
    GidSlot,
    MemoryPolicy,
    NcclSettings,
    PodSandbox,
    Processor,
    WorkloadSettings,
)
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim


class PodContext(Struct, frozen=True):
    """What is known of the pod and its node."""

    records: Sequence[PreparedClaim]
    """Those of all claims of the pod."""
    gpus: Sequence[Device]
    """The pod's GPUs, by PCI address."""
    facts: NodeFacts
    gids: Mapping[str, Sequence[GidSlot]]
    """Tables by RDMA device; empty if they are not asked for."""
    can_set_memory_policy: bool
    """Whether the runtime can."""
    uplink: str = ""
    """Interface by which the pod reaches the cluster's network; empty if it is not asked for or unknown."""
    processor: Processor = UNKNOWN
    nodes_with_memory: Collection[int] | None = None
    """NUMA nodes; ``None``: unknown."""


class Content(Struct, frozen=True):
    """What the container gets; ``files`` are texts by name. What is not asked for is empty."""

    files: Mapping[str, str]
    environment: tuple[tuple[str, str], ...] = ()
    memory_nodes: str = ""
    memory_policy: MemoryPolicy | None = None


def build_content(
    pod: PodSandbox, container: Container, settings: WorkloadSettings, context: PodContext
) -> Content:
    """Raises DeviceError where the devices have not been read yet, ClaimError where memory cannot be
    placed."""
    if not context.facts.links:  # every node has a loopback interface
        raise DeviceError(
            "the node's devices have not been read yet", reason=Reason.DEVICE_NOT_FOUND, retryable=True
        )
    is_read = container.env.get(CONF_FILE, CONFIG_PATH) == CONFIG_PATH and not has_config(container.mounts)
    files = _build_files(pod, container, settings.nccl, context, is_read=is_read)
    wants_ucx = settings.ucx_net_devices and not has_ucx_config(container.mounts)
    for_ucx = _list_paired(context, lambda asked: asked.ucx_net_devices) if wants_ucx else ()
    names = container.env.keys() if is_read else {*container.env, CONF_FILE}
    environment = build_environment(settings, for_ucx, files.keys(), names)
    nodes, policy = _place_memory(settings.memory_policy, container, context)
    if policy is not None:
        environment = (*environment, (POLICY_MARK, f"{settings.memory_policy}:{policy.nodes}"))
    return Content(files, environment, nodes, policy)


def _list_paired(context: PodContext, is_for: Callable[[WorkloadSettings], bool]) -> tuple[PodNic, ...]:
    """List NICs in the order of the GPUs; takes a millisecond or more if there are many."""
    ports = {device.name: tuple(p.number for p in device.ports) for device in context.facts.rdma_devices}
    return list_nics(context.records, context.gpus, ports, is_for)


def _build_files(
    pod: PodSandbox, container: Container, settings: NcclSettings, context: PodContext, *, is_read: bool
) -> Mapping[str, str]:
    files: dict[str, str] = {}
    problem = ""
    if settings.topology_file:
        text, problem = _build_topology(container, context)
        if text:
            files[TOPOLOGY_NAME] = text
    if settings.config_file:
        nics = _list_paired(context, lambda asked: asked.nccl.config_file)
        files[CONFIG_NAME] = render_config(
            ConfigInput(
                pod=f"{pod.namespace}/{pod.name}",
                container=container.name,
                nics=nics,
                settings=settings,
                others=list_nics(context.records, (), {}, lambda asked: not asked.nccl.config_file),
                gids=choose_gid_index(nics, context.gids) if settings.gid_index == AUTO else None,
                topology_path=TOPOLOGY_PATH if TOPOLOGY_NAME in files else "",
                topology_problem=problem,
                is_read=is_read,
                uplink=context.uplink,
                environment=container.env.keys(),
            )
        )
    return files


def _build_topology(container: Container, context: PodContext) -> tuple[str, str]:
    """Return the file, or why it is missing. NCCL would end the program over a file that it cannot read, so
    it is read back."""
    devices = [nic.device for nic in list_nics(context.records, (), {})]
    version = find_version(context.gpus, context.facts)
    topology = build_topology(devices, context.gpus, context.facts, context.processor, version or NCCL)
    problem = ""
    if has_topology(container.mounts):
        problem = f"the container has one mounted at {VIRTUAL_TOPOLOGY}"
    elif version is None:
        problem = "NCCL and RCCL read different ones, and it is not known which GPUs the pod has"
    elif not topology.has_devices:
        problem = "no device of the pod is on PCI"
    elif any(cpu.kind is None for cpu in topology.cpus):
        problem = "the node does not report the kind of its processors"
    elif not fits(topology, devices, context.gpus):
        problem = "the pod has more devices than NCCL can hold"
    text = "" if problem else _render(topology)
    problem = problem or "NCCL could not read the place of a device"
    return (text, "") if text else ("", f"No topology file: {problem}.")


def _render(topology: Topology) -> str:
    """Empty if it does not read back."""
    try:
        text = render_topology(topology)
        return text if parse_topology(text) == topology else ""
    except TopologyError:
        return ""


POLICY_MARK = "DRANET_MEMORY_POLICY"
"""Shown to the program, and to another instance of the driver, which does not see the policy at the
runtime."""
_MODES = {"preferred": "MPOL_PREFERRED_MANY", "interleave": "MPOL_INTERLEAVE"}


def _place_memory(wanted: str, container: Container, context: PodContext) -> tuple[str, MemoryPolicy | None]:
    """Return memory nodes and policy. The kubelet's memory manager takes precedence, because it counts what
    it assigns."""
    if not wanted or POLICY_MARK in container.env:
        return "", None
    near = list_nics(context.records, (), {}, lambda asked: bool(asked.memory_policy))
    nodes = ",".join(map(str, list_memory_nodes(near, context.gpus, context.nodes_with_memory)))
    if not nodes:
        return "", None
    if wanted == "bind":
        return ("" if container.memory_nodes else nodes), None
    if not context.can_set_memory_policy:
        raise ClaimError(
            f"memory.policy: {wanted} needs a runtime with NRI 0.12, and this one does not report it",
            hint="take bind, which every runtime can, or leave it out",
            reason=Reason.MISSING_FEATURE,
        )
    return "", MemoryPolicy(_MODES[wanted], nodes)

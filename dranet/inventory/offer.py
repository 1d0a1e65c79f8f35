"""Decide which devices are offered, with a reason in words for each one.

Never offered are the links that the node needs, and everything that depends on them (``topology``); parts of
the node's network (bridges, tunnels, other pods' veths); ports of a bond or bridge; software links, unless
their kind is known to be harmless. What is left gets the operator's own attributes, and then passes through
the operator's filter. If another program (a vendor's DRA driver, a device plugin) serves one GPU of a vendor,
all of that vendor are left to it: a GPU that two offer may be given to two pods."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.errors import DranetError
from dranet.inventory.build import PAIR_KINDS, bare_device, build_devices, infrastructure_reason
from dranet.inventory.policy import DEFAULT_POLICY, Decision, DeviceFilter, Policy, RuleResult
from dranet.inventory.provided import add_provided
from dranet.inventory.topology import LinkDependencies, carrier, find_link_dependencies
from dranet.model.attributes import ALIAS, GPU_VENDOR, IFNAME, NOT_TEXT, PARENT, RDMA_DEVICE
from dranet.model.device import Bandwidth, Device, DeviceKind
from dranet.model.facts import Gpu, Link, NodeFacts, PciFunction, RdmaDevice
from dranet.model.uplinks import has_local_parent
from dranet.settings import PublishGpus

VENDOR_DRIVERS: Mapping[str, str] = {
    "gpu.nvidia.com": "nvidia",
    "gpu.amd.com": "amd",
    "gpu.intel.com": "intel",
    "gaudi.intel.com": "habana",
    "neuron.aws.com": "aws",
    "tpu.google.com": "google",
}
"""DRA drivers whose devices all mean GPUs of the vendor, with or without a published PCI address. NVIDIA's
``compute-domain.nvidia.com`` is not among them: its devices are channels between nodes."""

_PLUGIN_RESOURCES: Mapping[str, re.Pattern[str]] = {
    "nvidia": re.compile(r"nvidia\.com/(gpu(\..+)?|mig-.+)"),
    "amd": re.compile(r"amd\.com/(gpu|[sdtqc]px(_nps\d+)?)"),
    "intel": re.compile(r"gpu\.intel\.com/.+"),
    "habana": re.compile(r"habana\.ai/.+"),
    "aws": re.compile(r"aws\.amazon\.com/neuron.*"),
    "google": re.compile(r"google\.com/tpu|cloud-tpus\.google\.com/.+"),
    "huawei": re.compile(r"huawei\.com/(Ascend.+|npu)"),
    "hygon": re.compile(r"hygon\.com/dcu.*"),
    "nec": re.compile(r"nec\.com/ve"),
}
"""Extended resources that device plugins announce. Not all of ``nvidia.com/``: its network operator has NICs
there."""

_ANY_GPU = re.compile(r"[^/]+/v?gpu([-_.].*)?", re.IGNORECASE)
"""Resources of those who share out any vendor's GPUs (``volcano.sh/vgpu-number``, ``aliyun.com/gpu-mem``)."""

_VENDORS_OWN = re.compile(r"([^/]+\.)?(nvidia|amd|intel|habana|amazon|google|huawei|hygon|nec)\.[a-z]+/.*")
"""Names of vendors, which identify the GPUs that they mean, or mean none."""


class OfferedElsewhere(Protocol):
    """A device in a slice of another driver (``cluster.node_slices.NodeDevice``)."""

    @property
    def driver(self) -> str: ...
    @property
    def pci_address(self) -> str: ...
    @property
    def uuids(self) -> Sequence[str]: ...


class ServedGpus(Struct, frozen=True):
    """Whose GPUs are left to whom."""

    is_known: bool = True
    """Whether the cluster has been asked. If not, no GPU is offered yet where that matters."""
    by_vendor: Mapping[str, str] = field(default_factory=dict)
    """Vendor (as in :class:`Gpu`) -> who serves its GPUs, which reads after "left to"."""


NO_OTHER_SERVER = ServedGpus()
"""Assumed without a cluster, as for a capture: no other program serves GPUs."""

UNKNOWN = ServedGpus(is_known=False)


def find_servers(
    gpus: Iterable[Gpu],
    devices: Iterable[OfferedElsewhere],
    resources: Iterable[str],
    drivers: Iterable[str] = (),
    used: Iterable[str] = (),
) -> Mapping[str, str]:
    """Map each vendor whose GPUs another program serves on this node to that program. ``drivers`` may have
    empty slices here: a vendor's driver takes broken GPUs out, and pods may have them still. ``used`` are
    resources and drivers of which pods have devices, even if no program serves them now."""
    gpus, devices = tuple(gpus), tuple(devices)
    addresses = {gpu.pci_address: gpu.vendor for gpu in gpus}
    vendors = frozenset(addresses.values())
    uuids = {gpu.uuid.lower(): gpu.vendor for gpu in gpus if gpu.uuid}
    found: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        named = {addresses.get(device.pci_address), *(uuids.get(uuid.lower()) for uuid in device.uuids)}
        for vendor in named & vendors:
            found[str(vendor)].add(f"the DRA driver {device.driver}")
    for driver in {*drivers, *(device.driver for device in devices)}:
        for vendor in _whose(driver, vendors):
            found[vendor].add(f"the DRA driver {driver}")
    for resource in resources:
        for vendor in _whose(resource, vendors):
            found[vendor].add(f"the device plugin of {resource}")
    for name in used:
        for vendor in _whose(name, vendors) - found.keys():
            found[vendor] = {f"the pods that have devices of {name}"}
    # A node has few; one that has many is odd, and the line is to stay readable.
    return {vendor: " and ".join(sorted(servers)[:3]) for vendor, servers in sorted(found.items())}


def _whose(name: str, vendors: frozenset[str]) -> frozenset[str]:
    """The vendors whose GPUs a driver or an extended resource stands for, of those that are here."""
    if "/" not in name:
        return vendors & {VENDOR_DRIVERS.get(name, "")}
    if _ANY_GPU.fullmatch(name) and not _VENDORS_OWN.fullmatch(name):
        return vendors
    return frozenset(v for v, own in _PLUGIN_RESOURCES.items() if v in vendors and own.fullmatch(name))


_PASSTHROUGH_DRIVERS = frozenset({"uio_pci_generic", "igb_uio", "pci-stub", "pciback"})
"""A function bound to one of these belongs to a virtual machine or to user space, not to the kernel."""

_VFIO = "vfio"
"""In the name of ``vfio-pci`` and of its variants for single devices: ``mlx5_vfio_pci``, ``xe-vfio-pci``,
``nvgrace_gpu_vfio_pci``, ``nvidia-vgpu-vfio``."""


def decide(
    devices: Sequence[Device],
    facts: NodeFacts,
    policy: Policy = DEFAULT_POLICY,
    held: Collection[str] = frozenset(),
    served: ServedGpus = NO_OTHER_SERVER,
) -> tuple[Decision, ...]:
    """One decision for each device, in the same order. ``devices`` are built from the same ``facts``; those
    that ``held`` names belong to pods now."""
    view = _HostView.of(facts, policy, [device for device in devices if device.name in held], served)
    decisions = tuple(
        _decide_held(device, view) if device.name in held else _decide_free(device, view)
        for device in devices
    )
    return decisions if policy.default_bandwidth is None else _count_ports_once(decisions, view, held)


def _count_ports_once(
    decisions: Sequence[Decision], view: _HostView, held: Collection[str]
) -> tuple[Decision, ...]:
    """Take out each link on top of a device whose bandwidth is counted: it sends through the same port, and
    reports its speed as its own. What pods have keeps its place."""
    counted = {d.device.ifname for d in decisions if d.published and d.device.shared and d.device.ifname}
    return tuple(
        replace(decision, published=False, reason=_ON_COUNTED.format(below))
        if decision.published
        and decision.device.name not in held
        and (below := _find_counted_below(decision.device, view, counted))
        else decision
        for decision in decisions
    )


_ON_COUNTED = (
    "sends through {}, a shared device whose bandwidth is counted: together they could exceed the port"
)


def _find_counted_below(device: Device, view: _HostView, counted: Collection[str]) -> str:
    """The name of the lowest link below that is counted, or empty. Each link is looked at once: an ifindex
    that the kernel gave again during the scan could make a ring."""
    found, link, seen = "", view.by_name.get(device.ifname), set[int]()
    while link is not None and link.ifindex not in seen:
        seen.add(link.ifindex)
        link = view.by_index.get(link.lower) if link.lower and _rides(link) else None
        found = link.ifname if link is not None and link.ifname in counted else found
    return found


def uplink_names(facts: NodeFacts) -> frozenset[str]:
    """Return the names of the links that the node needs, and of everything that depends on them."""
    return frozenset(find_link_dependencies(facts).links)


class _HostView(Struct, frozen=True):
    """The host's links, indexed for the questions that a decision asks."""

    by_name: Mapping[str, Link]
    by_index: Mapping[int, Link]
    functions: Mapping[str, PciFunction]
    on_function: Mapping[str, Sequence[Link]]
    riders: Mapping[int, str]
    """ifindex -> name of a link that rides on it (VLAN, macvlan ...), here or in a pod. The two ends of a
    pair name each other, and each can do without the other's place."""
    dependencies: LinkDependencies
    rdma: Mapping[str, RdmaDevice]
    facts: NodeFacts
    policy: Policy
    served: ServedGpus
    gpu_parts: Mapping[str, str]
    """PCI address -> what the GPU is cut into."""

    @classmethod
    def of(
        cls,
        facts: NodeFacts,
        policy: Policy,
        held: Sequence[Device],
        served: ServedGpus,
    ) -> _HostView:
        functions = {function.address: function for function in facts.pci_functions}
        on_function: dict[str, list[Link]] = defaultdict(list)
        for link in facts.links:
            if link.pci_address and (address := carrier(link, functions)):
                on_function[address].append(link)
        by_name = {link.ifname: link for link in facts.links}
        return cls(
            by_name=by_name,
            by_index={link.ifindex: link for link in facts.links},
            functions=functions,
            on_function=on_function,
            riders={**_riders_in_pods(held, by_name), **_riders_here(facts)},
            dependencies=find_link_dependencies(facts),
            rdma={device.name: device for device in facts.rdma_devices},
            facts=facts,
            policy=policy,
            served=served,
            gpu_parts={gpu.pci_address: gpu.parts for gpu in facts.gpus if gpu.parts},
        )

    @property
    def rdma_moves(self) -> bool:
        """An RDMA device moves into the pod's namespace, and its IPoIB interfaces are lost to the node."""
        return self.facts.rdma_netns_exclusive

    def links_of(self, device: Device) -> Sequence[Link]:
        """Every link that goes, or breaks, with the device."""
        on_function = self.on_function.get(device.pci_address)
        if on_function:
            return on_function
        return (self.by_name[device.ifname],) if device.ifname in self.by_name else ()


def _riders_here(facts: NodeFacts) -> dict[int, str]:
    return {link.lower: link.ifname for link in facts.links if link.lower and _rides(link)}


def _rides(link: Link) -> bool:
    """Whether its ``lower`` is a link of this namespace that carries it."""
    return link.kind not in PAIR_KINDS and has_local_parent(link)


def _riders_in_pods(held: Sequence[Device], by_name: Mapping[str, Link]) -> dict[int, str]:
    """By the name that the link below had at Prepare, which is all that is known of it here."""
    below = ((device, by_name.get(str(device.attributes.get(PARENT.qualified)))) for device in held)
    return {link.ifindex: f"{device.name}, which a pod has," for device, link in below if link is not None}


HELD = "belongs to a pod now and keeps its place"
OUT_OF_SIGHT = "has no network interface in the host's network namespace"


def _decide_held(device: Device, view: _HostView) -> Decision:
    """A function that was there when the pod got it and is not now has been unplugged."""
    if device.pci_path and device.pci_address not in view.functions:
        return Decision(
            device, False, f"is gone while a pod has it: there is no {device.pci_address} any more"
        )
    return Decision(device, True, HELD)


def _decide_free(device: Device, view: _HostView) -> Decision:
    policy = view.policy
    link = None if device.attributes else view.by_name.get(device.ifname)
    if link and (reason := _soft_link_reason(link, view, view.policy.offer_link_kinds)):
        return _decide_bare(device.name, device.ifname, reason)
    reason = _exclusion_reason(device, view)
    anchor = "" if reason else _pinned_reason(device, view) or _rider_reason(device, view)
    if reason or (anchor and policy.shared is None):
        return Decision(device, False, reason or anchor)
    if policy.rules is None and policy.filter is None and policy.shared is None:
        return Decision(device, True, _offered_reason(device, view))
    decision = _decide_once(device, policy)
    if decision.published and device.kind is DeviceKind.RDMA:
        decision = replace(decision, reason=_offered_reason(device, view))
    if anchor and decision.published and not decision.device.shared:  # what is shared stays where it is
        return Decision(decision.device, False, anchor)
    return decision


@lru_cache(maxsize=4096)
def _decide_bare(name: str, ifname: str, reason: str) -> Decision:
    """One of the node's own links, of which a node full of pods has the same thousand at each scan."""
    return Decision(bare_device(name, ifname), False, reason)


def _decide_once(device: Device, policy: Policy) -> Decision:
    """An expression costs a tenth of a millisecond, so a device that has not changed is not judged again."""
    known = policy.judged.get(device.name)
    if known is not None and known[0] == device:
        return known[1]
    decision = _decide_by_policy(device, policy)
    if len(policy.judged) >= _MAX_JUDGED:
        policy.judged.clear()
    policy.judged[device.name] = (device, decision)
    return decision


def _decide_by_policy(device: Device, policy: Policy) -> Decision:
    """The operator's attributes, then who may share it, then the operator's filter."""
    added = policy.rules.attributes_for(device) if policy.rules else RuleResult()
    device = replace(device, attributes={**device.attributes, **added.attributes})
    if policy.shared is not None and device.kind is DeviceKind.NIC:
        device, added = _share(device, added, policy.shared)
        device = replace(device, bandwidth=_find_bandwidth(device, policy))
        if device.shared and policy.default_bandwidth is not None and device.bandwidth is None:
            return Decision(device, False, _UNCOUNTABLE, warnings=added.warnings)
    try:
        if policy.filter is None or policy.filter.matches(device.attributes):
            return Decision(device, True, _OFFERED[device.kind], warnings=added.warnings)
        return Decision(device, False, "does not match the operator's filter", warnings=added.warnings)
    except DranetError as error:
        reason = f"fails the operator's filter: {error.message}"
        return Decision(device, False, reason, filter_failed=True, warnings=added.warnings)


def _share(device: Device, added: RuleResult, shared: DeviceFilter) -> tuple[Device, RuleResult]:
    """Mark a shared device. If the expression fails, one claim at a time may have it, and a warning is
    added."""
    try:
        return replace(device, shared=shared.matches(device.attributes)), added
    except DranetError as error:
        warning = f"device {device.name} is not shared: shared_devices fails on it: {error.message}"
        return device, replace(added, warnings=(*added.warnings, warning))


def _find_bandwidth(device: Device, policy: Policy) -> Bandwidth | None:
    """``None`` also for a port whose speed was not known since the driver started, and is not assumed."""
    if not device.shared or policy.default_bandwidth is None:
        return None
    total = policy.find_port_rate(device)
    return Bandwidth(total, min(policy.default_bandwidth, total)) if total else None


_UNCOUNTABLE = (
    "has reported no speed since the driver started, so the bandwidth of its shares cannot be counted; "
    "assumed_bandwidth would offer it"
)
"""Without a capacity each claim would get a share that counts for nothing and has no limit."""

_MAX_JUDGED = 4096
"""So many devices are remembered; names that come and go must not fill the memory."""

_OFFERED = {
    DeviceKind.NIC: "is a network interface that the node can spare",
    DeviceKind.RDMA: "is an RDMA device without network interface",
    DeviceKind.GPU: "is a GPU",
}


def _offered_reason(device: Device, view: _HostView) -> str:
    """In exclusive mode an IPoIB interface is no device: with the RDMA device it ends, and comes back new."""
    links = [link.ifname for link in view.links_of(device)] if device.kind is DeviceKind.RDMA else []
    if not links or not view.rdma_moves:
        return _OFFERED[device.kind]
    names = ", ".join(links)
    return (
        f"is an RDMA device; its IPoIB interface {names} is not offered: in exclusive RDMA mode the kernel "
        "destroys it when the device moves, and the node has it again, restored, when the device is back"
    )


_RECORDED = {IFNAME.qualified: "name", RDMA_DEVICE.qualified: "RDMA device's name", ALIAS.qualified: "alias"}
"""What the store keeps of a device for its way back, besides what is always text."""


def _exclusion_reason(device: Device, view: _HostView) -> str:
    for name, odd in _RECORDED.items() if device.left_out else ():
        if device.left_out.get(name) == NOT_TEXT:
            return f"cannot be recorded: its {odd} {NOT_TEXT}"
    if device.kind is DeviceKind.GPU:
        return _gpu_reason(device, view)
    if device.kind is DeviceKind.RDMA:
        return _dependency_reason(device, view) if view.rdma_moves else ""
    link = view.by_name.get(device.ifname)
    if link is None:
        reason = _driver_reason(view.functions.get(device.pci_address))
        return reason or OUT_OF_SIGHT
    if device.pci_address:
        return _dependency_reason(device, view)
    # A bond with an RDMA device of its own (RoCE LAG) is no mere piece of the node's network.
    kinds = {"bond", *view.policy.offer_link_kinds} if device.rdma_device else view.policy.offer_link_kinds
    return _soft_link_reason(link, view, kinds)


def _gpu_reason(device: Device, view: _HostView) -> str:
    """Check first whether another driver serves the GPU; then its own state does not matter."""
    publish = view.policy.publish_gpus
    vendor = str(device.attributes.get(GPU_VENDOR.qualified, ""))
    if publish is PublishGpus.NEVER:
        return "is a GPU, and the setting publish_gpus is never"
    if publish is PublishGpus.AUTO and vendor in view.served.by_vendor:
        return f"is a GPU, left to {view.served.by_vendor[vendor]} (publish_gpus is auto)"
    if publish is PublishGpus.AUTO and not view.served.is_known:
        return "is a GPU, and the API server has not answered yet whether another driver serves it"
    function = view.functions.get(device.pci_address)
    parts = view.gpu_parts.get(device.pci_address, "")
    return _driver_reason(function) or find_gpu_fault(device, function, parts)


def _soft_link_reason(link: Link, view: _HostView, offered_kinds: Collection[str]) -> str:
    """A node full of pods has a thousand of these; what most of them are is asked early."""
    dependency = view.dependencies.links.get(link.ifname)
    if dependency:
        return dependency.reason_for(link.ifname)
    return infrastructure_reason(link, offered_kinds) or _master_reason(link, view)


def _driver_reason(function: PciFunction | None) -> str:
    """Why the driver of a function, or its absence, keeps it from containers."""
    if function and (function.driver in _PASSTHROUGH_DRIVERS or _VFIO in function.driver):
        return f"is bound to {function.driver}, for a virtual machine or a program in user space"
    return "has no driver" if function and not function.driver else ""


def _dependency_reason(device: Device, view: _HostView) -> str:
    links = view.links_of(device)
    for link in links:
        dependency = view.dependencies.links.get(link.ifname)
        if dependency:
            return dependency.reason_for(link.ifname)
    if device.pci_address in view.dependencies.functions:
        return view.dependencies.functions[device.pci_address].reason_for("")
    return next(filter(None, (_master_reason(link, view) for link in links)), "")


def _master_reason(link: Link, view: _HostView) -> str:
    if link.master is None:
        return ""
    master = view.by_index.get(link.master)
    name = master.ifname if master else f"interface {link.master}"
    kind = f" ({master.kind})" if master and master.kind else ""
    return f"is enslaved: {link.ifname} is a port of {name}{kind}"


def _rider_reason(device: Device, view: _HostView) -> str:
    """What would go, or break, with a device that leaves the node. What is shared stays there."""
    if device.kind is DeviceKind.GPU or (device.kind is DeviceKind.RDMA and not view.rdma_moves):
        return ""
    if reason := _rdma_reason(device, view):
        return reason
    for link in view.links_of(device):
        if rider := view.riders.get(link.ifindex):
            return f"carries another interface: {rider} on {link.ifname} would be lost"
    return ""


def _rdma_reason(device: Device, view: _HostView) -> str:
    """Why the RDMA device does not get into a pod with the rest of the device, or does not survive it."""
    rdma = view.rdma.get(device.rdma_device)
    if rdma is None:
        return ""
    function = view.functions.get(rdma.pci_address)
    if device.kind is DeviceKind.NIC and (why := find_loss(rdma, function, view.facts.host.kernel)):
        return f"has the RDMA device {rdma.name}, which ends when the interface moves: {why}"
    if view.rdma_moves and (why := find_immobility(rdma, function)):
        return f"has the RDMA device {rdma.name}, which must move in exclusive RDMA mode: {why}"
    return ""


def _pinned_reason(device: Device, view: _HostView) -> str:
    link = view.by_name.get(device.ifname)
    if link is None or not link.netns_immutable:
        return ""
    return (
        f"cannot move into a pod: the kernel pins {link.ifname} to the node's network namespace; "
        "shared_devices may offer it as the parent of links on top"
    )


_VIRTUAL_DISPLAYS = frozenset({"1234", "1414", "15ad", "1af4", "1b36"})
"""PCI vendors of the screens of virtual machines (QEMU, Microsoft, VMware, virtio, Red Hat). That of virtio
has a render node, which draws with the GPU of the machine outside, or with no GPU at all."""

_COMPUTE_NODES: Mapping[str, tuple[str, str]] = {
    "nvidia": ("/dev/nvidia-uvm", "the kernel module nvidia-uvm makes it"),
    "amd": ("/dev/kfd", "amdgpu makes it where it is built with HSA_AMD"),
}
"""By vendor: the device node that CUDA or ROCm needs for any GPU, and what creates it."""


def find_gpu_fault(device: Device, function: PciFunction | None, parts: str) -> str:
    """Return why a container cannot use the whole GPU; empty if it can. An error at Prepare would come too
    late: the scheduler would choose the same device again. ``parts``: what the GPU is cut into."""
    vendor = str(device.attributes.get(GPU_VENDOR.qualified, ""))
    if vendor in _VIRTUAL_DISPLAYS:
        return "is a display adapter of a virtual machine"
    if function is not None and function.sriov_num_vfs:
        parts = parts or f"{function.sriov_num_vfs} virtual functions"
    if parts:
        return f"is a GPU that is cut into parts ({parts})"
    paths = {node.path for node in device.char_devices}
    if not paths:
        return "is a GPU without a device node that a container could be given"
    node, maker = _COMPUTE_NODES.get(vendor, ("", ""))
    if node and node not in paths:
        return f"is a GPU, and there is no {node} to compute through: {maker}"
    return ""


_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})")
_BNXT, _BNXT_IS_AUXILIARY = "bnxt_en", (6, 3)
_IMMOBILE_DRIVERS = frozenset({"efa"})
"""Drivers of the PCI function."""


def find_loss(rdma: RdmaDevice, function: PciFunction | None, kernel: str) -> str:
    """Why the RDMA device ends when its link moves, or empty. The kernel reports it only after an attempt.
    Software devices (rxe and siw) unregister on ``NETDEV_UNREGISTER``, and so do those of bnxt_re before
    Linux 6.3, which made it an auxiliary driver. A distribution may have brought the newer driver to an older
    kernel (``6.1.0-28-amd64``), so what the driver binds to counts first; an unknown release counts as
    new."""
    if not rdma.pci_address:
        return "it is software RDMA (rxe, siw)"
    found = _RELEASE.match(kernel)
    is_bnxt = function is not None and function.driver == _BNXT
    if not is_bnxt or rdma.auxiliary or not found:
        return ""
    is_old = (int(found[1]), int(found[2])) < _BNXT_IS_AUXILIARY
    return f"its driver is bnxt_re of Linux {found[0]}, before 6.3" if is_old else ""


def find_immobility(rdma: RdmaDevice, function: PciFunction | None) -> str:
    """Why the RDMA device cannot move between namespaces, as exclusive mode demands, or empty. The kernel
    asks for ``disassociate_ucontext``, which EFA does not have, nor rxe in Linux 6.12, and refuses the move
    with EOPNOTSUPP."""
    if not rdma.pci_address:
        return "software RDMA (rxe, siw) cannot"
    if function is not None and function.driver in _IMMOBILE_DRIVERS:
        return f"the driver {function.driver} cannot"
    return ""


def take_inventory(
    facts: NodeFacts,
    held: Mapping[str, Device],
    policy: Policy = DEFAULT_POLICY,
    served: ServedGpus = NO_OTHER_SERVER,
) -> tuple[Decision, ...]:
    """One decision for each device of the node, in order of preference. ``held`` are the devices that pods
    have now, by name, as recorded when they were prepared."""
    devices = add_provided(build_devices(facts, held, policy), facts, held)
    decisions = decide(devices, facts, policy, held.keys(), served)
    rules = policy.virtual_functions
    return decisions if rules is None else rules.share_counters(rules.count_bandwidth(decisions, policy))

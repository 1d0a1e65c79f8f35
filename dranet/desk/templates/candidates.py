"""DeviceClasses that requests name, and the nodes with the NICs that can give what is requested.

A class that the cluster has is used as it is: it is an administrator's, and every claim that names it would
change with it. When no node can give what is requested, the refusal names the reason and what one could give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dranet.desk.allocation.capacity import format_amount
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.requests import parse_claim
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.hardware.nodes import Hardware, NodeHardware, Spot
from dranet.desk.kubeapi.objects import MAX_RESULTS, JsonObject
from dranet.desk.templates import selectors
from dranet.desk.templates.chart_classes import MEMLOCK, PART_CLASSES, VENDOR_CLASSES, build_class
from dranet.desk.templates.request import ClaimRequest, listed
from dranet.errors import ClaimError, Reason
from dranet.quantity import NANO
from dranet.terminal import count_of

Classes = Mapping[str, JsonObject]
"""DeviceClasses by name."""

_RDMA_CLASS, _NIC_CLASS, _GPU_CLASS = "dranet-rdma", "dranet-nic", "dranet-gpu"


def nic_class_name(request: ClaimRequest, rdma: bool) -> str:
    return request.nic_class or (_RDMA_CLASS if rdma else _NIC_CLASS)


def gpu_class_name(request: ClaimRequest, hardware: Hardware) -> str:
    """The user's choice; else ours for our own GPUs; else the driver's name, as vendors name their class."""
    usual = PART_CLASSES.get(hardware.gpu_driver) if request.gpu_part else None
    return request.gpu_class or usual or (_GPU_CLASS if hardware.has_own_gpus else hardware.gpu_driver)


def select_gpus(request: ClaimRequest, hardware: Hardware) -> Iterator[str]:
    """Selectors for what the class may not distinguish. NVIDIA's own class of whole GPUs has no others."""
    if request.gpu_part:
        yield selectors.gpu_part(hardware.gpu_driver, request.gpu_part)
    elif hardware.has_other_gpu_devices and gpu_class_name(request, hardware) not in PART_CLASSES:
        yield selectors.whole_gpu(hardware.gpu_driver)


def build_classes(
    request: ClaimRequest, hardware: Hardware, rdma: bool, known: Classes
) -> tuple[JsonObject, ...]:
    """The classes that the manifests bring with them: none that the cluster has, and not a vendor's."""
    driver = hardware.nic_driver
    classes = [_nic_class(nic_class_name(request, rdma), driver, rdma)]
    if request.gpus and hardware.has_own_gpus:
        classes.append(build_class(gpu_class_name(request, hardware), selectors.own_gpu(driver)))
    return tuple(one for one in classes if one["metadata"]["name"] not in known)


def assumed_classes(request: ClaimRequest, hardware: Hardware) -> dict[str, JsonObject]:
    """A vendor's class as it must be for the manifests to work, for a look without the cluster's own."""
    if not request.gpus or hardware.has_own_gpus or request.gpu_resource:
        return {}
    name = gpu_class_name(request, hardware)
    selector = selectors.vendors_gpu_part if request.gpu_part else selectors.vendors_gpu
    return {name: build_class(name, selector(hardware.gpu_driver))}


def select(spots: Sequence[Spot], class_name: str, known: Classes) -> tuple[Spot, ...]:
    """Those that the class selects, by the scheduler's rules; all of a class that is not known, or of which
    the scheduler would make an error: the trial comes to that."""
    request = {"name": "any", "exactly": {"deviceClassName": class_name}}
    claim = {"metadata": {"name": "any"}, "spec": {"devices": {"requests": [request]}}}
    try:
        (alternative,) = parse_claim(claim, known).requests[0].alternatives
    except AllocationError:
        return tuple(spots)
    selector_results = [SelectorResults().of(alternative, spot.device) for spot in spots]
    return tuple(s for s, one in zip(spots, selector_results, strict=True) if one.matches or one.error)


def _nic_class(name: str, driver: str, rdma: bool) -> JsonObject:
    """RDMA pins what it sends and receives, and the limit of most runtimes is too small for that. The class
    raises it, so that no claim has to, and none for GPUs does."""
    if not rdma:
        return build_class(name, selectors.nic_with_interface(driver))
    return build_class(name, selectors.rdma_nic(driver), driver, MEMLOCK)


_HOW_TO_COUNT = "the settings shared_devices and default_bandwidth offer shared NICs with a bandwidth"

NotOffered = Mapping[str, Sequence[str]]
"""Node -> the NICs that it has and does not offer, each with the reason: ``mlx5_8 is the node's uplink``."""


class NotAvailable(ClaimError):
    """No node can ever give this."""

    default_reason = Reason.DEVICE_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is asked, in numbers, and the nodes that have it."""

    request: ClaimRequest
    rdma: bool
    nodes: tuple[NodeHardware, ...]
    """With the devices that count."""
    others: tuple[NodeHardware, ...]
    """Nodes that can not give it."""
    needs_down: bool = False
    """There are not enough NICs with a link, so those without one also count."""
    without_link: Mapping[str, int] = field(default_factory=dict)
    """By node, how many NICs are passed over because their port is down."""
    fabric: str = ""
    """Where a node has NICs of several, the one of the claim: pods that talk to each other need one."""
    off_fabric: Mapping[str, int] = field(default_factory=dict)
    """By node, how many NICs are left out because they are of another one."""

    @property
    def several_fabrics(self) -> tuple[str, ...]:
        """A pod may get NICs of each, because there are not enough of one."""
        mixed = [fabrics for node in self.nodes if len(fabrics := _fabrics_of(node)) > 1]
        return tuple(sorted(set().union(*mixed)))


def find_candidates(
    request: ClaimRequest, hardware: Hardware, not_offered: NotOffered, known: Classes
) -> Candidates:
    """Raises :class:`NotAvailable`."""
    _refuse_class_of_others(request, hardware, known)
    nodes = _of_classes(hardware.nodes, request.nic_class, gpu_class_name(request, hardware), known)
    rdma = _wants_rdma(request, nodes)
    kind = tuple(node.with_nics(lambda nic: nic.has_rdma if rdma else bool(nic.ifname)) for node in nodes)
    nodes = kind if request.nic_class else _of_classes(kind, nic_class_name(request, rdma), "", known)
    if not any(node.nics for node in nodes):
        raise _no_nic(request, hardware, rdma, not_offered, known)
    up = tuple(node.with_nics(lambda nic: nic.is_up) for node in nodes)
    for fabric in (*(_fabrics(request, up) if rdma else ()), ""):
        on = tuple(_on_fabric(node, fabric) for node in up)
        if found := _fit(request, rdma, on):
            down, off = _missing(nodes, up, found.nodes), _missing(up, on, found.nodes)
            return replace(found, without_link=down, fabric=fabric, off_fabric=off)
    if found := _fit(request, rdma, nodes):
        return replace(found, needs_down=True)
    raise _refuse(request, hardware, rdma, nodes, not_offered, known)


def _refuse_class_of_others(request: ClaimRequest, hardware: Hardware, known: Classes) -> None:
    """A vendor's class is not made for our GPUs: applied, it would replace the vendor's own."""
    if request.gpu_class in VENDOR_CLASSES and request.gpu_class not in known and hardware.has_own_gpus:
        raise NotAvailable(
            f"--gpu-class {request.gpu_class}: that is a class of a vendor's driver, and the GPUs here are "
            f"those of {hardware.gpu_driver}",
            hint="leave it out, or give the ResourceSlices of the vendor's driver with -f FILE",
        )


def _of_classes(
    nodes: Sequence[NodeHardware], nic_class: str, gpu_class: str, known: Classes
) -> tuple[NodeHardware, ...]:
    return tuple(
        replace(node, nics=select(node.nics, nic_class, known), gpus=select(node.gpus, gpu_class, known))
        for node in nodes
    )


def _wants_rdma(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> bool:
    """The user's choice; else whether a node with GPUs (when some are requested) has RDMA."""
    if request.rdma is not None:
        return request.rdma
    with_gpus = [node for node in nodes if node.gpus] if request.gpus else []
    return any(nic.has_rdma for node in with_gpus or nodes for nic in node.nics)


def _fabrics(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> list[str]:
    """None where no node has several; else first the one with most NICs that are as near to a GPU as any of
    their node: the others are for storage, or to reach the node."""
    useful = [node for node in nodes if node.gpus or not request.gpus]
    if not any(len(_fabrics_of(node)) > 1 for node in useful):
        return []
    near = Counter(nic.fabric for node in useful for nic in _nearest(node))
    every = {fabric for node in useful for fabric in _fabrics_of(node)}
    return sorted(every, key=lambda fabric: (-near[fabric], fabric != "InfiniBand", fabric))


def _on_fabric(node: NodeHardware, fabric: str) -> NodeHardware:
    return node.with_nics(lambda nic: nic.fabric == fabric) if fabric else node


def _fabrics_of(node: NodeHardware) -> set[str]:
    return {nic.fabric for nic in node.nics} - {""}


def _nearest(node: NodeHardware) -> list[Spot]:
    """The NICs nearest to the GPUs; all of them where no distance is published."""
    known = [nic.nearest_gpu for nic in node.nics if nic.nearest_gpu is not None]
    return [nic for nic in node.nics if not known or nic.nearest_gpu == min(known)]


def _missing(
    before: Sequence[NodeHardware], after: Sequence[NodeHardware], of: Sequence[NodeHardware]
) -> dict[str, int]:
    names = {node.name for node in of}
    numbers = {b.name: len(b.nics) - len(a.nics) for b, a in zip(before, after, strict=True)}
    return {name: number for name, number in numbers.items() if number and name in names}


def _fit(request: ClaimRequest, rdma: bool, nodes: Sequence[NodeHardware]) -> Candidates | None:
    numbers = _in_numbers(request, nodes)
    good = {node.name for node in nodes if _fits(numbers, node)}
    if not good:
        return None
    chosen = tuple(node for node in nodes if node.name in good)
    return Candidates(numbers, rdma, chosen, tuple(node for node in nodes if node.name not in good))


def _in_numbers(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> ClaimRequest:
    """With ``--per-node`` the numbers of the largest node; as rails only the NICs nearest to the GPUs. Where
    no GPUs are requested, it has 0."""
    if not request.per_node:
        return request
    gpus = max((node.gpu_count for node in nodes), default=0) if request.gpus else 0
    counts = [len(_nearest(node) if request.rails else node.nics) for node in nodes]
    return replace(request, gpus=gpus, nics=max([1, *counts]))


def _fits(request: ClaimRequest, node: NodeHardware) -> bool:
    if request.per_node and not request.rails:
        has_gpus = node.gpu_count == request.gpus if request.gpu_resource else bool(node.gpus)
        return bool(node.nics) and (has_gpus or not request.gpus)
    return node.gpu_count >= request.gpus and len(node.nics) >= request.nics


# --- refusals ----------------------------------------------------------------------------------------


def _no_nic(
    request: ClaimRequest, hardware: Hardware, rdma: bool, not_offered: NotOffered, known: Classes
) -> NotAvailable:
    if request.bandwidth > hardware.most_bandwidth:
        most = format_amount(hardware.most_bandwidth * NANO)
        hint = f"the most is {most}" if hardware.most_bandwidth else _HOW_TO_COUNT
        return NotAvailable(f"--bandwidth {request.amount}: no shared NIC has so much", hint=hint)
    if not any(node.nics for node in hardware.nodes):
        why = listed((*hardware.defects, *(taint for node in hardware.nodes for taint in node.tainted)))
        held = listed((one for of_node in not_offered.values() for one in of_node), most=1)
        hint = (
            "dranet devices --all --capture FILE lists the reasons"
            if not_offered  # only captures have it, and no driver need run where they are from
            else f"is the driver {hardware.nic_driver} running there? kubectl get resourceslices"
        )
        return NotAvailable("no node offers a NIC", hint=why or held or hint)
    name = nic_class_name(request, rdma)
    if name in known:
        hint = "another one is named with --class; the default writes one"
        return NotAvailable(f"the DeviceClass {name} of this cluster selects no NIC", hint=hint)
    if rdma:
        return NotAvailable("no node offers an RDMA NIC", hint="--no-rdma takes NICs without RDMA")
    return NotAvailable(
        "no NIC here has a network interface", hint="--rdma also takes RDMA devices without one"
    )


def _refuse(
    request: ClaimRequest,
    hardware: Hardware,
    rdma: bool,
    nodes: Sequence[NodeHardware],
    not_offered: NotOffered,
    known: Classes,
) -> NotAvailable:
    kind = "RDMA NIC" if rdma else "NIC"
    flag = " --rdma" if rdma else " --no-rdma"
    most = max(nodes, key=lambda node: (node.gpu_count, len(node.nics)))
    if request.gpu_part and not any(node.gpus for node in nodes):
        return NotAvailable(
            f"no node offers a part of a GPU with the profile {request.gpu_part}",
            hint=f"these are offered: {listed(hardware.gpu_parts)}"
            if hardware.gpu_parts
            else "no part of any GPU is",
        )
    if request.gpus and (beside := _find_node_near_unpublished_gpus(nodes, hardware)):
        return NotAvailable(
            f"no claim can ask for the GPUs of {beside}: no DRA driver publishes them",
            hint="a device plugin gives them (--gpu-resource nvidia.com/gpu names what it calls them), "
            "publish_gpus is never, or dranet devices --all on the node shows why",
        )
    closest = _name_closest(request, nodes)
    if request.gpus > most.gpu_count:
        of_class = _of_class(gpu_class_name(request, hardware), known)
        return NotAvailable(
            f"--gpus {request.gpus}: {_largest(nodes)}, {most.name}, "
            f"has {most.gpu_count or 'none'}{of_class}",
            hint=closest,
        )
    most = max(nodes, key=lambda node: len(node.nics))
    if request.nics > len(most.nics):
        of_class = _of_class(nic_class_name(request, rdma), known)
        reasons = listed((*not_offered.get(most.name, ()), *most.tainted))
        return NotAvailable(
            f"--nics {request.nics}{flag}: {_largest(nodes)}, {most.name}, "
            f"offers {count_of(len(most.nics), kind)}{of_class}" + (f" ({reasons})" if reasons else ""),
            hint=closest,
        )
    best = max(nodes, key=lambda node: min(node.gpu_count, request.gpus) + min(len(node.nics), request.nics))
    return NotAvailable(
        f"no node has both {count_of(request.gpus, 'GPU')} and {count_of(request.nics, kind)}: {best.name} "
        f"has {count_of(best.gpu_count, 'GPU')} and {count_of(len(best.nics), kind)}",
        hint=closest,
    )


def _name_closest(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> str:
    """The request most like this one that a node can give: with fewer GPUs, as many NICs for each of them."""
    numbers = [(min(node.gpu_count, request.gpus), len(node.nics)) for node in nodes if node.nics]
    gpus, nics = max(numbers, key=lambda pair: (pair[0] + min(pair[1], request.nics), pair[0]))
    wanted = max(1, request.nics * gpus // request.gpus) if gpus else request.nics
    room = MAX_RESULTS - (0 if request.gpu_resource else gpus)
    return f"--gpus {gpus} --nics {min(wanted, nics, room)} works"


def _find_node_near_unpublished_gpus(nodes: Sequence[NodeHardware], hardware: Hardware) -> str:
    """Name a node whose NICs publish a GPU next to them while no slice has any GPU."""
    if any(node.gpus for node in hardware.nodes):
        return ""
    return next((node.name for node in nodes if node.has_gpus_nearby), "")


def _of_class(name: str, known: Classes) -> str:
    return f" of the DeviceClass {name}" if name in known else ""


def _largest(nodes: Sequence[NodeHardware]) -> str:
    return "the only node" if len(nodes) == 1 else "the largest node"

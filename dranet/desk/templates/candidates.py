"""DeviceClasses: which ones requests name, which of them are written, and what those of the cluster select.

A class that the cluster has is used as it is: it is an administrator's, and every claim that names it would
change with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.requests import parse_claim
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.templates import selectors
from dranet.desk.templates.hardware import Hardware, NodeHardware, Spot
from dranet.desk.templates.request import Ask, count, listed
from dranet.errors import ClaimError, Reason

Classes = Mapping[str, JsonObject]
"""DeviceClasses by name."""

_RDMA_CLASS, _NIC_CLASS, _GPU_CLASS = "dranet-rdma", "dranet-nic", "dranet-gpu"


def nic_class_name(ask: Ask, rdma: bool) -> str:
    return ask.nic_class or (_RDMA_CLASS if rdma else _NIC_CLASS)


def gpu_class_name(ask: Ask, hardware: Hardware) -> str:
    """What the user says; else ours for our own GPUs; else the driver's name, as vendors call their class."""
    return ask.gpu_class or (_GPU_CLASS if hardware.has_own_gpus else hardware.gpu_driver)


def build_classes(ask: Ask, hardware: Hardware, rdma: bool, known: Classes) -> tuple[JsonObject, ...]:
    """The classes that the manifests bring with them: none that the cluster has, and not a vendor's."""
    driver = hardware.nic_driver
    classes = [_nic_class(nic_class_name(ask, rdma), driver, rdma)]
    if ask.gpus and hardware.has_own_gpus:
        classes.append(_device_class(gpu_class_name(ask, hardware), selectors.own_gpu(driver)))
    return tuple(one for one in classes if one["metadata"]["name"] not in known)


def assumed_classes(ask: Ask, hardware: Hardware) -> dict[str, JsonObject]:
    """A vendor's class as it must be for the manifests to work, for a look without the cluster's own."""
    if not ask.gpus or hardware.has_own_gpus:
        return {}
    name = gpu_class_name(ask, hardware)
    return {name: _device_class(name, selectors.vendors_gpu(hardware.gpu_driver))}


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
        return _device_class(name, selectors.nic_with_interface(driver))
    made = _device_class(name, selectors.rdma_nic(driver))
    parameters = {"rdma": {"memlock": "unlimited"}}
    made["spec"]["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return made


def _device_class(name: str, expression: str) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


HeldBack = Mapping[str, Sequence[str]]
"""Node -> the NICs that it has and does not offer, each with the reason: ``mlx5_8 is the node's uplink``."""


class CannotBeHad(ClaimError):
    """No node can ever give this."""

    default_reason = Reason.DEVICE_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Fitting:
    """What is asked, in numbers, and the nodes that have it."""

    ask: Ask
    rdma: bool
    nodes: tuple[NodeHardware, ...]
    """With the devices that count."""
    others: tuple[NodeHardware, ...]
    """Nodes that can not give it."""
    needs_down: bool = False
    """There are not enough NICs with a link, so those without count, too."""
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


def find_fitting(ask: Ask, hardware: Hardware, held_back: HeldBack, known: Classes) -> Fitting:
    """Raises :class:`CannotBeHad`."""
    nodes = _of_classes(hardware.nodes, ask.nic_class, gpu_class_name(ask, hardware), known)
    rdma = _wants_rdma(ask, nodes)
    kind = tuple(node.with_nics(lambda nic: nic.has_rdma if rdma else bool(nic.ifname)) for node in nodes)
    nodes = kind if ask.nic_class else _of_classes(kind, nic_class_name(ask, rdma), "", known)
    if not any(node.nics for node in nodes):
        raise _no_nic(ask, hardware, rdma, known)
    up = tuple(node.with_nics(lambda nic: nic.is_up) for node in nodes)
    for fabric in (*(_fabrics(ask, up) if rdma else ()), ""):
        on = tuple(_on_fabric(node, fabric) for node in up)
        if found := _fit(ask, rdma, on):
            down, off = _missing(nodes, up, found.nodes), _missing(up, on, found.nodes)
            return replace(found, without_link=down, fabric=fabric, off_fabric=off)
    if found := _fit(ask, rdma, nodes):
        return replace(found, needs_down=True)
    raise _refuse(ask, hardware, rdma, nodes, held_back, known)


def _of_classes(
    nodes: Sequence[NodeHardware], nic_class: str, gpu_class: str, known: Classes
) -> tuple[NodeHardware, ...]:
    return tuple(
        replace(node, nics=select(node.nics, nic_class, known), gpus=select(node.gpus, gpu_class, known))
        for node in nodes
    )


def _wants_rdma(ask: Ask, nodes: Sequence[NodeHardware]) -> bool:
    """Where nobody says: if a node that has GPUs (when some are asked for) has RDMA."""
    if ask.rdma is not None:
        return ask.rdma
    with_gpus = [node for node in nodes if node.gpus] if ask.gpus else []
    return any(nic.has_rdma for node in with_gpus or nodes for nic in node.nics)


def _fabrics(ask: Ask, nodes: Sequence[NodeHardware]) -> list[str]:
    """None where no node has several; else first the one with most NICs that are as near to a GPU as any of
    their node: the others are for storage, or to reach the node."""
    useful = [node for node in nodes if node.gpus or not ask.gpus]
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
    """The NICs nearest to the GPUs; all, where none says how far it is."""
    known = [nic.nearest_gpu for nic in node.nics if nic.nearest_gpu is not None]
    return [nic for nic in node.nics if not known or nic.nearest_gpu == min(known)]


def _missing(
    before: Sequence[NodeHardware], after: Sequence[NodeHardware], of: Sequence[NodeHardware]
) -> dict[str, int]:
    names = {node.name for node in of}
    numbers = {b.name: len(b.nics) - len(a.nics) for b, a in zip(before, after, strict=True)}
    return {name: number for name, number in numbers.items() if number and name in names}


def _fit(ask: Ask, rdma: bool, nodes: Sequence[NodeHardware]) -> Fitting | None:
    numbers = _in_numbers(ask, nodes)
    good = {node.name for node in nodes if _fits(numbers, node)}
    if not good:
        return None
    chosen = tuple(node for node in nodes if node.name in good)
    return Fitting(numbers, rdma, chosen, tuple(node for node in nodes if node.name not in good))


def _in_numbers(ask: Ask, nodes: Sequence[NodeHardware]) -> Ask:
    """With ``--per-node`` the numbers of the largest node; as rails only the NICs nearest to the GPUs. Where
    no GPUs are asked for, there are none."""
    if not ask.per_node:
        return ask
    gpus = max((len(node.gpus) for node in nodes), default=0) if ask.gpus else 0
    counts = [len(_nearest(node) if ask.rails else node.nics) for node in nodes]
    return replace(ask, gpus=gpus, nics=max([1, *counts]))


def _fits(ask: Ask, node: NodeHardware) -> bool:
    if ask.per_node and not ask.rails:
        return bool(node.nics) and (bool(node.gpus) or not ask.gpus)
    return len(node.gpus) >= ask.gpus and len(node.nics) >= ask.nics


# --- refusals ----------------------------------------------------------------------------------------


def _no_nic(ask: Ask, hardware: Hardware, rdma: bool, known: Classes) -> CannotBeHad:
    if not any(node.nics for node in hardware.nodes):
        why = listed((*hardware.defects, *(taint for node in hardware.nodes for taint in node.tainted)))
        hint = f"is the driver {hardware.nic_driver} running there? kubectl get resourceslices"
        return CannotBeHad("no node offers a NIC", hint=why or hint)
    name = nic_class_name(ask, rdma)
    if name in known:
        hint = "another one is named with --class; the default writes one"
        return CannotBeHad(f"the DeviceClass {name} of this cluster selects no NIC", hint=hint)
    if rdma:
        return CannotBeHad("no node offers an RDMA NIC", hint="--no-rdma takes NICs without RDMA")
    return CannotBeHad("no NIC here has a network interface", hint="--rdma takes RDMA devices alone, too")


def _refuse(
    ask: Ask,
    hardware: Hardware,
    rdma: bool,
    nodes: Sequence[NodeHardware],
    held_back: HeldBack,
    known: Classes,
) -> CannotBeHad:
    kind = "RDMA NIC" if rdma else "NIC"
    flag = " --rdma" if rdma else " --no-rdma"
    most = max(nodes, key=lambda node: (len(node.gpus), len(node.nics)))
    if ask.gpus and (beside := _beside_unpublished_gpus(nodes, hardware)):
        return CannotBeHad(
            f"no claim can ask for the GPUs of {beside}: no DRA driver publishes them",
            hint="a device plugin gives them, publish_gpus is never, or dranet devices --all on the node "
            "says why; --gpus 0 writes a claim for the NICs alone, which nothing aligns",
        )
    if ask.gpus > len(most.gpus):
        nearest = f"--gpus {len(most.gpus)} --nics {min(ask.nics, len(most.nics))}"
        of_class = _of_class(gpu_class_name(ask, hardware), known)
        return CannotBeHad(
            f"--gpus {ask.gpus}: {_largest(nodes)}, {most.name}, has {len(most.gpus) or 'none'}{of_class}",
            hint=f"the most that can be had is {nearest}",
        )
    most = max(nodes, key=lambda node: len(node.nics))
    gpus = min(ask.gpus, len(most.gpus))
    if ask.nics > len(most.nics):
        of_class = _of_class(nic_class_name(ask, rdma), known)
        held = listed((*held_back.get(most.name, ()), *most.tainted))
        return CannotBeHad(
            f"--nics {ask.nics}{flag}: {_largest(nodes)}, {most.name}, offers {count(len(most.nics), kind)}"
            + of_class
            + (f" ({held})" if held else ""),
            hint=f"the most that can be had is --gpus {gpus} --nics {len(most.nics)}",
        )
    best = max(nodes, key=lambda node: min(len(node.gpus), ask.gpus) + min(len(node.nics), ask.nics))
    return CannotBeHad(
        f"no node has both {count(ask.gpus, 'GPU')} and {count(ask.nics, kind)}: {best.name} has "
        f"{count(len(best.gpus), 'GPU')} and {count(len(best.nics), kind)}",
        hint=f"the nearest is --gpus {min(ask.gpus, len(best.gpus))} --nics {min(ask.nics, len(best.nics))}",
    )


def _beside_unpublished_gpus(nodes: Sequence[NodeHardware], hardware: Hardware) -> str:
    """A node that has GPUs, by what its NICs say, where no slice has any."""
    if any(node.gpus for node in hardware.nodes):
        return ""
    return next((node.name for node in nodes if node.is_beside_gpus), "")


def _of_class(name: str, known: Classes) -> str:
    return f" of the DeviceClass {name}" if name in known else ""


def _largest(nodes: Sequence[NodeHardware]) -> str:
    return "the only node" if len(nodes) == 1 else "the largest node"

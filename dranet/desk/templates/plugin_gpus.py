"""GPUs that a device plugin gives: a pod asks for a number of an extended resource, and no claim has them.

The scheduler counts them and chooses the NICs; the kubelet chooses which GPUs they are when the pod is on its
node. So only a pod with all GPUs of a node is sure of its distances; for any other there are odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dranet.claims.alignment import best_possible
from dranet.desk.hardware.nodes import Hardware, NodeHardware, Spot
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.odds import Odds, alignment_odds
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.shapes import RequestDefaults, Shape, on_each_numa_node, together
from dranet.desk.templates.trial import Distances, Pod
from dranet.model.facts import Distance
from dranet.terminal import count_of

GPU_RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
)
"""Extended resources of the vendors' device plugins for whole GPUs."""


def use_plugin_gpus(request: ClaimRequest, hardware: Hardware) -> tuple[ClaimRequest, Hardware]:
    """Both with the GPUs of the user's extended resource, or, where no driver publishes any, of that which
    most nodes have; unchanged without one."""
    resource = request.gpu_resource
    if not resource and not any(node.gpus for node in hardware.nodes):
        resource = _find_resource(hardware.nodes)
    if not resource or not request.gpus:
        return replace(request, gpu_resource=""), hardware
    nodes = tuple(_with_gpus(node, resource) for node in hardware.nodes)
    changed = replace(hardware, nodes=nodes, gpu_driver="", other_gpu_drivers=())
    return replace(request, gpu_resource=resource), changed


def _find_resource(nodes: Iterable[NodeHardware]) -> str:
    named = [node for node in nodes if node.named_gpus]
    found = Counter(name for node in named for name in GPU_RESOURCES if (node.extended or {}).get(name))
    return found.most_common(1)[0][0] if found else ""


def _with_gpus(node: NodeHardware, resource: str) -> NodeHardware:
    """A node that was not read may have the resource."""
    has_resource = node.extended is None or node.extended.get(resource)
    gpus = (node.gpus or node.named_gpus) if has_resource else ()
    return replace(node, gpus=gpus, gpu_resource=resource)


def find_publisher(node: NodeHardware) -> str:
    """The DRA driver that publishes GPUs which pods ask for by an extended resource; empty without one."""
    return next((gpu.device.driver for gpu in node.gpus if gpu not in node.named_gpus), "")


def chance_shapes(
    defaults: RequestDefaults, request: ClaimRequest, nodes: Sequence[NodeHardware]
) -> Iterator[Shape]:
    """NICs for a part of the GPUs of a node: the nearest that are enough.

    Raises:
        NotAvailable: a NUMA node with GPUs has too few NICs for ``each_numa``.
    """
    levels = _find_levels(request, nodes)
    if request.each_numa:
        _check_each_numa_node(request, nodes)
        yield on_each_numa_node(defaults, _numa_nodes(nodes), request.nics, levels)
    else:
        yield together(defaults, 0, request.nics, levels)


def _check_each_numa_node(request: ClaimRequest, nodes: Iterable[NodeHardware]) -> None:
    for node in nodes:
        numbers = Counter(nic.numa_node for nic in node.nics)
        for number in _numa_nodes([node]):
            if numbers[number] < request.nics:
                raise NotAvailable(
                    f"--each-numa: NUMA node {number} of {node.name} has GPUs and "
                    f"{count_of(numbers[number], 'NIC')} of this kind, not {request.nics}",
                    hint="without --each-numa the NICs are of any NUMA node",
                )


def _numa_nodes(nodes: Iterable[NodeHardware]) -> list[int]:
    """Those with GPUs, which are all for which a pod needs a NIC."""
    found = {gpu.numa_node for node in nodes for gpu in node.gpus}
    return sorted(number for number in found if number is not None)


def _find_levels(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> tuple[Distance, ...]:
    """The nearest levels at which every node has enough NICs; empty where that is no choice."""
    for worst in Distance:
        near = [[nic for nic in node.nics if _is_within(nic, worst)] for node in nodes]
        if not all(map(_has_enough, near, [request] * len(nodes), nodes)):
            continue
        is_choice = any(len(some) < len(node.nics) for some, node in zip(near, nodes, strict=True))
        return tuple(level for level in Distance if level <= worst) if is_choice else ()
    return ()


def _is_within(nic: Spot, worst: Distance) -> bool:
    return nic.nearest_gpu is not None and nic.nearest_gpu <= worst


def _has_enough(nics: Sequence[Spot], request: ClaimRequest, node: NodeHardware) -> bool:
    if not request.each_numa:
        return len(nics) >= request.nics
    numbers = Counter(nic.numa_node for nic in nics)
    return all(numbers[number] >= request.nics for number in _numa_nodes([node]))


def find_odds(shape: Shape, pod: Pod, node: NodeHardware, gpus: int) -> Odds | None:
    """What a pod of this shape gets with any ``gpus`` GPUs of the node; ``None`` where it is not known."""
    if shape.is_for_one_pod:
        return alignment_odds(node.with_nics(lambda nic: nic in pod.nics), gpus, len(pod.nics))
    near = node.with_nics(lambda nic: not shape.levels or nic.nearest_gpu in shape.levels)
    if shape.each_numa:
        return odds_on_each_numa_node(near, gpus, shape.each_numa)
    return alignment_odds(near, gpus, len(pod.nics))


def odds_on_each_numa_node(node: NodeHardware, gpus: int, nics: int) -> Odds | None:
    """What a pod with so many NICs of each NUMA node gets, by the nearest ``nics`` of them: the others are
    spares."""
    numbers = _numa_nodes([node])
    inside = node.with_nics(lambda nic: nic.numa_node in numbers)

    def measure(some_nics: tuple[Spot, ...], some_gpus: tuple[Spot, ...]) -> Distances | None:
        is_even = set(Counter(nic.numa_node for nic in some_nics).values()) == {nics}
        return best_possible(some_nics, some_gpus, nics) if is_even else None

    return alignment_odds(inside, gpus, nics * len(numbers), measure)

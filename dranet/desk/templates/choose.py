"""The simplest claim that gets the best of this hardware: shapes by simplicity, each tried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.templates import selectors
from dranet.desk.templates.candidates import (
    CannotBeHad,
    Classes,
    Fitting,
    HeldBack,
    assumed_classes,
    build_classes,
    find_fitting,
    gpu_class_name,
    nic_class_name,
)
from dranet.desk.templates.hardware import Hardware, NodeHardware, Spot
from dranet.desk.templates.relations import ANY, Rung, find_rungs, gpu_address_attribute
from dranet.desk.templates.request import MAX_RESULTS, Ask
from dranet.desk.templates.shapes import (
    Parts,
    Shape,
    build_pod,
    build_templates,
    by_level,
    everything,
    name_interfaces,
    paired,
    pinned,
    together,
)
from dranet.desk.templates.trial import Trial, best_distances, find_best, try_shape
from dranet.model.distance import Distance
from dranet.model.pairing import level, rank


@dataclass(frozen=True, slots=True)
class Attempt:
    """One shape, on one node of each make; ``fault`` where it was not even tried."""

    shape: Shape
    trials: tuple[Trial, ...] = ()
    fault: str = ""

    @property
    def is_perfect(self) -> bool:
        return bool(self.trials) and all(trial.is_perfect for trial in self.trials)

    @property
    def is_best_first(self) -> bool:
        return bool(self.trials) and all(trial.is_best_first for trial in self.trials)

    @property
    def cost(self) -> tuple[object, ...]:
        """Smaller is better: right whenever it fits, right on an empty node, near."""
        worse = sum(t.possible - sum(pod.is_best for pod in t.pods) for t in self.trials)
        ranks = [rank(t.pods[0].distances) if t.pods else (99, 99) for t in self.trials] or [(99, 99)]
        return (not self.is_best_first, self.shape.is_for_one_pod, max(ranks), worse)


@dataclass(frozen=True, slots=True)
class Choice:
    """The claim, and what is known of it."""

    hardware: Hardware
    fitting: Fitting
    attempt: Attempt
    tried: tuple[Attempt, ...]
    """In their order, the chosen one among them."""
    rungs: tuple[Rung, ...]
    classes: tuple[JsonObject, ...]
    templates: tuple[JsonObject, ...]
    pod: JsonObject
    makes: tuple[tuple[NodeHardware, tuple[str, ...]], ...]
    """One node of each make, and the names of all that are alike."""
    known: Classes | None = None
    """DeviceClasses of the cluster; ``None`` where nobody asked it for them."""

    @property
    def manifests(self) -> tuple[JsonObject, ...]:
        return (*self.classes, *self.templates, self.pod)


def choose_claim(
    ask: Ask,
    hardware: Hardware,
    classes: Classes | None = None,
    held_back: HeldBack | None = None,
) -> Choice:
    """The manifests for ``ask`` on this hardware.

    Args:
        ask: what is wanted.
        hardware: of every node.
        classes: DeviceClasses of the cluster, by name; ``None`` where they are not known.
        held_back: NICs that the nodes have and do not offer.

    Raises:
        CannotBeHad: no node can give it, or no claim can say it.
    """
    known = classes or {}
    fitting = find_fitting(ask, hardware, held_back or {}, known)
    makes = _makes(fitting.nodes)
    nodes = [node for node, _ in makes]
    written = build_classes(fitting.ask, hardware, fitting.rdma, known)
    in_force = {
        **assumed_classes(fitting.ask, hardware),
        **known,
        **{c["metadata"]["name"]: c for c in written},
    }
    rungs = find_rungs(nodes) if fitting.ask.gpus else (ANY,)
    tried = tuple(_try_all(fitting, hardware, nodes, rungs, in_force))
    best = min((one for one in tried if not one.fault), key=lambda one: one.cost, default=None)
    if best is None or not all(trial.pods for trial in best.trials):
        raise _no_shape(fitting, best or tried[0])
    return Choice(
        hardware,
        fitting,
        best,
        tried,
        rungs,
        written,
        build_templates(fitting.ask, best.shape),
        build_pod(fitting.ask, best.shape),
        makes,
        classes,
    )


def _try_all(
    fitting: Fitting,
    hardware: Hardware,
    nodes: Sequence[NodeHardware],
    rungs: Sequence[Rung],
    classes: Mapping[str, JsonObject],
) -> Iterator[Attempt]:
    """The simplest shapes first, until one is always right."""
    for shape in _shapes(fitting, hardware, nodes, rungs):
        attempt = _attempt(shape, fitting.ask, nodes, classes)
        yield attempt
        if attempt.is_perfect and (fitting.ask.rails or not shape.is_for_one_pod):
            return


def _no_shape(fitting: Fitting, attempt: Attempt) -> CannotBeHad:
    why = attempt.fault or next((t.refusal for t in attempt.trials if t.refusal), "")
    hint = "ask for fewer devices" if attempt.fault else ""
    return CannotBeHad(f"no claim for {fitting.ask.title} can be written: {why}", hint=hint)


def _makes(nodes: Sequence[NodeHardware]) -> tuple[tuple[NodeHardware, tuple[str, ...]], ...]:
    first: dict[object, NodeHardware] = {}
    names: dict[object, list[str]] = {}
    for node in nodes:
        first.setdefault(node.makeup, node)
        names.setdefault(node.makeup, []).append(node.name)
    return tuple((first[makeup], tuple(names[makeup])) for makeup in first)


def _attempt(
    shape: Shape, ask: Ask, nodes: Sequence[NodeHardware], classes: Mapping[str, JsonObject]
) -> Attempt:
    if shape.fault:
        return Attempt(shape, fault=shape.fault)
    takes_all = ask.per_node and not ask.rails
    numbers = [
        (len(n.gpus) if ask.gpus else 0, len(n.nics)) if takes_all else (ask.gpus, ask.nics) for n in nodes
    ]
    pairs = zip(nodes, numbers, strict=True)
    return Attempt(shape, tuple(try_shape(shape, node, classes, *wanted) for node, wanted in pairs))


def _shapes(
    fitting: Fitting, hardware: Hardware, nodes: Sequence[NodeHardware], rungs: Sequence[Rung]
) -> Iterator[Shape]:
    """The simplest first."""
    ask = fitting.ask
    parts = Parts(
        nic_class_name(ask, fitting.rdma),
        gpu_class_name(ask, hardware),
        (
            *((selectors.fabric_is(fitting.fabric),) if fitting.fabric else ()),
            *((selectors.port_is_up(fitting.rdma),) if fitting.without_link else ()),
            *((selectors.is_not_shared(),) if hardware.has_shared_nics else ()),
        ),
        gpu_address_attribute(nodes),
    )
    if ask.rails:
        ladders = tuple(_ladders(rungs, ask, nodes)) if ask.gpus else ()
        yield from rail_shapes(parts, ask, hardware.nic_driver, nodes, ladders)
    elif ask.per_node:
        apart = ask.gpus > 0 and any(len(node.nics) + len(node.gpus) > MAX_RESULTS for node in nodes)
        yield everything(parts, gpus=ask.gpus > 0, apart=apart)
    elif not ask.gpus:
        yield together(parts, 0, ask.nics)
    else:
        yield from _aligned_shapes(parts, ask, nodes, rungs)


def _aligned_shapes(
    parts: Parts, ask: Ask, nodes: Sequence[NodeHardware], rungs: Sequence[Rung]
) -> Iterator[Shape]:
    if all(len(node.gpus) == ask.gpus for node in nodes):
        yield from _whole_shapes(parts, ask, nodes)
    for ladder in _ladders(rungs, ask, nodes):
        if ladder == (ANY,):
            yield together(parts, ask.gpus, ask.nics)
            continue
        has_groups = any(rung.groups for rung in ladder)
        if ask.nics > ask.gpus and ask.nics % ask.gpus == 0 and not has_groups:
            yield paired(parts, ask.gpus, ask.nics, ladder, in_bundles=True)
        yield paired(parts, ask.gpus, ask.nics, ladder, in_bundles=False)
    yield from pinned_shapes(parts, ask, nodes)


def _ladders(rungs: Sequence[Rung], ask: Ask, nodes: Sequence[NodeHardware]) -> Iterator[tuple[Rung, ...]]:
    """One PCIe rung alone, which is worth waiting for; then all rungs, with groups on at most one of them,
    because a GPU is in the groups of one rung only."""
    for rung in reversed(rungs):
        if rung.is_pcie and rung.attribute and _has_room(rung, ask, nodes):
            yield (rung,)
    steps = tuple(rung for rung in rungs if not rung.is_alone)
    grouped: list[Rung | None] = [rung for rung in steps if rung.groups]
    for kept in grouped or [None]:
        yield tuple(rung for rung in steps if not rung.groups or rung is kept)


def _has_room(rung: Rung, ask: Ask, nodes: Sequence[NodeHardware]) -> bool:
    return all(rung.has_room(node, ask.gpus, ask.nics) for node in nodes)


def _whole_shapes(parts: Parts, ask: Ask, nodes: Sequence[NodeHardware]) -> Iterator[Shape]:
    """All GPUs are taken: it is enough to choose the NICs."""
    best = [best_distances(node.nics, node.gpus, ask.gpus, ask.nics) for node in nodes]
    levels = {level for levels in best for level in levels}
    if None in levels:
        yield together(parts, ask.gpus, ask.nics)
        return
    known = {level for level in levels if level is not None}
    near = [nic.nearest_gpu for node in nodes for nic in node.nics]
    is_choice = any(level is None or level > max(known) for level in near)
    yield together(parts, ask.gpus, ask.nics, [d for d in Distance if d <= max(known)] if is_choice else ())
    if len(known) > 1 and len(set(best)) == 1:
        yield by_level(parts, ask.gpus, Counter(level for level in best[0] if level is not None))


def pinned_shapes(parts: Parts, ask: Ask, nodes: Sequence[NodeHardware]) -> Iterator[Shape]:
    """The best devices of the first node by their addresses, where every node has these."""
    attribute = gpu_address_attribute(nodes)
    if not attribute:
        return
    nics, gpus = _best_devices(nodes[0], ask)
    if _have_all(nodes, nics, gpus):
        yield pinned(parts, _pins(nics, attribute), _pins(gpus, attribute))


def rail_shapes(
    parts: Parts, ask: Ask, driver: str, nodes: Sequence[NodeHardware], ladders: Sequence[Sequence[Rung]]
) -> Iterator[Shape]:
    """NICs by name, in the order of their GPUs, so that each pod has the same rail in the same place.

    Args:
        parts: classes and selectors.
        ask: what is wanted, in numbers.
        driver: whose configs name the interfaces.
        nodes: one of each make.
        ladders: how a NIC may find its GPU, where the pod does not take all of them.
    """
    attribute = gpu_address_attribute([replace(node, gpus=()) for node in nodes])
    everywhere = set[str].intersection(*map(_addresses, nodes))
    nics, gpus = _best_devices(nodes[0].with_nics(lambda nic: nic.address in everywhere), ask)
    if not attribute or len(nics) < ask.nics:
        lacking = min(nodes, key=lambda node: len(_addresses(node) & _addresses(nodes[0])))
        raise CannotBeHad(
            "rails need the same NICs at the same PCI addresses on every node, and "
            f"{nodes[0].name} and {lacking.name} differ",
            hint=f"write one claim for each kind of node: --node {nodes[0].name}",
        )
    pins = _pins(nics, attribute)
    names = [f"rail-{number}" for number in range(len(pins))]
    configs = name_interfaces(driver, names) if all(nic.ifname for nic in nics) else ()
    whole = all(len(node.gpus) == ask.gpus for node in nodes)
    for ladder in [(ANY,)] if whole or not ask.gpus else ladders:
        if tuple(ladder) == (ANY,):
            shape = _plain_rails(parts, ask, pins)
        else:
            shape = paired(parts, ask.gpus, ask.nics, ladder, in_bundles=False, pins=pins)
        yield replace(shape, configs=configs, is_for_one_pod=True)
    if ladders and not whole and gpu_address_attribute(nodes) and _have_all(nodes, (), gpus):
        yield replace(pinned(parts, pins, _pins(gpus, gpu_address_attribute(nodes)), "rail"), configs=configs)


def _plain_rails(parts: Parts, ask: Ask, pins: Sequence[str]) -> Shape:
    """No GPU to choose: all of the node's, or none."""
    rails = paired(replace(parts, gpu_class=""), len(pins), len(pins), (ANY,), in_bundles=False, pins=pins)
    nics = tuple(request for request in rails.requests if request["name"].startswith("rail-"))
    gpus = together(parts, ask.gpus, 1).requests[1:] if ask.gpus else ()
    title = "a request for each NIC, by its PCI address"
    if len(pins) + ask.gpus > MAX_RESULTS:
        return Shape(title, nics, apart=(gpus,))
    return Shape(title, (*nics, *gpus))


def _best_devices(node: NodeHardware, ask: Ask) -> tuple[list[Spot], list[Spot]]:
    """The best NICs and GPUs of a node, the NICs in the order of their GPUs, or of their addresses."""
    if not ask.gpus:
        nearest = sorted(node.nics, key=lambda nic: (level(nic.nearest_gpu), nic.address))
        return sorted(nearest[: ask.nics], key=lambda nic: nic.address), []
    order = {gpu: number for number, gpu in enumerate(node.gpus)}
    pairs = find_best(node.nics, node.gpus, ask.gpus, ask.nics).pairs
    pairs = tuple(sorted(pairs, key=lambda pair: (order[pair[1]], pair[0].address)))
    gpus = dict.fromkeys((*(gpu for _, gpu in pairs), *node.gpus))
    return [nic for nic, _ in pairs], list(gpus)[: ask.gpus]


def _addresses(node: NodeHardware) -> set[str]:
    return {nic.address for nic in node.nics}


def _pins(spots: Sequence[Spot], attribute: str) -> list[str]:
    return [selectors.address_is_one_of([spot.address], attribute) for spot in spots]


def _have_all(nodes: Sequence[NodeHardware], nics: Sequence[Spot], gpus: Sequence[Spot]) -> bool:
    wanted = {spot.address for spot in nics}, {spot.address for spot in gpus}
    return all(
        wanted[0] <= _addresses(node) and wanted[1] <= {gpu.address for gpu in node.gpus} for node in nodes
    )

"""The simplest claim that gets the best of this hardware: shapes by simplicity, each tried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dranet.desk.templates import selectors
from dranet.desk.templates.ask import MAX_RESULTS, Ask
from dranet.desk.templates.classes import (
    Classes,
    assumed_classes,
    build_classes,
    gpu_class_name,
    nic_class_name,
)
from dranet.desk.templates.fitting import CannotBeHad, Fitting, HeldBack, find_fitting
from dranet.desk.templates.hardware import Hardware, NodeHardware
from dranet.desk.templates.manifests import build_pod, build_templates
from dranet.desk.templates.named import pinned_shapes, rail_shapes
from dranet.desk.templates.rungs import ANY, Rung, find_rungs, gpu_address_attribute
from dranet.desk.templates.shapes import (
    JsonObject,
    Parts,
    Shape,
    by_level,
    everything,
    paired,
    together,
)
from dranet.desk.templates.trial import Trial, best_distances, try_shape
from dranet.model.distance import Distance
from dranet.model.pairing import rank


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

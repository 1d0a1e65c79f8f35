"""The simplest claim that gets the best of this hardware: shapes by simplicity, each tried with the
allocator.

The last shapes name devices one by one: rails, by their number where it is published and else by the PCI
address that is the same on every node, and the last resort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dranet.claims.alignment import level, rank
from dranet.desk.hardware.nodes import Hardware, NodeHardware, Spot
from dranet.desk.kubeapi.objects import MAX_RESULTS, JsonObject
from dranet.desk.templates import selectors
from dranet.desk.templates.candidates import (
    Candidates,
    Classes,
    NotAvailable,
    NotOffered,
    assumed_classes,
    build_classes,
    find_candidates,
    gpu_class_name,
    nic_class_name,
    select_gpus,
)
from dranet.desk.templates.plugin_gpus import chance_shapes, use_plugin_gpus
from dranet.desk.templates.relations import (
    ANY,
    Relation,
    find_address_attribute,
    find_relations,
    find_unequal_attribute,
)
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.shapes import (
    RequestDefaults,
    Shape,
    build_pods,
    build_templates,
    by_group,
    by_level,
    everything,
    name_interfaces,
    name_nics,
    paired,
    pinned,
    put_on_top,
    together,
)
from dranet.desk.templates.trial import Trial, best_distances, find_best, try_shape
from dranet.model.facts import Distance


@dataclass(frozen=True, slots=True)
class ShapeAttempt:
    """One shape, on one node of each make; ``fault`` where it was not even tried."""

    shape: Shape
    trials: tuple[Trial, ...] = ()
    fault: str = ""

    @property
    def is_perfect(self) -> bool:
        return bool(self.trials) and not self.is_luck and all(trial.is_perfect for trial in self.trials)

    @property
    def is_best_first(self) -> bool:
        return bool(self.trials) and not self.is_luck and all(trial.is_best_first for trial in self.trials)

    @property
    def is_luck(self) -> bool:
        """Whether another order of the devices in their slices may give farther pairs: some drivers publish
        them in random order."""
        return self.shape.is_by_chance and any(trial.has_choice for trial in self.trials)

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
    candidates: Candidates
    attempt: ShapeAttempt
    tried: tuple[ShapeAttempt, ...]
    """In their order, the chosen one among them."""
    relations: tuple[Relation, ...]
    classes: tuple[JsonObject, ...]
    templates: tuple[JsonObject, ...]
    pods: tuple[JsonObject, ...]
    makes: tuple[tuple[NodeHardware, tuple[str, ...]], ...]
    """One node of each make, and the names of all that are alike."""
    known: Classes | None = None
    """DeviceClasses of the cluster; ``None`` where they were not asked for."""
    assumed: frozenset[str] = frozenset()
    """Names of known classes that no file has: the chart installs them."""

    @property
    def first_templates(self) -> tuple[JsonObject, ...]:
        """Those of one pod: of the first where pods have templates to choose from."""
        return self.templates[: len(self.attempt.shape.of_pods[0].specs)]

    @property
    def manifests(self) -> tuple[JsonObject, ...]:
        return (*self.classes, *self.templates, *self.pods)


def choose_claim(
    request: ClaimRequest,
    hardware: Hardware,
    classes: Classes | None = None,
    not_offered: NotOffered | None = None,
    *,
    assumed: frozenset[str] = frozenset(),
) -> Choice:
    """The manifests for ``request`` on this hardware.

    Args:
        request: what is wanted.
        hardware: that of every node.
        classes: DeviceClasses of the cluster, by name; ``None`` where they are not known.
        not_offered: NICs that the nodes have and do not offer.
        assumed: names of those classes that no file has: the chart installs them.

    Raises:
        NotAvailable: no node can give it, or no claim can express it.
    """
    known = classes or {}
    request, hardware = use_plugin_gpus(request, hardware)
    if request.each_numa and not request.gpu_resource:
        raise NotAvailable(
            "--each-numa is for GPUs that a device plugin gives: a claim for GPUs aligns its NICs",
            hint="leave it out, or name the plugin's resource: --gpu-resource nvidia.com/gpu",
        )
    is_named = request.nic_class or request.gpu_class or known.keys() - assumed or not assumed
    candidates = find_candidates(request, hardware, not_offered or {}, known if is_named else {})
    makes = _makes(candidates.nodes)
    nodes = [node for node, _ in makes]
    written = build_classes(candidates.request, hardware, candidates.rdma, known)
    in_force = {
        **assumed_classes(candidates.request, hardware),
        **known,
        **{c["metadata"]["name"]: c for c in written},
    }
    is_related = candidates.request.gpus and not candidates.request.gpu_resource
    relations = find_relations(nodes) if is_related else (ANY,)
    tried = tuple(_try_all(candidates, hardware, nodes, relations, in_force))
    best = min((one for one in tried if not one.fault), key=lambda one: one.cost, default=None)
    if best is None or not all(trial.pods for trial in best.trials):
        raise _no_shape(candidates, best or tried[0])
    return Choice(
        hardware,
        candidates,
        best,
        tried,
        relations,
        written,
        build_templates(candidates.request, best.shape),
        build_pods(candidates.request, best.shape),
        makes,
        classes,
        assumed,
    )


def _try_all(
    candidates: Candidates,
    hardware: Hardware,
    nodes: Sequence[NodeHardware],
    relations: Sequence[Relation],
    classes: Mapping[str, JsonObject],
) -> Iterator[ShapeAttempt]:
    """The simplest shapes first, until one is always right."""
    name = nic_class_name(candidates.request, candidates.rdma)
    needs_type = candidates.request.bandwidth and not _sets_type(classes.get(name) or {})
    for plain in _shapes(candidates, hardware, nodes, relations):
        shape = put_on_top(hardware.nic_driver, plain) if needs_type else plain
        attempt = _attempt(shape, candidates.request, nodes, classes)
        yield attempt
        if attempt.is_perfect and (candidates.request.rails or not shape.is_for_one_pod):
            return


def _sets_type(body: JsonObject) -> bool:
    """Whether the DeviceClass sets ``interface.type``."""
    configs = (body.get("spec") or {}).get("config") or ()
    parameters = ((config.get("opaque") or {}).get("parameters") or {} for config in configs)
    return any((one.get("interface") or {}).get("type") for one in parameters)


def _select_shared(request: ClaimRequest, hardware: Hardware) -> tuple[str, ...]:
    if request.bandwidth:
        return (selectors.is_shared(),)
    return (selectors.is_not_shared(),) if hardware.has_shared_nics else ()


def _no_shape(candidates: Candidates, attempt: ShapeAttempt) -> NotAvailable:
    why = attempt.fault or next((t.refusal for t in attempt.trials if t.refusal), "")
    return NotAvailable(
        f"no claim for {candidates.request.title} can be written: {why}",
        hint=_hint_smaller(candidates) if attempt.fault else "",
    )


def _hint_smaller(candidates: Candidates) -> str:
    """``--per-node`` writes two claims where one has no room, and takes all that there is."""
    request, nodes = candidates.request, candidates.nodes
    whole = "--per-node takes all GPUs and NICs of a node, in two claims if need be"
    is_whole = any((n.gpu_count, len(n.nics)) == (request.gpus, request.nics) for n in nodes)
    return whole if is_whole else f"ask for fewer devices, or for all: {whole}"


def _makes(nodes: Sequence[NodeHardware]) -> tuple[tuple[NodeHardware, tuple[str, ...]], ...]:
    first: dict[object, NodeHardware] = {}
    names: dict[object, list[str]] = {}
    for node in nodes:
        first.setdefault(node.makeup, node)
        names.setdefault(node.makeup, []).append(node.name)
    return tuple((first[makeup], tuple(names[makeup])) for makeup in first)


def _attempt(
    shape: Shape, request: ClaimRequest, nodes: Sequence[NodeHardware], classes: Mapping[str, JsonObject]
) -> ShapeAttempt:
    if shape.fault:
        return ShapeAttempt(shape, fault=shape.fault)
    takes_all = request.per_node and not request.rails
    numbers = [
        (len(n.gpus) if request.gpus else 0, len(n.nics)) if takes_all else (request.gpus, request.nics)
        for n in nodes
    ]
    pairs = zip(nodes, numbers, strict=True)
    return ShapeAttempt(shape, tuple(try_shape(shape, node, classes, *wanted) for node, wanted in pairs))


def _shapes(
    candidates: Candidates, hardware: Hardware, nodes: Sequence[NodeHardware], relations: Sequence[Relation]
) -> Iterator[Shape]:
    """The simplest first."""
    request = candidates.request
    defaults = RequestDefaults(
        nic_class_name(request, candidates.rdma),
        gpu_class_name(request, hardware),
        (
            *((selectors.fabric_is(candidates.fabric),) if candidates.fabric else ()),
            *((selectors.port_is_up(candidates.rdma),) if candidates.without_link else ()),
            *_select_shared(request, hardware),
        ),
        tuple(select_gpus(request, hardware)),
        request.amount if request.bandwidth else "",
        find_unequal_attribute(nodes),
    )
    if request.rails:
        ladders = (
            tuple(_ladders(_usable(defaults, relations), request, nodes)) if request.claimed_gpus else ()
        )
        yield from rail_shapes(defaults, request, hardware.nic_driver, nodes, ladders)
    elif request.per_node:
        has_gpus = request.claimed_gpus > 0
        apart = has_gpus and any(len(node.nics) + len(node.gpus) > MAX_RESULTS for node in nodes)
        yield everything(defaults, gpus=has_gpus, apart=apart)
    elif not request.gpus:
        yield together(defaults, 0, request.nics)
    elif request.gpu_resource:
        if all(node.has_all(request.gpus) for node in nodes) and not request.each_numa:
            yield from _whole_shapes(defaults, request, nodes)
            yield from pinned_shapes(defaults, request, nodes)
        else:
            yield from chance_shapes(defaults, request, nodes)
    else:
        yield from _aligned_shapes(defaults, request, nodes, relations)


def _aligned_shapes(
    defaults: RequestDefaults,
    request: ClaimRequest,
    nodes: Sequence[NodeHardware],
    relations: Sequence[Relation],
) -> Iterator[Shape]:
    if all(len(node.gpus) == request.gpus for node in nodes):
        yield from _whole_shapes(defaults, request, nodes)
    for ladder in _ladders(_usable(defaults, relations), request, nodes):
        if ladder == (ANY,):
            yield together(defaults, request.gpus, request.nics)
            continue
        has_groups = any(relation.groups for relation in ladder)
        if request.nics > request.gpus and request.nics % request.gpus == 0 and not has_groups:
            bundled = paired(defaults, request.gpus, request.nics, ladder, in_bundles=True, nodes=nodes)
            yield from (bundled,) if bundled.constraints else ()
        yield paired(defaults, request.gpus, request.nics, ladder, in_bundles=False, nodes=nodes)
    if not defaults.never_equal:
        yield from _group_shapes(defaults, request, relations)
    yield from pinned_shapes(defaults, request, nodes)


def _usable(defaults: RequestDefaults, relations: Sequence[Relation]) -> list[Relation]:
    """Groups in one claim are kept apart by an attribute."""
    return [relation for relation in relations if not relation.groups or defaults.never_equal]


def _group_shapes(
    defaults: RequestDefaults, request: ClaimRequest, relations: Sequence[Relation]
) -> Iterator[Shape]:
    for relation in relations:
        groups = [group for group in relation.groups if group.has_room(request.gpus, request.nics)]
        if groups:
            yield by_group(defaults, request.gpus, request.nics, relation, groups)


def _ladders(
    relations: Sequence[Relation], request: ClaimRequest, nodes: Sequence[NodeHardware]
) -> Iterator[tuple[Relation, ...]]:
    """One PCIe rung alone, which is worth waiting for; then all rungs, with groups on at most one of them,
    because a GPU is in the groups of one rung only."""
    for relation in reversed(relations):
        if relation.is_pcie and relation.attribute and _has_room(relation, request, nodes):
            yield (relation,)
    steps = tuple(relation for relation in relations if not relation.is_alone)
    grouped: list[Relation | None] = [relation for relation in steps if relation.groups]
    for kept in grouped or [None]:
        yield tuple(relation for relation in steps if not relation.groups or relation is kept)


def _has_room(relation: Relation, request: ClaimRequest, nodes: Sequence[NodeHardware]) -> bool:
    return all(relation.has_room(node, request.gpus, request.nics) for node in nodes)


def _whole_shapes(
    defaults: RequestDefaults, request: ClaimRequest, nodes: Sequence[NodeHardware]
) -> Iterator[Shape]:
    """All GPUs are taken: it is enough to choose the NICs."""
    best = [best_distances(node.nics, node.gpus, request.gpus, request.nics) for node in nodes]
    levels = {level for levels in best for level in levels}
    gpus, nics = request.claimed_gpus, request.nics
    if None in levels:
        yield together(defaults, gpus, nics)
        return
    known = {level for level in levels if level is not None}
    near = [nic.nearest_gpu for node in nodes for nic in node.nics]
    is_choice = any(level is None or level > max(known) for level in near)
    yield together(defaults, gpus, nics, [d for d in Distance if d <= max(known)] if is_choice else ())
    if len(known) > 1 and len(set(best)) == 1:
        yield by_level(defaults, gpus, Counter(level for level in best[0] if level is not None))


def pinned_shapes(
    defaults: RequestDefaults, request: ClaimRequest, nodes: Sequence[NodeHardware]
) -> Iterator[Shape]:
    """The best devices of the first node by their addresses, where every node has these."""
    nics, gpus = _best_devices(nodes[0], request)
    gpus = [] if request.gpu_resource else gpus
    if _can_pin(nodes) and _have_all(nodes, nics, gpus):
        yield pinned(defaults, name_nics(_pins(nics)), _pins(gpus))


def rail_shapes(
    defaults: RequestDefaults,
    request: ClaimRequest,
    driver: str,
    nodes: Sequence[NodeHardware],
    ladders: Sequence[Sequence[Relation]],
) -> Iterator[Shape]:
    """NICs by name, in the order of their GPUs, so that each pod has the same rail in the same place.

    Args:
        parts: classes and selectors.
        ask: what is wanted, in numbers.
        driver: whose configs name the interfaces.
        nodes: one of each make.
        ladders: how a NIC may find its GPU, where the pod does not take all of them.
    """
    rails = _rails_everywhere(nodes)
    is_published = len(rails) >= request.nics
    if is_published:
        nics, gpus = _best_devices(nodes[0].with_nics(lambda nic: nic.rail in rails), request)
        numbers = sorted(nic.rail for nic in nics if nic.rail is not None)
        pins = {f"rail-{number}": selectors.rail_is(number) for number in numbers}
    else:
        nics, gpus = _nics_everywhere(request, nodes)
        pins = {f"rail-{number}": pin for number, pin in enumerate(_pins(nics))}
    configs = name_interfaces(driver, pins) if all(nic.ifname for nic in nics) else ()
    whole = all(len(node.gpus) == request.gpus for node in nodes)
    title = f"a request for each NIC, by its {'rail' if is_published else 'PCI address'}"
    for ladder in [(ANY,)] if whole or not request.gpus or request.gpu_resource else ladders:
        if tuple(ladder) == (ANY,):
            shape = _plain_rails(title, defaults, request, pins)
        else:
            shape = paired(defaults, request.gpus, request.nics, ladder, in_bundles=False, pins=pins)
            shape = replace(shape, title=f"{title}; {shape.title}")
        yield replace(shape, configs=configs, is_for_one_pod=True)
    if ladders and not whole and _can_pin(nodes) and _have_all(nodes, (), gpus):
        yield replace(pinned(defaults, pins, _pins(gpus)), configs=configs)


def _rails_everywhere(nodes: Sequence[NodeHardware]) -> set[int]:
    """Rails that each node has one NIC on, as published. Where a node has two NICs on a rail, the
    rail does not choose one."""
    counts = [Counter(nic.rail for nic in node.nics) for node in nodes]
    alone = [{rail for rail, n in of_node.items() if rail is not None and n == 1} for of_node in counts]
    return set[int].intersection(*alone)


def _nics_everywhere(request: ClaimRequest, nodes: Sequence[NodeHardware]) -> tuple[list[Spot], list[Spot]]:
    """The best NICs that every node has at the same PCI address, and their GPUs. Raises
    :class:`NotAvailable`."""
    attribute = find_address_attribute(nic for node in nodes for nic in node.nics)
    everywhere = set[str].intersection(*map(_addresses, nodes))
    nics, gpus = _best_devices(nodes[0].with_nics(lambda nic: nic.address in everywhere), request)
    if not attribute or len(nics) < request.nics:
        lacking = min(nodes, key=lambda node: len(_addresses(node) & _addresses(nodes[0])))
        raise NotAvailable(
            "rails need the attribute rail, or the same NICs at the same PCI addresses, on every node, and "
            f"{nodes[0].name} and {lacking.name} differ",
            hint=f"write one claim for each kind of node: --node {nodes[0].name}",
        )
    return nics, gpus


def _plain_rails(
    title: str, defaults: RequestDefaults, request: ClaimRequest, pins: Mapping[str, str]
) -> Shape:
    """No GPU to choose: all of the node's, or none."""
    rails = paired(replace(defaults, gpu_class=""), len(pins), len(pins), (ANY,), in_bundles=False, pins=pins)
    nics = tuple(request for request in rails.requests if request["name"].startswith("rail-"))
    gpus = together(defaults, request.claimed_gpus, 1).requests[1:] if request.claimed_gpus else ()
    if len(pins) + request.claimed_gpus > MAX_RESULTS:
        return Shape(title, nics, apart=(gpus,))
    return Shape(title, (*nics, *gpus))


def _best_devices(node: NodeHardware, request: ClaimRequest) -> tuple[list[Spot], list[Spot]]:
    """The best NICs and GPUs of a node, the NICs in the order of their GPUs, or of their addresses."""
    if not request.gpus:
        nearest = sorted(node.nics, key=lambda nic: (level(nic.nearest_gpu), nic.address))
        return sorted(nearest[: request.nics], key=lambda nic: nic.address), []
    order = {gpu: number for number, gpu in enumerate(node.gpus)}
    pairs = find_best(node.nics, node.gpus, request.gpus, request.nics).pairs
    pairs = tuple(sorted(pairs, key=lambda pair: (order[pair[1]], pair[0].address)))
    gpus = dict.fromkeys((*(gpu for _, gpu in pairs), *node.gpus))
    return [nic for nic, _ in pairs], list(gpus)[: request.gpus]


def _addresses(node: NodeHardware) -> set[str]:
    return {nic.address for nic in node.nics}


def _can_pin(nodes: Sequence[NodeHardware]) -> bool:
    kinds = [nic for node in nodes for nic in node.nics], [gpu for node in nodes for gpu in node.gpus]
    return all(map(find_address_attribute, kinds))


def _pins(spots: Sequence[Spot]) -> list[str]:
    attribute = find_address_attribute(spots)
    return [selectors.address_is_one_of([spot.address], attribute) for spot in spots]


def _have_all(nodes: Sequence[NodeHardware], nics: Sequence[Spot], gpus: Sequence[Spot]) -> bool:
    wanted = {spot.address for spot in nics}, {spot.address for spot in gpus}
    return all(
        wanted[0] <= _addresses(node) and wanted[1] <= {gpu.address for gpu in node.gpus} for node in nodes
    )

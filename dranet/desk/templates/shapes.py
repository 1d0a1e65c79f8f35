"""What a claim may look like: requests, constraints and configs for given numbers of GPUs and NICs.

Two facts about the scheduler decide how these are written. It searches depth first, in the order of the
requests and of their alternatives, and takes the first combination that fits. And of a constraint it looks
at the chosen alternatives alone: what names ``nic/same-root`` has no effect when ``nic/same-numa`` is
chosen. So a NIC with its ladder comes *before* its GPU: then every NIC is tried with every GPU in one
relation before the next one. Relations are nested (a switch is below one root, a root in one NUMA node),
which makes taking the nearest pair that there is, pair by pair, as good as any search over all pairs
(decision 037).

Where GPU and NIC share no attribute, both requests have one alternative for each group, and a constraint
keeps the NIC's from meeting another group's GPU: it asks for equal PCI addresses, which no two devices have,
of exactly the alternatives that must not be chosen together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dranet.desk.hardware.nodes import NodeHardware
from dranet.desk.kubeapi.objects import MAX_ALTERNATIVES, MAX_ENTRIES, MAX_RESULTS, JsonObject
from dranet.desk.templates import selectors
from dranet.desk.templates.relations import Group, Relation
from dranet.desk.templates.request import PLACEHOLDER_IMAGE, ClaimRequest
from dranet.model.attributes import BANDWIDTH
from dranet.model.facts import Distance
from dranet.terminal import count_of


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What every request is made with."""

    nic_class: str
    gpu_class: str
    nic_selectors: tuple[str, ...] = ()
    """Every NIC request has them."""
    gpu_selectors: tuple[str, ...] = ()
    """Every GPU request has them."""
    bandwidth: str = ""
    """Every NIC request takes this amount of a shared NIC; empty: it is for a whole one."""
    never_equal: str = ""
    """An attribute that all devices have, and that no NIC has in common with a GPU; may be empty."""

    @property
    def nic(self) -> JsonObject:
        """What every NIC request begins with."""
        capacity = {"capacity": {"requests": {BANDWIDTH: self.bandwidth}}} if self.bandwidth else {}
        return {"deviceClassName": self.nic_class, **capacity}

    @property
    def gpu(self) -> JsonObject:
        """What every GPU request begins with."""
        return {"deviceClassName": self.gpu_class}


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to write the claim of a pod."""

    title: str
    """For people: how it aligns."""
    requests: tuple[JsonObject, ...]
    constraints: tuple[JsonObject, ...] = ()
    configs: tuple[JsonObject, ...] = ()
    relations: tuple[Relation, ...] = ()
    is_for_one_pod: bool = False
    """It names devices, so that a node can have one such pod only."""
    is_by_chance: bool = False
    """Nothing relates NICs and GPUs: their order in the slices decides."""
    apart: tuple[tuple[JsonObject, ...], ...] = field(default=())
    """More claims in addition to the first, each with its requests."""
    levels: frozenset[Distance] = frozenset()
    """It takes only NICs that publish one of these to their nearest GPU; empty: any NICs."""
    each_numa: int = 0
    """So many NICs of each NUMA node with GPUs; 0: of any."""
    choices: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes for a pod to choose from, each with its name; then it has no requests of its own."""

    @property
    def is_aligning(self) -> bool:
        """Whether the distances do not depend on which of several devices are free."""
        return bool(self.constraints or self.levels) or self.is_for_one_pod

    @property
    def fault(self) -> str:
        """Why the API server or the scheduler would never take it; empty if nothing speaks against it."""
        alternatives = max((len(r.get("firstAvailable", ())) for r in self.requests), default=0)
        sizes = {"requests": len(self.requests), "constraints": len(self.constraints)}
        for word, size in sizes.items():
            if size > MAX_ENTRIES:
                return f"it takes {size} {word}, and a claim has room for {MAX_ENTRIES}"
        if alternatives > MAX_ALTERNATIVES:
            return (
                f"it takes {alternatives} alternatives in a request, and there is room for {MAX_ALTERNATIVES}"
            )
        faults = (choice.fault for choice in self.choices.values())
        if fault := next(filter(None, faults), ""):
            return fault
        for requests in (self.requests, *self.apart):
            if (size := sum(map(_count_of, requests))) > MAX_RESULTS:
                return f"it takes {size} devices, and {MAX_RESULTS} are the most in a claim"
        return ""

    def spec(self, number: int = 0) -> JsonObject:
        """``spec`` of its claim, or of another claim (``apart``)."""
        if number:
            return {"devices": {"requests": list(self.apart[number - 1])}}
        devices: JsonObject = {"requests": list(self.requests)}
        if self.constraints:
            devices["constraints"] = list(self.constraints)
        if self.configs:
            devices["config"] = list(self.configs)
        return {"devices": devices}

    @property
    def takes_any(self) -> bool:
        """Whether any of the devices that its selectors match will do."""
        return not (self.relations or self.choices or self.is_for_one_pod)

    @property
    def of_pods(self) -> tuple[Shape, ...]:
        """One for each kind of pod."""
        return tuple(self.choices.values()) or (self,)

    @property
    def specs(self) -> tuple[JsonObject, ...]:
        return tuple(self.spec(number) for number in range(1 + len(self.apart)))


def _count_of(request: JsonObject) -> int:
    return min(int(option.get("count", 1)) for option in _options_of(request))


def _options_of(request: JsonObject) -> Sequence[JsonObject]:
    return request.get("firstAvailable") or [request["exactly"]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One NIC request before it is written: its name, how many, the GPU request that it is for."""

    name: str
    count: int
    gpu: str
    pin: str = ""
    """A selector of its own."""
    relations: tuple[Relation, ...] = ()
    """The rungs that it may reach."""


def together(defaults: RequestDefaults, gpus: int, nics: int, levels: Iterable[Distance] = ()) -> Shape:
    """A number of each, unrelated: right where all GPUs of the node are taken anyway."""
    wanted = frozenset(levels)
    near = (selectors.nearest_gpu_is(wanted),) if wanted else ()
    title = (
        f"{count_of(gpus, 'GPU')} and {count_of(nics, 'NIC')} without a constraint"
        if gpus
        else count_of(nics, "NIC")
    )
    requests = [_exactly("nics" if nics > 1 else "nic", defaults.nic, nics, (*defaults.nic_selectors, *near))]
    if gpus:
        requests.append(_exactly("gpus" if gpus > 1 else "gpu", defaults.gpu, gpus, defaults.gpu_selectors))
    words = "/".join(level.name for level in sorted(wanted))
    title += f"; NICs that publish {words} to a GPU" if wanted else ""
    return Shape(title, tuple(requests), levels=wanted, is_by_chance=gpus > 0 and not wanted)


def on_each_numa_node(
    defaults: RequestDefaults, numa_nodes: Iterable[int], nics: int, levels: Iterable[Distance]
) -> Shape:
    """So many NICs of each NUMA node, for GPUs that may be on any."""
    wanted = frozenset(levels)
    near = (selectors.nearest_gpu_is(wanted),) if wanted else ()
    requests = [
        _exactly(
            f"numa-{number}",
            defaults.nic,
            nics,
            (*defaults.nic_selectors, selectors.numa_node_is(number), *near),
        )
        for number in numa_nodes
    ]
    title = f"{count_of(nics, 'NIC')} of each NUMA node with GPUs"
    return Shape(title, tuple(requests), levels=wanted, each_numa=nics)


def by_group(
    defaults: RequestDefaults, gpus: int, nics: int, relation: Relation, groups: Iterable[Group]
) -> Shape:
    """A claim of its own for each group: right where no constraint can keep the groups apart."""
    choices = {}
    for group in groups:
        own = replace(
            defaults,
            nic_selectors=(*defaults.nic_selectors, group.nic_selector),
            gpu_selectors=(*defaults.gpu_selectors, group.gpu_selector),
        )
        choices[group.name] = together(own, gpus, nics)
    title = f"{count_of(len(choices), 'template')} to choose from: NICs and GPUs {relation.meaning}"
    return Shape(title, (), choices=choices)


def by_level(defaults: RequestDefaults, gpus: int, numbers: Mapping[Distance, int]) -> Shape:
    """All GPUs of the node (0 where no claim has them), and so many NICs of each distance to the nearest."""
    nics = [
        _exactly(
            f"nics-{level.name.lower()}",
            defaults.nic,
            number,
            (*defaults.nic_selectors, selectors.nearest_gpu_is([level])),
        )
        for level, number in sorted(numbers.items())
    ]
    taken = (_exactly("gpus", defaults.gpu, gpus, defaults.gpu_selectors),) if gpus else ()
    title = "all GPUs, and so many NICs of each distance to them"
    return Shape(title, (*nics, *taken), levels=frozenset(numbers))


def everything(defaults: RequestDefaults, *, gpus: bool, apart: bool) -> Shape:
    """All that the node has, whatever the numbers; in two claims where one has no room."""
    nics = _all("nics", defaults.nic, defaults.nic_selectors)
    if not gpus:
        return Shape("all NICs of the node", (nics,))
    found = _all("gpus", defaults.gpu, defaults.gpu_selectors)
    if apart:
        return Shape("all GPUs and NICs of the node", (nics,), apart=((found,),))
    return Shape("all GPUs and NICs of the node", (nics, found))


def paired(
    defaults: RequestDefaults,
    gpus: int,
    nics: int,
    relations: Sequence[Relation],
    *,
    in_bundles: bool,
    pins: Mapping[str, str] | None = None,
    nodes: Sequence[NodeHardware] = (),
) -> Shape:
    """Each NIC with a GPU of its own, on the nearest rung that there is; GPUs in excess come last.

    Args:
        defaults: classes and selectors.
        gpus: how many.
        nics: how many.
        relations: the ladder, nearest first.
        in_bundles: all NICs of a GPU in one request, on one rung.
        pins: a selector for each NIC, by the name of its request.
        nodes: a rung that a request can reach on none of them is left out.
    """
    pairs = min(gpus, nics)
    each = nics // pairs if in_bundles else 1
    number_of_requests = pairs if in_bundles else nics
    pins = pins or {}
    names = tuple(pins) or tuple(_name("nic", i, number_of_requests) for i in range(number_of_requests))
    asked = [
        _Asked(
            names[i],
            each,
            _name("gpu", i % pairs, pairs),
            pins.get(names[i], ""),
            tuple(_reachable(relations, nodes, i, pairs, each)),
        )
        for i in range(number_of_requests)
    ]
    requests: list[JsonObject] = []
    seen: set[str] = set()
    groups = next((relation.groups for relation in relations if relation.groups), ())
    for one in asked:
        requests.append(_nic_request(defaults, one))
        if one.gpu not in seen:
            requests.append(_gpu_request(defaults, one.gpu, groups))
            seen.add(one.gpu)
    if gpus > pairs:
        requests.append(_exactly("more-gpus", defaults.gpu, gpus - pairs, defaults.gpu_selectors))
    constraints = [
        c
        for relation in relations
        for c in _constraints(defaults, relation, asked, len(relations) > 1, groups)
    ]
    bundle = f", {each} NICs for each GPU" if in_bundles and each > 1 else ""
    meanings = [rung.meaning for rung in relations if any(rung in one.relations for one in asked)]
    title = f"each NIC with a GPU {', or else '.join(meanings)}{bundle}"
    return Shape(title, tuple(requests), tuple(constraints), relations=tuple(relations))


def _reachable(
    relations: Sequence[Relation], nodes: Sequence[NodeHardware], number: int, pairs: int, each: int
) -> Iterable[Relation]:
    """The rungs on which request ``number`` may get its NICs.

    The requests before it take what is near first. So of the first NICs of each GPU as many are on a rung as
    the node has pairs there, and a further NIC of a GPU only if the place of some GPU has so many.
    """
    turn, place = divmod(number, pairs)
    for relation in relations:
        is_certain = not relation.attribute or len(relations) == 1 or not nodes
        before = 0 if turn else place
        if is_certain or any(relation.count_gpus_with(node, turn + each) > before for node in nodes):
            yield relation


def pinned(defaults: RequestDefaults, nics: Mapping[str, str], gpus: Sequence[str]) -> Shape:
    """Exactly these devices, each by a selector: the last resort; NICs by the names of their requests."""
    requests = [
        *(_exactly(name, defaults.nic, 1, (*defaults.nic_selectors, pin)) for name, pin in nics.items()),
        *(
            _exactly(_name("gpu", i, len(gpus)), defaults.gpu, 1, (*defaults.gpu_selectors, pin))
            for i, pin in enumerate(gpus)
        ),
    ]
    return Shape("devices named by their PCI address", tuple(requests), is_for_one_pod=True)


def _name(word: str, number: int, of: int) -> str:
    return word if of == 1 else f"{word}-{number}"


def name_nics(pins: Sequence[str]) -> dict[str, str]:
    """Selectors by the names of requests: ``nic`` alone, or ``nic-0``, ``nic-1`` ..."""
    return {_name("nic", number, len(pins)): pin for number, pin in enumerate(pins)}


def _selectors(expressions: Iterable[str]) -> JsonObject:
    found = [{"cel": {"expression": text}} for text in expressions if text]
    return {"selectors": found} if found else {}


def _exactly(name: str, base: JsonObject, number: int, expressions: Iterable[str] = ()) -> JsonObject:
    amount = {"count": number} if number != 1 else {}
    return {"name": name, "exactly": {**base, **_selectors(expressions), **amount}}


def _all(name: str, base: JsonObject, expressions: Iterable[str] = ()) -> JsonObject:
    request = {**base, **_selectors(expressions), "allocationMode": "All"}
    return {"name": name, "exactly": request}


def _alternative(name: str, base: JsonObject, number: int, expressions: Iterable[str]) -> JsonObject:
    amount = {"count": number} if number != 1 else {}
    return {"name": name, **base, **_selectors(expressions), **amount}


def _nic_request(defaults: RequestDefaults, asked: _Asked) -> JsonObject:
    common, relations = (*defaults.nic_selectors, asked.pin), asked.relations
    if len(relations) == 1 and not relations[0].groups:
        return _exactly(asked.name, defaults.nic, asked.count, common)
    options = [
        _alternative(name, defaults.nic, asked.count, (*common, expression))
        for relation in relations
        for name, expression in _alternatives_of(relation)
    ]
    return {"name": asked.name, "firstAvailable": options}


def _alternatives_of(relation: Relation) -> list[tuple[str, str]]:
    """Name and selector of each alternative of a NIC on this rung."""
    if not relation.groups:
        return [(relation.name, relation.nic_selector)]
    return [(group.name, group.nic_selector) for group in relation.groups if group.nic_selector]


def _gpu_request(defaults: RequestDefaults, name: str, groups: Sequence[Group]) -> JsonObject:
    """With the groups in the reverse order of the NIC's.

    A scheduler prefers the node whose pod gets the earlier alternatives, and adds up their places
    (``computeScore`` of its plugin, since 1.36). So every pair of one group counts the same, and more than a
    pair of two groups, wherever that is.
    """
    if not groups:
        return _exactly(name, defaults.gpu, 1, defaults.gpu_selectors)
    with_nics = [group for group in groups if group.nic_selector]
    options = [
        _alternative(group.name, defaults.gpu, 1, (*defaults.gpu_selectors, group.gpu_selector))
        for group in (*reversed(with_nics), *(group for group in groups if group not in with_nics))
    ]
    return {"name": name, "firstAvailable": options}


def _constraints(
    defaults: RequestDefaults,
    relation: Relation,
    asked: Sequence[_Asked],
    is_ladder: bool,
    groups: Sequence[Group],
) -> Iterable[JsonObject]:
    if relation.attribute:
        of_gpu: dict[str, list[str]] = defaultdict(list)
        for one in (one for one in asked if relation in one.relations):
            of_gpu[one.gpu].append(f"{one.name}/{relation.name}" if is_ladder else one.name)
        for gpu, nics in of_gpu.items():
            yield {"matchAttribute": relation.attribute, "requests": [*nics, gpu]}
    for group in relation.groups:
        if not group.nic_selector:
            continue
        for one in asked:
            others = [f"{one.gpu}/{other.name}" for other in groups if other is not group]
            yield {
                "matchAttribute": defaults.never_equal,
                "requests": [f"{one.name}/{group.name}", *others],
            }


def put_on_top(driver: str, shape: Shape) -> Shape:
    """The shape with a macvlan on the NIC of each claim: nothing else can have a share of it."""
    names = [one["name"] for one in shape.requests if any("capacity" in o for o in _options_of(one))]
    parameters = {"interface": {"type": "macvlan"}}
    config = {"requests": names, "opaque": {"driver": driver, "parameters": parameters}}
    choices = {name: put_on_top(driver, choice) for name, choice in shape.choices.items()}
    return replace(shape, configs=(*shape.configs, config) if names else shape.configs, choices=choices)


def name_interfaces(driver: str, requests: Iterable[str]) -> tuple[JsonObject, ...]:
    """A config for each NIC request: ``net0``, ``net1`` ... in their order."""
    return tuple(
        {
            "requests": [name],
            "opaque": {"driver": driver, "parameters": {"interface": {"name": f"net{number}"}}},
        }
        for number, name in enumerate(requests)
    )


def build_templates(request: ClaimRequest, shape: Shape) -> tuple[JsonObject, ...]:
    """One for each claim of the pod."""
    return tuple(
        _object("resource.k8s.io/v1", "ResourceClaimTemplate", name, {"spec": spec}, request.namespace)
        for part in _name_choices(request, shape)
        for name, spec in zip(_template_names(*part), part[1].specs, strict=True)
    )


def _name_choices(request: ClaimRequest, shape: Shape) -> Iterable[tuple[ClaimRequest, Shape]]:
    """The shape, or each to choose from with the request for a name of its own."""
    name = request.name or request.default_name
    named = [(replace(request, name=f"{name}-{word}"), choice) for word, choice in shape.choices.items()]
    return named or [(request, shape)]


def build_pods(request: ClaimRequest, shape: Shape) -> tuple[JsonObject, ...]:
    """One, or one for each template to choose from."""
    return tuple(_build_pod(*part) for part in _name_choices(request, shape))


def _build_pod(request: ClaimRequest, shape: Shape) -> JsonObject:
    """The container names every claim: that is what holds it back until its NICs are there."""
    templates = _template_names(request, shape)
    claims = ["devices"] if len(templates) == 1 else ["nics", "gpus"]
    container: JsonObject = {
        "name": "main",
        "image": request.image,
        "resources": {"claims": [{"name": name} for name in claims]},
    }
    if request.image == PLACEHOLDER_IMAGE:
        container["command"] = ["sleep", "infinity"]
    if request.gpu_resource:
        container["resources"]["limits"] = {request.gpu_resource: request.gpus}
    spec: JsonObject = {
        "containers": [container],
        "resourceClaims": [
            {"name": name, "resourceClaimTemplateName": template}
            for name, template in zip(claims, templates, strict=True)
        ],
    }
    if shares_memory(request):
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 -- the pod's
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return _object("v1", "Pod", request.name or request.default_name, spec, request.namespace)


def shares_memory(request: ClaimRequest) -> bool:
    """Processes of several GPUs share memory (NCCL's buffers, batches of data loaders) through ``/dev/shm``,
    of which a container has 64 MB."""
    return request.gpus > 1


def _template_names(request: ClaimRequest, shape: Shape) -> Sequence[str]:
    name = request.name or request.default_name
    return [name, f"{name}-gpus"] if shape.apart else [name]


def _object(version: str, kind: str, name: str, spec: JsonObject, namespace: str) -> JsonObject:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}, "spec": spec}

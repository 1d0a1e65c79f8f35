"""GPUs and NICs that nothing holds together: requests without a constraint, GPUs of another claim of the pod
or of a device plugin. Their distance is luck then; the fix is what ``claim new`` writes for these numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dranet.desk.allocation.failures import AllocationError
from dranet.desk.hardware.nodes import Hardware, NodeHardware, Spot, is_gpu_driver, read_hardware
from dranet.desk.hardware.places import PLACES
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.demands import Demand, DemandKind, of_kind, read_demands, read_resources
from dranet.desk.lint.rules import LintFinding
from dranet.desk.lint.scope import Scope, claim_devices, covers
from dranet.desk.templates.advice import describe_command, describe_constraint, describe_match
from dranet.desk.templates.candidates import NotAvailable, find_candidates, gpu_class_name
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.odds import alignment_odds
from dranet.desk.templates.request import ClaimRequest
from dranet.model.attributes import STANDARD_PCIE_ROOT

_Demands = Sequence[Demand]

_LEAST_WHOLE = 4
"""A node of unknown size has no fewer GPUs: a pod with so many may have all."""
_ALL = "dranet claim new --per-node takes all GPUs and NICs of a node"


def lint_claim_alignment(spec: JsonObject, path: str, scope: Scope) -> Iterator[LintFinding]:
    """Find a claim for GPUs and NICs that relates none of them."""
    demands = read_demands(spec, path, scope)
    gpus, nics = of_kind(demands, DemandKind.GPU), of_kind(demands, DemandKind.NIC)
    if _is_free(gpus, nics) and not _is_related(spec, gpus, nics):
        luck = _find_luck(gpus, nics, scope)
        names = [demand.name for demand in (*gpus, *nics)]
        if luck.is_real:
            text = f"no constraint relates {_names(gpus)} and {_names(nics)}{luck}"
            fix = suggest_claim(gpus, nics, scope, names) or f"no claim aligns them here; {_ALL}"
            yield LintFinding(rules.UNALIGNED, nics[0].path, text, fix)


def lint_pod_alignment(
    spec: JsonObject, path: str, claims: Iterable[tuple[str, str, JsonObject | None]], scope: Scope
) -> Iterator[LintFinding]:
    """Find GPUs and NICs of a pod that come from different claims, or GPUs of a device plugin.

    Args:
        spec: the pod's.
        path: where it is.
        claims: name, path and spec of each claim of the pod.
        scope: what is known.
    """
    demands = _read_claims(claims, scope)
    if demands is None:
        return
    resources = tuple(read_resources(spec, path, scope))
    every = (*demands, *(resource.demand for resource in resources))
    gpus, nics = of_kind(every, DemandKind.GPU), of_kind(every, DemandKind.NIC)
    if _is_free(gpus, nics):
        is_of_plugin = any(resource.is_plugin for resource in resources)
        judge = _find_chance if is_of_plugin else _find_apart
        yield from judge(gpus, nics, scope)


def _read_claims(
    claims: Iterable[tuple[str, str, JsonObject | None]], scope: Scope
) -> tuple[Demand, ...] | None:
    """``None`` where a claim has both kinds: it is judged as a claim, and NICs of others are for another
    purpose."""
    demands: list[Demand] = []
    for name, where, body in claims:
        found = read_demands(body or {}, where, scope)
        if len({demand.kind for demand in found}) > 1:
            return None
        demands += [demand._replace(name=f"claim {name}", path=where) for demand in found]
    return tuple(demands)


def _find_apart(gpus: _Demands, nics: _Demands, scope: Scope) -> Iterator[LintFinding]:
    luck = _find_luck(gpus, nics, scope)
    if luck.is_real:
        text = f"no constraint can relate the GPUs of {_names(gpus)} and the NICs of {_names(nics)}{luck}"
        better = suggest_claim(gpus, nics, scope)
        fix = f"one claim for both: {better}" if better else f"no claim aligns them here; {_ALL}"
        yield LintFinding(rules.UNALIGNED, nics[0].path, text, fix)


def _find_chance(gpus: _Demands, nics: _Demands, scope: Scope) -> Iterator[LintFinding]:
    """NICs of several NUMA nodes are meant for GPUs of any."""
    is_on_several = len(frozenset().union(*(demand.numa_nodes for demand in nics))) > 1
    luck = _find_luck(gpus, nics, scope, is_of_plugin=True)
    if luck.is_real and not is_on_several:
        text = f"the kubelet chooses {_names(gpus)} without regard to the NICs of {_names(nics)}{luck}"
        better = suggest_claim(gpus, nics, scope)
        one = [f"GPUs of a DRA driver, in one claim for both: {better}"] if better else []
        ways = "; or ".join((*one, _ALL, _by_each_numa_node(gpus, nics)))
        yield LintFinding(rules.BY_CHANCE, nics[0].path, text, ways)


def _by_each_numa_node(gpus: _Demands, nics: _Demands) -> str:
    request = ClaimRequest(_count(gpus), _count(nics), gpu_resource=gpus[0].name, each_numa=True)
    return f"{describe_command(request)} takes NICs of each NUMA node"


def _count(demands: _Demands) -> int:
    return sum(demand.number or 0 for demand in demands)


def suggest_claim(gpus: _Demands, nics: _Demands, scope: Scope, names: Sequence[str] = ("gpu", "nic")) -> str:
    """What ``claim new`` writes for these numbers on the hardware of the slices, empty where that aligns
    nothing; without slices what is right where GPU and NIC share a PCIe root."""
    hardware = _read_hardware(gpus, scope)
    request = _read_request(gpus, nics, hardware)
    command = describe_command(request)
    key = ("choice", hardware.gpu_driver, request)
    choice = scope.once(key, lambda: _choose_claim(request, hardware, scope))
    if choice is None:
        if request.gpus > 1:
            return f"{command}, which reads the hardware"
        constraint = describe_match(STANDARD_PCIE_ROOT.qualified, names)
        return f"{constraint}; {command} writes what fits the hardware"
    if not choice.attempt.shape.is_aligning:
        return ""
    return f"{command}: {describe_constraint(choice, names)}"


def _choose_claim(request: ClaimRequest, hardware: Hardware, scope: Scope) -> Choice | None:
    try:
        return choose_claim(request, hardware, scope.classes)
    except (NotAvailable, AllocationError):
        return None


def _is_free(gpus: _Demands, nics: _Demands) -> bool:
    """Whether it has both, not all of the node, and the scheduler chooses some of them."""
    demands = (*gpus, *nics)
    takes_all = any(demand.number is None for demand in demands)
    return bool(gpus and nics) and not takes_all and not all(demand.is_placed for demand in demands)


def _is_related(spec: JsonObject, gpus: _Demands, nics: _Demands) -> bool:
    """Whether a constraint on a place names a NIC and a GPU."""
    return any(
        constraint.get("matchAttribute") in PLACES
        and all(_is_covered(constraint.get("requests"), demands) for demands in (gpus, nics))
        for constraint in claim_devices(spec).get("constraints") or ()
    )


def _is_covered(names: list[str] | None, demands: _Demands) -> bool:
    return any(covers(names, name) for demand in demands for name in demand.alternatives)


def _names(demands: _Demands) -> str:
    return " and ".join(dict.fromkeys(demand.name for demand in demands))


@dataclass(frozen=True, slots=True)
class _Luck:
    """The distances that so many GPUs and NICs have by chance."""

    gpus: int
    nics: int
    nodes: tuple[NodeHardware, ...]
    """One of each make that has them, with the devices that count; none where no slices are known."""
    is_part: bool = False
    """The GPUs are parts of GPUs."""

    @property
    def is_real(self) -> bool:
        """Whether the distances depend on which devices are taken."""
        if not self.nodes:
            return self.is_part or self.gpus < _LEAST_WHOLE
        partial = [node for node in self.nodes if len(node.gpus) > self.gpus]
        odds = [alignment_odds(node, self.gpus, self.nics) for node in partial]
        return any(one is None or one.chance < 1 for one in odds)

    def __str__(self) -> str:
        """The odds of the node with the least of the best; empty where none are known."""
        odds = [(alignment_odds(node, self.gpus, self.nics), node) for node in self.nodes]
        known = [(one.chance, f"; by chance {one} on {node.name}") for one, node in odds if one is not None]
        return min(known, default=(0, ""))[1]


def _find_luck(gpus: _Demands, nics: _Demands, scope: Scope, *, is_of_plugin: bool = False) -> _Luck:
    """Two parts that a plugin gives may be parts of one GPU, so that their odds are not known."""
    hardware = _read_hardware(gpus, scope)
    request = _read_request(gpus, nics, hardware)
    unknown = _Luck(request.gpus, request.nics, (), bool(request.gpu_part))
    if is_of_plugin and request.gpu_part and request.gpus > 1:
        return unknown
    wanted = replace(request, gpus=0) if is_of_plugin else request
    selections = (demand.selection for demand in (*gpus, *nics))
    key = ("nodes", hardware.gpu_driver, request, wanted, *selections)
    nodes = scope.once(key, lambda: _find_nodes(wanted, hardware, scope, gpus, nics))
    return replace(unknown, nodes=tuple(node for node in nodes if len(node.gpus) >= request.gpus))


def _find_nodes(
    request: ClaimRequest, hardware: Hardware, scope: Scope, gpus: _Demands, nics: _Demands
) -> tuple[NodeHardware, ...]:
    """One of each make."""
    try:
        candidates = find_candidates(request, hardware, {}, scope.classes)
    except NotAvailable:
        return ()
    nodes = (_narrow(_with_named_gpus(node), gpus, nics) for node in candidates.nodes)
    return tuple({node.makeup: node for node in nodes}.values())


def _narrow(node: NodeHardware, gpus: _Demands, nics: _Demands) -> NodeHardware:
    """With the devices that the requests match, where these are known."""
    return replace(node, gpus=_choose(node.gpus, gpus), nics=_choose(node.nics, nics))


def _choose(spots: tuple[Spot, ...], demands: _Demands) -> tuple[Spot, ...]:
    if not all(demand.devices for demand in demands):
        return spots
    return tuple(s for s in spots if any(str(s.device) in demand.devices for demand in demands))


def _with_named_gpus(node: NodeHardware) -> NodeHardware:
    """GPUs that no driver publishes are known by what the NICs name."""
    return node if node.gpus else replace(node, gpus=node.named_gpus)


def _read_request(gpus: _Demands, nics: _Demands, hardware: Hardware) -> ClaimRequest:
    """In numbers, with the classes that are not the usual ones."""
    request = ClaimRequest(
        _count(gpus),
        _count(nics),
        rdma=True if all(demand.is_rdma for demand in nics) else None,
        gpu_part=next((demand.part for demand in gpus if demand.part), ""),
    )
    known = {gpu_class_name(request, hardware), *(demand.driver for demand in gpus)}
    usual = known | {"", "dranet-gpu", *(("mig.nvidia.com",) if request.gpu_part else ())}
    for name in {demand.device_class for demand in gpus} - usual:
        request = replace(request, gpu_class=name)
    for name in {demand.device_class for demand in nics} - {"dranet-nic", "dranet-rdma"}:
        request = replace(request, nic_class=name)
    return request


def _read_hardware(gpus: _Demands, scope: Scope) -> Hardware:
    """That of the slices, with the GPUs of the requests' driver; read once for each driver and profile."""
    driver = next((demand.driver for demand in gpus if demand.driver), "")
    part = next((demand.part for demand in gpus if demand.part and demand.driver), "")
    kept = (s for s in scope.slices if not driver or _is_wanted(s["spec"]["driver"], driver))
    return scope.once(("hardware", driver, part), lambda: read_hardware(tuple(kept), gpu_part=part))


def _is_wanted(driver: str, gpu_driver: str) -> bool:
    return driver == gpu_driver or not is_gpu_driver(driver)

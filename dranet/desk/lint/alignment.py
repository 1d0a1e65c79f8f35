"""GPUs and NICs that nothing holds together: requests without a constraint, GPUs of another claim of the pod
or of a device plugin. Their distance is luck then; the fix is what ``claim new`` writes for these numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dranet.desk.allocation.failures import AllocationError
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.demands import Demand, DemandKind, of_kind, read_demands, read_resources
from dranet.desk.lint.rules import LintFinding
from dranet.desk.lint.scope import Scope, claim_devices, covers
from dranet.desk.templates.advice import describe_command, describe_constraint, describe_match
from dranet.desk.templates.candidates import NotAvailable, find_candidates, gpu_class_name
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.hardware import Hardware, NodeHardware, is_gpu_driver, read_hardware
from dranet.desk.templates.odds import alignment_odds
from dranet.desk.templates.places import PLACES
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
    demands: list[Demand] = []
    for name, where, body in claims:
        found = read_demands(body or {}, where, scope)
        if len({demand.kind for demand in found}) > 1:
            return  # NICs of other claims are for another purpose
        demands += [demand._replace(name=f"claim {name}", path=where) for demand in found]
    resources = tuple(read_resources(spec, path, scope))
    demands += [resource.demand for resource in resources]
    gpus, nics = of_kind(demands, DemandKind.GPU), of_kind(demands, DemandKind.NIC)
    if not _is_free(gpus, nics):
        return
    is_of_plugin = any(resource.is_plugin for resource in resources)
    luck = _find_luck(gpus, nics, scope, is_of_plugin=is_of_plugin)
    if not luck.is_real:
        return
    better = suggest_claim(gpus, nics, scope)
    one = f"one claim for both: {better}" if better else "no claim aligns them here"
    if is_of_plugin:
        text = f"the kubelet chooses {_names(gpus)} without regard to the NICs of {_names(nics)}{luck}"
        fix = f"GPUs of a DRA driver, in {one}; or {_ALL}" if better else _ALL
        yield LintFinding(rules.BY_CHANCE, nics[0].path, text, fix)
    else:
        text = f"no constraint can relate the GPUs of {_names(gpus)} and the NICs of {_names(nics)}{luck}"
        yield LintFinding(rules.UNALIGNED, nics[0].path, text, one if better else f"{one}; {_ALL}")


def suggest_claim(gpus: _Demands, nics: _Demands, scope: Scope, names: Sequence[str] = ("gpu", "nic")) -> str:
    """What ``claim new`` writes for these numbers on the hardware of the slices, empty where that aligns
    nothing; without slices what is right where GPU and NIC share a PCIe root."""
    hardware = _read_hardware(gpus, scope)
    request = _read_request(gpus, nics, hardware)
    command = describe_command(request)
    try:
        choice = choose_claim(request, hardware, scope.classes)
    except (NotAvailable, AllocationError):
        if request.gpus > 1:
            return f"{command}, which reads the hardware"
        constraint = describe_match(STANDARD_PCIE_ROOT.qualified, names)
        return f"{constraint}; {command} writes what fits the hardware"
    shape = choice.attempt.shape
    if not shape.constraints and not shape.is_for_one_pod:
        return ""
    return f"{command}: {describe_constraint(choice, names)}"


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

    @property
    def is_real(self) -> bool:
        """Whether the distances depend on which devices are taken."""
        if not self.nodes:
            return self.gpus < _LEAST_WHOLE
        partial = [node for node in self.nodes if len(node.gpus) > self.gpus]
        odds = [alignment_odds(node, self.gpus, self.nics) for node in partial]
        return any(one is None or one.chance < 1 for one in odds)

    def __str__(self) -> str:
        """The odds of the node with the least of the best; empty where none are known."""
        odds = [(alignment_odds(node, self.gpus, self.nics), node) for node in self.nodes]
        known = [(one.chance, f"; by chance {one} on {node.name}") for one, node in odds if one is not None]
        return min(known, default=(0, ""))[1]


def _find_luck(gpus: _Demands, nics: _Demands, scope: Scope, *, is_of_plugin: bool = False) -> _Luck:
    hardware = _read_hardware(gpus, scope)
    request = _read_request(gpus, nics, hardware)
    wanted = replace(request, gpus=0) if is_of_plugin else request
    try:
        candidates = find_candidates(wanted, hardware, {}, scope.classes)
    except NotAvailable:
        return _Luck(request.gpus, request.nics, ())
    makes = {node.makeup: node for node in map(_with_named_gpus, candidates.nodes)}
    fitting = (node for node in makes.values() if len(node.gpus) >= request.gpus)
    return _Luck(request.gpus, request.nics, tuple(fitting))


def _with_named_gpus(node: NodeHardware) -> NodeHardware:
    """GPUs that no driver publishes are known by what the NICs name."""
    return node if node.gpus else replace(node, gpus=node.named_gpus)


def _read_request(gpus: _Demands, nics: _Demands, hardware: Hardware) -> ClaimRequest:
    """In numbers, with the classes that are not the usual ones."""
    request = ClaimRequest(
        sum(demand.number or 0 for demand in gpus),
        sum(demand.number or 0 for demand in nics),
        rdma=True if all(demand.is_rdma for demand in nics) else None,
    )
    usual = {gpu_class_name(request, hardware), "dranet-gpu", *(demand.driver for demand in gpus), ""}
    for name in {demand.device_class for demand in gpus} - usual:
        request = replace(request, gpu_class=name)
    for name in {demand.device_class for demand in nics} - {"dranet-nic", "dranet-rdma"}:
        request = replace(request, nic_class=name)
    return request


def _read_hardware(gpus: _Demands, scope: Scope) -> Hardware:
    """That of the slices, with the GPUs of the requests' driver; read once for each driver."""
    driver = next((demand.driver for demand in gpus if demand.driver), "")
    if driver not in scope.hardware:
        kept = (s for s in scope.slices if not driver or _is_wanted(s["spec"]["driver"], driver))
        scope.hardware[driver] = read_hardware(tuple(kept))
    return scope.hardware[driver]


def _is_wanted(driver: str, gpu_driver: str) -> bool:
    return driver == gpu_driver or not is_gpu_driver(driver)

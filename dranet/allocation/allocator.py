"""Which devices a pod's claims get on a node: depth first, first fit, with backtracking.

Pure, but for the random ids of shares. It plays Kubernetes' structured allocator for what a network driver's
users write: class and request selectors, exact counts and All, prioritised alternatives, matchAttribute and
distinctAttribute, admin access, shared devices, taints and tolerations. Claims of one pod are allocated
together or not at all. What it does not play (shared counters, amounts of capacity, list attributes, binding
conditions) is an error where it would matter, never another outcome.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dranet.allocation.pools import Candidate, DeviceId, JsonObject, Node, Pool, gather_pools
from dranet.allocation.requests import (
    AllocationError,
    Alternative,
    ClaimView,
    Constraint,
    Request,
    Selector,
    Unschedulable,
    covers,
    parse_claim,
    tolerates,
)
from dranet.cel import CelError

__all__ = ["AllocationError", "ClusterDevices", "Node", "Unschedulable", "allocate", "read_devices_in_use"]

MAX_RESULTS_PER_CLAIM = 32


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """What the API server knows that matters for an allocation, as raw objects."""

    slices: Sequence[JsonObject]
    classes: Mapping[str, JsonObject]
    """DeviceClass by name."""
    in_use: frozenset[DeviceId] = frozenset()


def allocate(claims: Sequence[JsonObject], node: Node, cluster: ClusterDevices) -> tuple[JsonObject, ...]:
    """``status.allocation`` for each claim, in order.

    Args:
        claims: the pod's ResourceClaims that have no allocation yet.
        node: where the pod would run.
        cluster: slices, classes and the devices that other claims have.

    Raises:
        Unschedulable: not all claims fit; the message says which request failed and on what.
        AllocationError: the attempt broke off (see there); the pod is unschedulable as well.
    """
    views = [parse_claim(claim, cluster.classes) for claim in claims]
    search = _Search(_slots(views), gather_pools(cluster.slices, node), cluster.in_use)
    if not search.run():
        raise Unschedulable(search.explain())
    return tuple(_build_allocation(view, search.picks_of(view), node, cluster.classes) for view in views)


def read_devices_in_use(claims: Iterable[JsonObject]) -> frozenset[DeviceId]:
    """The devices of all allocated claims; admin access takes none away."""
    results = (
        result
        for claim in claims
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results")
        or ()
    )
    return frozenset((r["driver"], r["pool"], r["device"]) for r in results if not r.get("adminAccess"))


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """One request of one claim, in the order in which the search decides them."""

    claim: ClaimView
    request: Request


@dataclass(frozen=True, slots=True)
class _Pick:
    """One device chosen for one alternative."""

    claim: ClaimView
    alternative: Alternative
    candidate: Candidate


def _slots(views: Iterable[ClaimView]) -> tuple[_Slot, ...]:
    return tuple(_Slot(view, request) for view in views for request in view.requests)


@dataclass(slots=True)
class _Search:
    """One attempt. ``picks`` is the stack of devices chosen so far."""

    slots: tuple[_Slot, ...]
    pools: tuple[Pool, ...]
    in_use: frozenset[DeviceId]
    picks: list[_Pick] = field(default_factory=list)
    deepest: int = 0
    rejections: dict[int, dict[str, set[DeviceId]]] = field(default_factory=lambda: defaultdict(dict))
    """By slot: why devices were turned down, for the message."""
    verdicts: dict[tuple[Alternative, DeviceId], Selector | None] = field(default_factory=dict)
    """The selector that turns a device down, ``None`` if all match; each is evaluated once."""
    usable: tuple[Candidate, ...] = field(init=False)
    """The devices of the pools without a defect, in the order of preference."""

    def __post_init__(self) -> None:
        self.usable = tuple(device for pool in self.pools if not pool.defect for device in pool.devices)

    def run(self) -> bool:
        for view in {slot.claim: None for slot in self.slots}:
            least = sum(_least_count(request) for request in view.requests)
            if least > MAX_RESULTS_PER_CLAIM:
                raise Unschedulable(
                    f"claim {view.label} asks for {least} devices, {MAX_RESULTS_PER_CLAIM} are the most"
                )
        return self._solve(0)

    def picks_of(self, view: ClaimView) -> list[_Pick]:
        return [pick for pick in self.picks if pick.claim is view]

    def explain(self) -> str:
        """Why the request that the search could never get past was not satisfied."""
        slot = self.slots[self.deepest]
        reasons = [
            f"{len(devices)} {reason}" for reason, devices in sorted(self.rejections[self.deepest].items())
        ]
        reasons += [f"pool {p.driver}/{p.name} is {p.defect}" for p in self.pools if p.defect]
        why = "; ".join(reasons) or f"only {len(self.usable)} devices are published for this node"
        return f"claim {slot.claim.label}: request {slot.request.name} cannot be satisfied: {why}"

    def _solve(self, index: int) -> bool:
        if index == len(self.slots):
            return True
        self.deepest = max(self.deepest, index)
        return any(
            self._solve_alternative(index, option) for option in self.slots[index].request.alternatives
        )

    def _solve_alternative(self, index: int, option: Alternative) -> bool:
        if option.count is None:
            return self._take_all(index, option)
        return self._take_some(index, option, option.count, 0)

    def _take_some(self, index: int, option: Alternative, missing: int, start: int) -> bool:
        """Combinations, not permutations: the next device comes after the one before."""
        if missing == 0:
            return self._solve(index + 1)
        for position in range(start, len(self.usable) - missing + 1):
            if not self._push(index, option, self.usable[position]):
                continue
            if self._take_some(index, option, missing - 1, position + 1):
                return True
            self.picks.pop()
        return False

    def _take_all(self, index: int, option: Alternative) -> bool:
        """Every matching device. A constraint that turns one down cannot be met by looking further."""
        for pool in self.pools:
            if pool.defect:
                raise AllocationError(
                    f"request {option.name} asks for all devices: {pool.name} is {pool.defect}"
                )
        wanted = [c for pool in self.pools for c in pool.devices if self._matches(index, option, c)]
        height = len(self.picks)
        for candidate in wanted:
            broken = self._broken_constraint(index, option, candidate)
            if broken:
                raise AllocationError(
                    f"request {option.name} asks for all devices: {candidate} breaks {broken}"
                )
            if not self._push(index, option, candidate):
                break
        if wanted and len(self.picks) == height + len(wanted) and self._solve(index + 1):
            return True
        del self.picks[height:]
        return False

    def _push(self, index: int, option: Alternative, candidate: Candidate) -> bool:
        """Choose the device if nothing speaks against it."""
        reason = self._objection(index, option, candidate)
        if reason:
            self.rejections[index].setdefault(reason, set()).add(candidate.id)
            return False
        self.picks.append(_Pick(self.slots[index].claim, option, candidate))
        return True

    def _objection(self, index: int, option: Alternative, candidate: Candidate) -> str:
        """Cheap reasons first; empty if the device can be had."""
        if len(self.picks_of(self.slots[index].claim)) >= MAX_RESULTS_PER_CLAIM:
            return f"over the limit of {MAX_RESULTS_PER_CLAIM} devices in a claim"
        if self._is_taken(index, option, candidate):
            return "in use"
        if not self._matches(index, option, candidate):
            return f"not matched by the {self.verdicts[option, candidate.id]}"
        untolerated = [taint for taint in candidate.taints if not tolerates(option.tolerations, taint)]
        if untolerated:
            return f"with the taint {untolerated[0]['key']} that the request does not tolerate"
        broken = self._broken_constraint(index, option, candidate)
        return f"against the constraint {broken}" if broken else ""

    def _is_taken(self, index: int, option: Alternative, candidate: Candidate) -> bool:
        """A shared device never is. Admin access may look at a device that others have, but not twice in one
        claim; what it looks at is not given to another claim of the same pod, though."""
        if candidate.shared:
            return False
        claim = self.slots[index].claim
        for pick in self.picks:
            if pick.candidate.id != candidate.id:
                continue
            if pick.claim is claim or not option.admin_access:
                return True
        return candidate.id in self.in_use and not option.admin_access

    def _matches(self, index: int, option: Alternative, candidate: Candidate) -> bool:
        key = (option, candidate.id)
        if key not in self.verdicts:
            self.verdicts[key] = _first_mismatch(self.slots[index].claim, option, candidate)
            if self.verdicts[key] is None and candidate.unsupported:
                raise AllocationError(f"{candidate} has {candidate.unsupported}, which is not played here")
        return self.verdicts[key] is None

    def _broken_constraint(self, index: int, option: Alternative, candidate: Candidate) -> Constraint | None:
        claim = self.slots[index].claim
        for constraint in claim.constraints:
            if not constraint.covers(option.name):
                continue
            picks = self.picks_of(claim)
            others = [p.candidate for p in picks if constraint.covers(p.alternative.name)]
            if not constraint.accepts(candidate, others):
                return constraint
        return None


def _least_count(request: Request) -> int:
    """How many devices the request takes at the least."""
    return min((1 if option.count is None else option.count) for option in request.alternatives)


def _first_mismatch(claim: ClaimView, option: Alternative, candidate: Candidate) -> Selector | None:
    for selector in option.selectors:
        try:
            matched = selector.selector.matches(
                candidate.driver, candidate.cel_attributes(), candidate.capacity, candidate.shared
            )
        except CelError as error:
            raise AllocationError(
                f"claim {claim.label}: request {option.name}: device {candidate}: {error.message}",
                hint=error.hint,
            ) from error
        if not matched:
            return selector
    return None


# --- the outcome as JSON -----------------------------------------------------------------------------


def _build_allocation(
    view: ClaimView, picks: Sequence[_Pick], node: Node, classes: Mapping[str, JsonObject]
) -> JsonObject:
    allocation: JsonObject = {
        "devices": {
            "results": [_build_result(pick) for pick in picks],
            "config": [*_class_configs(picks, classes), *_claim_configs(view, picks)],
        }
    }
    selector = _build_node_selector([pick.candidate for pick in picks], node)
    return {**allocation, "nodeSelector": selector} if selector else allocation


def _build_result(pick: _Pick) -> JsonObject:
    driver, pool, device = pick.candidate.id
    result: JsonObject = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.candidate.shared:
        result["shareID"] = str(uuid.uuid4())
    if pick.alternative.tolerations:
        result["tolerations"] = list(pick.alternative.tolerations)
    return result


def _class_configs(picks: Sequence[_Pick], classes: Mapping[str, JsonObject]) -> Iterator[JsonObject]:
    """One entry for each config of each class in use, for the requests that used it."""
    users: dict[str, list[str]] = defaultdict(list)
    for pick in picks:
        if pick.alternative.name not in users[pick.alternative.class_name]:
            users[pick.alternative.class_name].append(pick.alternative.name)
    for class_name, requests in users.items():
        for config in (classes[class_name].get("spec") or {}).get("config") or ():
            yield _build_config("FromClass", requests, config, picks)


def _claim_configs(view: ClaimView, picks: Sequence[_Pick]) -> Iterator[JsonObject]:
    for config in view.configs:
        requests = frozenset(config.get("requests") or ())
        if any(covers(requests, pick.alternative.name) for pick in picks):
            yield _build_config("FromClaim", config.get("requests") or (), config, picks)


def _build_config(
    source: str, requests: Sequence[str], config: JsonObject, picks: Sequence[_Pick]
) -> JsonObject:
    """``requests`` is left out where the entry covers every result."""
    rest = {key: value for key, value in config.items() if key != "requests"}
    if all(covers(frozenset(requests), pick.alternative.name) for pick in picks):
        return {"source": source, **rest}
    return {"source": source, "requests": list(requests), **rest}


def _build_node_selector(candidates: Sequence[Candidate], node: Node) -> JsonObject | None:
    """Where the claim can be used: the node, what the devices' selectors ask, or anywhere (``None``)."""
    if any(candidate.node_name for candidate in candidates):
        fields = [{"key": "metadata.name", "operator": "In", "values": [node.name]}]
        return {"nodeSelectorTerms": [{"matchFields": fields}]}
    merged: dict[str, list[JsonObject]] = defaultdict(list)
    for candidate in candidates:
        for term in (candidate.node_selector or {}).get("nodeSelectorTerms") or ():
            for key in ("matchExpressions", "matchFields"):
                merged[key] += [r for r in term.get(key) or () if r not in merged[key]]
    term = {key: requirements for key, requirements in merged.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None

"""Which devices a pod's claims get on a node, as Kubernetes' structured allocator decides it.

How to use it::

    attempt = Attempt(claims, ClusterDevices(slices, classes, in_use, taint_rules))   # parses once outcome =
    attempt.on(Node("node-1", labels))                      # asks about one of many nodes outcome.ending,
    outcome.selected, outcome.blocked, outcome.error  # dranet.desk.allocation.outcome review(outcome)
    # what removed each device attempt.allocations(outcome)                                      #
    status.allocation of each claim (KEP-4381)

:func:`allocate` does all of it for one node, and raises where nothing can be allocated.

Pure, except for the random ids of shares. The claims of one pod are allocated all or nothing. Alpha features
that are not modelled (derived attributes, compatibility groups, node-allocatable resources, policies of
counters) and unknown fields end the attempt by name where they would matter; nothing is guessed. Where each
rule is implemented: docs/decisions/034-allocation-room.md.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dranet.desk.allocation.capacity import format_amount
from dranet.desk.allocation.devices import Candidate, CounterId, InUse, Node, read_devices_in_use
from dranet.desk.allocation.failures import AllocationError, Cause, Unschedulable
from dranet.desk.allocation.outcome import AttemptResult, Outcome, review, summarize
from dranet.desk.allocation.pools import Generation, Inventory, Pool, subtract
from dranet.desk.allocation.requests import Alternative, ClaimView, covers, parse_claim
from dranet.desk.allocation.search import Search
from dranet.desk.allocation.selection import NodeContext, SelectedDevice, Slot
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.allocation.taints import parse_rules
from dranet.desk.kubeapi.objects import JsonObject


def build_allocation(view: ClaimView, selected: Sequence[SelectedDevice], node: Node) -> JsonObject:
    """The allocation of one claim, from its picks."""
    allocation: JsonObject = {
        "devices": {
            "results": [_build_result(pick) for pick in selected],
            "config": [*_class_configs(selected), *_claim_configs(view, selected)],
        }
    }
    selector = _build_node_selector([pick.candidate for pick in selected], node)
    return {**allocation, "nodeSelector": selector} if selector else allocation


def _build_result(pick: SelectedDevice) -> JsonObject:
    driver, pool, device = pick.candidate.id
    result: JsonObject = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.alternative.tolerations:
        result["tolerations"] = list(pick.alternative.tolerations)
    if pick.candidate.shared:
        result["shareID"] = str(uuid.uuid4())
    if pick.consumed:
        result["consumedCapacity"] = dict(_consumed(pick))
    if pick.candidate.skipped:
        result["skipNodeOperations"] = list(pick.candidate.skipped)
    return {**result, **pick.candidate.binding}


def _consumed(pick: SelectedDevice) -> Iterator[tuple[str, str]]:
    """By the names that the driver publishes."""
    for name, amount in pick.consumed:
        capacity = pick.candidate.capacity[name]
        yield capacity.spelling, format_amount(amount, like=capacity.text)


def _class_configs(selected: Sequence[SelectedDevice]) -> Iterator[JsonObject]:
    """One entry for each config of each class in use, for the requests that used it."""
    users: dict[str, dict[str, Alternative]] = defaultdict(dict)
    for pick in selected:
        users[pick.alternative.class_name][pick.alternative.name] = pick.alternative
    for alternatives in users.values():
        for config in next(iter(alternatives.values())).class_configs:
            yield _build_config("FromClass", list(alternatives), config, selected)


def _claim_configs(view: ClaimView, selected: Sequence[SelectedDevice]) -> Iterator[JsonObject]:
    for config in view.configs:
        requests = frozenset(config.get("requests") or ())
        if any(covers(requests, pick.alternative.name) for pick in selected):
            yield _build_config("FromClaim", config.get("requests") or (), config, selected)


def _build_config(
    source: str, requests: Sequence[str], config: JsonObject, selected: Sequence[SelectedDevice]
) -> JsonObject:
    """``requests`` is left out where the entry covers every result."""
    rest = {key: value for key, value in config.items() if key != "requests"}
    if all(covers(frozenset(requests), pick.alternative.name) for pick in selected):
        return {"source": source, **rest}
    return {"source": source, "requests": list(requests), **rest}


def _build_node_selector(candidates: Sequence[Candidate], node: Node) -> JsonObject | None:
    """Where the claim can be used: the node, what the devices' selectors ask, or anywhere (``None``)."""
    if any(candidate.reach.node_name or candidate.binds_to_node for candidate in candidates):
        fields = [{"key": "metadata.name", "operator": "In", "values": [node.name]}]
        return {"nodeSelectorTerms": [{"matchFields": fields}]}
    merged: dict[str, list[JsonObject]] = defaultdict(list)
    for candidate in candidates:
        for term in (candidate.reach.node_selector or {}).get("nodeSelectorTerms") or ():
            for key in ("matchExpressions", "matchFields"):
                merged[key] += [r for r in term.get(key) or () if not _holds(merged[key], r)]
    term = {key: requirements for key, requirements in merged.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None


def _holds(requirements: Sequence[JsonObject], new: JsonObject) -> bool:
    """Whether the same is required already; the order of the values does not matter."""
    return any(_normal(requirement) == _normal(new) for requirement in requirements)


def _normal(requirement: JsonObject) -> tuple[str, str, frozenset[str]]:
    return requirement["key"], requirement["operator"], frozenset(requirement.get("values") or ())


__all__ = [
    "AllocationError",
    "Attempt",
    "AttemptResult",
    "Cause",
    "ClusterDevices",
    "InUse",
    "Node",
    "Outcome",
    "Unschedulable",
    "allocate",
    "read_devices_in_use",
    "review",
    "summarize",
]


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """What the API server knows that matters for an allocation, as raw objects."""

    slices: Sequence[JsonObject]
    """ResourceSlices of all nodes and drivers."""
    classes: Mapping[str, JsonObject]
    """DeviceClass by name."""
    in_use: InUse = field(default_factory=InUse)
    taint_rules: Sequence[JsonObject] = ()
    """DeviceTaintRules."""


class Attempt:
    """The claims of one pod that have no allocation yet, against one state of the cluster.

    Raises:
        AllocationError: the claims cannot be allocated anywhere: a class is missing, something is asked for
            that is not modelled here.
    """

    def __init__(self, claims: Sequence[JsonObject], cluster: ClusterDevices) -> None:
        self.views = tuple(parse_claim(claim, cluster.classes) for claim in claims)
        requests = [(view, request) for view in self.views for request in view.requests]
        self.slots = tuple(Slot(index, view, request) for index, (view, request) in enumerate(requests))
        self.inventory = Inventory.read(cluster.slices, parse_rules(cluster.taint_rules))
        self.selector_results = SelectorResults()
        self._in_use = cluster.in_use
        self._available: dict[Generation, Mapping[CounterId, int]] = {}

    def on(self, node: Node) -> Outcome:
        """Try one node. Never raises: :attr:`Outcome.error` is set if the attempt broke off."""
        context = self._context(node)
        search = Search(self.slots, context)
        try:
            found = search.run()
        except AllocationError as error:
            return self._outcome(node, context, search, AttemptResult.BROKE_OFF, error)
        if found:
            return self._outcome(node, context, search, AttemptResult.ALLOCATED)
        invalid = any(pool.invalid for pool in context.pools)
        return self._outcome(
            node, context, search, AttemptResult.POOL_INVALID if invalid else AttemptResult.UNSATISFIED
        )

    def allocations(self, outcome: Outcome) -> tuple[JsonObject, ...]:
        """``status.allocation`` of each claim, in order, for an outcome that ended well."""
        return tuple(
            build_allocation(
                view, [pick for pick in outcome.selected if pick.slot.claim is view], outcome.node
            )
            for view in self.views
        )

    def _context(self, node: Node) -> NodeContext:
        pools = self.inventory.pools_for(node)
        available = {pool.id: self._left_of(pool) for pool in pools if not pool.defect}
        return NodeContext(pools, available, self._in_use, self.selector_results)

    def _left_of(self, pool: Pool) -> Mapping[CounterId, int]:
        """Devices of a pool on any node take of its counters."""
        everywhere = pool.generation
        if everywhere not in self._available:
            had = (device for device in everywhere.iter_devices() if self._in_use.holds(device.id))
            self._available[everywhere] = subtract(everywhere.counters, had)
        return self._available[everywhere]

    def _outcome(
        self,
        node: Node,
        context: NodeContext,
        search: Search,
        ending: AttemptResult,
        error: AllocationError | None = None,
    ) -> Outcome:
        return Outcome(node, ending, self.slots, search.best, max(search.deepest, 0), context, error)


def allocate(claims: Sequence[JsonObject], node: Node, cluster: ClusterDevices) -> tuple[JsonObject, ...]:
    """``status.allocation`` for each claim, in order.

    Args:
        claims: the pod's ResourceClaims that have no allocation yet.
        node: where the pod would run.
        cluster: slices, classes, taint rules and the devices that other claims have.

    Raises:
        Unschedulable: not all claims fit; the message names the request that failed, and why.
        AllocationError: the attempt broke off (see there); the pod is unschedulable as well.
    """
    attempt = Attempt(claims, cluster)
    outcome = attempt.on(node)
    if outcome.error:
        raise outcome.error
    if outcome.ending is not AttemptResult.ALLOCATED:
        raise Unschedulable(summarize(outcome))
    return attempt.allocations(outcome)

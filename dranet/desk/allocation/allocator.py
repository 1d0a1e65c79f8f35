"""Which devices a pod's claims get on a node, as Kubernetes' structured allocator decides it.

How to use it::

    attempt = Attempt(claims, ClusterDevices(slices, classes, in_use, taint_rules))   # parses once
    outcome = attempt.on(Node("node-1", labels))                    # asks about one of many nodes
    outcome.ending, outcome.picks, outcome.blocked, outcome.error   # dranet.desk.allocation.outcome
    review(outcome)                                 # what removed each device: dranet.desk.allocation.review
    attempt.allocations(outcome)                                    # status.allocation of each claim

:func:`allocate` does all of it for one node, and raises where there is nothing to allocate.

Pure, but for the random ids of shares. Claims of one pod are allocated together or not at all. What is alpha
and not played (derived attributes, compatibility groups, node-allocatable resources, policies of counters),
and every field that is not known, ends the attempt by name where it would matter; it is never guessed.
Which rule is where: docs/decisions/034-allocation-room.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dranet.desk.allocation.counters import subtract
from dranet.desk.allocation.devices import CounterId
from dranet.desk.allocation.failures import AllocationError, Cause, Unschedulable
from dranet.desk.allocation.nodes import JsonObject, Node
from dranet.desk.allocation.outcome import Ending, Outcome, Slot
from dranet.desk.allocation.pools import Generation, Inventory, Pool
from dranet.desk.allocation.requests import parse_claim
from dranet.desk.allocation.result import build_allocation
from dranet.desk.allocation.review import review, summarize
from dranet.desk.allocation.search import Search
from dranet.desk.allocation.state import Ground
from dranet.desk.allocation.taints import parse_rules
from dranet.desk.allocation.usage import InUse, read_devices_in_use
from dranet.desk.allocation.verdicts import Verdicts

__all__ = [
    "AllocationError",
    "Attempt",
    "Cause",
    "ClusterDevices",
    "Ending",
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
    """Of all nodes and drivers."""
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
        self.verdicts = Verdicts()
        self._in_use = cluster.in_use
        self._available: dict[Generation, Mapping[CounterId, int]] = {}

    def on(self, node: Node) -> Outcome:
        """Try one node. Never raises: :attr:`Outcome.error` says if the attempt broke off."""
        ground = self._ground(node)
        search = Search(self.slots, ground)
        try:
            found = search.run()
        except AllocationError as error:
            return self._outcome(node, ground, search, Ending.BROKE_OFF, error)
        if found:
            return self._outcome(node, ground, search, Ending.ALLOCATED)
        invalid = any(pool.invalid for pool in ground.pools)
        return self._outcome(node, ground, search, Ending.POOL_INVALID if invalid else Ending.UNSATISFIED)

    def allocations(self, outcome: Outcome) -> tuple[JsonObject, ...]:
        """``status.allocation`` of each claim, in order, for an outcome that ended well."""
        return tuple(
            build_allocation(view, [pick for pick in outcome.picks if pick.slot.claim is view], outcome.node)
            for view in self.views
        )

    def _ground(self, node: Node) -> Ground:
        pools = self.inventory.pools_for(node)
        available = {pool.id: self._left_of(pool) for pool in pools if not pool.defect}
        return Ground(pools, available, self._in_use, self.verdicts)

    def _left_of(self, pool: Pool) -> Mapping[CounterId, int]:
        """Devices of a pool on any node take of its counters."""
        everywhere = pool.generation
        if everywhere not in self._available:
            had = (device for device in everywhere.iter_devices() if self._in_use.holds(device.id))
            self._available[everywhere] = subtract(everywhere.counters, had)
        return self._available[everywhere]

    def _outcome(
        self, node: Node, ground: Ground, search: Search, ending: Ending, error: AllocationError | None = None
    ) -> Outcome:
        return Outcome(node, ending, self.slots, search.best, max(search.deepest, 0), ground, error)


def allocate(claims: Sequence[JsonObject], node: Node, cluster: ClusterDevices) -> tuple[JsonObject, ...]:
    """``status.allocation`` for each claim, in order.

    Args:
        claims: the pod's ResourceClaims that have no allocation yet.
        node: where the pod would run.
        cluster: slices, classes, taint rules and the devices that other claims have.

    Raises:
        Unschedulable: not all claims fit; the message says which request failed and on what.
        AllocationError: the attempt broke off (see there); the pod is unschedulable as well.
    """
    attempt = Attempt(claims, cluster)
    outcome = attempt.on(node)
    if outcome.error:
        raise outcome.error
    if outcome.ending is not Ending.ALLOCATED:
        raise Unschedulable(summarize(outcome))
    return attempt.allocations(outcome)

"""The documented rules of the allocator, one sentence each, and which test shows which.

They are those of Kubernetes 1.37's structured allocator with its features on, list attributes included.
``shows`` marks the test of a rule; ``test_every_rule_has_its_test.py`` sees that none is without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

_Test = TypeVar("_Test", bound=Callable[..., object])

RULES: dict[str, str] = {
    # pools
    "pool.reach": "a slice reaches a node by nodeName, nodeSelector, allNodes or any device's",
    "pool.reach.unknown": "a slice that selects by nothing that is known reaches no node",
    "pool.newest": "the highest generation that reaches the node counts",
    "pool.obsolete": "with a higher one on other nodes only, it must be complete on the node, or is gone",
    "pool.incomplete": "slices of other nodes count for completeness; with too few nothing is taken",
    "pool.complete": "a pool that is complete on the node is not asked for slices of other nodes",
    "pool.incomplete.all": "a request for all devices breaks off while any pool of the node is incomplete",
    "pool.invalid": "duplicate devices make a pool invalid: skipped if others do, else it is to blame",
    "pool.invalid.counters": "so do counters that are not there, and counter sets of one name",
    "pool.invalid.all": "a request for all devices breaks off while any pool of the node is invalid",
    "pool.order": "pools are tried by driver, then name",
    "pool.order.binding": "pools with binding conditions come after those without",
    "pool.order.slices": "slices of a pool are read by name, devices as they are listed",
    "pool.device-selection": "with a selection of its own a device is only there for its nodes",
    "pool.device-selection.last": "which is asked last, so that selectors see devices of other nodes, too",
    # requests
    "request.order": "claims and requests are satisfied in the order given, all or none",
    "request.backtracking": "an earlier choice is taken back if a later request cannot be satisfied with it",
    "request.class-missing": "a class that does not exist breaks off",
    "request.selectors": "the class's selectors and the request's must all be true",
    "request.selector-error": "a selector that fails breaks off, when the search comes to the device",
    "request.selector-unreached": "a selector that would fail on a device that nobody comes to does no harm",
    "request.selector-in-use": "a device that is in use is not asked about",
    "request.count": "exact counts are combinations in the order of the devices; the default is one",
    "request.all": "all devices: every match, at least one, all allocatable or the branch fails",
    "request.all.constraint": "a constraint against one of all devices breaks off; no more is tried",
    "request.all.no-room": "of shared devices only the whole capacity decides whether they are part of all",
    "request.first-available": "alternatives are tried in order and recorded as req/sub",
    "request.limit": "no claim has more than 32 devices, which is looked at first",
    "request.limit.search": "an alternative that would go over 32 is passed over",
    # use
    "use.once": "a device is not given twice, neither to other claims nor in one run",
    "use.admin": "admin access may see what others have, but nothing twice in one claim",
    "use.admin.shared": "which is not asked of shared devices",
    "use.admin.frees": "results with admin access take nothing away",
    # taints
    "taint.effects": "NoSchedule and NoExecute keep a device away, other effects do not",
    "taint.tolerations": "no key but Exists tolerates all keys, no effect all effects; Equal compares",
    "taint.admin": "admin access tolerates nothing by itself",
    "taint.rule": "a DeviceTaintRule adds its taint to what it selects; {} selects everything",
    "taint.rule.no-selector": "without a selector it selects nothing",
    # constraints
    "constraint.match": "matching devices have the attribute, of one type and value",
    "constraint.match.list": "lists match while all have an element in common; scalars have one",
    "constraint.distinct": "distinct devices have the attribute and differ pairwise, in one request, too",
    "constraint.distinct.list": "distinct lists are disjoint",
    "constraint.scope": "a request's name covers its alternatives, req/sub that one, none all",
    "constraint.names": "an attribute is found by qualified name, else bare in its driver's domain",
    # counters
    "counter.exclude": "devices that would make a counter negative together exclude each other",
    "counter.allocated": "allocated devices of the pool have taken theirs, on other nodes, too",
    "counter.shared": "a shared device takes its counters once",
    # capacity
    "capacity.filter": "a capacity that is asked for must be there and enough, for one user as well",
    "capacity.names": "names of capacities are compared as they are written, with or without a domain",
    "capacity.sum": "what claims have, this run has and the request takes must fit together",
    "capacity.default": "what is not asked for takes the policy's default, else all; a zero default is legal",
    "capacity.range": "an amount is raised to min, rounded up to a step, refused over max",
    "capacity.values": "an amount becomes the next valid value, or is refused",
    "capacity.share": "a shared device comes with a share id and what was taken of every capacity",
    "capacity.exclusive": "a device of one user has neither",
    "capacity.flag-changed": "what was given, whole or in shares, stays so, whatever the slice says now",
    # result
    "result.node": "a device of one node, or that binds to one, pins the claim to it",
    "result.selector": "else the requirements of the node selectors are merged; none means anywhere",
    "result.binding": "binding conditions, tolerations and node operations to skip are in the result",
    "result.config": "configs come class first, of chosen requests; requests left out if all are meant",
    # honesty
    "unknown.request": "what a claim asks that is not modelled breaks off by name",
    "unknown.device": "what a device has that is not modelled breaks off by name where it would be given",
}

SHOWN: dict[str, set[str]] = defaultdict(set)
"""Rule -> names of the tests that show it."""


def shows(*rules: str) -> Callable[[_Test], _Test]:
    """The test shows these rules."""

    def mark(test: _Test) -> _Test:
        for rule in rules:
            SHOWN[rule].add(test.__name__)
        return test

    return mark

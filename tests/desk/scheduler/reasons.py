"""Why an older scheduler does something else: what is known, each with what must be true of the case.

The allocator plays the newest scheduler. ``docs/dev/scheduler-versions.md`` has the same list for people.
"""

from __future__ import annotations

from collections.abc import Callable

from dranet.desk.allocation.allocator import Outcome
from dranet.desk.allocation.devices import Node
from dranet.desk.allocation.failures import Cause
from dranet.desk.allocation.pools import Generation
from tests.desk.scheduler.predictions import Foretold
from tests.desk.scheduler.settings import Setting
from tests.desk.scheduler.submission import Given

POOL_OVER_NODES = "a pool counts only its slices that reach the node: one over several nodes is incomplete"
INCOMPLETE_GIVEN = "devices of an incomplete pool are given; a request for all devices alone waits"
INVALID_ENDS = "a pool with a device name twice ends the attempt; now it only has no devices"
DISTINCT_IGNORED = "distinctAttribute is stored, and not looked at without DRAConsumableCapacity"
NO_ORDER = "pools and slices come in no order, so that a selector that fails meets a device or does not"
LISTS_UNKNOWN = "lists are stored, and no constraint knows them: they match nothing, and differ from all"
DISTINCT_FORGETS = "distinctAttribute keeps one value for each request, and none when a device is put back"


def find_reason(setting: Setting, one: Given, foretold: Foretold) -> str:
    """Empty if nothing that is known of this version applies."""
    reasons = _REASONS.get(setting.version, {})
    return next((text for text, applies in reasons.items() if applies(one, foretold)), "")


def _has_pool_over_nodes(one: Given, foretold: Foretold) -> bool:
    del one
    if foretold.attempt is None:
        return False
    generations = [g for pool in foretold.attempt.inventory.pools.values() for g in pool]
    return any(_is_partial(g, outcome.node) for g in generations for outcome in foretold.outcomes.values())


def _is_partial(generation: Generation, node: Node) -> bool:
    reaching = sum(entry.reaches(node) for entry in generation.slices)
    return 0 < reaching < len(generation.slices)


def _has_incomplete_pool(one: Given, foretold: Foretold) -> bool:
    pools = (pool for outcome in foretold.outcomes.values() for pool in outcome.pools)
    return bool(one.answer and one.answer.allocations) and any(pool.incomplete for pool in pools)


def _has_invalid_pool(one: Given, foretold: Foretold) -> bool:
    del foretold
    return one.answer is not None and "is invalid: duplicate device name" in one.answer.message


def _asks_distinct(one: Given, foretold: Foretold) -> bool:
    del foretold
    constraints = (c for claim in one.claims for c in claim["spec"]["devices"].get("constraints") or ())
    return any("distinctAttribute" in constraint for constraint in constraints)


def _depends_on_order(one: Given, foretold: Foretold) -> bool:
    answer = one.answer
    fails = foretold.cause is Cause.SELECTOR_FAILED or (answer and "selector #" in answer.message)
    return bool(fails) and any(_has_choice(outcome) for outcome in foretold.outcomes.values())


def _has_choice(outcome: Outcome) -> bool:
    """Whether there is more than one slice to begin with."""
    return sum(len(pool.generation.slices) for pool in outcome.pools) > 1


def _compares_lists(one: Given, foretold: Foretold) -> bool:
    del foretold
    constraints = [c for claim in one.claims for c in claim["spec"]["devices"].get("constraints") or ()]
    named = (c.get("matchAttribute") or c.get("distinctAttribute") or "" for c in constraints)
    names = {name.rpartition("/")[2] for name in named}
    return any(
        attribute.rpartition("/")[2] in names and value.keys() & {"strings", "ints", "bools", "versions"}
        for entry in one.slices
        for device in entry["spec"].get("devices") or ()
        for attribute, value in device.get("attributes", {}).items()
    )


_REASONS: dict[str, dict[str, Callable[[Given, Foretold], bool]]] = {
    "1.34": {
        POOL_OVER_NODES: _has_pool_over_nodes,
        INCOMPLETE_GIVEN: _has_incomplete_pool,
        INVALID_ENDS: _has_invalid_pool,
        DISTINCT_IGNORED: _asks_distinct,
        NO_ORDER: _depends_on_order,
    },
    "1.36": {LISTS_UNKNOWN: _compares_lists, DISTINCT_FORGETS: _asks_distinct},
}
"""By version: what differs, and when it may."""

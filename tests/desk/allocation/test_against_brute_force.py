"""The allocator finds what an allocator finds that tries everything, and fails as that fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.desk.allocation.allocator import (
    AllocationError,
    Attempt,
    AttemptResult,
    ClusterDevices,
    Node,
    read_devices_in_use,
    review,
)
from dranet.desk.allocation.outcome import Outcome
from dranet.desk.allocation.search import Search
from dranet.desk.allocation.selection import Removal
from tests.desk.allocation import random_clusters
from tests.desk.allocation.brute_force import BruteForce, Entry, World, take

pytestmark = pytest.mark.timeout(600)

SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
THOROUGH = settings(max_examples=1500, deadline=None, suppress_health_check=SUPPRESSED)


@st.composite
def situations(draw: st.DrawFn, *, failing: bool) -> dict[str, Any]:
    theme = draw(st.sampled_from(random_clusters.THEMES))
    published = draw(random_clusters.slices(failing=failing, theme=theme))
    return {
        "slices": published,
        "allocated": draw(random_clusters.allocated(published)),
        "rules": draw(random_clusters.RULES) if theme == "everything" else [],
        "claims": draw(random_clusters.claims(failing=failing, theme=theme)),
        "theme": theme,
    }


def play(situation: dict[str, Any]) -> tuple[Attempt, Outcome]:
    cluster = ClusterDevices(
        situation["slices"],
        random_clusters.CLASSES,
        read_devices_in_use(situation["allocated"]),
        situation["rules"],
    )
    attempt = Attempt(situation["claims"], cluster)
    return attempt, attempt.on(Node(random_clusters.NODE, {}))


def by_brute_force(situation: dict[str, Any]) -> BruteForce:
    world = World(
        situation["slices"],
        random_clusters.CLASSES,
        situation["allocated"],
        situation["rules"],
        random_clusters.NODE,
        random_clusters.PREDICATES,
    )
    return BruteForce(world, situation["claims"])


def told(outcome: Outcome) -> tuple[Any, ...]:
    """In the words of the brute force."""
    match outcome.ending:
        case AttemptResult.ALLOCATED:
            return "allocated", [(p.alternative.name, p.candidate.id) for p in outcome.selected]
        case AttemptResult.UNSATISFIED:
            return ("unsatisfied",)
        case AttemptResult.POOL_INVALID:
            return ("pool invalid",)
    assert outcome.error
    return "broke off", outcome.error.cause.name


def expected(result: tuple[Any, ...]) -> tuple[Any, ...]:
    return (result[0], _names(result[1])) if result[0] == "allocated" else result


def _names(entries: list[Entry]) -> list[tuple[str, tuple[str, str, str]]]:
    return [(entry.request, entry.device.id) for entry in entries]


@pytest.mark.slow
@THOROUGH
@given(situations(failing=True))
def test_the_same_devices_or_the_same_failure(situation: dict[str, Any]) -> None:
    _, outcome = play(situation)

    assert told(outcome) == expected(by_brute_force(situation).run())


@pytest.mark.slow
@settings(THOROUGH, max_examples=1000)
@given(situations(failing=False))
def test_where_nothing_can_break_off_the_first_of_all_assignments_that_keep_every_rule(
    situation: dict[str, Any],
) -> None:
    _, outcome = play(situation)
    brute = by_brute_force(situation)
    if brute.run()[0] == "broke off":
        return
    first = brute.first_of_all()

    if first is None:
        assert outcome.ending in (AttemptResult.UNSATISFIED, AttemptResult.POOL_INVALID)
    else:
        assert told(outcome) == ("allocated", _names(first))


@pytest.mark.slow
@settings(THOROUGH, max_examples=300)
@given(situations(failing=False))
def test_every_share_says_what_it_takes(situation: dict[str, Any]) -> None:
    attempt, outcome = play(situation)
    if outcome.ending is not AttemptResult.ALLOCATED:
        return
    results = [r for a in attempt.allocations(outcome) for r in a["devices"]["results"]]
    (_, entries) = by_brute_force(situation).run()

    for result, entry in zip(results, entries, strict=True):
        asked = {n: int(v) for n, v in entry.option.get("capacity", {}).get("requests", {}).items()}
        amounts = {
            name: str(take(capacity, asked.get(name))) for name, capacity in entry.device.capacities().items()
        }
        assert ("shareID" in result) is entry.device.shared
        assert result.get("consumedCapacity", {}) == (amounts if entry.device.shared else {})


@pytest.mark.slow
@settings(THOROUGH, max_examples=300)
@given(situations(failing=True))
def test_every_device_has_a_reason_or_is_had_or_spare(situation: dict[str, Any]) -> None:
    """And what the search could not get past has too few devices in each alternative."""
    _, outcome = play(situation)
    devices = sorted(c.id for pool in outcome.pools for c in pool.every)

    for slot in review(outcome):
        for option in slot.alternatives:
            listed = [c.id for c in (*option.had, *option.spare)] + [r.candidate.id for r in option.removed]
            assert sorted(listed) == devices
    if outcome.ending in (AttemptResult.UNSATISFIED, AttemptResult.POOL_INVALID):
        assert not any(_could_go_on(o) for o in review(outcome)[outcome.deepest].alternatives)


def _could_go_on(option: Any) -> bool:
    """As far as one can say without trying combinations: with a constraint the first may be the wrong one."""
    return bool(option.satisfied) and not any(r.removal is Removal.CONSTRAINT for r in option.removed)


@pytest.mark.slow
@settings(THOROUGH, max_examples=1000)
@given(st.data())
def test_leaving_out_what_is_lost_changes_nothing(data: st.DataObject) -> None:
    """On larger inputs: the same search with and without bounds and memory."""
    situation = data.draw(situations(failing=True))
    more = data.draw(random_clusters.claims(failing=True, theme=situation["theme"]))
    situation["claims"] = [*situation["claims"], *({**c, "metadata": {"name": "m"}} for c in more[:1])]
    attempt, outcome = play(situation)
    plain = Search(attempt.slots, outcome.context, prune=False)
    try:
        found = plain.run()
    except AllocationError as error:
        found, broken = False, str(error)
    else:
        broken = ""

    assert broken == str(outcome.error or "")
    if broken:
        return
    assert found is (outcome.ending is AttemptResult.ALLOCATED)
    assert (plain.deepest, [(p.slot.index, p.candidate.id) for p in plain.best]) == (
        outcome.deepest,
        [(p.slot.index, p.candidate.id) for p in outcome.selected],
    )

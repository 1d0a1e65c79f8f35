"""Damping over warped time: what must hold whatever a fault does, and whenever somebody looks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dranet.health import MOST_DOUBLINGS, NO_FAULT, Damping, FaultState, next_due, step

DAMPING = Damping(raise_seconds=10.0, clear_seconds=60.0)
LONGEST_HOLD = DAMPING.hold_seconds(MOST_DOUBLINGS)

Looks = list[tuple[float, bool]]

gaps = st.one_of(st.floats(0.01, 5), st.floats(5, 200), st.floats(200, 20_000))
looks = st.lists(st.tuples(gaps, st.booleans()), max_size=60)


def follow(story: Looks, start: float = 1000.0) -> tuple[list[FaultState], float]:
    """The state after each look, and the time of the last one; also looks whenever one is due in between."""
    state, now, states = NO_FAULT, start, [NO_FAULT]
    for gap, present in story:
        end = now + gap
        while (due := next_due(state, DAMPING)) is not None and due < end:
            now = max(now, due) + 0.001
            state = step(state, state.present, now, DAMPING)
            states.append(state)
        now = max(now, end)
        state = step(state, present, now, DAMPING)
        states.append(state)
    return states, now


def count_transitions(states: list[FaultState]) -> int:
    return sum(earlier.raised != later.raised for earlier, later in pairwise(states))


def test_a_fault_counts_when_it_has_lasted_and_not_before() -> None:
    state = step(NO_FAULT, True, 100.0, DAMPING)
    assert not state.raised
    assert next_due(state, DAMPING) == 110.0
    assert not step(state, True, 109.9, DAMPING).raised
    assert step(state, True, 110.0, DAMPING).raised


def test_a_blip_never_counts() -> None:
    state = NO_FAULT
    for number in range(100):
        state = step(state, True, 20.0 * number, DAMPING)
        state = step(state, False, 20.0 * number + 9.0, DAMPING)
        assert not state.raised


def test_a_fault_that_has_gone_is_cleared_after_a_while_and_asks_for_nothing_more() -> None:
    state = step(step(NO_FAULT, True, 0.0, DAMPING), True, 10.0, DAMPING)
    assert next_due(state, DAMPING) is None, "nothing wakes up while it lasts"
    state = step(state, False, 100.0, DAMPING)
    assert step(state, False, 159.0, DAMPING).raised
    state = step(state, False, 160.0, DAMPING)
    assert not state.raised
    assert next_due(state, DAMPING) is None


def test_a_fault_that_comes_back_again_and_again_is_held_twice_as_long_each_time() -> None:
    state, now, holds = NO_FAULT, 0.0, []
    for _ in range(7):
        state = step(step(state, True, now, DAMPING), True, now + 10, DAMPING)
        assert state.raised
        state = step(state, False, now + 20, DAMPING)
        due = next_due(state, DAMPING)
        assert due is not None
        holds.append(due - now - 20)
        assert step(state, False, due - 0.1, DAMPING).raised, "not before its time"
        state = step(state, False, due, DAMPING)
        now = due + 1
    assert holds == [60, 120, 240, 480, 960, 960, 960]


def test_one_that_flaps_faster_than_it_is_cleared_stays_one_fault() -> None:
    story: Looks = [(30.0, number % 2 == 0) for number in range(100)]
    states, _ = follow(story)
    assert count_transitions(states) == 1


def test_after_a_long_calm_it_is_held_no_longer_than_the_first_time() -> None:
    states, _ = follow(
        [(1, True), (20, True), (30, False), (20, True), (20, False), (9000, False), (9000, True), (20, True)]
    )
    assert states[-1].raised
    assert states[-1].relapses == 0


@given(looks)
def test_transitions_are_few_whatever_happens(story: Looks) -> None:
    states, end = follow(story)
    cycles = (end - 1000.0) / (DAMPING.clear_seconds + DAMPING.raise_seconds)
    assert count_transitions(states) <= 2 * cycles + 1
    held = (end - 1000.0) / LONGEST_HOLD
    assert count_transitions(states) <= 2 * (MOST_DOUBLINGS + 1) * (held / 4 + 1) + 2 * held


@given(looks, st.booleans())
def test_it_always_converges_to_what_lasts(story: Looks, present: bool) -> None:
    states, now = follow(story)
    state = step(states[-1], present, now + 0.01, DAMPING)
    for _ in range(3):
        due = next_due(state, DAMPING)
        if due is None:
            break
        assert due <= now + 0.01 + max(LONGEST_HOLD, DAMPING.raise_seconds)
        state = step(state, present, due + 0.001, DAMPING)
    assert state.raised is present
    assert next_due(state, DAMPING) is None


@given(looks, st.integers(1, 5))
def test_looking_more_often_changes_nothing(story: Looks, times: int) -> None:
    """Looks between two changes see what the one before them saw."""
    finer: Looks = []
    for gap, present in story:
        before = finer[-1][1] if finer else False
        finer += [(gap / times, before)] * (times - 1) + [(gap / times, present)]
    plain, more = follow(story)[0][-1], follow(finer)[0][-1]
    assert plain.raised == more.raised
    assert plain.present == more.present


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), max_size=40))
def test_a_clock_that_jumps_about_raises_nothing_that_never_showed(story: Looks) -> None:
    state, now = NO_FAULT, 0.0
    for jump, present in story:
        now += jump
        state = step(state, present, now, DAMPING)
    if not any(present for _, present in story):
        assert state == NO_FAULT

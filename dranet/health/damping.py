"""A fault is raised when it has persisted, and cleared when it has been gone for longer.

:func:`step` is the whole state machine, with one :class:`FaultState` for each device and kind of fault. Times
are seconds of a clock that only goes forward (``time.monotonic``, the same for all processes of one boot). If
the clock went back, nothing would happen until it has caught up.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A time of any clock, within the years of Python's calendar."""

MOST_DOUBLINGS = 4
"""The delay before a fault is cleared grows up to sixteenfold."""


class Damping(Struct, frozen=True):
    """How long a fault must persist before it is raised, and be gone before it is cleared."""

    raise_seconds: float = 10.0
    """Seconds that a fault must persist before it is raised."""
    clear_seconds: float = 60.0
    """Seconds that a fault must be gone before it is cleared; doubled for each relapse."""

    def hold_seconds(self, relapses: int) -> float:
        """Return how long a fault with so many relapses must be gone before it is cleared."""
        return float(self.clear_seconds * 2 ** min(relapses, MOST_DOUBLINGS))

    @property
    def memory_seconds(self) -> float:
        """A fault that returns within this time after it was cleared counts as the same one."""
        return 4 * self.hold_seconds(MOST_DOUBLINGS)


class FaultState(Struct, frozen=True):
    """The state of one fault of one device."""

    present: bool = False
    """Whether it shows, as far as is known."""
    changed_at: Seconds = 0.0
    """When ``present`` became what it is."""
    raised: bool = False
    """Whether it counts."""
    relapses: Annotated[int, Meta(ge=0)] = 0
    """How often it returned before it was forgotten."""
    cleared_at: Seconds | None = None


NO_FAULT = FaultState()


def step(state: FaultState, present: bool, now: float, damping: Damping) -> FaultState:
    """Return the state after an observation at ``now`` that showed the fault or did not."""
    if present != state.present:
        state = _turn(state, present, now, damping)
    lasted = now - state.changed_at
    if present and not state.raised and lasted >= damping.raise_seconds:
        return replace(state, raised=True, relapses=_relapses(state, damping), cleared_at=None)
    if not present and state.raised and lasted >= damping.hold_seconds(state.relapses):
        return replace(state, raised=False, cleared_at=now)
    return state


def _turn(state: FaultState, present: bool, now: float, damping: Damping) -> FaultState:
    """A raised fault that returns after a while, not after a blink, is held for longer."""
    is_relapse = present and state.raised and now - state.changed_at >= damping.raise_seconds
    return replace(state, present=present, changed_at=now, relapses=state.relapses + is_relapse)


def _relapses(state: FaultState, damping: Damping) -> int:
    if state.cleared_at is None or state.changed_at - state.cleared_at > damping.memory_seconds:
        return 0
    return state.relapses + 1


def next_due(state: FaultState, damping: Damping) -> float | None:
    """Return when the state changes if nothing else is observed; ``None``: never."""
    if state.present == state.raised:
        return None
    if state.present:
        return state.changed_at + damping.raise_seconds
    return state.changed_at + damping.hold_seconds(state.relapses)


def is_of_interest(state: FaultState, now: float, damping: Damping) -> bool:
    """Whether the fault shows, is raised, or would be held for longer if it returned now."""
    if state.present or state.raised:
        return True
    return state.cleared_at is not None and now - state.cleared_at <= damping.memory_seconds

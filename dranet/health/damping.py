"""A fault must last before it counts, and be gone for longer before it is cleared.

One :class:`FaultState` for each device and kind of fault; :func:`step` is the whole machine. Times are
seconds of a clock that only goes forward (``time.monotonic``, which is the same for all processes of one
boot); if it did go back, nothing would happen until it has caught up.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A time of any clock, within the years that Python's calendar has."""

MOST_DOUBLINGS = 4
"""The wait before a fault is cleared grows up to sixteen times."""


class Damping(Struct, frozen=True):
    """How patient the judgement is."""

    raise_seconds: float = 10.0
    """A fault counts when it has lasted for so long."""
    clear_seconds: float = 60.0
    """It is cleared when it has been gone for so long; twice as long for each time that it came back."""

    def hold_seconds(self, relapses: int) -> float:
        """How long a fault must be gone that came back so often."""
        return float(self.clear_seconds * 2 ** min(relapses, MOST_DOUBLINGS))

    @property
    def memory_seconds(self) -> float:
        """A fault that comes back within this time after it was cleared is the same one."""
        return 4 * self.hold_seconds(MOST_DOUBLINGS)


class FaultState(Struct, frozen=True):
    """Where one fault of one device stands."""

    present: bool = False
    """It shows, as far as we know."""
    changed_at: Seconds = 0.0
    """When ``present`` became what it is."""
    raised: bool = False
    """It counts."""
    relapses: Annotated[int, Meta(ge=0)] = 0
    """How often it came back before it was forgotten."""
    cleared_at: Seconds | None = None


NO_FAULT = FaultState()


def step(state: FaultState, present: bool, now: float, damping: Damping) -> FaultState:
    """The state after a look at ``now``, which saw the fault or did not."""
    if present != state.present:
        state = _turn(state, present, now, damping)
    lasted = now - state.changed_at
    if present and not state.raised and lasted >= damping.raise_seconds:
        return replace(state, raised=True, relapses=_relapses(state, damping), cleared_at=None)
    if not present and state.raised and lasted >= damping.hold_seconds(state.relapses):
        return replace(state, raised=False, cleared_at=now)
    return state


def _turn(state: FaultState, present: bool, now: float, damping: Damping) -> FaultState:
    """One that counts and comes back after it was gone for a while (not for a blink) is held for longer."""
    is_relapse = present and state.raised and now - state.changed_at >= damping.raise_seconds
    return replace(state, present=present, changed_at=now, relapses=state.relapses + is_relapse)


def _relapses(state: FaultState, damping: Damping) -> int:
    if state.cleared_at is None or state.changed_at - state.cleared_at > damping.memory_seconds:
        return 0
    return state.relapses + 1


def next_due(state: FaultState, damping: Damping) -> float | None:
    """When the state changes if nothing else is seen; ``None``: never."""
    if state.present == state.raised:
        return None
    if state.present:
        return state.changed_at + damping.raise_seconds
    return state.changed_at + damping.hold_seconds(state.relapses)


def is_of_interest(state: FaultState, now: float, damping: Damping) -> bool:
    """Whether it shows, counts, or would be held for longer if it came back now."""
    if state.present or state.raised:
        return True
    return state.cleared_at is not None and now - state.cleared_at <= damping.memory_seconds

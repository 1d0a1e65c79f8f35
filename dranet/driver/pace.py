"""Slices no more often than the cluster can bear.

Each write of a slice is some ten kilobytes in the store, and goes to every scheduler. A link that flaps, as
a worn-out optic makes it for days, changes attributes of its device every few seconds: a few such changes are
told at once, and more of them a few times a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dranet.model.device import Device
from dranet.model.taint import Taint

log = logging.getLogger(__name__)

BURST = 20
"""Changes that are told at once, after a calm of some minutes."""
REFILL_SECONDS = 20.0
"""And one more for each."""

Pages = Sequence[Sequence[Device]]
TaintsByDevice = Mapping[str, Sequence[Taint]]
_NO_TAINTS: TaintsByDevice = {}


class Publisher(Protocol):
    """Where the pages of devices go (``cluster.slices.SlicePublisher``)."""

    def set_desired(self, pages: Pages, taints: TaintsByDevice = ..., /) -> None: ...


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _what_slices_say(pages: Pages, taints: TaintsByDevice) -> object:
    """Equal for what makes equal slices: a device that is in a pod differs from itself in more than that."""
    return [[(one.name, one.attributes, one.shared) for one in page] for page in pages], dict(taints)


class PacedSlices:
    """A publisher before the publisher, which goes on with what it was told last. Event loop only."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        burst: int = BURST,
        refill_seconds: float = REFILL_SECONDS,
        clock: Callable[[], float] = _loop_time,
    ) -> None:
        self._publisher = publisher
        self._burst = burst
        self._refill_seconds = refill_seconds
        self._clock = clock
        self._left = float(burst)
        self._looked_at: float | None = None
        self._wanted: tuple[Pages, TaintsByDevice] | None = None
        self._told: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_slow = False

    def set_desired(self, pages: Pages, taints: TaintsByDevice = _NO_TAINTS, /) -> None:
        """Tell it now, or when its turn comes, unless it is superseded by then, or as it was."""
        self._wanted = (pages, taints)
        if self._timer is None:
            self.look()

    def look(self) -> None:
        """Tell what waits, if its turn has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refill()
        if self._wanted is None or (word := _what_slices_say(*self._wanted)) == self._told:
            return
        if self._left < 1:
            self._note_slow()
            wait = (1 - self._left) * self._refill_seconds
            self._timer = asyncio.get_running_loop().call_later(wait, self.look)
            return
        self._left -= 1
        self._told = word
        self._publisher.set_desired(*self._wanted)

    def close(self) -> None:
        """What waits is not told any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _refill(self) -> None:
        now = self._clock()
        if self._looked_at is not None:
            self._left = min(self._burst, self._left + (now - self._looked_at) / self._refill_seconds)
        self._looked_at = now
        self._is_slow = self._is_slow and self._left < self._burst

    def _note_slow(self) -> None:
        """Once, until it has been calm for long."""
        if not self._is_slow:
            self._is_slow = True
            log.info(
                "what is published changes again and again, as when a link flaps: "
                "it is written every %g s at most, until it is calm",
                self._refill_seconds,
            )

"""Items that are looked at in turn, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator


class Rounds:
    """A round takes items until its time is over, at least one. The next round begins after the last of them,
    so that items which take all the time are not the same in each round."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = ""

    def take(self, items: Iterable[str]) -> Iterator[str]:
        """Several tasks of an event loop may share the iterator."""
        end = time.monotonic() + self._seconds
        for item in sorted(items, key=lambda item: (item <= self._last, item)):
            self._last = item
            yield item
            if time.monotonic() >= end:
                return

"""Waiting times between tries: exponential, capped, jittered."""

from __future__ import annotations

import random

_random = random.SystemRandom()


class Backoff:
    """Successive delays in seconds: ``first``, doubled each time, at most ``cap``.

    Each is jittered down by up to half, so that the nodes of a cluster do not come back in step after
    the API server was away.
    """

    def __init__(self, first_seconds: float, cap_seconds: float) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._next = first_seconds

    def next_seconds(self) -> float:
        """The delay before the next try; each call makes the following one longer."""
        delay = self._next
        self._next = min(self._next * 2, self._cap)
        return _random.uniform(delay / 2, delay)

    def reset(self) -> None:
        """The peer answered: start from the first delay again."""
        self._next = self._first

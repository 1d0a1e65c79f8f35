"""Processor time in units of this machine: a bound in them holds on a slow machine and on a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable

_TURNS = 100_000


def measure(call: Callable[[], object]) -> float:
    """Return the processor time of a call, divided by that of :func:`measure_loop` before and after it."""
    before = measure_loop()
    begin = time.process_time()
    call()
    took = time.process_time() - begin
    return took / max(before, measure_loop())


def measure_loop() -> float:
    """Return the seconds of processor time of 100,000 turns of a loop: some five milliseconds in 2025."""
    begin = time.process_time()
    total = 0
    for number in range(_TURNS):
        total += number & 7
    return time.process_time() - begin

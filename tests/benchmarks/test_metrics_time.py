"""Issue 8: a scrape of 100 claims with eight NICs each takes less than 100 ms."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

BOUND_LOOPS = 25.0
"""A tenth of a second, on a machine that takes four milliseconds for the loop."""


def test_a_scrape_of_a_hundred_claims_with_eight_nics_takes_less_than_a_tenth_of_a_second() -> None:
    """Of processor time; the benchmark has both."""
    from benchmarks import scrape
    from tests.support.processor_time import measure_loop

    with ExitStack() as stack:
        loop_ms = 1000 * measure_loop()
        results = {result.title: result for result in scrape.measure(stack, runs=5)}
        loop_ms = max(loop_ms, 1000 * measure_loop())
    assert min(results["processor time of it"].ours.samples) < BOUND_LOOPS * loop_ms
    assert 20_000 < results["samples"].ours.median < 40_000

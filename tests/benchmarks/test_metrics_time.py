"""Issue 8: a scrape of 100 claims with eight NICs each takes less than 100 ms."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

BOUND_MS = 100.0


def test_a_scrape_of_a_hundred_claims_with_eight_nics_takes_less_than_a_tenth_of_a_second() -> None:
    """Of processor time, which does not depend on who else uses the machine; the benchmark has both."""
    from benchmarks import scrape

    with ExitStack() as stack:
        results = {result.title: result for result in scrape.measure(stack, runs=5)}
    assert min(results["processor time of it"].ours.samples) < BOUND_MS
    assert 20_000 < results["samples"].ours.median < 40_000

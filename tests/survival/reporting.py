"""What became of a story, told to pytest: its rows into the table, its failure as the test's."""

from __future__ import annotations

import pytest

from tests.survival.environment import Outcome
from tests.survival.table import TABLE


def tell(outcome: Outcome) -> None:
    """Enter its rows; skip or fail as it did."""
    TABLE.add(*outcome.rows)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    if outcome.error:
        pytest.fail(outcome.error, pytrace=False)

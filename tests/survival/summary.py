"""The table of what became of pods, NICs, host and statuses under each fault, at the end of a run."""

from __future__ import annotations

import pytest

from tests.support.whole_run import find_properties
from tests.survival.table import Table, load, render

ROW = "survival row"
"""The user property with a row of a test: rows travel with its report from process to process."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = Table()
    table.add(*load(find_properties(config, ROW)))
    if table.rows:
        terminalreporter.section("what survived")
        terminalreporter.write_line(render(table.rows))

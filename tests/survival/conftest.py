"""The table of what became of pods, NICs, host and statuses under each fault, at the end of the run."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.beside import find_told
from tests.survival.table import TABLE, Table, dump, load, render

_ROW = "survival row"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Rows travel with the report of their test: it may have run in the second of two processes."""
    try:
        yield
    finally:
        item.user_properties += [(_ROW, row) for row in dump(TABLE.take())]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = Table()
    table.add(*load(find_told(config, _ROW)))
    if table.rows:
        terminalreporter.section("what survived")
        terminalreporter.write_line(render(table.rows))

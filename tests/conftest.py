"""Shared by all tests: the list, by name, of the tests that this machine could not run."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.namespaces"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every skipped test with its reason, so that nothing is skipped silently."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        if terminalreporter.stats.get("passed"):
            terminalreporter.write_line("none of these tests was skipped")
        return
    terminalreporter.section(f"{len(skipped)} tests that this machine could not run")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")

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
    named: dict[tuple[str, str], list[str]] = {}
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        file, _, name = report.nodeid.partition("::")
        named.setdefault((file, reason.removeprefix("Skipped: ")), []).append(name)
    for (file, reason), names in named.items():
        terminalreporter.write_line(f"{file}: {reason}")
        for name in dict.fromkeys(name.partition("[")[0] for name in names):
            count = sum(other.partition("[")[0] == name for other in names)
            terminalreporter.write_line(f"    {name}" + (f" ({count})" if count > 1 else ""))

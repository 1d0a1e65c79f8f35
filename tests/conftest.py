"""Shared by all tests: how property tests choose examples, and the list of tests that could not run here."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A worker of pytest-xdist sets it; programs under test print to a pipe, which has no width.
os.environ.pop("COLUMNS", None)

pytest_plugins = [
    "tests.support.needs",
    "tests.support.lanes",
    "tests.support.whole_run",
    "tests.support.written_objects.plugin",
    "tests.support.namespaces",
    "tests.support.private_tree",
    "tests.support.screen",
    "tests.support.temporary_folder",
    "tests.support.shared_node",
    "tests.survival.summary",
]

# A change must not fail for an example that the change before it did not meet: searching is for `make fuzz`.
# Nor because the machine was busy: these are no timed tests.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **UNTIMED)
settings.register_profile("fast", max_examples=40, derandomize=True, **UNTIMED)
settings.register_profile("fuzz", max_examples=1000, print_blob=True, **UNTIMED)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Let the fast lane try fewer examples of each property than `make test-all`."""
    if config.getoption("--lane") == "fast":
        settings.load_profile("fast")


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

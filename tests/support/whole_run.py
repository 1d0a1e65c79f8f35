"""Checks of a whole run, whichever processes ran the tests: each is reported like a test, at the end.

With pytest-xdist the reports of all tests meet in a process that runs none; without it, in the only one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from tests.support.lanes import ALL
from tests.support.needs import find_needless

Reports = Sequence[pytest.TestReport]


def find_properties(config: pytest.Config, name: str) -> Iterator[Any]:
    """Yield what tests noted under a name in ``item.user_properties``."""
    for report in list_reports(config):
        yield from (value for key, value in report.user_properties if key == name)


def list_reports(config: pytest.Config) -> Reports:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(reporter, pytest.TerminalReporter):
        return []
    stats = itertools.chain.from_iterable(reporter.stats.values())
    return [report for report in stats if isinstance(report, pytest.TestReport)]


def check_needs(config: pytest.Config) -> None:
    """A file's markers (:mod:`tests.support.needs`) are needed by one of its tests."""
    needless = find_needless(list_reports(config))
    assert not needless, f"no test of these files uses what their markers allow: {', '.join(needless)}"


def check_permissions(config: pytest.Config) -> None:
    """Over all tests and scenarios of a run the drivers used each permission that they have."""
    from tests.support.written_objects.plugin import PERMISSION

    ran = {report.nodeid.rpartition("::")[2].partition("[")[0] for report in list_reports(config)}
    if not {"test_scenario", "test_the_code_needs_every_permission_and_no_other"} <= ran:
        pytest.skip("only a run of all tests can tell")
    from tests.whole_driver.permissions import SHOWN_BY_ONE_TEST, list_needed

    used = {tuple(permission) for permission in find_properties(config, PERMISSION)}
    assert list_needed() >= SHOWN_BY_ONE_TEST
    unused = list_needed() - used - SHOWN_BY_ONE_TEST
    assert not unused, f"no test needed these permissions: {sorted(unused)}"


CHECKS: Sequence[Callable[[pytest.Config], None]] = (check_needs, check_permissions)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if config.getoption("--lane") != ALL or hasattr(config, "workerinput"):
        return
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    for check in CHECKS:
        report = _run(check, config)
        config.hook.pytest_runtest_logreport(report=report)
        if report.failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _run(check: Callable[[pytest.Config], None], config: pytest.Config) -> pytest.TestReport:
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    complaint: str | tuple[str, int, str] | None = None
    try:
        check(config)
    except pytest.skip.Exception as skip:
        outcome, complaint = "skipped", (__file__, 0, f"Skipped: {skip}")
    except AssertionError as error:
        outcome, complaint = "failed", str(error)
    name = f"{check.__module__.replace('.', '/')}.py::{check.__name__}"
    return pytest.TestReport(name, (__file__, 0, check.__name__), {}, outcome, complaint, "call")

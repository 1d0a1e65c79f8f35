"""The rows that a test of faults has filled are noted with it (:mod:`tests.survival.summary`)."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.survival.summary import ROW
from tests.survival.table import TABLE, dump


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    finally:
        item.user_properties += [(ROW, row) for row in dump(TABLE.take())]

"""The log: names in it come from pods and hardware, which may mean ill."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.telemetry import JsonFormatter, TextFormatter

FORGED = "tc0\n2026-11-21T12:00:00.000 INFO driver.hooks: attached \x1b[2J"
"""As a pod may name a filter on its NIC."""


def record(text: str, name: str) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "dranet.driver.hooks", "msg": "%s", "args": (text,)})
    made.context = {"link": name}
    return made


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@given(text=st.text(), name=st.text())
def test_a_record_is_one_line_that_moves_no_cursor(
    formatter: logging.Formatter, text: str, name: str
) -> None:
    assert formatter.format(record(text, name)).isprintable()
    assert formatter.format(record(FORGED, FORGED)).isprintable()


def test_a_name_can_be_read_all_the_same() -> None:
    line = TextFormatter().format(record("é", FORGED))
    assert line.endswith(
        r"driver.hooks: é link=tc0\n2026-11-21T12:00:00.000 INFO driver.hooks: attached \x1b[2J"
    )
    assert json.loads(JsonFormatter().format(record("é", FORGED)))["link"] == FORGED


def test_a_traceback_keeps_its_lines() -> None:
    made = record("failed", "eth0")
    made.exc_info = (ValueError, ValueError("bug\nof ours"), None)
    first, *others = TextFormatter().format(made).splitlines()
    assert first.endswith("failed link=eth0")
    assert others == ["ValueError: bug", "of ours"]

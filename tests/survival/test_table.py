"""Rows add up, survive the way through JSON, and read as a table."""

from __future__ import annotations

import json

from tests.survival.table import Row, Table, dump, load, render


def words(text: str) -> list[str]:
    return text.split()


def test_the_same_fault_on_the_same_runtime_adds_up() -> None:
    table = Table()
    table.add(Row("full disk", "stand-in", tries=2, lost=1), Row("full disk", "containerd 1.7.24"))
    table.add(Row("full disk", "stand-in", tries=3, bare=1))
    first, second = table.rows
    assert first == Row("full disk", "stand-in", tries=5, bare=1, lost=1)
    assert second.runtime == "containerd 1.7.24"
    assert (first.is_clean, second.is_clean) == (False, True)


def test_rows_come_back_from_json_as_they_were() -> None:
    rows = [Row("full disk", "stand-in", 3, 1, 2, 3, 4), Row("clock step", "stand-in")]
    assert load(json.loads(json.dumps(dump(rows)))) == rows


def test_a_table_ends_with_its_sums() -> None:
    shown = render([Row("full disk", "stand-in", 3, 0, 2, 0, 1), Row("clock step", "stand-in", 2)])
    head, _, first, _, _, sums = shown.splitlines()
    assert words(head) == words("fault runtime tries bare lost not restored statuses wrong")
    assert words(first) == words("full disk stand-in 3 0 2 0 1")
    assert words(sums) == words("together 5 0 2 0 1")
    assert render([]) == ""

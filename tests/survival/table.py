"""What became of pods, NICs, host and statuses under each fault, as rows of one table.

Stories are told in processes of their own; their rows come back as JSON (:func:`dump`, :func:`load`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

COUNTS = ("bare", "lost", "not_restored", "wrong_statuses")
"""Each must be 0."""
_TITLES = ("fault", "runtime", "tries", "bare", "lost", "not restored", "statuses wrong")


@dataclass(frozen=True, slots=True)
class Row:
    """One fault on one runtime."""

    fault: str
    runtime: str
    tries: int = 1
    """How often it was done."""
    bare: int = 0
    """Containers of pods that claim a NIC that ran without it being there, up and addressed."""
    lost: int = 0
    """NICs that are neither on the host nor in their pod, and pods that did not come up or did not go."""
    not_restored: int = 0
    """Facts of the host that differ at the end."""
    wrong_statuses: int = 0
    """What claims say at the end that is not so in the kernel."""

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, count) for count in COUNTS)

    def plus(self, other: Row) -> Row:
        """Both together, under this one's name."""
        counts = {key: getattr(self, key) + getattr(other, key) for key in ("tries", *COUNTS)}
        return dataclasses.replace(self, **counts)


class Table:
    """Rows in the order in which their faults first came; the same fault on the same runtime adds up."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    @property
    def rows(self) -> Sequence[Row]:
        return tuple(self._rows.values())

    def add(self, *rows: Row) -> None:
        for row in rows:
            key = (row.fault, row.runtime)
            self._rows[key] = self._rows[key].plus(row) if key in self._rows else row

    def take(self) -> Sequence[Row]:
        """All rows, which are here no longer."""
        rows = self.rows
        self._rows.clear()
        return rows


TABLE = Table()
"""Of the test that runs: its rows go with its report to whoever prints them all."""


def dump(rows: Iterable[Row]) -> list[dict[str, object]]:
    """For JSON."""
    return [dataclasses.asdict(row) for row in rows]


def load(rows: Iterable[Mapping[str, str | int]]) -> list[Row]:
    """What :func:`dump` made."""
    return [
        Row(
            str(row["fault"]),
            str(row["runtime"]),
            int(row["tries"]),
            **{count: int(row[count]) for count in COUNTS},
        )
        for row in rows
    ]


def render(rows: Sequence[Row]) -> str:
    """As people read it, with the sums below; empty without rows."""
    if not rows:
        return ""
    total = Row("together", "", tries=0)
    for row in rows:
        total = total.plus(row)
    lines = [_TITLES, *(_cells(row) for row in (*rows, total))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_TITLES))]
    rule = "  ".join("-" * width for width in widths)
    shown = [_line(line, widths) for line in lines]
    return "\n".join([shown[0], rule, *shown[1:-1], rule, shown[-1]])


def _cells(row: Row) -> tuple[str, ...]:
    counts = (str(getattr(row, key)) for key in ("tries", *COUNTS))
    return (row.fault, row.runtime, *counts)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    words = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*words, *numbers]).rstrip()

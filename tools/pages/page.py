"""How a page is written: prose from a Markdown file in this folder, tables from declarations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def fill(template: str, **parts: object) -> str:
    """Return the text of a Markdown file in this folder, with each ``{name}`` replaced.

    Raises:
        ValueError: a part has no place in the file.
    """
    text = (Path(__file__).parent / template).read_text()
    for name, part in parts.items():
        place = f"{{{name}}}"
        if place not in text:
            raise ValueError(f"tools/pages/{template} has no place for {place}")
        text = text.replace(place, str(part).strip("\n"))
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. A ``|`` in a cell is escaped; a line break in a cell becomes ``<br>``."""
    return "".join((_line(head), f"|{'---|' * len(head)}\n", *map(_line, rows)))


def _line(cells: Sequence[str]) -> str:
    texts = (cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(texts)} |\n"

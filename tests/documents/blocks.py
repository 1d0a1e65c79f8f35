"""The fenced blocks of README, docs and their neighbours, each with what stands before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLACES = (
    "*.md",
    "benchmarks/*.md",
    *(f"{name}/**/*.md" for name in ("charts", "deploy", "docs", "e2e", "tests/data")),
)

_FENCE = re.compile(r"^\s*```(\w*)\s*$")
_MARK = re.compile(r"<!-- not run here: (.+?) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    """Why it is not run here, where the page says so."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def list_pages() -> list[Path]:
    return sorted(page for place in PLACES for page in REPOSITORY.glob(place))


@cache
def list_blocks() -> tuple[Block, ...]:
    """Of all pages, in their order."""
    return tuple(block for page in list_pages() for block in _iter_blocks(page))


def _iter_blocks(page: Path) -> Iterator[Block]:
    name = str(page.relative_to(REPOSITORY))
    opened: tuple[int, str, str] | None = None
    before, inside = "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            inside.append(line)
            before = line if line.strip() and opened is None else before
        elif opened is None:
            mark = _MARK.fullmatch(before.strip())
            opened, inside = (number, fence[1], mark[1] if mark else ""), []
            before = ""  # a mark is for one block
        else:
            yield Block(name, opened[0], opened[1], "\n".join(inside) + "\n", opened[2])
            opened = None
    assert opened is None, f"{page}: a block without an end"

"""Headings: each place of a page is found by its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.documents.blocks import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
Heading = tuple[str, ...]
"""With the headings above it, each with its marks."""


def read_headings(text: str) -> list[Heading]:
    found: list[Heading] = []
    above: list[str] = []
    is_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        marks, _, title = line.partition(" ")
        if is_code or not title or not marks or set(marks) != {"#"}:
            continue
        above = [one for one in above if len(one.partition(" ")[0]) < len(marks)] + [
            f"{marks} {title.strip()}"
        ]
        found.append(tuple(above))
    return found


def test_headings_are_read_with_those_above_them() -> None:
    text = "# a\n## b\n```\n# no\n```\n### c\n## d\n### c\n"
    a, b, d = "# a", "## b", "## d"
    assert read_headings(text) == [(a,), (a, b), (a, b, "### c"), (a, d), (a, d, "### c")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_two_headings_of_one_place_are_the_same(page: Path) -> None:
    twice = [heading for heading, number in Counter(read_headings(page.read_text())).items() if number > 1]
    assert not twice

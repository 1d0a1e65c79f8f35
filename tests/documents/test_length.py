"""A page that people read from top to bottom is short enough for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.blocks import REPOSITORY

MOST_WORDS = 1200
"""As ``wc -w`` counts them, with commands and tables. Reference pages are looked up, not read."""

FOLDERS = ("guides", "networking", "platforms", "commands", "operations", "dev", "decisions")
PAGES = sorted(page for folder in FOLDERS for page in (REPOSITORY / "docs" / folder).glob("*.md"))


def count_words(page: Path) -> int:
    return len(page.read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_short_enough_to_read(page: Path) -> None:
    assert count_words(page) <= MOST_WORDS

"""What the documents point at is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(REPOSITORY)
    for place in ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/data/*.md")
    for page in REPOSITORY.glob(place)
)


def links(page: Path) -> Iterator[str]:
    """Relative targets of the links of a page, without those in code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return (target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, without punctuation, dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    broken = []
    for target in links(REPOSITORY / page):
        name, _, anchor = target.partition("#")
        aim = (REPOSITORY / page).parent / name if name else REPOSITORY / page
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            broken.append(target)
    assert broken == []


def test_the_check_sees_the_links() -> None:
    assert "docs/dev/architecture.md" in links(REPOSITORY / "README.md")

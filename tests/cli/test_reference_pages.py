"""The generated reference pages are as the code declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.cli.reference import build_pages
from dranet.errors import Reason

FOLDER = Path(__file__).parents[2] / "docs" / "user"


@pytest.mark.parametrize("name", sorted(build_pages()))
def test_the_page_is_not_stale(name: str) -> None:
    assert (FOLDER / name).read_text() == build_pages()[name], "run `make docs`"


def test_every_reason_is_explained() -> None:
    page = (FOLDER / "troubleshooting.md").read_text()
    missing = [reason for reason in Reason if f"`{reason}`" not in page]
    assert not missing

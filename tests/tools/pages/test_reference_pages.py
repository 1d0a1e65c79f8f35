"""The generated reference pages are as the code declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.errors import Reason
from dranet.model.attributes import CATALOGUE
from dranet.model.cloud_attributes import CLOUD_CATALOGUE
from tools.pages.reference import attributes_page, build_pages

FOLDER = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", sorted(build_pages()))
def test_the_page_is_not_stale(name: str) -> None:
    assert (FOLDER / name).read_text() == build_pages()[name], "run `make docs`"


@pytest.mark.parametrize("name", sorted(build_pages()))
def test_the_page_shows_values_and_not_the_places_that_argparse_fills(name: str) -> None:
    assert "%(" not in build_pages()[name]


def test_the_page_of_attributes_shows_stability_and_place() -> None:
    rows = [line for line in attributes_page().splitlines() if line.startswith("| `")]

    assert len(rows) == len(CATALOGUE) + len(CLOUD_CATALOGUE)
    assert sum(row.endswith("| always |") for row in rows) == 7
    (row,) = [row for row in rows if row.startswith("| `dra.net/rdmaDevice` |")]
    assert row.endswith("| the device has no RDMA device | as in DraNet | 8 |")


def test_every_reason_is_explained() -> None:
    page = (FOLDER / "reference/reasons.md").read_text()
    missing = [reason for reason in Reason if f"`{reason}`" not in page]
    assert not missing

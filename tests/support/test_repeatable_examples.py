"""Property tests of a lane try the same examples whichever tests ran before them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.lanes import PRODUCT, load_product

REPOSITORY = Path(__file__).parents[2]


def test_every_module_of_the_product_is_loaded() -> None:
    """What an example is made of comes from them."""
    load_product()
    files = {path.relative_to(REPOSITORY) for name in PRODUCT for path in (REPOSITORY / name).rglob("*.py")}
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    programs = {name for name in names if name.endswith(".__main__")}
    assert sorted(names - programs - sys.modules.keys()) == []

"""Property tests try the same examples whichever tests ran before them."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import dranet

PRODUCT = Path(dranet.__file__).parent


@given(st.none())
def test_a_property_test_finds_every_module_of_the_product_loaded(drawn: None) -> None:
    """What an example is made of comes from them, too."""
    files = {path.relative_to(PRODUCT.parent) for path in PRODUCT.rglob("*.py")}
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    programs = {name for name in names if name.endswith(".__main__")}
    assert sorted(names - programs - sys.modules.keys()) == [], drawn

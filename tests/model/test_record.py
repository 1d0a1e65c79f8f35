"""Records behave as the dataclasses that Python would have written."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, make_dataclass, replace
from typing import Any

import pytest

from dranet.model import claim, device, facts, plan, sandbox, status
from dranet.model.record import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Point(Record):
    x: int
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Other(Record):
    x: int
    name: str = ""


def test_records_are_equal_by_class_and_fields() -> None:
    assert Point(1, "a") == Point(1, "a")
    assert Point(1, "a") != Point(1, "b")
    assert Point(1, "a") != Other(1, "a")
    assert Point(1) != (1, "")
    assert {Point(1), Point(1), Point(2)} == {Point(1), Point(2)}
    assert replace(Point(1), name="a") == Point(1, "a")


def test_the_text_of_a_record_is_that_of_a_dataclass() -> None:
    written = make_dataclass("Point", [("x", int), ("name", str)])(1, "a")
    assert repr(Point(1, "a")) == repr(written) == "Point(x=1, name='a')"


def test_a_record_cannot_be_changed_and_has_no_room_for_more() -> None:
    point: Any = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2
    assert not hasattr(Point(1), "__dict__")


@pytest.mark.parametrize("module", [claim, device, facts, plan, sandbox, status])
def test_every_record_of_the_model_takes_equality_from_record(module: object) -> None:
    """One that forgets ``eq=False`` would be right, but would cost again what Record saves."""
    records = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Record)]
    assert [kind for kind in records if kind.__eq__ is not Record.__eq__] == []

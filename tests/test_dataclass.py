"""Our dataclass behaves as the standard library's, and costs nothing before the first instance."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from dranet.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)
    size: int = field(init=False, default=7)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.size + self.x)


@dataclasses.dataclass(frozen=True, slots=True)
class Standard:
    x: int
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)
    size: int = field(init=False, default=7)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.size + self.x)


@dataclass(frozen=True, slots=True)
class Empty:
    """No field at all."""


@dataclass(slots=True)
class Mutable:
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Named(Point):
    owner: str = "nobody"

    def __repr__(self) -> str:
        return f"{self.name} of {self.owner}"


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "a"), {}),
    ((), {"x": 1, "name": "a", "labels": {"k": "v"}, "note": "n"}),
]
BAD_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {"x": 1}),
    ((1,), {"colour": "red"}),
    ((1,), {"size": 3}),
    ((1, "a", {}, "n", 4), {}),
]


@pytest.mark.parametrize(("arguments", "named"), CALLS)
def test_an_instance_says_what_one_of_the_standard_library_says(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    ours, standard = Point(*arguments, **named), Standard(*arguments, **named)
    assert asdict(ours) == asdict(standard)
    assert repr(ours) == repr(standard).replace("Standard", "Point")
    assert [f.name for f in fields(ours)] == [f.name for f in fields(standard)]


@pytest.mark.parametrize(("arguments", "named"), BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as ours:
        Point(*arguments, **named)
    with pytest.raises(TypeError) as standard:
        Standard(*arguments, **named)
    assert str(ours.value) == str(standard.value).replace("Standard", "Point")


def test_what_does_not_count_for_equality_does_not_count() -> None:
    assert Point(1, note="a") == Point(1, note="b")
    assert Point(1) != Point(2)
    assert Point(1).__eq__(Standard(1)) is NotImplemented
    assert Empty() == Empty()
    assert len({Empty(), Empty()}) == 1


def test_each_instance_gets_a_fresh_default() -> None:
    first, second = Mutable(), Mutable()
    first.items.append(1)
    assert second.items == []


def test_what_can_be_changed_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Mutable())


def test_what_is_frozen_cannot_be_changed_and_has_no_room_for_more() -> None:
    point: Any = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_copies_are_equal() -> None:
    point = Point(1, "a", {"k": "v"})
    assert replace(point, name="b") == Point(1, "b", {"k": "v"})
    copies = [copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))]
    assert copies == [point, point, point]
    assert {one.size for one in copies} == {8}


def test_a_class_inherits_fields_and_keeps_methods_of_its_own() -> None:
    assert repr(Named(1, "a", owner="b")) == "a of b"
    assert Named(1) != Point(1)


def test_a_pattern_matches_by_position() -> None:
    match Point(1, "a"):
        case Point(x, name):
            assert (x, name) == (1, "a")


def test_nothing_is_compiled_before_the_first_instance() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    before = Late.__init__
    assert Late(1).x == 1
    assert Late.__init__ is not before
    assert Late(x=2).x == 2


_LIST_STANDARD_ONES = """
import sys, dranet.driver.app, dranet.driver.planner
kinds = {kind for name, module in list(sys.modules.items()) if name.startswith("dranet.")
         for kind in vars(module).values() if isinstance(kind, type) and kind.__module__.startswith("dranet.")
         and "__dataclass_params__" in vars(kind)}
assert len(kinds) > 100, kinds
print(*sorted(f"{k.__module__}.{k.__qualname__}" for k in kinds if k.__dataclass_params__.init))
"""


def test_no_class_that_the_daemon_loads_has_its_methods_compiled_at_import() -> None:
    done = subprocess.run((sys.executable, "-c", _LIST_STANDARD_ONES), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")

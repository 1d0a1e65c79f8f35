"""What is prepared comes back from its text as it was."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, DhcpLease, PreparedClaim, SetUp
from dranet.store.claim_store import ClaimStore
from dranet.store.record_folder import RecordError, decode_record, encode_record

RECORDS = Path(__file__).parents[1] / "data" / "records"
SAMPLE = (RECORDS / "version-2.json").read_text()

_PLAIN: Mapping[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    NoneType: st.none(),
}


def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is UnionType:
        return st.one_of(*(anything_of(one) for one in arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(anything_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(anything_of(one) for one in arguments))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return anything_of_class(kind)
    if issubclass(kind if isinstance(kind, type) else origin, Enum):
        return st.sampled_from(list(kind))
    return st.dictionaries(st.text(max_size=3), anything_of(arguments[1]), max_size=2)


def anything_of_class(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: anything_of(hints[name]) for name in kind.__struct_fields__})


records = anything_of(PreparedClaim)
slow_to_make = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@slow_to_make
@given(records)
def test_a_record_comes_back_as_it_was(record: PreparedClaim) -> None:
    assert decode_record(PreparedClaim, encode_record(record)) == record


@pytest.mark.parametrize("file", sorted(RECORDS.glob("version-*.json")), ids=lambda file: file.stem)
def test_a_record_of_an_earlier_version_keeps_all_that_it_has(file: Path) -> None:
    before = json.loads(file.read_text())
    now = json.loads(encode_record(decode_record(PreparedClaim, file.read_text())))
    assert lost(before, now) == []


def lost(before: Any, now: Any, place: str = "") -> list[str]:
    """Where the second document has not what the first one has; it may have more fields."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [below for key in before for below in lost(before[key], now.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [below for i, pair in pairs for below in lost(*pair, f"{place}[{i}]")]
    return [] if before == now else [place]


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The way to each value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, below in items for place in places(below, (*path, key)))]


json_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({}), st.just([[{}]])
)


@settings(deadline=None)
@given(st.sampled_from(places(json.loads(SAMPLE))[1:]), json_values, st.booleans())
def test_a_damaged_record_is_refused_or_read_and_nothing_else_happens(
    place: tuple[str | int, ...], value: object, removed: bool
) -> None:
    document: Any = json.loads(SAMPLE)
    *way, last = place
    parent = document
    for step in way:
        parent = parent[step]
    if removed:
        del parent[last]
    else:
        parent[last] = value
    with contextlib.suppress(RecordError):
        assert isinstance(decode_record(PreparedClaim, json.dumps(document)), PreparedClaim)


@pytest.mark.parametrize("text", ["", "nope", "[" * 100_000, '{"claim"', '{"claim": 1' + "0" * 5000 + "}"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="no JSON"):
        decode_record(PreparedClaim, text)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (PreparedClaim, "[]", "expected `object`, got `array`"),
        (PreparedClaim, "{}", "claim: is missing"),
        (AttachPlan, '{"device": 5}', "device: expected `str`, got `int`"),
        (AttachPlan, '{"device": "d", "steps": [{"step": "fly"}]}', r"steps\[0\].step: invalid value 'fly'"),
        (
            AttachPlan,
            '{"device": "d", "steps": [{"step": "set-up"}, 1]}',
            r"steps\[1\]: expected `object`, got `int`",
        ),
        (Device, '{"name": "d", "kind": "cat"}', "kind: invalid enum value 'cat'"),
        (
            Device,
            '{"name": "d", "kind": "nic", "attributes": {"a/b": null}}',
            r"attributes\['a/b'\]: expected `[a-z |]+`, got `null`",
        ),
    ],
)
def test_a_refusal_says_where_and_why(kind: type[object], text: str, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        decode_record(kind, text)


def test_unknown_fields_are_left_out_and_missing_ones_take_their_default() -> None:
    assert decode_record(Device, '{"name": "d", "kind": "nic", "colour": "red"}') == Device(
        "d", DeviceKind.NIC
    )


def test_steps_are_told_apart_by_their_word() -> None:
    plan = AttachPlan("d", (SetUp(),))
    assert decode_record(AttachPlan, encode_record(plan)) == plan


def test_a_whole_number_of_seconds_is_a_time() -> None:
    lease = DhcpLease("192.0.2.5/24", "192.0.2.1", "m", "m", 5, 60, 30, 50)
    assert decode_record(DhcpLease, encode_record(lease)) == lease


@pytest.mark.parametrize("name", ["half \ud800", "\udcff"])
def test_what_utf_8_cannot_say_is_not_written(name: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_record(Device(name, DeviceKind.NIC))


_OPEN_STORE = """
import pathlib, sys, dranet.driver.app
from dranet.store.claim_store import ClaimStore
before = set(sys.modules)
store = ClaimStore(pathlib.Path(sys.argv[1]))
store.open()
(record,) = store.get_all()
store.put(record)
print(record.claim.uid, sorted(set(sys.modules) - before))
"""


@pytest.mark.process
def test_a_driver_imports_nothing_to_read_and_write_records(tmp_path: Path) -> None:
    """The first record may come to it within a hook of the runtime, which does not wait for pydantic."""
    store = ClaimStore(tmp_path / "claims")
    store.open()
    record = decode_record(PreparedClaim, SAMPLE)
    store.put(record)
    store.close()

    command = (sys.executable, "-c", _OPEN_STORE, str(tmp_path / "claims"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([record.claim.uid, "[]"], "")

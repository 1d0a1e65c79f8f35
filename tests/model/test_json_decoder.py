"""Our decoder finds in any document what pydantic finds in it, at the same places, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import ErrorDetails

from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import DecodeFaultKind, Part, ValidationError, walk_fields
from tests.model.network_documents import DOCUMENTS, JSON, NEAR_DOCUMENTS
from tools.pages.parameters import build_model

HALF = "\ud800"
"""Of a character: JSON can escape it, UTF-8 cannot write it."""
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 68, 1279, 4095, 2**31, 2**32, 2**63, -(2**63), 10**400, 1.0, 1.5),
    *(
        "",
        "x",
        "x" * 16,
        "x" * 300,
        "\ud800",
        "ü",
        "lo",
        "a\n",
        "auto",
        "bridge",
        "l3",
        "routes",
        "unlimited",
    ),
    *("1.5Ki", "10G", "9" * 18 + ".1Ki", "1M", "0x10"),
    *("10.0.0.1/24", "10.0.0.1", "fd00::1", "::5", "02:00:00:00:00:01"),
    *([], {}, [None], [[]], [{}], [0, 0], {"x": None}, {"": 1}, {"y" * 65: True}),
)
"""Each is right somewhere and wrong elsewhere, or wrong everywhere."""

Found = list[tuple[tuple[Any, ...], str]]
"""Where, and what is wrong there."""

_TEXTS = {
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be Unicode text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "extra_forbidden": "unknown field",
    "missing": "is required",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "value_error": "{error}",
    "literal_error": "must be {expected}",
}
_RULE_FIELDS = st.sampled_from(["field", "expression", "message", "x"])
NEAR_ENVELOPES = JSON | st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": JSON | st.just("dra.net/v1alpha1"),
        "kind": JSON | st.just("NetworkConfig"),
        "policy": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "allow": st.lists(st.sampled_from(["routes", "interface.mtu", "nothing"]) | JSON, max_size=2),
                "rules": st.lists(
                    st.dictionaries(st.sampled_from(["field", "expression", "x"]), JSON), max_size=2
                ),
            },
        ),
    },
)
_MODELS: dict[type, type[pydantic.BaseModel]] = {
    part: build_model(part) for part in (NetworkConfig, Envelope)
}


def find_with_ours(part: type[Part], document: object) -> Found:
    try:
        part.model_validate(document)
    except ValidationError as error:
        return [
            (fault.path, fault.text) for fault in error.faults if fault.kind is not DecodeFaultKind.CONFLICT
        ]
    return []


def find_with_pydantic(part: type[Part], document: object) -> Found:
    try:
        _MODELS[part].model_validate(document)
    except pydantic.ValidationError as error:
        return [_translate(item) for item in error.errors()]
    return []


def _translate(item: ErrorDetails) -> tuple[tuple[Any, ...], str]:
    path = tuple(step for step in item["loc"] if step != "[key]")
    return path, _TEXTS[item["type"]].format(**item.get("ctx", {}))


@given(NEAR_DOCUMENTS | JSON)
def test_the_parameters_are_judged_as_pydantic_judges_them(document: Any) -> None:
    assert find_with_ours(NetworkConfig, document) == find_with_pydantic(NetworkConfig, document)


@given(NEAR_ENVELOPES)
def test_and_so_is_what_stands_beside_them(document: Any) -> None:
    assert find_with_ours(Envelope, document) == find_with_pydantic(Envelope, document)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_an_odd_value_is_judged_alike_in_every_field(value: object) -> None:
    for part in (NetworkConfig, Envelope):
        for path, field in walk_fields(part):
            for odd in (value, [value], {"a": value}, *_as_name(value)):
                document = _put(path, odd)
                assert find_with_ours(part, document) == find_with_pydantic(part, document), (path, odd)
            if field.part and field.is_list:
                _compare_entries(part, path, field.part, value)


def _as_name(value: object) -> Iterator[dict[str, bool]]:
    if isinstance(value, str) and value != HALF:
        yield {value: True}


def test_half_a_character_in_a_name_is_refused() -> None:
    """As by pydantic, but that it writes another character into the path."""
    for part in (NetworkConfig, Envelope):
        for path, field in walk_fields(part):
            if field.is_map or (field.part and not field.is_list):
                ours, theirs = (
                    find(part, _put(path, {HALF: True})) for find in (find_with_ours, find_with_pydantic)
                )
                assert [text for _, text in ours] == [text for _, text in theirs], path


def _compare_entries(part: type[Part], path: str, entry: type[Part], value: object) -> None:
    for name, _ in walk_fields(entry):
        document = _put(path, [_put(name, value)])
        assert find_with_ours(part, document) == find_with_pydantic(part, document), (path, name, value)


def _put(path: str, value: object) -> dict[str, Any]:
    """The document with one value, at the path of a field."""
    name, _, below = path.partition(".")
    return {name: _put(below, value) if below else value}


@given(DOCUMENTS)
def test_the_values_are_those_of_pydantic(document: dict[str, Any]) -> None:
    ours, theirs = NetworkConfig.model_validate(document), _MODELS[NetworkConfig].model_validate(document)
    assert _as_plain(ours) == _as_plain(theirs)


def _as_plain(value: Any) -> Any:
    """Lists keep their first mentions only, as the model does not know what entries are the same."""
    if isinstance(value, Part | pydantic.BaseModel):
        return {name: _as_plain(item) for name, item in value}
    if isinstance(value, tuple):
        items = [_as_plain(item) for item in value]
        return [item for place, item in enumerate(items) if item not in items[:place]]
    return value

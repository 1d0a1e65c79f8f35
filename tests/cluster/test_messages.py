"""What we say, and what a peer that is no API server may say in a watch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dranet.cluster.messages import EventType, Request, encode_body, has_identity, parse_event
from dranet.errors import ProtocolError

WATCH = Request("GET", "/api/v1/configmaps", watch=True)
WHOLE = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}}


def line(kind: str, thing: object) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode()


def test_an_event_tells_of_an_object_with_its_identity() -> None:
    event = parse_event(WATCH, line("ADDED", WHOLE))
    assert (event.type, event.resource_version) == (EventType.ADDED, "7")
    bookmark = parse_event(WATCH, line("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
    assert bookmark.resource_version == "8"


@pytest.mark.parametrize(
    "metadata", [None, {}, {"name": "a"}, {"uid": "u"}, {"name": "a", "uid": 7}, {"name": "", "uid": "u"}]
)
@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_without_identity_is_no_event(kind: str, metadata: Any) -> None:
    with pytest.raises(ProtocolError, match="watch event not understood"):
        parse_event(WATCH, line(kind, {"metadata": metadata}))
    assert not has_identity({"metadata": metadata})


@given(text=st.text(st.characters(exclude_categories=())))
@example(text="rail \U0001f600")
@example(text="not UTF-8: \udcff")
@example(text="\x00\x7f\x85\u2028\ufeff\uffff\U0010ffff\\ud83d")
def test_a_body_is_the_same_as_json_and_as_the_yaml_that_an_apply_patch_is_read_as(text: str) -> None:
    encoded = encode_body({"key": text})
    whole = {"key": "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)}
    assert json.loads(encoded) == whole
    assert yaml.load(encoded, yaml.CSafeLoader) == whole  # libyaml, of which Go's decoder is a translation

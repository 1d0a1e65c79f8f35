"""What a peer that is no API server may say in a watch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dranet.cluster.failures import RequestName
from dranet.cluster.messages import EventType, has_identity, parse_event
from dranet.errors import ProtocolError

WATCH = RequestName("GET", "/api/v1/configmaps", watch=True)
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

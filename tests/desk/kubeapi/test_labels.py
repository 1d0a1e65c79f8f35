"""Label selectors, as kubectl takes them."""

from __future__ import annotations

import pytest

from dranet.desk.kubeapi.labels import parse_selector

LABELS = {"pool": "h100", "example.com/zone": "a", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("pool=h100", True),
        ("pool == h100", True),
        ("pool=b200", False),
        ("pool!=b200", True),
        ("other!=b200", True),
        ("pool", True),
        ("other", False),
        ("!other", True),
        ("! pool", False),
        ("pool in (b200, h100)", True),
        ("pool in (b200)", False),
        ("pool notin (b200)", True),
        ("other notin (b200)", True),
        ("example.com/zone=a,pool in (h100,b200),!other", True),
        ("example.com/zone=a,pool=b200", False),
        ("empty=", True),
    ],
)
def test_a_selector_matches_as_for_kubectl(selector: str, matches: bool) -> None:
    assert parse_selector(selector)(LABELS) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "a,,b", "=b", "a in b", "a in (b", "a b"])
def test_what_is_no_selector_is_refused_by_name(selector: str) -> None:
    with pytest.raises(ValueError, match="is not a requirement such as key=value"):
        parse_selector(selector)

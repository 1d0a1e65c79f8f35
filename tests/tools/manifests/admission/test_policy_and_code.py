"""The parameters policy and the driver's own code, side by side, on drawn configs.

The policy refuses nothing that the code takes, whatever a DeviceClass or a claim adds; and what one field is
wrong about by itself it refuses, too, in the same words, but for what is listed here by name.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tools.manifests.admission.evaluation import (
    claim,
    class_lines,
    code_lines,
    complaints,
    complaints_by_rule,
    config,
    device_class,
    template,
)
from tests.tools.manifests.admission.random_parameters import drawn_parameters
from tools.manifests.parameters_policy import LEFT_TO_PREPARE

Json = dict[str, Any]

TOLERATED = {
    "IPv4-mapped IPv6 addresses": (
        r"::ffff:|:ffff:",
        r"must be (an IP address|a CIDR|an address with|the lower|in CIDR|a unicast)",
    ),
    "prefix lengths with a leading zero": (r"/0[0-9]", r"must be (a CIDR|an address with)"),
    "quantities that are not whole numbers": (r"\.[0-9]", r"must be a whole number"),
    "scopes of IPv6 tokens": (r"%", r"must (be|have) (the lower )?64|must be the lower"),
    "expressions in the policy of a DeviceClass": (r"", r"cannot be used:"),
}
"""What the policy lets pass: in the value, and in the code's words. Each is in LEFT_TO_PREPARE."""
OF_WHOLE = re.compile(r"\(all configs merged\)")

drawing = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
REQUESTS = st.sampled_from(([], ["a"], ["b"], ["a", "b"]))


def plain(parameters: Json) -> Json:
    """As the API server would have it: texts are UTF-8."""
    return json.loads(json.dumps(parameters).encode("utf-8", "replace"))  # type: ignore[no-any-return]


def configs(*, wrong: bool) -> st.SearchStrategy[list[Json]]:
    one = st.builds(
        lambda found, requests: config(plain(found), requests), drawn_parameters(wrong=wrong), REQUESTS
    )
    return st.lists(one, min_size=1, max_size=3)


def is_tolerated(line: str) -> bool:
    return any(re.search(text, line) and re.search(value, line) for value, text in TOLERATED.values())


@drawing
@given(configs(wrong=True), st.lists(drawn_parameters(wrong=False), max_size=2))
@example(
    [config({"interface": {"vlan": {"protocol": "802.1Q"}}})],
    [{"interface": {"vlan": {"id": 5}, "type": "vlan"}}],
)
def test_what_the_policy_refuses_the_code_refuses_whatever_the_class_says(
    drawn: list[Json], of_class: list[Json]
) -> None:
    if complaints(claim(drawn)):
        assert code_lines(drawn) != []
        assert code_lines(drawn, [config(plain(one)) for one in of_class]) != []


@drawing
@given(configs(wrong=False), st.lists(drawn_parameters(wrong=False), max_size=2))
def test_nor_does_it_refuse_a_right_claim(drawn: list[Json], of_class: list[Json]) -> None:
    if not code_lines(drawn) or not code_lines(drawn, [config(plain(one)) for one in of_class]):
        assert complaints(claim(drawn)) == []
        assert complaints(template(drawn)) == []


@drawing
@given(configs(wrong=True))
def test_a_field_that_is_wrong_by_itself_is_refused(drawn: list[Json]) -> None:
    sure = [line for line in lines_of_fields(drawn) if not is_tolerated(line)]
    if sure:
        assert complaints(claim(drawn)) != [], sure


def lines_of_fields(drawn: list[Json]) -> list[str]:
    """What the code tells of configs by themselves: not what it tells of the whole."""
    found = []
    for number, one in enumerate(drawn):
        for line in code_lines([one]):
            text = line.replace("config[0]", f"config[{number}]", 1)
            if not any(word in text for word in WORDS_OF_WHOLE):
                found.append(text)
    return found


WORDS_OF_WHOLE = (
    "is required",
    "must come with",
    "must be absent",
    "must not be true with",
    "must be empty with",
    "with an IPv6",
    "with nextHops",
    "of the IP version",
    "the kernel's own",
    "must not have the",
    "must come without",
    "must not be set",
)
"""Of conflicts, and of what is missing: a DeviceClass or another config may mend them."""


@drawing
@given(configs(wrong=True))
def test_what_the_policy_says_of_a_field_the_code_says_of_it(drawn: list[Json]) -> None:
    told = [text for name, text in complaints_by_rule(claim(drawn)).items()]
    mine = {cause_of(line) for text in told for line in text.split("; spec.")}
    theirs = {cause_of(line) for number, one in enumerate(drawn) for line in renumbered(one, number)}
    of_fields = {one for one in mine if not any(word in one[1] for word in WORDS_OF_WHOLE)}
    assert {path for path, _ in of_fields} <= {path for path, _ in theirs}


def renumbered(one: Json, number: int) -> list[str]:
    return [line.replace("config[0]", f"config[{number}]", 1) for line in code_lines([one])]


def cause_of(line: str) -> tuple[str, str]:
    """Path and cause, without the value."""
    found = re.sub(r"^(spec\.)?devices\.", "", line).replace(".opaque", "", 1)
    path, _, text = found.partition(": ")
    return path, text.partition(", not ")[0].partition(";")[0]


@drawing
@given(st.lists(drawn_parameters(wrong=True), min_size=1, max_size=2), configs(wrong=False))
def test_a_class_that_the_policy_refuses_serves_no_claim(of_class: list[Json], drawn: list[Json]) -> None:
    theirs = [config(plain(one)) for one in of_class]
    if complaints(device_class(theirs)):
        assert code_lines([], theirs) != []
        assert code_lines(drawn, theirs) != []


@drawing
@given(st.lists(drawn_parameters(wrong=True), min_size=1, max_size=2))
def test_a_class_that_is_wrong_by_itself_is_refused(of_class: list[Json]) -> None:
    theirs = [config(plain(one)) for one in of_class]
    lines = [line for line in class_lines(theirs) if not any(word in line for word in WORDS_OF_WHOLE)]
    if any(not is_tolerated(line) for line in lines):
        assert complaints(device_class(theirs)) != [], lines


@pytest.mark.parametrize("name", TOLERATED)
def test_what_is_tolerated_is_told_to_the_reader(name: str) -> None:
    assert any(name in row for row in LEFT_TO_PREPARE)

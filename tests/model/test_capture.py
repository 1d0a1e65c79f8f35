"""Captures: what is written comes back the same, and what was not written by us is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.errors import SettingsError
from dranet.model import capture as capture_module
from dranet.model.capture import Capture, decode_capture, encode_capture
from dranet.model.facts import Address, Link, NodeFacts, Route
from tests.model.captures import KERNEL_TEXT, facts_of_any_shape
from tests.support.processor_time import measure


def document(facts: object) -> str:
    return json.dumps({"format": "dranet.capture/1", "source": "a test", "facts": facts})


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        decode_capture(text)
    return caught.value.message


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(facts=facts_of_any_shape(), source=KERNEL_TEXT)
def test_what_was_written_comes_back_the_same(facts: NodeFacts, source: str) -> None:
    text = encode_capture(Capture(facts, source))

    assert decode_capture(text) == Capture(facts, source)
    assert decode_capture(text.encode().decode()) == Capture(facts, source)


def test_a_document_says_only_what_is_not_the_default_in_the_order_of_the_facts() -> None:
    link = Link(2, "eth0", mac="02:00:00:00:00:01", addresses=(Address("192.0.2.7/24"),))

    assert json.loads(encode_capture(Capture(NodeFacts(links=(link,)), "a test"))) == {
        "format": "dranet.capture/1",
        "source": "a test",
        "facts": {
            "links": [
                {
                    "ifindex": 2,
                    "ifname": "eth0",
                    "mac": "02:00:00:00:00:01",
                    "addresses": [{"cidr": "192.0.2.7/24"}],
                }
            ]
        },
    }


def test_text_stays_readable_and_a_name_that_is_no_utf8_is_escaped() -> None:
    text = encode_capture(Capture(NodeFacts(links=(Link(2, "grün\udcff"),))))

    assert '"grün\\udcff"' in text
    assert decode_capture(text).facts.links[0].ifname == "grün\udcff"


def test_an_empty_capture_is_one() -> None:
    assert decode_capture('{"format": "dranet.capture/1", "facts": {}}') == Capture(NodeFacts())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"format": "dranet.capture/1", "facts": {"links": [', "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('{"a":' * 200_000, "not JSON"),
        ("1" * 5000, "not JSON"),
        ('{"format": "dranet.capture/1", "facts": {"links": [{"ifindex": NaN}]}}', "NaN is no JSON number"),
        ('{"format": "dranet.capture/1", "facts": {"x": -Infinity}}', "-Infinity is no JSON number"),
    ],
)
def test_what_is_no_json_is_refused(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    "text", ["null", "[]", "7", '"dranet.capture/1"', "{}", '{"format": "dranet.capture/2"}']
)
def test_another_format_is_refused_with_the_one_that_is_read(text: str) -> None:
    assert "this dranet reads 'dranet.capture/1'" in refusal(text)


A_NUMBER = "must be a whole number of at most 64 bits"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (7, ": must be an object, not 7"),
        ({"ifindex": None}, f".ifindex: {A_NUMBER}, not null"),
        ({"ifindex": "2"}, f'.ifindex: {A_NUMBER}, not "2"'),
        ({"ifindex": True}, f".ifindex: {A_NUMBER}, not true"),
        ({"ifindex": 2.0}, f".ifindex: {A_NUMBER}, not 2.0"),
        ({"ifindex": 2**64}, f".ifindex: {A_NUMBER}, not 18446744073709551616"),
        ({"master": "br0"}, f'.master: {A_NUMBER}, not "br0"'),
        ({"ifname": None}, ".ifname: must be text, not null"),
        ({"ifname": "x" * 99}, None),
        ({"carrier": 1}, ".carrier: must be true or false, not 1"),
        ({"altnames": [["b"]]}, ".altnames[0]: must be text, not a list"),
        ({"altnames": "b"}, '.altnames: must be a list, not "b"'),
        ({"addresses": [{}]}, ".addresses[0].cidr: missing"),
        ({"colour": "red"}, ".colour: unknown field"),
        ({"IFF_UP": 1}, ".IFF_UP: unknown field"),
        ({"is_up": True}, ".is_up: unknown field"),
        ({"no\ud800name": 1}, '."no\\ud800name": unknown field'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(link: Any, message: str | None) -> None:
    whole = {"ifindex": 2, "ifname": "eth0"} | link if isinstance(link, dict) else link
    text = document({"links": [{"ifindex": 1, "ifname": "lo"}, whole]})

    if message is None:
        assert decode_capture(text).facts.links[1].ifname == link["ifname"]
    else:
        assert refusal(text) == f"the capture does not fit: facts.links[1]{message}"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "facts: must be an object, not null"),
        ([], "facts: must be an object, not a list"),
        ({"links": {}}, "facts.links: must be a list, not an object"),
        ({"host": {"name": ["x"]}}, "facts.host.name: must be text, not a list"),
    ],
)
def test_the_outer_parts_are_checked_as_strictly(facts: object, message: str) -> None:
    assert refusal(document(facts)) == f"the capture does not fit: {message}"


def test_a_field_given_twice_is_refused() -> None:
    twice = '{"format": "dranet.capture/1", "facts": {"host": {"name": "a", "kernel": "6", "name": "b"}}}'

    assert refusal(twice) == "the capture does not fit: facts.host.name: given twice"


def test_many_names_given_twice_are_counted_in_no_time() -> None:
    names = ",".join(f'"name{n % 100_000}": 1' for n in range(200_000))
    text = f'{{"format": "dranet.capture/1", "facts": {{{names}}}}}'

    assert measure(lambda: _assert_counted(text)) < 2000


def _assert_counted(text: str) -> None:
    assert "and 199990 more" in refusal(text)


def test_fields_beside_the_facts_are_checked_too() -> None:
    text = '{"format": "dranet.capture/1", "facts": {}, "source": 7, "sauce": "tomato"}'

    assert refusal(text) == ("the capture does not fit: sauce: unknown field; source: must be text, not 7")


def test_the_first_ten_problems_are_shown_and_the_others_counted() -> None:
    message = refusal(document({"warnings": list(range(25))}))

    assert message.startswith("the capture does not fit: facts.warnings[0]: must be text, not 0; ")
    assert message.count("must be text") == 10
    assert message.endswith("; and 15 more")


def test_a_document_beyond_the_size_limit_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "MAX_CAPTURE_BYTES", 100)

    assert refusal("[" * 101) == "the capture is larger than 100 bytes"


def test_ten_thousand_links_are_far_below_the_size_limit() -> None:
    addresses = (Address("10.255.255.250/16", label="veth0123456789a", broadcast="10.255.255.255"),)
    route = Route("0.0.0.0/0", "10.255.255.254", 2)
    links = tuple(
        Link(i, f"veth{i:08x}", "veth", "02:00:00:00:00:01", mtu=1500, flags=4163, addresses=addresses)
        for i in range(10_000)
    )
    text = encode_capture(Capture(NodeFacts(links=links, default_routes=(route,))))

    assert len(text) < capture_module.MAX_CAPTURE_BYTES / 8
    assert len(decode_capture(text).facts.links) == 10_000


NAMES = st.sampled_from(["links", "ifindex", "ifname", "host", "gpus", "addresses", "x"])
SCALARS = st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(max_size=5)
ANY_JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(ANY_JSON)
def test_no_document_makes_anything_but_facts_or_a_settings_error(facts: object) -> None:
    try:
        decoded = decode_capture(document(facts))
    except SettingsError:
        return
    assert decode_capture(encode_capture(decoded)) == decoded

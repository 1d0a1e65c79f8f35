"""The operator's own attributes: what each device gets, and every problem with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from dranet.cel import engine
from dranet.errors import DranetError, Reason
from dranet.inventory.policy import GUARANTEED_OWN_ATTRIBUTES, RuleResult
from dranet.inventory.rules import OwnAttributes, parse_rules
from dranet.model.attributes import CATALOGUE, MAX_VALUE_BYTES
from dranet.model.device import Device, DeviceKind

ETH1 = Device("eth1", DeviceKind.NIC, {"dra.net/ifName": "eth1", "dra.net/rdma": True}, ifname="eth1")
RDMA = Device("rdma0", DeviceKind.RDMA, {"dra.net/rdma": True})


def rules(*entries: object) -> OwnAttributes:
    parsed, problems = parse_rules({"attributes": [*entries]}, "dra.net")
    assert problems == ()
    return parsed


def complaints(data: object) -> list[str]:
    return [f"{problem.place}: {problem.text}" for problem in parse_rules(data, "dra.net")[1]]


def complaints_of_set(values: object) -> list[str]:
    return complaints({"attributes": [{"set": values}]})


def test_a_rule_without_match_gives_its_attributes_to_every_device() -> None:
    own = rules({"set": {"tenant": "a", "example.com/fabric": "blue", "rail": 0, "spare": False}})
    given = RuleResult(
        {"dra.net/tenant": "a", "example.com/fabric": "blue", "dra.net/rail": 0, "dra.net/spare": False}
    )

    assert own.attributes_for(ETH1) == own.attributes_for(RDMA) == given
    assert own.names == given.attributes.keys()


def test_a_rule_with_match_gives_them_to_those_that_match() -> None:
    own = rules({"match": 'device.attributes["dra.net"].?ifName.orValue("") == "eth1"', "set": {"rail": 1}})

    assert own.attributes_for(ETH1) == RuleResult({"dra.net/rail": 1})
    assert own.attributes_for(RDMA) == RuleResult()


def test_the_older_form_works_in_a_rule_too() -> None:
    own = rules({"match": 'attributes["dra.net/rdma"].BoolValue', "set": {"rail": 1}})

    assert own.attributes_for(ETH1) == RuleResult({"dra.net/rail": 1})


def test_of_two_rules_that_set_a_name_the_later_wins_and_none_sees_what_another_added() -> None:
    own = rules(
        {"set": {"rail": 1, "tenant": "a"}},
        {"match": 'has(device.attributes["dra.net"].rail)', "set": {"seen": True}},
        {"set": {"rail": 2}},
    )

    assert own.attributes_for(ETH1) == RuleResult({"dra.net/rail": 2, "dra.net/tenant": "a"})


def test_a_rule_that_fails_on_a_device_adds_nothing_to_it_and_says_so() -> None:
    own = rules(
        {"match": 'device.attributes["dra.net"].ifName == "eth1"', "set": {"rail": 1}},
        {"set": {"tenant": "a"}},
    )

    assert own.attributes_for(RDMA) == RuleResult(
        {"dra.net/tenant": "a"},
        ("device rdma0: attributes[0] adds nothing to it: the device has no attribute or capacity 'ifName'",),
    )


def test_of_more_attributes_than_have_a_place_the_first_of_the_file_are_kept() -> None:
    own = rules(
        {"set": {f"a{n}": n for n in range(4)}}, {"match": "true", "set": {"b1": 1, "b2": 2, "b3": 3}}
    )

    assert own.attributes_for(ETH1) == RuleResult(
        {"dra.net/a0": 0, "dra.net/a1": 1, "dra.net/a2": 2, "dra.net/a3": 3, "dra.net/b1": 1},
        ("device eth1: more than 5 attributes of your own, left out are dra.net/b2, dra.net/b3",),
    )


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (None, "the file: must be a mapping with the key attributes, which holds a list of rules"),
        ([], "the file: must be a mapping with the key attributes, which holds a list of rules"),
        ({}, "the file: must be a mapping with the key attributes, which holds a list of rules"),
        ({"attributes": {"set": {}}}, "attributes: must be a list of rules; [] for none"),
        ({"attributes": None}, "attributes: must be a list of rules; [] for none"),
        ({"attributes": [], "filter": "x"}, "filter: unknown key; the only one here is attributes"),
        ({"attributes": [1]}, "attributes[0]: must be a mapping with the keys match (optional) and set"),
        (
            {"attributes": [{"set": {"a": 1}, "mach": "true"}]},
            "attributes[0].mach: unknown key; known are match, set",
        ),
        (
            {"attributes": [{"match": "true"}]},
            "attributes[0].set: must be a mapping of attribute names to values, at least one",
        ),
        (
            {"attributes": [{"match": "", "set": {"a": 1}}]},
            "attributes[0].match: must be a CEL expression; leave the key out for every device",
        ),
        (
            {"attributes": [{"match": "x", "set": {"a": 1}}]},
            "attributes[0].match: expression does not compile: line 1, column 1: undeclared reference to 'x'",
        ),
        (
            {"attributes": [{"match": "1", "set": {"a": 1}}]},
            "attributes[0].match: expression must be a bool, not int",
        ),
        (
            {"attributes": [{"set": {"a": 1}}, {"match": "true", "set": {"a": "1"}}]},
            "attributes[1].set.dra.net/a: is a string here and an int in attributes[0]; choose one",
        ),
        (
            {
                "attributes": [
                    {"set": {f"a{n}": n for n in range(3)}},
                    {"set": {f"b{n}": n for n in range(3)}},
                ]
            },
            "attributes: the rules without match set 6 attributes; a device has room for 5 of your own",
        ),
    ],
)
def test_a_file_of_another_shape_is_refused(data: object, complaint: str) -> None:
    assert complaints(data) == [complaint]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("1rail", "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        ("my-rail", "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        ("r" * 33, "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        ("", "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        ("example.com/", "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        (7, "must be letters, digits and _, no digit first, at most 32, e.g. rail"),
        ("/rail", "the part before the / must be a lower-case DNS name of at most 63 characters"),
        ("Example.com/rail", "the part before the / must be a lower-case DNS name of at most 63 characters"),
        ("a/b/rail", "the part before the / must be a lower-case DNS name of at most 63 characters"),
        ("d" * 64 + "/rail", "the part before the / must be a lower-case DNS name of at most 63 characters"),
        ("ifName", "dra.net/ifName is published by the driver itself; choose another name"),
        (
            "resource.kubernetes.io/pcieRoot",
            "resource.kubernetes.io/pcieRoot is published by the driver itself; choose another name",
        ),
    ],
)
def test_a_name_that_the_api_or_the_catalogue_forbids_is_refused(name: object, complaint: str) -> None:
    assert complaints_of_set({name: 1}) == [f"attributes[0].set.{name}: {complaint}"]


def test_no_name_of_the_catalogue_can_be_set_except_the_rail() -> None:
    assert [attribute.name for attribute in CATALOGUE if attribute.may_be_set] == ["rail"]
    for attribute in CATALOGUE:
        if attribute.may_be_set:
            continue
        (complaint,) = complaints_of_set({attribute.qualified: 1})
        assert f"{attribute.qualified} is published by the driver itself" in complaint


def test_a_name_may_be_that_of_a_clouds_driver() -> None:
    own = rules({"set": {"gce.dra.net/networkName": "rdma-0"}})

    assert own.attributes_for(ETH1) == RuleResult({"gce.dra.net/networkName": "rdma-0"})


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (1.5, "must be an integer, true, false or text; quote anything else"),
        (None, "must be an integer, true, false or text; quote anything else"),
        ([1], "must be an integer, true, false or text; quote anything else"),
        (2**63, "9223372036854775808 does not fit in 64 bits"),
        ("é" * 33, "must be text of at most 64 bytes"),
        ("\ud800", "must be text of at most 64 bytes"),
    ],
)
def test_a_value_that_the_api_forbids_is_refused(value: object, complaint: str) -> None:
    assert complaints_of_set({"rail": value}) == [f"attributes[0].set.rail: {complaint}"]


def test_a_name_that_one_rule_sets_twice_is_refused() -> None:
    assert complaints_of_set({"rail": 1, "dra.net/rail": 2}) == [
        "attributes[0].set.dra.net/rail: dra.net/rail is set twice in this rule"
    ]


def test_a_key_that_python_cannot_print_is_told_all_the_same() -> None:
    assert "huge number" in complaints_of_set({1 << 20000: 1})[0]
    assert "Exceeds the limit" in complaints_of_set({"rail": 1 << 20000})[0]


def test_all_problems_are_told_at_once() -> None:
    found = complaints({"attributes": [{"set": {"1": 1, "mac": 2, "rail": 0.5}}, {"match": "x"}], "b": 1})

    assert [complaint.split(": ")[0] for complaint in found] == [
        "b",
        "attributes[0].set.1",
        "attributes[0].set.mac",
        "attributes[0].set.rail",
        "attributes[1].match",
        "attributes[1].set",
    ]


def test_without_the_engine_only_a_file_that_needs_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> object:
        raise ImportError(name)

    engine._environment.cache_clear()
    monkeypatch.setattr(engine, "import_module", no_module)
    assert rules({"set": {"rail": 1}}).attributes_for(ETH1) == RuleResult({"dra.net/rail": 1})
    with pytest.raises(DranetError) as caught:
        rules({"match": "true", "set": {"rail": 1}})
    assert caught.value.reason is Reason.MISSING_FEATURE


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["a", "b", "c.d/e", "ifName", "é", "f", "g", "h", "i"])
RULE = st.fixed_dictionaries(
    {"set": st.dictionaries(NAMES, SCALARS) | DATA},
    optional={"match": st.sampled_from(["true", "false", "1/0 == 1", "x", ""]) | DATA},
)


@given_any(DATA | st.fixed_dictionaries({"attributes": st.lists(RULE | DATA, max_size=4)}))
def test_whatever_the_file_holds_a_device_gets_only_what_the_api_takes(data: Any) -> None:
    own, problems = parse_rules(data, "dra.net")
    given = own.attributes_for(ETH1)

    assert all(problem.text and problem.place for problem in problems)
    assert len(given.attributes) <= GUARANTEED_OWN_ATTRIBUTES
    for name, value in given.attributes.items():
        assert name.count("/") == 1
        assert name not in ETH1.attributes
        assert isinstance(value, int) or (isinstance(value, str) and len(value.encode()) <= MAX_VALUE_BYTES)

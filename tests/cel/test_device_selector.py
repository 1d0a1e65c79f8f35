"""The device CEL dialect: as Kubernetes judges, or an error that says why it cannot be judged."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cel import MAX_EXPRESSION_LENGTH, CelError, Version
from dranet.cel.values import Semver, parse_quantity
from dranet.desk.cel import DeviceSelector, DeviceValues
from dranet.desk.cel.uses import OWN_DOMAIN
from tests.support.processor_time import measure

ATTRIBUTES: dict[str, Any] = {
    "dra.net/ifName": "eth1",
    "dra.net/rdma": True,
    "mtu": 9000,
    "firmware": Version("1.10.0-rc.1+build5"),
    "resource.kubernetes.io/numaNode": 0,
}
CAPACITY: dict[str, str | int] = {"bandwidth": "10Gi", "example.com/queues": 64}


def matches(expression: str) -> bool:
    return DeviceSelector.compile(expression).matches("dra.net", ATTRIBUTES, CAPACITY)


def complaint(expression: str) -> str:
    with pytest.raises(CelError) as caught:
        matches(expression)
    return str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "dra.net"',
        'device.attributes["dra.net"].rdma',
        'device.attributes["dra.net"].mtu > 8999.5',
        'device.attributes["dra.net"].ifName.startsWith("eth")',
        'device.attributes["dra.net"].mtu in [1500, 9000] && 5 in [5]',
        'device.attributes["dra.net"].ifName.matches("^eth[0-9]$")',
        '["a", "b"].exists(x, x == "b") && [1, 2].all(x, x > 0) && [1, 2].map(x, x * 2) == [2, 4]',
        'cel.bind(dra, device.attributes["dra.net"], dra.rdma && dra.mtu == 9000)',
        '"ETH1".lowerAscii() == "eth1" && "a,b".split(",")[1] == "b" && "eth1".substring(3) == "1"',
        'device.attributes["dra.net"].?nothing.orValue("x") == "x"',
        'device.attributes["dra.net"].?mtu.hasValue()',
        'device.attributes["dra.net"]["mtu"] == 9000',
        "!device.allowMultipleAllocations",
        "device.attributes[device.driver].rdma",
    ],
)
def test_selectors_as_users_write_them(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'has(device.attributes["unknown.domain"].x)',
        '"unknown.domain" in device.attributes',
        'device.attributes["unknown.domain"].?x.orValue(false)',
        'device.attributes [ "unknown.domain" ].?x.orValue(false)',
        'device.attributes[ // ] a comment\n "unknown.domain"].?x.hasValue()',
        """device.attributes['unknown.domain'].?x.hasValue()""",
        'device.attributes[r"a\\d]"].?x.hasValue()',
        'device.attributes["a]b"].?x.hasValue() || device.attributes["[?"].?x.hasValue()',
        'device.attributes[["unknown.domain"][0]].?x.hasValue()',
        'device.attributes[?"unknown.domain"].?x.hasValue()',
        'has(device.capacity["unknown.domain"].x)',
        "\"device.attributes['x']\" == \"device.attributes[?'x'].orValue({})\"",
    ],
)
def test_an_unknown_domain_is_an_empty_map(expression: str) -> None:
    assert not matches(expression)


def test_a_known_domain_is_in_the_map() -> None:
    assert matches('"dra.net" in device.attributes && "resource.kubernetes.io" in device.attributes')
    assert matches('device.attributes.all(d, d != "unknown.domain")')


def test_an_attribute_that_the_device_lacks_is_an_error_with_the_mend() -> None:
    for expression in (
        'device.attributes["dra.net"].nothing',
        'device.attributes["unknown.domain"].nothing == 1',
    ):
        text = complaint(expression)
        assert "'nothing'" in text
        assert "has(" in text


def test_an_error_is_absorbed_where_the_other_side_decides() -> None:
    assert not matches('device.driver == "other" && device.attributes["other"].nothing')
    assert not matches('device.attributes["other"].nothing == 1 && device.driver == "other"')
    assert matches('device.attributes["other"].nothing == 1 || device.attributes["dra.net"].rdma')


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ('"x"', "must be a bool, not string"),
        ('device.attributes["dra.net"].mtu', "must be a bool, not int"),
        ("device.driver == 1", "no matching overload"),
        ("device.nothing == 1", "undeclared reference to 'device.nothing'"),
        ('device["driver"] == "x"', "does not compile"),
        ("device.driver ==", "Syntax error"),
        ("", "does not compile"),
        ('device.attributes["dra.net"].ifName > 5', "No matching overloads"),
        ('device.attributes["dra.net"].mtu / 0 == 1', "divide by zero"),
        ('format.uuid().validate("x").hasValue()', "this evaluator lacks Kubernetes' format"),
        ("[1].indexOf(1) == 0", "this evaluator lacks Kubernetes' indexOf of list(int), int"),
        ('quantity("lots") == quantity("1")', "'lots' is not a quantity"),
        ('semver("v1") == semver("1.0.0")', "'v1' is not a semantic version"),
        ('semver("1.0.0").isGreaterThan(quantity("1"))', "no matching overload"),
    ],
)
def test_what_cannot_be_judged_is_an_error_and_never_false(expression: str, text: str) -> None:
    assert text in complaint(expression)


def test_a_selector_has_a_longest_length() -> None:
    longest = "true" + " " * (MAX_EXPRESSION_LENGTH - 4)

    assert matches(longest)
    assert "10240" in complaint(longest + " ")


@pytest.mark.parametrize(
    "expression",
    [
        'device.capacity["dra.net"].bandwidth == quantity("10240Mi")',
        'device.capacity["dra.net"].bandwidth.compareTo(quantity("10Gi")) == 0',
        'device.capacity["dra.net"].bandwidth.isGreaterThan(quantity("10G"))',
        'device.capacity["example.com"].queues.asInteger() == 64',
        'quantity("1500m").asApproximateFloat() == 1.5',
        'quantity("15").isInteger()',
        'quantity("1").add(quantity("500m")).sub(1) == quantity("0.5") && sign(quantity("-1")) == -1',
        'isQuantity("1e3") && !isQuantity("1x") && quantity("1e3") == quantity("1k")',
    ],
)
def test_quantities(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["dra.net"].firmware.isLessThan(semver("1.10.0"))',
        'device.attributes["dra.net"].firmware.isGreaterThan(semver("1.9.9"))',
        'device.attributes["dra.net"].firmware == semver("1.10.0-rc.1")',
        'cel.bind(v, device.attributes["dra.net"].firmware, v.major() == 1 && v.minor() == 10)',
        'semver("v01.2", true) == semver("1.2.0") && isSemver("v1", true) && !isSemver("v1")',
        'semver("1.0.0-2").isLessThan(semver("1.0.0-10"))',
        'semver("1.0.0-10").isLessThan(semver("1.0.0-a"))',
        'semver("1.2.3").compareTo(semver("1.2.3+build")) == 0 && semver("1.2.3").patch() == 3',
    ],
)
def test_semantic_versions(expression: str) -> None:
    assert matches(expression)


def test_semantic_versions_sort_as_the_specification_says() -> None:
    tails = ["-alpha", "-alpha.1", "-alpha.beta", "-beta", "-beta.2", "-beta.11", "-rc.1", ""]
    keys = [Semver.parse(f"1.0.0{tail}").sort_key for tail in tails]

    assert all(lower < higher for lower, higher in itertools.pairwise(keys))


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "M", "Ki", "Mi", "m", "u", "n"]))
def test_quantities_are_exact(number: int, suffix: str) -> None:
    units = {"": 10**9, "k": 10**12, "M": 10**15, "Ki": 1024 * 10**9, "Mi": 1024**2 * 10**9}
    units |= {"m": 10**6, "u": 10**3, "n": 1}

    assert parse_quantity(f"{number}{suffix}") == number * units[suffix]
    assert parse_quantity(f"-{number}{suffix}") == -number * units[suffix]


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        matches(text)
    except CelError:
        return


def test_a_device_that_is_converted_once_gives_the_same_answers() -> None:
    device = DeviceValues("dra.net", ATTRIBUTES, CAPACITY)
    expressions = (
        'device.attributes["dra.net"].rdma',
        'device.driver == "x"',
        "device.allowMultipleAllocations",
    )
    selectors = [DeviceSelector.compile(expression) for expression in expressions]

    for _ in range(200):  # more than one binding is good for
        assert [selector.accepts(device) for selector in selectors] == [True, False, False]


def test_a_device_of_which_a_value_is_none_cannot_be_converted() -> None:
    with pytest.raises(CelError, match="not a quantity"):
        DeviceValues("dra.net", {}, {"bandwidth": "lots"})
    with pytest.raises(CelError, match="not a semantic version"):
        DeviceValues("dra.net", {"firmware": Version("new")})


def test_a_thousand_devices_take_little_time() -> None:
    selector = DeviceSelector.compile(
        'device.driver == "dra.net" && device.attributes["dra.net"].mtu > 1500 '
        '&& device.attributes["dra.net"].firmware.isGreaterThan(semver("1.0.0"))'
    )

    def select() -> None:
        for _ in range(1000):
            assert selector.matches("dra.net", ATTRIBUTES, CAPACITY)

    assert measure(select) < 150


@pytest.mark.parametrize(
    ("expression", "uses"),
    [
        ('device.attributes["dra.net"].mtu > 1', {("dra.net", "mtu", False)}),
        ('has(device.attributes["dra.net"].mtu)', {("dra.net", "mtu", True)}),
        ('device.attributes["dra.net"].?mtu.hasValue()', {("dra.net", "mtu", True)}),
        ('device.attributes["dra.net"]["mtu"] == 1', {("dra.net", "mtu", False)}),
        ('"mtu" in device.attributes["dra.net"]', {("dra.net", "mtu", True)}),
        ("device.attributes[device.driver].mtu == 1", {(OWN_DOMAIN, "mtu", False)}),
        (
            'cel.bind(d, device.attributes["x.y"], d.a && d.?b.orValue(true))',
            {("x.y", "a", False), ("x.y", "b", True)},
        ),
        ('cel.bind(all, device.attributes, all["x.y"].a)', {("x.y", "a", False)}),
        ('device.driver == "x" && "y" in device.attributes', set()),
    ],
)
def test_which_attributes_a_selector_looks_at(expression: str, uses: set[tuple[str, str, bool]]) -> None:
    found = DeviceSelector.compile(expression).find_uses()

    assert {(use.domain, use.name, use.is_guarded) for use in found} == uses


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('device.attributes["a.b"].mtu > 1500', 1501),
        ('1500 < device.attributes["a.b"].mtu', 1501),
        ('device.attributes["a.b"].mtu < 1500', 1499),
        ('device.attributes["a.b"].mtu >= 1500', 1500),
        ('device.attributes["a.b"].?mtu.orValue(0) == 1500', 1500),
        ('device.attributes["a.b"].mtu in [9000, 1500]', 9000),
        ('device.attributes["a.b"].mtu.startsWith("x")', "x"),
    ],
)
def test_which_value_would_satisfy_a_comparison(expression: str, value: object) -> None:
    assert DeviceSelector.compile(expression).find_comparisons() == {"a.b/mtu": value}

"""Expressions out of the whole dialect, sound and nonsense: each is judged or refused, and soon.

The engine is a foreign library in C++; whatever it throws must come out as an error of ours.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dranet.cel import CelError, NotJudged, Version
from dranet.desk.cel import DeviceSelector
from tests.support.processor_time import measure

ATTRIBUTES: dict[str, Any] = {
    "dra.net/ifName": "eth1",
    "dra.net/mtu": 9000,
    "dra.net/rdma": True,
    "firmware": Version("1.10.0-rc.1"),
    "example.com/rails": ["blue", "green"],
    "resource.kubernetes.io/numaNode": [0, 1],
}
LEAVES = """
    1 -1 9223372036854775807 -9223372036854775808 2u 1.5 1e300 true null "" "eth1" "10.0.0.1"
    "10.0.0.0/8" "10Gi" "1.2.3" "(a+)+$" "1h" b"x" [] {} [1,2] ["a"] {"a":1} device.driver
    device.attributes device.capacity device.attributes["dra.net"].ifName
    device.attributes["dra.net"].mtu device.attributes["dra.net"].rdma
    device.attributes["dra.net"].firmware device.attributes["example.com"].rails
    device.attributes["no.where"].x device.attributes["resource.kubernetes.io"].numaNode
    device.attributes["dra.net"].?x device.capacity["dra.net"].bandwidth optional.none() duration("1h")
    timestamp("2024-01-01T00:00:00Z") quantity("1.5Gi") semver("1.2.3") ip("10.0.0.1") cidr("fd00::/64")
    url("/a?b=c") type(1)
"""
FORMS = """
    dyn(A) (A) !A -A A+B A-B A*B A/B A%B A==B A!=B A<B A>=B A&&B A||B A?B:A A[B] A[?B] [A,B] [?A,B]
    {A:B} A.in(B) A.size() A.startsWith(B) A.matches(B) A.find(B) A.findAll(B) A.split(B) A.join(B)
    A.replace(B,B) A.substring(B) A.indexOf(B) A.lastIndexOf(B) A.charAt(B) A.format([B]) A.trim()
    A.reverse() A.sort() A.distinct() A.flatten() A.slice(B,B) A.first() A.last() A.sum() A.min()
    A.max() A.isSorted() A.includes(B) A.orValue(B) A.value() A.hasValue() A.or(B) A.add(B) A.sub(B)
    A.asInteger() A.isInteger() A.compareTo(B) A.isGreaterThan(B) A.major() A.family() A.containsIP(B)
    A.containsCIDR(B) A.masked() A.prefixLength() A.getQuery() A.getHours() A.all(x,B) A.exists(i,x,B)
    A.map(x,x+B) A.filter(x,x==B) A.transformList(i,x,B) A.sortBy(x,B) A.exists_one(x,B)
    A.optMap(x,x==B) cel.bind(x,A,x==B) lists.range(A) sets.contains(A,B) sets.equivalent(A,B) int(A)
    string(A) double(A) uint(A) bool(A) bytes(A) duration(A) timestamp(A) quantity(A) semver(A,true)
    ip(A) cidr(A) url(A) isURL(A) isCIDR(A) sign(A) type(A)==type(B) has(A.x) A.x A.b.c
"""


def write(first: str, steps: list[tuple[str, str]]) -> str:
    """Each form around what there is, beside a leaf."""
    return reduce(lambda inner, step: step[0].replace("B", step[1]).replace("A", inner), steps, first)


EXPRESSIONS = st.builds(
    write,
    st.sampled_from(LEAVES.split()),
    st.lists(st.tuples(st.sampled_from(FORMS.split()), st.sampled_from(LEAVES.split())), max_size=6),
)


def judge(expression: str) -> object:
    try:
        return DeviceSelector.compile(expression).matches("dra.net", ATTRIBUTES, {"bandwidth": "100G"})
    except CelError as error:
        return error


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=400)
@given(EXPRESSIONS)
@example("lists.range(-1).size() == 0")
@example("sets.contains(lists.range(-1), [1])")
@example("{1.5: 1}")
@example("[dyn(int)].max() == 1")
@example("dyn([])[?dyn(1)]")
def test_any_expression_is_judged_or_refused(expression: str) -> None:
    for wrapped in (expression, f"dyn({expression}) == dyn(1)"):
        outcome = judge(wrapped)

        assert isinstance(outcome, bool | CelError)


@pytest.mark.parametrize(
    "expression",
    [
        f'"{"a" * 5000}".matches("(a+)+b")',
        f'"{"a" * 5000}".findAll("(a|a)*b").size() == 0',
        '"a".matches("(a{1000}){1000}")',
        f'isSemver("1.2.3-{"1." * 3000}x")',
        f'isURL("http://{"a" * 4000}/{"a" * 4000}")',
        f'isQuantity("{"1" * 9000}")',
        "[" * 200 + "]" * 200 + " == []",
        "device" + ".a" * 3000,
        "-" * 3000 + "1 < 0",
        '"%1000000000d".format([1]) == ""',
    ],
    ids=lambda expression: expression[:30],
)
def test_no_text_and_no_pattern_takes_long(expression: str) -> None:
    def take_it() -> None:
        assert isinstance(judge(expression), bool | CelError)

    assert measure(take_it) < 400


def test_what_the_engine_cannot_do_is_said_and_not_guessed() -> None:
    outcome = judge("lists.range(-1).size() == 0")

    assert isinstance(outcome, NotJudged)
    assert "the engine failed" in str(outcome)

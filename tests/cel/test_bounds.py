"""Expressions that would take all memory or time are refused before they run; what people write is not."""

from __future__ import annotations

import pytest

from dranet.cel import CelError, NotJudged, ValueExpression
from dranet.desk.cel import DeviceSelector
from tests.support.processor_time import measure


def doubling(start: str, times: int, end: str) -> str:
    """Each binding is twice the one before."""
    expression = end
    for number in range(times, 0, -1):
        expression = f"cel.bind(v{number}, v{number - 1} + v{number - 1}, {expression})"
    return f"cel.bind(v0, {start}, {expression})"


BOMBS = {
    "a text that doubles": doubling('"ab"', 24, 'v24 == ""'),
    "a list that doubles": doubling("[1]", 24, "size(v24) > 0"),
    "a range": "lists.range(2000000000).size() > 0",
    "a range of an attribute": 'lists.range(device.attributes["dra.net"].mtu).size() > 0',
    "replacements of replacements": 'cel.bind(a, "aaaaaaaaaa".replace("a", "aaaaaaaaaaaaaaaaaaaa"), '
    'cel.bind(b, a.replace("a", a), cel.bind(c, b.replace("a", b), c.size() > 0)))',
    "a join": doubling('["aa"]', 12, 'v12.join("x".replace("x", "' + "y" * 3000 + '")) == ""'),
    "a long text in a long loop": doubling('"ab"', 15, "lists.range(9000).all(i, v15.contains(string(i)))"),
}
FINE = (
    'device.attributes["a.b"].rails.all(r, device.attributes["c.d"].rails.exists(s, s == r))',
    'device.attributes["dra.net"].ipv4.split(",").exists(a, cidr("10.0.0.0/8").containsIP(a.split("/")[0]))',
    'device.attributes["dra.net"].pciAddress.replace(":", "-").upperAscii().endsWith(".0")',
    "lists.range(100).all(x, lists.range(90).all(y, x + y >= 0))",
    " || ".join(f'device.attributes["dra.net"].ifName == "eth{number}"' for number in range(150)),
    "[" + ", ".join(f'"0000:{number:02x}:00.0"' for number in range(200)) + '].exists(x, x == "y")',
)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once(name: str) -> None:
    def compile_it() -> None:
        with pytest.raises(NotJudged, match="too expensive"):
            DeviceSelector.compile(BOMBS[name])

    assert measure(compile_it) < 300


@pytest.mark.parametrize("expression", FINE)
def test_what_people_write_is_not(expression: str) -> None:
    DeviceSelector.compile(expression)


def test_expressions_about_values_are_bounded_too() -> None:
    with pytest.raises(CelError, match="too expensive"):
        ValueExpression(doubling("string(value)", 24, 'v24 == ""'))


def test_a_deep_expression_is_an_error_and_no_crash() -> None:
    for expression in (
        "!" * 5000 + "true",
        "(" * 5000 + "true" + ")" * 5000,
        "+".join(["1"] * 3000) + " > 0",
    ):
        try:
            DeviceSelector.compile(expression)
        except CelError:
            continue

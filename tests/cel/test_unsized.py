"""Selectors that an API server refuses because it cannot tell how long a text or a list may be.

The expectations are what Kubernetes 1.37 estimates: more than the limit of 1,000,000, or some hundreds.
"""

from __future__ import annotations

import pytest

from dranet.desk.cel import DeviceSelector

A = 'device.attributes["dra.net"]'
RAILS = 'device.attributes["example.com"].rails'


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        (f'{A}.?ifName.orValue("").matches("^eth")', "matches"),
        (f'{A}[?"ifName"].orValue("").contains("eth")', "contains"),
        (f'{A}.?ifName.value().lowerAscii() == "eth1"', "lowerAscii"),
        (f'cel.bind(d, {A}, d.?ipv4.orValue("").split(",").exists(a, a == "x"))', "split"),
        (f'cel.bind(name, {A}.?ifName.orValue(""), name.find("[0-9]") == "1")', "find"),
        (f'isCIDR({A}.?ipv4.orValue(""))', "isCIDR"),
        (f'cidr("10.0.0.0/8").containsIP({A}.ipv4.split("/")[0])', "containsIP"),
        ('"blue" in device.attributes["example.com"].?rails.orValue([])', "in"),
        ('device.attributes["example.com"].?rails.orValue([]).exists(r, r == "blue")', "all, exists"),
        (f'{RAILS}.exists(r, r.matches("^b"))', "matches"),
        (f'{A}.ipv4.split(",").exists(a, cidr("10.0.0.0/8").containsCIDR(a))', "containsCIDR"),
        (f'{RAILS}[0].contains("b")', "contains"),
    ],
)
def test_what_may_be_of_any_length_is_found_where_it_is_read_whole(expression: str, function: str) -> None:
    assert DeviceSelector.compile(expression).find_unsized().startswith(function)


@pytest.mark.parametrize(
    "expression",
    [
        f'{A}.?ifName.orValue("") == "eth1"',
        f'{A}.?ifName.orValue("").startsWith("eth")',
        f'{A}.?ifName.orValue("") in ["eth1", "eth2"]',
        f"{A}.?mtu.orValue(0) + 1 > 1500",
        f'has({A}.ifName) && {A}.ifName.matches("^eth")',
        f'(has({A}.ifName) ? {A}.ifName : "").matches("^eth")',
        f'cel.bind(d, {A}, d.ifName.lowerAscii().contains("eth"))',
        f'{A}.ipv4.split(",").exists(a, a == "x")',
        f'{RAILS}.exists(r, r == "blue") && "blue" in {RAILS} && {RAILS}.includes("blue")',
        f'device.attributes.exists(d, d.contains("x")) && {A}.all(name, name.matches("[a-z]"))',
        f'cel.bind(d, {A}, d.exists(name, name.matches("a")))',
        'isIP(["10.0.0.1", "x"][0]) && ["a"].first().value().contains("a")',
        '["a"].filter(x, true)[0].contains("a")',
        f'cidr("10.0.0.0/8").containsCIDR({A}.ipv4)',
    ],
)
def test_what_has_a_greatest_length_is_not(expression: str) -> None:
    assert DeviceSelector.compile(expression).find_unsized() == ""

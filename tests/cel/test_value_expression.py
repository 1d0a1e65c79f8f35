"""What a DeviceClass demands of a value: a bool, or an error with its cause."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.cel import CelError, ValueExpression


def holds(expression: str, value: Any, namespace: str = "default") -> bool:
    return ValueExpression(expression).holds(value, namespace)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("value <= 9000", 9000),
        ("value > 9000", 2**62),
        ("value", True),
        ('value == "net1" && value.matches("^net[0-9]+$")', "net1"),
        ('value.all(a, a.startsWith("10."))', ["10.0.0.1/24", "10.0.0.2/24"]),
        ("value.all(a, false)", []),
        ("value.exists(r, has(r.table) && r.table == 5)", [{"destination": "10.0.0.0/8", "table": 5}]),
        ('value[0].destination == "10.0.0.0/8"', [{"destination": "10.0.0.0/8"}]),
        ('value.all(name, value[name] == "1")', {"net.ipv4.tcp_ecn": "1"}),
        ("!has(value.table) && value.?table.orValue(7) == 7", {"name": "red"}),
        ('claim.namespace in ["default", "batch"]', 1),
        ('value <= quantity("10G").asInteger()', 10**10),
    ],
)
def test_what_holds(expression: str, value: Any) -> None:
    assert holds(expression, value)
    assert not holds(f"!({expression})", value)


def test_namespaces_are_told_apart() -> None:
    assert not holds('claim.namespace == "default"', 1, "other")


@pytest.mark.parametrize(
    ("expression", "value", "why"),
    [
        ("value", 1, "must be a bool, not int"),
        ("value < 5", "text", "expression failed"),
        ("value.table < 5", {"name": "red"}, "value has no 'table' (guard it with has(...)"),
        ("value.name == 1", 5, "expression failed"),
        ("value / 0 == 1", 5, "divide by zero"),
        ("1 + 1", 1, "must be a bool, not int"),
        ("1 +", 1, "does not compile: line 1, column 4"),
        ('namespace == "x"', 1, "reserved identifier: namespace"),
        ("claim.name == value", 1, "undeclared reference to 'claim.name'"),
        ('device.driver == ""', 1, "undeclared reference to 'device.driver'"),
        ("format.uuid() == value", 1, "lacks Kubernetes' format"),
        ("x" * 10241, 1, "has 10241 characters"),
    ],
)
def test_what_cannot_be_judged_is_an_error_with_its_cause(expression: str, value: Any, why: str) -> None:
    with pytest.raises(CelError) as caught:
        holds(expression, value)
    assert why in str(caught.value)

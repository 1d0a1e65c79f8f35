"""No documented rule is without a test, no test shows what is not documented."""

from __future__ import annotations

from importlib import import_module

from tests.desk.allocation.documented_rules import RULES, SHOWN

MODULES = ("test_rules_of_pools", "test_rules_of_requests", "test_rules_of_amounts", "test_rules_of_results")


def test_every_rule_has_its_test() -> None:
    for module in MODULES:
        import_module(f"tests.desk.allocation.{module}")

    assert set(SHOWN) == set(RULES)
    assert all(tests for tests in SHOWN.values())

"""The corpus of the device dialect: our own cases, each with the documented rule that it proves."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cel import CelError, NotJudged, Version
from dranet.desk.cel import DeviceSelector, DeviceValues

CORPUS = Path(__file__).parent / "conformance"
FILES = ("language", "device", "libraries")


def load(name: str) -> Any:
    return yaml.safe_load((CORPUS / f"{name}.yaml").read_text(encoding="utf-8"))


CASES = [case for name in FILES for case in load(name)]


@cache
def device(name: str) -> DeviceValues:
    entry = load("devices")[name]
    attributes = {
        key: Version(value["version"]) if isinstance(value, dict) else value
        for key, value in entry["attributes"].items()
    }
    return DeviceValues(
        entry["driver"], attributes, entry.get("capacity"), allow_multiple=entry.get("shared", False)
    )


def judge(case: dict[str, Any]) -> tuple[object, str]:
    """What becomes of a case, in the words of the corpus, and the message of an error."""
    try:
        selector = DeviceSelector.compile(case["expression"].ljust(case.get("pad", 0)))
    except CelError as error:
        return "not-judged" if isinstance(error, NotJudged) else "refused", str(error)
    try:
        return selector.accepts(device(case.get("device", "nic"))), ""
    except CelError as error:
        return "not-judged" if isinstance(error, NotJudged) else "error", str(error)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rule']}: {case['name']}")
def test_case(case: dict[str, Any]) -> None:
    outcome, message = judge(case)

    assert outcome == case["outcome"], message
    assert case.get("message", "") in message


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert {case["rule"] for case in CASES} == set(load("rules"))


def test_no_two_cases_have_one_name() -> None:
    names = [(case["rule"], case["name"]) for case in CASES]

    assert len(set(names)) == len(names)


def test_what_is_not_judged_says_so() -> None:
    for case in CASES:
        if case["outcome"] == "not-judged":
            assert "cannot be judged here" in judge(case)[1], case["name"]

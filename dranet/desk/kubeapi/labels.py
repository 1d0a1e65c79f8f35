"""Label selectors as ``kubectl -l`` takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_KEY = r"(?P<key>[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_VALUE = r"(?P<value>[-A-Za-z0-9_.]*)"
_REQUIREMENTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Labels], bool]], ...] = (
    (re.compile(rf"{_KEY}\s*==?\s*{_VALUE}"), lambda m, labels: labels.get(m["key"]) == m["value"]),
    (re.compile(rf"{_KEY}\s*!=\s*{_VALUE}"), lambda m, labels: labels.get(m["key"]) != m["value"]),
    (
        re.compile(rf"{_KEY}\s+in\s*\((?P<values>[^()]*)\)"),
        lambda m, labels: labels.get(m["key"]) in _split_values(m["values"]),
    ),
    (
        re.compile(rf"{_KEY}\s+notin\s*\((?P<values>[^()]*)\)"),
        lambda m, labels: labels.get(m["key"]) not in _split_values(m["values"]),
    ),
    (re.compile(rf"!\s*{_KEY}"), lambda m, labels: m["key"] not in labels),
    (re.compile(_KEY), lambda m, labels: m["key"] in labels),
)


def parse_selector(text: str) -> Selector:
    """``zone=a,gpu in (h100, b200),!cordoned``; all requirements must hold, and an empty text selects all.

    Raises:
        ValueError: names the requirement that is not one.
    """
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)] if text.strip() else []
    requirements = [_parse(part) for part in parts]
    return lambda labels: all(holds(labels) for holds in requirements)


def _parse(part: str) -> Selector:
    for pattern, holds in _REQUIREMENTS:
        if match := pattern.fullmatch(part):
            return partial(holds, match)
    raise ValueError(
        f"{part!r} is not a requirement such as key=value, key!=value, key in (a,b), key or !key"
    )


def _split_values(text: str) -> set[str]:
    return {value.strip() for value in text.split(",")}

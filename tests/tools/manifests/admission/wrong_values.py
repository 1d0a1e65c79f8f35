"""Each field of the parameters with each kind of value that could be wrong about it, and each conflict with
its parts taken away or made odd. Many configs stand in one claim, each for a request of its own, so that one
evaluation of the policy judges them all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import Limit, Part, PartField, fields_of
from tests.tools.manifests.admission.evaluation import (
    claim,
    code_lines,
    complaints_by_rule,
    config,
    device_class,
)
from tests.tools.manifests.admission.policy_cases import HOP, NEIGHBOUR, POLICY_RULE
from tests.tools.manifests.admission.random_parameters import ADDRESSES, NUMBERS, TEXTS
from tools.manifests.parameter_checks import unwrap

Json = dict[str, Any]
Told = set[tuple[str, str]]
"""Path below the parameters, and what is wrong there, without the value."""

AROUND: dict[str, Json] = {
    "routes": {"destination": "10.1.0.0/16", "gateway": "10.0.0.1"},
    "routes.nextHops": HOP,
    "neighbors": NEIGHBOUR,
    "policy.rules": POLICY_RULE,
}
"""What an entry of a list needs beside the field that is probed."""
CONFIGS_MAX = 32
ODD: tuple[Any, ...] = (True, 1, -1, 1.5, "", "x", [], [1], ["x"], [None], {}, {"a": 1}, None)
STRANGE = (5, "x", [1], {"a": 1})
OF_WHOLE = re.compile(
    r"^(is required|must come with|must be absent|must not be true with|must be empty with|must not be set|"
    r"must be of the IP version|must not be one of the kernel's|must not have the|must not be false with|"
    r"must not be 253|must be at least 1280 with)|with an IPv6"
)
"""What is said of several fields together."""


def iter_fields() -> Iterator[tuple[str, ...]]:
    """The way to every field, that of entries of lists and what stands beside the parameters, too."""
    yield from _iter_below(NetworkConfig)
    yield from _iter_below(Envelope)


def _iter_below(part: type[Part]) -> Iterator[tuple[str, ...]]:
    for name, found in fields_of(part).items():
        yield (name,)
        if found.part:
            yield from ((name, *way) for way in _iter_below(found.part))


def field_at(way: Sequence[str]) -> PartField:
    name, *below = way
    found = {**fields_of(NetworkConfig), **fields_of(Envelope)}[name]
    for name in below:
        assert found.part
        found = fields_of(found.part)[name]
    return found


def wrap(way: Sequence[str], value: Any, above: str = "") -> Json:
    """Parameters that say this of a field, and nothing else but what has to be there."""
    name, *below = way
    path = f"{above}.{name}".lstrip(".")
    if not below:
        return {name: value}
    inner = wrap(below, value, path)
    is_list = field_at(path.split(".")).is_list
    return {name: [{**AROUND.get(path, {}), **inner}] if is_list else inner}


def values_for(way: Sequence[str]) -> list[Any]:
    """Wrong types, the ends of what is allowed and one beyond; for the first of each kind also texts and
    numbers that are easily taken for right."""
    field = field_at(way)
    kind, marks = unwrap(field.info.annotation, tuple(field.info.metadata))
    is_first = _first_of_its_kind()[_kind_of(way)] == tuple(way)
    found = [*ODD, *(field.info.examples or ()), *_ends(marks)]
    if field.is_map:
        values = [{"a": value} for value in (*ODD, 2**63, "x" * 4096, "x" * 4097, "ä", "a\nb", " ")]
        return [*found, *values, *({"n" * size: True} for size in (0, 64, 65, 255, 256))]
    if field.part or kind is bool or not is_first:
        return found
    if field.is_list:
        return [*found, *([text] for text in (*ADDRESSES, *TEXTS))]
    return [*found, *NUMBERS, *TEXTS, *(ADDRESSES if kind is str else ())]


def _ends(marks: Sequence[Any]) -> Iterator[Any]:
    for mark in marks:
        match mark:
            case Limit("ge", bound):
                yield from (bound - 1, bound)
            case Limit("le", bound):
                yield from (bound, bound + 1)
            case Limit("max_length", bound):
                yield from ("x" * bound, "x" * (bound + 1))


def _kind_of(way: Sequence[str]) -> tuple[str, bool]:
    """Fields of one kind are judged by one rule; those in entries of lists by another."""
    info = field_at(way).info
    in_entries = any(field_at(way[:depth]).is_list for depth in range(1, len(way)))
    return repr((info.annotation, info.metadata)), in_entries


@cache
def _first_of_its_kind() -> dict[tuple[str, bool], tuple[str, ...]]:
    return {_kind_of(way): way for way in reversed(list(iter_fields()))}


def variations(parameters: Any) -> Iterator[Any]:
    """The same with one thing taken away, or something odd in its place."""
    if isinstance(parameters, dict):
        for name, value in parameters.items():
            others = {key: other for key, other in parameters.items() if key != name}
            yield others
            yield from ({**others, name: odd} for odd in STRANGE)
            yield from ({**others, name: below} for below in variations(value))
    elif isinstance(parameters, list):
        for place, value in enumerate(parameters):
            before, after = parameters[:place], parameters[place + 1 :]
            yield from ([*before, other, *after] for other in (*STRANGE, *variations(value)))


def told_by_policy(drawn: Sequence[Json], *, of_class: bool = False) -> list[Told]:
    """As many at a time as a claim may have."""
    pages = [drawn[start : start + CONFIGS_MAX] for start in range(0, len(drawn), CONFIGS_MAX)]
    return [told for page in pages for told in _told_of_page(page, of_class)]


def _told_of_page(drawn: Sequence[Json], of_class: bool) -> list[Told]:
    if of_class:
        body = device_class([config(one) for one in drawn])
    else:
        body = claim([config(one, [f"r{number}"]) for number, one in enumerate(drawn)])
    found: list[Told] = [set() for _ in drawn]
    for text in complaints_by_rule(body).values():
        for line in re.split(r"; (?=spec\.)", text):
            place, path, cause = _read(line)
            found[place].add((path, cause))
    return found


def told_by_code(parameters: Json, *, of_class: bool = False) -> Told:
    configs = [config(parameters)]
    lines = code_lines([], configs) if of_class else code_lines(configs)
    return {(path, cause) for _, path, cause in map(_read, lines)}


_LINE = re.compile(
    r".*?config\[(\d+)\](?:\.opaque| \(from DeviceClass \w+\))?\.parameters\.?(.*?): (.*)", re.DOTALL
)


def _read(line: str) -> tuple[int, str, str]:
    matched = _LINE.fullmatch(line)
    assert matched, line
    number, path, text = matched.groups()
    cause = text.partition(", not ")[0].partition(";")[0].removesuffix(" (all configs merged)")
    return int(number), path, cause

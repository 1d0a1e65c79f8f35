"""The operator's own attributes: what the rules of a file add to each device.

A value that the API server would refuse takes the whole slice with it, so it is refused at once, and never
cut. Rules see a device as the kernel describes it, not what another rule added; of two that set the same name
the later one wins. One that fails adds a warning and no attribute: a claim then finds less, never more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct

from dranet.cel import CelError, DeviceExpression
from dranet.errors import Reason
from dranet.inventory.policy import GUARANTEED_OWN_ATTRIBUTES, RuleResult, qualified_name
from dranet.model.attributes import CATALOGUE, MAX_VALUE_BYTES, SETTABLE_NAMES, cut_text
from dranet.model.device import AttributeValue, Device

_INT64 = range(-(2**63), 2**63)
_TYPE_NAMES = {bool: "a bool", int: "an int", str: "a string"}
_KNOWN_KEYS = ("match", "set")
_CATALOGUE_NAMES = frozenset(attribute.qualified for attribute in CATALOGUE) - SETTABLE_NAMES

Path = tuple[str | int, ...]


class RuleProblem(Struct, frozen=True):
    path: Path
    """Keys and indexes from the top: ``("attributes", 2, "set", "rail")``."""
    text: str

    @property
    def place(self) -> str:
        """``attributes[2].set.rail``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".") or "the file"


class AttributeRule(Struct, frozen=True):
    """One entry of the list ``attributes``."""

    place: str
    """``attributes[2]``."""
    match: DeviceExpression | None
    """``None`` is every device."""
    values: Mapping[str, AttributeValue]
    """By qualified name."""


class OwnAttributes(Struct, frozen=True):
    rules: tuple[AttributeRule, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for rule in self.rules for name in rule.values)

    def attributes_for(self, device: Device) -> RuleResult:
        """Return the attributes for ``device``; the first ones of the file if there are more than have a
        place."""
        values: dict[str, AttributeValue] = {}
        warnings: list[str] = []
        for rule in self.rules:
            try:
                if rule.match is None or rule.match.matches(device.attributes):
                    values |= rule.values
            except CelError as error:
                warnings.append(f"device {device.name}: {rule.place} adds nothing to it: {error.message}")
        excess = [*islice(values, GUARANTEED_OWN_ATTRIBUTES, None)]
        if excess:
            warnings.append(
                f"device {device.name}: more than {GUARANTEED_OWN_ATTRIBUTES} attributes of your own, "
                f"left out are {', '.join(excess)}"
            )
        return RuleResult({name: values[name] for name in values if name not in excess}, tuple(warnings))


def parse_rules(data: object, driver: str) -> tuple[OwnAttributes, tuple[RuleProblem, ...]]:
    """The rules, and everything that is wrong; with a problem, the rules are not to be used. ``driver`` is
    what expressions know as ``device.driver``. Raises CelError (``MissingFeature``) where there is an
    expression and no engine."""
    problems: list[RuleProblem] = []
    entries = _parse_top(data, problems)
    rules = tuple(_parse_rule(entry, index, driver, problems) for index, entry in enumerate(entries))
    problems += [*_type_conflicts(rules), *_excess(rules)]
    return OwnAttributes(rules), tuple(problems)


def _parse_top(data: object, problems: list[RuleProblem]) -> list[object]:
    if not isinstance(data, Mapping) or "attributes" not in data:
        problems.append(
            RuleProblem((), "must be a mapping with the key attributes, which holds a list of rules")
        )
        return []
    problems += [
        RuleProblem((_step(key),), "unknown key; the only one here is attributes")
        for key in data
        if key != "attributes"
    ]
    entries = data["attributes"]
    if not isinstance(entries, list):
        problems.append(RuleProblem(("attributes",), "must be a list of rules; [] for none"))
        return []
    return entries


def _parse_rule(entry: object, index: int, driver: str, problems: list[RuleProblem]) -> AttributeRule:
    path: Path = ("attributes", index)
    place = RuleProblem(path, "").place
    if not isinstance(entry, Mapping):
        problems.append(RuleProblem(path, "must be a mapping with the keys match (optional) and set"))
        return AttributeRule(place, None, {})
    problems += [
        RuleProblem((*path, _step(key)), f"unknown key; known are {', '.join(_KNOWN_KEYS)}")
        for key in entry
        if key not in _KNOWN_KEYS
    ]
    match = _parse_match(entry["match"], path, driver, problems) if "match" in entry else None
    return AttributeRule(place, match, _parse_set(entry.get("set"), (*path, "set"), problems))


def _parse_match(
    value: object, path: Path, driver: str, problems: list[RuleProblem]
) -> DeviceExpression | None:
    if not isinstance(value, str) or not value.strip():
        problems.append(
            RuleProblem((*path, "match"), "must be a CEL expression; leave the key out for every device")
        )
        return None
    try:
        return DeviceExpression(value, driver)
    except CelError as error:
        if error.reason is Reason.MISSING_FEATURE:
            raise
        problems.append(RuleProblem((*path, "match"), error.message))
        return None


def _parse_set(value: object, path: Path, problems: list[RuleProblem]) -> dict[str, AttributeValue]:
    if not isinstance(value, Mapping) or not value:
        problems.append(RuleProblem(path, "must be a mapping of attribute names to values, at least one"))
        return {}
    values: dict[str, AttributeValue] = {}
    for key, content in value.items():
        try:
            name = _own_name(key, values)
            values[name] = _scalar(content)
        except ValueError as error:
            problems.append(RuleProblem((*path, _step(key)), str(error)))
    return values


def _step(key: object) -> str:
    """Python does not turn every integer into text; YAML can write any as a hexadecimal key."""
    return str(key) if not isinstance(key, int) or key in _INT64 else "huge number"


def _own_name(key: object, taken: Mapping[str, AttributeValue]) -> str:
    name = qualified_name(key)
    if name in _CATALOGUE_NAMES:
        raise ValueError(f"{name} is published by the driver itself; choose another name")
    if name in taken:
        raise ValueError(f"{name} is set twice in this rule")
    return name


def _scalar(value: object) -> AttributeValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value not in _INT64:
            raise ValueError(f"{value} does not fit in 64 bits")
        return value
    if isinstance(value, str):
        if cut_text(value) != value:
            raise ValueError(f"must be text of at most {MAX_VALUE_BYTES} bytes")
        return value
    raise ValueError("must be an integer, true, false or text; quote anything else")


def _type_conflicts(rules: tuple[AttributeRule, ...]) -> Iterator[RuleProblem]:
    """A selector or ``matchAttribute`` that meets two types of one attribute fails."""
    first: dict[str, tuple[type, str]] = {}
    for index, rule in enumerate(rules):
        for name, value in rule.values.items():
            kind, place = first.setdefault(name, (type(value), rule.place))
            if kind is not type(value):
                yield RuleProblem(
                    ("attributes", index, "set", name),
                    f"is {_TYPE_NAMES[type(value)]} here and {_TYPE_NAMES[kind]} in {place}; choose one",
                )


def _excess(rules: tuple[AttributeRule, ...]) -> Iterator[RuleProblem]:
    names = {name for rule in rules if rule.match is None for name in rule.values}
    if len(names) > GUARANTEED_OWN_ATTRIBUTES:
        yield RuleProblem(
            ("attributes",),
            f"the rules without match set {len(names)} attributes; a device has room for "
            f"{GUARANTEED_OWN_ATTRIBUTES} of your own",
        )

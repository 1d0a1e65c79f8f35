"""What DeviceClasses let a claim set: every policy holds, and one that cannot be judged lets nothing pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from dranet.model.parameters.decoder import DecodeFaultKind, Fault, Path, ValidationError
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Part, fields_of, walk_values
from dranet.model.parameters.policy import NetworkPolicy, PolicyRule

if TYPE_CHECKING:
    from dranet.cel import ValueExpression


class ClassPolicy(Struct, frozen=True):
    """The policy of one config of a DeviceClass, compiled."""

    owner: str
    """As messages call the class: ``DeviceClass fast``."""
    policy: NetworkPolicy
    conditions: tuple[tuple[PolicyRule, ValueExpression], ...] = ()


def compile_policy(owner: str, policy: NetworkPolicy) -> tuple[ClassPolicy, list[ConfigProblem]]:
    """The policy, and what is wrong with its expressions (also: there is no engine for them)."""
    from dranet.cel import CelError, ValueExpression  # loads CEL, which most classes do without

    conditions, problems = [], []
    for place, rule in enumerate(policy.rules):
        try:
            conditions.append((rule, ValueExpression.compile(rule.expression)))
        except CelError as error:
            problems.append(
                ConfigProblem(("policy", "rules", place, "expression"), f"cannot be used: {error}")
            )
    return ClassPolicy(owner, policy, tuple(conditions)), problems


def find_breaches(
    policies: Sequence[ClassPolicy],
    asked: Mapping[str, object],
    effective: NetworkConfig | None,
    namespace: str,
) -> Iterator[ConfigProblem]:
    """What the claim sets and must not.

    Args:
        policies: those of the DeviceClass of the device.
        asked: what the claim's own configs set, merged.
        effective: these over those of the class, decoded; it has the claim's values in canonical form.
            Without it (something else is wrong) no value is looked at.
        namespace: the claim's.
    """
    paths = [path for path, _ in walk_values(NetworkConfig, asked)]
    for policy in policies:
        yield from _find_closed_fields(policy, paths)
    if effective is not None and any(policy.conditions for policy in policies):
        canonical = effective.to_json(exclude_unset=True)
        values = _common(asked, canonical)
        for policy in policies:
            yield from _find_failures(policy, values, namespace)


def _find_closed_fields(policy: ClassPolicy, paths: Sequence[tuple[str, ...]]) -> Iterator[ConfigProblem]:
    allow, lock = policy.policy.allow, policy.policy.lock
    for path in paths:
        locked = next((outer for outer in lock if _covers(outer, path)), None)
        if locked is not None:
            yield ConfigProblem(path, f"must not be set by a claim: {policy.owner} locks {locked}")
        elif allow is not None and not any(_covers(outer, path) for outer in allow):
            allowed = ", ".join(allow) or "nothing"
            yield ConfigProblem(path, f"must not be set by a claim: {policy.owner} allows {allowed}")


def _covers(outer: str, path: tuple[str, ...]) -> bool:
    steps = tuple(outer.split("."))
    return path[: len(steps)] == steps


def _find_failures(
    policy: ClassPolicy, values: Mapping[str, object], namespace: str
) -> Iterator[ConfigProblem]:
    from dranet.cel import CelError

    for rule, expression in policy.conditions:
        path = tuple(rule.field.split("."))
        value = _value_at(values, path)
        if value is None:
            continue
        try:
            holds = expression.holds(value, namespace)
        except CelError as error:
            yield ConfigProblem(path, f"is refused: the rule of {policy.owner} cannot be judged: {error}")
            continue
        if not holds:
            demand = rule.message or f"it must satisfy {rule.expression}"
            yield ConfigProblem(path, f"is refused by {policy.owner}: {demand}")


def _value_at(values: Mapping[str, object], path: tuple[str, ...]) -> object:
    """``None`` where the claim sets nothing of it."""
    value: object = values
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value == {} else value


def _common(asked: Mapping[str, object], canonical: Mapping[str, object]) -> dict[str, object]:
    """The part of ``canonical`` that ``asked`` names."""
    return {
        name: _common(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        for name, value in canonical.items()
        if (below := asked.get(name)) is not None
    }


_P = TypeVar("_P", bound=Part)

_SHOWN_MAX = 80
_SHOWN_NUMBER_MAX = 10**_SHOWN_MAX


class ConfigProblem(Struct, frozen=True):
    """One mistake. ``text`` completes "<field path>: ..."."""

    path: Path
    text: str
    of_whole: bool = False
    """Another config may fix it: a field that another one contradicts, or a missing one."""


def decode(part: type[_P], document: Mapping[str, object]) -> tuple[_P | None, list[ConfigProblem]]:
    """The object, or everything that is wrong with the document."""
    try:
        return part.model_validate(document), []
    except ValidationError as error:
        return None, [_explain(part, fault) for fault in error.faults]


def _explain(part: type[Part], fault: Fault) -> ConfigProblem:
    match fault.kind:
        case DecodeFaultKind.VALUE:
            return ConfigProblem(fault.path, f"{fault.text}, not {_show(fault.value)}")
        case DecodeFaultKind.UNKNOWN_FIELD:
            return ConfigProblem(fault.path, f"{fault.text}{_suggest(part, fault.path)}")
        case DecodeFaultKind.MISSING | DecodeFaultKind.CONFLICT:
            return ConfigProblem(fault.path, fault.text, of_whole=True)


def _suggest(part: type[Part], path: Path) -> str:
    """The field that an unknown one was perhaps meant to be."""
    from difflib import get_close_matches  # only who mistyped a name pays for it

    *outer, unknown = path
    for step in outer:
        field = fields_of(part).get(step) if isinstance(step, str) else None
        part = field.part if field and field.part else part
    known = {name.lower(): name for name in fields_of(part)}
    similar = get_close_matches(str(unknown)[:_SHOWN_MAX].lower(), known, n=1)
    return f"; did you mean {known[similar[0]]}?" if similar else ""


def _show(value: object) -> str:
    """A value as in JSON, short whatever it is."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) > _SHOWN_NUMBER_MAX:
            return "a very long number"
        case str() if len(value) > _SHOWN_MAX:
            return repr(value[:_SHOWN_MAX]) + "..."
        case int() | float() | str():
            return repr(value)
        case Mapping():
            return "an object"
        case _:
            return "a list"

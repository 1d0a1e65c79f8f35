"""Selectors: do they compile, do they name existing attributes, and do they fail on a device without one?

The last is not derived from the expression but tried, on every kind of device with every attribute that it
may omit. Those devices have the values that the expression compares attributes with, so that what comes
after a comparison is also evaluated. For a selector that does not compile, common mistakes are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from dranet.cel import CelError, NotJudged
from dranet.cel.expression import significant_tokens
from dranet.desk.cel import DeviceSelector, DeviceValues
from dranet.desk.cel.uses import Use
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.rules import LintFinding, LintRule, suggest
from dranet.desk.lint.scope import Alternative, Sample, Scope, expressions, make_samples
from dranet.model.attributes import CATALOGUE
from dranet.model.cloud_attributes import CLOUD_CATALOGUE

_MEMBERS = ("device.driver", "device.attributes", "device.capacity", "device.allowMultipleAllocations")
_TABLES = ("attributes", "capacity")
_OPERATOR_WORDS = {"and": "&&", "or": "||", "not": "!", "like": ".startsWith(...) or .matches(...)"}
_QUALIFIED = re.compile(r"""["']([\w.-]+)/(\w+)["']""", re.ASCII)
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_AMOUNTS = "'(kubernetes.Quantity, "
_DOMAIN_OF = {attribute.name: attribute.domain for attribute in reversed(CATALOGUE)}


def find_fix(expression: str, complaint: str) -> str:
    """How the expression should have been written; empty if that is unknown."""
    tokens = significant_tokens(expression)
    if _AMOUNTS in complaint:
        return "quantities compare with .isGreaterThan(...), .isLessThan(...) and .compareTo(...)"
    return _fix_look_up(tokens) or _fix_undeclared(complaint) or _fix_operator(tokens)


def _fix_look_up(tokens: Sequence[str]) -> str:
    """``attributes["dra.net/rdma"]``, as in DraNet's filters, and ``device.attributes.rdma``."""
    for table, mark, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        qualified = _QUALIFIED.fullmatch(name)
        if table in _TABLES and mark == "[" and qualified:
            return f'device.{table}["{qualified[1]}"].{qualified[2]}'
        if table == "attributes" and mark == "." and name in _DOMAIN_OF:
            return f'device.attributes["{_DOMAIN_OF[name]}"].{name}'
    return ""


def _fix_undeclared(complaint: str) -> str:
    unknown = _UNDECLARED.search(complaint)
    if not unknown:
        return ""
    name = unknown[1]
    if f"device.{name}" in _MEMBERS:
        return f"device.{name}"
    return suggest(name, _MEMBERS) if name.startswith("device.") else ""


def _fix_operator(tokens: Sequence[str]) -> str:
    for before, word in pairwise(["", *tokens]):
        if word in _OPERATOR_WORDS and before != ".":
            return f"{word} is written {_OPERATOR_WORDS[word]}"
    for before, mark, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if mark == "=" and before not in ("=", "!", "<", ">") and after != "=":
            return "= is written =="
    return ""


_GUARD = "guard it with has(...) or .?name.orValue(...), or let a class that excludes such devices come first"
_NUMBER = ("a number", "a number, without quotes")
_WORDS: Mapping[type, tuple[str, str]] = {
    str: ("text", "text, in quotes"),
    int: _NUMBER,
    float: _NUMBER,
    bool: ("a bool", "true or false, without quotes; or the attribute alone"),
}
"""What a type is called, and how its values are written."""
_PUBLISHED = (*CATALOGUE, *CLOUD_CATALOGUE)
_NAMES = {attribute.qualified: attribute for attribute in _PUBLISHED}
_DOMAINS = frozenset(attribute.domain for attribute in _PUBLISHED)


class Placed(NamedTuple):
    """A selector that compiles, and its path."""

    path: str
    selector: DeviceSelector
    is_own: bool = True
    """It belongs to the linted object, not to a class that the object names."""


_compiled = lru_cache(maxsize=1024)(DeviceSelector.compile)
_uses = lru_cache(maxsize=1024)(DeviceSelector.find_uses)
_comparisons = lru_cache(maxsize=1024)(DeviceSelector.find_comparisons)
_unsized = lru_cache(maxsize=1024)(DeviceSelector.find_unsized)
_literals = lru_cache(maxsize=1024)(DeviceSelector.find_literals)
"""Each of them once: a class is asked about by every request that names it."""


def lint_class_selectors(body: JsonObject, scope: Scope) -> Iterator[LintFinding]:
    """Lint the selectors of a DeviceClass, which are evaluated for every device of a node."""
    yield from _without_consequences(_lint_class(body, scope))


def _lint_class(body: JsonObject, scope: Scope) -> Iterator[LintFinding]:
    placed = yield from _compile(body.get("spec") or {}, "spec", scope)
    yield from _find_failures(placed, scope, class_is_known=True)


def lint_request_selectors(alternative: Alternative, scope: Scope) -> Iterator[LintFinding]:
    """Lint the selectors of a request; they only see devices that those of its class accept."""
    yield from _without_consequences(_lint_request(alternative, scope))


def _without_consequences(findings: Iterable[LintFinding]) -> Iterator[LintFinding]:
    """One finding for a name that no device has: that it fails, and matches nothing, follows from it. Where a
    given device shows the failure, that is the worse finding, and the name is the fix."""
    found = list(findings)
    unknown = {one.path: one for one in found if one.rule is rules.ATTRIBUTE_UNKNOWN}
    shown = {one.path for one in found if one.rule is rules.SELECTOR_FAILS}
    for one in found:
        if one.rule is rules.SELECTOR_FAILS and one.path in unknown:
            name = unknown[one.path]
            yield LintFinding(one.rule, one.path, f"{one.text}; {name.text}", name.fix)
        elif (one.rule is rules.ATTRIBUTE_UNKNOWN and one.path in shown) or (
            one.rule is rules.SELECTOR_MAY_FAIL and one.path in unknown
        ):
            continue
        elif one.rule is not rules.NO_MATCH or not (unknown or shown):
            yield one


def _lint_request(alternative: Alternative, scope: Scope) -> Iterator[LintFinding]:
    own = yield from _compile(alternative.demand, alternative.path, scope)
    of_class, is_known = class_selectors(alternative.class_name, scope)
    placed = (*of_class, *own)
    if own:
        yield from _find_failures(placed, scope, is_known)
    if scope.devices and is_known and placed and not any(match_all(placed, one) for one in scope.devices):
        why = f"request {alternative.name}: none of the {len(scope.devices)} given devices matches"
        yield LintFinding(rules.NO_MATCH, alternative.path, why, "see which selector: dranet explain claim")


def class_selectors(name: str, scope: Scope) -> tuple[tuple[Placed, ...], bool]:
    """The selectors of a class that compile, and whether they are all that there is to know."""
    body = scope.classes.get(name)
    if body is None:
        return (), False
    found, all_compile = [], True
    for expression in expressions(body.get("spec") or {}):
        try:
            found.append(Placed("", _compiled(expression), is_own=False))
        except CelError:
            all_compile = False
    return tuple(found), all_compile


def request_selectors(alternative: Alternative) -> tuple[Placed, ...] | None:
    """A request's own selectors; ``None`` if one does not compile."""
    try:
        compiled = [_compiled(expression) for expression in expressions(alternative.demand)]
    except CelError:
        return None
    return tuple(Placed(alternative.path, selector) for selector in compiled)


def find_values(placed: Placed) -> Mapping[str, object]:
    """A value that satisfies the selector, for each attribute that it compares, by qualified name."""
    return _comparisons(placed.selector)


def find_used(placed: Placed) -> frozenset[str]:
    """Names, without their domains, of the attributes that the selector looks at."""
    return frozenset(use.name for use in _uses(placed.selector) if use.table == "attributes")


def match_all(placed: Sequence[Placed], sample: Sample) -> bool:
    """Whether the device passes; one that makes a selector fail does not."""
    values = sample.values
    try:
        return all(one.selector.accepts(values) for one in placed)
    except CelError:
        return False


def find_passing(placed: Sequence[Placed], driver: str) -> list[Sample]:
    """The made-up devices of ours, one of each kind, that pass."""
    wanted = _wanted_values([one.selector for one in placed])
    samples = (sample for sample in make_samples(driver) if sample.kind and not sample.omits)
    return [s for s in samples if match_all(placed, s) or match_all(placed, _adjusted(s, wanted))]


# --- what is written -----------------------------------------------------------------------------------


def _compile(owner: JsonObject, path: str, scope: Scope) -> Generator[LintFinding, None, list[Placed]]:
    """Yields what is wrong, returns what compiles."""
    placed: list[Placed] = []
    for number, expression in enumerate(expressions(owner)):
        where = f"{path}.selectors[{number}].cel.expression"
        try:
            selector = _compiled(expression)
            uses = _uses(selector)
        except CelError as error:
            rule = rules.SELECTOR_NOT_JUDGED if isinstance(error, NotJudged) else rules.SELECTOR
            yield LintFinding(rule, where, error.message, error.hint or find_fix(expression, error.message))
            continue
        placed.append(Placed(where, selector))
        yield from _find_unknown(uses, where, scope)
        yield from _find_other_types(selector, where)
        function = _unsized(selector)
        if function:
            text = f"{function} of what may be of any length: orValue(), value(), or an element of a list"
            yield LintFinding(
                rules.SELECTOR_COSTS, where, text, "has(...) && ..., or has(...) ? ... : a default"
            )
    return placed


def _find_unknown(uses: Sequence[Use], where: str, scope: Scope) -> Iterator[LintFinding]:
    """Find attributes in our domains that no device has. Names of capacities and other drivers are not
    checked."""
    published = {name for sample in scope.devices for name in sample.attributes}
    named = ((u.domain or scope.driver, u.name) for u in uses if u.table == "attributes")
    for domain, name in dict.fromkeys(named):
        qualified = f"{domain}/{name}"
        if qualified in published or qualified in _NAMES:
            continue
        if domain not in _DOMAINS and not (domain == scope.driver or _is_near(domain)):
            continue
        yield LintFinding(
            rules.ATTRIBUTE_UNKNOWN, where, f"no device has {qualified}", _fix_name(domain, name)
        )


def _find_other_types(selector: DeviceSelector, where: str) -> Iterator[LintFinding]:
    """Find attributes of ours compared with a literal of a type that they never have."""
    for use, literal, _ in _literals(selector):
        attribute = _NAMES.get(f"{use.domain}/{use.name}")
        if attribute is None or use.table != "attributes" or use.is_guarded:
            continue
        kind = attribute.python_type
        if type(literal) not in (kind, float if kind is int else kind):
            text = f"{attribute.qualified} is {_WORDS[kind][0]}, and compared with {_WORDS[type(literal)][0]}"
            yield LintFinding(rules.OTHER_TYPE, where, text, _WORDS[kind][1])


def _is_near(domain: str) -> bool:
    return bool(suggest(domain, _DOMAINS))


def _fix_name(domain: str, name: str) -> str:
    """The name in its own domain, in another one, or spelt nearly so."""
    for attribute in _PUBLISHED:
        if attribute.name == name and attribute.domain != domain:
            return f"did you mean {attribute.qualified}?"
    if domain not in _DOMAINS:
        return suggest(domain, _DOMAINS)
    known = [attribute.name for attribute in _PUBLISHED if attribute.domain == domain]
    return suggest(name, known, "see docs/reference/attributes.md, or the operator's attributes file")


# --- what is tried -------------------------------------------------------------------------------------


def _find_failures(placed: Sequence[Placed], scope: Scope, class_is_known: bool) -> Iterator[LintFinding]:
    """One finding for each selector: a real device that breaks it, else made-up ones."""
    reported: set[str] = set()
    rule = rules.SELECTOR_FAILS if class_is_known else rules.SELECTOR_MAY_FAIL
    unless = "" if class_is_known else ", unless the class turns it down"
    for sample in scope.devices:
        if not class_is_known and sample.driver != scope.driver:
            continue  # most classes are for one driver
        broken = _broken_by(placed, sample.values)
        if broken and broken[0].is_own and broken[0].path not in reported:
            reported.add(broken[0].path)
            yield _fails(*broken, sample, rule, unless)
    wanted = _wanted_values([one.selector for one in placed])
    causes: dict[str, dict[str, str]] = {}
    unjudged: dict[str, LintFinding] = {}
    for sample in make_samples(scope.driver):
        if sample.kind is None and not class_is_known:
            continue
        broken = _broken_by(placed, _adjusted(sample, wanted).values)
        if not broken or not broken[0].is_own or broken[0].path in reported:
            continue
        one, error = broken
        if isinstance(error, NotJudged):
            unjudged.setdefault(one.path, _fails(one, error, sample, rule, unless))
        else:
            causes.setdefault(one.path, {}).setdefault(error.cause, _name(sample))
    for path, found in causes.items():
        yield _may_fail(path, found, class_is_known)
    yield from (finding for path, finding in unjudged.items() if path not in causes)


def _fails(one: Placed, error: CelError, sample: Sample, rule: LintRule, unless: str) -> LintFinding:
    if isinstance(error, NotJudged):
        return LintFinding(
            rules.SELECTOR_NOT_JUDGED, one.path, f"on {_name(sample)}: {error.cause}", error.hint
        )
    text = f"fails on {_name(sample)}: {error.cause}{unless}"
    return LintFinding(rule, one.path, text, _fix(error.cause))


def _may_fail(path: str, causes: Mapping[str, str], class_is_known: bool) -> LintFinding:
    failures = [f"on {sample}: {cause}" for cause, sample in causes.items()]
    more = f" (and {len(failures) - 2} more)" if len(failures) > 2 else ""
    unless = "" if class_is_known else ", unless the class turns it down"
    text = f"fails {'; '.join(failures[:2])}{more}{unless}"
    return LintFinding(rules.SELECTOR_MAY_FAIL, path, text, _fix(next(iter(causes))))


def _fix(cause: str) -> str:
    return _GUARD if "has no attribute" in cause else ""


def _broken_by(placed: Sequence[Placed], values: DeviceValues) -> tuple[Placed, CelError] | None:
    for one in placed:
        try:
            if not one.selector.accepts(values):
                return None
        except CelError as error:
            return one, error
    return None


def _name(sample: Sample) -> str:
    node = f" of node {sample.node}" if sample.node else ""
    omits = f" without {sample.omits.rpartition('/')[2]}" if sample.omits else ""
    return f"{sample.label}{node}{omits}"


def _adjusted(sample: Sample, wanted: Mapping[str, Any]) -> Sample:
    """The sample with the values that the selectors ask for, except those that define its kind: an empty name
    of an interface is that of a GPU."""
    fixed = ("dra.net/type", "dra.net/rdma", "dra.net/virtual")
    values = {
        name: wanted[name] if wanted.get(name, "") != "" and name not in fixed and value != "" else value
        for name, value in sample.attributes.items()
    }
    return Sample(sample.label, sample.driver, values, sample.kind, sample.omits)


def _wanted_values(selectors: Sequence[DeviceSelector]) -> dict[str, Any]:
    """The value that each attribute is compared with, where it has the attribute's type."""
    wanted: dict[str, Any] = {}
    for selector in selectors:
        for qualified, value in _comparisons(selector).items():
            attribute = _NAMES.get(qualified)
            if attribute and type(value) is attribute.python_type:
                wanted.setdefault(qualified, value)
    return wanted

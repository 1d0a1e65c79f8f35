"""A claim's requests and constraints: names, numbers, alternatives that are reached, devices that meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dranet.desk.kubeapi.objects import MAX_RESULTS, JsonObject
from dranet.desk.lint import rules
from dranet.desk.lint.alignment import suggest_claim
from dranet.desk.lint.demands import DemandKind, find_matching, of_kind, read_demand
from dranet.desk.lint.rules import LintFinding, find_misspelt, show, suggest
from dranet.desk.lint.scope import (
    Alternative,
    Sample,
    Scope,
    claim_devices,
    covers,
    expressions,
    iter_alternatives,
)
from dranet.desk.templates.chart_classes import VENDOR_CLASSES, build_chart_classes
from dranet.model.attributes import CATALOGUE
from dranet.model.cloud_attributes import CLOUD_CATALOGUE

_KNOWN = frozenset(attribute.qualified for attribute in (*CATALOGUE, *CLOUD_CATALOGUE))


def lint_requests(spec: JsonObject, path: str, scope: Scope) -> Iterator[LintFinding]:
    """Everything but selectors and parameters."""
    alternatives = list(iter_alternatives(spec, path))
    for alternative in alternatives:
        yield from _find_class(alternative, scope)
    yield from _count(alternatives, path)
    yield from _find_unreachable(alternatives, spec)
    yield from _find_unknown_requests(spec, path, {a.name for a in alternatives})
    for number, constraint in enumerate(claim_devices(spec).get("constraints") or ()):
        yield from _lint_constraint(constraint, f"{path}.devices.constraints[{number}]", alternatives, scope)


def _find_class(alternative: Alternative, scope: Scope) -> Iterator[LintFinding]:
    name = alternative.class_name
    if not name or name in scope.classes:
        return
    where = f"{alternative.path}.deviceClassName"
    usual = {*VENDOR_CLASSES, *(body["metadata"]["name"] for body in build_chart_classes(scope.driver))}
    meant = "" if name in usual else find_misspelt(name, usual.union(scope.classes))
    if scope.is_live:
        fix = suggest(name, scope.classes, "kubectl get deviceclasses")
        yield LintFinding(rules.CLASS_MISSING, where, f"DeviceClass {show(name)} does not exist", fix)
    elif meant:
        text, fix = f"DeviceClass {show(name)} is not known", f"did you mean {meant}?"
        yield LintFinding(rules.CLASS_MISSPELT, where, text, fix)
    elif scope.classes.keys() - scope.assumed_classes:
        fix = suggest(name, scope.classes, "give its file, too, or ask the cluster with --live")
        yield LintFinding(
            rules.CLASS_NOT_PROVIDED, where, f"DeviceClass {show(name)} is not in the files", fix
        )


def _count(alternatives: Sequence[Alternative], path: str) -> Iterator[LintFinding]:
    """What is asked for at the least."""
    least: dict[str, int] = {}
    for one in alternatives:
        request = one.name.partition("/")[0]
        least[request] = min(least.get(request, one.number or 1), one.number or 1)
    if (total := sum(least.values())) > MAX_RESULTS:
        text = f"asks for {total} devices at the least; a claim can have {MAX_RESULTS}"
        yield LintFinding(rules.TOO_MANY, f"{path}.devices.requests", text, "split it into several claims")


def _find_unreachable(alternatives: Sequence[Alternative], spec: JsonObject) -> Iterator[LintFinding]:
    for number, later in enumerate(alternatives):
        request, slash, name = later.name.partition("/")
        if not slash:
            continue
        for earlier in alternatives[:number]:
            if not earlier.name.startswith(f"{request}/"):
                continue
            if _asks_no_more(earlier, later) and _is_bound_no_more(earlier, later, spec):
                text = (
                    f"alternative {name} is never chosen: {earlier.name} before it requires no more than this"
                )
                yield LintFinding(rules.ALTERNATIVE, later.path, text, "put it first, or leave it out")
                break


def _asks_no_more(earlier: Alternative, later: Alternative) -> bool:
    """Whatever satisfies the later one satisfies the earlier."""
    a, b = earlier.demand, later.demand
    same = ("deviceClassName", "allocationMode", "adminAccess", "capacity", "derivedAttributes")
    if any((a.get(key) or None) != (b.get(key) or None) for key in same):
        return False
    if earlier.number is None or later.number is None or earlier.number > later.number:
        return earlier.number is None and later.number is None and set(expressions(a)) == set(expressions(b))
    tolerated = all(toleration in (a.get("tolerations") or ()) for toleration in b.get("tolerations") or ())
    return set(expressions(a)) <= set(expressions(b)) and tolerated


def _is_bound_no_more(earlier: Alternative, later: Alternative, spec: JsonObject) -> bool:
    """Whether every constraint on the earlier one is also on the later: a ladder drops one with each step."""
    constraints = [constraint.get("requests") for constraint in claim_devices(spec).get("constraints") or ()]
    return all(covers(requests, later.name) for requests in constraints if covers(requests, earlier.name))


def _find_unknown_requests(spec: JsonObject, path: str, names: set[str]) -> Iterator[LintFinding]:
    requests = claim_devices(spec).get("requests") or ()
    known = names | {request["name"] for request in requests}
    for kind in ("constraints", "config"):
        for number, entry in enumerate(claim_devices(spec).get(kind) or ()):
            for place, name in enumerate(entry.get("requests") or ()):
                if name not in known:
                    where = f"{path}.devices.{kind}[{number}].requests[{place}]"
                    fix = suggest(name, known, f"requests are {', '.join(sorted(known)) or 'none'}")
                    yield LintFinding(rules.REQUEST_UNKNOWN, where, f"there is no request {show(name)}", fix)


def _lint_constraint(
    constraint: JsonObject, path: str, alternatives: Sequence[Alternative], scope: Scope
) -> Iterator[LintFinding]:
    key = "matchAttribute" if constraint.get("matchAttribute") else "distinctAttribute"
    attribute = constraint.get(key)
    covered = [one for one in alternatives if covers(constraint.get("requests"), one.name)]
    if not attribute or not covered:
        return
    if len({one.name.partition("/")[0] for one in covered}) == 1 and all(one.number == 1 for one in covered):
        text = f"{key} covers one device: request {covered[0].name}"
        yield LintFinding(rules.CONSTRAINT_ALONE, path, text, "name two requests, or leave it out")
    published = {name for sample in scope.devices for name in sample.attributes}
    if "/" not in attribute:
        fix = _suggest_attribute(attribute, published, f"DOMAIN/{attribute}")
        yield LintFinding(rules.REFUSED, f"{path}.{key}", f"{show(attribute)} has no domain", fix)
    elif attribute not in _KNOWN and attribute not in published:
        if fix := _suggest_attribute(
            attribute, published, "see docs/reference/attributes.md" if scope.devices else ""
        ):
            yield LintFinding(rules.CONSTRAINT_UNKNOWN, f"{path}.{key}", f"no device has {attribute}", fix)
    elif key == "matchAttribute" and scope.devices:
        yield from _find_never_shared(attribute, f"{path}.{key}", covered, scope)


def _suggest_attribute(attribute: str, published: Iterable[str], otherwise: str) -> str:
    """The attribute of this name in another domain, else one that is spelt like it."""
    known = [*(attribute.qualified for attribute in CATALOGUE), *sorted(_KNOWN.union(published))]
    name = attribute.rpartition("/")[2].lower()
    namesake = next((one for one in known if one.rpartition("/")[2].lower() == name), "")
    return f"did you mean {namesake}?" if namesake else suggest(attribute, known, otherwise)


def _find_never_shared(
    attribute: str, path: str, covered: Sequence[Alternative], scope: Scope
) -> Iterator[LintFinding]:
    """Only where each request has one way, whose devices are known by kind: a constraint may keep two
    alternatives apart on purpose."""
    requests = {one.name for one in covered}
    if len(requests) < 2 or any("/" in name for name in requests):
        return
    matching = [find_matching(one, scope) for one in covered]
    if not all(matching):
        return
    shared = set.intersection(*(_values_by_node(found, attribute) for found in matching))
    if not shared:
        names = ", ".join(one.name for one in covered)
        text = f"no node has devices for {names} with one value of {attribute}"
        yield LintFinding(rules.NEVER_SHARED, path, text, _suggest_other(covered, scope))


def _suggest_other(covered: Sequence[Alternative], scope: Scope) -> str:
    """A claim that can be met."""
    demands = [read_demand(one.name.partition("/")[0], [one], scope) for one in covered]
    gpus, nics = (of_kind(filter(None, demands), kind) for kind in (DemandKind.GPU, DemandKind.NIC))
    if gpus and nics:
        return suggest_claim(gpus, nics, scope, [demand.name for demand in (*gpus, *nics)])
    return "let a claim fall back: dranet claim new writes a ladder of alternatives"


def _values_by_node(samples: Sequence[Sample], attribute: str) -> set[tuple[str, Any]]:
    """Node and value of each device."""
    return {pair for sample in samples for pair in _pairs(sample, attribute)}


def _pairs(sample: Sample, attribute: str) -> Iterator[tuple[str, Any]]:
    value = sample.attributes.get(attribute)
    for item in value if isinstance(value, list) else [value]:
        if item is not None:
            yield sample.node, item

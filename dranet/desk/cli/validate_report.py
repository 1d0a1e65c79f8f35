"""Reports of ``dranet validate``: for each object the findings of the lint, and what an API server would
refuse."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.desk.cli.objects import ClusterObjects, Unread
from dranet.desk.kubeapi.known_kinds import find_misspelt_kind
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.shapes import find_fault
from dranet.desk.kubeapi.versions import can_convert, convert, has_other_version
from dranet.desk.lint import (
    Key,
    LintFinding,
    LintRule,
    LintSeverity,
    Scope,
    find_shared_claims,
    key_of,
    lint_object,
    lint_pod,
    rules,
)
from dranet.desk.lint.fields import find_unknown_fields
from dranet.desk.lint.scope import iter_alternatives
from dranet.terminal import PROSE, Screen, count_of, join_words
from dranet.view.node_view import to_json

_MAX_DEPTH = 12
"""How deep a pod template may be in an object; a JobSet has it at five."""

_COPIES = ("replicas", "parallelism", "completions", "size")
_EVERY_NODE = "DaemonSet"


@dataclass(frozen=True, slots=True)
class Report:
    """One object with what was found."""

    kind: str
    """Empty for what is no object."""
    key: Key
    source: str
    findings: tuple[LintFinding, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(filter(None, self.key))}" if self.kind else "not read"


def inspect(objects: ClusterObjects, scope: Scope) -> list[Report]:
    """Return a report for each object of a kind that is linted, in the order of kinds and files."""
    bodies = [*objects.classes, *objects.templates, *objects.claims, *objects.pods]
    faults = {id(body): "" if _is_unreadable(body) else find_fault(convert(body)) for body in bodies}
    pods = [(key_of(pod), pod.get("spec") or {}) for pod in objects.pods if not faults[id(pod)]]
    shared = list(find_shared_claims(pods))
    twice = Counter((body["kind"], key_of(body)) for body in bodies if (body["metadata"].get("name")))
    reports = []
    for body in bodies:
        key = key_of(body)
        found = list(_inspect(body, faults[id(body)], scope))
        if body["kind"] == "Pod":
            found += [finding for owner, finding in shared if owner == key]
        if twice[body["kind"], key] > 1:
            text = f"{twice[body['kind'], key]} objects have this name"
            found.append(LintFinding(rules.DUPLICATE, "metadata.name", text))
        reports.append(Report(body["kind"], _named(body), objects.source_of(body), _unique(found)))
    for body in objects.others:
        found = [*_find_misspelt_kind(body), *_inspect_templates(body, scope)]
        reports.append(Report(body["kind"], _named(body), objects.source_of(body), _unique(found)))
    return [*reports, *map(_report_unread, objects.unread)]


def _report_unread(unread: Unread) -> Report:
    """The message of the error has its place first."""
    place, _, text = unread.error.message.partition(": ")
    rule = rules.NO_OBJECT if unread.is_foreign else rules.UNREADABLE
    return Report("", Key("", ""), place, (LintFinding(rule, "", text, unread.error.hint),))


def _find_misspelt_kind(body: JsonObject) -> Iterator[LintFinding]:
    if (misspelt := find_misspelt_kind(body)) is not None:
        yield LintFinding(rules.UNKNOWN_KIND, misspelt.field, misspelt.text, misspelt.fix)


def find_assumed_classes(scope: Scope) -> tuple[str, ...]:
    """The classes that the claims name and no file gives: they are taken to be as their charts have them."""
    specs = [claim["spec"] for claim in scope.claims.values()]
    specs += [template["spec"]["spec"] for template in scope.templates.values()]
    named = {one.class_name for spec in specs for one in iter_alternatives(spec, "")}
    return tuple(sorted(named & scope.assumed_classes))


def _is_unreadable(body: JsonObject) -> bool:
    """Whether nothing is known of its fields: they are those of a version that cannot be converted."""
    return has_other_version(body) and not can_convert(body)


def _named(body: JsonObject) -> Key:
    """Its own name, without a namespace where it has none."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return Key("", "")
    name = metadata.get("name") or metadata.get("generateName") or ""
    return Key(str(metadata.get("namespace") or ""), str(name))


def _unique(findings: list[LintFinding]) -> tuple[LintFinding, ...]:
    """Each once, the worst first, without those that only follow from another."""
    every = list(dict.fromkeys(findings))
    kept = [one for one in every if not any(_follows(one, other) for other in every)]
    order = ("error", "warning", "note")
    return tuple(sorted(kept, key=lambda finding: order.index(finding.severity)))


def _follows(finding: LintFinding, other: LintFinding) -> bool:
    """Whether a finding repeats the other in the API's words, or goes with it."""
    match finding.rule:
        case rules.REFUSED:
            is_clearer = other.rule is not rules.REFUSED or bool(other.fix)
            is_error = other.severity is LintSeverity.ERROR
            return not finding.fix and is_clearer and is_error and other.path == finding.path
        case rules.SHAPE:
            meant = finding.path.rpartition(".")[2]
            return other.rule is rules.UNKNOWN_FIELD and other.fix == f"did you mean {meant}?"
        case rules.UNALIGNED | rules.CONSTRAINT_ALONE:
            return other.rule in _SPOILS_CONSTRAINT and ".constraint" in other.path
        case rules.CLAIM_SOURCE:
            return other.rule is rules.UNKNOWN_FIELD and other.path.startswith(f"{finding.path}.")
    return False


_SPOILS_CONSTRAINT = (
    rules.UNKNOWN_FIELD,
    rules.REFUSED,
    rules.REQUEST_UNKNOWN,
    rules.CONSTRAINT_UNKNOWN,
)


def _inspect(body: JsonObject, fault: str, scope: Scope) -> Iterator[LintFinding]:
    if fault:
        path, _, text = fault.partition(" ")
        yield from find_unknown_fields(convert(body))
        yield LintFinding(rules.SHAPE, path, text, _find_form(path))
        return
    if not is_unicode(body):
        yield LintFinding(rules.SHAPE, "spec", "has text with half a character (a lone surrogate)")
        return
    yield from lint_object(body, scope)
    if not _is_unreadable(body):
        yield from _ask_api(convert(body))


_FORMS = {
    "spec.spec": "a template has its claim's spec there: spec: {spec: {devices: ...}}",
    "resources.claims": "[{name: NAME}]",
    "selectors": "[{cel: {expression: ...}}]",
    "count": "a number without quotes",
}
"""By the end of a field's path: how it is written, where people often write it otherwise."""
_INDEX = re.compile(r"\[\d+\]")


def _find_form(path: str) -> str:
    plain = _INDEX.sub("", path)
    return next((form for end, form in _FORMS.items() if f".{plain}".endswith(f".{end}")), "")


def is_unicode(body: JsonObject) -> bool:
    """Whether all its text can be sent: JSON and YAML can escape what is no character."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _ask_api(body: JsonObject) -> Iterator[LintFinding]:
    """The limits of the API, as the testbed's server keeps them."""
    from dranet.desk.kubeapi.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
    from dranet.desk.kubeapi.validation import validate

    kinds = {kind.kind: kind for kind in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS)}
    kind = kinds.get(body["kind"])
    if kind is None:
        return
    metadata = {"namespace": "default", "name": body["metadata"].get("generateName"), **body["metadata"]}
    asked = {name: value for name, value in body.items() if name != "status"}
    for cause in validate(kind, {**asked, "metadata": metadata}, None):
        yield LintFinding(rules.REFUSED, cause.field, cause.message)


# --- pod templates ---------------------------------------------------------------------------------------


def _inspect_templates(body: JsonObject, scope: Scope) -> Iterator[LintFinding]:
    """Find the pod templates of any object that makes pods, known or not."""
    metadata = body.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    namespace = namespace if isinstance(namespace, str) and namespace else "default"
    if not is_unicode(body):
        return
    for path, spec, copies in find_pod_templates(body):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        fault = find_fault(pod)
        if fault:
            place, _, text = fault.partition(" ")
            yield LintFinding(rules.SHAPE, place.replace("spec", f"{path}.spec", 1), text)
        else:
            yield from lint_pod(spec, f"{path}.spec", namespace, scope, copies)


def find_pod_templates(body: JsonObject) -> Iterator[tuple[str, JsonObject, int]]:
    """Path, pod spec, and how many pods are made of it, as far as the numbers next to it show."""
    many = 2 if body.get("kind") == _EVERY_NODE else 1
    yield from _find_templates(body, "", many, _MAX_DEPTH)


def _find_templates(value: Any, path: str, copies: int, room: int) -> Iterator[tuple[str, JsonObject, int]]:
    if not room or not isinstance(value, dict | list):
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find_templates(item, f"{path}[{number}]", copies, room - 1)
        return
    numbers = [value[key] for key in _COPIES if isinstance(value.get(key), int)]
    inside = max([copies, *(copies * number for number in numbers)])
    for key, inner in value.items():
        where = f"{path}.{key}".lstrip(".")
        spec = inner.get("spec") if isinstance(inner, dict) else None
        is_template = key.lower().endswith("template") and isinstance(spec, dict) and "containers" in spec
        if is_template and isinstance(spec, dict):
            yield where, spec, inside
        else:
            yield from _find_templates(inner, where, inside, room - 1)


_INDENT = " " * 11
_STYLES = {LintSeverity.ERROR: Screen.red, LintSeverity.WARNING: Screen.yellow}
_WIDEST_SEVERITY = max(map(len, LintSeverity))


def draw_reports(
    reports: Sequence[Report], devices: int, screen: Screen, assumed: Sequence[str] = ()
) -> Iterator[str]:
    """A block for each object, each rule's reason once, and a summary."""
    explained: set[LintRule] = set()
    for report in reports:
        if report.findings:
            yield f"{screen.bold(str(report))}  {screen.dim(report.source)}"
            for finding in report.findings:
                yield from _draw_finding(finding, screen, explained)
            yield ""
    yield summarize(reports, devices)
    if assumed:
        names = join_words(assumed)
        text = f"note: DeviceClasses not given (--with FILE): {names} assumed as in the charts"
        yield from map(
            screen.dim, textwrap.wrap(text, min(screen.columns or PROSE, PROSE), subsequent_indent="      ")
        )


def _draw_finding(finding: LintFinding, screen: Screen, explained: set[LintRule]) -> Iterator[str]:
    style = _STYLES.get(finding.severity, Screen.dim)
    severity = style(screen, finding.severity.ljust(_WIDEST_SEVERITY))
    place = f"{finding.path}  " if finding.path else ""
    yield f"  {severity}  {place}{screen.dim(f'[{finding.rule.name}]')}"
    yield from _wrap(finding.text, screen)
    if finding.fix:
        yield from _wrap(f"fix: {finding.fix}", screen)
    if finding.rule not in explained:
        explained.add(finding.rule)
        yield from map(screen.dim, _wrap(f"why: {finding.rule.why}", screen))


def _wrap(text: str, screen: Screen) -> Iterable[str]:
    width = max(min(screen.columns or PROSE, PROSE), len(_INDENT) + 40)
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=_INDENT,
        subsequent_indent=f"{_INDENT}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def summarize(reports: Sequence[Report], devices: int) -> str:
    """``5 objects, selectors tried on 16 devices: 1 error, 2 warnings``."""
    counts = _count(reports)
    counted = [count_of(counts[severity], severity) for severity in LintSeverity if counts[severity]]
    tried = f", selectors tried on {count_of(devices, 'device')}" if devices else ""
    return f"{count_of(_count_objects(reports), 'object')}{tried}: {', '.join(counted) or 'nothing found'}"


def _count_objects(reports: Sequence[Report]) -> int:
    return sum(bool(report.kind) for report in reports)


def _count(reports: Iterable[Report]) -> Counter[LintSeverity]:
    return Counter(finding.severity for report in reports for finding in report.findings)


def to_document(reports: Sequence[Report], devices: int, assumed: Sequence[str] = ()) -> str:
    """JSON: every object with its findings, and how many of each severity there are."""
    counts = _count(reports)
    return to_json(
        {
            "summary": {f"{severity}s": counts[severity] for severity in LintSeverity}
            | {"objects": _count_objects(reports), "devices": devices, "assumedClasses": list(assumed)},
            "objects": [
                {
                    "kind": report.kind or None,
                    "namespace": report.key.namespace or None,
                    "name": report.key.name or None,
                    "source": report.source,
                    "findings": [
                        {
                            "severity": finding.severity,
                            "rule": finding.rule.name,
                            "path": finding.path,
                            "what": finding.text,
                            "why": finding.rule.why,
                            "fix": finding.fix or None,
                        }
                        for finding in report.findings
                    ],
                }
                for report in reports
            ],
        }
    )

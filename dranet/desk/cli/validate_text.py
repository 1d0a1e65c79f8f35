"""What was found, for people and for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dranet.desk.cli.validate_report import Report
from dranet.desk.lint import Finding, Rule, Severity
from dranet.terminal import PROSE, Screen
from dranet.view.documents import to_json

_INDENT = " " * 11
_WIDEST_SEVERITY = max(map(len, Severity))


def draw_reports(reports: Sequence[Report], devices: int, screen: Screen) -> Iterator[str]:
    """A block for each object, each rule's reason once, and a summary."""
    explained: set[Rule] = set()
    for report in reports:
        if report.findings:
            yield f"{screen.bold(str(report))}  {screen.dim(report.source)}"
            for finding in report.findings:
                yield from _draw_finding(finding, screen, explained)
            yield ""
    yield summarize(reports, devices)


def _draw_finding(finding: Finding, screen: Screen, explained: set[Rule]) -> Iterator[str]:
    severity = finding.severity.ljust(_WIDEST_SEVERITY)
    yield f"  {severity}  {finding.path}  {screen.dim(f'[{finding.rule.name}]')}"
    yield from _wrap(finding.text, screen)
    if finding.mend:
        yield from _wrap(f"mend: {finding.mend}", screen)
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
    told = [_number(counts[severity], severity) for severity in Severity if counts[severity]]
    tried = f", selectors tried on {_number(devices, 'device')}" if devices else ""
    return f"{_number(len(reports), 'object')}{tried}: {', '.join(told) or 'nothing found'}"


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _count(reports: Iterable[Report]) -> Counter[Severity]:
    return Counter(finding.severity for report in reports for finding in report.findings)


def to_document(reports: Sequence[Report], devices: int) -> str:
    """JSON: every object with its findings, and how many of each severity there are."""
    counts = _count(reports)
    return to_json(
        {
            "summary": {f"{severity}s": counts[severity] for severity in Severity}
            | {"objects": len(reports), "devices": devices},
            "objects": [
                {
                    "kind": report.kind,
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
                            "mend": finding.mend or None,
                        }
                        for finding in report.findings
                    ],
                }
                for report in reports
            ],
        }
    )

"""``dranet doctor``: what works, what does not, why it matters and how to mend it."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from dranet.cli.run import add_settings_flags, settings_from
from dranet.cli.screen import (
    CONTINUED,
    Screen,
    find_screen,
    format_table,
    never_fail_to_print,
    print_document,
)
from dranet.driver.doctor.examine import examine
from dranet.driver.doctor.findings import WORST_FIRST, Finding, Severity, find_worst

_SETTINGS = (
    "driver_name",
    "node_name",
    "pod_uid",
    "kubeconfig",
    "kubelet_root",
    "state_dir",
    "cdi_dir",
    "nri_socket",
    "hook_budget_seconds",
    "bind_address",
    "sysfs_root",
    "health_taints",
    "shared_devices",
    "list_attributes",
)

_DESCRIPTION = """\
Look at everything that the driver needs: what the API server keeps of its
slices and lets it do, what the kubelet and the runtime have shown that they can
do, folders and sockets. Asks a running driver through its probe port; where
none answers it asks the API server itself, by dry runs. Changes nothing.
"""

_EPILOG = """\
Run it where the driver runs, with the driver's own settings:
kubectl exec -n dranet-system POD -- dranet doctor
It has the driver's environment there, but not its flags: repeat those.

Exit code: 0 when pods can get their NICs, 1 when there is a problem, 2 when
arguments or settings are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "doctor",
        help="what works, what does not, and how to mend it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="for people or for programs"
    )
    parser.add_argument("--config", metavar="FILE", help="settings file, YAML or JSON")
    add_settings_flags(parser.add_argument_group("settings", "as for dranet run"), _SETTINGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look, print, and say by the exit code whether there is a problem."""
    findings = sort_for_people(examine(settings_from(options)))
    if options.output == "json":
        print_document(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        never_fail_to_print()
        print("\n".join(render(findings, find_screen())))
    return 1 if find_worst(findings) is Severity.PROBLEM else 0


def sort_for_people(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first, and what is about the same part together; parts in the order in which they were asked."""
    parts = list(dict.fromkeys(finding.part for finding in findings))
    return sorted(
        findings,
        key=lambda finding: (WORST_FIRST.index(finding.severity), parts.index(finding.part)),
    )


def render(findings: Sequence[Finding], screen: Screen) -> Iterator[str]:
    """A table, worst first; below what asks for something, why it matters and what to do. Then the sum."""
    rows = [(finding.severity.value, finding.part, finding.seen) for finding in findings]
    header, *lines = format_table(("STATE", "ABOUT", "SEEN"), rows, screen.columns)
    yield from header
    for finding, row in zip(findings, lines, strict=True):
        calm = finding.severity in (Severity.OK, Severity.NOTE)
        yield from row if calm else map(screen.bold, row)
        yield from _explain("why", finding.matters, screen)
        yield from _explain("do", finding.mend, screen)
    yield ""
    yield _sum_up(findings)


def _explain(label: str, text: str, screen: Screen) -> Iterator[str]:
    if text:
        start = f"{CONTINUED}{label + ':':<5}"
        width = max(screen.columns or 110, len(start) + 20)
        yield from textwrap.wrap(
            text, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
        )


def _sum_up(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    told = [
        f"{counts[severity]} {severity}{'' if counts[severity] == 1 else 's'}"
        for severity in WORST_FIRST
        if severity is not Severity.OK and counts[severity]
    ]
    return f"{counts[Severity.OK]} ok" + (f", {', '.join(told)}" if told else "")

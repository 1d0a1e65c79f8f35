"""``dranet doctor``: what works, what does not, why it matters and how to fix it."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from dranet import __version__
from dranet.cli.linux import require_linux
from dranet.desk.doctor.catalogue import list_entries
from dranet.errors import SettingsError
from dranet.model.findings import WORST_FIRST, Finding, Severity, find_worst, parse_finding
from dranet.settings import Settings
from dranet.terminal import (
    CONTINUED,
    Screen,
    count_of,
    find_screen,
    format_table,
    never_fail_to_print,
    print_document,
)
from dranet.view.bundle import describe_manifest, is_bundle, read_bundle
from dranet.view.node_view import serialize
from dranet.view.options import add_node_config_flag, add_settings_group, settings_from
from dranet.view.output import check_output

if TYPE_CHECKING:
    from dranet.cli.doctor.examine import Examination

FORMAT = "dranet.doctor/1"
STANDARD_OUTPUT = "-"
_BUNDLE = "--bundle"

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
    "metrics_tls_cert",
    "metrics_tls_key",
    "metrics_authentication",
    "metrics_client_ca",
    "sysfs_root",
    "procfs_root",
    "facts_file",
    "node_addresses",
    "filter",
    "attributes_file",
    "offer_link_kinds",
    "move_ib_interfaces",
    "lldp",
    "lldpd_file",
    "rail_pattern",
    "expected_rails",
    "health_taints",
    "shared_devices",
    "list_attributes",
)

_NEVER = "never"
_FAIL_ON = (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)

_DESCRIPTION = """\
Check everything that the driver needs and that decides how fast its devices
are: kernel, runtime, kubelet and API server; other managers of NICs; RDMA,
GPUDirect and PCIe; how the node is tuned. Changes nothing. A healthy node gets
a short answer.

  kubectl exec -n dranet-system POD -- dranet doctor
  kubectl exec -n dranet-system POD -- dranet doctor --bundle - > bundle.tgz
  dranet doctor -f bundle.tgz
"""

_EPILOG = """\
In the driver's pod it takes the driver's environment and settings file, but not
its flags: repeat them. On a node as root it sees more; it lists what it cannot
see. It asks a running driver through its port; if none answers, it asks the API
server itself, by dry runs.

Exit code: 0 when nothing is as bad as --fail-on, 1 when something is,
2 when arguments or settings are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--all] [-o FORM] [--bundle OUT | -f BUNDLE] [settings]",
    )
    _add_what_is_shown(parser)
    _add_bundle(parser.add_argument_group("support bundle"))
    add_node_config_flag(parser)
    parser.add_argument(
        "--capture",
        dest="facts_file",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="look at the devices of a capture; everything else is that of this machine",
    )
    parser.add_argument(
        "--host-root",
        metavar="DIR",
        help="where the node's own file system is, as in kubectl debug node (/host)",
    )
    add_settings_group(parser, _SETTINGS)
    parser.set_defaults(run=run)


def _add_what_is_shown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        metavar="FORM",
        default="text",
        help="text (default), json or yaml",
    )
    parser.add_argument("--all", action="store_true", help="also list what is fine, and explain notes")
    parser.add_argument(
        "--fail-on",
        choices=(*map(str, _FAIL_ON), _NEVER),
        default=str(Severity.PROBLEM),
        help="the least state that makes the exit code 1 (default: problem)",
    )
    parser.add_argument(
        "--ignore",
        metavar="ID",
        action="append",
        default=[],
        help="leave a finding out, by its id; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="list the ids of all checks, and do nothing else")


def _add_bundle(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        _BUNDLE,
        metavar="OUT",
        help="write all that a bug report needs to OUT (.tar.gz; - is standard output), without names, "
        "addresses and secrets",
    )
    group.add_argument("--no-redact", action="store_true", help="leave names and addresses as they are")
    group.add_argument("--force", action="store_true", help="replace OUT where it exists")
    group.add_argument(
        "-f",
        "--file",
        "--read",
        dest="read",
        metavar="BUNDLE",
        help="show the findings in a bundle instead of looking at this node, on any system; - reads standard "
        "input",
    )


def run(options: argparse.Namespace) -> int:
    if options.list:
        return _list_ids()
    ignored = _parse_ignored(options.ignore)
    if options.read:
        return _show_bundle(options, ignored)
    _refuse_bundle(getattr(options, "facts_file", ""))
    require_linux("dranet doctor", "with -f BUNDLE it shows what one found elsewhere")
    from dranet.cli.doctor.examine import examine, look_below

    settings = settings_from(options)
    if options.bundle:
        _check_bundle(options.bundle, force=options.force)
    root = Path(options.host_root) if options.host_root else None
    found = examine(settings, root, _print_progress if options.bundle else lambda _: None)
    findings = _leave_out(found.findings, ignored)
    document = build_document(findings, settings, ignored)
    left_out = len(found.findings) - len(findings)
    if options.bundle != STANDARD_OUTPUT:  # the archive goes there, and the findings are in it
        _print(findings, document, options, left_out)
    if options.bundle:
        _write_bundle(options, look_below(settings, root), found)
    return _exit_code(findings, options.fail_on)


def _refuse_bundle(capture: str) -> None:
    """Raises SettingsError: all but its devices would be judged by this machine."""
    path = Path(capture)
    if not path.is_file() or not os.access(path, os.R_OK):
        return  # the error comes when it is read as a capture; a pipe can be read only once
    with path.open("rb") as stream:
        start = stream.read(2)
    if is_bundle(start):
        hint = f"dranet doctor -f {capture} shows what the doctor found where it was made"
        raise SettingsError(f"--capture {capture}: is a support bundle", hint=hint)


def _leave_out(findings: Sequence[Finding], ignored: Collection[str]) -> list[Finding]:
    return [f for f in sort_for_people(findings) if f.id not in ignored or f.severity is Severity.OK]


def _print(
    findings: Sequence[Finding], document: Mapping[str, object], options: argparse.Namespace, ignored: int
) -> None:
    if options.output != "text":
        print_document(serialize(document, options.output))
    else:
        never_fail_to_print()
        print("\n".join(render(findings, find_screen(), shows_all=options.all, ignored=ignored)))


def _exit_code(findings: Sequence[Finding], fail_on: str) -> int:
    worst = WORST_FIRST.index(find_worst(findings))
    return int(fail_on != _NEVER and worst <= WORST_FIRST.index(Severity(fail_on)))


def _show_bundle(options: argparse.Namespace, ignored: Collection[str]) -> int:
    """Print what the doctor found where the bundle was made."""
    manifest, document = read_bundle(options.read)
    try:
        everything = list(map(parse_finding, document["findings"]))
        findings = _leave_out(everything, ignored)
        about = describe_manifest(manifest, options.read)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # a stranger may have made it
        raise SettingsError(
            f"-f {options.read}: the bundle has other fields than this dranet reads"
        ) from error
    shown = {**document, "findings": [finding.to_json() for finding in findings]}
    _print(findings, shown, options, len(everything) - len(findings))
    if options.output == "text":
        print(about)
    return _exit_code(findings, options.fail_on)


def _check_bundle(target: str, *, force: bool) -> None:
    """Raises SettingsError where the bundle cannot go, before anything is collected."""
    if target != STANDARD_OUTPUT:
        check_output(target, _BUNDLE, force=force)
    elif sys.stdout.isatty():
        hint = "name a file, or add > bundle.tgz"
        raise SettingsError("--bundle -: a terminal cannot show an archive", hint=hint)


def _print_progress(what: str) -> None:
    print(f"looking at {what} ...", file=sys.stderr)


def _write_bundle(options: argparse.Namespace, settings: Settings, found: Examination) -> None:
    """With all findings, whatever was left out on the screen."""
    from dranet.cli.doctor.bundle import write_bundle

    findings = sort_for_people(found.findings)
    text = "\n".join(render(findings, Screen(columns=110), shows_all=True))
    document = build_document(findings, settings, frozenset())
    path = None if options.bundle == STANDARD_OUTPUT else Path(options.bundle)
    redacts = not options.no_redact
    lines = write_bundle(path, settings, found, (text, document), redacts=redacts, progress=_print_progress)
    print("\n".join(lines), file=sys.stderr)


def _list_ids() -> int:
    rows = [(entry.id, entry.part, entry.what) for entry in list_entries()]
    never_fail_to_print()
    lines = format_table(("ID", "ABOUT", "LOOKS AT"), rows, find_screen().columns)
    print("\n".join(line for row in lines for line in row))
    return 0


def _parse_ignored(flags: Sequence[str]) -> frozenset[str]:
    """Raises SettingsError for what is no finding's id."""
    names = [name for text in flags for name in text.split(",") if name]
    known = [entry.id for entry in list_entries()]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "dranet doctor --list has them all"
            raise SettingsError(f"--ignore {name}: no check has this id", hint=hint)
    return frozenset(names)


def build_document(
    findings: Sequence[Finding], settings: Settings, ignored: Collection[str]
) -> dict[str, object]:
    """What programs read; its shape is in docs/reference/doctor.schema.json."""
    counts = Counter(finding.severity for finding in findings)
    return {
        "format": FORMAT,
        "version": __version__,
        "driver": settings.driver_name,
        "node": settings.node_name,
        "worst": str(find_worst(findings)),
        "counts": {str(severity): counts[severity] for severity in WORST_FIRST},
        "ignored": sorted(ignored),
        "findings": [finding.to_json() for finding in findings],
    }


def sort_for_people(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first, and what is about the same part together; parts in the order in which they were asked."""
    parts = list(dict.fromkeys(finding.part for finding in findings))
    return sorted(findings, key=lambda one: (WORST_FIRST.index(one.severity), parts.index(one.part)))


def render(
    findings: Sequence[Finding], screen: Screen, *, shows_all: bool = False, ignored: int = 0
) -> Iterator[str]:
    """A table, worst first; below what asks for something, why it matters and what to do. Then the sum."""
    shown = [finding for finding in findings if shows_all or finding.severity is not Severity.OK]
    rows = [(finding.severity.value, finding.part, _describe(finding)) for finding in shown]
    header, *lines = format_table(("STATE", "ABOUT", "SEEN"), rows, screen.columns)
    yield from header if shown else ()
    for finding, row in zip(shown, lines, strict=True):
        calm = finding.severity in (Severity.OK, Severity.NOTE)
        style = screen.red if finding.severity is Severity.PROBLEM else screen.yellow
        yield from row if calm else map(style, row)
        if shows_all or not calm:
            yield from _explain("why", finding.matters, screen)
            yield from _explain("fix", finding.fix, screen)
    if shown:
        yield ""
    yield _sum_up(findings, ignored, shows_all=shows_all)


def _describe(finding: Finding) -> str:
    has_id = finding.id and finding.severity is not Severity.OK
    return f"{finding.seen} [{finding.id}]" if has_id else finding.seen


def _explain(label: str, text: str, screen: Screen) -> list[str]:
    start = f"{CONTINUED}{label + ':':<5}"
    width = max(screen.columns or 110, len(start) + 20)
    indent = " " * len(start)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _sum_up(findings: Sequence[Finding], ignored: int, *, shows_all: bool) -> str:
    counts = Counter(finding.severity for finding in findings)
    bad = [severity for severity in WORST_FIRST if severity is not Severity.OK and counts[severity]]
    total = ", ".join([f"{counts[Severity.OK]} ok", *(count_of(counts[one], one) for one in bad)])
    total += f", {ignored} ignored" if ignored else ""
    if shows_all:
        return total
    rest = "explains the notes and lists what is ok" if counts[Severity.NOTE] else "lists them"
    return f"{total} (--all {rest})"

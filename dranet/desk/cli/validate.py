"""``dranet validate``: what is wrong with claims, templates, classes and pods, before they are applied."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    capture_slices,
    fetch_live,
    load_files,
    names_cluster,
)
from dranet.desk.cli.validate_report import Report, draw_reports, inspect, is_unicode, to_document
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import RULES, Key, LintSeverity, Scope, key_of, read_devices
from dranet.desk.lint.compute_domains import build_channel_templates
from dranet.errors import SettingsError
from dranet.terminal import find_screen, never_fail_to_print, print_document
from dranet.view.options import read_settings

EXIT_FOUND = 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "validate",
        help="find mistakes in claims, templates, classes and pods before they are applied",
        description="Look for mistakes in ResourceClaims, ResourceClaimTemplates, DeviceClasses and Pods, "
        "and in whatever has a pod template (Deployment, Job, JobSet, LeaderWorkerSet ...). Changes nothing.",
        epilog="Exit code: 0 without errors, 1 with an error (with --strict also with a warning) "
        "or the cluster does not answer, 2 when arguments or files are wrong.",
        usage="%(prog)s [FILE ...] [-f FILE] [--facts CAPTURE] [--live]\n"
        "                       [--strict] [-o text|json] [--kubeconfig FILE] [settings]",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="YAML or JSON; - is standard input; a folder"
    )
    parser.add_argument(
        "-f",
        "--with",
        dest="also",
        action="append",
        default=[],
        metavar="FILE",
        help="objects to know of (classes, slices, claims), not to look for mistakes in; may be repeated",
    )
    parser.add_argument(
        "--facts",
        action="append",
        default=[],
        metavar="CAPTURE",
        help="also try selectors on the devices of a capture (dranet capture); may be repeated",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="know what the cluster has; without FILE, look for mistakes in it",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 also for warnings")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="for people or for programs"
    )
    add_cluster_flags(parser.add_argument_group("cluster", "which --live asks; to name one is enough"))
    add_facts_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the objects, lint them, and print the reports."""
    never_fail_to_print()
    is_live = options.live or names_cluster(options)
    if not options.files and not is_live:
        only_known = "what -f names is only known of: name it without -f" if options.also else ""
        hint = only_known or "or --live for what is in the cluster"
        raise SettingsError("nothing to look at: name a file", hint=hint)
    settings = read_settings(options)
    loaded = load_files(options.files, check=False, others=True) if options.files else None
    known = [load_files(options.also)] if options.also else []
    known += [capture_slices(options.facts, settings)] if options.facts else []
    known += [fetch_live(options)] if is_live else []
    judged = loaded if loaded is not None else known[-1]
    scope = build_scope([judged, *known], settings.driver_name, is_live=is_live)
    reports = inspect(judged, scope)
    if options.output == "json":
        print_document(to_document(reports, len(scope.devices)))
    else:
        print("\n".join(draw_reports(reports, len(scope.devices), find_screen())))
    return _exit_code(reports, options.strict)


def build_scope(known: Iterable[ClusterObjects], driver: str, *, is_live: bool = False) -> Scope:
    """Merge what all of them contain; the first of two objects with one name counts."""
    from dranet.desk.kubeapi.shapes import find_fault

    whole = ClusterObjects()
    for objects in known:
        whole = whole | objects
    whole.templates.extend(build_channel_templates(whole.others))
    sound = {id(body): is_unicode(body) and not find_fault(body) for body in whole}

    def by_key(bodies: list[JsonObject]) -> dict[Key, JsonObject]:
        kept: dict[Key, JsonObject] = {}
        for body in bodies:
            if sound[id(body)]:
                kept.setdefault(key_of(body), body)
        return kept

    slices = tuple(by_key(whole.slices).values())
    return Scope(
        driver=driver,
        classes={key.name: body for key, body in by_key(whole.classes).items()},
        claims=by_key(whole.claims),
        templates=by_key(whole.templates),
        devices=read_devices(slices),
        slices=slices,
        is_live=is_live,
    )


def _exit_code(reports: Iterable[Report], strict: bool) -> int:
    found = Counter(finding.severity for report in reports for finding in report.findings)
    return EXIT_FOUND if found[LintSeverity.ERROR] or (strict and found[LintSeverity.WARNING]) else 0


def describe_rules() -> str:
    """The table of ``docs/reference/validate-rules.md``."""
    rows = [f"| `{rule.name}` | {rule.severity} | {rule.finds} | {rule.why} |" for rule in RULES]
    return "\n".join(("| rule | | finds | what comes of it |", "|---|---|---|---|", *rows))

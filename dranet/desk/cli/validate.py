"""``dranet validate``: what is wrong with claims, templates, classes and pods, before they are applied."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from dranet.desk.cli.convert import convert_files, join
from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    capture_slices,
    fetch_everywhere,
    fetch_live,
    find_namespace,
    load_files,
    names_cluster,
)
from dranet.desk.cli.validate_report import (
    Report,
    draw_reports,
    find_assumed_classes,
    inspect,
    is_unicode,
    to_document,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.versions import CURRENT, convert, has_other_version
from dranet.desk.lint import RULES, Key, LintSeverity, Scope, key_of, read_devices
from dranet.desk.lint.compute_domains import build_channel_templates
from dranet.desk.templates.chart_classes import assume_missing_classes
from dranet.errors import SettingsError
from dranet.terminal import find_screen, never_fail_to_print, print_document
from dranet.view.options import add_capture_flag, read_settings

EXIT_FOUND = 1

_DESCRIPTION = """\
Find mistakes in ResourceClaims, ResourceClaimTemplates, DeviceClasses and Pods,
and in whatever has a pod template (Deployment, Job, JobSet, LeaderWorkerSet
...), before you apply them. Changes nothing.

  dranet validate -f claim.yaml --capture node.json
  dranet validate --strict manifests/
  dranet validate --live
"""

_EPILOG = """\
Exit code: 0 without errors, 1 with an error (with --strict also with a warning)
or when the cluster does not answer, 2 when arguments or files are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "validate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-f] FILE ... [--with FILE] [--capture CAPTURE] [--live]\n"
        "         [--strict] [-n NAMESPACE] [--convert] [-o text|json]\n"
        "         [--kubeconfig FILE] [settings]",
    )
    _add_inputs(parser)
    add_capture_flag(parser, takes_several=False)
    parser.add_argument(
        "--live",
        action="store_true",
        help="also know the objects of the cluster; without FILE, look for mistakes in them",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        help="of objects in files that name none; without FILE, look for mistakes in this one alone "
        "(default: with --live that of the kubeconfig's context)",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="write the objects in resource.k8s.io/v1 on standard output, and all others as they are",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 also for warnings")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        metavar="FORM",
        default="text",
        help="text (default) or json",
    )
    add_cluster_flags(parser.add_argument_group("cluster", "which --live asks; to name one is enough"))
    add_facts_settings(parser)
    parser.set_defaults(run=run)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """What is linted, and what it refers to."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="YAML or JSON; - is standard input; a folder"
    )
    parser.add_argument(
        "-f",
        "--file",
        dest="more_files",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="the same, as kubectl names files",
    )
    parser.add_argument(
        "--with",
        dest="also",
        action="append",
        default=[],
        metavar="FILE",
        help="objects that FILE refers to (classes, slices, claims), in which it looks for no mistakes; may "
        "be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Read the objects, lint them, and print the reports."""
    never_fail_to_print()
    options.files += options.more_files
    if options.convert:
        return _convert(options)
    is_live = options.live or names_cluster(options)
    if not options.files and not is_live:
        hint = "-f FILE; or --live for what is in the cluster"
        raise SettingsError("nothing to look at: name a file", hint=hint)
    settings = read_settings(options)
    namespace = options.namespace or (find_namespace(options) if is_live else "")
    loaded = load_judged(options.files, namespace) if options.files else None
    known = [load_files(options.also, namespace=namespace)] if options.also else []
    known += [capture_slices(options.facts, settings)] if options.facts else []
    fetch = fetch_everywhere if options.files else fetch_live  # a file may name the wrong namespace
    known += [fetch(options)] if is_live else []
    judged = loaded if loaded is not None else known[-1].of_namespace(options.namespace)
    scope = build_scope([judged, *known], settings.driver_name, is_live=is_live)
    reports, assumed = inspect(judged, scope), find_assumed_classes(scope)
    if options.output == "json":
        print_document(to_document(reports, len(scope.devices), assumed))
    else:
        print("\n".join(draw_reports(reports, len(scope.devices), find_screen(), assumed)))
    return _exit_code(reports, options.strict)


def load_judged(paths: Iterable[str], namespace: str = "") -> ClusterObjects:
    """All objects of these files, whatever is wrong with them, and what in them is no object. Raises
    SettingsError, as ``load_files``."""
    return load_files(paths, check=False, others=True, passes_over=True, namespace=namespace)


def _convert(options: argparse.Namespace) -> int:
    if not options.files:
        raise SettingsError("nothing to convert: name a file", hint="- is standard input")
    if options.output != "text":
        raise SettingsError(
            f"--convert does not go with -o {options.output}: documents keep their text", hint="leave -o out"
        )
    documents = list(convert_files(options.files))
    print_document(join(documents))
    changed = [name for one in documents for name in one.changed]
    refused = [name for one in documents for name in one.refused]
    for name in changed or (() if refused else ("nothing: every object is as in v1",)):
        print(f"converted {name}", file=sys.stderr)
    for name in refused:
        print(f"cannot convert {name}: write it as {CURRENT}", file=sys.stderr)
    return EXIT_FOUND if refused else 0


def build_scope(known: Iterable[ClusterObjects], driver: str, *, is_live: bool = False) -> Scope:
    """Merge what all of them contain; the first of two objects with one name counts."""
    from dranet.desk.kubeapi.shapes import find_fault

    whole = ClusterObjects()
    for objects in known:
        whole = whole | objects
    whole.templates.extend(build_channel_templates(whole.others))

    def by_key(bodies: list[JsonObject]) -> dict[Key, JsonObject]:
        kept: dict[Key, JsonObject] = {}
        for body in map(convert, bodies):
            if is_unicode(body) and not has_other_version(body) and not find_fault(body):
                kept.setdefault(key_of(body), body)
        return kept

    slices = tuple(by_key(whole.slices).values())
    classes = {key.name: body for key, body in by_key(whole.classes).items()}
    assumed = () if is_live else assume_missing_classes(classes.values(), slices, driver)
    classes |= {body["metadata"]["name"]: body for body in assumed}
    return Scope(
        driver=driver,
        classes=classes,
        claims=by_key(whole.claims),
        templates=by_key(whole.templates),
        devices=read_devices(slices),
        slices=slices,
        is_live=is_live,
        assumed_classes=frozenset(body["metadata"]["name"] for body in assumed),
    )


def _exit_code(reports: Iterable[Report], strict: bool) -> int:
    found = Counter(finding.severity for report in reports for finding in report.findings)
    return EXIT_FOUND if found[LintSeverity.ERROR] or (strict and found[LintSeverity.WARNING]) else 0


def describe_rules() -> str:
    """The table of ``docs/reference/validate-rules.md``."""
    rows = [f"| `{rule.name}` | {rule.severity} | {rule.finds} | {rule.why} |" for rule in RULES]
    return "\n".join(("| rule | | finds | what comes of it |", "|---|---|---|---|", *rows))

"""``dranet explain``: why a claim or a pod gets its devices or not, as the scheduler sees it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dranet.cluster.slice_plan import device_to_json
from dranet.desk.cli.explain_output import render, to_document
from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    add_source_flags,
    asks_cluster,
    capture_slices,
    fetch_everywhere,
    fetch_live,
    find_namespace,
    load_files,
    take_back,
)
from dranet.desk.cli.validate import build_scope
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.explanation import Explanation
from dranet.desk.explain.subject import (
    Subject,
    claim_subject,
    find,
    label_of,
    near_names,
    pod_subject,
    template_subject,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint import LintFinding, Scope
from dranet.desk.lint.alignment import lint_claim_alignment, lint_pod_alignment
from dranet.desk.templates.chart_classes import assume_missing_classes
from dranet.errors import ClusterError, NotFoundError, SettingsError
from dranet.inventory.slices import build_slices
from dranet.model.device import Device
from dranet.terminal import find_screen, never_fail_to_print, print_document
from dranet.view.node_view import NodeView, serialize
from dranet.view.options import read_settings

_DESCRIPTION = """\
Explain why a ResourceClaim, or all claims of a pod together, can or cannot be
allocated: for each node how many devices every class, selector, claim, taint
and constraint takes away, and what comes nearest. Changes nothing.

  dranet explain pod trainer-0
  dranet explain claim/train -n team-a
  dranet explain claim train -f claims.yaml classes.yaml --capture node.json
  kubectl get resourceclaims,resourceslices,deviceclasses,nodes -A -o json |
      dranet explain claim train -n team-a -f -
"""

_EPILOG = """\
KIND is claim or pod, or a name that kubectl knows: po, pods, resourceclaim,
resourceclaimtemplate. The claim of a template is explained as one made from it.

Exit code: 0 when it is allocated or can be, 1 when it cannot be, cannot be
decided or does not exist, 2 when arguments or files are wrong.
"""

_POD, _CLAIM, _TEMPLATE = "pod", "claim", "template"
_KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), _POD),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), _CLAIM),
    **dict.fromkeys(("resourceclaimtemplate", "resourceclaimtemplates"), _TEMPLATE),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "explain",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s KIND NAME | KIND/NAME [-n NAMESPACE] [-f FILE ...]\n"
        "         [--capture CAPTURE ...] [--node NODE] [-a] [-o text|json|yaml]\n"
        "         [--kubeconfig FILE] [--context NAME] [settings]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    vars(parser)["takes_no_less"] = True
    subject = parser.add_argument("subject", nargs="*", metavar="KIND NAME", help="what to explain")
    vars(subject)["completer"] = _complete_kind
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        help="default: that of the kubeconfig's context; without one the only namespace with such a name, "
        "else default",
    )
    add_source_flags(parser, "objects from files")
    parser.add_argument("--node", default="", metavar="NODE", help="look at this node alone")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        metavar="FORM",
        default="text",
        help="text (default), json or yaml",
    )
    parser.add_argument("-a", "--all", action="store_true", help="every kind of node, not the best three")
    add_cluster_flags(parser)
    add_facts_settings(parser)
    parser.set_defaults(run=run)


def _complete_kind(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """The first word; the second is a name, which the cluster alone knows."""
    return [] if parsed_args.subject else ["claim", "pod", "resourceclaimtemplate"]


def read_subject(words: Sequence[str], namespace: str) -> tuple[str, str, str]:
    """Kind, namespace and name of ``KIND NAME`` or ``KIND/NAME``, where NAME may be ``NAMESPACE/NAME``.

    Raises:
        SettingsError: it is neither, or another kind.
    """
    kind, name = words if len(words) == 2 else words[0].partition("/")[::2]
    if len(words) > 2 or not name:
        raise SettingsError(f"{' '.join(words)}: name one claim or pod", hint="pod NAME, or claim/NAME")
    known = _KINDS.get(kind.lower().removesuffix(".resource.k8s.io"))
    if known is None:
        near = near_names(kind, _KINDS)
        hint = near if near.startswith("did you mean") else "kinds are pod and claim"
        raise SettingsError(f"{kind} cannot be explained", hint=hint)
    if not namespace and name.count("/") == 1:
        namespace, name = name.split("/")  # as we print it ourselves
    return known, namespace, name


def _count_subject(words: Sequence[str]) -> int:
    """How many of the last words are ``KIND/NAME`` or ``KIND NAME``."""
    if words and words[-1].partition("/")[0].lower() in _KINDS and "/" in words[-1]:
        return 1
    return 2 if len(words) > 1 and words[-2].lower() in _KINDS else 0


def run(options: argparse.Namespace) -> int:
    """Read, explain, print; the exit code is the conclusion."""
    words = options.subject or take_back(options, _count_subject)
    if not words:
        raise SettingsError("what is to be explained? Name a claim or a pod", hint="KIND/NAME, before -f")
    options.kind, options.namespace, options.name = read_subject(words, options.namespace)
    objects, driver = _read(options), read_settings(options).driver_name
    assumed = () if asks_cluster(options) else assume_missing_classes(objects.classes, objects.slices, driver)
    view = ClusterView(
        objects.slices,
        [*objects.classes, *assumed],
        objects.claims,
        objects.nodes,
        objects.taint_rules,
        options.node,
        find_not_offered(objects.looks, driver),
        frozenset(body["metadata"]["name"] for body in assumed),
        driver,
    )
    if options.node and not (objects.nodes or objects.slices):
        raise SettingsError(f"--node {options.node}: there are neither nodes nor slices")
    if options.node not in ("", *view.known_nodes):
        hint = near_names(options.node, view.known_nodes)
        raise SettingsError(f"--node {options.node}: no such node", hint=hint)
    explanation = explain(_find_subject(options, objects, view), view)
    shown = replace(objects, slices=list(_find_shown(explanation, objects.slices)))
    chance = _describe_chance(explanation, build_scope([shown], driver, is_live=asks_cluster(options)))
    explanation = replace(explanation, remarks=(*explanation.remarks, *chance))
    if options.output != "text":
        print_document(serialize(to_document(explanation), options.output))
    else:
        never_fail_to_print()
        print("\n".join(render(explanation, find_screen(), shows_all=options.all)))
    return 0 if explanation.conclusion.is_good else 1


def _find_shown(explanation: Explanation, slices: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The slices of one node of each kind, and of allocated devices: to read those of a large cluster again
    would take seconds."""
    nodes = {group.report.node for group in explanation.groups}
    pools = {device.id[:2] for device in explanation.allocated}
    for body in slices:
        spec = body["spec"]
        if spec.get("nodeName") in nodes or (spec["driver"], spec["pool"]["name"]) in pools:
            yield body


def _describe_chance(explanation: Explanation, scope: Scope) -> Iterator[str]:
    """What relates no NIC to a GPU: their distances are chance, also where they are the best of the node. The
    fix is left out where the proposal of a misaligned node has it."""
    alignments = [explanation.alignment, *(group.report.alignment for group in explanation.groups)]
    known = [alignment for alignment in alignments if alignment]
    for finding in _lint_alignment(explanation.subject, scope) if known else ():
        has_fix = any(alignment.fix for alignment in known)
        yield finding.text if has_fix else f"{finding.text}; {finding.fix}"


def _lint_alignment(subject: Subject, scope: Scope) -> Iterator[LintFinding]:
    specs = [(claim.pod_claim, "", claim.body["spec"]) for claim in subject.claims]
    for _, path, spec in specs:
        yield from lint_claim_alignment(spec, path, scope)
    if subject.pod:
        yield from lint_pod_alignment(subject.pod["spec"], "", specs, scope)


def _read(options: argparse.Namespace) -> ClusterObjects:
    """Read files and captures where any are named; the cluster where none is, or where it is also named:
    what would be if that were created there? Of two nodes of one name the last counts, so a capture's least.
    """
    captured = capture_slices(options.facts, read_settings(options)) if options.facts else ClusterObjects()
    if asks_cluster(options):
        options.namespace = options.namespace or find_namespace(options)
    allocated = _load_files(options.file, options.namespace) if options.file else ClusterObjects()
    if asks_cluster(options):
        allocated = fetch_live(options) | allocated
    return captured | allocated


def _load_files(paths: Sequence[str], namespace: str) -> ClusterObjects:
    """Without what cannot be read, which a note names."""
    found = load_files(paths, passes_over=True, namespace=namespace)
    for unread in found.unread:
        print(f"note: not read: {unread.error}", file=sys.stderr)
    return found


def _find_subject(options: argparse.Namespace, objects: ClusterObjects, view: ClusterView) -> Subject:
    if options.kind == _POD:
        pod = _find(options, "Pod", objects.pods, objects)
        return pod_subject(pod, objects.claims, objects.templates, view.classes_by_name)
    made = {label_of(template) for template in objects.templates}
    label = _label(options, [*objects.claims, *objects.templates])
    if options.kind == _TEMPLATE or (find(objects.claims, label) is None and label in made):
        return template_subject(_find(options, "ResourceClaimTemplate", objects.templates, objects))
    return claim_subject(_find(options, "ResourceClaim", objects.claims, objects), objects.pods)


def _find(
    options: argparse.Namespace, kind: str, bodies: Sequence[JsonObject], objects: ClusterObjects
) -> JsonObject:
    label = _label(options, bodies)
    found = find(bodies, label)
    if found is None:
        everywhere = objects | _fetch_other_namespaces(options, kind)
        raise NotFoundError(f"{kind} {label} does not exist", hint=_suggest(options, label, everywhere))
    return found


def _fetch_other_namespaces(options: argparse.Namespace, kind: str) -> ClusterObjects:
    """The objects of this kind in all namespaces, as far as this user may list them."""
    if not asks_cluster(options):
        return ClusterObjects()
    with contextlib.suppress(ClusterError):
        return fetch_everywhere(options, (kind,))
    return ClusterObjects()


def _suggest(options: argparse.Namespace, label: str, objects: ClusterObjects) -> str:
    """The same name in the other kind or in another namespace, or names that are near."""
    pods, claims = objects.pods, [*objects.claims, *objects.templates]
    bodies, other, others = (pods, _CLAIM, claims) if options.kind == _POD else (claims, _POD, pods)
    if find(others, _label(options, others)) is not None:
        return f"there is a {other} of this name: dranet explain {other} {options.name}"
    namespace, _, name = label.partition("/")
    places = [label_of(body).partition("/")[::2] for body in bodies]
    elsewhere = [place for place, known in places if known == name]
    if elsewhere:
        return f"there is one in namespace {elsewhere[0]}: -n {elsewhere[0]}"
    known = [one for place, one in places if not options.namespace or place == namespace]
    return near_names(name, known) if known else f"namespace {namespace} has none"


def _label(options: argparse.Namespace, bodies: Sequence[JsonObject]) -> str:
    """``namespace/name``; the namespace of the only object of that name where none is given."""
    if options.namespace:
        return f"{options.namespace}/{options.name}"
    labels = {label_of(body) for body in bodies}
    named = [label for label in labels if label.partition("/")[2] == options.name]
    return named[0] if len(named) == 1 else f"default/{options.name}"


NotOffered = tuple[tuple[dict[str, Any], str], ...]


def find_not_offered(looks: Mapping[str, NodeView], driver: str) -> dict[str, NotOffered]:
    """By node: for each reason a slice of the devices that are not published for it, as if they were."""
    return {node: tuple(_iter_slices(node, look, driver)) for node, look in looks.items()}


def _iter_slices(node: str, look: NodeView, driver: str) -> Iterator[tuple[dict[str, Any], str]]:
    by_reason: dict[str, list[Device]] = {}
    for decision in look.inventory:
        device = decision.device
        if not decision.published and (device.pci_address or device.rdma_device):
            by_reason.setdefault(decision.reason, []).append(device)
    for number, (reason, devices) in enumerate(by_reason.items()):
        pages = build_slices(devices, look.policy)
        pool = {"name": f"{node} (not offered {number})", "generation": 1, "resourceSliceCount": 1}
        bodies = [device_to_json(device) for page in pages for device in page]
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": bodies}
        yield {"kind": "ResourceSlice", "metadata": {"name": pool["name"]}, "spec": spec}, reason

"""``dranet nodes``: the fleet at a glance, from the API server alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dranet.cluster import paths
from dranet.cluster.events import WARNING
from dranet.desk.cli.nodes_output import render, to_document
from dranet.desk.cli.object_cluster import (
    DRIVER_PODS,
    DRIVER_SELECTOR,
    Query,
    ask,
    fetch_permitted,
    make_client,
)
from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    add_source_flags,
    asks_cluster,
    capture_slices,
    load_files,
    take_back,
)
from dranet.desk.explain.subject import near_names
from dranet.desk.fleet.nodes import FleetNode, ProblemSeverity
from dranet.desk.fleet.read import FleetObjects, read_fleet
from dranet.desk.kubeapi.labels import parse_selector
from dranet.desk.kubeapi.objects import JsonObject
from dranet.errors import ClusterError, NotFoundError, Reason, SettingsError
from dranet.terminal import find_screen, never_fail_to_print, print_document
from dranet.view.node_view import serialize
from dranet.view.options import read_settings

EXIT_PROBLEM = 1

_DESCRIPTION = """\
Show each node with its driver, devices and claims, misaligned pods and
problems. Nodes with problems come first. Changes nothing.

  dranet nodes
  dranet nodes --problems -o wide
  dranet nodes -l pool=h100
  kubectl get nodes,resourceslices,resourceclaims,pods -A -o json |
      dranet nodes -f -
"""

_EPILOG = """\
NICS and GPUS are allocated/offered devices, CLAIMS are attached/allocated. GPUs
count whichever DRA driver publishes them. BANDWIDTH is that of shared NICs and
virtual functions, where it is counted. More than 40 nodes without a problem
are grouped by their driver's version and devices; --all shows each.

Reads nodes, resourceslices, resourceclaims, pods, and where permitted
devicetaintrules and events. A kind that this user may not list is named.

Exit code: 0 when no node has a problem (warnings do not count), 1 when one has,
or the cluster does not answer, 2 when arguments or files are wrong.
"""


_OF_FILES = (".yaml", ".yml", ".json", ".gz", ".tgz")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "nodes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s [NODE ...] [-l SELECTOR] [--problems] [-a]\n"
        "         [-f FILE ...] [--capture CAPTURE ...] [-o text|wide|json|yaml]\n"
        "         [--kubeconfig FILE] [--context NAME] [settings]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NODE", help="show only these")
    parser.add_argument(
        "-l", "--selector", default="", help="show the nodes with these labels, as for kubectl: pool=h100"
    )
    parser.add_argument("--problems", action="store_true", help="show only nodes with a problem or warning")
    parser.add_argument("-a", "--all", action="store_true", help="show each node, however many there are")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "json", "yaml"),
        metavar="FORM",
        default="text",
        help="text (default), wide (every problem in full), json or yaml",
    )
    add_source_flags(parser, "objects from files")
    add_cluster_flags(parser)
    add_facts_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, judge, print; the exit code is whether a node has a problem."""
    options.names = options.names or take_back(options, _count_names)
    driver = read_settings(options).driver_name
    objects, refused = _fetch(options, driver) if asks_cluster(options) else (FleetObjects(()), [])
    if options.file or options.facts:
        objects = _add_files(options, objects)
    nodes = _choose(read_fleet(objects, driver), options)
    if options.output in ("json", "yaml"):
        print_document(serialize(to_document(nodes, refused), options.output))
    else:
        never_fail_to_print()
        is_wide = options.output == "wide"
        print("\n".join(render(nodes, refused, find_screen(), is_wide=is_wide, shows_all=options.all)))
    has_problem = any(node.severity is ProblemSeverity.PROBLEM for node in nodes)
    return EXIT_PROBLEM if has_problem else 0


def _count_names(words: Sequence[str]) -> int:
    """How many of the last words are no names of files, but of nodes."""
    others = (n for n, word in enumerate(reversed(words)) if "/" in word or Path(word).suffix in _OF_FILES)
    return next(others, len(words))


def _fetch(options: argparse.Namespace, driver: str) -> tuple[FleetObjects, list[str]]:
    """What this user may list. Raises ClusterError where that is not even the slices."""
    queries = {
        "ResourceSlice": Query(paths.RESOURCE_SLICES),
        "ResourceClaim": Query(paths.resource_claims()),
        "Node": Query(paths.NODES),
        "Pod": Query(paths.pods(), label_selector=DRIVER_SELECTOR),
        "DeviceTaintRule": Query(paths.DEVICE_TAINT_RULES),
        "Event": Query(paths.events(), field_selector=f"type={WARNING},reportingComponent={driver}"),
    }
    found, refused = ask(fetch_permitted(make_client(options), queries))
    if "ResourceSlice" in refused:
        raise ClusterError(
            "this user may not list ResourceSlices, from which all columns are read",
            reason=Reason.API_FORBIDDEN,
            hint="the chart's ClusterRole dranet-viewer has the rights",
        )
    objects = FleetObjects(
        found["ResourceSlice"],
        found.get("ResourceClaim"),
        found.get("Node"),
        found.get("Pod"),
        found.get("DeviceTaintRule", ()),
        found.get("Event", ()),
    )
    return objects, refused


def _add_files(options: argparse.Namespace, objects: FleetObjects) -> FleetObjects:
    """Add the objects of files; a kind that no file has stays unknown."""
    read = load_files(options.file, others=True) if options.file else ClusterObjects()
    if options.facts:
        read = capture_slices(options.facts, read_settings(options)) | read
    pods = [pod for pod in read.pods if _is_driver_pod(pod)]
    return FleetObjects(
        [*objects.slices, *read.slices],
        _join(objects.claims, read.claims),
        _join(objects.nodes, read.nodes),
        _join(objects.driver_pods, pods if read.pods else []),
        [*objects.taint_rules, *read.taint_rules],
        [*objects.events, *(body for body in read.others if body["kind"] == "Event")],
    )


def _join(known: Sequence[JsonObject] | None, read: Sequence[JsonObject]) -> Sequence[JsonObject] | None:
    return [*(known or ()), *read] if known is not None or read else None


def _is_driver_pod(pod: JsonObject) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in DRIVER_PODS.items())


def _choose(nodes: Sequence[FleetNode], options: argparse.Namespace) -> list[FleetNode]:
    known = [node.name for node in nodes]
    for name in options.names:
        if name not in known:
            raise NotFoundError(f"node {name} does not exist", hint=near_names(name, known))
    try:
        matches = parse_selector(options.selector)
    except ValueError as error:
        raise SettingsError(f"--selector: {error}") from error
    return [
        node
        for node in nodes
        if (not options.names or node.name in options.names)
        and (not options.selector or (node.body is not None and matches(_labels(node.body))))
        and (node.problems or not options.problems)
    ]


def _labels(body: JsonObject) -> dict[str, str]:
    return body["metadata"].get("labels") or {}

"""``dranet fabric``: how the nodes of a cluster are cabled, what does not fit, and exports for schedulers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from dranet.desk.cli.fabric_output import render, render_node, to_document
from dranet.desk.cli.objects import (
    ClusterObjects,
    add_cluster_flags,
    add_facts_settings,
    add_source_flags,
    asks_cluster,
    capture_slices,
    fetch_live,
    load_files,
)
from dranet.desk.explain.subject import near_names
from dranet.desk.fabric.fabric import Fabric, read_fabric
from dranet.desk.fabric.kueue import build_topologies
from dranet.desk.fabric.labels import render_commands
from dranet.desk.fabric.picture import draw_fabric
from dranet.desk.fabric.slurm import build_document, render_blocks, render_tree
from dranet.desk.kubeapi.formats import is_subdomain
from dranet.errors import NotFoundError, SettingsError
from dranet.pictures.svg import render_svg
from dranet.terminal import Screen, count_of, find_screen, never_fail_to_print, print_document
from dranet.view.node_view import serialize, to_yaml
from dranet.view.options import read_settings
from dranet.view.output import SHARED, add_output_flags, check_output, write_output

EXIT_MISFIT = 1
_MAX_SHOWN = 60
"""Characters of a wrong name."""
_OUTPUT_FILE = "--output-file"
_FOR_PEOPLE = ("text", "wide")
_OF_NODES = (*_FOR_PEOPLE, "json", "yaml")

_DESCRIPTION = """\
Show how the nodes of a cluster are cabled, from the ResourceSlices that the
driver publishes: which leaf switch each NIC is on, which nodes are close to
each other, and what does not fit. Without LLDP neighbors the hierarchy comes
from the placement that a cloud reports. Changes nothing.

  dranet fabric
  dranet fabric --node gpu-7
  dranet fabric -o svg --output-file fabric.svg
  dranet fabric -o slurm > topology.conf
  kubectl get resourceslices -o json | dranet fabric -f - -o kueue
"""

_EPILOG = """\
A unit is the nodes on the same leaf switches. A NIC is compared with the same
NIC of the other nodes of its unit; there is no plan to compare with.

FORM: text (default), wide (each NIC of each unit), json, yaml, svg;
slurm (topology.conf for topology/tree), slurm-block (for topology/block),
slurm-yaml (topology.yaml, Slurm 25.05); kueue (Topology objects);
labels (the commands of kubectl that label the nodes for them).

Exit code: 0 when everything fits, 1 when text, wide, json or yaml shows a
misfit, or the cluster does not answer, 2 when arguments or files are wrong.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "fabric",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s [--node NODE ...] [-o FORM] [--output-file OUT]\n"
        "         [-f FILE ...] [--capture CAPTURE ...]\n"
        "         [--kubeconfig FILE] [--context NAME] [settings]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--node",
        nargs="+",
        action="extend",
        default=[],
        metavar="NODE",
        help="show only these nodes, each NIC with its switch port",
    )
    parser.add_argument(
        "-o", "--output", choices=(*_OF_NODES, *_EXPORTS), metavar="FORM", default="text", help="see below"
    )
    add_output_flags(parser, "write to this file instead of standard output")
    add_source_flags(parser, "ResourceSlices from files")
    add_cluster_flags(parser)
    add_facts_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, judge, print."""
    if options.node and options.output not in _OF_NODES:
        raise SettingsError(
            f"--node: -o {options.output} is about all nodes", hint=f"one of {', '.join(_OF_NODES)}"
        )
    file = options.output_file
    path = check_output(file, _OUTPUT_FILE, force=options.force) if file else None
    driver = read_settings(options).driver_name
    objects = _load(options)
    _check_node_names(objects)
    fabric = read_fabric(objects.slices, driver)
    _check_names(options.node, fabric)
    screen = Screen() if file else find_screen()
    text = render_form(fabric, options.output, driver, options.node, screen)
    if path is not None:
        write_output(path, f"{text}\n".encode(errors="backslashreplace"), SHARED, _OUTPUT_FILE)
        print(f"wrote {file}", file=sys.stderr)
    elif options.output in _FOR_PEOPLE:
        never_fail_to_print()
        print(text)
    else:
        print_document(text)
    return _finish(fabric, options)


def _load(options: argparse.Namespace) -> ClusterObjects:
    objects = ClusterObjects()
    if asks_cluster(options):
        objects |= fetch_live(options, ("ResourceSlice",))
    if options.file:
        objects |= load_files(options.file)
    if options.facts:
        objects |= capture_slices(options.facts, read_settings(options))
    return objects


def _check_node_names(objects: ClusterObjects) -> None:
    """The exports have them in commands and in the syntax of Slurm. An API server takes no others, but a file
    has not passed one."""
    for body in objects.slices:
        name = body["spec"].get("nodeName")
        if name and not is_subdomain(name):
            where = f"{objects.source_of(body)}: ResourceSlice {body['metadata']['name']}"
            raise SettingsError(
                f"{where}: spec.nodeName must be a lower-case DNS subdomain, not {name[:_MAX_SHOWN]!r}"
            )


def _check_names(names: Sequence[str], fabric: Fabric) -> None:
    for name in names:
        if name not in fabric.nodes:
            hint = near_names(name, list(fabric.nodes))
            raise NotFoundError(f"node {name} has no ResourceSlice of the driver", hint=hint)


def render_form(fabric: Fabric, form: str, driver: str, nodes: Sequence[str], screen: Screen) -> str:
    """The fabric in one of the forms of ``--output``; ``nodes``: only these, all if empty. Raises
    NotFoundError where there is nothing to export."""
    if form in ("json", "yaml"):
        return serialize(to_document(fabric, driver, nodes), form)
    if form in _FOR_PEOPLE and nodes:
        return "\n\n".join("\n".join(render_node(fabric, name, driver, screen)) for name in nodes)
    if form in _FOR_PEOPLE:
        return "\n".join(render(fabric, screen, is_wide=form == "wide"))
    if form != "svg" and not fabric.places:
        raise NotFoundError(
            "no node has an LLDP neighbor or a placement in a cloud: there is no hierarchy to export",
            hint="docs/networking/fabric.md names what publishes them",
        )
    return _EXPORTS[form](fabric, driver)


def _finish(fabric: Fabric, options: argparse.Namespace) -> int:
    misfits = [one for one in fabric.misfits if not options.node or set(one.nodes) & set(options.node)]
    if options.output in _OF_NODES:
        return EXIT_MISFIT if misfits else 0
    if misfits and options.output != "svg":
        print(f"note: {count_of(len(misfits), 'misfit')}: dranet fabric shows them", file=sys.stderr)
    return 0


_EXPORTS: Mapping[str, Callable[[Fabric, str], str]] = {
    "svg": lambda fabric, _: render_svg(draw_fabric(fabric)).rstrip("\n"),
    "slurm": lambda fabric, _: "\n".join(render_tree(fabric)),
    "slurm-block": lambda fabric, _: "\n".join(render_blocks(fabric)),
    "slurm-yaml": lambda fabric, _: to_yaml([build_document(fabric)]),
    "kueue": lambda fabric, driver: to_yaml(build_topologies(fabric, driver)),
    "labels": lambda fabric, driver: "\n".join(render_commands(fabric, driver)),
}

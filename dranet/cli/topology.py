"""``dranet topology``: how far NICs and GPUs are from each other, as a tree, a matrix or a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dranet.cli.look import Eye, add_look_flags, warn
from dranet.cli.topology_text import (
    choose_for_matrix,
    draw_matrix,
    draw_topology,
    matrix_words,
)
from dranet.errors import SettingsError
from dranet.inventory.policy import Decision
from dranet.inventory.topology import matrix
from dranet.pictures.device_summary import DeviceSummarizer
from dranet.pictures.node_view import choose_hardware, name_hardware, summarize
from dranet.pictures.png import render_png
from dranet.pictures.svg import draw_svg
from dranet.terminal import Screen, find_screen, never_fail_to_print, print_document
from dranet.view.documents import describe, to_json
from dranet.view.node_view import NodeView

_DOCUMENTS = ("json", "svg")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "topology",
        help="show how near NICs and GPUs are, as a tree, a matrix or a picture",
        description="Show where the NICs and GPUs of this node, or of a capture, sit in the PCIe and NUMA "
        "tree and how far they are from each other. Reads only; needs neither a cluster, root nor a "
        "vendor's tool.",
        usage="%(prog)s [-o FORM] [--file OUT] [--all] [--facts FILE] [settings]",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("tree", "matrix", "json", "svg", "png"),
        metavar="FORM",
        default="tree",
        help="tree (default); matrix: as nvidia-smi topo -m prints it; json; svg; png (needs --file and the "
        "optional packages of dranet[pictures])",
    )
    parser.add_argument("-f", "--file", metavar="OUT", help="write to this file instead of standard output")
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="also links that software made (lo, veth ...) in the tree, and virtual functions in the matrix",
    )
    add_look_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """NodeView, draw and write."""
    never_fail_to_print()
    if options.output == "png" and not options.file:
        raise SettingsError("-o png writes a file: name it", hint="--file out.png")
    look = Eye(options).look()
    if options.output == "png":
        _write(options.file, render_png(draw_svg(look)))
    elif options.file:
        _write(options.file, (_draw(look, options) + "\n").encode(errors="backslashreplace"))
    else:
        show = print_document if options.output in _DOCUMENTS else print
        show(_draw(look, options))
    warn(look.warnings)
    return 0


def _draw(look: NodeView, options: argparse.Namespace) -> str:
    screen = Screen() if options.file else find_screen()
    if options.output == "json":
        return to_json(describe_topology(look))
    if options.output == "svg":
        return draw_svg(look).rstrip("\n")
    if options.output == "matrix":
        return "\n".join(draw_matrix(look, choose_for_matrix(look, options.all), screen))
    shown = look.decisions if options.all else choose_hardware(look)
    return "\n".join([*draw_topology(look, shown, screen), "", summarize(shown, shows_all=True)])


def _write(file: str, data: bytes) -> None:
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise SettingsError(f"--file {file}: {error.strerror}") from error
    print(f"wrote {file}", file=sys.stderr)


def describe_topology(look: NodeView) -> dict[str, Any]:
    """Host, NUMA nodes, devices, and the matrix, whose rows and columns are in the order of ``devices``."""
    names = name_hardware(look)
    decisions = {d.device.name: d for d in look.decisions if d.device.name in names}
    distances = matrix(decision.device for decision in decisions.values())
    reader = DeviceSummarizer(look.facts)
    return {
        "host": {"name": look.facts.host.name, "product": look.facts.host.product},
        "numaNodes": [
            {"node": node.node, "cpus": node.cpus, "distances": list(node.distances)}
            for node in look.facts.numa_nodes
        ],
        "devices": [
            _describe(decisions[device.name], names[device.name], reader) for device in distances.devices
        ],
        "matrix": matrix_words(distances),
    }


def _describe(decision: Decision, short_name: str, reader: DeviceSummarizer) -> dict[str, Any]:
    summary = reader.read(decision.device)
    return {
        "shortName": short_name,
        **describe(decision),
        "model": summary.model or None,
        "state": summary.state or None,
        "rate": summary.rate or summary.speed or None,
    }

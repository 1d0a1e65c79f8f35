"""``dranet topology``: how far NICs and GPUs are from each other, as a tree, a matrix or a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from dranet.cli.look import Eye, add_look_flags, warn
from dranet.errors import SettingsError
from dranet.inventory.policy import Decision
from dranet.inventory.topology import DistanceMatrix, matrix, topology_tree
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, NodeFacts
from dranet.pictures.summary import (
    UNKNOWN,
    Branch,
    DeviceSummarizer,
    Look,
    choose_hardware,
    cpus_of,
    leaves,
    name_hardware,
    root_branches,
    summarize,
)
from dranet.pictures.svg import draw_svg, render_png
from dranet.terminal import (
    GAP,
    Screen,
    count_of,
    cut,
    find_screen,
    format_table,
    never_fail_to_print,
    print_document,
    printable,
)
from dranet.view.node_view import NodeView, describe, to_json
from dranet.view.output import SHARED, add_output_flags, check_output, write_output

_DOCUMENTS = ("json", "svg")
_OUTPUT_FILE = "--output-file"

_DESCRIPTION = """\
Show where the NICs and GPUs of this node, or of a capture, sit in the PCIe and
NUMA tree, and how far they are from each other. Needs neither a cluster, root
nor a vendor's tool.

  dranet topology -o matrix
  dranet topology -f node.json -o svg --output-file node.svg
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "topology",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-o FORM] [--all] [-f FILE] [--output-file OUT]",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("tree", "matrix", "json", "svg", "png"),
        metavar="FORM",
        default="tree",
        help="tree (default); matrix: as nvidia-smi topo -m prints it; json; svg; png (needs "
        "--output-file and the optional packages of dranet[pictures])",
    )
    add_output_flags(parser, "write to this file instead of standard output")
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="also virtual links (lo, veth ...) in the tree, and virtual functions in the matrix",
    )
    add_look_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    never_fail_to_print()
    if options.output == "png" and not options.output_file:
        raise SettingsError("-o png writes a file: name it", hint="--output-file out.png")
    file = options.output_file
    path = check_output(file, _OUTPUT_FILE, force=options.force) if file else None
    look = Eye(options).look()
    if path is not None:
        is_png = options.output == "png"
        drawn = render_png(draw_svg(look)) if is_png else f"{_draw(look, options)}\n"
        data = drawn if isinstance(drawn, bytes) else drawn.encode(errors="backslashreplace")
        write_output(path, data, SHARED, _OUTPUT_FILE)
        print(f"wrote {file}", file=sys.stderr)
    else:
        show = print_document if options.output in _DOCUMENTS else print
        show(_draw(look, options))
    warn(look.warnings)
    return 0


def _draw(look: NodeView, options: argparse.Namespace) -> str:
    screen = Screen() if options.output_file else find_screen()
    if options.output == "json":
        return to_json(describe_topology(look))
    if options.output == "svg":
        return draw_svg(look).rstrip("\n")
    if options.output == "matrix":
        return "\n".join(draw_matrix(look, choose_for_matrix(look, options.all), screen))
    shown = look.decisions if options.all else choose_hardware(look)
    return "\n".join([*draw_topology(look, shown, screen), "", summarize(shown, shows_all=True)])


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


SELF, NOT_KNOWN = "X", "?"


def title(facts: NodeFacts) -> str:
    """``node-1, NVIDIA DGXH100, 2 NUMA nodes``."""
    nodes = count_of(len(facts.numa_nodes), "NUMA node") if facts.numa_nodes else ""
    parts = (facts.host.name or "this node", facts.host.product, nodes)
    return ", ".join(part for part in parts if part)


def draw_topology(look: Look, shown: Sequence[Decision], screen: Screen) -> list[str]:
    """Lines of the tree: NUMA nodes, root complexes, switches, devices; held-back devices muted."""
    rows = _device_rows(look, shown)
    not_offered = {d.device.name for d in shown if not d.published}
    lines = [screen.bold(screen.cut(printable(title(look.facts))))]
    drawn = list(_draw_branches(_numa_branches(look.facts, (d.device for d in shown))))
    room = max((len(lead) for lead, branch in drawn if branch.device), default=0)
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    for lead, branch in drawn:
        if not branch.device:
            lines.append(screen.cut(lead + branch.label))
            continue
        first, *rest = rows[branch.device]
        texts = [first.ljust(widths[0] + room - len(lead)), *map(str.ljust, rest, widths[1:])]
        line = cut((lead + GAP.join(text for text in texts if text)).rstrip(), screen.columns)
        lines.append(lead + screen.dim(line[len(lead) :]) if branch.device in not_offered else line)
    return lines


def _device_rows(look: Look, shown: Sequence[Decision]) -> Mapping[str, Sequence[str]]:
    reader, names = DeviceSummarizer(look.facts), name_hardware(look)
    rows: dict[str, Sequence[str]] = {}
    for decision in shown:
        device, summary = decision.device, reader.read(decision.device)
        end = _describe_offer(decision, summary.model)
        row = (names.get(device.name, ""), device.name, device.ifname, device.rdma_device)
        rows[device.name] = [printable(text) for text in (*row, summary.speed_or_state, end)]
    return rows


def _describe_offer(decision: Decision, model: str) -> str:
    if not decision.published:
        return f"not offered: {decision.reason}"
    return ", ".join(filter(None, (model, decision.pod and f"in pod {decision.pod}")))


def _numa_branches(facts: NodeFacts, devices: Iterable[Device]) -> tuple[Branch, ...]:
    cpus = {f"NUMA node {node}": f"{GAP}CPUs {cpus}" for node, cpus in cpus_of(facts).items() if cpus}
    return tuple(
        Branch(
            f"{node.label}{cpus.get(node.label, '')}",
            children=(*leaves(node), *chain.from_iterable(map(root_branches, node.children))),
        )
        for node in topology_tree(devices)
    )


def _draw_branches(branches: Sequence[Branch], indent: str | None = None) -> Iterator[tuple[str, Branch]]:
    """Each branch with the lines that lead to it."""
    for branch in branches:
        last = branch is branches[-1]
        yield ("" if indent is None else indent + ("└─ " if last else "├─ ")), branch
        yield from _draw_branches(
            branch.children, "" if indent is None else indent + ("   " if last else "│  ")
        )


def choose_for_matrix(look: Look, shows_all: bool) -> Sequence[Decision]:
    """All that has a place; virtual functions only by request, where their physical function is there."""
    names = name_hardware(look)
    shown = [decision for decision in look.decisions if decision.device.name in names]
    addresses = {decision.device.pci_address for decision in shown} - {""}  # that is: not on PCI
    return [d for d in shown if shows_all or d.device.physical_function not in addresses]


def draw_matrix(look: Look, shown: Sequence[Decision], screen: Screen) -> list[str]:
    """The matrix as ``nvidia-smi topo -m`` prints it, and what its words and names mean."""
    names = name_hardware(look)
    distances = matrix(decision.device for decision in shown)
    labels = [names[device.name] for device in distances.devices]
    hidden = len(choose_for_matrix(look, True)) - len(shown)
    left_out = f"{count_of(hidden, 'virtual function')} left out"
    return [
        screen.bold(screen.cut(printable(title(look.facts)))),
        "",
        *_matrix_blocks(labels, matrix_words(distances), screen),
        "",
        *_device_legend(look, shown, names, screen),
        "",
        *(screen.cut(line) for line in _word_legend(distances)),
        "",
        summarize(shown, shows_all=True) + (f"; {left_out} (--all lists all)" if hidden else ""),
    ]


def matrix_words(distances: DistanceMatrix) -> list[list[str]]:
    """``PIX`` ..., ``X`` for a device and itself, ``?`` for unknown."""
    words = [[NOT_KNOWN if cell is None else cell.name for cell in cells] for cells in distances.cells]
    for place, row in enumerate(words):
        row[place] = SELF
    return words


def _matrix_blocks(labels: Sequence[str], words: Sequence[Sequence[str]], screen: Screen) -> list[str]:
    """As many columns in a row as there is room for; the others in further blocks below."""
    width = max(map(len, (*labels, "NODE")), default=0) + 1
    per_block = max((screen.columns - width) // width, 1) if screen.columns else max(len(labels), 1)

    def line(*cells: str) -> str:
        return "".join(cell.ljust(width) for cell in cells).rstrip()

    lines: list[str] = []
    for start in range(0, len(labels), per_block):
        part = slice(start, start + per_block)
        lines += [""] if lines else []
        lines.append(screen.bold(line("", *labels[part])))
        lines += [line(label, *row[part]) for label, row in zip(labels, words, strict=True)]
    return lines or ["no devices with a place in the hardware"]


def _device_legend(
    look: Look, shown: Sequence[Decision], names: Mapping[str, str], screen: Screen
) -> Iterator[str]:
    cpus, by_name = cpus_of(look.facts), {decision.device.name: decision for decision in shown}
    ordered = [by_name[device.name] for device in matrix(d.device for d in shown).devices]
    rows = [_legend_row(decision, names, cpus) for decision in ordered]
    head, *blocks = format_table(_LEGEND, rows, screen.columns)
    yield from map(screen.bold, head)
    for decision, block in zip(ordered, blocks, strict=True):
        yield from block if decision.published else map(screen.dim, block)


_LEGEND = ("NAME", "DEVICE", "LINK", "RDMA", "NUMA", "CPU AFFINITY", "OFFERED")


def _legend_row(decision: Decision, names: Mapping[str, str], cpus: Mapping[int, str]) -> tuple[str, ...]:
    device, numa = decision.device, decision.device.numa_node
    place = ("", "") if numa is None else (str(numa), cpus.get(numa, ""))
    cells = (names[device.name], device.name, device.ifname, device.rdma_device, *place)
    return (*(cell or UNKNOWN for cell in cells), decision.answer if decision.published else "no")


def _word_legend(distances: DistanceMatrix) -> Iterator[str]:
    yield f"{SELF:4}  the device itself"
    for word in Distance:
        yield f"{word.name:4}  through {word.meaning}"
    unknown = sum(cell is None for cells in distances.cells for cell in cells) > len(distances.devices)
    if unknown:
        yield f"{NOT_KNOWN:4}  unknown: the platform does not report where one of the two sits"
    if sum(device.kind is DeviceKind.GPU for device in distances.devices) > 1:
        yield "NVLink between GPUs is not shown."

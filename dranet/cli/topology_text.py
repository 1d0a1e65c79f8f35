"""The topology as text: a tree of the hardware, and the matrix of distances with its legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from dranet.inventory.policy import Decision
from dranet.inventory.topology import DistanceMatrix, matrix, topology_tree
from dranet.model.device import Device
from dranet.model.distance import Distance
from dranet.model.facts import NodeFacts
from dranet.pictures.device_summary import UNKNOWN, DeviceSummarizer
from dranet.pictures.node_view import Branch, Look, cpus_of, leaves, name_hardware, root_branches, summarize
from dranet.printable import printable
from dranet.terminal import GAP, Screen, cut, format_table

SELF, NOT_KNOWN = "X", "?"


def title(facts: NodeFacts) -> str:
    """``node-1, NVIDIA DGXH100, 2 NUMA nodes``."""
    count = len(facts.numa_nodes)
    nodes = f"{count} NUMA node{'' if count == 1 else 's'}" if count else ""
    parts = (facts.host.name or "this node", facts.host.product, nodes)
    return ", ".join(part for part in parts if part)


def draw_topology(look: Look, shown: Sequence[Decision], screen: Screen) -> list[str]:
    """Lines of the tree: NUMA nodes, root complexes, switches, devices; held-back devices muted."""
    rows = _device_rows(look, shown)
    not_offered = {d.device.name for d in shown if not d.published}
    lines = [screen.bold(screen.cut(printable(title(look.facts))))]
    drawn = list(_draw(_numa_branches(look.facts, (d.device for d in shown))))
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
        end = summary.model if decision.published else f"not offered: {decision.reason}"
        row = (names.get(device.name, ""), device.name, device.ifname, device.rdma_device)
        rows[device.name] = [printable(text) for text in (*row, summary.speed_or_state, end)]
    return rows


def _numa_branches(facts: NodeFacts, devices: Iterable[Device]) -> tuple[Branch, ...]:
    cpus = {f"NUMA node {node}": cpus for node, cpus in cpus_of(facts).items()}
    return tuple(
        Branch(
            f"{node.label}{GAP}CPUs {cpus[node.label]}" if cpus.get(node.label) else node.label,
            children=(*leaves(node), *chain.from_iterable(map(root_branches, node.children))),
        )
        for node in topology_tree(devices)
    )


def _draw(branches: Sequence[Branch], indent: str | None = None) -> Iterator[tuple[str, Branch]]:
    """Each branch with the lines that lead to it."""
    for branch in branches:
        last = branch is branches[-1]
        yield ("" if indent is None else indent + ("└─ " if last else "├─ ")), branch
        yield from _draw(branch.children, "" if indent is None else indent + ("   " if last else "│  "))


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
    return [
        screen.bold(screen.cut(printable(title(look.facts)))),
        "",
        *_matrix_blocks(labels, matrix_words(distances), screen),
        "",
        *_device_legend(look, shown, names, screen),
        "",
        *(screen.cut(line) for line in _word_legend(distances)),
        "",
        summarize(shown, shows_all=True) + _left_out(len(choose_for_matrix(look, True)) - len(shown)),
    ]


def _left_out(count: int) -> str:
    if not count:
        return ""
    return f"; {count} virtual function{'' if count == 1 else 's'} left out (--all lists all)"


def matrix_words(distances: DistanceMatrix) -> list[list[str]]:
    """``PIX`` ..., ``X`` for a device and itself, ``?`` for unknown."""
    return [
        [SELF if row == column else _word(cell) for column, cell in enumerate(cells)]
        for row, cells in enumerate(distances.cells)
    ]


def _word(cell: Distance | None) -> str:
    return NOT_KNOWN if cell is None else cell.name


def _matrix_blocks(labels: Sequence[str], words: Sequence[Sequence[str]], screen: Screen) -> list[str]:
    """As many columns side by side as there is room for; the others in further blocks below."""
    width = max(map(len, (*labels, "NODE")), default=0) + 1
    per_block = max((screen.columns - width) // width, 1) if screen.columns else max(len(labels), 1)
    lines: list[str] = []
    for start in range(0, len(labels), per_block):
        part = slice(start, start + per_block)
        lines += [""] if lines else []
        lines.append(screen.bold(_cells(["", *labels[part]], width)))
        lines += [_cells([label, *row[part]], width) for label, row in zip(labels, words, strict=True)]
    return lines or ["no devices with a place in the hardware"]


def _cells(cells: Iterable[str], width: int) -> str:
    return "".join(cell.ljust(width) for cell in cells).rstrip()


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
    device = decision.device
    numa = UNKNOWN if device.numa_node is None else str(device.numa_node)
    affinity = "" if device.numa_node is None else cpus.get(device.numa_node, "")
    return (
        names[device.name],
        device.name,
        device.ifname or UNKNOWN,
        device.rdma_device or UNKNOWN,
        numa,
        affinity or UNKNOWN,
        "yes" if decision.published else "no",
    )


def _word_legend(distances: DistanceMatrix) -> Iterator[str]:
    yield f"{SELF:4}  the device itself"
    for word in Distance:
        yield f"{word.name:4}  through {word.meaning}"
    unknown = sum(cell is None for cells in distances.cells for cell in cells) > len(distances.devices)
    if unknown:
        yield f"{NOT_KNOWN:4}  unknown: the platform does not report where one of the two sits"

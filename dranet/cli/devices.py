"""``dranet devices``: what this node offers, where it sits, and why a device is held back."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from dranet.cli.run import add_settings_flags, settings_from
from dranet.inventory.build import build_devices
from dranet.inventory.filter import Decision, decide
from dranet.inventory.topology import TopologyNode, topology_tree
from dranet.kernel.scan import read_node_facts

NOTHING_OFFERED = "nothing is offered; --all says why"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "devices",
        help="list the devices of this node",
        description="Scan this node and list its devices. Reads only; needs no cluster.",
    )
    parser.add_argument(
        "--all", action="store_true", help="also list devices that are held back, with the reason"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=tuple(_PRINTERS),
        default="table",
        help="table (default), the PCIe and NUMA tree, or everything published as JSON",
    )
    add_settings_flags(parser, ("sysfs_root", "procfs_root"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Scan and print."""
    settings = settings_from(options)
    facts = read_node_facts(settings.sysfs_root, settings.procfs_root)
    decisions = [d for d in decide(build_devices(facts, {}), facts) if d.published or options.all]
    for warning in facts.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not decisions and options.output != "json":
        print(NOTHING_OFFERED, file=sys.stderr)
        return 0
    print(_PRINTERS[options.output](decisions))
    return 0


def _as_json(decisions: Sequence[Decision]) -> str:
    rows = [
        {
            "name": d.device.name,
            "published": d.published,
            "reason": d.reason,
            "attributes": dict(d.device.attributes),
        }
        for d in decisions
    ]
    return json.dumps(rows, indent=2)


def _as_tree(decisions: Sequence[Decision]) -> str:
    names = {d.device.name: _describe(d) for d in decisions}
    return "\n".join(draw_tree(topology_tree(d.device for d in decisions), names))


def _as_table(decisions: Sequence[Decision]) -> str:
    return "\n".join(format_table(_HEADER, [_row(decision) for decision in decisions]))


_PRINTERS = {"table": _as_table, "tree": _as_tree, "json": _as_json}
_HEADER = ("DEVICE", "KIND", "LINK", "RDMA", "NUMA", "PCIE ROOT", "OFFERED")


def _row(decision: Decision) -> tuple[str, ...]:
    device = decision.device
    numa = "-" if device.numa_node is None else str(device.numa_node)
    return (
        device.name,
        str(device.kind),
        device.ifname or "-",
        device.rdma_device or "-",
        numa,
        device.pcie_root or "-",
        "yes" if decision.published else f"no: {decision.reason}",
    )


def _describe(decision: Decision) -> str:
    device = decision.device
    model = str(device.attributes.get("dra.net/gpuModel", ""))
    held_back = "" if decision.published else f"(not offered: {decision.reason})"
    parts = dict.fromkeys((device.name, device.ifname, device.rdma_device, model, held_back))
    return "  ".join(part for part in parts if part)


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of left-aligned columns, two spaces apart."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def draw_tree(nodes: Sequence[TopologyNode], names: Mapping[str, str], indent: str = "") -> list[str]:
    """Lines of a tree of ``TopologyNode``; a chain of single bridges is drawn on one line."""
    lines: list[str] = []
    for position, node in enumerate(nodes):
        last = position == len(nodes) - 1
        label, end = node.label, node
        while len(end.children) == 1 and not end.devices:
            end = end.children[0]
            label += f" / {end.label}"
        shown = [names[name] for name in end.devices]
        text = label if not shown else f"{label}  {'; '.join(shown)}"
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{text}")
        lines += draw_tree(end.children, names, indent + ("   " if last else "│  "))
    return lines

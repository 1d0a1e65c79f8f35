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
from dranet.model.device import Device


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "devices",
        help="list the devices of this node",
        description="Scan this node as the driver does and list its devices. Reads only; needs no cluster.",
    )
    parser.add_argument(
        "--all", action="store_true", help="also list devices that are held back, with the reason"
    )
    parser.add_argument("--tree", action="store_true", help="show the PCIe and NUMA tree instead of a table")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    add_settings_flags(parser, ("sysfs_root", "procfs_root"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Scan and print."""
    settings = settings_from(options)
    facts = read_node_facts(settings.sysfs_root, settings.procfs_root)
    decisions = [d for d in decide(build_devices(facts, {}), facts) if d.published or options.all]
    devices = [decision.device for decision in decisions]
    for warning in facts.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.output == "json":
        rows = [
            {
                "name": d.device.name,
                "published": d.published,
                "reason": d.reason,
                "attributes": dict(d.device.attributes),
            }
            for d in decisions
        ]
        print(json.dumps(rows, indent=2))
    elif options.tree:
        names = {device.name: _describe(device) for device in devices}
        print("\n".join(draw_tree(topology_tree(devices), names)))
    else:
        print("\n".join(format_table(_HEADER, [_row(decision) for decision in decisions])))
    return 0


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


def _describe(device: Device) -> str:
    parts = [
        device.name,
        device.ifname,
        device.rdma_device,
        str(device.attributes.get("dra.net/gpuModel", "")),
    ]
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

"""``dranet devices``: what this node offers, what is known of it, and why a device is not offered."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from dranet.cli.look import Eye, add_look_flags, warn
from dranet.cli.topology import draw_topology
from dranet.errors import SettingsError
from dranet.inventory.policy import Decision
from dranet.inventory.topology import nearest
from dranet.model.device import Device, DeviceKind
from dranet.pictures.summary import (
    UNKNOWN,
    DeviceSummarizer,
    bandwidth_text,
    first_of,
    nearest_text,
    summarize,
)
from dranet.settings import Settings
from dranet.terminal import Screen, find_screen, format_table, never_fail_to_print, print_document
from dranet.view.node_view import NodeView, build_slice_objects, describe_devices, to_json, to_yaml

_DESCRIPTION = """\
List the devices of this node, or of a capture, and with --all why one is not
offered. Needs neither a cluster nor root.

  dranet devices --all
  dranet devices -o wide -f node.json
"""

_EPILOG = """\
GPUs: with publish_gpus auto they are listed as offered. Whether another driver
serves them, so that they are left to it, only the running driver knows, from
the API server (/readyz?verbose).
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "devices",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-o FORM] [--all] [--watch] [-f FILE] [settings]",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=(*_TEXTS, *_DOCUMENTS),
        metavar="FORM",
        default="table",
        help="table (default); wide: with addresses, state, speed, model, bandwidth; tree: where each sits; "
        "json and yaml: everything known; slices: the ResourceSlices that dranet run would write",
    )
    parser.add_argument(
        "-a", "--all", action="store_true", help="also list what is not offered, with the reason"
    )
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="keep watching: redraw on every change; in a pipe print a line for each device that came, went "
        "or changed",
    )
    add_look_flags(parser, ("driver_name", "node_name"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    never_fail_to_print()
    if options.watch:
        return _watch(options)
    eye = Eye(options)
    look = eye.look()
    if options.output in _DOCUMENTS:
        print_document(_DOCUMENTS[options.output](look, _shown(look, options.all), eye.settings))
    else:
        print(_render(look, options, find_screen()))
    warn(look.warnings)
    return 0


def _watch(options: argparse.Namespace) -> int:
    if options.output not in _TEXTS:
        raise SettingsError(f"--watch goes with -o {', '.join(_TEXTS)}, not with {options.output}")
    eye, screen = Eye(options), find_screen()
    if eye.reads_capture:
        raise SettingsError("--watch goes with a node: a capture does not change")
    from dranet.cli.devices_watch import follow, redrawing, telling  # it asks the kernel

    if screen.lines is None:
        follow(eye, telling(lambda decision: decision.published or options.all))
    else:
        follow(eye, redrawing(lambda look: _render(look, options, screen), screen))
        print()  # the terminal shows ^C, and the shell's prompt goes below it
    return 0


def _shown(look: NodeView, shows_all: bool) -> Sequence[Decision]:
    return [decision for decision in look.decisions if decision.published or shows_all]


def _render(look: NodeView, options: argparse.Namespace, screen: Screen) -> str:
    shown = _shown(look, options.all)
    lines = _TEXTS[options.output](look, shown, screen) if shown else []
    return "\n".join([*lines, *([""] if lines else []), summarize(look.decisions, options.all)])


def _as_wide(look: NodeView, shown: Sequence[Decision], screen: Screen) -> list[str]:
    reader = DeviceSummarizer(look.facts)
    gpus = [device for device in look.devices if device.kind is DeviceKind.GPU]

    def cells(device: Device) -> tuple[str, ...]:
        seen = reader.read(device)
        near = nearest(device, gpus) if device.kind is not DeviceKind.GPU else None
        details = (seen.state, seen.speed, seen.rate, first_of(seen.addresses), seen.sriov, seen.model)
        allocated = None if look.allocated is None else look.allocated.get(device.name, 0)
        return (*_place(device), *details, nearest_text(near), bandwidth_text(device.bandwidth, allocated))

    header: tuple[str, ...] = (
        *_PLACE,
        "STATE",
        "SPEED",
        "RATE",
        "ADDRESS",
        "SR-IOV",
        "MODEL",
        "NEAREST GPU",
    )
    if any(decision.device.bandwidth for decision in shown):
        header = (*header, "BANDWIDTH")
    return _table(header, lambda device: cells(device)[: len(header)], shown, screen)


_PLACE = ("DEVICE", "KIND", "LINK", "RDMA", "NUMA", "PCIE ROOT")


def _place(device: Device) -> tuple[str, ...]:
    numa = "" if device.numa_node is None else str(device.numa_node)
    return (device.name, str(device.kind), device.ifname, device.rdma_device, numa, device.pcie_root)


def _table(
    header: Sequence[str], cells: Callable[[Device], Sequence[str]], shown: Sequence[Decision], screen: Screen
) -> list[str]:
    """Held-back devices are muted and have their reason at the end."""
    rows = [[cell or UNKNOWN for cell in cells(decision.device)] for decision in shown]
    if any(decision.answer != "yes" for decision in shown):
        header = (*header, "OFFERED")
        for row, decision in zip(rows, shown, strict=True):
            row.append(decision.answer)
    first, *blocks = format_table(header, rows, screen.columns)
    lines = [screen.bold(line) for line in first]
    for decision, block in zip(shown, blocks, strict=True):
        lines += block if decision.published else map(screen.dim, block)
    return lines


_TEXTS: dict[str, Callable[[NodeView, Sequence[Decision], Screen], list[str]]] = {
    "table": lambda _, shown, screen: _table(_PLACE, _place, shown, screen),
    "wide": _as_wide,
    "tree": draw_topology,
}
_DOCUMENTS: dict[str, Callable[[NodeView, Sequence[Decision], Settings], str]] = {
    "json": lambda look, shown, _: to_json(describe_devices(look, shown)),
    "yaml": lambda look, shown, _: to_yaml([describe_devices(look, shown)]),
    "slices": lambda look, _, settings: to_yaml(
        build_slice_objects(look, settings.driver_name, look.node_name(settings))
    ),
}

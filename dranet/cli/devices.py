"""``dranet devices``: what this node offers, what is known of it, and why a device is not offered."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dranet.cli.look import Eye, add_look_flags, warn
from dranet.cli.topology import draw_topology
from dranet.errors import SettingsError
from dranet.inventory.policy import Decision
from dranet.inventory.topology import nearest
from dranet.kernel.discovery.watch import EVERYTHING, ChangeWatch, Patience
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.pictures.summary import UNKNOWN, DeviceSummarizer, first_of, nearest_text, summarize
from dranet.settings import Settings
from dranet.terminal import Screen, find_screen, format_table, never_fail_to_print, print_document, printable
from dranet.view.node_view import NodeView, build_slice_objects, describe_devices, to_json, to_yaml


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "devices",
        help="list the devices of this node, or of a capture, and why one is not offered",
        description="Scan this node and list its devices. Reads only; needs neither a cluster nor root.",
        usage="%(prog)s [-o FORM] [--all] [--watch] [--facts FILE] [settings]",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=(*_TEXTS, *_DOCUMENTS),
        metavar="FORM",
        default="table",
        help="table (default); wide: with addresses, state, speed, model; tree: where each sits; json and "
        "yaml: everything known; slices: the ResourceSlices that dranet run would write",
    )
    parser.add_argument(
        "-a", "--all", action="store_true", help="also list what is not offered, with the reason"
    )
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="go on: redraw on every change; in a pipe print a line for each device that came, went or "
        "changed",
    )
    add_look_flags(parser, ("driver_name", "node_name"))
    parser.epilog = (
        "GPUs: with publish_gpus auto they are listed as offered. Whether another driver serves them, so "
        "that they are left to it, only the running driver knows, from the API server (/readyz?verbose)."
    )
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
        return (*_place(device), *details, nearest_text(near))

    header = (*_PLACE, "STATE", "SPEED", "RATE", "ADDRESS", "SR-IOV", "MODEL", "NEAREST GPU")
    return _table(header, cells, shown, screen)


_PLACE = ("DEVICE", "KIND", "LINK", "RDMA", "NUMA", "PCIE ROOT")


def _place(device: Device) -> tuple[str, ...]:
    numa = "" if device.numa_node is None else str(device.numa_node)
    return (device.name, str(device.kind), device.ifname, device.rdma_device, numa, device.pcie_root)


def _table(
    header: Sequence[str], cells: Callable[[Device], Sequence[str]], shown: Sequence[Decision], screen: Screen
) -> list[str]:
    """Held-back devices are muted and have their reason at the end."""
    rows = [[cell or UNKNOWN for cell in cells(decision.device)] for decision in shown]
    if not all(decision.published for decision in shown):
        header = (*header, "OFFERED")
        for row, decision in zip(rows, shown, strict=True):
            row.append("yes" if decision.published else f"no: {decision.reason}")
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


_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR_ALL = "\x1b[2J"

_PATIENCE = (Patience(settle_seconds=0.1, longest_seconds=1.0),)
"""A person is watching: nothing is delayed while much is going on, as it is in the driver."""

Show = Callable[[NodeView], None]


@dataclass(frozen=True, slots=True)
class Event:
    """What became of one device between two looks."""

    word: str
    name: str
    detail: str


def compare(before: Sequence[Decision], after: Sequence[Decision]) -> Iterator[Event]:
    """One event for each device that came, went or changed, in the order of the later look."""
    known = {decision.device.name: decision for decision in before}
    for decision in after:
        old = known.pop(decision.device.name, None)
        if old is None:
            yield Event("came", decision.device.name, describe(decision))
        elif changes := _changes(old, decision):
            yield Event("changed", decision.device.name, "; ".join(changes))
    for name, decision in known.items():
        yield Event("gone", name, describe(decision))


def describe(decision: Decision) -> str:
    """``nic eth1, offered``; ``nic lo, not offered: is the loopback``."""
    device = decision.device
    what = f"{device.kind} {device.ifname or device.rdma_device}".rstrip()
    return f"{what}, {_describe_change(decision)}"


def _describe_change(decision: Decision) -> str:
    return "offered" if decision.published else f"not offered: {decision.reason}"


def _changes(old: Decision, new: Decision) -> list[str]:
    states = [_describe_change(old), _describe_change(new)]
    changes = [" -> ".join(states)] if states[0] != states[1] else []
    before, after = old.device.attributes, new.device.attributes
    return changes + [
        f"{name}: {_value(before.get(name))} -> {_value(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _value(value: AttributeValue | None) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'


def redrawing(render: Callable[[NodeView], str], screen: Screen) -> Show:
    """Shows each look in place of the last, as much of it as the terminal has lines for."""

    def show(look: NodeView) -> None:
        title = f"{time.strftime('%H:%M:%S')}  every change is shown as it comes; Ctrl-C ends"
        lines = [screen.dim(screen.cut(title)), "", *render(look).splitlines()]
        room = (screen.lines or len(lines) + 1) - 1
        if len(lines) > room:
            lines[room - 1 :] = [screen.dim(f"... and {len(lines) - room + 1} more lines")]
        body = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
        sys.stdout.write(f"{_HOME}{body}{_CLEAR_BELOW}")
        sys.stdout.flush()

    sys.stdout.write(_CLEAR_ALL)
    return show


def telling(shows: Callable[[Decision], bool]) -> Show:
    """Print what became of each device, a line each. ``shows`` selects the devices."""
    before: list[Decision] | None = None

    def show(look: NodeView) -> None:
        nonlocal before
        after = [decision for decision in look.decisions if shows(decision)]
        now = time.strftime("%H:%M:%S")
        for event in compare(before or (), after):
            word = "here" if before is None else event.word
            print(printable(f"{now}  {word:7}  {event.name}  {event.detail}"))
        sys.stdout.flush()
        before = after

    return show


def follow(eye: Eye, show: Show) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(eye, show))


async def _follow(eye: Eye, show: Show) -> None:
    """A change that comes during a look is not lost: the watch has it when the look is over."""
    changes, warned = EVERYTHING, frozenset[str]()
    async with ChangeWatch(_PATIENCE) as watch:
        while True:
            look = eye.look(changes)
            show(look)
            warn(look.warnings, warned)
            warned |= frozenset(look.warnings)
            try:
                async with asyncio.timeout(eye.settings.rescan_seconds):
                    changes = await watch.wait_changed()
            except TimeoutError:
                changes = EVERYTHING  # not every change is notified

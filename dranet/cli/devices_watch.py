"""``dranet devices --watch``: every change of the node's devices as it comes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dranet.cli.look import Eye, warn
from dranet.inventory.policy import Decision
from dranet.kernel.discovery.watch import EVERYTHING, ChangeWatch, Patience
from dranet.model.device import AttributeValue
from dranet.terminal import Screen, printable
from dranet.view.node_view import NodeView

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
    if not decision.published:
        return f"not offered: {decision.reason}"
    return f"offered, in pod {decision.pod}" if decision.pod else "offered"


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

"""``dranet devices --watch``: the list again on every change, or what changed, line by line."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dranet.cli.look import Eye, warn
from dranet.inventory.policy import Decision
from dranet.kernel.discovery.changes import EVERYTHING
from dranet.kernel.discovery.watch import ChangeWatch, Patience
from dranet.model.device import AttributeValue
from dranet.terminal import Screen, printable
from dranet.view.node_view import NodeView

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR_ALL = "\x1b[2J"

_PATIENCE = (Patience(settle_seconds=0.1, longest_seconds=1.0),)
"""A person is watching: nothing is delayed while much is going on, as it is in the driver."""


@dataclass(frozen=True, slots=True)
class Event:
    """What became of one device between two looks. ``word`` is ``here`` in the first one."""

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
    return f"{what}, {_describe_state(decision)}"


def _describe_state(decision: Decision) -> str:
    return "offered" if decision.published else f"not offered: {decision.reason}"


def _changes(old: Decision, new: Decision) -> list[str]:
    changes = []
    if (old.published, old.published or old.reason) != (new.published, new.published or new.reason):
        changes.append(f"{_describe_state(old)} -> {_describe_state(new)}")
    return changes + _attribute_changes(old.device.attributes, new.device.attributes)


def _attribute_changes(old: Mapping[str, AttributeValue], new: Mapping[str, AttributeValue]) -> list[str]:
    return [
        f"{name}: {_value(old.get(name))} -> {_value(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _value(value: AttributeValue | None) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'


Show = Callable[[NodeView], None]


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
        if before is None:
            _print_events(Event("here", decision.device.name, describe(decision)) for decision in after)
        else:
            _print_events(compare(before, after))
        before = after

    return show


def _print_events(events: Iterable[Event]) -> None:
    now = time.strftime("%H:%M:%S")
    for event in events:
        print(printable(f"{now}  {event.word:7}  {event.name}  {event.detail}"))
    sys.stdout.flush()


def follow(eye: Eye, show: Show) -> None:
    """NodeView and show, again and again, until Ctrl-C."""
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

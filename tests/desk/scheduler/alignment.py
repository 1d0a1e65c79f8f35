"""``claim new`` on each layout with GPUs: what it expects, what is possible, and what pods got.

Each node is filled with pods of one claim by a real scheduler. Distances are those of the places in the
layout's facts, not of what is published. What is possible is the best of what the pods before have left.
Where a device plugin has the GPUs, no claim asks for them, and the kubelet chooses after the scheduler: the
second table has the odds of devices that are chosen apart.

Exit codes: 0 every pod has the best distance; 1 some has not; 3 this machine lacks what is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dranet.claims.alignment import best_possible, level
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.plugin_notes import find_luck
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.shapes import Shape
from dranet.model.facts import Distance
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from tests.desk.scheduler.claim_new import Asked, fill_all
from tests.desk.scheduler.layouts import Machine, list_machines
from tests.desk.scheduler.settings import SETTINGS, Setting
from tests.desk.templates.distances import distances_of, good_nics, has_rdma
from tests.desk.templates.layout_clusters import PLUGIN_RESOURCE, Gpus, World, node_of, plugin_world, world

FAILED, CANNOT_RUN_HERE = 1, 3
ASKS = {
    "1/1": ClaimRequest(1, 1),
    "2/2": ClaimRequest(2, 2),
    "4/4": ClaimRequest(4, 4),
    "whole node": ClaimRequest(1, 1, per_node=True),
}
"""GPUs and NICs of each pod."""
PLUGIN_ASKS = {
    **{claim: replace(ask, gpu_resource=PLUGIN_RESOURCE) for claim, ask in ASKS.items()},
    "1/1 --each-numa": ClaimRequest(1, 1, each_numa=True, gpu_resource=PLUGIN_RESOURCE),
}
PUBLISHERS = (Gpus.OURS, Gpus.VENDOR, Gpus.VENDOR_NUMA)
_LISTS_WITHOUT_USE = "1.36 with list attributes"
"""There the gate does not reach the scheduler's allocator, so that the driver's setting stays off."""

Distances = Sequence[Distance | None]


_SHORT = {
    Gpus.OURS: "ours",
    Gpus.VENDOR: "vendor's without numaNode",
    Gpus.VENDOR_NUMA: "vendor's with numaNode",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a claim on a layout."""

    layout: str
    form: str
    """What ``claim new`` writes."""
    expected: str
    best: str
    got: str
    """Distances of all pods of the full node."""


_Found = Mapping[Row, Mapping[tuple[str, str], Sequence[str]]]
"""By row, then by publisher and claim, the schedulers."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    names = [
        f"{version} {name}" for version in options.versions for name in ("defaults", "with list attributes")
    ]
    settings = [s for s in SETTINGS if f"{s.version} {s.name}" in {*names} - {_LISTS_WITHOUT_USE}]
    try:
        kits = {version: find_kit(build.print_progress, version) for version in options.versions}
        return run_isolated(lambda: asyncio.run(_run(kits, settings, options.layouts)))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        sys.stdout.write(f"skipped: {missing}\n")
        return CANNOT_RUN_HERE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    versions = sorted({setting.version for setting in SETTINGS})
    parser = argparse.ArgumentParser(prog="python -m tests.desk.scheduler.alignment", description=__doc__)
    parser.add_argument("--versions", nargs="+", choices=versions, default=versions)
    parser.add_argument("--layouts", nargs="+", metavar="LAYOUT", help="default: each that has GPUs and NICs")
    return parser.parse_args(arguments)


async def _run(
    kits: Mapping[str, ControlPlaneKit], settings: Sequence[Setting], layouts: Sequence[str] | None
) -> int:
    """In the private tree."""
    found: dict[Row, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for setting in settings:
        machines = list_machines(PUBLISHERS, tuple(ASKS.values()), has_lists=setting.dialect.lists)
        wanted = [machine for machine in machines if _is_wanted(machine, layouts)]
        async for filled in fill_all(kits[setting.version], setting, wanted, Path(WORK_DIR)):
            for asked in filled:
                if asked.choice and not asked.machine.is_nearest:
                    who = _SHORT[asked.machine.gpus], _name_claim(asked)
                    found[judge(asked)][who].append(_name_setting(setting))
    _print_rows(found, list(map(_name_setting, settings)))
    _print_odds(sorted({row.layout for row in found}))
    return FAILED if any(row.got != row.best for row in found) else 0


def _is_wanted(machine: Machine, layouts: Sequence[str] | None) -> bool:
    """Whether it has GPUs and NICs, and its GPUs are not published as another publisher's."""
    mine = machine.world
    if not (mine.gpus and mine.nics) or (layouts and machine.layout not in layouts):
        return False
    is_same = mine.slices == world(machine.layout, Gpus.VENDOR, machine.node, machine.has_lists).slices
    return machine.gpus is not Gpus.VENDOR_NUMA or not is_same


def judge(asked: Asked) -> Row:
    """Compare what the pods got with what ``claim new`` expects and with what was possible."""
    machine = asked.machine
    mine = machine.world
    got: list[Distance | None] = []
    best: list[Distance | None] = []
    taken: set[str] = set()
    for devices in asked.filling.pods:
        best += _find_best(mine, machine.ask, devices, taken)
        got += distances_of(mine.devices(devices), mine)
        taken |= devices
    expected = [found for pod in asked.expected for found in pod.distances]
    assert asked.choice is not None
    form = describe_form(asked.choice.attempt.shape)
    return Row(machine.layout, form, *map(describe, (expected, best, got)))


def describe_form(shape: Shape) -> str:
    """``match pcieRoot, else 2 groups, else any``."""
    steps = (
        f"match {relation.attribute.rpartition('/')[2]}"
        if relation.attribute
        else f"{len(relation.groups)} groups"
        if relation.groups
        else relation.name
        for relation in shape.relations
    )
    return ", else ".join(steps) or shape.title


def _find_best(mine: World, ask: ClaimRequest, devices: Collection[str], taken: Collection[str]) -> Distances:
    """Of all that is free; a pod with the whole node has no choice."""
    gpus = [gpu for name, gpu in mine.gpus.items() if name not in taken]
    if ask.per_node:
        return best_possible([mine.nics[name] for name in devices if name in mine.nics], gpus, len(devices))
    nics = good_nics(mine, ask.nics, has_rdma(mine))
    return best_possible([nic for nic in nics if nic.name not in taken], gpus, ask.nics)


def describe(distances: Iterable[Distance | None]) -> str:
    """``6 PIX, 2 NODE``."""
    counts = Counter(sorted(distances, key=level))
    words = ("unknown" if found is None else found.name for found in counts)
    return ", ".join(f"{count} {word}" for count, word in zip(counts.values(), words, strict=True)) or "none"


def _name_claim(asked: Asked) -> str:
    return next(name for name, ask in ASKS.items() if ask == asked.machine.ask)


def _name_setting(setting: Setting) -> str:
    return setting.version + (" with lists" if setting.dialect.lists else "")


def _print_rows(found: _Found, every: Sequence[str]) -> None:
    """A row for all publishers and claims that have it on the same schedulers."""
    lines = []
    for layout in sorted({row.layout for row in found}):
        rows = {row: settings_of for row, settings_of in found.items() if row.layout == layout}
        publishers = list(dict.fromkeys(publisher for row in rows.values() for publisher, _ in row))
        for row, settings_of in rows.items():
            for some, claims, where in _join(settings_of):
                names = _all_or(some, publishers), _all_or(claims, list(ASKS)), _all_or(where, every)
                lines.append((layout, *names[:2], row.form, row.expected, row.best, row.got, names[2]))
    header = ("layout", "GPUs", "of each", "`claim new` writes", "expected", "possible", "pods got", "on")
    _print_table(header, lines)


def _all_or(some: Sequence[str], every: Sequence[str]) -> str:
    return "all" if set(some) == set(every) else ", ".join(some)


def _join(
    settings_of: Mapping[tuple[str, str], Sequence[str]],
) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[str]]]:
    """Publishers, claims and schedulers of each row."""
    claims_on: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (publisher, claim), settings in settings_of.items():
        claims_on[publisher, tuple(settings)].append(claim)
    publishers_on: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for (publisher, where), claims in claims_on.items():
        publishers_on[tuple(claims), where].append(publisher)
    for (joined, where), publishers in publishers_on.items():
        yield publishers, joined, where


def _print_odds(layouts: Iterable[str]) -> None:
    """What a claim for NICs gets beside GPUs of a device plugin, without a scheduler."""
    rows = [(layout, *(find_odds(layout, ask) for ask in PLUGIN_ASKS.values())) for layout in layouts]
    _print_table(("layout, GPUs of a device plugin", *PLUGIN_ASKS), rows)


def find_odds(layout: str, ask: ClaimRequest) -> str:
    """``PIX in 1/8, NODE in 3/8, SYS in 1/2``, of a pod's farthest NIC; ``none`` where nothing is written."""
    machine = plugin_world(layout)
    try:
        choice = choose_claim(ask, read_hardware(machine.slices, [node_of(machine)]))
    except NotAvailable:
        return "none"
    (trial,) = choice.attempt.trials
    odds = find_luck(choice, trial)
    return str(odds) if odds else describe(trial.pods[0].distances)


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [header, ["---"] * len(header), *rows]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

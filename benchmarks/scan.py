"""Scans of 10, 100 and 1,000 links against iproute2 reading the same; changes, memory, storms, idle.

Floor of a full scan: ``ip -details -json link`` and then ``ip -json addr``, as two child processes, output
read and thrown away. Ours additionally reads routes, PCI, RDMA and GPU facts of the running machine. Floor
of a rescan: the full scan itself, measured in turn.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.measure import Result, Series, time_in_turn, time_ms
from dranet.driver.publish import Inventory
from dranet.inventory.policy import Policy
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.discovery.watch import EVERYTHING, Changes, ChangeWatch
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from testbed.isolation import WORK_DIR

SYSFS, PROCFS = Path("/sys"), Path("/proc")

SIZES = (10, 100, 1000)
RUNS = 15
BOUND = 2.0

RESCAN_RUNS = 31
RESCAN_BOUND = 0.1
CHANGED_LINK = "v7"

RESCANS = 1000
GROWTH_BOUND_MB = 1.0
"""Between the 100th rescan and the 1,000th; one that kept its facts would add a megabyte each."""

STORM_EVENTS = 5000
STORM_BOUND_SCANS = 3.0

IDLE_SECONDS = 5.0
IDLE_BOUND_MS = 5.0
"""CPU time in five seconds with 1,000 links: a tenth of a percent of one core."""


def run() -> Iterator[Result]:
    """Links are veth ends with one address each, added as the size grows."""
    made = 0
    for size in SIZES:
        _add_links(made, size)
        made = size
        ours, floor = time_in_turn(_scan, _read_with_ip, RUNS)
        title = f"scan of {size} links"
        yield Result(title, Series(title, tuple(ours)), Series("ip link + ip addr", tuple(floor)), BOUND)
    yield _measure_rescan("the kernel's facts", *_scanning())
    with _inventory() as inventory:
        yield _measure_rescan("scan, build, decide", inventory.scan, inventory.scan)
        yield _measure_growth(inventory)
    yield asyncio.run(_measure_storm())
    yield asyncio.run(_measure_idle())


def _scan() -> None:
    NodeScanner(SYSFS, PROCFS).read()


def _read_with_ip() -> None:
    for arguments in (("-details", "-json", "link"), ("-json", "addr")):
        subprocess.run(("ip", *arguments), check=True, stdout=subprocess.DEVNULL)


# --- after one change -----------------------------------------------------------------------------------

Scan = Callable[[Changes], object]


def _scanning() -> tuple[Scan, Scan]:
    """What rescans, and what reads everything as at the start of the driver."""
    scanner = NodeScanner(SYSFS, PROCFS)
    scanner.read()
    return scanner.read, lambda _: _scan()


@contextmanager
def _inventory() -> Iterator[Inventory]:
    with closing(ClaimStore(WORK_DIR / "scan.db")) as store:
        store.open()
        inventory = Inventory(NodeScanner(SYSFS, PROCFS), Policy, store, Metrics())
        inventory.scan()
        yield inventory


def _measure_rescan(what: str, rescan: Scan, scan_all: Scan) -> Result:
    """An address comes or goes between the measurements, so that there is something new to read."""
    changer = _Changer()
    pairs = [_time_pair(changer, rescan, scan_all) for _ in range(RESCAN_RUNS + 1)][1:]
    ours, floor = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    title = f"rescan after one change of {SIZES[-1]} links: {what}"
    return Result(title, Series(title, tuple(ours)), Series("full scan", tuple(floor)), RESCAN_BOUND)


class _Changer:
    """Adds and removes one address in turn."""

    def __init__(self) -> None:
        self.changes = Changes(links=frozenset({socket.if_nametoindex(CHANGED_LINK)}))
        self._verb = "add"

    def change(self) -> None:
        arguments = ("ip", "addr", self._verb, "198.51.100.1/32", "dev", CHANGED_LINK)
        subprocess.run(arguments, check=True)
        self._verb = "del" if self._verb == "add" else "add"


def _time_pair(changer: _Changer, rescan: Scan, scan_all: Scan) -> tuple[float, float]:
    changer.change()
    return time_ms(lambda: rescan(changer.changes)), time_ms(lambda: scan_all(EVERYTHING))


def _measure_growth(inventory: Inventory) -> Result:
    changer = _Changer()
    sizes: dict[int, float] = {}
    for number in range(1, RESCANS + 1):
        if number % 50 == 0:
            changer.change()
            inventory.scan()
        inventory.scan(changer.changes)
        if number in (RESCANS // 10, RESCANS):
            sizes[number] = _read_rss_mb()
    growth = sizes[RESCANS] - sizes[RESCANS // 10]
    title = f"growth from rescan {RESCANS // 10} to {RESCANS}, {SIZES[-1]} links"
    return Result(title, Series("VmRSS", (growth,), unit="MB"), bound=GROWTH_BOUND_MB)


def _read_rss_mb() -> float:
    match = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None, "Linux shows every process its size"
    return int(match[1]) / 1024


# --- notifications --------------------------------------------------------------------------------------


async def _measure_storm() -> Result:
    """Counts the scans that a storm causes, until it is over and the last one done."""
    scanner = NodeScanner(SYSFS, PROCFS)
    await asyncio.to_thread(scanner.read)
    scans = 0
    async with ChangeWatch() as watch:
        storm = asyncio.create_task(asyncio.to_thread(_storm))
        while True:
            try:
                changes = await asyncio.wait_for(watch.wait_changed(), IDLE_SECONDS if storm.done() else None)
            except TimeoutError:
                break
            await asyncio.to_thread(scanner.read, changes)
            scans += 1
        await storm
    title = f"scans in a storm of {STORM_EVENTS} link events"
    return Result(title, Series("scans", (float(scans),), unit="scans"), bound=STORM_BOUND_SCANS)


def _storm() -> None:
    lines = [f"link set v{number % SIZES[-1]} mtu {1300 + number % 7}" for number in range(STORM_EVENTS)]
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)


async def _measure_idle() -> Result:
    async with ChangeWatch() as watch:
        before = time.process_time()
        try:
            await asyncio.wait_for(watch.wait_changed(), IDLE_SECONDS)
        except TimeoutError:
            spent = (time.process_time() - before) * 1000
        else:
            raise RuntimeError("something changed on an idle node")
    title = f"CPU time in {IDLE_SECONDS:g} s without a change"
    return Result(title, Series("CPU", (spent,)), bound=IDLE_BOUND_MS)


def _add_links(first: int, end: int) -> None:
    lines = []
    for number in range(first, end, 2):
        lines += [
            f"link add v{number} type veth peer name v{number + 1}",
            f"addr add 10.{number // 250}.{number % 250}.1/24 dev v{number}",
            f"addr add 10.{100 + number // 250}.{number % 250}.1/24 dev v{number + 1}",
        ]
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)

"""What a phase costs: requests and bytes of the drivers, processor time of each program, the size of etcd."""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import read_processor_seconds
from benchmarks.scale_cluster.counting import Traffic
from benchmarks.scale_cluster.fleet import Fleet
from e2e.cluster.config import ETCD_URL
from e2e.cluster.controlplane import ControlPlane

SETTLED_SECONDS = 600.0
POLL_SECONDS = 0.25
QUIET_SECONDS = 2.0
PROGRAMS = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager")
DRIVERS = "drivers"
_DATABASE = "etcd_mvcc_db_total_size_in_bytes"

IsOver = Callable[[Traffic], bool]
"""Whether the requests since the beginning of a phase are all of it, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One row of the table."""

    title: str
    seconds: float
    """Until it was over; of an idle phase, all of it."""
    traffic: Traffic
    processor: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each program."""
    database: float = 0.0
    """Bytes of etcd's file at the end."""

    def as_json(self) -> dict[str, Any]:
        traffic = self.traffic
        return {
            "title": self.title,
            "seconds": round(self.seconds, 1),
            "requests": dict(sorted(traffic.requests.items())),
            "retries": dict(traffic.retries),
            "connections": traffic.connections,
            "bytes_to_server": traffic.bytes_out,
            "bytes_from_server": traffic.bytes_in,
            "slowest_request_seconds": round(traffic.slowest, 2),
            "processor_seconds": {name: round(value, 1) for name, value in self.processor.items()},
            "etcd_bytes": int(self.database),
        }


class Meter:
    """Measures one phase after the other."""

    def __init__(self, plane: ControlPlane, fleet: Fleet) -> None:
        self._plane = plane
        self._fleet = fleet
        self._ended: dict[str, float] = {}
        """Processor time of programs that were ended, by name."""

    async def measure(self, title: str, act: Callable[[], Awaitable[object]], is_over: IsOver) -> Phase:
        """Act, wait until it is over, and then until no driver asks any more."""
        await self._begin(title)
        before, began, processor = await self._fleet.read(), time.time(), self._read_processor()
        await act()
        over, traffic = await self._wait_over(before, is_over)
        seconds = over - began
        return await self._finish(title, seconds, traffic, processor)

    async def watch(self, title: str, seconds: float) -> Phase:
        """Do nothing for a while."""
        await self._begin(title)
        before, processor = await self._fleet.read(), self._read_processor()
        await asyncio.sleep(seconds)
        traffic = (await self._fleet.read()).since(before)
        return await self._finish(title, seconds, traffic, processor)

    async def restart_apiserver(self) -> None:
        name = "kube-apiserver"
        self._ended[name] = self._ended.get(name, 0.0) + read_processor_seconds(
            self._plane.programs.pid(name)
        )
        await self._plane.programs.kill(name)
        await self._plane.start_apiserver()

    async def _begin(self, title: str) -> None:
        print_progress(f"{title} ...")
        await self._fleet.order("begin_phase")

    async def _wait_over(self, before: Traffic, is_over: IsOver) -> tuple[float, Traffic]:
        over = 0.0
        async with asyncio.timeout(SETTLED_SECONDS):
            while True:
                traffic = (await self._fleet.read()).since(before)
                over = (over or time.time()) if is_over(traffic) else 0.0
                if over and time.time() - max(over, traffic.last) > QUIET_SECONDS:
                    return over, traffic
                print_progress(
                    f"  {traffic.requests.total():,} requests, {traffic.published:,} nodes published", "\r"
                )
                await asyncio.sleep(POLL_SECONDS)

    async def _finish(
        self, title: str, seconds: float, traffic: Traffic, processor: Mapping[str, float]
    ) -> Phase:
        after = self._read_processor()
        used = {name: after[name] - processor[name] for name in after}
        print_progress(f"  {traffic.requests.total():,} requests, {seconds:.1f} s")
        return Phase(title, seconds, traffic, used, await asyncio.to_thread(_read_database))

    def _read_processor(self) -> dict[str, float]:
        programs = self._plane.programs
        used = {
            name: read_processor_seconds(programs.pid(name)) + self._ended.get(name, 0.0) for name in PROGRAMS
        }
        return {**used, DRIVERS: sum(map(read_processor_seconds, self._fleet.pids))}


def _read_database() -> float:
    with urllib.request.urlopen(f"{ETCD_URL}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return next(sample.value for family in families for sample in family.samples if sample.name == _DATABASE)


def print_progress(text: str, end: str = "\n") -> None:
    """Show progress on standard error; a line that ends with a return is for terminals alone."""
    if end == "\n" or sys.stderr.isatty():
        print(text, end=end, file=sys.stderr, flush=True)

"""What one node asks of the API server, phase by phase, and what that is for a cluster of 5,000.

The driver is real, the API server and everything around it are the testbed's. Requests, bytes (heads
included) and watch events are counted, not timed: a busy machine changes nothing. It runs by itself, ``python
-m benchmarks.scale``, and prints the tables of ``docs/dev/scale.md``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dranet.cluster.client import SPREAD_SECONDS
from dranet.cluster.messages import USER_AGENT
from testbed.apiserver.traffic import RequestRecord, Traffic
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR, run_isolated
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in

HARDWARE = "dgx-h100"
SCANS = 5
"""Full scans of the idle node, one a second instead of one a minute."""
NODES = 5000
SETTLED_SECONDS = 20.0
QUIET_SECONDS = 1.5
"""A phase is over after this many seconds without a request."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What the driver asked of the API server meanwhile."""

    title: str
    traffic: Traffic
    calls: Counter[str]

    def as_row(self) -> tuple[str, ...]:
        calls = ", ".join(f"{count} {call}" for call, count in sorted(self.calls.items())) or "nothing"
        sums = self.traffic
        numbers = (sums.requests, sums.bytes_in, sums.bytes_out, sums.events)
        return (self.title, *(f"{number:,}" for number in numbers), calls)


class Meter:
    """Counts what the driver asks from one reading to the next."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._sums, self._seen = Traffic(), 0

    async def read(self, title: str) -> Phase:
        """Wait until the driver is quiet; return its requests since the last reading."""
        await self._wait_quiet()
        before, now = self._sums, self._testbed.server.traffic().get(USER_AGENT, Traffic())
        records = self._records()
        fresh, self._seen, self._sums = records[self._seen :], len(records), now
        change = Traffic(
            now.requests - before.requests,
            now.watches - before.watches,
            now.bytes_in - before.bytes_in,
            now.bytes_out - before.bytes_out,
            now.events - before.events,
        )
        return Phase(title, change, Counter(map(_describe, fresh)))

    async def wait_watches(self, count: int) -> None:
        """Wait until the driver has begun so many watches since the last reading."""
        async with asyncio.timeout(SPREAD_SECONDS + SETTLED_SECONDS):
            while sum(record.method == "WATCH" for record in self._records()[self._seen :]) < count:
                await asyncio.sleep(0.2)

    def _records(self) -> list[RequestRecord]:
        return [record for record in self._testbed.server.requests if record.agent == USER_AGENT]

    async def _wait_quiet(self) -> None:
        seen = -1
        async with asyncio.timeout(SETTLED_SECONDS):
            while True:
                before, seen = seen, len(self._records())
                if before == seen:
                    return
                await asyncio.sleep(QUIET_SECONDS)


def _describe(record: RequestRecord) -> str:
    parts = record.path.strip("/").split("/")
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return f"{record.method} {'/'.join([*rest[:1], *rest[2:]])}"


async def measure() -> list[Phase]:
    async with Testbed(load_hardware(HARDWARE), stand_in, WORK_DIR, {"rescan_seconds": "1"}) as testbed:
        meter = Meter(testbed)
        testbed.driver = testbed.add_instance()
        await testbed.driver.start()
        await testbed.driver.wait_ready(SETTLED_SECONDS)
        phases = [await meter.read("start")]
        watches = phases[0].traffic.watches
        await _wait_scans(SCANS)
        phases.append(await meter.read(f"idle, {SCANS} full scans"))
        await testbed.apply(_pod(8))
        async with asyncio.timeout(SETTLED_SECONDS):
            await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
        phases.append(await meter.read("a pod with 8 NICs starts"))
        await testbed.delete_pod("worker")
        async with asyncio.timeout(SETTLED_SECONDS):
            await testbed.kubelet.wait_gone(testbed.pod_uid("worker"))
        phases.append(await meter.read("the pod ends"))
        testbed.server.drop_watches()
        await meter.wait_watches(watches)
        phases.append(await meter.read("the watch breaks"))
        testbed.server.compact()
        phases.append(await meter.read("the watch's history is lost (410)"))
        await testbed.roll_driver()
        phases.append(await meter.read("the driver is updated"))
        return phases


def _pod(count: int) -> list[dict[str, object]]:
    request = {"name": "nics", "exactly": {"deviceClassName": "nic", "count": count}}
    expression = 'device.attributes["dra.net"].?rdma.orValue(false)'
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "nic"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "dra.net" && {expression}'}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "nics"},
            "spec": {"devices": {"requests": [request]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "worker"},
            "spec": {
                "resourceClaims": [{"name": "nics", "resourceClaimName": "nics"}],
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nics"}]}}],
            },
        },
    ]


async def _wait_scans(count: int) -> None:
    """Read from the driver's metrics; the node is idle otherwise."""
    wanted = await asyncio.to_thread(_read_scans) + count
    async with asyncio.timeout(SETTLED_SECONDS):
        while True:
            if await asyncio.to_thread(_read_scans) >= wanted:
                return
            await asyncio.sleep(0.2)


def _read_scans() -> int:
    with urllib.request.urlopen("http://127.0.0.1:9177/metrics", timeout=5) as answer:
        lines: Sequence[str] = answer.read().decode().splitlines()
    name = 'dranet_inventory_scans_total{kind="full"} '
    return int(float(next(line for line in lines if line.startswith(name)).removeprefix(name)))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(header)} |")
    print(f"|---|{'---:|' * (len(header) - 2)}---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def _as_cluster_row(phase: Phase) -> tuple[str, ...]:
    """The same of every node at once."""
    sums = phase.traffic
    megabytes = [f"{count * NODES / 1e6:,.0f}" for count in (sums.bytes_in, sums.bytes_out)]
    return (phase.title, f"{sums.requests * NODES:,}", *megabytes, "all nodes at once")


def main() -> int:
    """One node, then all of them, as tables in Markdown."""
    logging.getLogger("dranet.cluster").setLevel(logging.ERROR)  # the testbed's own watches break as well
    phases = asyncio.run(measure())
    print_table(
        ("phase", "requests", "bytes to the server", "bytes from it", "watch events", "calls"),
        [phase.as_row() for phase in phases],
    )
    busy = [phase for phase in phases if phase.traffic.requests]
    header = (f"{NODES:,} nodes", "requests", "MB to the server", "MB from it", "when")
    print_table(header, [_as_cluster_row(phase) for phase in busy])
    return 0


if __name__ == "__main__":
    sys.exit(run_isolated(main))

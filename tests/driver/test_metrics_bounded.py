"""10,000 pods come and go: as many series as there were, and no more memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Collection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dranet.driver.metrics.reading import CounterReader, Place, Readings, Snapshot
from dranet.driver.metrics.scrape import Scraper
from dranet.kernel.counters import Traffic
from dranet.model.plan import PreparedClaim
from dranet.settings import DeviceMetrics
from dranet.telemetry import Metrics, PreparePhase
from tests.driver.metrics_node import Node, nic

PODS = 10_000
AT_A_TIME = 8
SETTLED = 1_000
SCRAPE_EVERY = 50
MOST_GROWTH_BYTES = 64 * 1024
"""Over 9,000 pods. One label set with a pod's name, kept, would be over a megabyte."""
TRAFFIC = Traffic(*range(8))


class FastReader(CounterReader):
    """Every link has counted something; no kernel is asked."""

    def read(self, snapshot: Snapshot, into: Readings, avoid: Collection[Place] = ()) -> None:
        assert not avoid
        for found in snapshot.in_pods:
            if found.seen is not None:
                into.traffic.setdefault(found.record.pod.uid, {}).update(  # type: ignore[attr-defined]
                    {found.seen.link.ifindex: TRAFFIC}
                )
        into.seconds.append(0.0)


class Walks:
    """What the driver records of one pod's life."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def begin(self, number: int) -> None:
        metrics, failed = self._metrics, number % 7 == 0
        with (
            metrics.time_dra("PrepareResourceClaims"),
            metrics.prepare.claim(metrics.prepare.prepare_seconds) as call,
        ):
            for phase in PreparePhase:
                with metrics.prepare.phase(phase):
                    pass
            if not failed:
                call.succeeded()
        metrics.runtime.observe("RunPodSandbox", "success", 0.02)
        metrics.attach.step_seconds.labels("move-link").observe(0.01)
        metrics.api.answered("get", "resourceclaims", 404 if failed else 200, 0.01)
        metrics.api.answered("get", f"somethings-{number}", 200, 0.01)

    def end(self) -> None:
        self._metrics.attach.detach_seconds.observe(0.02)
        self._metrics.runtime.observe("StopPodSandbox", "success", 0.02)


@pytest.mark.slow
async def test_series_and_memory_are_those_of_the_pods_that_are_there() -> None:
    metrics, devices = Metrics(), [nic(number) for number in range(AT_A_TIME)]
    node, walks = Node(devices), Walks(metrics)
    scraper = Scraper(metrics, node.take, FastReader(Path("/nowhere")), DeviceMetrics.PODS, keep_seconds=0)
    living: list[PreparedClaim] = []
    sizes: dict[int, int] = {}
    memory: dict[int, int] = {}
    tracemalloc.start()
    try:
        for number in range(PODS + 1):
            if len(living) == AT_A_TIME:
                node.end_pod(living.pop(0))
                walks.end()
            living.append(node.add_pod(f"pod-{number}", [devices[number % AT_A_TIME]]))
            walks.begin(number)
            if number % SCRAPE_EVERY == 0:
                text = (await scraper.render()).decode()
                if number in (SETTLED, PODS):
                    sizes[number] = count_series(text)
                    assert read_pods(text) == {record.pod.name for record in living}
                    del text
                    gc.collect()
                    memory[number] = measure_memory()
    finally:
        tracemalloc.stop()
    assert sizes[PODS] == sizes[SETTLED]
    assert memory[PODS] - memory[SETTLED] < MOST_GROWTH_BYTES
    for record in living:
        node.end_pod(record)
    assert read_pods((await scraper.render()).decode()) == set()


def measure_memory() -> int:
    """Return the bytes that are allocated, without those of pytest-xdist, which reports tests meanwhile."""
    snapshot = tracemalloc.take_snapshot()
    reports = [tracemalloc.Filter(False, f"*/{package}/*") for package in ("execnet", "xdist")]
    return sum(trace.size for trace in snapshot.filter_traces(reports).traces)


def count_series(text: str) -> int:
    return sum(not line.startswith("#") for line in text.splitlines())


def read_pods(text: str) -> set[str]:
    families = text_string_to_metric_families(text)
    return {s.labels["pod"] for family in families for s in family.samples if "pod" in s.labels}

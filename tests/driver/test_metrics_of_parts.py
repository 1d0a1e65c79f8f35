"""What the driver's parts tell the recorder, with the real store, kernel and queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dranet.driver.reports.reporter import Backlog
from dranet.errors import KernelError
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.driver.bench import Bench, sandbox
from tests.driver.test_report import AWAY, CLAIM, NOTE, OTHER, RecordingReporter, RecordingWriter, a_status
from tests.support.namespaces import Namespace
from tests.support.waiting import until


def read(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.kernel
def test_an_attach_tells_its_steps_a_release_its_time_and_a_failure_that_it_was_undone(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    metrics = bench.metrics
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    assert read(metrics, "dranet_attach_step_seconds_count", step="move-link") == 1
    assert read(metrics, "dranet_attach_step_seconds_count", step="set-up") <= 1
    assert read(metrics, "dranet_detach_seconds_count") == 0
    bench.stop_sandbox(sandbox(pod))
    assert read(metrics, "dranet_detach_seconds_count") == 1
    assert read(metrics, "dranet_attach_rollbacks_total") == 0
    pod.ip("link", "add", "net1", "type", "veth", "peer", "name", "other")
    with pytest.raises(KernelError):
        bench.run_sandbox(sandbox(pod, 2))
    assert read(metrics, "dranet_attach_rollbacks_total") == 1
    assert read(metrics, "dranet_attach_step_seconds_count", step="move-link") == 1, "it was not taken"


@pytest.mark.kernel
def test_a_hook_that_is_not_done_in_time_is_counted(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.connected("impatient", "1", 0.001)
    bench.run_sandbox(sandbox(pod))
    assert read(bench.metrics, "dranet_hook_deadline_misses_total") == 1


@pytest.mark.kernel
def test_a_store_tells_how_long_the_disk_took_and_how_large_it_is(
    start: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()
    told: list[float] = []
    monkeypatch.setattr(bench.store, "_on_write", told.append)
    bench.prepare("eth1", "net1")
    assert len(told) == 1
    assert 0 < told[0] < 60
    assert bench.store.size_bytes == sum(file.stat().st_size for file in (tmp_path / "claims").iterdir())


def test_a_store_that_has_no_file_has_no_size(tmp_path: Path) -> None:
    assert ClaimStore(tmp_path / "claims").size_bytes == 0


async def test_the_queue_of_reports_tells_how_much_waits_and_since_when() -> None:
    writer = RecordingWriter(of_events=[AWAY] * 100)
    writer.always = {CLAIM.uid: AWAY, OTHER.uid: AWAY}
    reporter = RecordingReporter(writer)
    nothing = Backlog(0, 0.0)
    assert reporter.get_backlog("status") == reporter.get_backlog("event") == nothing
    run = asyncio.create_task(reporter.run())
    try:
        for claim in (CLAIM, OTHER):
            reporter.set_statuses(claim, [a_status("net")])
        reporter.add_event(NOTE)
        await until(lambda: writer.tries[CLAIM.uid] and writer.tries[OTHER.uid] and writer.event_tries)
        assert (reporter.get_backlog("status").waiting, reporter.get_backlog("event").waiting) == (2, 1)
        assert 0 < reporter.get_backlog("status").age_seconds < 60
        assert 0 <= reporter.get_backlog("event").age_seconds < 60
        reporter.set_statuses(CLAIM, [a_status("newer")])
        writer.always.clear()
        writer.event_failures.clear()
        assert await reporter.flush(30.0)
        assert reporter.get_backlog("status") == reporter.get_backlog("event") == nothing
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run

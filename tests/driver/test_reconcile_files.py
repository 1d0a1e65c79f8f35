"""Files against records, claims against the API server, and when both are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.containers import ContainerFiles
from dranet.driver.hooks import RuntimeView, SnapshotQueue
from dranet.driver.reconcile import ActionLog, OwnerReconciler, PodReconciler, ReconcileLoop, Reconcilers
from dranet.errors import ClaimError, ClusterError, DranetError, Reason, StoreError
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef, PodSandbox
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.runtime.containers import CdiSpecs
from dranet.telemetry import Metrics
from tests.driver.bench import Bench

CLAIM = ClaimRef("default", "claim", "claim-uid")
POD = PodRef("default", "pod", "pod-uid")
DEVICE = PreparedDevice("nic", "node", Device("net1", DeviceKind.NIC), plan=AttachPlan("net1"))
RECORD = PreparedClaim(CLAIM, POD, (DEVICE,), boot_id="boot")
ALLOCATED = Claim(CLAIM, allocated=True, results=(AllocationResult("nic", "dra.net", "node", "net1"),))


class TestFilesOfAClaim:
    @pytest.mark.kernel
    def test_a_spec_that_somebody_removed_is_found_missing_and_written_again(
        self, start: Callable[..., Bench]
    ) -> None:
        bench = start()
        record = bench.prepare("eth1", "net1")
        record = replace(record, devices=tuple(replace(d, cdi_ids=(_id(bench, d),)) for d in record.devices))
        bench.store.put(record)
        files = ContainerFiles(bench.gate, bench.cdi, None)
        files.write(record)
        assert bench.files.find_unfinished([record]) == ()
        bench.cdi.remove("claim-uid")
        assert bench.files.find_unfinished([record]) == (record,)
        bench.store.delete("claim-uid")
        assert bench.files.find_unfinished([record]) == (), "it was unprepared meanwhile"

    @pytest.mark.kernel
    def test_a_claim_of_which_containers_get_nothing_needs_no_file(self, start: Callable[..., Bench]) -> None:
        bench = start()
        assert bench.files.find_unfinished([bench.prepare("eth1", "net1")]) == ()


def _id(bench: Bench, device: PreparedDevice) -> str:
    return bench.cdi.device_id("claim-uid", device.device.name)


class Asked:
    """An API server with one claim, and a kubelet's call."""

    def __init__(self, answer: Claim | DranetError) -> None:
        self.answer = answer
        self.questions: list[ClaimRef] = []
        self.forgotten: list[ClaimRef] = []
        self.refusal = ""
        self.metrics = Metrics()
        self.clock = 0.0
        self.owners = OwnerReconciler(
            "dra.net", self.fetch, self.forget, ActionLog(self.metrics), 180.0, now=lambda: self.clock
        )

    async def fetch(self, ref: ClaimRef) -> Claim:
        self.questions.append(ref)
        if isinstance(self.answer, DranetError):
            raise self.answer
        return self.answer

    async def forget(self, ref: ClaimRef) -> str:
        self.forgotten.append(ref)
        return self.refusal

    async def look(self, times: int, record: PreparedClaim = RECORD, living: Sequence[str] = ()) -> None:
        """So many looks, of which each comes when the patience with the one before is over."""
        for _ in range(times):
            await self.owners.reconcile([record], living)
            self.clock += 180.0

    def counted(self, action: str, reason: str) -> float:
        labels = {"action": action, "reason": reason}
        found = self.metrics.registry.get_sample_value("dranet_reconcile_actions_total", labels)
        return found or 0.0


def no_claim(reason: Reason) -> ClaimError:
    return ClaimError("no such claim", reason=reason)


class TestOwners:
    async def test_a_claim_that_has_its_devices_stays(self) -> None:
        asked = Asked(ALLOCATED)
        await asked.look(5)
        assert asked.questions
        assert not asked.forgotten

    @pytest.mark.parametrize(
        ("reason", "why"),
        [
            (Reason.CLAIM_NOT_FOUND, "claim-deleted"),
            (Reason.CLAIM_REPLACED, "claim-deleted"),
            (Reason.CLAIM_NOT_ALLOCATED, "claim-moved"),
        ],
    )
    async def test_a_claim_that_nobody_has_is_unprepared_at_the_second_look(
        self, reason: Reason, why: str
    ) -> None:
        asked = Asked(no_claim(reason))
        await asked.look(1)
        assert not asked.questions, "a Prepare may just have been answered"
        await asked.look(1)
        assert asked.forgotten == [CLAIM]
        assert asked.counted("forgotten", why) == 1

    async def test_a_claim_whose_device_was_allocated_to_another_is_asked_about_at_once(self) -> None:
        asked = Asked(no_claim(Reason.CLAIM_NOT_FOUND))
        asked.owners.doubt(CLAIM.uid)
        await asked.look(1)
        assert asked.forgotten == [CLAIM]

    async def test_a_doubted_claim_that_has_its_devices_stays_and_is_doubted_once(self) -> None:
        asked = Asked(ALLOCATED)
        asked.owners.doubt(CLAIM.uid)
        for _ in range(3):
            await asked.owners.reconcile([RECORD], ())
        assert asked.questions == [CLAIM]
        assert not asked.forgotten

    async def test_a_doubted_claim_whose_pod_lives_is_not_asked_about(self) -> None:
        asked = Asked(no_claim(Reason.CLAIM_NOT_FOUND))
        asked.owners.doubt(CLAIM.uid)
        await asked.look(1, living=[RECORD.pod.uid])
        assert not asked.questions

    async def test_many_looks_in_a_row_are_no_reason_to_ask(self) -> None:
        asked = Asked(no_claim(Reason.CLAIM_NOT_FOUND))
        for _ in range(10):
            await asked.owners.reconcile([RECORD], ())
        assert not asked.questions

    async def test_a_claim_that_was_given_other_devices_is_unprepared(self) -> None:
        other = AllocationResult("nic", "dra.net", "node", "net2")
        asked = Asked(replace(ALLOCATED, results=(other,)))
        await asked.look(2)
        assert asked.forgotten == [CLAIM]
        assert asked.counted("forgotten", "claim-moved") == 1

    async def test_devices_of_the_same_name_on_another_node_are_others(self) -> None:
        elsewhere = AllocationResult("nic", "dra.net", "another-node", "net1")
        asked = Asked(replace(ALLOCATED, results=(elsewhere,)))
        await asked.look(2)
        assert asked.forgotten == [CLAIM]

    async def test_nobody_is_asked_of_a_claim_that_a_pod_has(self) -> None:
        asked = Asked(no_claim(Reason.CLAIM_NOT_FOUND))
        await asked.look(5, replace(RECORD, sandbox_id="s", netns_path="/run/netns/s"))
        await asked.look(5, living=[POD.uid])
        assert not asked.questions

    @pytest.mark.parametrize(
        "error",
        [
            ClusterError("no answer", reason=Reason.API_UNAVAILABLE, retryable=True),
            ClusterError("no", reason=Reason.API_FORBIDDEN),
            ClaimError("on another node", reason=Reason.UNSUPPORTED_CLAIM),
        ],
    )
    async def test_where_nobody_knows_the_claim_stays(self, error: DranetError) -> None:
        asked = Asked(error)
        await asked.look(5)
        assert len(asked.questions) == 4
        assert not asked.forgotten

    async def test_what_could_not_be_given_back_is_tried_again(self) -> None:
        asked = Asked(no_claim(Reason.CLAIM_NOT_FOUND))
        asked.refusal = "DetachFailed"
        await asked.look(3)
        assert asked.forgotten == [CLAIM, CLAIM]
        assert asked.counted("failed", "claim-deleted") == 2
        assert asked.counted("forgotten", "claim-deleted") == 0


class TestRuntimeView:
    def test_nobody_knows_before_the_runtime_has_told(self) -> None:
        view = RuntimeView()
        view.note(_pod("a"))
        assert view.read() is None

    def test_it_has_what_runs_without_what_has_stopped(self) -> None:
        view = RuntimeView()
        view.replace([_pod("a"), _pod("b")])
        view.note(_pod("c"))
        view.remove("a")
        view.remove("unknown")
        assert [pod.id for pod in view.read() or ()] == ["b", "c"]
        view.lose()
        assert view.read() is None

    def test_it_keeps_no_annotations(self) -> None:
        view = RuntimeView()
        view.replace([replace(_pod("a"), annotations={"long": "x" * 100_000})])
        assert [pod.annotations for pod in view.read() or ()] == [{}]


def _pod(sandbox_id: str) -> PodSandbox:
    return PodSandbox(sandbox_id, "pod", "default", POD.uid, netns_path="/run/netns/x", pid=1)


class Looks(ReconcileLoop):
    """Counts its looks instead of looking."""

    count = 0
    error: Exception | None = None

    def has_looked_since(self, count: int) -> bool:
        return self.count > count

    async def look(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


@pytest.mark.kernel
class TestWhen:
    async def test_it_looks_when_asked_and_goes_on_after_an_error(
        self, start_loop: Callable[..., Looks], caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = start_loop(3600.0)
        loop.error = ClusterError("the disk is full")
        task = asyncio.create_task(loop.run_regularly())
        for _ in range(3):
            seen = loop.count
            loop.ask("a test")
            await _until(partial(loop.has_looked_since, seen))
        task.cancel()
        assert caplog.text.count("the disk is full") == 1, "what stays is said once"

    async def test_a_bug_ends_no_driver(
        self, start_loop: Callable[..., Looks], caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = start_loop(0.01)
        loop.error = RuntimeError("can't start new thread")
        task = asyncio.create_task(loop.run_regularly())
        await _until(lambda: loop.count >= 3)
        task.cancel()
        assert "bug in reconcile" in caplog.text

    async def test_a_device_that_came_home_and_cannot_be_given_back_is_looked_at_once(
        self, start_loop: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop, asked = start_loop(3600.0), list[str]()
        monkeypatch.setattr(loop, "ask", asked.append)
        scans = [frozenset(home.split()) for home in ("a", "a", "a b", "", "a")]
        monkeypatch.setattr(PodReconciler, "find_returned", lambda *_: scans.pop(0))
        for _ in tuple(scans):
            loop.scanned(())
        assert len(asked) == 3

    async def test_it_looks_by_the_clock(self, start_loop: Callable[..., Looks]) -> None:
        loop = start_loop(0.01)
        task = asyncio.create_task(loop.run_regularly())
        await _until(lambda: loop.count >= 3)
        task.cancel()


@pytest.mark.kernel
async def test_what_fails_keeps_nothing_else_from_being_looked_at(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, asked, done = start(), Asked(no_claim(Reason.CLAIM_NOT_FOUND)), list[str]()
    monkeypatch.setattr(bench.view, "patience_seconds", 0.0)
    bench.view.replace(())
    records = [replace(RECORD, claim=ClaimRef("default", uid, uid)) for uid in ("a", "b")]
    bench.store.put_all(records)

    def refuse() -> None:
        raise StoreError("the folder cannot be read")

    async def finish(record: PreparedClaim) -> bool:
        done.append(record.claim.uid)
        raise StoreError("the folder cannot be written")

    async def look_at_addresses() -> None:
        done.append("addresses")

    monkeypatch.setattr(bench.files, "sweep_leftovers", refuse)
    monkeypatch.setattr(bench.files, "shut_gates", lambda: done.append("gates"))
    monkeypatch.setattr(bench.files, "find_unfinished", tuple)
    actions = ActionLog(bench.metrics)
    loop = ReconcileLoop(
        bench.store,
        bench.view,
        SnapshotQueue(),
        Reconcilers(bench.pods, bench.files, asked.owners, look_at_addresses),
        actions,
        finish,
        1.0,
    )
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read"):
            await loop.look()
        asked.clock += 180.0
    assert done == ["gates", "a", "b", "addresses"] * 2
    assert [claim.uid for claim in asked.forgotten] == ["a", "b"]


@pytest.fixture
def start_loop(start: Callable[..., Bench]) -> Callable[..., Looks]:
    def make(seconds: float) -> Looks:
        bench, asked = start(), Asked(ALLOCATED)

        async def finish(_: PreparedClaim) -> bool:
            return False

        async def look_at_addresses() -> None:
            return

        return Looks(
            bench.store,
            bench.view,
            SnapshotQueue(),
            Reconcilers(bench.pods, bench.files, asked.owners, look_at_addresses),
            ActionLog(bench.metrics),
            finish,
            seconds,
        )

    return make


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


def test_cdi_knows_whether_a_claim_has_its_file(tmp_path: Path) -> None:
    specs = CdiSpecs(tmp_path, "dra.net")
    assert not specs.has("claim-uid")

"""What two walks do to each other, and what an error that nobody foresaw leaves behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from dranet.driver import attachments
from dranet.driver.attachments import ReleaseReport
from dranet.driver.hooks import placements
from dranet.driver.leases import LeaseClient, Leases, iter_leases
from dranet.driver.prepare import Preparer
from dranet.errors import DranetError, KernelError, Reason
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.claim import Claim, ClaimRef, Container
from dranet.model.plan import AttachPlan, DhcpLease
from dranet.telemetry import Metrics
from tests.driver.bench import Bench, names, sandbox
from tests.driver.test_prepare import HCA, a_claim
from tests.driver.test_prepare import Bench as PrepareBench
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

LEASE = DhcpLease(
    "172.16.0.9/24", "172.16.0.1", "02:00:00:00:00:99", "02:00:00:00:00:01", 0.0, 1200, 600, 1050
)


def renew(bench: Bench, obtained_at: float, uid: str = "claim-uid") -> None:
    """As a renewal does: nothing but the lease is another."""
    record = bench.store.get(uid)
    assert record is not None
    (device,) = record.devices
    assert device.plan is not None
    lease = replace(LEASE, obtained_at=obtained_at)
    bench.store.put(replace(record, devices=(replace(device, plan=replace(device.plan, lease=lease)),)))


# --- reconcile against a renewal ------------------------------------------------------------------------


def test_a_renewal_after_the_snapshot_does_not_keep_a_pod_from_its_nic(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    renew(bench, 1.0)
    bench.hooks.synchronize([sandbox(pod)])
    renew(bench, 2.0)
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    assert "net1" in names(pod)


def test_a_renewal_after_the_snapshot_does_not_keep_a_nic_in_a_pod_that_is_gone(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    renew(bench, 1.0)
    bench.run_sandbox(sandbox(pod))
    bench.connect()
    bench.hooks.synchronize([])
    snapshot = replace(bench.snapshots[-1], is_news=False, placed_before=placements(bench.store.get_all()))
    renew(bench, 2.0)
    for _ in range(2):
        node.run(lambda: bench.pods.reconcile(snapshot))
        bench.clock += 180.0
    assert "eth1" in names(node)


# --- a renewal against the end of a pod -----------------------------------------------------------------


async def test_a_renewal_asks_nobody_in_the_namespace_of_a_later_pod(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    """The path is used again: there, another link may have the name, and no address of ours."""

    bench = start()
    record = bench.prepare("eth1", "net1")
    bench.store.put(replace(record, netns_path=str(pod.path), netns_id="cookie 0", sandbox_id="gone"))
    renew(bench, 1.0)
    leases = Leases(bench.store, bench.attachments, bench.told, Metrics(), client=LeaseClient())
    (held,) = iter_leases(bench.store.get_all())
    with pytest.raises(KernelError) as caught:
        await leases._ask(held, rebind=False)
    assert caught.value.reason is Reason.NETNS_GONE


# --- reconcile against a stop ---------------------------------------------------------------------------


def test_a_pod_that_is_being_stopped_is_no_failure_of_reconcile(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    """The runtime's Stop waits for reconcile, and has said so."""
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    bench.hooks.synchronize([sandbox(pod)])
    bench.attachments._stopped_sandboxes.add("sandbox-1")
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    assert bench.told.failures == []


@pytest.mark.parametrize("was_attached", [True, False])
def test_a_sandbox_that_another_instance_saw_stopping_gets_nothing_any_more(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, was_attached: bool
) -> None:
    """During an update: the runtime lists the sandbox to who connects, and has told of its stop before. A
    link that is put into the dying namespace again may die with it."""
    old = start()
    old.prepare("eth1", "net1")
    if was_attached:
        old.run_sandbox(sandbox(pod))
    old.stop_sandbox(sandbox(pod))
    before = node.picture()
    new = start()
    new.reconcile(sandbox(pod))
    assert node.picture() == before
    assert "net1" not in names(pod)
    assert (new.told.attached_claims, new.told.failures) == ([], [])


def test_what_still_runs_in_a_sandbox_that_is_being_stopped_is_not_bare(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    old = start()
    old.prepare("eth1", "net1")
    old.run_sandbox(sandbox(pod))
    old.stop_sandbox(sandbox(pod))
    new = start()
    new.hooks.synchronize([sandbox(pod)], [Container("c", "main", "sandbox-1", running=True)])
    assert new.told.bare == []


def test_a_stop_and_a_removal_that_overtake_reconcile_are_no_failure_of_it(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    start().prepare("eth1", "net1")
    bench = start()
    bench.hooks.synchronize([sandbox(pod)])
    bench.stop_sandbox(sandbox(pod))
    bench.hooks.remove_pod_sandbox(sandbox(pod))
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    assert "net1" not in names(pod)
    assert bench.told.failures == []


# --- what an earlier sandbox left -----------------------------------------------------------------------


def test_what_an_earlier_sandbox_did_not_give_back_is_told(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", "claim-a")
    bench.prepare("eth2", "net2", "claim-b")
    bench.run_sandbox(sandbox(pod, 1))
    pod.ip("link", "del", "net1")  # and the sandbox ends without a word
    with pytest.raises(DranetError):
        bench.run_sandbox(sandbox(make_namespace(), 2))
    assert [(report.claim.uid, report.missing) for report in bench.told.reports] == [
        ("claim-a", ("dev-eth1",)),
        ("claim-b", ()),
    ]


# --- errors that nobody foresaw -------------------------------------------------------------------------


class Unforeseen(RuntimeError):
    """``can't start new thread``, or a bug of ours."""


def fail(*_: object, **__: object) -> NoReturn:
    raise Unforeseen("can't start new thread")


def read_descriptors() -> Counter[str]:
    """What those of this process lead to. Other tests may have left some, which are closed at any time."""
    targets = Counter[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets[str(link.readlink())] += 1
    return targets


def test_an_attach_that_fails_in_any_way_shuts_the_gate_and_keeps_no_descriptor(
    start: Callable[..., Bench], pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    with monkeypatch.context() as broken:
        broken.setattr(attachments, "attach", fail)
        open_before = read_descriptors()
        with pytest.raises(Unforeseen):
            bench.run_sandbox(sandbox(pod))
        assert read_descriptors() - open_before == Counter()
    assert not bench.gate.is_open("claim-uid")


def test_a_release_that_fails_in_any_way_keeps_no_other_claim_of_the_pod(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()
    first = bench.prepare("eth1", "net1", "claim-a")
    bench.prepare("eth2", "net2", "claim-b")
    bench.run_sandbox(sandbox(pod))
    real = detach

    def fail_for_the_first(
        plans: Sequence[AttachPlan], netns: NetworkNamespace | None, **options: Any
    ) -> DetachReport:
        return fail() if plans == first.plans else real(plans, netns, **options)

    with monkeypatch.context() as broken:
        broken.setattr(attachments, "detach", fail_for_the_first)
        with pytest.raises(Exception, match="new thread"):
            bench.stop_sandbox(sandbox(pod))
    assert "eth2" in names(node)


async def test_a_bug_in_one_claim_fails_no_other_and_leaves_no_call_running(tmp_path: Path) -> None:
    """Else the kubelet's next call would meet the first one, at work on the same claims."""
    bad, good = a_claim("bad"), a_claim("good", HCA.name)
    bench = PrepareBench(tmp_path, bad, good)
    go_on, done = asyncio.Event(), asyncio.Event()
    fetch = bench.fetch

    async def fetch_or_fail(ref: ClaimRef) -> Claim:
        if ref == bad.ref:
            raise Unforeseen("boom")
        await go_on.wait()
        done.set()
        return await fetch(ref)

    bench.preparer._sources = replace(bench.preparer._sources, fetch=fetch_or_fail)
    call = asyncio.create_task(bench.preparer.prepare([bad.ref, good.ref]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    go_on.set()
    outcomes = await call
    assert done.is_set()
    assert "boom" in outcomes["bad"].error
    assert outcomes["good"].error == ""


async def test_a_bug_in_one_unprepare_keeps_no_other_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = a_claim("bad"), a_claim("good", HCA.name)
    bench = PrepareBench(tmp_path, bad, good)
    await bench.preparer.prepare([bad.ref, good.ref])
    real = Preparer._release_and_forget

    def release(self: Preparer, uid: str, check_goes_on: Callable[[], None]) -> ReleaseReport | None:
        return fail() if uid == "bad" else real(self, uid, check_goes_on)

    monkeypatch.setattr(Preparer, "_release_and_forget", release)
    errors = await bench.preparer.unprepare([bad.ref, good.ref])
    assert "new thread" in errors["bad"]
    assert errors["good"] == ""
    assert bench.store.get("good") is None

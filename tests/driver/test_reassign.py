"""A claim that pods share by turns: it is prepared for the next one when the first is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.prepare import ClaimReassigner
from dranet.errors import ClaimError, Reason
from dranet.model.claim import AllocationResult, Claim, ClaimRef, Consumer, Container, PodSandbox
from dranet.model.plan import PreparedClaim
from tests.driver.bench import Bench, names, sandbox
from tests.driver.test_prepare import GPU, HCA, a_claim
from tests.driver.test_prepare import Bench as PrepareBench
from tests.driver.test_prepare_leases import Bench as LeaseBench
from tests.driver.test_prepare_leases import Recording, in_node
from tests.driver.test_prepare_leases import a_claim as a_dhcp_claim
from tests.support.namespaces import Namespace

FIRST = Consumer(resource="pods", name="first", uid="uid-first")
NEXT = Consumer(resource="pods", name="next", uid="uid-next")
THIRD = Consumer(resource="pods", name="third", uid="uid-third")


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    yield
    while PrepareBench.opened:
        PrepareBench.opened.pop().store.close()


async def prepared_for_first(folder: Path) -> tuple[PrepareBench, Claim]:
    claim = a_claim("uid", HCA.name, FIRST)
    bench = PrepareBench(folder, claim)
    assert (await bench.prepare(claim)).error == ""
    return bench, claim


def reserve(bench: PrepareBench, claim: Claim, *consumers: Consumer) -> None:
    bench.claims[claim.ref.uid] = replace(claim, reserved_for=consumers)


def record_of(bench: PrepareBench, claim: Claim) -> PreparedClaim:
    record = bench.store.get(claim.ref.uid)
    assert record is not None
    return record


async def test_the_claim_goes_to_the_pod_that_it_is_reserved_for_now(tmp_path: Path) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    answer, specs = await bench.prepare(claim), bench.read_specs()
    reserve(bench, claim, NEXT)
    await bench.preparer.reassign(claim.ref)
    record = record_of(bench, claim)
    assert record.pod.uid == NEXT.uid
    assert bench.store.get_by_pod(FIRST.uid) == ()
    assert bench.told.prepared_claims[1:] == [record]
    assert bench.read_specs() == specs  # the kubelet gives the next pod what it was told for the first
    assert await bench.prepare(claim) == answer


@pytest.mark.parametrize("consumers", [(FIRST,), (FIRST, NEXT)], ids=["alone", "with the next"])
async def test_the_claim_stays_while_the_first_pod_is_not_done(
    tmp_path: Path, consumers: tuple[Consumer, ...]
) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    before = record_of(bench, claim)
    reserve(bench, claim, *consumers)
    await bench.preparer.reassign(claim.ref)
    assert record_of(bench, claim) == before
    assert bench.told.failures == []


async def test_the_claim_stays_while_a_sandbox_has_its_devices(tmp_path: Path) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    placed = replace(record_of(bench, claim), sandbox_id="s-1", netns_path="/proc/1/ns/net", netns_id="1")
    bench.store.put(placed)
    reserve(bench, claim, NEXT)
    await bench.preparer.reassign(claim.ref)
    assert record_of(bench, claim) == placed
    assert bench.told.failures == []


async def test_a_claim_that_is_not_prepared_is_nobodys_to_hand_on(tmp_path: Path) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    await bench.preparer.unprepare([claim.ref])
    reserve(bench, claim, NEXT)
    await bench.preparer.reassign(claim.ref)
    assert bench.store.get_all() == ()
    assert bench.read_specs() == []


async def test_two_pods_that_wait_are_told_that_one_of_them_has_to_go(tmp_path: Path) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    before = record_of(bench, claim)
    reserve(bench, claim, NEXT, THIRD)
    await bench.preparer.reassign(claim.ref)
    ((_, told, error),) = bench.told.failures
    assert told == bench.claims[claim.ref.uid]
    assert "next, third" in error.message
    assert record_of(bench, claim) == before
    reserve(bench, claim, THIRD)
    await bench.preparer.reassign(claim.ref)
    assert record_of(bench, claim).pod.uid == THIRD.uid


async def test_an_allocation_of_other_devices_is_refused(tmp_path: Path) -> None:
    """The kubelet keeps what it was answered for the first pod, and would give that to the next."""
    bench, claim = await prepared_for_first(tmp_path)
    before = record_of(bench, claim)
    other = replace(claim, results=(AllocationResult("req", "dra.net", "node", GPU.name),))
    reserve(bench, other, NEXT)
    await bench.preparer.reassign(claim.ref)
    ((_, _, error),) = bench.told.failures
    assert "allocated again" in error.message
    assert record_of(bench, claim) == before


async def test_an_api_server_that_is_away_changes_nothing(tmp_path: Path) -> None:
    bench, claim = await prepared_for_first(tmp_path)
    before = record_of(bench, claim)
    del bench.claims[claim.ref.uid]
    await bench.preparer.reassign(claim.ref)
    ((ref, told, error),) = bench.told.failures
    assert (ref, told, error.reason) == (claim.ref, None, Reason.CLAIM_NOT_FOUND)
    assert record_of(bench, claim) == before


@pytest.mark.kernel
def test_the_next_pod_keeps_the_claims_address(tmp_path: Path, node: Namespace) -> None:
    client, claim = Recording(), a_dhcp_claim()

    async def walk() -> None:
        bench = LeaseBench(tmp_path, claim, client=client)
        assert await bench.prepare(claim) == [""]
        lease, asked = bench.lease(), list(client.said)
        bench.claims[claim.ref.uid] = replace(claim, reserved_for=(NEXT,))
        await bench.preparer.reassign(claim.ref)
        record = bench.store.get(claim.ref.uid)
        bench.store.close()
        assert record is not None
        assert record.pod.uid == NEXT.uid
        assert [plan.lease for plan in record.plans] == [lease]
        assert client.said == asked  # no server was asked for it

    in_node(node, walk)


@pytest.mark.kernel
def test_a_lease_that_has_ended_is_asked_for_anew(tmp_path: Path, node: Namespace) -> None:
    client, claim = Recording(), a_dhcp_claim()

    async def walk() -> None:
        bench = LeaseBench(tmp_path, claim, client=client)
        assert await bench.prepare(claim) == [""]
        record = bench.store.get(claim.ref.uid)
        assert record is not None
        (device,) = record.devices
        assert device.plan is not None
        assert device.plan.lease is not None
        ended = replace(device, plan=replace(device.plan, lease=replace(device.plan.lease, lease_seconds=0)))
        bench.store.put(replace(record, devices=(ended,)))
        bench.claims[claim.ref.uid] = replace(claim, reserved_for=(NEXT,))
        await bench.preparer.reassign(claim.ref)
        assert bench.lease().lease_seconds > 0
        assert client.said == ["acquire eth1"] * 2
        bench.store.close()

    in_node(node, walk)


@pytest.mark.kernel
def test_the_next_pod_gets_the_nic_in_the_sandbox_that_it_has(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    """Its containers were refused, its sandbox stays: the devices come with the container's next try."""
    bench, second = start(), make_namespace()
    record = bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    joining = PodSandbox("s-2", NEXT.name, "default", NEXT.uid, netns_path=str(second.path), pid=4712)
    container = Container("c", "main", joining.id, mounts=(bench.gate.mount_for(record.claim.uid),))
    bench.run_sandbox(joining)
    for _ in range(2):  # also after the first has ended, until the claim is handed on
        with pytest.raises(ClaimError):
            bench.node.run(lambda: bench.hooks.create_container(joining, container))
        bench.stop_sandbox(sandbox(pod))
    assert bench.waiting == [record.claim, record.claim]
    left = bench.store.get(record.claim.uid)
    assert left is not None
    bench.store.put(replace(left, pod=replace(left.pod, name=NEXT.name, uid=NEXT.uid)))
    bench.node.run(lambda: bench.hooks.create_container(joining, container))
    assert "net1" in names(second)
    assert bench.stop_sandbox(joining)
    assert "eth1" in names(bench.node)


async def test_one_look_at_a_claim_at_a_time_and_one_more_for_what_came_meanwhile() -> None:
    looks: asyncio.Queue[ClaimRef] = asyncio.Queue()
    may_end = asyncio.Event()

    async def reassign(claim: ClaimRef) -> None:
        looks.put_nowait(claim)
        await may_end.wait()

    one, other = ClaimRef("default", "one", "u1"), ClaimRef("default", "other", "u2")
    succession = ClaimReassigner(reassign)
    task = asyncio.create_task(succession.run())
    async with asyncio.timeout(20):
        await asyncio.to_thread(succession.ask, one)
        assert await looks.get() == one
        for claim in (one, one, one, other):
            succession.ask(claim)
        assert await looks.get() == other
        assert looks.empty()
        may_end.set()
        assert await looks.get() == one
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert looks.empty()

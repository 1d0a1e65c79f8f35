"""Prepare and Unprepare of one claim in two instances of the driver: done once, answered twice the same."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import ReleaseReport
from dranet.driver.ipam import Obtained
from dranet.driver.leases import iter_leases
from dranet.driver.planner import DecodedClaim
from dranet.model.claim import Claim
from dranet.model.plan import DhcpLease, PreparedClaim
from tests.driver.test_prepare import Bench as PlainBench
from tests.driver.test_prepare import a_claim as a_plain_claim
from tests.driver.test_prepare_leases import Bench, Recording, a_claim, in_node
from tests.support.namespaces import Namespace
from tests.support.records import write_newer

SECONDS = 20.0

HOLD_CLAIM = """
import asyncio, sys
from pathlib import Path
from dranet.driver.instances.members import Work, WorkLocks
async def main():
    async with WorkLocks(Path(sys.argv[1])).hold(Work.CLAIM, sys.argv[2:]):
        print("held", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


class Slow(Recording):
    """A server that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
        self.asked.set()
        assert self.may_answer.wait(SECONDS)
        return super().acquire(ifname, mac, wanted)


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Callable[..., tuple[Bench, Bench]]]:
    """Two instances over one folder."""
    with ExitStack() as stack:

        def make(*claims: Claim, client: Recording) -> tuple[Bench, Bench]:
            made = [Bench(tmp_path, *claims, client=client) for _ in range(2)]
            for bench in made:
                stack.callback(bench.close)
            return made[0], made[1]

        yield make


# --- one claim ------------------------------------------------------------------------------------------


async def test_a_claim_prepared_in_both_at_once_is_fetched_once_and_answered_twice_the_same(
    tmp_path: Path,
) -> None:
    claim = a_plain_claim()
    first, second = PlainBench(tmp_path, claim), PlainBench(tmp_path, claim)
    answers = await asyncio.gather(first.prepare(claim), second.prepare(claim))
    assert answers[0] == answers[1]
    assert answers[0].error == ""
    assert len(first.fetched + second.fetched) == 1
    assert len(first.told.prepared_claims + second.told.prepared_claims) == 1
    assert len(first.read_specs()) == 1


async def test_a_claim_prepared_by_one_is_unprepared_by_the_other(tmp_path: Path) -> None:
    claim = a_plain_claim()
    first, second = PlainBench(tmp_path, claim), PlainBench(tmp_path, claim)
    assert (await first.prepare(claim)).error == ""
    assert await second.preparer.unprepare([claim.ref]) == {"uid": ""}
    assert await first.preparer.unprepare([claim.ref]) == {"uid": ""}, "the unknown succeeds"
    assert first.store.get_all() == ()
    assert first.read_specs() == []


@pytest.mark.process
async def test_a_claim_whose_preparer_is_killed_is_prepared_by_the_other(tmp_path: Path) -> None:
    """It waits as long as that one works on it."""
    bench = PlainBench(tmp_path, claim := a_plain_claim())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_CLAIM, str(tmp_path), "uid", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"held\n"
        preparing = asyncio.create_task(bench.prepare(claim))
        done, _ = await asyncio.wait({preparing}, timeout=0.1)
        assert not done
        assert bench.fetched == []
    finally:
        child.kill()
        await child.communicate()
    assert (await asyncio.wait_for(preparing, SECONDS)).error == ""


@pytest.mark.parametrize("is_over", [False, True], ids=["the pod runs", "the pod is gone"])
async def test_what_a_leaving_instance_has_left_undone_does_not_undo_what_its_successor_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """A stop cancels the call, which lets the claim go; the thread behind it goes on."""
    claim = a_plain_claim()
    leaving, staying = PlainBench(tmp_path, claim), PlainBench(tmp_path, claim)
    commit = leaving.preparer._plan_and_commit
    begun, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def commit_late(
        claim: Claim,
        decoded: DecodedClaim,
        obtained: Obtained,
        check_goes_on: Callable[[], None],
    ) -> PreparedClaim:
        begun.set()
        assert may_go_on.wait(SECONDS)
        try:
            return commit(claim, decoded, obtained, check_goes_on)
        finally:
            ended.set()

    monkeypatch.setattr(leaving.preparer, "_plan_and_commit", commit_late)
    stopped = asyncio.create_task(leaving.prepare(claim))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    stopped.cancel()
    await asyncio.wait({stopped})
    assert (await staying.prepare(claim)).error == ""
    if is_over:
        assert await staying.preparer.unprepare([claim.ref]) == {"uid": ""}
    else:
        (record,) = staying.store.get_all()
        staying.store.put(replace(record, sandbox_id="s", netns_path="/run/netns/p", netns_id="1-1"))
    before = staying.store.get_all()
    may_go_on.set()
    assert await asyncio.to_thread(ended.wait, SECONDS)
    assert staying.store.get_all() == before


async def test_what_a_leaving_instance_has_left_released_does_not_undo_what_its_successor_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of an Unprepare: the pod's successor of the same claim has come meanwhile."""
    claim = a_plain_claim()
    leaving, staying = PlainBench(tmp_path, claim), PlainBench(tmp_path, claim)
    assert (await leaving.prepare(claim)).error == ""
    forget = leaving.preparer._release_and_forget
    begun, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def forget_late(claim_uid: str, check_goes_on: Callable[[], None]) -> ReleaseReport | None:
        begun.set()
        assert may_go_on.wait(SECONDS)
        try:
            return forget(claim_uid, check_goes_on)
        finally:
            ended.set()

    monkeypatch.setattr(leaving.preparer, "_release_and_forget", forget_late)
    stopped = asyncio.create_task(leaving.preparer.unprepare([claim.ref]))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    stopped.cancel()
    await asyncio.wait({stopped})
    assert await staying.preparer.unprepare([claim.ref]) == {"uid": ""}
    assert (await staying.prepare(claim)).error == ""
    before, specs = staying.store.get_all(), staying.read_specs()
    may_go_on.set()
    assert await asyncio.to_thread(ended.wait, SECONDS)
    assert staying.store.get_all() == before != ()
    assert staying.read_specs() == specs != []


async def test_a_claim_is_refused_for_now_when_a_newer_driver_has_written_records(tmp_path: Path) -> None:
    bench = PlainBench(tmp_path, claim := a_plain_claim(), other := a_plain_claim("other"))
    assert (await bench.prepare(claim)).error == ""
    write_as_newer(bench)
    assert "newer driver" in (await bench.prepare(claim)).error
    assert "newer driver" in (await bench.prepare(other)).error
    errors = await bench.preparer.unprepare([claim.ref])
    assert "newer driver" in errors["uid"]
    assert len(bench.read_specs()) == 1, "nothing of it was taken away"
    assert bench.fetched == [claim.ref]


def write_as_newer(bench: PlainBench) -> None:
    write_newer(bench.store.folder / "claims")


# --- leases ---------------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_lease_is_asked_for_once_and_not_released_by_who_comes_second(
    node: Namespace, benches: Callable[..., tuple[Bench, Bench]]
) -> None:
    client = Slow()
    first, second = benches(claim := a_claim(), client=client)

    async def walk() -> None:
        preparing = asyncio.create_task(first.prepare(claim))
        await asyncio.to_thread(client.asked.wait, SECONDS)
        joining = asyncio.create_task(second.prepare(claim))
        done, _ = await asyncio.wait({joining}, timeout=0.05)
        assert not done
        client.may_answer.set()
        assert [await preparing, await joining] == [[""], [""]]

    in_node(node, walk)
    assert client.said == ["acquire eth1"]
    assert first.lease() == second.lease()


@pytest.mark.kernel
def test_two_claims_for_one_nic_in_two_instances_get_one_lease_and_keep_it(
    node: Namespace, benches: Callable[..., tuple[Bench, Bench]]
) -> None:
    client = Recording()
    first, second = benches(one := a_claim("one"), two := a_claim("two"), client=client)
    errors: list[str] = []

    async def walk() -> None:
        for answer in await asyncio.gather(first.prepare(one), second.prepare(two)):
            errors.extend(answer)

    in_node(node, walk)
    assert sorted(map(bool, errors)) == [False, True]
    assert client.said == ["acquire eth1"]
    assert len(first.store.get_all()) == 1


class Meanwhile(Recording):
    """Lets the test do something while a lease is being released."""

    def __init__(self) -> None:
        super().__init__()
        self.do: Callable[[], bool] | None = None
        self.done: list[bool] = []

    def release(self, lease: DhcpLease, ifname: str) -> None:
        super().release(lease, ifname)
        if self.do is not None:
            self.done.append(self.do())


@pytest.mark.kernel
def test_a_renewal_that_ends_while_the_other_instance_releases_the_lease_is_not_kept(
    node: Namespace, benches: Callable[..., tuple[Bench, Bench]]
) -> None:
    """Whoever has the duty to renew has just told the server that we stay."""
    client = Meanwhile()
    first, second = benches(claim := a_claim(), client=client)

    async def walk() -> None:
        assert await first.prepare(claim) == [""]
        (held,) = iter_leases(first.store.get_all())
        renewed = replace(held.lease, obtained_at=held.lease.obtained_at + 1)
        assert second.leases._keep(held, renewed), "nobody releases it yet"
        later = replace(renewed, obtained_at=held.lease.obtained_at + 2)
        client.do = lambda: second.leases._keep(replace(held, lease=renewed), later)
        assert await first.unprepare(claim) == ""

    in_node(node, walk)
    assert client.done == [False]
    assert second.store.get_all() == ()

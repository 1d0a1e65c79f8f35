"""When leases are taken, renewed, reported and given back: the real store, a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import Attachments
from dranet.driver.leases import (
    Clock,
    LeaseClient,
    LeaseRequest,
    Leases,
    LinksListener,
    iter_leases,
    next_attempt_age,
)
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError, KernelError, Reason, StoreError
from dranet.kernel.dhcp.message import seconds_left
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import (
    AttachPlan,
    CreateLink,
    DhcpLease,
    LinkState,
    MoveLink,
    PreparedClaim,
    PreparedDevice,
)
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import LeaseOutcome, Metrics

START = 1_800_000_000.0
"""Unix time at which the tests begin; the steady clock stands at 1000 then."""
LEASE = DhcpLease(
    address="10.77.0.50/24",
    server="10.77.0.1",
    server_mac="02:00:00:00:00:99",
    client_mac="02:00:00:00:00:01",
    obtained_at=START,
    lease_seconds=1200,
    renew_seconds=600,
    rebind_seconds=1050,
)
SILENT = KernelError("no answer", reason=Reason.DHCP_FAILED)
GONE = KernelError("the address is gone", reason=Reason.DHCP_LEASE_EXPIRED)
REFUSED = KernelError("its server has taken it back", reason=Reason.DHCP_LEASE_REFUSED)


class Enough(Exception):
    """The test has seen what it wanted."""


class TestClock(Clock):
    """Moves when somebody waits, and no further than ``horizon`` (steady)."""

    __test__ = False

    def __init__(self) -> None:
        self.passed = 0.0
        self.offset = 0.0
        """What somebody has added to the wall clock."""
        self.horizon = 0.0
        self.chance = 0.0
        self.waits: list[float] = []

    def unix(self) -> float:
        return START + self.passed + self.offset

    def steady(self) -> float:
        return 1000 + self.passed

    def jitter(self) -> float:
        return self.chance

    async def wait(self, news: asyncio.Event, seconds: float) -> None:
        assert not news.is_set()
        self.waits.append(seconds)
        if self.passed + seconds > self.horizon:
            self.passed = self.horizon
            raise Enough
        self.passed += seconds


@dataclass
class Server(LeaseClient):
    """Answers at once. ``answers`` to renewals are taken in order, then it renews."""

    clock: TestClock
    answers: list[DranetError] = field(default_factory=list)
    said: list[tuple[object, ...]] = field(default_factory=list)
    address: str = LEASE.address
    failing: set[str] = field(default_factory=set)
    """Links on which nobody answers."""
    kernel_seconds: list[float] = field(default_factory=list)
    """What the kernel still gives the address at each end of the lease, then nothing."""

    def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
        self.said.append(("acquire", self.clock.passed, ifname, mac, wanted))
        if ifname in self.failing:
            raise SILENT
        return replace(LEASE, address=self.address, client_mac=mac, obtained_at=self.clock.unix())

    def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
        self.said.append(("rebind" if rebind else "renew", self.clock.passed, netns_path, ifname))
        if self.answers:
            raise self.answers.pop(0)
        return replace(lease, obtained_at=self.clock.unix())

    def release(self, lease: DhcpLease, ifname: str) -> None:
        self.said.append(("release", lease.address, ifname, lease.client_mac))
        if ifname in self.failing:
            raise SILENT

    def end(self, lease: DhcpLease, netns_path: str, ifname: str, *, is_refused: bool) -> float:
        assert lease.client_mac == LEASE.client_mac
        self.said.append(("end", self.clock.passed, netns_path, ifname, is_refused))
        return self.kernel_seconds.pop(0) if self.kernel_seconds and not is_refused else 0.0

    def look(self, plans: Sequence[AttachPlan], netns_path: str) -> tuple[AttachedLink, ...]:
        assert netns_path == "/run/netns/pod"
        return tuple(AttachedLink(plan.device, plan.pod_ifname, LEASE.client_mac, 1500) for plan in plans)


class Told(Announcer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.news: list[tuple[str, str, int, Reason | None]] = []
        self.links: list[tuple[str, tuple[str, ...]]] = []

    def lease_lost(self, record: PreparedClaim, position: int, error: DranetError) -> None:
        self.news.append(("lost", record.claim.uid, position, error.reason))

    def lease_back(self, record: PreparedClaim, position: int) -> None:
        self.news.append(("back", record.claim.uid, position, None))

    def lease_forgotten(self, claim_uid: str) -> None:
        self.news.append(("forgotten", claim_uid, 0, None))

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        assert len(records) == 1
        self.links += [(link.pod_ifname, link.addresses) for link in links]


class Bench:
    """Leases over a state folder; a second one over the same folder is the driver restarted."""

    def __init__(self, folder: Path, clock: TestClock | None = None) -> None:
        self.clock = clock or TestClock()
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.told = Told()
        self.metrics = Metrics()
        self.server = Server(self.clock)
        self.attachments = Attachments(self.store, StartGate(folder))
        self.on_links: LinksListener = lambda _, links: links
        self.leases = Leases(
            self.store,
            self.attachments,
            self.told,
            self.metrics,
            client=self.server,
            clock=self.clock,
            on_links=self.note_links,
        )

    def note_links(self, record: PreparedClaim, links: Sequence[AttachedLink]) -> Sequence[AttachedLink]:
        return self.on_links(record, links)

    async def run_for(self, seconds: float) -> None:
        """Let the task run until so much time has passed."""
        self.clock.horizon = self.clock.passed + seconds
        with pytest.raises(Enough):
            await self.leases.run()

    def times(self, what: str) -> list[float]:
        """When the server was asked that, in seconds since the start."""
        return [float(str(said[1])) for said in self.server.said if said[0] == what]

    def count(self, outcome: LeaseOutcome) -> float:
        return float(self.metrics.dhcp.renewals.labels(outcome)._value.get())

    def stored_lease(self, uid: str = "uid") -> DhcpLease:
        record = self.store.get(uid)
        assert record is not None
        return next(iter_leases([record])).lease


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.store.close()


def a_record(
    *leases: DhcpLease | None, uid: str = "uid", attached: bool = True, on_top: bool = False
) -> PreparedClaim:
    """A claim for a GPU and one NIC for each lease (``None``: without DHCP)."""
    gpu = PreparedDevice("gpu", "node", Device("gpu-0", DeviceKind.GPU))
    nics = [_nic(number, lease, on_top) for number, lease in enumerate(leases, 1)]
    place = ("sandbox", "/run/netns/pod") if attached else ("", "")
    claim, pod = ClaimRef("default", f"claim-{uid}", uid), PodRef("default", "pod", f"pod-{uid}")
    return PreparedClaim(claim, pod, (gpu, *nics), "boot", *place)


def _nic(number: int, lease: DhcpLease | None, on_top: bool) -> PreparedDevice:
    host = LinkState(number, f"eth{number}", "02:00:00:00:00:01", 1500, up=True)
    step = (
        CreateLink(f"net{number}", "macvlan", number, f"eth{number}", host.mac)
        if on_top
        else MoveLink(f"net{number}")
    )
    plan = AttachPlan(f"nic-{number}", (step,), f"net{number}", None if on_top else host, lease)
    return PreparedDevice("nic", "node", Device(f"nic-{number}", DeviceKind.NIC), plan=plan)


# --- when it is renewed --------------------------------------------------------------------------------


async def test_a_lease_is_renewed_at_t1_again_and_again_in_the_pod(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    await bench.run_for(1900)
    assert bench.times("renew") == [600, 1200, 1800]
    assert bench.server.said[0][2:] == ("/run/netns/pod", "net1")
    assert bench.stored_lease().obtained_at == START + 1800
    assert bench.count(LeaseOutcome.RENEWED) == 3
    assert bench.told.news == []


async def test_a_little_earlier_by_chance(bench: Bench) -> None:
    bench.clock.chance = 1.0
    bench.store.put(a_record(LEASE))
    await bench.run_for(600)
    assert bench.times("renew") == [540]


async def test_between_renewals_it_does_nothing(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    await bench.run_for(599)
    assert bench.clock.waits == [600]
    assert bench.server.said == []


async def test_without_leases_it_waits_for_news_for_ever(bench: Bench) -> None:
    bench.store.put(a_record(None))
    await bench.run_for(10)
    assert bench.clock.waits == [math.inf]


async def test_news_are_heard(tmp_path: Path) -> None:
    """With the real clock: what Prepare commits while it waits is followed."""
    bench = Bench(tmp_path)
    clock, renewed = Clock(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Execution(Server):
        def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
            super().renew(lease, netns_path, ifname, rebind=rebind)
            loop.call_soon_threadsafe(renewed.set)
            return replace(lease, obtained_at=clock.unix())

    client = Execution(bench.clock)
    leases = Leases(bench.store, bench.attachments, bench.told, bench.metrics, client=client, clock=clock)
    task = asyncio.create_task(leases.run())
    await asyncio.sleep(0)  # it has begun to wait
    bench.store.put(a_record(replace(LEASE, obtained_at=clock.unix() - 700)))
    leases.committed()
    async with asyncio.timeout(10):
        await renewed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.store.close()


async def test_a_lease_for_ever_is_never_renewed(bench: Bench) -> None:
    bench.store.put(a_record(replace(LEASE, lease_seconds=0xFFFFFFFF)))
    await bench.run_for(1e9)
    assert bench.server.said == []


async def test_a_silent_server_is_asked_again_then_any_server(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [SILENT] * 4
    await bench.run_for(1200)
    assert bench.times("renew") == [600, 825, 937.5, 997.5]
    assert bench.times("rebind") == [1050]
    assert bench.count(LeaseOutcome.FAILED) == 4
    assert bench.count(LeaseOutcome.REBOUND) == 1
    assert bench.told.news == []


async def test_leases_that_are_due_together_do_not_wait_for_each_other(bench: Bench) -> None:
    together = threading.Barrier(3)

    class Slow(Server):
        def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
            together.wait(10)  # breaks unless all three are here at once
            return super().renew(lease, netns_path, ifname, rebind=rebind)

    bench.leases._client = Slow(bench.clock)
    for number in range(3):
        bench.store.put(a_record(replace(LEASE, client_mac=f"02:00:00:00:00:0{number}"), uid=str(number)))
    await bench.run_for(700)
    assert bench.count(LeaseOutcome.RENEWED) == 3


# --- the end of a lease --------------------------------------------------------------------------------


async def test_a_lease_that_ends_is_told_once(bench: Bench) -> None:
    bench.store.put(a_record(None, LEASE))
    bench.server.answers = [SILENT] * 100
    await bench.run_for(2000)
    assert bench.times("rebind")[:4] == [1050, 1125, 1185, 1200]
    assert bench.told.news == [("lost", "uid", 2, Reason.DHCP_LEASE_EXPIRED)]
    assert bench.count(LeaseOutcome.EXPIRED) == 1


async def test_after_the_end_it_goes_on_every_minute_and_tells_when_it_is_back(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [SILENT] * 10
    await bench.run_for(1400)
    assert bench.times("rebind")[-3:] == [1260, 1320, 1380]
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_EXPIRED), ("back", "uid", 1, None)]


async def test_an_address_that_the_kernel_has_no_more_is_told_at_once(bench: Bench) -> None:
    """The kernel is the truth, whatever the clock says."""
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE]
    await bench.run_for(610)
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_EXPIRED)]


async def test_an_ended_lease_is_told_again_to_the_next_sandbox(bench: Bench) -> None:
    bench.store.put(record := a_record(LEASE))
    bench.server.answers = [GONE] * 100
    await bench.run_for(700)
    bench.store.put(replace(record, sandbox_id="next"))
    await bench.run_for(100)
    assert [news[0] for news in bench.told.news] == ["lost", "lost"]


async def test_the_end_of_a_claim_is_the_end_of_its_trouble(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE]
    await bench.run_for(610)
    bench.store.delete("uid")
    await bench.run_for(1000)
    assert [news[0] for news in bench.told.news] == ["lost", "forgotten"]
    assert [said[0] for said in bench.server.said] == ["renew", "end"]


async def test_a_lease_that_its_server_takes_back_ends_at_once_and_is_recorded_without_time(
    bench: Bench,
) -> None:
    """So no hook that misses the address puts it back."""
    bench.store.put(a_record(LEASE))
    bench.server.answers = [REFUSED, *[GONE] * 100]
    await bench.run_for(610)
    assert bench.server.said[1] == ("end", 600, "/run/netns/pod", "net1", True)
    assert seconds_left(bench.stored_lease(), bench.clock.unix()) == 0
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_REFUSED)]
    await bench.run_for(500)
    assert len(bench.told.news) == 1


async def test_what_is_left_on_the_links_is_told_with_the_end_and_with_the_return(bench: Bench) -> None:
    heard: list[PreparedClaim] = []

    def with_rdma(record: PreparedClaim, links: Sequence[AttachedLink]) -> Sequence[AttachedLink]:
        heard.append(record)
        return [replace(link, addresses=("192.0.2.1/24",)) for link in links]

    bench.on_links = with_rdma
    bench.store.put(a_record(LEASE, None))
    bench.server.answers = [GONE]
    await bench.run_for(610)
    both = [("net1", ("192.0.2.1/24",)), ("net2", ("192.0.2.1/24",))]
    assert bench.told.links == both
    await bench.run_for(100)
    assert [news[0] for news in bench.told.news] == ["lost", "back"]
    assert bench.told.links == both * 2
    assert [record.claim.uid for record in heard] == ["uid", "uid"]


async def test_an_address_that_a_tenant_removed_may_come_back(bench: Bench) -> None:
    """The lease has time left, so the next container of the pod gets it again."""
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE]
    await bench.run_for(610)
    assert bench.stored_lease() == LEASE


async def test_an_end_is_said_once_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE] * 100
    await bench.run_for(2000)
    assert caplog.text.count("is not renewed") == 1


async def test_a_lease_that_ends_while_the_store_cannot_be_written_is_told(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [REFUSED, REFUSED, *[GONE] * 9]
    with refusing(bench.store):
        await bench.run_for(610)
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_REFUSED)]
    assert bench.store.unwritten == ("uid",)
    assert bench.store.flush_pending()


# --- restarts and clocks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down_seconds", "first"),
    [(100, ("renew", 600)), (700, ("renew", 700)), (1100, ("rebind", 1100)), (5000, ("rebind", 5000))],
)
async def test_a_restart_goes_on_where_the_lease_is(
    tmp_path: Path, down_seconds: float, first: tuple[str, float]
) -> None:
    before = Bench(tmp_path)
    before.store.put(a_record(LEASE))
    before.store.close()
    before.clock.passed = down_seconds
    after = Bench(tmp_path, before.clock)
    await after.run_for(600)
    assert after.server.said[0][:2] == first
    assert after.told.news == []
    after.store.close()


async def test_a_lease_that_ended_while_the_driver_was_down_is_told(tmp_path: Path) -> None:
    clock = TestClock()
    clock.passed = 5000
    bench = Bench(tmp_path, clock)
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE]
    await bench.run_for(10)
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_EXPIRED)]
    bench.store.close()


@pytest.mark.parametrize("step", [-1e6, -30.0, 30.0, 1e6])
async def test_a_clock_that_is_set_while_it_runs_changes_nothing(bench: Bench, step: float) -> None:
    bench.store.put(a_record(LEASE))
    await bench.run_for(10)
    bench.clock.offset = step
    await bench.run_for(1300)
    assert bench.times("renew") == [600, 1200]


async def test_a_clock_that_was_set_forward_while_the_driver_was_down_ends_no_lease(tmp_path: Path) -> None:
    """And its server is away, too: the kernel counts on, by a clock that nobody sets."""
    clock = TestClock()
    clock.passed, clock.offset = 100, 1e6
    bench = Bench(tmp_path, clock)
    bench.store.put(a_record(LEASE))
    bench.server.answers = [SILENT] * 100
    bench.server.kernel_seconds = [1100.0, 1040.0, 5.0]
    await bench.run_for(100)
    assert bench.told.news == []
    assert bench.stored_lease() == LEASE
    assert bench.times("end") == [100, 160]
    await bench.run_for(50)
    assert bench.times("end") == [100, 160, 220, 225]
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_EXPIRED)]
    bench.store.close()


async def test_a_clock_that_was_set_back_while_the_driver_was_down_makes_it_ask_at_once(bench: Bench) -> None:
    bench.clock.offset = -3600
    bench.store.put(a_record(LEASE))
    await bench.run_for(500)
    assert bench.times("renew") == [0]
    assert bench.stored_lease().obtained_at == START - 3600


# --- what changes meanwhile ----------------------------------------------------------------------------


async def test_only_the_lease_is_replaced_in_a_record_that_changed_meanwhile(bench: Bench) -> None:
    """The hook attached the claim, with other devices, while the server was asked."""
    bench.store.put(record := a_record(LEASE, attached=False))

    class Meanwhile(Server):
        def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
            bench.store.put(replace(record, sandbox_id="new", netns_path="/run/netns/new"))
            return super().acquire(ifname, mac, wanted)

    bench.leases._client = Meanwhile(bench.clock)
    await bench.run_for(610)
    changed = bench.store.get("uid")
    assert changed is not None
    assert (changed.sandbox_id, changed.netns_path) == ("new", "/run/netns/new")
    assert bench.stored_lease() == replace(LEASE, obtained_at=START + 600)
    assert changed.devices[0] == record.devices[0]


async def test_a_claim_that_was_unprepared_meanwhile_is_not_brought_back(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))

    class Meanwhile(Server):
        def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
            bench.store.delete("uid")
            return super().renew(lease, netns_path, ifname, rebind=rebind)

    bench.leases._client = server = Meanwhile(bench.clock)
    await bench.run_for(1000)
    assert bench.store.get_all() == ()
    assert [said[0] for said in server.said] == ["renew", "release"]


async def test_a_pod_that_ends_while_its_lease_is_renewed_has_not_lost_it(bench: Bench) -> None:
    """The link has gone home, so the address is not there any more."""
    bench.store.put(record := a_record(LEASE))

    class Meanwhile(Server):
        def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
            bench.store.put(replace(record, sandbox_id="", netns_path=""))
            super().renew(lease, netns_path, ifname, rebind=rebind)
            raise GONE

    bench.leases._client = server = Meanwhile(bench.clock)
    await bench.run_for(610)
    assert bench.told.news == []
    assert [said[0] for said in server.said] == ["renew", "acquire"], "now it is the host that asks"
    assert bench.stored_lease().obtained_at == START + 600


async def test_a_lease_that_is_renewed_while_it_is_released_is_released_again(bench: Bench) -> None:
    """The record is still there: Unprepare forgets it last."""
    bench.store.put(record := a_record(LEASE, attached=False))
    began, go_on = threading.Event(), threading.Event()

    class Slow(Server):
        def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
            began.set()
            assert go_on.wait(10)
            return super().acquire(ifname, mac, wanted)

    bench.leases._client = server = Slow(bench.clock)
    bench.clock.passed = 600.0
    renewing = asyncio.create_task(bench.run_for(10))
    await asyncio.to_thread(began.wait, 10)
    releasing = asyncio.create_task(bench.leases.release(record))
    await asyncio.sleep(0)
    go_on.set()
    await releasing
    await renewing
    assert [said[0] for said in server.said][-1] == "release"
    assert bench.stored_lease() == LEASE
    await bench.run_for(1000)
    assert [said[0] for said in server.said][-1] == "release", "it is renewed no more"


async def test_what_was_lost_and_is_back_is_forgotten_with_its_claim(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    bench.server.answers = [GONE]
    await bench.run_for(700)
    bench.store.delete("uid")
    await bench.run_for(1200)
    assert [news[0] for news in bench.told.news] == ["lost", "back", "forgotten"]


async def test_a_claim_that_is_prepared_again_is_renewed_again(bench: Bench) -> None:
    """The next pod may have the same claim."""
    bench.store.put(record := a_record(LEASE, attached=False))
    await bench.leases.release(record)
    bench.store.delete("uid")
    bench.leases.forgotten("uid")
    bench.store.put(a_record(LEASE))
    await bench.run_for(610)
    assert bench.times("renew") == [600]


async def test_a_lease_for_ever_is_counted_until_its_claim_is_forgotten(bench: Bench) -> None:
    bench.store.put(a_record(replace(LEASE, lease_seconds=0xFFFFFFFF)))
    waits = asyncio.Semaphore(0)

    class Waiting(TestClock):
        async def wait(self, news: asyncio.Event, seconds: float) -> None:
            assert seconds == math.inf
            waits.release()
            await news.wait()

    bench.leases._clock = Waiting()
    running = asyncio.create_task(bench.leases.run())
    await waits.acquire()
    assert b"dranet_dhcp_leases 1.0" in bench.metrics.render()
    bench.store.delete("uid")
    bench.leases.forgotten("uid")
    async with asyncio.timeout(10):
        await waits.acquire()
    assert b"dranet_dhcp_leases 0.0" in bench.metrics.render()
    running.cancel()


async def test_renewals_go_on_while_the_store_cannot_be_written(bench: Bench) -> None:
    bench.store.put(a_record(LEASE))
    with refusing(bench.store):
        await bench.run_for(610)
        assert bench.stored_lease().obtained_at == START + 600
        await bench.run_for(600)
    assert bench.times("renew") == [600, 1200]
    assert bench.store.flush_pending()
    assert bench.stored_lease().obtained_at == START + 1200


@contextmanager
def refusing(store: ClaimStore) -> Iterator[None]:
    """The disk takes nothing."""

    def refuse() -> NoReturn:
        raise StoreError("the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_need_folder", refuse)
        yield


async def test_while_no_pod_has_the_link_it_is_asked_for_on_the_host(bench: Bench) -> None:
    bench.store.put(a_record(LEASE, attached=False))
    await bench.run_for(610)
    assert bench.server.said == [("acquire", 600, "eth1", LEASE.client_mac, "10.77.0.50")]
    assert bench.stored_lease().obtained_at == START + 600


async def test_another_address_for_a_prepared_claim_ends_its_lease(bench: Bench) -> None:
    """No pod must start with an address that the server gives to others by now."""
    bench.store.put(a_record(LEASE, attached=False))
    bench.server.address = "10.77.0.99/24"
    await bench.run_for(610)
    assert bench.server.said[1] == ("release", "10.77.0.99/24", "eth1", LEASE.client_mac)
    assert seconds_left(bench.stored_lease(), bench.clock.unix()) == 0
    assert bench.told.news == [("lost", "uid", 1, Reason.DHCP_LEASE_REFUSED)]
    assert bench.told.links == []


async def test_a_prepared_claim_whose_server_comes_to_its_senses_has_its_lease_again(bench: Bench) -> None:
    bench.store.put(a_record(LEASE, attached=False))
    bench.server.address = "10.77.0.99/24"
    await bench.run_for(610)
    bench.server.address = "10.77.0.50/16"  # another mask is no other address
    await bench.run_for(100)
    assert bench.stored_lease() == replace(LEASE, obtained_at=START + 660)
    assert [news[0] for news in bench.told.news] == ["lost", "back"]


# --- Prepare and Unprepare -----------------------------------------------------------------------------


ASKED = (
    LeaseRequest("nic-1", "eth1", "02:00:00:00:00:01"),
    LeaseRequest("nic-2", "eth2", "02:00:00:00:00:02"),
)


async def test_every_lease_is_taken(bench: Bench) -> None:
    leases = await bench.leases.acquire(ASKED)
    assert {device: lease.client_mac for device, lease in leases.items()} == {a.device: a.mac for a in ASKED}


async def test_all_or_none(bench: Bench) -> None:
    bench.server.failing = {"eth2"}
    with pytest.raises(KernelError, match="no answer"):
        await bench.leases.acquire(ASKED)
    assert [said for said in bench.server.said if said[0] == "release"] == [
        ("release", LEASE.address, "eth1", "02:00:00:00:00:01")
    ]
    asked = bench.metrics.dhcp.requests
    assert (asked.labels("success")._value.get(), asked.labels("failed")._value.get()) == (1, 1)


async def test_one_conversation_at_a_time_on_a_link_and_several_on_several(bench: Bench) -> None:
    """A conversation may lower the link when it ends."""
    running: list[str] = []
    most = {"eth1": 0, "all": 0}
    both = threading.Barrier(2)

    class Watched(Server):
        def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
            running.append(ifname)
            most["eth1"] = max(most["eth1"], running.count("eth1"))
            if mac.endswith(("01", "02")):
                both.wait(10)  # eth1 and eth2 at once
            running.remove(ifname)
            return super().acquire(ifname, mac, wanted)

    bench.leases._client = Watched(bench.clock)
    shares = [LeaseRequest(f"nic-1/{n}", "eth1", f"02:00:00:00:00:1{n}") for n in range(4)]
    assert len(await bench.leases.acquire([*ASKED, *shares])) == 6
    assert most["eth1"] == 1


async def test_a_claims_leases_are_released_on_the_links_of_the_host(bench: Bench) -> None:
    await bench.leases.release(a_record(None, LEASE, attached=False))
    assert bench.server.said == [("release", LEASE.address, "eth2", LEASE.client_mac)]


async def test_the_lease_of_a_link_on_top_is_released_on_the_link_below(bench: Bench) -> None:
    await bench.leases.release(a_record(LEASE, attached=False, on_top=True))
    assert bench.server.said == [("release", LEASE.address, "eth1", LEASE.client_mac)]


async def test_a_release_that_fails_fails_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.server.failing = {"eth1"}
    await bench.leases.release(a_record(LEASE, LEASE))
    assert "ends by itself" in caplog.text
    assert [said[2] for said in bench.server.said] == ["eth1", "eth2"]


# --- arithmetic ----------------------------------------------------------------------------------------


def test_attempts_come_closer_as_the_end_does_but_never_a_minute_apart() -> None:
    ages = [600.0]
    while ages[-1] < 1300:
        ages.append(next_attempt_age(LEASE, ages[-1]))
    assert ages == [600, 825, 937.5, 997.5, 1050, 1125, 1185, 1200, 1260, 1320]

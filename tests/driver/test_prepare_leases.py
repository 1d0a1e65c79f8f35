"""Prepare and Unprepare of claims that want DHCP: who asks when, and what goes back when something fails.

First with a client that answers at once, then the whole way with a real server, links and a pod's namespace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import LeaseClient, Leases, iter_leases
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import DeviceError, DranetError, KernelError, Reason
from dranet.model.claim import (
    AllocationResult,
    Claim,
    ClaimRef,
    ConfigSource,
    Consumer,
    OpaqueConfig,
    PodSandbox,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import DhcpLease, PreparedClaim
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.dhcp_servers import Udhcpd, start_udhcpd
from tests.support.namespaces import Namespace, wait_unchanged
from tests.support.records import refuse_writes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

MAC = "02:00:00:00:00:01"
"""Of eth1 of the node."""
NIC = Device("nic-1", DeviceKind.NIC, ifname="eth1")
POD = Consumer(resource="pods", name="pod", uid="pod-uid")


class Told(Announcer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.reports: list[ReleaseReport] = []
        self.failures: list[DranetError] = []

    def prepared(self, record: PreparedClaim) -> None:
        assert record.devices

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        assert claim is None or claim.ref == ref
        self.failures.append(error)

    def released(self, report: ReleaseReport) -> None:
        self.reports.append(report)

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        raise AssertionError(f"{ref}: {error}")


class Offered:
    """One NIC."""

    def get_offered(self, name: str) -> Device:
        if name != NIC.name:
            raise DeviceError(f"device {name} does not exist on this node")
        return NIC


class Recording(LeaseClient):
    """Leases at once, and writes down what it was asked."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
        self.said.append(f"acquire {ifname} {wanted}".strip())
        return DhcpLease(
            "10.77.0.50/24",
            "10.77.0.1",
            "02:00:00:00:00:99",
            mac,
            time.time(),
            1200,
            600,
            1050,
            ("10.77.0.1",),
        )

    def release(self, lease: DhcpLease, ifname: str) -> None:
        self.said.append(f"release {lease.address} on {ifname}")


class Bench:
    """The parts of the driver between the kubelet and the store."""

    def __init__(
        self, folder: Path, *claims: Claim, client: LeaseClient | None = None, runtime_ready: bool = True
    ) -> None:
        self.claims = {claim.ref.uid: claim for claim in claims}
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.told = Told()
        gate, metrics = StartGate(folder), Metrics()
        self.attachments = Attachments(self.store, gate)
        self.leases = Leases(self.store, self.attachments, self.told, metrics, client=client)
        self.preparer = Preparer(
            driver_name="dra.net",
            boot_id="boot",
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=Offered().get_offered,
                is_runtime_ready=lambda: runtime_ready,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                self.leases,
                ContainerFiles(gate, CdiSpecs(folder / "cdi", "dra.net")),
                WorkLocks(self.store.folder),
                Ipam(self.store, "boot", self.told, metrics),
            ),
            announcer=self.told,
            metrics=metrics,
        )

    async def _fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def prepare(self, *claims: Claim) -> list[str]:
        """The error of each, empty for success."""
        outcomes = await self.preparer.prepare([claim.ref for claim in claims])
        return [outcomes[claim.ref.uid].error for claim in claims]

    async def unprepare(self, claim: Claim) -> str:
        return (await self.preparer.unprepare([claim.ref]))[claim.ref.uid]

    def lease(self, uid: str = "uid") -> DhcpLease:
        record = self.store.get(uid)
        assert record is not None
        (held,) = iter_leases([record])
        return held.lease

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*claims: Claim, **how: Any) -> Bench:
        made.append(Bench(tmp_path, *claims, **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def a_claim(uid: str = "uid", **interface: Any) -> Claim:
    parameters = {"interface": {"name": "net1", "dhcp": True, **interface}}
    return Claim(
        ref=ClaimRef("default", f"claim-{uid}", uid),
        allocated=True,
        results=(AllocationResult("req", "dra.net", "node", NIC.name),),
        configs=(OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters),),
        reserved_for=(POD,),
    )


def in_node(node: Namespace, walk: Callable[[], Awaitable[None]]) -> None:
    """Run a walk of the driver with all of its threads in the node's namespace."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await walk()

    node.run(lambda: asyncio.run(run()))


# --- what goes back ------------------------------------------------------------------------------------


def test_the_lease_is_in_the_record(node: Namespace, make_bench: Callable[..., Bench]) -> None:
    client = Recording()
    bench = make_bench(claim := a_claim(), client=client)

    async def walk() -> None:
        assert await bench.prepare(claim) == [""]
        assert bench.lease().address == "10.77.0.50/24"
        assert bench.lease().client_mac == MAC
        assert await bench.prepare(claim) == [""]

    in_node(node, walk)
    assert client.said == ["acquire eth1"]


def test_a_claim_that_cannot_be_planned_gives_its_lease_back(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    """The link is enslaved, which only the plan looks at."""
    node.ip_lines("link add br0 type bridge\nlink set eth1 master br0\n")
    client = Recording()
    bench = make_bench(claim := a_claim(), client=client)

    async def walk() -> None:
        assert "enslaved" in (await bench.prepare(claim))[0]

    in_node(node, walk)
    assert client.said == ["acquire eth1", "release 10.77.0.50/24 on eth1"]
    assert bench.store.get_all() == ()


def test_a_claim_that_cannot_be_stored_gives_its_lease_back(
    node: Namespace, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Recording()
    bench = make_bench(claim := a_claim(), client=client)
    refuse_writes(bench.store, monkeypatch)

    async def walk() -> None:
        assert "store" in (await bench.prepare(claim))[0]

    in_node(node, walk)
    assert client.said == ["acquire eth1", "release 10.77.0.50/24 on eth1"]


def test_without_the_runtime_no_server_is_asked(node: Namespace, make_bench: Callable[..., Bench]) -> None:
    client = Recording()
    bench = make_bench(claim := a_claim(), client=client, runtime_ready=False)

    async def walk() -> None:
        assert "NRI" in (await bench.prepare(claim))[0]

    in_node(node, walk)
    assert client.said == []


def test_a_server_that_gives_nothing_is_the_claims_own_error(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    class Silent(Recording):
        def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
            super().acquire(ifname, mac, wanted)
            raise KernelError("no DHCP lease on eth1", reason=Reason.DHCP_FAILED)

    bench = make_bench(claim := a_claim(), client=Silent())

    async def walk() -> None:
        assert await bench.prepare(claim) == ["no DHCP lease on eth1"]

    in_node(node, walk)
    assert [error.reason for error in bench.told.failures] == [Reason.DHCP_FAILED]
    assert bench.store.get_all() == ()


def test_two_claims_for_one_device_take_one_lease_and_the_loser_releases_nothing(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    """Both would get the same address: the server knows the client by the NIC's hardware address."""
    client = Recording()
    first, second = a_claim("first"), a_claim("second")
    bench = make_bench(first, second, client=client)

    async def walk() -> None:
        errors = await bench.prepare(first, second)
        assert sorted(error == "" for error in errors) == [False, True]
        assert "is prepared for claim" in "".join(errors)

    in_node(node, walk)
    assert client.said == ["acquire eth1"]


def test_unprepare_releases_before_anybody_else_can_have_the_device(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    seen: list[tuple[PreparedClaim, ...]] = []

    class Looking(Recording):
        def release(self, lease: DhcpLease, ifname: str) -> None:
            super().release(lease, ifname)
            seen.append(bench.store.get_all())

    client = Looking()
    bench: Bench = make_bench(claim := a_claim(), client=client)

    async def walk() -> None:
        await bench.prepare(claim)
        assert await bench.unprepare(claim) == ""
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert client.said == ["acquire eth1", "release 10.77.0.50/24 on eth1"]
    assert [len(records) for records in seen] == [1]
    assert bench.store.get_all() == ()


def test_a_release_that_fails_does_not_keep_the_claim(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    class Failing(Recording):
        def release(self, lease: DhcpLease, ifname: str) -> None:
            super().release(lease, ifname)
            raise KernelError("no carrier")

    bench = make_bench(claim := a_claim(), client=Failing())

    async def walk() -> None:
        await bench.prepare(claim)
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert bench.store.get_all() == ()


# --- the whole way -------------------------------------------------------------------------------------


@pytest.fixture
def udhcpd(fabric: Namespace, node: Namespace, tmp_path: Path) -> Iterator[Udhcpd]:
    assert node.name
    server = start_udhcpd(fabric, "p-eth1", tmp_path)
    yield server
    server.stop()


def test_from_prepare_to_unprepare_with_a_real_server(
    node: Namespace, pod: Namespace, udhcpd: Udhcpd, make_bench: Callable[..., Bench]
) -> None:
    """Leased while the link was down, attached, renewed in the pod, given back down, released."""
    node.ip("link", "set", "eth1", "down")
    before = node.picture()
    bench = make_bench(claim := a_claim())
    sandbox = PodSandbox("sandbox", "pod", "default", "pod-uid", netns_path=str(pod.path))

    async def walk() -> None:
        assert await bench.prepare(claim) == [""]
        wait_unchanged(before, node)
        attach = asyncio.to_thread(bench.attachments.attach_pod, sandbox, deadline=time.monotonic() + 30)
        report = await attach
        assert report is not None
        assert report.links[0].addresses == (bench.lease().address,)
        routes = {route["dst"]: route.get("gateway") for route in pod.read("route", "show", "dev", "net1")}
        assert routes["10.99.0.0/16"] == "10.77.0.9"
        await make_due(bench)
        await renew_once(bench)
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert [replace(report, devices=()) for report in bench.told.reports] == [ReleaseReport(claim.ref)]
    wait_until(lambda: not udhcpd.leased(), "the server has its address back")
    wait_unchanged(before, node)


async def make_due(bench: Bench) -> None:
    """As if T1 had passed."""
    record = bench.store.get("uid")
    assert record is not None
    (held,) = iter_leases([record])
    older = replace(held.lease, obtained_at=held.lease.obtained_at - held.lease.renew_seconds)
    devices = tuple(replace(d, plan=replace(held.plan, lease=older)) for d in record.devices)
    bench.store.put(replace(record, devices=devices))


async def renew_once(bench: Bench) -> None:
    old = bench.lease()
    task = asyncio.create_task(bench.leases.run())
    deadline = time.monotonic() + 30
    while bench.lease() == old:
        assert time.monotonic() < deadline
        assert not task.done()
        await asyncio.sleep(0.01)
    task.cancel()
    assert bench.lease().address == old.address
    assert bench.lease().obtained_at > old.obtained_at + 60

"""The end of a lease, with real DHCP servers and a real pod: the link, the claim's status and the file in the
pod agree, whoever ended it and whoever looks later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.cluster.events import EventNote, ObjectRef
from dranet.driver.leases import Clock, LeaseClient, Leases, iter_leases
from dranet.driver.metadata import DeviceMetadata, MetadataFiles
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.errors import KernelError, Reason
from dranet.inventory.policy import DEFAULT_POLICY
from dranet.kernel.attachment.checks import read_attached
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.dhcp.client import acquire_lease, renew_lease
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.claim import ClaimRef
from dranet.model.device import Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import DhcpLease, PreparedDevice, RequestMetadata
from dranet.model.status import AttachedLink, ConditionType, DeviceStatus
from dranet.telemetry import LeaseOutcome, Metrics
from tests.driver.bench import Bench, sandbox
from tests.support import metadata_reader
from tests.support.dhcp_servers import RealServer, start_dnsmasq, start_udhcpd
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

MAC = "02:00:00:00:00:01"
"""Of eth1 of the node."""
RESERVED = "10.77.0.120"


class Statuses(Reporter):
    """The newest status of the claim, and all Events."""

    def __init__(self) -> None:
        self.newest: DeviceStatus | None = None
        self.events: list[EventNote] = []

    def set_statuses(
        self, claim: ClaimRef, statuses: Sequence[DeviceStatus], *, rest_seconds: float = 0.0
    ) -> None:
        del rest_seconds
        assert claim.uid == "claim-uid"
        (self.newest,) = statuses

    def add_event(self, event: EventNote) -> None:
        self.events.append(event)

    def add_normal(self, word: str, about: ObjectRef, sentence: str) -> None:
        pass

    def reasons(self) -> dict[str, str]:
        assert self.newest is not None
        return {c.type: c.reason for c in self.newest.conditions if c.status is False}


class Later(Clock):
    """The steady clock and the wall clock, a given time from now."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def unix(self) -> float:
        return time.time() + self.seconds

    def steady(self) -> float:
        return time.monotonic() + self.seconds


class PatientClient(LeaseClient):
    """Waits for an answer as long as a busy server may take; where none is to come, a test says so."""

    seconds = 10.0

    def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
        with NetworkNamespace.open(netns_path) as netns:
            return renew_lease(lease, netns, ifname, rebind=rebind, timeout_seconds=self.seconds)


class LeaseBench:
    """A pod with a leased link, and the part of the driver that minds the lease."""

    def __init__(self, folder: Path, bench: Bench, node: Namespace, pod: Namespace) -> None:
        self.bench, self.node, self.pod = bench, node, pod
        self.folder = folder
        self.reporter, self.clock, self.metrics = Statuses(), Later(), Metrics()
        self.client = PatientClient()
        self.announcer = Announcer("dra.net", "node", self.reporter, self.metrics, bench.store.get_by_pod)
        self.metadata = DeviceMetadata(
            bench.store,
            MetadataFiles(folder, "dra.net"),
            bench.cdi,
            self.announcer,
            lambda: DEFAULT_POLICY,
            Path("/sys"),
        )
        self.leases = Leases(
            bench.store,
            bench.attachments,
            self.announcer,
            self.metrics,
            client=self.client,
            clock=self.clock,
            on_links=self.metadata.links_changed,
        )

    def attach(self) -> DhcpLease:
        """From a real lease to a running pod."""
        lease = self.node.run(lambda: acquire_lease("eth1", MAC))
        host = self.node.run(lambda: read_link_state("eth1"))
        device = Device("nic-1", DeviceKind.NIC, ifname="eth1", attributes={"dra.net/ifName": "eth1"})
        network = NetworkConfig.model_validate({"interface": {"name": "net1", "dhcp": True}})
        plan = plan_device(device, host, network, rdma_exclusive=False, lease=lease)
        record = self.bench.put(PreparedDevice("nic", "node", device, plan=plan))
        record = replace(record, metadata=(RequestMetadata("nic"),))
        self.bench.store.put(record)
        self.metadata.prepare(record)
        self.node.run(self._attach_pod)
        assert self.told_everywhere() == [lease.address] * 3
        return lease

    def _attach_pod(self) -> None:
        report = self.bench.attachments.attach_pod(sandbox(self.pod), deadline=time.monotonic() + 30)
        assert report is not None
        records = self.bench.store.get_all()
        self.announcer.attached(records, self.metadata.attached(records, report.links, str(self.pod.path)))

    def told_everywhere(self) -> list[str]:
        """The address on the link, in the claim's status, and in the file that the pod reads."""
        (link,) = self.pod.read_raw("addr", "show", "net1")
        on_link = [f"{i['local']}/{i['prefixlen']}" for i in link["addr_info"] if i["family"] == "inet"]
        assert self.reporter.newest is not None
        return [" ".join(told) for told in (on_link, self.reporter.newest.ips, self.read_file())]

    def read_file(self) -> list[str]:
        path = self.folder / "metadata" / "claim-uid" / "nic" / "dra.net-metadata.json"
        ((device,),) = [r["devices"] for r in metadata_reader.decode(path.read_bytes())["requests"]]
        assert device["networkData"]["interfaceName"] == "net1"
        found: list[str] = device["networkData"].get("ips", [])
        return found

    def mind_until(self, condition: Callable[[], object]) -> None:
        """Let the driver mind its leases until that is so."""

        async def run() -> None:
            task = asyncio.create_task(self.leases.run())
            async with asyncio.timeout(30):
                while not condition():
                    assert not task.done()
                    await asyncio.sleep(0.01)
            task.cancel()

        self.node.run(lambda: asyncio.run(run()))

    def has_told_its_end(self) -> bool:
        return bool(self.reporter.events) and bool(self.reporter.reasons())

    def look(self) -> Sequence[AttachedLink]:
        plans = [plan for record in self.bench.store.get_all() for plan in record.plans]
        return self.node.run(lambda: read_attached(plans, self.pod.netns))

    def count(self, outcome: LeaseOutcome) -> float:
        return float(self.metrics.dhcp.renewals.labels(outcome)._value.get())

    def lease(self) -> DhcpLease:
        (held,) = iter_leases(self.bench.store.get_all())
        return held.lease


@pytest.fixture(params=[start_udhcpd, start_dnsmasq], ids=["udhcpd", "dnsmasq"])
def server(
    request: pytest.FixtureRequest, fabric: Namespace, node: Namespace, tmp_path: Path
) -> Iterator[Callable[..., RealServer]]:
    """Start a real server on the far end of eth1, instead of the one before."""
    running: list[RealServer] = []

    def begin(**how: Any) -> RealServer:
        for earlier in running:
            earlier.stop()
        running[:] = [request.param(fabric, "p-eth1", tmp_path, **how)]
        return running[0]

    assert node.name
    yield begin
    for real in running:
        real.stop()


@pytest.fixture
def leased(
    tmp_path: Path, start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> Callable[[], LeaseBench]:
    """Make one; another one is the driver restarted."""
    return lambda: LeaseBench(tmp_path, start(), node, pod)


def test_a_renewed_lease_changes_nothing_that_is_told(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    server()
    bench = leased()
    lease = bench.attach()
    status = bench.reporter.newest
    bench.clock.seconds = lease.renew_seconds
    bench.mind_until(lambda: bench.count(LeaseOutcome.RENEWED))
    assert bench.told_everywhere() == [lease.address] * 3
    assert bench.reporter.newest is status
    assert bench.reporter.events == []


@pytest.mark.parametrize("server", [start_dnsmasq], ids=["dnsmasq"], indirect=True)
def test_a_server_that_gives_another_address_takes_this_one_from_link_status_and_file(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    """Somebody reserves another address for the NIC while its pod runs: dnsmasq refuses the renewal."""
    server()
    bench = leased()
    lease = bench.attach()
    server(reserved={MAC: RESERVED})
    bench.clock.seconds = lease.renew_seconds
    bench.mind_until(bench.has_told_its_end)
    assert bench.told_everywhere() == [""] * 3
    refused = str(Reason.DHCP_LEASE_REFUSED)
    lost = dict.fromkeys(
        (ConditionType.CONFIGURED, ConditionType.NETWORK_READY, ConditionType.READY), refused
    )
    assert bench.reporter.reasons() == lost
    assert [event.reason for event in bench.reporter.events] == [refused]
    assert "static lease available" in bench.reporter.events[0].note


@pytest.mark.parametrize("server", [start_udhcpd], ids=["udhcpd"], indirect=True)
def test_a_lease_that_nobody_renews_goes_from_link_status_and_file_when_the_kernel_ends_it(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    """udhcpd says nothing where it has another address for the NIC. By the driver's clock the lease ends long
    before it does: the address stays until the kernel says so."""
    server()
    bench = leased()
    lease = bench.attach()
    server(reserved={MAC: RESERVED})
    bench.client.seconds = 1.0
    bench.clock.seconds = lease.lease_seconds + 1
    bench.mind_until(lambda: bench.count(LeaseOutcome.FAILED))
    assert bench.told_everywhere() == [lease.address] * 3
    bench.pod.ip("addr", "change", lease.address, "dev", "net1", "valid_lft", "1", "preferred_lft", "1")
    bench.clock.seconds += 600  # the next attempt is due
    bench.mind_until(bench.has_told_its_end)
    assert bench.told_everywhere() == [""] * 3
    assert bench.reporter.reasons()[ConditionType.READY] == str(Reason.DHCP_LEASE_EXPIRED)


@pytest.mark.parametrize("server", [start_dnsmasq], ids=["dnsmasq"], indirect=True)
def test_an_address_that_was_taken_back_is_not_put_back_by_a_hook(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    server()
    bench = leased()
    lease = bench.attach()
    server(reserved={MAC: RESERVED})
    bench.clock.seconds = lease.renew_seconds
    bench.mind_until(bench.has_told_its_end)
    with pytest.raises(KernelError) as caught:
        bench.bench.create_container(sandbox(bench.pod))
    assert caught.value.reason is Reason.DHCP_LEASE_EXPIRED
    assert bench.told_everywhere() == [""] * 3


@pytest.mark.parametrize("server", [start_udhcpd], ids=["udhcpd"], indirect=True)
def test_a_lease_that_ended_while_no_driver_ran_is_told_by_the_next_one(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    server()
    before = leased()
    lease = before.attach()
    before.pod.ip("addr", "del", lease.address, "dev", "net1")  # as the kernel does it
    after = leased()
    after.clock.seconds = lease.lease_seconds + 1
    after.mind_until(after.has_told_its_end)
    assert after.told_everywhere() == [""] * 3


@pytest.mark.parametrize("server", [start_udhcpd], ids=["udhcpd"], indirect=True)
def test_a_restart_after_the_end_of_a_lease_leaves_the_rest_of_the_pods_links_as_told(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    """Nothing was detached: to say so would hide what the pod still has."""
    server()
    before = leased()
    lease = before.attach()
    before.pod.ip("addr", "del", lease.address, "dev", "net1")
    after = leased()
    after.clock.seconds = lease.lease_seconds + 1
    after.mind_until(after.has_told_its_end)
    after.bench.reconcile(sandbox(after.pod))
    assert after.bench.told.failures == []
    (record,) = after.bench.store.get_all()
    assert record.pod.uid in after.bench.attachments._namespaces._held  # so its link is watched
    with pytest.raises(KernelError):
        after.bench.create_container(sandbox(after.pod))
    assert after.bench.told.failures == []
    assert [pod for pod, _ in after.bench.told.refusals] == ["pod"]
    assert after.bench.stop_sandbox(sandbox(after.pod))
    assert "eth1" in {link["ifname"] for link in after.node.read("link")}


@pytest.mark.parametrize("server", [start_udhcpd], ids=["udhcpd"], indirect=True)
def test_an_address_that_is_back_is_told_again(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    """A tenant has removed it, and the next container of the pod has made the driver put it back."""
    server()
    bench = leased()
    lease = bench.attach()
    bench.pod.ip("addr", "del", lease.address, "dev", "net1")
    bench.clock.seconds = lease.renew_seconds
    bench.mind_until(bench.has_told_its_end)
    assert bench.told_everywhere() == [""] * 3
    bench.node.run(bench._attach_pod)
    bench.clock.seconds += 61
    bench.mind_until(lambda: not bench.reporter.reasons())
    assert bench.told_everywhere() == [lease.address] * 3


@pytest.mark.parametrize("server", [start_dnsmasq], ids=["dnsmasq"], indirect=True)
def test_a_claim_that_was_unprepared_meanwhile_gets_no_file_again(
    server: Callable[..., RealServer], leased: Callable[[], LeaseBench]
) -> None:
    server()
    bench = leased()
    bench.attach()
    (record,) = bench.bench.store.get_all()
    links = bench.look()
    bench.bench.store.delete("claim-uid")
    bench.metadata.remove("claim-uid")
    assert [link.pod_ifname for link in bench.metadata.links_changed(record, links)] == ["net1"]
    assert bench.metadata.list_claims() == frozenset()

"""The reporter with the API server stand-in behind it: what a claim holds after trouble, and what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from dranet.claims.alignment import AlignmentCandidate, Better, Verdict
from dranet.claims.report import add_alignment
from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import access_from_url
from dranet.driver.attachments import ReleaseReport
from dranet.driver.reports import reporter as report
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import MAX_AGE, Misalignments, RecentEvents, Reporter
from dranet.errors import KernelError, Reason
from dranet.model.claim import Claim, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, Doubt, GpuSource, PodGpu
from dranet.model.facts import Distance
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink, DeviceStatus
from dranet.telemetry import Metrics
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

DRIVER, NODE = "dra.net", "node-a"
CLAIMS = paths.resource_claims("default")
DEADLINE_SECONDS = 15.0


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RETRY_SECONDS", (0.001, 0.05))


class Node:
    """The telling part of a driver."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.server = server
        self.client = client
        self.verdict: Verdict | None = None
        self.pods: dict[str, PodRef] = {}
        self.reporter = Reporter(client, DRIVER, NODE, Metrics(), self.judge, self.pods.get, RecentEvents())
        self.announcer = Announcer(DRIVER, NODE, self.reporter, Metrics())

    def judge(
        self, _: Claim, statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject]
    ) -> Sequence[DeviceStatus]:
        """The verdict, on whatever is in its pod."""
        del existing
        return [
            add_alignment(status, self.verdict)
            if self.verdict is not None and status.interface_name
            else status
            for status in statuses
        ]

    async def make(self, name: str, *other_drivers: str) -> PreparedClaim:
        """An allocated claim for one NIC, as Prepare leaves it."""
        spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
        created = await self.client.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        drivers = (DRIVER, *other_drivers)
        results = [{"request": "nic", "driver": d, "pool": NODE, "device": f"of-{name}"} for d in drivers]
        status = {"status": {"allocation": {"devices": {"results": results}}}}
        await self.client.patch(paths.resource_claim_status("default", name), status)
        device = Device(f"of-{name}", DeviceKind.NIC)
        prepared = PreparedDevice("nic", NODE, device, plan=AttachPlan(device.name, pod_ifname="net1"))
        ref = ClaimRef("default", name, created["metadata"]["uid"])
        self.pods[ref.uid] = PodRef("default", f"pod-{name}", f"uid-{name}")
        return PreparedClaim(ref, self.pods[ref.uid], (prepared,), "boot")

    def attach(self, record: PreparedClaim) -> None:
        device = record.devices[0].device.name
        link = AttachedLink(device, "net1", "02:00:00:00:00:01", 1500, ("10.0.0.5/24", "2001:DB8::5/64"))
        self.announcer.attached([record], [link])

    async def entry(self, name: str) -> JsonObject:
        claim = await self.client.get(paths.resource_claim("default", name))
        (entry,) = [e for e in claim["status"].get("devices", []) if e["driver"] == DRIVER]
        return dict(entry)

    async def settled(self) -> None:
        assert await self.reporter.flush(DEADLINE_SECONDS)

    def applies(self, name: str) -> int:
        path = paths.resource_claim_status("default", name)
        return sum(r.method == "PATCH" and r.path == path for r in self.server.requests) - 1


@asynccontextmanager
async def node_of(server: ApiServer) -> AsyncIterator[Node]:
    async with ApiClient(access_from_url(server.url)) as client:
        node = Node(server, client)
        task = asyncio.create_task(node.reporter.run())
        yield node
        task.cancel()


@pytest.fixture
async def node(server: ApiServer) -> AsyncIterator[Node]:
    async with node_of(server) as running:
        yield running


UNKNOWN = Verdict((), None, None, None, doubts=(Doubt("of another driver", is_other_driver=True),))
GPU = PodGpu(Device("gpu", DeviceKind.GPU), GpuSource.CLAIM)
BETTER = Better(AlignmentCandidate(Device("nic-2", DeviceKind.NIC), "team/other"), GPU, Distance.PIX)
WORSE = Verdict((), GPU, Distance.SYS, Distance.PIX, BETTER, is_worse=True)


def ready(entry: JsonObject) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in entry["conditions"]}


async def test_the_whole_life_of_a_device_is_valid_for_the_server(node: Node) -> None:
    record = await node.make("c", "gpu.example.com")
    node.announcer.prepared(record)
    await node.settled()
    assert ready(await node.entry("c"))["Ready"] == "Unknown"

    node.announcer.attach_failed([record], KernelError("no carrier", reason=Reason.ATTACH_FAILED))
    await node.settled()
    assert ready(await node.entry("c"))["Ready"] == "False"

    node.attach(record)
    node.verdict = UNKNOWN
    node.attach(record)
    await node.settled()
    entry = await node.entry("c")
    assert ready(entry) == {
        "Prepared": "True",
        "Attached": "True",
        "Configured": "True",
        "NetworkReady": "True",
        "Ready": "True",
        "TopologyAligned": "Unknown",
    }
    assert entry["data"]["alignment"] == {"distance": "unknown", "best": "unknown", "distances": {}}
    assert entry["networkData"] == {
        "interfaceName": "net1",
        "hardwareAddress": "02:00:00:00:00:01",
        "ips": ["10.0.0.5/24", "2001:db8::5/64"],
    }

    node.announcer.released(ReleaseReport(record.claim, devices=record.devices))
    await node.settled()
    entry = await node.entry("c")
    assert ready(entry)["Released"] == "True"
    assert "networkData" not in entry
    (event,) = node.server.objects("events")
    assert event["reason"] == "NetworkDeviceAttachFailed"


async def test_a_device_that_could_be_nearer_is_told_of_once_whoever_says_so_again(node: Node) -> None:
    record = await node.make("c", "gpu.example.com")
    pods = [{"resource": "pods", "name": f"pod-{n}", "uid": f"uid-{n}"} for n in ("c", "elsewhere")]
    await node.client.patch(paths.resource_claim_status("default", "c"), {"status": {"reservedFor": pods}})
    node.verdict = WORSE
    node.attach(record)
    await node.settled()
    assert ready(await node.entry("c"))["TopologyAligned"] == "False"
    (event,) = node.server.objects("events")
    assert (event["reason"], event["type"]) == ("MisalignedTopology", "Warning")
    assert event["involvedObject"]["kind"] == "Pod"
    assert event["involvedObject"]["uid"] == record.pod.uid
    assert "nic-2 is PIX to it and held by claim team/other" in event["message"]
    assert "dranet claim new" in event["message"]

    writes = node.applies("c")
    async with node_of(node.server) as restarted:
        restarted.verdict = WORSE
        restarted.pods.update(node.pods)
        restarted.attach(record)
        await restarted.settled()
    assert node.applies("c") == writes, "it is there already"
    (event,) = node.server.objects("events")

    node.verdict = replace(
        WORSE, better=replace(BETTER, candidate=AlignmentCandidate(BETTER.candidate.device))
    )
    node.attach(record)
    await node.settled()
    assert len(node.server.objects("events")) == 1, "the message alone has changed"


async def test_an_event_that_died_with_its_driver_is_written_by_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status said so already, and nobody had told."""
    record = await node.make("c")
    node.verdict = WORSE
    monkeypatch.setattr(node.reporter, "add_event", lambda _: None)  # SIGKILL comes first
    node.attach(record)
    await node.settled()
    assert ready(await node.entry("c"))["TopologyAligned"] == "False"
    assert node.server.objects("events") == []

    for message in ("held by claim team/other", "free"):
        async with node_of(node.server) as restarted:
            restarted.verdict = WORSE
            restarted.pods.update(node.pods)
            if message == "free":
                restarted.verdict = replace(
                    WORSE, better=replace(BETTER, candidate=AlignmentCandidate(BETTER.candidate.device))
                )
            restarted.attach(record)
            await restarted.settled()
        (event,) = node.server.objects("events")
        assert "held by claim team/other" in event["message"], "the first word stays"


async def test_what_a_claim_has_said_for_long_is_not_told_again(node: Node) -> None:
    """The cluster has forgotten the Event by then, and it is old."""
    record = await node.make("c")
    node.verdict = WORSE
    node.attach(record)
    await node.settled()
    (event,) = node.server.objects("events")
    await node.client.delete(paths.event("default", event["metadata"]["name"]))
    later = datetime.now(UTC) + 2 * MAX_AGE
    told = Misalignments(lambda _: None, lambda: later)
    entries = [await node.entry("c")]
    assert list(told.find(record.claim, entries, entries)) == []
    assert len(list(told.find(record.claim, [], entries))) == 1, "here it is news"


async def test_a_server_that_keeps_no_status_of_devices_is_told_of_once_with_its_gate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else whoever looks for it in a claim finds nothing, and nowhere a word why."""
    server = ApiServer(profile="1.35", gates={"DRAResourceClaimDeviceStatus": False})
    async with server, node_of(server) as node:
        for name in ("c", "d"):
            node.announcer.prepared(await node.make(name))
            await node.settled()
        assert node.applies("c") == 1
    (told,) = [message for message in caplog.messages if "DRAResourceClaimDeviceStatus" in message]
    assert told.startswith("claims get no status of their devices: the API server drops it")


async def test_nothing_is_written_that_is_there_already(node: Node) -> None:
    record = await node.make("c")
    for _ in range(3):
        node.attach(record)
        await node.settled()
    assert node.applies("c") == 1


async def test_another_instance_of_the_driver_says_the_same_and_writes_nothing(
    server: ApiServer, node: Node
) -> None:
    record = await node.make("c")
    node.attach(record)
    await node.settled()
    async with node_of(server) as successor:
        successor.attach(record)
        await successor.settled()
        assert successor.applies("c") == 1
        successor.announcer.released(ReleaseReport(record.claim, devices=record.devices))
        await successor.settled()
    assert "networkData" not in await node.entry("c"), "it owns what its predecessor wrote"


async def test_after_trouble_of_all_kinds_every_claim_says_what_is(server: ApiServer, node: Node) -> None:
    records = [await node.make(f"c{number}") for number in range(4)]
    for code in (500, 429, 503, 409, 0):
        server.fail_next("PATCH", paths.resource_claim_status("default", "c0"), code, 2)
        server.fail_next("GET", paths.resource_claim("default", "c1"), code or 504, 2)
    for record in records:
        node.announcer.prepared(record)
    for record in records:
        node.attach(record)
    await node.settled()
    for number in range(4):
        assert ready(await node.entry(f"c{number}"))["Ready"] == "True"
    assert node.applies("c2") <= 2


async def test_claims_that_are_gone_are_dropped_without_a_word(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    record = await node.make("c")
    await node.client.delete(paths.resource_claim("default", "c"))
    again = await node.make("c")
    assert again.claim.uid != record.claim.uid
    node.announcer.released(ReleaseReport(record.claim, devices=record.devices))
    await node.settled()
    assert node.applies("c") == 1, "only what allocated the second claim"
    assert caplog.records == []

"""What the chaos suite plays on: an API server in trouble, the driver's writers, and hands that meddle.

The driver's side is the real one: client, publisher, reporter and Event recorder, with the permissions that
``deploy/`` gives, only less patient than on a node. The hands are an administrator who has other things to do
than to trouble us; the server lets them alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from dranet.cluster import paths, slices
from dranet.cluster.claims import apply_device_statuses
from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.events import WARNING, EventNote, EventRecorder, ObjectRef
from dranet.cluster.messages import USER_AGENT
from dranet.cluster.slice_plan import build_pages
from dranet.cluster.slices import SlicePublisher
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.driver.reports.reporter import RecentEvents, Reporter
from dranet.errors import ClusterError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect
from dranet.model.status import Condition, ConditionType, DeviceStatus
from dranet.telemetry import Metrics
from testbed.apiserver.faults import ChaosPlan
from testbed.apiserver.server import ApiServer
from testbed.apiserver.traffic import RequestRecord
from testbed.cluster import DRIVER_NAME, NODE_NAME, build_api_server

CLAIMS = 12
PAGE = 4
"""Devices of a slice: small, so that pools grow and shrink over several."""
PATIENCE_SECONDS = 0.6
"""Of the client with one call: what stalls is given up soon."""
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}
Described = tuple[object, object, list[tuple[object, object]]]
"""Name, attributes and taints of a device, without the times that the server notes."""

_TOKEN = "the-driver"


class SteppingClock:
    """Wall-clock time that an operator, or NTP, sets forwards and backwards."""

    def __init__(self) -> None:
        self._offset = timedelta()

    def step(self, seconds: float) -> None:
        self._offset += timedelta(seconds=seconds)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset


class SteppingReporter(Reporter):
    """Writes as the driver does, on a clock that steps."""

    def __init__(self, client: ApiClient, clock: SteppingClock) -> None:
        super().__init__(
            client,
            DRIVER_NAME,
            NODE_NAME,
            Metrics(),
            lambda _claim, statuses, _existing: statuses,
            lambda _claim_uid: None,
            RecentEvents(),
        )
        self._stepping_client = client
        self._clock = clock
        self._stepping_recorder = EventRecorder(client, component=DRIVER_NAME, host=NODE_NAME, now=clock.now)

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        manager = f"{DRIVER_NAME}-{NODE_NAME}"
        await apply_device_statuses(self._stepping_client, claim, manager, statuses, now=self._clock.now)

    async def write_event(self, event: EventNote) -> None:
        await self._stepping_recorder.record(event)


@dataclass(slots=True)
class Stage:
    """Everything of one performance."""

    server: ApiServer
    hands: ApiClient
    publisher: SlicePublisher
    reporter: Reporter
    clock: SteppingClock
    claims: tuple[ClaimRef, ...]
    wanted_statuses: dict[str, DeviceStatus] = field(default_factory=dict)
    """By claim UID, as last said."""
    wanted_pages: list[list[Device]] = field(default_factory=list)
    wanted_taints: dict[str, tuple[Taint, ...]] = field(default_factory=dict)
    duplicates: list[str] = field(default_factory=list)
    """Each moment at which two slices of the pool's newest generation had one index."""

    def slices(self) -> list[JsonObject]:
        return [
            item for item in self.server.objects("resourceslices") if item["spec"]["driver"] == DRIVER_NAME
        ]

    # --- what the driver wants --------------------------------------------------------------------------

    def publish_at_random(self, chance: random.Random) -> None:
        """Some devices of twelve, in their order, some of them tainted."""
        names = [f"nic{number}" for number in range(12) if chance.random() < 0.7]
        devices = [Device(name, DeviceKind.NIC, attributes={"dra.net/ifName": name}) for name in names]
        self.wanted_pages = [devices[start : start + PAGE] for start in range(0, len(devices), PAGE)]
        tainted = [name for name in names if chance.random() < 0.2]
        taint = Taint("dra.net/link-down", TaintEffect.NO_SCHEDULE, "no-carrier")
        self.wanted_taints = dict.fromkeys(tainted, (taint,))
        self.publisher.set_desired(self.wanted_pages, self.wanted_taints)

    def report_at_random(self, chance: random.Random) -> None:
        """Another word on one claim, and an Event about it."""
        claim = chance.choice(self.claims)
        ready = chance.random() < 0.5
        condition = Condition(ConditionType.READY, ready, "NetworkDeviceReady" if ready else "AttachFailed")
        number = self.claims.index(claim)
        status = DeviceStatus(
            DRIVER_NAME, NODE_NAME, f"dev{number}", (condition,), data={"word": chance.randrange(1000)}
        )
        self.wanted_statuses[claim.uid] = status
        self.reporter.set_statuses(claim, [status])
        regarding = ObjectRef("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.namespace, claim.uid)
        note = f"told {chance.randrange(3)}"
        self.reporter.add_event(EventNote(regarding, WARNING, "AttachFailed", note))

    # --- what others do ---------------------------------------------------------------------------------

    async def meddle(self, chance: random.Random) -> None:
        """Somebody deletes a slice, changes one, adds one, wipes them all, or replaces the Node."""
        found = self.slices()
        deed = chance.choice(
            (self._delete_one, self._change_one, self._add_stray, self._wipe, self._renew_node)
        )
        if found or deed in (self._add_stray, self._renew_node):
            try:
                await deed(chance, found)
            except ClusterError as error:
                if error.reason not in (Reason.API_CONFLICT, Reason.API_NOT_FOUND):
                    raise  # the driver was quicker, which is its good right

    async def _delete_one(self, chance: random.Random, found: Sequence[JsonObject]) -> None:
        await self.hands.delete(paths.resource_slice(chance.choice(found)["metadata"]["name"]))

    async def _change_one(self, chance: random.Random, found: Sequence[JsonObject]) -> None:
        body = chance.choice(found)
        body["spec"]["devices"] = [{"name": "somebody-elses"}]
        await self.hands.replace(paths.resource_slice(body["metadata"]["name"]), body)

    async def _add_stray(self, chance: random.Random, _: Sequence[JsonObject]) -> None:
        pool = {"name": NODE_NAME, "generation": chance.randrange(3), "resourceSliceCount": 1}
        spec = {"driver": DRIVER_NAME, "nodeName": NODE_NAME, "pool": pool, "devices": [{"name": "stray"}]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": "stray-"},
            "spec": spec,
        }
        await self.hands.create(paths.RESOURCE_SLICES, body)

    async def _wipe(self, _: random.Random, __: Sequence[JsonObject]) -> None:
        """As the kubelet does with the slices of a driver that it has not seen for long."""
        for item in self.slices():
            await self.hands.delete(paths.resource_slice(item["metadata"]["name"]))

    async def _renew_node(self, _: random.Random, __: Sequence[JsonObject]) -> None:
        await self.hands.delete(paths.node(NODE_NAME))
        await self.hands.create(
            paths.NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE_NAME}}
        )
        self.server.collect_garbage()

    # --- how it ends ------------------------------------------------------------------------------------

    def find_differences(self) -> list[str]:
        """What the API server has otherwise than it should be; empty at a good end."""
        return [*self._slice_differences(), *self._status_differences()]

    def _slice_differences(self) -> list[str]:
        found = sorted(self.slices(), key=lambda item: str(item["metadata"]["name"]))
        wanted = build_pages(self.wanted_pages, self.wanted_taints)
        differences = []
        if [_content(item["spec"].get("devices") or ()) for item in found] != [
            _content(page) for page in wanted
        ]:
            differences.append(f"{len(found)} slices do not hold the {len(wanted)} pages that are wanted")
        pools = {(p["generation"], p["resourceSliceCount"]) for p in (item["spec"]["pool"] for item in found)}
        if len(pools) != 1 or {count for _, count in pools} != {len(wanted)}:
            differences.append(f"generation and count are {sorted(pools)}")
        (node,) = self.server.objects("nodes")
        owners = {owner["uid"] for item in found for owner in item["metadata"].get("ownerReferences", ())}
        if owners != {node["metadata"]["uid"]}:
            differences.append("a slice is not owned by the Node")
        return differences

    def _status_differences(self) -> list[str]:
        by_uid = {body["metadata"]["uid"]: body for body in self.server.objects("resourceclaims")}
        return [
            f"claim {uid} does not say {status.data}"
            for uid, status in self.wanted_statuses.items()
            if [entry.get("data") for entry in by_uid[uid]["status"].get("devices", ())] != [status.data]
        ]

    def note_duplicates(self) -> None:
        """Two slices of one index and generation: a consumer would count more than there should be."""
        keys = Counter(
            (item["spec"]["pool"]["generation"], item["metadata"]["name"].partition("-")[0])
            for item in self.slices()
            if not item["metadata"]["name"].startswith("stray-")
        )
        self.duplicates += [f"{key} x{count}" for key, count in keys.items() if count > 1]

    def count_writes(self) -> int:
        """Of the driver, as they came in; rehearsals included."""
        return sum(is_drivers(record) and record.method in WRITES for record in self.server.requests)


def is_drivers(record: RequestRecord) -> bool:
    return record.agent == USER_AGENT


def _content(
    devices: Sequence[Mapping[str, object]],
) -> list[tuple[object, object, list[tuple[object, object]]]]:
    """Name, attributes and taints, without the times that the server notes."""
    described = []
    for device in devices:
        taints = device.get("taints") or ()
        assert isinstance(taints, list | tuple)
        described.append(
            (device["name"], device.get("attributes"), [(t["key"], t["effect"]) for t in taints])
        )
    return described


async def _make_claims(hands: ApiClient) -> AsyncIterator[ClaimRef]:
    """Allocated ones, as a scheduler leaves them."""
    for number in range(CLAIMS):
        request = {"name": "nic", "exactly": {"deviceClassName": "any"}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"claim{number}"},
            "spec": {"devices": {"requests": [request]}},
        }
        made = await hands.create(paths.resource_claims("default"), body)
        result = {"request": "nic", "driver": DRIVER_NAME, "pool": NODE_NAME, "device": f"dev{number}"}
        field_term = {"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}
        allocation = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field_term]}]},
        }
        path = paths.resource_claim_status("default", f"claim{number}")
        await hands.patch(path, {"status": {"allocation": allocation}})
        yield ClaimRef("default", f"claim{number}", made["metadata"]["uid"])


@asynccontextmanager
async def performing(plan: ChaosPlan) -> AsyncIterator[Stage]:
    """A stage whose driver runs; the plan is not switched on yet."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(build_api_server(_TOKEN))
        hands = await stack.enter_async_context(ApiClient(access_from_url(server.url), user_agent="hands"))
        client = await stack.enter_async_context(
            ApiClient(access_from_url(server.url, token=FixedToken(_TOKEN)), timeout_seconds=PATIENCE_SECONDS)
        )
        await hands.create(paths.NODES, NODE)
        claims = [claim async for claim in _make_claims(hands)]
        server.chaos = plan
        clock = SteppingClock()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # On a node up to 30 s pass before a watch that broke again and again is resumed: longer than any calm
        # here lasts.
        patch.setattr(slices, "_REWATCH_SECONDS", (0.1, 2.0))
        publisher = SlicePublisher(
            client,
            DRIVER_NAME,
            NODE_NAME,
            timing=slices.PublishTiming(Backoff(0.02, 0.2), Backoff(0.02, 0.3), spread_seconds=0.0),
        )
        reporter = SteppingReporter(client, clock)
        stage = Stage(server, hands, publisher, reporter, clock, tuple(claims))
        tasks = [
            asyncio.create_task(publisher.run(), name="publisher"),
            asyncio.create_task(reporter.run(), name="reporter"),
        ]
        try:
            yield stage
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

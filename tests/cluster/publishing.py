"""What tests of the slice publisher share: a client that counts, and a publisher that does not dawdle."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.slices import PublishListeners, PublishTiming, SlicePublisher
from dranet.cluster.transport import access_from_url
from dranet.errors import Reason
from dranet.model.device import AttributeValue, Bandwidth, Device, DeviceKind, Taint
from testbed.apiserver.server import ApiServer
from tests.support.waiting import until

DRIVER, NODE = "dra.net", "node-a"
DEADLINE_SECONDS = 30.0


class CountingClient(ApiClient):
    """Counts the writes that it was asked for, whatever became of them, and apart from them the dry runs."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(access_from_url(server.url))
        self.writes: Counter[str] = Counter()
        self.dry_runs = 0

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        if dry_run:
            self.dry_runs += 1
        else:
            self.writes["create"] += 1
        return await super().create(path, body, dry_run=dry_run)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        self.writes["update"] += 1
        return await super().replace(path, body)

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
    ) -> JsonObject:
        self.writes["delete"] += 1
        return await super().delete(
            path,
            uid=uid,
            resource_version=resource_version,
            grace_period_seconds=grace_period_seconds,
            propagation_policy=propagation_policy,
        )


def device(
    name: str,
    mtu: int = 1500,
    *,
    numa: tuple[int, ...] = (),
    shared: bool = False,
    bandwidth: Bandwidth | None = None,
) -> Device:
    attributes: dict[str, AttributeValue] = {
        "dra.net/mtu": mtu,
        "dra.net/rdma": False,
        "dra.net/ifName": name,
    }
    if numa:
        attributes["resource.kubernetes.io/numaNode"] = numa
    return Device(name, DeviceKind.NIC, attributes, shared=shared, bandwidth=bandwidth)


def pages(*names: Sequence[str], mtu: int = 1500) -> list[list[Device]]:
    return [[device(name, mtu) for name in page] for page in names]


class CountedPublisher(SlicePublisher):
    """Counts what its listeners hear: accepted writes by verb, and failures by reason."""

    def __init__(
        self, client: ApiClient, timing: PublishTiming, listeners: PublishListeners | None = None
    ) -> None:
        self.writes: Counter[str] = Counter()
        self.failures: Counter[Reason] = Counter()
        self._others = listeners or PublishListeners()
        counted = PublishListeners(self._count_failure, self._count_write, self._others.missing)
        super().__init__(client, DRIVER, NODE, listeners=counted, timing=timing)

    def _count_failure(self, reason: Reason) -> None:
        self.failures[reason] += 1
        self._others.failed(reason)

    def _count_write(self, verb: str) -> None:
        self.writes[verb] += 1
        self._others.wrote(verb)


def build_publisher(
    client: ApiClient,
    *,
    listeners: PublishListeners | None = None,
    patience_seconds: float = DEADLINE_SECONDS,
    spread_seconds: float = 0.0,
) -> CountedPublisher:
    backoffs = Backoff(0.01, 0.05), Backoff(0.01, 0.05)
    return CountedPublisher(client, PublishTiming(*backoffs, patience_seconds, spread_seconds), listeners)


_P = TypeVar("_P", bound=SlicePublisher)


@contextlib.asynccontextmanager
async def running(publisher: _P) -> AsyncIterator[_P]:
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def publish(
    publisher: SlicePublisher,
    wanted: Sequence[Sequence[Device]],
    taints: Mapping[str, Sequence[Taint]] | None = None,
) -> None:
    publisher.set_desired(wanted, taints)
    await until(lambda: publisher.is_published, "it is published", DEADLINE_SECONDS)


def held(server: ApiServer) -> list[JsonObject]:
    return server.objects("resourceslices")


def held_devices(server: ApiServer) -> list[JsonObject]:
    return [device for found in held(server) for device in found["spec"].get("devices", ())]


def device_names(server: ApiServer) -> list[list[str]]:
    return [[item["name"] for item in found["spec"].get("devices", ())] for found in held(server)]

"""Partitionable devices in slices: counter sets in slices of their own, and without them where a server keeps
none."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.slice_plan import Feature, build_pages, withhold_all
from dranet.cluster.slices import SlicePublisher
from dranet.cluster.transport import access_from_url
from dranet.model.device import CounterUse, Device, DeviceKind
from testbed.apiserver.server import ApiServer
from tests.cluster.publishing import publish, running

NODE = "node-a"


def parts(name: str, count: int) -> list[Device]:
    pf = Device(name, DeviceKind.NIC, counters=CounterUse(name, count, count))
    return [
        pf,
        *(Device(f"{name}-{i}", DeviceKind.NIC, counters=CounterUse(name, 1, count)) for i in range(count)),
    ]


def test_sets_are_in_slices_of_their_own_after_the_devices_and_eight_in_each() -> None:
    devices = [device for n in range(9) for device in parts(f"pf{n}", 2)]
    pages = build_pages([devices])
    assert [len(page) for page in pages] == [27, 8, 1]
    assert pages[1][0] == {"name": "pf0", "counters": {"virtual-functions": {"value": "2"}}}
    assert withhold_all(pages, {Feature.COUNTERS}) == (tuple({"name": d.name} for d in devices),)


def test_an_empty_pool_keeps_its_only_page() -> None:
    assert withhold_all(build_pages([]), {Feature.COUNTERS}) == ((),)


@pytest.mark.socket
@pytest.mark.parametrize(
    ("version", "gates", "slices"),
    [("1.36", {}, 2), ("1.36", {"DRAPartitionableDevices": False}, 1), ("1.34", {}, 1)],
)
async def test_a_server_gets_what_it_keeps_and_nothing_is_written_again(
    version: str, gates: dict[str, bool], slices: int
) -> None:
    server = ApiServer(profile=version, gates=gates)
    async with server, ApiClient(access_from_url(server.url)) as client, AsyncExitStack() as stack:
        await client.create(paths.NODES, {"metadata": {"name": NODE}})
        publisher = SlicePublisher(client, "dra.net", NODE)
        await stack.enter_async_context(running(publisher))
        await publish(publisher, [parts("pf0", 2)])
        found = [item["spec"] for item in server.objects("resourceslices")]
        assert len(found) == slices
        assert {spec["pool"]["resourceSliceCount"] for spec in found} == {slices}
        sets = [entry for spec in found for entry in spec.get("sharedCounters", ())]
        assert [entry["name"] for entry in sets] == ["pf0"] * (slices - 1)
        generation = publisher.generation
        await publish(publisher, [parts("pf0", 2)])
        assert publisher.generation == generation
        await publish(publisher, [parts("pf0", 3)])
        await publish(publisher, [[Device("pf0", DeviceKind.NIC)]])
        assert len(server.objects("resourceslices")) == 1

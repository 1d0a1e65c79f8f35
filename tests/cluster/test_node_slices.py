"""What other drivers offer on this node, as their slices tell it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, EventType, JsonObject, Snapshot, WatchEvent
from dranet.cluster.nodes import MAX_DEVICES, MAX_DEVICES_IN_SLICE, MAX_SLICES, NodeDevices
from dranet.cluster.transport import access_from_url
from tests.data import gpu_drivers
from tests.data.layouts import read_gpus, read_layout

WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]

NODE, VENDOR = "node-a", "gpu.nvidia.com"
GPU = {
    "name": "gpu-0",
    "attributes": {
        "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "uuid": {"string": "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    },
}


def a_slice(
    name: str, *devices: Any, driver: str = VENDOR, node: str = NODE, generation: int = 1, pool: str = NODE
) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def a_device(name: str, **attributes: Any) -> JsonObject:
    return {"name": name, "attributes": attributes}


@asynccontextmanager
async def following(client: ApiClient) -> AsyncIterator[tuple[NodeDevices, list[int]]]:
    """Followed devices, and how many there were each time that somebody was told."""
    devices, told = NodeDevices(client, "dra.net", NODE), []
    devices.listeners.append(lambda: told.append(len(devices.get_all())))
    task = asyncio.create_task(devices.run())
    try:
        yield devices, told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def taking(*slices: JsonObject) -> NodeDevices:
    devices = NodeDevices(ApiClient(access_from_url("http://127.0.0.1:1")), "dra.net", NODE)
    devices.take(Snapshot(slices, "1"))
    return devices


@pytest.mark.socket
async def test_devices_of_other_drivers_on_this_node_are_found_by_what_an_allocation_names(
    client: ApiClient, wait_until: WaitUntil
) -> None:
    await client.create(paths.RESOURCE_SLICES, a_slice("nvidia", GPU))
    await client.create(paths.RESOURCE_SLICES, a_slice("ours", a_device("nic"), driver="dra.net"))
    await client.create(paths.RESOURCE_SLICES, a_slice("away", GPU, node="node-b", pool="node-b"))
    async with following(client) as (devices, told):
        devices.want()
        await wait_until(lambda: devices.is_known)

        found = devices.find(VENDOR, NODE, "gpu-0")
        assert found is not None
        assert found.pci_address == "0000:1b:00.0"
        assert found.uuids == ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",)
        assert len(found.attributes) == 2, "what does not tell which it is is not kept"
        assert devices.find("dra.net", NODE, "nic") is None
        assert devices.find(VENDOR, "node-b", "gpu-0") is None
        assert told == [1]


@pytest.mark.socket
async def test_a_driver_that_comes_and_goes_is_told_each_time(
    client: ApiClient, wait_until: WaitUntil
) -> None:
    async with following(client) as (devices, told):
        devices.want()
        await wait_until(lambda: devices.is_known)
        assert told == [0], "that nobody is there is news, too"
        await client.create(paths.RESOURCE_SLICES, a_slice("nvidia", GPU))
        await wait_until(lambda: len(told) == 2)
        await client.delete(paths.resource_slice("nvidia"))
        await wait_until(lambda: len(told) == 3)
        assert told == [0, 1, 0]


@pytest.mark.socket
async def test_nothing_is_asked_before_somebody_wants_it(client: ApiClient) -> None:
    async with following(client) as (devices, told):
        await client.create(paths.RESOURCE_SLICES, a_slice("nvidia", GPU))
        await client.get(paths.RESOURCE_SLICES)
        assert (devices.is_known, told) == (False, [])


def test_of_a_pool_only_the_newest_generation_counts() -> None:
    old = a_slice("old", a_device("gone"), generation=3)
    devices = taking(old, a_slice("new", a_device("here"), generation=4))
    assert [device.name for device in devices.get_all()] == ["here"]
    devices.take(WatchEvent(EventType.DELETED, a_slice("new")))
    assert [device.name for device in devices.get_all()] == ["gone"]


def test_an_address_is_found_under_vendors_own_names_and_in_their_own_spelling() -> None:
    devices = taking(
        a_slice(
            "x",
            a_device("nvml", **{"gpu.nvidia.com/pciBusID": {"string": "00000000:3A:00.0"}}),
            a_device("nvidia's before 25.12", pcieBusID={"string": "0000:1b:00.0"}),
            a_device("amd", pciAddr={"string": "0000:0C:00.0"}),
            a_device("part of amd's before 1.0", parentPciAddr={"string": "0000:0c:00.0"}),
            a_device("long domain", pciAddress={"string": "10000:01:00.0"}),
            a_device("index", pciAddress={"string": "gpu-0"}),
            a_device("number", pciAddress={"int": 7}),
        )
    )
    assert {device.name: device.pci_address for device in devices.get_all()} == {
        "nvml": "0000:3a:00.0",
        "nvidia's before 25.12": "0000:1b:00.0",
        "amd": "0000:0c:00.0",
        "part of amd's before 1.0": "0000:0c:00.0",
        "long domain": "10000:01:00.0",
        "index": "",
        "number": "",
    }


@pytest.mark.parametrize("shapes", [gpu_drivers.OWN_NAMES, gpu_drivers.NO_NUMA, gpu_drivers.NEWEST])
@pytest.mark.parametrize("layout", ["dgx-h100", "mi300x", "virtual-node"])
def test_each_vendors_gpus_have_their_address(layout: str, shapes: gpu_drivers.Shapes) -> None:
    gpus, host = read_gpus(layout), read_layout(layout).facts.host
    devices = taking(*map(as_served, gpu_drivers.publish(gpus, host, "node-1", shapes)))
    assert [device.pci_address for device in devices.get_all()] == [gpu.pci_address for gpu in gpus]


def test_parts_of_gpus_have_the_address_of_the_whole() -> None:
    nvidia, amd = read_gpus("dgx-h100")[1], read_gpus("mi300x")[1]
    parts = [
        *(gpu_drivers.nvidia_mig_0_4(nvidia, gpu_drivers.MIG_3G, start) for start in (0, 4)),
        *gpu_drivers.nvidia_dynamic_mig(nvidia),
    ]
    mig = taking(as_served(gpu_drivers.build_slice("gpu.nvidia.com", "node-1", parts)))
    cpx = taking(as_served(gpu_drivers.build_slice("gpu.amd.com", "node-1", gpu_drivers.amd_partitions(amd))))
    uuid = nvidia.attributes["dra.net/gpuUUID"]
    assert {device.pci_address for device in mig.get_all()} == {nvidia.pci_address}
    assert all(uuid in device.uuids for device in mig.get_all())
    assert [device.pci_address for device in cpx.get_all()] == [amd.pci_address] * 8


def as_served(body: JsonObject) -> JsonObject:
    return {**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}}


def test_a_part_of_a_gpu_names_the_whole() -> None:
    mig = a_device("mig", uuid={"string": "MIG-1"}, parentUUID={"string": "GPU-1"})
    (device,) = taking(a_slice("x", mig)).get_all()
    assert device.uuids == ("MIG-1", "GPU-1")


def test_there_is_an_end_to_what_is_remembered() -> None:
    many = [a_device(f"d{index}") for index in range(MAX_DEVICES_IN_SLICE + 5)]
    slices = [a_slice(f"s{index}", *many, pool=f"p{index}") for index in range(MAX_SLICES + 5)]
    devices = taking(*slices)
    assert len(devices.get_all()) == MAX_DEVICES
    devices.take(WatchEvent(EventType.ADDED, a_slice("one more", GPU, pool="z")))
    assert len(devices.get_all()) == MAX_DEVICES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["driver", "pool", "name", "generation", "devices", "attributes", "uuid", "string"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(spec=JSON, devices=JSON, attributes=JSON)
def test_a_slice_of_any_shape_gives_what_it_has(spec: Any, devices: Any, attributes: Any) -> None:
    odd = {"metadata": {"name": "odd", "uid": "odd"}, "spec": spec}
    half = a_slice("half", devices, {"name": "d", "attributes": attributes}, GPU)
    found = taking(odd, half).find(VENDOR, NODE, "gpu-0")
    assert found is not None
    assert found.pci_address == "0000:1b:00.0"


def test_what_is_left_out_is_said_until_all_is_told_anew() -> None:
    devices = taking(*(a_slice(f"s{index}", pool=f"p{index}") for index in range(MAX_SLICES)))
    hidden, gone = a_slice("hidden", GPU, pool="z"), a_slice("s0", pool="p0")
    news = (
        WatchEvent(EventType.MODIFIED, gone),
        WatchEvent(EventType.ADDED, hidden),
        WatchEvent(EventType.DELETED, gone),  # the hidden one is not told again
        Snapshot((hidden,), "2"),
    )
    told = []
    for item in news:
        devices.take(item)
        told.append(devices.is_complete)
    assert told == [True, False, False, True]


def test_a_driver_is_known_by_empty_slices_too_and_its_coming_is_told() -> None:
    devices, told = taking(), []
    devices.listeners.append(lambda: told.append(devices.drivers))
    devices.take(WatchEvent(EventType.ADDED, a_slice("x")))
    devices.take(WatchEvent(EventType.MODIFIED, a_slice("x")))
    devices.take(WatchEvent(EventType.DELETED, a_slice("x")))
    assert told == [{VENDOR}, frozenset()]


def test_another_driver_of_this_kind_is_known_by_its_attributes_and_the_elder_by_its_name() -> None:
    nic = a_device("nic", **{"dra.net/ifName": {"string": "eth1"}})
    assert taking(a_slice("x", nic, driver="a.example")).has_elder_kin
    assert not taking(a_slice("x", nic, driver="z.example")).has_elder_kin
    assert not taking(a_slice("x", GPU, driver="a.example")).has_elder_kin

"""Others write to the driver's slices and claim statuses: by hand, and by server-side apply."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.tests.pods import RESOURCE, PodMaker, build_pod, build_request, build_spec, wait_until
from testbed.node.hardware import load_hardware
from testbed.vendor import VendorDriver, list_gpus

VENDOR = "other.example.com"
OTHER_HARDWARE = "two-nic"
"""GPUs of the other driver, at addresses that the node does not have, so that those of the node stay ours."""
OTHER_MANAGER = "kubectl"
"""A field manager that is not the driver's."""


class TestSlices:
    async def test_a_slice_that_is_deleted_by_hand_is_published_again(
        self, api: ApiClient, live: LiveCluster
    ) -> None:
        (before,) = await live.fetch_slices()
        await api.delete(paths.resource_slice(before["metadata"]["name"]))
        (after,) = await _wait_devices(live, before)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]

    async def test_devices_taken_over_by_force_are_repaired_and_a_label_stays(
        self, api: ApiClient, live: LiveCluster
    ) -> None:
        (before,) = await live.fetch_slices()
        edited = {
            "apiVersion": RESOURCE,
            "kind": "ResourceSlice",
            "metadata": {"name": before["metadata"]["name"], "labels": {"example.com/by": "hand"}},
            "spec": {**before["spec"], "devices": before["spec"]["devices"][:1]},
        }
        path = paths.resource_slice(before["metadata"]["name"])
        taken = await api.apply(path, edited, field_manager=OTHER_MANAGER)
        assert len(taken["spec"]["devices"]) == 1
        (after,) = await _wait_devices(live, before)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["labels"] == {"example.com/by": "hand"}

    async def test_a_slice_added_in_the_drivers_name_is_deleted(
        self, api: ApiClient, live: LiveCluster
    ) -> None:
        (before,) = await live.fetch_slices()
        spec = {**before["spec"], "pool": {**before["spec"]["pool"], "name": "another-pool"}}
        body = {"apiVersion": RESOURCE, "kind": "ResourceSlice", "metadata": {"name": "added"}, "spec": spec}
        await api.create(paths.RESOURCE_SLICES, body)
        (after,) = await _wait_devices(live, before)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_the_driver_takes_its_entry_back_and_leaves_those_of_others_alone(
    vendor_class: str, api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    """A pod has a NIC and another driver's device in one claim; both drivers report in its status."""
    spec = build_spec(build_request(), build_request("gpu", vendor_class))
    spec["devices"]["config"][0]["requests"] = ["nic"]
    await pods.create_claim("both", spec)
    await pods.create(build_pod("both", [], pods.image, ["both"]))
    await pods.wait_ready("both")
    await wait_until(lambda: _is_ready(pods), "the driver reports that the NIC is ready")
    results = (await pods.get_claim("both"))["status"]["allocation"]["devices"]["results"]
    nic, gpu = ({key: one[key] for key in ("driver", "pool", "device")} for one in results)
    theirs = {**gpu, "conditions": [_build_condition("Ready", "True")]}
    await _apply(api, pods, VENDOR, theirs)

    ours = {**nic, "conditions": [_build_condition("Ready", "False")]}
    with pytest.raises(ClusterError) as refused:
        await _apply(api, pods, OTHER_MANAGER, ours, force=False)
    assert refused.value.reason is Reason.API_CONFLICT
    seen = _build_condition("example.com/Seen", "True")
    await _apply(api, pods, OTHER_MANAGER, {**ours, "conditions": [*ours["conditions"], seen]})
    assert not await _is_ready(pods)

    await live.driver.kill(stays_away=False)
    await live.driver.wait_ready(120)
    await wait_until(lambda: _is_ready(pods), "the driver reports again that the NIC is ready")
    entries = {entry["driver"]: entry for entry in (await pods.get_claim("both"))["status"]["devices"]}
    assert entries[VENDOR] == theirs
    assert seen in entries["dra.net"]["conditions"]


@pytest_asyncio.fixture
async def vendor_class(cluster: LocalCluster, api: ApiClient) -> AsyncIterator[str]:
    """The DeviceClass of another DRA driver, which is at work on the node."""
    class_ = {
        "apiVersion": RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": VENDOR},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{VENDOR}"'}}]},
    }
    path = f"{paths.DEVICE_CLASSES}/{VENDOR}"
    await api.apply(path, class_, field_manager="dranet-e2e")
    kubelet = cluster.kubelet
    gpus = list_gpus(load_hardware(OTHER_HARDWARE))
    async with VendorDriver(VENDOR, api, gpus, kubelet.node, kubelet.root):
        yield VENDOR
    slices = await api.list(paths.RESOURCE_SLICES, field_selector=f"spec.driver={VENDOR}")
    for item in slices["items"]:
        await api.delete(paths.resource_slice(item["metadata"]["name"]))
    await api.delete(path)


async def _wait_devices(live: LiveCluster, wanted: JsonObject) -> list[JsonObject]:
    """Until the driver has one slice, with the devices of ``wanted``; it, in a list.

    Devices are compared by name and by which attributes they have. Some values follow the node, which may
    just have got a NIC back.
    """

    async def look() -> str:
        slices = await live.fetch_slices()
        found = list(map(_describe_devices, slices))
        return "" if found == [_describe_devices(wanted)] else f"{found}"

    await wait_until(look, "the slice is as it was")
    return await live.fetch_slices()


def _describe_devices(item: JsonObject) -> list[tuple[str, list[str]]]:
    return [(device["name"], sorted(device["attributes"])) for device in item["spec"]["devices"]]


async def _is_ready(pods: PodMaker) -> bool:
    entries = (await pods.get_claim("both"))["status"].get("devices", ())
    conditions = [one for entry in entries if entry["driver"] == "dra.net" for one in entry["conditions"]]
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


async def _apply(
    api: ApiClient, pods: PodMaker, manager: str, entry: JsonObject, *, force: bool = True
) -> None:
    claim = {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": "both", "namespace": pods.namespace},
        "status": {"devices": [entry]},
    }
    await api.apply(paths.resource_claim_status(pods.namespace, "both"), claim, manager, force)


def _build_condition(kind: str, status: str) -> JsonObject:
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }

"""Server-side apply and field ownership of the stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

MAP = paths.config_map("default", "m")
STATUS = paths.resource_claim_status("default", "c")


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with ApiServer() as server, ApiClient(access_from_url(server.url)) as connected:
        yield connected


def config(**data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


def device(driver: str, **fields: Any) -> JsonObject:
    return {"driver": driver, "pool": "p", "device": "e", **fields}


def ready(status: str = "True", kind: str = "Ready") -> JsonObject:
    return {
        "type": kind,
        "status": status,
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def applied(*devices: JsonObject, **metadata: str) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", **metadata},
        "status": {"devices": list(devices)},
    }


@pytest.fixture
async def claim(client: ApiClient) -> JsonObject:
    """``default/c``, with one device of each of the drivers a and b allocated."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}
    await client.create(paths.resource_claims("default"), {"metadata": {"name": "c"}, "spec": spec})
    results = [{"request": "r", **device(driver)} for driver in ("a", "b")]
    return await client.patch(STATUS, {"status": {"allocation": {"devices": {"results": results}}}})


async def devices(client: ApiClient) -> list[JsonObject]:
    found: list[JsonObject] = (await client.get(STATUS))["status"].get("devices", [])
    return found


async def test_apply_creates_and_then_owns(client: ApiClient) -> None:
    created = await client.apply(MAP, config(x="1"), "one")
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}


async def test_what_a_manager_leaves_out_goes_and_what_others_own_stays(client: ApiClient) -> None:
    await client.apply(MAP, config(x="1", y="1"), "one")
    await client.apply(MAP, config(y="1", z="2"), "two")
    assert (await client.apply(MAP, config(), "one"))["data"] == {"y": "1", "z": "2"}
    assert (await client.apply(MAP, config(), "two")).get("data") is None


async def test_a_field_of_another_manager_is_a_conflict_unless_forced(client: ApiClient) -> None:
    await client.apply(MAP, config(x="1"), "one")
    with pytest.raises(ClusterError, match="conflict") as caught:
        await client.apply(MAP, config(x="2"), "two", force=False)
    assert caught.value.status == 409
    await client.apply(MAP, config(x="1"), "two", force=False)  # the same value is shared
    assert (await client.apply(MAP, config(x="3"), "three", force=True))["data"] == {"x": "3"}
    assert (await client.apply(MAP, config(), "one"))["data"] == {"x": "3"}


async def test_a_plain_update_takes_ownership_from_an_applier(client: ApiClient) -> None:
    await client.apply(MAP, config(x="1"), "one")
    await client.patch(MAP, {"data": {"x": "2"}})
    assert (await client.apply(MAP, config(), "one"))["data"] == {"x": "2"}


async def test_applying_the_same_again_makes_no_version(client: ApiClient) -> None:
    first = await client.apply(MAP, config(x="1"), "one")
    assert await client.apply(MAP, config(x="1"), "one") == first


@pytest.mark.usefixtures("claim")
async def test_drivers_own_their_entries_of_a_claims_status(client: ApiClient) -> None:
    await client.apply(STATUS, applied(device("a", conditions=[ready()])), "driver-a")
    await client.apply(STATUS, applied(device("b", networkData={"interfaceName": "net1"})), "driver-b")
    assert [entry["driver"] for entry in await devices(client)] == ["a", "b"]
    await client.apply(STATUS, applied(), "driver-a")
    assert await devices(client) == [device("b", networkData={"interfaceName": "net1"})]


@pytest.mark.usefixtures("claim")
async def test_conditions_are_merged_by_type_and_data_is_replaced_whole(client: ApiClient) -> None:
    await client.apply(
        STATUS, applied(device("a", conditions=[ready(), ready(kind="Net")], data={"x": 1})), "m"
    )
    other = applied(device("a", conditions=[ready(kind="Other")]))
    await client.apply(STATUS, other, "n")
    await client.apply(STATUS, applied(device("a", conditions=[ready("False")], data={"y": 2})), "m")
    (entry,) = await devices(client)
    assert [(c["type"], c["status"]) for c in entry["conditions"]] == [("Ready", "False"), ("Other", "True")]
    assert entry["data"] == {"y": 2}
    await client.apply(STATUS, applied(), "m")
    (entry,) = await devices(client)
    assert entry == device("a", conditions=[ready(kind="Other")])


async def test_a_uid_in_the_body_binds_an_apply_to_one_object(client: ApiClient, claim: JsonObject) -> None:
    await client.apply(STATUS, applied(device("a"), uid=claim["metadata"]["uid"]), "m")
    with pytest.raises(ClusterError, match=r"metadata\.uid.*immutable") as caught:
        await client.apply(STATUS, applied(device("a"), uid="another"), "m")
    assert caught.value.status == 422


async def test_the_uid_of_a_patch_is_a_field_and_that_of_a_whole_object_a_precondition(
    client: ApiClient,
) -> None:
    made = await client.create(paths.config_maps("default"), config(a="1"))
    await client.patch(MAP, {"metadata": {"uid": made["metadata"]["uid"]}, "data": {"a": "2"}})
    with pytest.raises(ClusterError, match=r"metadata\.uid.*immutable") as patched:
        await client.patch(MAP, {"metadata": {"uid": "another"}, "data": {"a": "3"}})
    with pytest.raises(ClusterError, match="Precondition failed: UID") as replaced:
        await client.replace(MAP, {**made, "metadata": {"name": "m", "uid": "another"}})
    assert (patched.value.status, replaced.value.status) == (422, 409)
    assert (await client.get(MAP))["data"] == {"a": "2"}


async def test_an_apply_that_would_create_an_object_of_a_given_uid_is_a_conflict(client: ApiClient) -> None:
    body = config(a="1")
    body["metadata"]["uid"] = "another"
    with pytest.raises(ClusterError, match="no existing object was found") as caught:
        await client.apply(MAP, body, "m")
    assert caught.value.status == 409


@pytest.mark.usefixtures("claim")
async def test_an_apply_with_two_entries_of_one_key_cannot_be_read(client: ApiClient) -> None:
    with pytest.raises(ClusterError, match="duplicate entries for key") as caught:
        await client.apply(STATUS, applied(device("a"), device("a", data={})), "m")
    assert caught.value.status == 500
    with pytest.raises(ClusterError, match=r"\.status\.devices\.conditions: duplicate"):
        await client.apply(STATUS, applied(device("a", conditions=[ready(), ready("False")])), "m")
    assert await devices(client) == []


async def test_the_status_of_a_deallocated_claim_takes_no_devices(
    client: ApiClient, claim: JsonObject
) -> None:
    await client.patch(STATUS, {"status": {"allocation": None}})
    with pytest.raises(ClusterError, match="must be an allocated device") as caught:
        await client.apply(STATUS, applied(device("a"), uid=claim["metadata"]["uid"]), "m")
    assert caught.value.status == 422


@pytest.mark.usefixtures("claim")
async def test_an_apply_to_the_status_cannot_touch_the_rest(client: ApiClient) -> None:
    body = applied(device("a"))
    body["metadata"]["labels"] = {"sneaked": "in"}
    body["spec"] = {}
    stored = await client.apply(STATUS, body, "m")
    assert "labels" not in stored["metadata"]
    assert stored["spec"]["devices"]["requests"]


async def test_status_of_what_does_not_exist_cannot_be_applied(client: ApiClient) -> None:
    with pytest.raises(ClusterError) as caught:
        await client.apply(STATUS, applied(), "m")
    assert caught.value.status == 404


@pytest.mark.usefixtures("claim")
async def test_a_device_that_is_not_allocated_is_invalid(client: ApiClient) -> None:
    with pytest.raises(ClusterError, match="must be an allocated device") as caught:
        await client.apply(STATUS, applied(device("c")), "m")
    assert caught.value.status == 422


async def test_an_apply_needs_a_manager_and_its_own_type(client: ApiClient) -> None:
    with pytest.raises(ClusterError, match="fieldManager"):
        await client.apply(MAP, config(), "")
    with pytest.raises(ClusterError, match="does not match"):
        await client.apply(MAP, {**config(), "kind": "Pod"}, "m")
    for missing in ("apiVersion", "kind"):
        with pytest.raises(ClusterError, match="Incorrect version specified in apply patch") as caught:
            await client.apply(MAP, {key: value for key, value in config().items() if key != missing}, "m")
        assert caught.value.status == 400

"""Claims fetched live, parsed at the door, and device status written by server-side apply."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.claim_status import build_entries
from dranet.cluster.claims import apply_device_statuses, fetch_claim, parse_claim
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.credentials import access_from_url
from dranet.cluster.messages import parse_object
from dranet.errors import ClaimError, ClusterError, ProtocolError, Reason
from dranet.model.claim import AllocationResult, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.status import Condition, ConditionType, DeviceStatus
from dranet.testbed.apiserver.server import ApiServer

DRIVER, POOL = "dra.net", "node-a"
CLAIMS = paths.resource_claims("default")
CLAIM = paths.resource_claim("default", "c")
STATUS = paths.resource_claim_status("default", "c")
MANAGER = "dra.net-node-a"
NOON = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
LATER = datetime(2026, 5, 1, 13, 0, 0, tzinfo=UTC)


def result(device: str, driver: str = DRIVER) -> JsonObject:
    return {"request": "nic", "driver": driver, "pool": POOL, "device": device}


async def create_claim(client: ApiClient, *results: JsonObject) -> ClaimRef:
    """A claim ``default/c``, allocated if there are results."""
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
    created = await client.create(CLAIMS, {"metadata": {"name": "c"}, "spec": spec})
    if results:
        await client.patch(STATUS, {"status": {"allocation": {"devices": {"results": list(results)}}}})
    return ClaimRef("default", "c", created["metadata"]["uid"])


def status(device: str, ready: bool = True, **fields: Any) -> DeviceStatus:
    condition = Condition(ConditionType.READY, ready, "Attached" if ready else "AttachFailed", "text")
    return DeviceStatus(DRIVER, POOL, device, (condition,), **fields)


async def held_devices(client: ApiClient) -> list[JsonObject]:
    claim = await client.get(CLAIM)
    devices: list[JsonObject] = claim["status"].get("devices", [])
    return devices


# Fetching.


async def test_an_allocated_claim_is_fetched(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    claim = await fetch_claim(client, ref)
    assert (claim.ref, claim.allocated) == (ref, True)
    assert claim.request_classes == {"nic": "x"}
    assert claim.results == (AllocationResult("nic", DRIVER, POOL, "eth0"),)


async def test_a_claim_that_is_not_there_is_the_users_matter(client: ApiClient) -> None:
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ClaimRef("default", "none", "u"))
    assert caught.value.reason is Reason.CLAIM_NOT_FOUND


async def test_a_claim_of_the_same_name_but_another_uid_is_refused(client: ApiClient) -> None:
    await create_claim(client, result("eth0"))
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ClaimRef("default", "c", "another"))
    assert caught.value.reason is Reason.CLAIM_REPLACED


async def test_a_claim_without_allocation_is_refused(client: ApiClient) -> None:
    ref = await create_claim(client)
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ref)
    assert caught.value.reason is Reason.CLAIM_NOT_ALLOCATED


async def test_an_api_server_in_trouble_is_not_the_claims_fault(server: ApiServer, client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    server.fail_next("GET", CLAIM, 500)
    with pytest.raises(ClusterError):
        await fetch_claim(client, ref)


# Parsing.


def test_every_part_that_we_read_is_parsed() -> None:
    claim = parse_claim(
        {
            "metadata": {"namespace": "n", "name": "c", "uid": "u", "annotations": {"a": "b"}},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {**result("eth0"), "request": "nic/fast", "adminAccess": True, "shareID": "s-1"},
                        ],
                        "config": [
                            {
                                "source": "FromClass",
                                "requests": ["nic"],
                                "opaque": {"driver": DRIVER, "parameters": {"mtu": 9000}},
                            },
                            {"source": "FromClaim", "opaque": {"driver": "x", "parameters": {}}},
                            {"source": "FromClaim", "somethingNewer": {}},
                        ],
                    }
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"}],
            },
        }
    )
    assert claim.ref == ClaimRef("n", "c", "u")
    (allocated,) = claim.results
    assert (allocated.main_request, allocated.admin_access, allocated.share_id) == ("nic", True, "s-1")
    assert claim.configs == (
        OpaqueConfig(ConfigSource.CLASS, DRIVER, {"mtu": 9000}, ("nic",)),
        OpaqueConfig(ConfigSource.CLAIM, "x", {}),
    )
    assert claim.reserved_for == (Consumer("pods", "p", "pu"),)
    assert claim.annotations == {"a": "b"}


def test_the_class_of_each_request_and_of_its_alternatives_is_known() -> None:
    requests = [
        {"name": "nic", "exactly": {"deviceClassName": "rail"}},
        {
            "name": "any",
            "firstAvailable": [
                {"name": "fast", "deviceClassName": "rail-fast"},
                {"name": "slow", "deviceClassName": "rail-slow"},
            ],
        },
        {"name": "of-another-kind", "somethingNewer": {}},
    ]
    claim = parse_claim({"spec": {"devices": {"requests": requests}}})

    assert claim.request_classes == {"nic": "rail", "any/fast": "rail-fast", "any/slow": "rail-slow"}
    assert parse_claim({}).request_classes == {}


def test_an_empty_allocation_is_an_allocation() -> None:
    assert parse_claim({"metadata": {}, "status": {"allocation": {}}}).allocated
    assert not parse_claim({"metadata": {}, "status": {"allocation": None}}).allocated


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": []},
        {"metadata": {"name": 5}},
        {"spec": {"devices": {"requests": {}}}},
        {"spec": {"devices": {"requests": [{"name": "nic", "exactly": "rail"}]}}},
        {"spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": 5}}]}}},
        {"spec": {"devices": {"requests": [{"name": "nic", "firstAvailable": ["fast"]}]}}},
        {"status": {"allocation": "x"}},
        {"status": {"allocation": {"devices": {"results": {}}}}},
        {"status": {"allocation": {"devices": {"results": ["x"]}}}},
        {"status": {"allocation": {"devices": {"results": [{"adminAccess": "yes"}]}}}},
        {"status": {"allocation": {"devices": {"config": [{"source": "FromAfar", "opaque": {}}]}}}},
        {"status": {"allocation": {"devices": {"config": [{"source": "FromClass", "opaque": []}]}}}},
    ],
)
def test_a_claim_of_another_shape_is_a_protocol_error(body: JsonObject) -> None:
    with pytest.raises(ProtocolError):
        parse_claim(body)


# Status.


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_parameters_that_are_nested_without_end_are_a_protocol_error(depth: int) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        parse_object(b'{"a":' * depth + b"1" + b"}" * depth)


async def test_device_status_is_written_with_all_it_knows(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    attached = status(
        "eth0",
        interface_name="net1",
        hardware_address="02:00:00:00:00:01",
        ips=("10.0.0.5/24", "2001:DB8:0:0::5/64"),
        data={"distance": "PIX"},
    )
    assert await apply_device_statuses(client, ref, MANAGER, [attached], now=lambda: NOON)
    (entry,) = await held_devices(client)
    assert entry == {
        "driver": DRIVER,
        "pool": POOL,
        "device": "eth0",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Attached",
                "message": "text",
                "lastTransitionTime": "2026-05-01T12:00:00Z",
            }
        ],
        "data": {"distance": "PIX"},
        "networkData": {
            "interfaceName": "net1",
            "hardwareAddress": "02:00:00:00:00:01",
            "ips": ["10.0.0.5/24", "2001:db8::5/64"],
        },
    }


async def test_the_same_status_again_is_not_written_and_a_new_message_keeps_the_time(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"))
    await apply_device_statuses(client, ref, MANAGER, [status("eth0")], now=lambda: NOON)
    before = len([r for r in server.requests if r.method == "PATCH"])
    await apply_device_statuses(client, ref, MANAGER, [status("eth0")], now=lambda: LATER)
    assert len([r for r in server.requests if r.method == "PATCH"]) == before
    changed = DeviceStatus(DRIVER, POOL, "eth0", (Condition(ConditionType.READY, True, "Adopted"),))
    await apply_device_statuses(client, ref, MANAGER, [changed], now=lambda: LATER)
    ((condition,),) = [entry["conditions"] for entry in await held_devices(client)]
    assert (condition["reason"], condition["lastTransitionTime"]) == ("Adopted", "2026-05-01T12:00:00Z")
    await apply_device_statuses(client, ref, MANAGER, [status("eth0", ready=False)], now=lambda: LATER)
    ((condition,),) = [entry["conditions"] for entry in await held_devices(client)]
    assert (condition["status"], condition["lastTransitionTime"]) == ("False", "2026-05-01T13:00:00Z")


async def test_entries_of_other_drivers_stay_and_our_left_out_ones_go(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"), result("eth1"), result("gpu0", "gpu.example"))
    other = {"driver": "gpu.example", "pool": POOL, "device": "gpu0", "data": {"x": 1}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    await client.apply(STATUS, {**body, "status": {"devices": [other]}}, "gpu-driver")
    await apply_device_statuses(client, ref, MANAGER, [status("eth0"), status("eth1")])
    await apply_device_statuses(client, ref, MANAGER, [status("eth1")])
    assert [entry["device"] for entry in await held_devices(client)] == ["gpu0", "eth1"]
    await apply_device_statuses(client, ref, MANAGER, [])
    assert await held_devices(client) == [other]


async def test_a_claim_that_is_gone_or_replaced_drops_its_status_quietly(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    assert not await apply_device_statuses(
        client, ClaimRef("default", "none", "u"), MANAGER, [status("eth0")]
    )
    await client.delete(CLAIM)
    await create_claim(client, result("eth0"))
    assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert await held_devices(client) == []


class RacingClient(ApiClient):
    """Between our look and our write the claim is deleted and made again under the same name."""

    raced = False

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        if not self.raced:
            self.raced = True
            await self.delete(CLAIM)
            await create_claim(self, result("eth0"))
        return await super().apply(path, body, field_manager, force)


async def test_a_claim_that_is_replaced_under_our_hands_gets_nothing(server: ApiServer) -> None:
    async with RacingClient(access_from_url(server.url)) as client:
        ref = await create_claim(client, result("eth0"))
        assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
        assert await held_devices(client) == []


async def test_a_conflict_on_the_same_claim_is_an_error_to_try_again(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"))
    server.fail_next("PATCH", STATUS, 409)
    with pytest.raises(ClusterError) as caught:
        await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert caught.value.retryable


async def test_a_device_that_is_not_allocated_is_refused_by_the_server(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    with pytest.raises(ClusterError, match="allocated device") as caught:
        await apply_device_statuses(client, ref, MANAGER, [status("eth9")])
    assert caught.value.reason is Reason.API_INVALID


# Limits.


def entry_of(device: DeviceStatus, existing: Sequence[JsonObject] = ()) -> JsonObject:
    (entry,) = build_entries([device], existing, NOON)
    return entry


async def test_what_is_too_long_is_cut_and_still_accepted(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    long = Condition(ConditionType.READY, False, "AttachFailed", "ü" * 40_000)
    ips = tuple(f"10.0.{number}.1/24" for number in range(20))
    oversized = DeviceStatus(
        DRIVER,
        POOL,
        "eth0",
        (long,),
        interface_name="i" * 300,
        hardware_address="h" * 200,
        ips=ips,
        data={"x": "y" * 11_000},
    )
    assert await apply_device_statuses(client, ref, MANAGER, [oversized])
    (entry,) = await held_devices(client)
    assert len(entry["conditions"][0]["message"].encode()) <= 32768
    assert entry["networkData"]["ips"] == list(ips[:16])
    assert entry["data"] == {"omitted": "11008 bytes of data, 10240 fit"}


def test_nine_conditions_are_a_fault_of_the_caller() -> None:
    nine = (Condition(ConditionType.READY, True, "X"),) * 9
    with pytest.raises(ValueError, match="9 conditions"):
        entry_of(DeviceStatus(DRIVER, POOL, "eth0", nine))


def test_addresses_are_canonical_and_unique_and_keep_their_host_bits() -> None:
    ips = ("10.0.0.5/24", "FE80:0:0:0::1/64", "fe80::1/64", "10.0.0.5/24", "192.0.2.1")
    entry = entry_of(DeviceStatus(DRIVER, POOL, "eth0", (), ips=ips))
    assert entry["networkData"]["ips"] == ["10.0.0.5/24", "fe80::1/64", "192.0.2.1/32"]


def test_an_address_that_is_none_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        entry_of(DeviceStatus(DRIVER, POOL, "eth0", (), ips=("nonsense",)))


def test_shares_of_one_device_are_entries_of_their_own() -> None:
    shared = DeviceStatus(DRIVER, POOL, "eth0", (Condition(ConditionType.READY, True, "X"),), share_id="s-1")
    existing = entry_of(shared) | {"shareID": "s-2"}
    existing["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    entry = entry_of(shared, [existing])
    assert entry["shareID"] == "s-1"
    assert entry["conditions"][0]["lastTransitionTime"] == "2026-05-01T12:00:00Z"

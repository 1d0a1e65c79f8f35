"""Claims fetched live, parsed at the door, and device status written by server-side apply."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.claims import (
    apply_device_statuses,
    build_entries,
    build_field_manager,
    fetch_claim,
    parse_claim,
)
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.messages import encode_body, parse_object
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.errors import ClaimError, ClusterError, ProtocolError, Reason
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.status import Condition, ConditionType, DeviceStatus
from testbed.apiserver.identity import User, service_account
from testbed.apiserver.server import ApiServer

DRIVER, POOL = "dra.net", "node-a"
CLAIMS = paths.resource_claims("default")
CLAIM = paths.resource_claim("default", "c")
STATUS = paths.resource_claim_status("default", "c")
MANAGER = "dra.net-node-a"
CONFIG = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {}}}
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


def writes(server: ApiServer) -> int:
    """Changes of the status so far, without the one that allocated the claim."""
    return sum(request.method == "PATCH" for request in server.requests) - 1


async def held_devices(client: ApiClient) -> list[JsonObject]:
    claim = await client.get(CLAIM)
    devices: list[JsonObject] = claim["status"].get("devices", [])
    return devices


# Fetching.


@pytest.mark.socket
async def test_an_allocated_claim_is_fetched(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    claim = await fetch_claim(client, ref)
    assert (claim.ref, claim.allocated) == (ref, True)
    assert claim.request_classes == {"nic": "x"}
    assert claim.results == (AllocationResult("nic", DRIVER, POOL, "eth0"),)


@pytest.mark.socket
async def test_a_claim_that_is_not_there_is_the_users_matter(client: ApiClient) -> None:
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ClaimRef("default", "none", "u"))
    assert caught.value.reason is Reason.CLAIM_NOT_FOUND


@pytest.mark.socket
async def test_a_claim_of_the_same_name_but_another_uid_is_refused(client: ApiClient) -> None:
    await create_claim(client, result("eth0"))
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ClaimRef("default", "c", "another"))
    assert caught.value.reason is Reason.CLAIM_REPLACED


@pytest.mark.socket
async def test_a_claim_without_allocation_is_refused(client: ApiClient) -> None:
    ref = await create_claim(client)
    with pytest.raises(ClaimError) as caught:
        await fetch_claim(client, ref)
    assert caught.value.reason is Reason.CLAIM_NOT_ALLOCATED


@pytest.mark.socket
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
        {"status": {"allocation": {"devices": {"config": [{**CONFIG, "requests": [5]}]}}}},
        {"status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": ["node-a"]}}}},
        {"status": {"reservedFor": [{"resource": "pods", "name": ["p"]}]}},
        {"metadata": {"annotations": {"a": 5}}},
    ],
)
def test_a_claim_of_another_shape_is_a_protocol_error(body: JsonObject) -> None:
    with pytest.raises(ProtocolError):
        parse_claim(body)


def selector(*terms: JsonObject) -> JsonObject:
    return {"status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": list(terms)}}}}


def name_is(*values: str, operator: str = "In") -> JsonObject:
    return {"key": "metadata.name", "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("body", "node"),
    [
        (selector({"matchFields": [name_is("node-a")]}), "node-a"),
        (selector({"matchFields": [name_is("node-a", "node-b")]}), ""),
        (selector({"matchFields": [name_is("node-a", operator="NotIn")]}), ""),
        (selector({"matchFields": [name_is("node-a")]}, {"matchFields": [name_is("node-b")]}), ""),
        (selector({"matchFields": [name_is("node-a")], "matchExpressions": [{"key": "x"}]}), ""),
        (selector(), ""),
        ({"status": {"allocation": {}}}, ""),
    ],
)
def test_the_node_of_an_allocation_is_known_where_it_is_one(body: JsonObject, node: str) -> None:
    assert parse_claim(body).node_name == node


def test_a_pod_group_among_the_consumers_is_told_from_a_pod() -> None:
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "gu"}
    consumers = [group, {"resource": "pods", "name": "p", "uid": "pu"}, {**group, "apiGroup": "example.com"}]
    parsed = parse_claim({"status": {"reservedFor": consumers}}).reserved_for
    assert [(one.is_pod, one.is_pod_group) for one in parsed] == [
        (False, True),
        (True, False),
        (False, False),
    ]


FIELDS = (
    *("metadata", "name", "namespace", "uid", "annotations", "spec", "devices", "requests", "exactly"),
    *("firstAvailable", "deviceClassName", "status", "allocation", "results", "request", "driver", "pool"),
    *("device", "adminAccess", "shareID", "config", "source", "opaque", "parameters", "reservedFor"),
    *("resource", "apiGroup", "nodeSelector", "nodeSelectorTerms", "matchFields", "matchExpressions"),
    *("key", "operator", "values"),
)


def near_claims() -> st.SearchStrategy[Any]:
    """JSON in which the names of the fields that we read come up in all the wrong places."""
    names = st.sampled_from(FIELDS)
    leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("FromClass") | names
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6),
        max_leaves=40,
    )


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), near_claims()))
def test_whatever_a_server_says_is_a_claim_or_a_protocol_error(body: JsonObject) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse_claim(body), Claim)


def claim_around(devices: Any, requests: Any, reserved: Any, terms: Any) -> JsonObject:
    allocation = {"devices": devices, "nodeSelector": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": allocation, "reservedFor": reserved},
    }


@given(st.builds(claim_around, *[near_claims() | st.lists(near_claims(), max_size=3)] * 4))
def test_so_is_whatever_it_says_in_the_right_places(body: JsonObject) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse_claim(body), Claim)


# Status.


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_parameters_that_are_nested_without_end_are_a_protocol_error(depth: int) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        parse_object(b'{"a":' * depth + b"1" + b"}" * depth)


@pytest.mark.socket
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


@pytest.mark.socket
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


@pytest.mark.socket
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


@pytest.mark.socket
async def test_a_claim_that_is_gone_or_replaced_drops_its_status_quietly(client: ApiClient) -> None:
    ref = await create_claim(client, result("eth0"))
    assert not await apply_device_statuses(
        client, ClaimRef("default", "none", "u"), MANAGER, [status("eth0")]
    )
    await client.delete(CLAIM)
    await create_claim(client, result("eth0"))
    assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert await held_devices(client) == []


@pytest.mark.socket
@pytest.mark.parametrize("odd", [{}, {"kind": "Status", "status": "Success"}])
async def test_an_answer_that_is_no_claim_is_not_taken_for_a_claim_that_was_replaced(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, odd: JsonObject
) -> None:
    """As of a proxy: a status would be dropped for good, and a Prepare be refused."""
    ref = await create_claim(client, result("eth0"))

    async def answer(*_: object) -> JsonObject:
        return odd

    monkeypatch.setattr(client, "apply", answer)
    with pytest.raises(ProtocolError) as caught:
        await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert caught.value.retryable
    monkeypatch.setattr(client, "get", answer)
    for told in (apply_device_statuses(client, ref, MANAGER, [status("eth0")]), fetch_claim(client, ref)):
        with pytest.raises(ProtocolError) as caught:
            await told
        assert caught.value.retryable


class RacingClient(ApiClient):
    """Between our look and our write the claim is deleted and made again under the same name."""

    raced = False

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        if not self.raced:
            self.raced = True
            await self.delete(CLAIM)
            await create_claim(self, result("eth0"))
        return await super().apply(path, body, field_manager, force)


@pytest.mark.socket
async def test_a_claim_that_is_replaced_under_our_hands_gets_nothing(server: ApiServer) -> None:
    async with RacingClient(access_from_url(server.url)) as client:
        ref = await create_claim(client, result("eth0"))
        assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
        assert await held_devices(client) == []


@pytest.mark.socket
async def test_a_conflict_on_the_same_claim_is_an_error_to_try_again(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"))
    server.fail_next("PATCH", STATUS, 409)
    with pytest.raises(ClusterError) as caught:
        await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert caught.value.retryable


@pytest.mark.socket
async def test_a_claim_that_has_other_devices_by_now_has_nothing_to_hold(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"))
    assert not await apply_device_statuses(client, ref, MANAGER, [status("eth9")])
    assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0"), status("eth9")])
    assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0", share_id="s-1")])
    assert writes(server) == 0


class ReallocatingClient(ApiClient):
    """Between our look and our write the claim loses its devices and gets another one."""

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        await self.patch(STATUS, {"status": {"allocation": None, "devices": None}})
        await self.patch(STATUS, {"status": {"allocation": {"devices": {"results": [result("eth1")]}}}})
        return await super().apply(path, body, field_manager, force)


@pytest.mark.socket
async def test_a_claim_that_gets_other_devices_under_our_hands_gets_nothing(server: ApiServer) -> None:
    async with ReallocatingClient(access_from_url(server.url)) as client:
        ref = await create_claim(client, result("eth0"))
        assert not await apply_device_statuses(client, ref, MANAGER, [status("eth0")])


@pytest.mark.socket
async def test_what_the_server_finds_invalid_of_our_own_device_is_an_error(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"))
    server.fail_next("PATCH", STATUS, 422)
    with pytest.raises(ClusterError) as caught:
        await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_INVALID, False)


class RewritingClient(ApiClient):
    """The server refuses every apply to this claim, as it does where parameters in the allocation have
    unsorted keys. With ``refuses_patches`` it refuses merge patches, too, as it does where they have spaces.
    """

    refuses_patches = False

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        del path, body, field_manager, force
        raise _changed_allocation()

    async def patch(self, path: str, body: JsonObject) -> JsonObject:
        if self.refuses_patches:
            raise _changed_allocation()
        return await super().patch(path, body)


def _changed_allocation() -> ClusterError:
    text = "422 is invalid: status.allocation: Invalid value: null: field cannot be modified once set"
    return ClusterError(text, status=422, reason=Reason.API_INVALID)


@pytest.mark.socket
async def test_a_claim_that_refuses_every_apply_gets_its_status_by_a_merge_patch(server: ApiServer) -> None:
    async with RewritingClient(access_from_url(server.url)) as client:
        ref = await create_claim(client, result("eth0"), result("gpu0", "gpu.example"))
        theirs = {"driver": "gpu.example", "pool": POOL, "device": "gpu0"}
        await client.patch(STATUS, {"status": {"devices": [theirs]}})
        for ready in (False, True):
            assert await apply_device_statuses(client, ref, MANAGER, [status("eth0", ready)])
            first, second = await held_devices(client)
            assert first == theirs
            assert [condition["status"] for condition in second["conditions"]] == [str(ready)]


@pytest.mark.socket
async def test_a_claim_that_refuses_merge_patches_as_well_is_an_error_that_says_why(
    server: ApiServer,
) -> None:
    async with RewritingClient(access_from_url(server.url)) as client:
        ref = await create_claim(client, result("eth0"))
        client.refuses_patches = True
        with pytest.raises(ClusterError) as caught:
            await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_INVALID, False)
    assert "stored with spaces" in caught.value.hint


@pytest.mark.socket
async def test_what_only_the_claim_tells_is_added_before_the_comparison(
    server: ApiServer, client: ApiClient
) -> None:
    ref = await create_claim(client, result("eth0"), result("gpu0", "gpu.example"))

    def complete(
        claim: Claim, statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject]
    ) -> Sequence[DeviceStatus]:
        del existing
        return [replace(one, data={"with": claim.results[1].device}) for one in statuses]

    for _ in range(2):
        assert await apply_device_statuses(client, ref, MANAGER, [status("eth0")], complete=complete)
    (entry,) = await held_devices(client)
    assert entry["data"] == {"with": "gpu0"}
    assert writes(server) == 1


# Who may write.


def test_a_field_manager_is_of_this_driver_on_this_node() -> None:
    assert build_field_manager("dra.net", "node-a") == "dra.net-node-a"
    longest = build_field_manager("d" * 63, "n" * 64)
    assert longest == f"{'d' * 63}-{'n' * 64}"
    assert len(longest) == 128


@given(st.sampled_from(["dra.net", "x" * 63]), *[st.integers(60, 253)] * 2)
def test_a_field_manager_that_is_cut_stays_unique_and_the_same(driver: str, one: int, other: int) -> None:
    names = ["n" * one, "n" * other]
    managers = [build_field_manager(driver, name) for name in names]
    assert (managers[0] == managers[1]) is (names[0] == names[1])
    assert all(len(manager) <= 128 and manager.startswith(driver) for manager in managers)


def role(*rules: JsonObject) -> list[JsonObject]:
    """A ClusterRole with these rules for the driver's service account."""
    subject = {"kind": "ServiceAccount", "name": "driver", "namespace": "kube-system"}
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": list(rules)},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "r"},
            "subjects": [subject],
        },
    ]


def rule(resource: str, *verbs: str, **names: list[str]) -> JsonObject:
    return {"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": list(verbs), **names}


BASE = (rule("resourceclaims", "get"), rule("resourceclaims/status", "patch"))
FINER = rule("resourceclaims/driver", "associated-node:patch", resourceNames=[DRIVER])


async def write_as(user: User, *rules: JsonObject) -> list[JsonObject]:
    """Report on a claim of node-a as this user; what the claim holds then."""
    server = ApiServer(tokens={"admin"}, users={"driver": user}, manifests=role(*rules))
    async with server, client_of(server, "admin") as admin, client_of(server, "driver") as client:
        ref = await create_claim(admin, result("eth0"))
        field = {"key": "metadata.name", "operator": "In", "values": [POOL]}
        selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        allocation = {"devices": {"results": [result("eth0")]}, "nodeSelector": selector}
        await admin.patch(STATUS, {"status": {"allocation": None}})
        await admin.patch(STATUS, {"status": {"allocation": allocation}})
        await apply_device_statuses(client, ref, MANAGER, [status("eth0")])
        return await held_devices(admin)


def client_of(server: ApiServer, token: str) -> ApiClient:
    return ApiClient(access_from_url(server.url, token=FixedToken(token)))


@pytest.mark.socket
async def test_the_two_rules_of_the_role_are_all_that_it_takes() -> None:
    bound = service_account("kube-system", "driver", node=POOL)
    assert len(await write_as(bound, *BASE, FINER)) == 1


@pytest.mark.socket
@pytest.mark.parametrize(
    ("node", "rules", "hint"),
    [
        (POOL, BASE[:1], "patch resourceclaims/status in resource.k8s.io"),
        (POOL, BASE, "associated-node:patch resourceclaims/driver in resource.k8s.io, for dra.net"),
        ("", (*BASE, FINER), "must be one that the kubelet of the allocation's node gave"),
        ("node-b", (*BASE, FINER), "or the rule be arbitrary-node:patch"),
    ],
    ids=["status", "driver", "token of no node", "token of another node"],
)
async def test_a_refusal_names_the_rule_that_is_missing(
    node: str, rules: tuple[JsonObject, ...], hint: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        await write_as(service_account("kube-system", "driver", node=node), *rules)
    assert caught.value.reason is Reason.API_FORBIDDEN
    assert hint in caught.value.hint


# Limits.


@given(
    st.dictionaries(st.text(max_size=10), st.text(max_size=3000) | st.lists(st.integers()), max_size=20),
)
def test_data_gives_way_by_whole_keys_from_the_end(data: dict[str, Any]) -> None:
    kept = dict(entry_of(DeviceStatus(DRIVER, POOL, "eth0", (), data=data)).get("data", {}))
    omitted = kept.pop("omitted", []) if "omitted" not in data else []
    assert [*kept, *omitted] == [*data]
    assert all(kept[key] == data[key] for key in kept)
    escaped = json.dumps(kept).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    assert len(escaped.replace(" ", "")) <= 10 * 1024


def test_data_is_cut_by_what_the_server_makes_of_it() -> None:
    """It escapes some characters to six bytes."""
    entry = entry_of(DeviceStatus(DRIVER, POOL, "eth0", (), data={"a": 1, "b": "<" * 2000}))
    assert entry["data"] == {"a": 1, "omitted": ["b"]}


@pytest.mark.parametrize(("given_status", "written"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_a_condition_may_be_true_false_or_unknown(given_status: bool | None, written: str) -> None:
    entry = entry_of(DeviceStatus(DRIVER, POOL, "eth0", (Condition(ConditionType.READY, given_status, "X"),)))
    assert entry["conditions"][0]["status"] == written


def entry_of(device: DeviceStatus, existing: Sequence[JsonObject] = ()) -> JsonObject:
    (entry,) = build_entries([device], existing, NOON)
    return entry


@pytest.mark.socket
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
        data={"first": 1, "x": "y" * 11_000, "last": 2},
    )
    assert await apply_device_statuses(client, ref, MANAGER, [oversized])
    (entry,) = await held_devices(client)
    assert len(entry["conditions"][0]["message"].encode()) <= 32768
    assert entry["networkData"]["ips"] == list(ips[:16])
    assert entry["data"] == {"first": 1, "omitted": ["x", "last"]}


def test_whatever_is_said_of_all_devices_of_a_claim_is_no_more_than_the_store_takes() -> None:
    """etcd takes 1.5 MiB; the claim may hold 640 KiB of parameters. What is more is a 500, tried for ever."""
    error = "a field is wrong, " * 2000
    conditions = tuple(Condition(kind, False, "InvalidConfig", error) for kind in ConditionType)
    data = {f"key{number}": "x" * 900 for number in range(70)}
    statuses = [DeviceStatus(DRIVER, POOL, f"eth{n}", conditions, data=data) for n in range(32)]
    assert len(conditions) == 8
    entries = build_entries(statuses, [], NOON)
    assert len(encode_body({"devices": entries})) < 1536 * 1024 - 640 * 1024
    assert {entry["conditions"][0]["message"][-3:] for entry in entries} == {"..."}


def test_nine_conditions_are_a_fault_of_the_caller() -> None:
    nine = (Condition(ConditionType.READY, True, "X"),) * 9
    with pytest.raises(ValueError, match="9 conditions"):
        entry_of(DeviceStatus(DRIVER, POOL, "eth0", nine))


def test_addresses_are_canonical_and_unique_and_keep_their_host_bits() -> None:
    ips = ("10.0.0.5/24", "FE80:0:0:0::1/64", "fe80::1/64", "10.0.0.5/24", "192.0.2.1")
    entry = entry_of(DeviceStatus(DRIVER, POOL, "eth0", (), ips=ips))
    assert entry["networkData"]["ips"] == ["10.0.0.5/24", "fe80::1/64", "192.0.2.1/32"]


@pytest.mark.socket
async def test_an_address_that_the_server_would_refuse_is_left_out_and_costs_no_status(
    client: ApiClient,
) -> None:
    ref = await create_claim(client, result("eth0"))
    ips = ("nonsense", "fe80::1%eth0/64", "::ffff:10.0.0.1/120", "10.0.0.5/24", "")
    assert await apply_device_statuses(client, ref, MANAGER, [status("eth0", ips=ips)])
    (entry,) = await held_devices(client)
    assert entry["networkData"] == {"ips": ["10.0.0.5/24"]}


@pytest.mark.socket
async def test_a_message_that_is_no_unicode_is_written_as_far_as_it_is(client: ApiClient) -> None:
    """Names that the kernel tells are bytes."""
    ref = await create_claim(client, result("eth0"))
    odd = Condition(ConditionType.READY, False, "AttachFailed", "link \udcff: refused")
    device = DeviceStatus(DRIVER, POOL, "eth0", (odd,), interface_name="\udcfe")
    assert await apply_device_statuses(client, ref, MANAGER, [device])
    (entry,) = await held_devices(client)
    assert entry["conditions"][0]["message"] == "link ?: refused"


def test_shares_of_one_device_are_entries_of_their_own() -> None:
    shared = DeviceStatus(DRIVER, POOL, "eth0", (Condition(ConditionType.READY, True, "X"),), share_id="s-1")
    existing = entry_of(shared) | {"shareID": "s-2"}
    existing["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    entry = entry_of(shared, [existing])
    assert entry["shareID"] == "s-1"
    assert entry["conditions"][0]["lastTransitionTime"] == "2026-05-01T12:00:00Z"

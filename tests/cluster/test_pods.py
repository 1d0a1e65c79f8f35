"""Who uses a claim that is reserved for a whole PodGroup, asked of the API server stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.claims import fetch_claim_for_node, fetch_other_results, resolve_pod_groups
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.errors import ClaimError, ClusterError, ProtocolError, Reason
from dranet.model.claim import Claim, ClaimRef, Consumer, PodRef
from testbed.apiserver.identity import User
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

NODE = "node-a"
GROUP = Consumer("podgroups", "workers", "group-uid", "scheduling.k8s.io")
PODS = paths.pods("default")


def claim(*consumers: Consumer) -> Claim:
    return Claim(ClaimRef("default", "c", "uid"), True, reserved_for=consumers)


async def create_pod(
    client: ApiClient,
    name: str,
    *,
    node: str = NODE,
    group: str = "workers",
    named: str = "",
    made: str = "",
    **status: Any,
) -> Consumer:
    """A pod with a claim that it names, or one that was ``made`` for its group from a template."""
    source = {"resourceClaimName": named} if named else {"resourceClaimTemplateName": "t"}
    spec: JsonObject = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "i"}],
        "resourceClaims": [{"name": "nic", **source}],
        "schedulingGroup": {"podGroupName": group},
    }
    created = await client.create(PODS, {"metadata": {"name": name}, "spec": spec})
    if made:
        status["resourceClaimStatuses"] = [{"name": "nic", "resourceClaimName": made}]
    if status:
        await client.patch(paths.pod_status("default", name), {"status": status})
    return Consumer("pods", name, created["metadata"]["uid"])


async def users(client: ApiClient, *consumers: Consumer) -> list[str]:
    resolved = await resolve_pod_groups(client, claim(*consumers), NODE)
    return [consumer.name for consumer in resolved.reserved_for]


async def test_a_pod_group_becomes_its_pod_on_this_node_that_uses_the_claim(client: ApiClient) -> None:
    user = await create_pod(client, "user", named="c")
    await create_pod(client, "elsewhere", node="node-b", named="c")
    await create_pod(client, "stranger", group="others", named="c")
    await create_pod(client, "without", named="another")

    resolved = await resolve_pod_groups(client, claim(GROUP), NODE)
    assert resolved.reserved_for == (user,)
    assert resolved.ref == claim().ref


async def test_a_claim_that_was_made_for_the_group_is_found_in_the_pods_status(client: ApiClient) -> None:
    await create_pod(client, "user", made="c")
    await create_pod(client, "other", made="another")
    assert await users(client, GROUP) == ["user"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_pods_that_have_ended_use_nothing(client: ApiClient, phase: str) -> None:
    await create_pod(client, "ended", named="c", phase=phase)
    await create_pod(client, "user", named="c", phase="Pending")
    assert await users(client, GROUP) == ["user"]


async def test_a_pod_that_is_being_deleted_starts_no_more_containers(client: ApiClient) -> None:
    await create_pod(client, "leaving", named="c")
    await client.delete(paths.pod("default", "leaving"), grace_period_seconds=30)
    await create_pod(client, "user", named="c")
    assert await users(client, GROUP) == ["user"]


async def test_several_pods_of_the_group_are_all_told(client: ApiClient) -> None:
    await create_pod(client, "one", named="c")
    await create_pod(client, "two", named="c")
    assert sorted(await users(client, GROUP)) == ["one", "two"]


async def test_no_pod_of_the_group_is_something_to_try_again(client: ApiClient) -> None:
    await create_pod(client, "elsewhere", node="node-b", named="c")
    with pytest.raises(ClaimError, match="PodGroup workers") as caught:
        await users(client, GROUP)
    assert caught.value.reason is Reason.CLAIM_NOT_RESERVED
    assert caught.value.retryable


async def test_pods_are_asked_for_only_where_a_group_is_a_consumer(
    server: ApiServer, client: ApiClient
) -> None:
    pod = Consumer("pods", "p", "u")
    other = Consumer("podgroups", "x", "u", "example.com")
    assert await users(client, pod, other) == ["p", "x"]
    assert [request for request in server.requests if "/pods" in request.path] == []


async def test_consumers_beside_the_group_stay(client: ApiClient) -> None:
    await create_pod(client, "user", named="c")
    assert await users(client, Consumer("pods", "single", "u"), GROUP) == ["single", "user"]


async def test_a_missing_permission_names_its_rule(server: ApiServer, client: ApiClient) -> None:
    server.fail_next("GET", PODS, 403)
    with pytest.raises(ClusterError) as caught:
        await users(client, GROUP)
    assert caught.value.reason is Reason.API_FORBIDDEN
    assert "list pods in the core group" in caught.value.hint


class OddClient(ApiClient):
    """A server whose pods have odd shapes."""

    async def list(self, *_: object, **__: object) -> JsonObject:
        return {"items": [{"spec": {"schedulingGroup": {"podGroupName": ["workers"]}}}]}


async def test_a_pod_of_another_shape_is_a_protocol_error(server: ApiServer) -> None:
    async with OddClient(access_from_url(server.url)) as client:
        with pytest.raises(ProtocolError, match="podGroupName"):
            await users(client, GROUP)


# --- the whole walk ------------------------------------------------------------------------------------


async def create_claim(client: ApiClient, node: str, *consumers: JsonObject) -> ClaimRef:
    requests = [{"name": "nic", "exactly": {"deviceClassName": "x"}}]
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    created = await client.create(paths.resource_claims("default"), body)
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {
            "results": [{"request": "nic", "driver": "dra.net", "pool": node, "device": "pci-0000-23-00-0"}]
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    status = {"status": {"allocation": allocation, "reservedFor": list(consumers)}}
    await client.patch(paths.resource_claim_status("default", "c"), status)
    return ClaimRef("default", "c", created["metadata"]["uid"])


def reference(consumer: Consumer) -> JsonObject:
    known = {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
    return {**known, "apiGroup": consumer.api_group} if consumer.api_group else known


async def test_a_claim_comes_with_its_pods(client: ApiClient) -> None:
    user = await create_pod(client, "user", named="c")
    ref = await create_claim(client, NODE, reference(GROUP))
    fetched = await fetch_claim_for_node(client, ref, NODE)
    assert (fetched.ref, fetched.reserved_for, fetched.node_name) == (ref, (user,), NODE)


async def test_a_claim_of_another_node_gets_no_device_of_the_same_name_here(client: ApiClient) -> None:
    ref = await create_claim(client, "node-b", reference(Consumer("pods", "p", "u")))
    with pytest.raises(ClaimError, match="allocated on node node-b") as caught:
        await fetch_claim_for_node(client, ref, NODE)
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM


# --- the claims of a pod beside ours -------------------------------------------------------------------


async def allocate_to(client: ApiClient, name: str, *devices: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "x"}}
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    await client.create(paths.resource_claims("default"), body)
    results = [
        {"request": "gpu", "driver": "gpu.example", "pool": NODE, "device": device} for device in devices
    ]
    status = {"status": {"allocation": {"devices": {"results": results}}}}
    await client.patch(paths.resource_claim_status("default", name), status)


async def other_devices(client: ApiClient, pod: Consumer, *known: str, uid: str = "") -> list[str]:
    ref = PodRef("default", pod.name, uid or pod.uid)
    return [result.device for result in await fetch_other_results(client, ref, frozenset(known))]


async def test_what_the_other_claims_of_a_pod_have_is_found_by_its_spec_and_status(client: ApiClient) -> None:
    for name, device in (("nic", "nic-0"), ("made", "gpu-0"), ("extended", "gpu-1"), ("strange", "gpu-2")):
        await allocate_to(client, name, device)
    pod = await create_pod(
        client, "p", named="nic", made="made", extendedResourceClaimStatus={"resourceClaimName": "extended"}
    )
    assert await other_devices(client, pod, "nic") == ["gpu-0", "gpu-1"]
    assert await other_devices(client, pod) == ["nic-0", "gpu-0", "gpu-1"]


async def test_a_pod_that_is_gone_or_replaced_and_a_claim_that_is_gone_have_nothing(
    client: ApiClient,
) -> None:
    pod = await create_pod(client, "p", named="deleted-since")
    assert await other_devices(client, pod) == []
    assert await other_devices(client, pod, uid="of-another") == []
    assert await other_devices(client, Consumer("pods", "never-there", "uid")) == []


async def test_a_refusal_to_read_the_pod_is_an_error_with_its_reason() -> None:
    async with (
        ApiServer(users={"t": User("nobody")}) as strict,
        ApiClient(access_from_url(strict.url, token=FixedToken("t"))) as nobody,
    ):
        with pytest.raises(ClusterError) as caught:
            await other_devices(nobody, Consumer("pods", "p", "uid"))
    assert caught.value.reason is Reason.API_FORBIDDEN

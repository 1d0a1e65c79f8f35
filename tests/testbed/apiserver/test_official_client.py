"""The official Kubernetes client as the judge of the stand-in: what it writes our client reads, and the
reverse; what it is refused it understands."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

official = pytest.importorskip("kubernetes", reason="the official kubernetes client is not installed")

Call = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_seconds=0.2) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    server.write_kubeconfig(tmp_path / "config")
    async with ApiClient.from_kubeconfig(tmp_path / "config") as connected:
        yield connected


@pytest.fixture
async def judge(server: ApiServer, tmp_path: Path) -> AsyncIterator[Any]:
    """The official API client, set up from the same kubeconfig."""
    server.write_kubeconfig(tmp_path / "config")
    configuration = official.client.Configuration()
    official.config.load_kube_config(str(tmp_path / "config"), client_configuration=configuration)
    with official.client.ApiClient(configuration) as api:
        yield api


SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"generateName": "00000-dra.net-node-a-"},
    "spec": {
        "driver": "dra.net",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "eth0",
                "attributes": {
                    "dra.net/mtu": {"int": 1500},
                    "dra.net/rdma": {"bool": False},
                    "dra.net/ifName": {"string": "eth0"},
                },
            }
        ],
    },
}


async def test_a_slice_of_our_client_is_read_typed_by_the_official_one(client: ApiClient, judge: Any) -> None:
    created = await client.create(paths.RESOURCE_SLICES, SLICE)
    api = official.client.ResourceV1Api(judge)
    listed = await asyncio.to_thread(
        api.list_resource_slice, field_selector="spec.driver=dra.net,spec.nodeName=node-a"
    )
    (found,) = listed.items
    assert found.metadata.uid == created["metadata"]["uid"]
    assert found.metadata.name.startswith("00000-dra.net-node-a-")
    (device,) = found.spec.devices
    assert device.attributes["dra.net/mtu"].int == 1500
    assert device.attributes["dra.net/rdma"].bool is False
    elsewhere = await asyncio.to_thread(api.list_resource_slice, field_selector="spec.nodeName=node-b")
    assert elsewhere.items == []


async def test_a_slice_of_the_official_client_is_read_raw_by_ours(client: ApiClient, judge: Any) -> None:
    api = official.client.CustomObjectsApi(judge)
    created = await asyncio.to_thread(
        api.create_cluster_custom_object, "resource.k8s.io", "v1", "resourceslices", SLICE
    )
    name = created["metadata"]["name"]
    assert await client.get(paths.resource_slice(name)) == created
    patched = await asyncio.to_thread(
        api.patch_cluster_custom_object,
        "resource.k8s.io",
        "v1",
        "resourceslices",
        name,
        {"metadata": {"labels": {"a": "b"}}},
    )
    assert (await client.get(paths.resource_slice(name)))["metadata"]["labels"] == {"a": "b"}
    assert patched["metadata"]["generation"] == 1
    await asyncio.to_thread(api.delete_cluster_custom_object, "resource.k8s.io", "v1", "resourceslices", name)
    assert (await client.list(paths.RESOURCE_SLICES))["items"] == []


async def test_pods_and_nodes_go_through_the_typed_api(client: ApiClient, judge: Any) -> None:
    core = official.client.CoreV1Api(judge)
    await client.create(paths.NODES, {"metadata": {"name": "node-a"}})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    created = await asyncio.to_thread(core.create_namespaced_pod, "default", pod)
    assert created.status.phase == "Pending"
    assert created.spec.restart_policy == "Always"
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "node-a"}}
    # A real server answers with a Status, too, which the typed client cannot read: take it raw.
    await asyncio.to_thread(
        core.create_namespaced_pod_binding, "p", "default", binding, _preload_content=False
    )
    bound = await client.get(paths.pod("default", "p"))
    assert bound["spec"]["nodeName"] == "node-a"
    await client.patch(paths.pod_status("default", "p"), {"status": {"phase": "Running"}})
    listed = await asyncio.to_thread(core.list_pod_for_all_namespaces, field_selector="status.phase=Running")
    assert [item.metadata.name for item in listed.items] == ["p"]


async def test_claims_of_both_clients_are_the_same(client: ApiClient, judge: Any) -> None:
    api = official.client.ResourceV1Api(judge)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "dra.net"}}]}},
    }
    created = await asyncio.to_thread(api.create_namespaced_resource_claim, "default", claim)
    assert created.spec.devices.requests[0].exactly.count == 1
    allocation = {"devices": {"results": [{"request": "nic", "driver": "d", "pool": "p", "device": "e"}]}}
    await client.patch(paths.resource_claim_status("default", "c"), {"status": {"allocation": allocation}})
    read = await asyncio.to_thread(api.read_namespaced_resource_claim, "c", "default")
    assert read.status.allocation.devices.results[0].device == "e"


async def test_the_official_watch_sees_what_our_client_does(
    server: ApiServer, client: ApiClient, judge: Any
) -> None:
    """``Watch`` with an explicit type, because by itself the client finds none for ResourceClaim."""
    api = official.client.ResourceV1Api(judge)
    watch = official.watch.Watch(return_type="ResourceV1ResourceClaim")

    def follow() -> list[tuple[str, str]]:
        events = watch.stream(api.list_namespaced_resource_claim, "default", timeout_seconds=60)
        seen = []
        for event in events:
            seen.append((event["type"], event["raw_object"]["metadata"]["name"]))
            if len(seen) == 3:
                watch.stop()
        return seen

    following = asyncio.create_task(asyncio.to_thread(follow))
    while not server.open_watches():
        await asyncio.wait([following], timeout=0.01)
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
    collection, item = paths.resource_claims("default"), paths.resource_claim("default", "c")
    await client.create(collection, {"metadata": {"name": "c"}, "spec": spec})
    await client.patch(item, {"metadata": {"labels": {"a": "b"}}})
    await client.delete(item)
    seen = await following
    assert seen == [("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c")]


async def test_a_raw_watch_of_both_clients_tells_the_same(client: ApiClient, judge: Any) -> None:
    listed = await client.list(paths.config_maps("default"))
    version = listed["metadata"]["resourceVersion"]
    for name in ("a", "b"):
        await client.create(paths.config_maps("default"), {"metadata": {"name": name}})
    await client.delete(paths.config_map("default", "a"))
    core = official.client.CoreV1Api(judge)

    def read_raw() -> list[Any]:
        response = core.list_namespaced_config_map(
            "default", watch=True, resource_version=version, timeout_seconds=1, _preload_content=False
        )
        return [json.loads(line) for line in response.data.splitlines()]

    theirs = await asyncio.to_thread(read_raw)
    ours = [
        {"type": str(event.type), "object": event.object}
        async for event in client.watch(
            paths.config_maps("default"), resource_version=version, timeout_seconds=1
        )
        if event.type != "BOOKMARK"
    ]
    assert theirs == ours
    assert [event["type"] for event in ours] == ["ADDED", "ADDED", "DELETED"]


async def test_server_side_apply_of_the_official_client_shares_a_claim_with_ours(
    client: ApiClient, judge: Any
) -> None:
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
    await client.create(paths.resource_claims("default"), {"metadata": {"name": "c"}, "spec": spec})
    results = [{"request": "nic", "driver": d, "pool": "p", "device": "e"} for d in ("a.x", "b.x")]
    status_path = paths.resource_claim_status("default", "c")
    await client.patch(status_path, {"status": {"allocation": {"devices": {"results": results}}}})

    def applied(driver: str) -> dict[str, Any]:
        entry = {"driver": driver, "pool": "p", "device": "e", "networkData": {"interfaceName": driver}}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "status": {"devices": [entry]},
        }

    await client.apply(status_path, applied("a.x"), "ours")
    dynamic = await asyncio.to_thread(official.dynamic.DynamicClient, judge)
    resource = await asyncio.to_thread(
        dynamic.resources.get, api_version="resource.k8s.io/v1", kind="ResourceClaim"
    )
    await asyncio.to_thread(
        resource.status.server_side_apply,
        body=applied("b.x"),
        name="c",
        namespace="default",
        field_manager="theirs",
    )
    claim = await client.get(paths.resource_claim("default", "c"))
    assert [entry["driver"] for entry in claim["status"]["devices"]] == ["a.x", "b.x"]
    managers = {(f["manager"], f["operation"]) for f in claim["metadata"]["managedFields"]}
    assert {("ours", "Apply"), ("theirs", "Apply")} <= managers


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        (lambda core: core.read_namespaced_config_map("none", "default"), 404, "NotFound"),
        (
            lambda core: core.create_namespaced_config_map("default", {"metadata": {"name": "X"}}),
            422,
            "Invalid",
        ),
        (
            lambda core: core.create_namespaced_config_map("none", {"metadata": {"name": "x"}}),
            404,
            "NotFound",
        ),
        (lambda core: core.create_namespace({"metadata": {"name": "default"}}), 409, "AlreadyExists"),
        (lambda core: core.list_node(field_selector="spec.nonsense=1"), 400, "BadRequest"),
    ],
)
async def test_refusals_reach_the_official_client_as_status_objects(
    judge: Any, act: Callable[[Any], Any], status: int, reason: str
) -> None:
    core = official.client.CoreV1Api(judge)
    with pytest.raises(official.client.ApiException) as caught:
        await asyncio.to_thread(act, core)
    assert caught.value.status == status
    body = json.loads(caught.value.body)
    assert (body["kind"], body["code"], body["reason"]) == ("Status", status, reason)


async def test_discovery_lists_what_is_served(judge: Any) -> None:
    apis = await asyncio.to_thread(official.client.ApisApi(judge).get_api_versions)
    groups = [group.name for group in apis.groups]
    assert groups == [
        "resource.k8s.io",
        "scheduling.k8s.io",
        "apps",
        "rbac.authorization.k8s.io",
        "admissionregistration.k8s.io",
        "authorization.k8s.io",
        "authentication.k8s.io",
    ]
    resources = await asyncio.to_thread(official.client.ResourceV1Api(judge).get_api_resources)
    names = {resource.name for resource in resources.resources}
    assert {"resourceslices", "resourceclaims", "resourceclaims/status", "deviceclasses"} <= names
    version = await asyncio.to_thread(official.client.VersionApi(judge).get_code)
    assert (version.major, version.minor) == ("1", "37")


class TestDryRun:
    """``dryRun=All`` of the official client: checked as a real write is, answered as one, and not kept."""

    async def test_a_create_is_answered_in_full_and_nothing_is_stored(
        self, server: ApiServer, judge: Any
    ) -> None:
        core = official.client.CoreV1Api(judge)
        before = await asyncio.to_thread(core.list_namespace)
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        answer = await asyncio.to_thread(core.create_namespaced_pod, "default", pod, dry_run="All")
        assert answer.metadata.uid
        assert answer.spec.restart_policy == "Always"
        assert not answer.metadata.resource_version
        assert server.objects("pods") == []
        after = await asyncio.to_thread(core.list_namespace)
        assert after.metadata.resource_version == before.metadata.resource_version

    async def test_what_a_real_write_is_refused_for_a_dry_one_is(self, judge: Any) -> None:
        api = official.client.CustomObjectsApi(judge)
        bad = json.loads(json.dumps(SLICE).replace('"generation": 1', '"generation": -1'))
        create = functools.partial(
            api.create_cluster_custom_object, "resource.k8s.io", "v1", "resourceslices"
        )
        with pytest.raises(official.client.ApiException) as refused:
            await asyncio.to_thread(create, bad, dry_run="All")
        assert refused.value.status == 422
        with pytest.raises(official.client.ApiException) as refused:
            await asyncio.to_thread(create, SLICE, dry_run="Some")
        assert refused.value.status == 400

    async def test_an_update_a_patch_and_a_delete_leave_the_object_and_its_version(
        self, server: ApiServer, judge: Any
    ) -> None:
        core = official.client.CoreV1Api(judge)
        config_map = {"metadata": {"name": "m"}, "data": {"a": "1"}}
        await asyncio.to_thread(core.create_namespaced_config_map, "default", config_map)
        (before,) = server.objects("configmaps")
        new = {**config_map, "data": {"a": "2"}}
        changes: tuple[tuple[Any, Any], ...] = (
            (core.replace_namespaced_config_map, new),
            (core.patch_namespaced_config_map, {"data": {"a": "2"}}),
        )
        for call, body in changes:
            answer = await asyncio.to_thread(call, "m", "default", body, dry_run="All")
            assert answer.data == {"a": "2"}
            assert answer.metadata.resource_version == before["metadata"]["resourceVersion"]
        delete = functools.partial(core.delete_namespaced_config_map, "m", "default")
        await asyncio.to_thread(delete, dry_run="All")
        by_body = official.client.V1DeleteOptions(dry_run=["All"])
        await asyncio.to_thread(delete, body=by_body)
        assert server.objects("configmaps") == [before]

    async def test_a_dry_apply_takes_no_fields(
        self, server: ApiServer, judge: Any, client: ApiClient
    ) -> None:
        api = official.client.CustomObjectsApi(judge)
        made = await client.create(paths.RESOURCE_SLICES, SLICE)
        applied = {**SLICE, "metadata": {"name": made["metadata"]["name"], "labels": {"a": "b"}}}
        judge.set_default_header("Content-Type", "application/apply-patch+yaml")
        answer = await asyncio.to_thread(
            api.patch_cluster_custom_object,
            "resource.k8s.io",
            "v1",
            "resourceslices",
            made["metadata"]["name"],
            applied,
            dry_run="All",
            field_manager="somebody",
            force=True,
        )
        assert answer["metadata"]["labels"] == {"a": "b"}
        assert server.objects("resourceslices") == [made]

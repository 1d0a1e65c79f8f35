"""What a real API server lets the driver's own account do: exactly its rules, and only for its own node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError
from e2e.cluster import config
from e2e.cluster.local import LocalCluster
from e2e.installation import NAME, SYSTEM_NAMESPACE
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.ownership import suppress_not_found
from e2e.tests.pods import NIC_PARAMETERS, PodMaker, build_request, build_spec, build_template, wait_until

_ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{NAME}"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "resource.k8s.io"
_OTHER_NODE = "the driver may write only slices of the node that it runs on"
_NO_NODE = "the token does not name the node of the driver"
_NOT_ITS_CLAIM = (
    "the driver may not change the allocation or the consumers of a claim",
    'cannot patch resource "resourceclaims/binding"',
)
"""The message of the admission policies of ``deploy/``; any other refusal could hide that they let it pass.
From 1.36 the server refuses the last by itself (``DRAResourceClaimGranularStatusAuthorization``)."""
_NOT_ITS_DEVICE = (
    "the driver may write only the device entries of dra.net on the node that it runs on",
    'requires resource="resourceclaims/driver"',
)
_PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
_WAITING_POD: JsonObject = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "waiting"},
    "spec": {
        "serviceAccountName": NAME,
        "nodeSelector": {"kubernetes.io/hostname": "none"},
        "containers": [{"name": "main", "image": "busybox"}],
    },
}
"""A pod with the driver's account that never gets a node."""
_UNAUTHENTICATED_PATHS = ("/version", "/api", "/apis", "/openapi")
"""What every account may read (``system:discovery``, ``system:public-info-viewer``)."""


async def test_the_driver_asks_for_nothing_that_its_rules_do_not_allow(
    cluster: LocalCluster, api: ApiClient, pods: PodMaker
) -> None:
    await pods.run("walk", nics=2)
    await pods.delete("walk")
    allowed = {rule async for rule in _list_rules(api)}
    (driver,) = await pods.live.driver.fetch_pods()
    asked = [event for event in _read_audit(cluster) if _is_by(event, driver)]
    kinds = {_describe(event) for event in asked if "objectRef" in event}
    assert {("patch", _GROUP, "resourceclaims/status"), ("create", _GROUP, "resourceslices")} <= kinds
    assert {event["responseStatus"]["code"] for event in asked}.isdisjoint({401, 403})
    assert kinds <= allowed
    others = [event["requestURI"] for event in asked if "objectRef" not in event]
    assert [path for path in others if not path.startswith(_UNAUTHENTICATED_PATHS)] == []


class TestBypass:
    """With the token of the driver's pod, and with tokens that are not of such a pod."""

    async def test_the_driver_of_a_node_cannot_touch_the_slices_of_another(
        self, cluster: LocalCluster, api: ApiClient, live: LiveCluster
    ) -> None:
        theirs = _build_slice("another-node")
        there = await api.create(_SLICES, theirs)
        path = f"{_SLICES}/{theirs['metadata']['name']}"
        try:
            async with _as_driver(cluster, api, live) as driver:
                with _refused(_OTHER_NODE):
                    await driver.create(_SLICES, _build_slice("another-node", "more"))
                with _refused(_OTHER_NODE):
                    await driver.replace(
                        path, {**there, "metadata": {**there["metadata"], "labels": {"by": "us"}}}
                    )
                with _refused(_OTHER_NODE):
                    await driver.delete(path)
        finally:
            await api.delete(path)

    async def test_a_token_that_is_bound_to_no_pod_can_write_nothing(
        self, cluster: LocalCluster, api: ApiClient, live: LiveCluster
    ) -> None:
        (slice_,) = await live.fetch_slices()
        path = f"{_SLICES}/{slice_['metadata']['name']}"
        async with _with_token(cluster, await _request_token(api, None)) as stolen:
            with _refused(_NO_NODE):
                await stolen.create(_SLICES, _build_slice(cluster.kubelet.node, "stolen"))
            with _refused(_NO_NODE):
                await stolen.delete(path)
        assert [item["metadata"]["uid"] for item in await live.fetch_slices()] == [slice_["metadata"]["uid"]]

    @pytest.mark.usefixtures("live")
    async def test_the_token_of_a_pod_that_is_gone_is_refused(
        self, cluster: LocalCluster, api: ApiClient
    ) -> None:
        pod = await api.create(_PODS, _WAITING_POD)
        path = f"{_PODS}/{pod['metadata']['name']}"
        try:
            async with _with_token(cluster, await _request_token(api, pod)) as stolen:
                assert await stolen.list(_SLICES)
                await api.delete(path, grace_period_seconds=0)

                async def is_refused() -> bool:
                    try:
                        await stolen.list(_SLICES)
                    except ClusterError as error:
                        return error.status == HTTPStatus.UNAUTHORIZED
                    return False

                await wait_until(is_refused, "the server has forgotten that it accepted the token")
        finally:
            with suppress_not_found():
                await api.delete(path, grace_period_seconds=0)

    async def test_the_driver_cannot_write_the_status_of_a_claim_without_its_devices(
        self, cluster: LocalCluster, api: ApiClient, live: LiveCluster, namespace: str
    ) -> None:
        claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "idle"},
            "spec": build_spec(build_request()),
        }
        await api.create(claims, claim)
        node = cluster.kubelet.node
        results = [{"request": "nic", "driver": "dra.net", "pool": node, "device": "pci-0000-18-00-0"}]
        async with _as_driver(cluster, api, live) as driver:
            with _refused(*_NOT_ITS_CLAIM):
                allocation = {"devices": {"results": results}}
                await driver.patch(f"{claims}/idle/status", {"status": {"allocation": allocation}})

    async def test_the_driver_of_a_node_cannot_write_the_status_of_a_claim_on_another(
        self, cluster: LocalCluster, api: ApiClient, live: LiveCluster, namespace: str
    ) -> None:
        claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        spec = build_spec(build_request())
        about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "far"}}
        await api.create(claims, {**about, "spec": spec})
        device = {"driver": "dra.net", "pool": "another-node", "device": "nic"}
        here = {"key": "metadata.name", "operator": "In", "values": ["another-node"]}
        allocation = {
            "devices": {"results": [{"request": "nic", **device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
        await api.patch(f"{claims}/far/status", {"status": {"allocation": allocation}})
        async with _as_driver(cluster, api, live) as driver:
            with _refused(*_NOT_ITS_DEVICE):
                await driver.apply(
                    f"{claims}/far/status", {**about, "status": {"devices": [device]}}, "dra.net"
                )


class TestParameters:
    async def test_an_unknown_parameter_is_refused_at_apply_by_name(
        self, api: ApiClient, live: LiveCluster, namespace: str
    ) -> None:
        assert live.driver.judges_parameters
        templates = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
        wrong = build_template("wrong", parameters={"interface": {"nmae": "net1", "mtu": "large"}})
        with pytest.raises(ClusterError) as refused:
            await api.create(templates, wrong)
        assert "interface.nmae" in str(refused.value)
        assert "interface.mtu" in str(refused.value)

    async def test_a_claim_whose_parameters_have_unsorted_keys_has_a_status(self, pods: PodMaker) -> None:
        """The server refuses each server-side apply to such a claim."""
        parameters = {"rdma": NIC_PARAMETERS["rdma"], "interface": {"name": "net1", "mtu": 1400}}
        assert json.dumps(parameters) != json.dumps(parameters, sort_keys=True)
        pod = await pods.run("unsorted", parameters=parameters)

        async def is_reported() -> bool:
            (claim,) = await pods.fetch_claims(pod)
            names = [entry["networkData"]["interfaceName"] for entry in claim["status"].get("devices", ())]
            return names == ["net1"]

        await wait_until(is_reported, "the claim's status has the interface")


def _read_audit(cluster: LocalCluster) -> Iterator[JsonObject]:
    for line in Path(cluster.plane.plan.audit_log).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _is_by(event: JsonObject, driver: JsonObject) -> bool:
    """By this instance alone: one that was uninstalled before had its rules taken away while it ended."""
    user = event["user"]
    return user["username"] == _ACCOUNT and driver["metadata"]["name"] in user.get("extra", {}).get(
        _POD_NAME, ()
    )


def _describe(event: JsonObject) -> tuple[str, str, str]:
    """Verb, API group, resource with its subresource."""
    about = event["objectRef"]
    resource = "/".join(filter(None, (about["resource"], about.get("subresource", ""))))
    return event["verb"], about.get("apiGroup", ""), resource


async def _list_rules(api: ApiClient) -> AsyncIterator[tuple[str, str, str]]:
    roles = await api.list(f"{_RBAC}/clusterroles", label_selector="app.kubernetes.io/name=dranet")
    local = await api.list(f"{_RBAC}/namespaces/{SYSTEM_NAMESPACE}/roles")
    for role in (*roles["items"], *local["items"]):
        for rule in role["rules"]:
            for verb in rule["verbs"]:
                for group in rule.get("apiGroups", ()):
                    for resource in rule.get("resources", ()):
                        yield verb, group, resource


@asynccontextmanager
async def _as_driver(cluster: LocalCluster, api: ApiClient, live: LiveCluster) -> AsyncIterator[ApiClient]:
    (pod,) = await live.driver.fetch_pods()
    async with _with_token(cluster, await _request_token(api, pod)) as client:
        yield client


@asynccontextmanager
async def _with_token(cluster: LocalCluster, token: str) -> AsyncIterator[ApiClient]:
    file = cluster.plane.plan.kubeconfig("borrowed")
    file.write_text(config.build_kubeconfig(cluster.plane.plan, token))
    async with ApiClient.from_kubeconfig(file, user_agent="dranet-e2e") as client:
        yield client


async def _request_token(api: ApiClient, pod: JsonObject | None) -> str:
    """A token of the driver's account, as the kubelet asks for it, or bound to nothing."""
    spec: JsonObject = {"expirationSeconds": 600}
    if pod is not None:
        about = {key: pod["metadata"][key] for key in ("name", "uid")}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **about}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{NAME}/token"
    return str((await api.create(path, body))["status"]["token"])


def _build_slice(node: str, suffix: str = "first") -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{suffix}"},
        "spec": {
            "driver": "dra.net",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic"}],
        },
    }


class _refused:  # noqa: N801 -- reads as pytest.raises
    """The API server forbids what is done inside, with one of these texts in its message."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        assert isinstance(error, ClusterError), "it was allowed"
        assert any(text in str(error) for text in self._texts), str(error)
        return True

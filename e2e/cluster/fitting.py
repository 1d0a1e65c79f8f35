"""Lets published manifests run on the cluster as they are: the policies of ``described_node``, in force."""

from __future__ import annotations

import asyncio

from dranet.cluster.client import ApiClient
from e2e.access import E2eFailed
from e2e.cluster import described_node
from e2e.cluster.described_node import JsonObject
from e2e.cluster.local import LocalCluster, Options

_GATE = "MutatingAdmissionPolicy"
_BETA = "admissionregistration.k8s.io/v1beta1=true"
_MANAGER = "dranet-cluster"
_EFFECT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_PODS = "/api/v1/namespaces/default/pods"


def choose_options(version: str) -> Options:
    """Servers before 1.36 serve mutating policies in beta, when they are asked to."""
    if tuple(map(int, version.split(".")[:2])) >= (1, 36):
        return Options()
    return Options({_GATE: True}, (_BETA,))


async def add_policies(cluster: LocalCluster) -> None:
    """Apply the policies and wait until the API server goes by them."""
    async with cluster.plane.connect() as api:
        for item in _build_policies(cluster):
            await api.apply(_path_of(item), item, field_manager=_MANAGER)
        await _wait_in_force(api, True)


async def remove_policies(cluster: LocalCluster) -> None:
    """Delete the policies and wait until the API server no longer goes by them."""
    async with cluster.plane.connect() as api:
        for item in reversed(_build_policies(cluster)):
            await api.delete(_path_of(item))
        await _wait_in_force(api, False)


def _build_policies(cluster: LocalCluster) -> list[JsonObject]:
    """The hardware's policy comes last: once it is in force, the other one is."""
    version = "v1beta1" if _BETA in cluster.plane.plan.runtime_config else "v1"
    limits = [] if described_node.may_raise_limits() else described_node.build_limits_policy(version)
    return [*limits, *described_node.build_hardware_policy(cluster.node, version)]


async def _wait_in_force(api: ApiClient, wanted: bool) -> None:
    """Ask with a pod that the server does not keep."""
    try:
        async with asyncio.timeout(_EFFECT_SECONDS):
            while await _is_in_force(api) is not wanted:
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        change = "into" if wanted else "out of"
        raise E2eFailed(f"the admission policies did not come {change} force") from error


async def _is_in_force(api: ApiClient) -> bool:
    pod = await api.create(_PODS, _PROBE, dry_run=True)
    return any(volume["name"] == described_node.SYSFS_VOLUME for volume in pod["spec"]["volumes"])


_PROBE: JsonObject = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe-of-policies", "labels": described_node.DRIVER_LABELS},
    "spec": {"containers": [{"name": "dranet", "image": "none"}]},
}


def _path_of(item: JsonObject) -> str:
    kind = item["kind"].lower()
    plural = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
    return f"/apis/{item['apiVersion']}/{plural}/{item['metadata']['name']}"

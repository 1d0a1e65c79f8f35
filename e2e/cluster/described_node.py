"""Lets published manifests run unchanged on a node whose hardware is described, by admission policies.

On a real node the driver reads the node's ``/sys`` and ``/proc``. Here these are the machine's, and the
described hardware is a tree of files: a MutatingAdmissionPolicy puts that tree in their place in each pod of
the driver. Where the machine lacks a right that nodes have, another one leaves out what needs it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.access import E2eFailed
from e2e.cluster.local import LocalCluster, Options
from e2e.cluster.node import LaneNode
from e2e.objects import JsonObject, path_of

HARDWARE, LIMITS = "described-hardware", "limits-of-this-machine"
_GROUP = "admissionregistration.k8s.io"
_GATE = "MutatingAdmissionPolicy"
_BETA = f"{_GROUP}/v1beta1=true"
_MANAGER = "dranet-cluster"
_EFFECT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_PODS = "/api/v1/namespaces/default/pods"
_SYSFS_VOLUME = "described-sysfs"
_CAP_SYS_RESOURCE = 24
_DRIVER_LABELS = {"app.kubernetes.io/part-of": "dranet"}
_IS_DRIVER = 'object.metadata.?labels["app.kubernetes.io/part-of"].orValue("") == "dranet"'
"""Not the label `name`, which nameOverride sets."""
_MEMLOCK = ("spec", "config", "0", "opaque", "parameters", "rdma", "memlock")
_HAS_MEMLOCK = (
    "object.spec.?config.orValue([]).size() > 0 && "
    "object.spec.config[0].?opaque.?parameters.?rdma.?memlock.hasValue()"
)


def may_raise_limits() -> bool:
    """Whether containers here can be given more locked memory than this process has (CAP_SYS_RESOURCE)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (effective,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(effective & 1 << _CAP_SYS_RESOURCE)


def choose_options(version: str) -> Options:
    """Servers before 1.36 serve mutating policies in beta, when they are asked to."""
    if tuple(map(int, version.split(".")[:2])) >= (1, 36):
        return Options()
    return Options({_GATE: True}, (_BETA,))


async def add_policies(cluster: LocalCluster) -> None:
    """Apply the policies and wait until the API server goes by them."""
    async with cluster.plane.connect() as api:
        for item in _build_policies(cluster):
            await api.apply(path_of(item), item, field_manager=_MANAGER)
        await _wait_in_force(api, True)


async def remove_policies(cluster: LocalCluster) -> None:
    """Delete the policies and wait until the API server no longer goes by them."""
    async with cluster.plane.connect() as api:
        for item in reversed(_build_policies(cluster)):
            await api.delete(path_of(item))
        await _wait_in_force(api, False)


def _build_policies(cluster: LocalCluster) -> list[JsonObject]:
    """The hardware's policy comes last: once it is in force, the other one is."""
    version = "v1beta1" if _BETA in cluster.plane.plan.runtime_config else "v1"
    limits = [] if may_raise_limits() else _build_limits_policy(version)
    return [*limits, *_build_hardware_policy(cluster.node, version)]


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
    return any(volume["name"] == _SYSFS_VOLUME for volume in pod["spec"]["volumes"])


_PROBE: JsonObject = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe-of-policies", "labels": _DRIVER_LABELS},
    "spec": {"containers": [{"name": "dranet", "image": "none"}]},
}


def _build_hardware_policy(node: LaneNode, version: str) -> list[JsonObject]:
    """Show the described hardware to every driver. ``version`` of the API group: ``v1``."""
    mutation = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": _build_expression(node)},
    }
    return _build_policy(HARDWARE, version, ("", "v1", "pods"), _IS_DRIVER, mutation)


def _build_limits_policy(version: str) -> list[JsonObject]:
    """Leave ``rdma.memlock`` out of DeviceClasses, as the runtime could not start their pods here."""
    patch = f'[JSONPatch{{op: "remove", path: {json.dumps("/" + "/".join(_MEMLOCK))}}}]'
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}
    resource = ("resource.k8s.io", "v1", "deviceclasses")
    return _build_policy(LIMITS, version, resource, _HAS_MEMLOCK, mutation)


def _build_policy(
    name: str, version: str, resource: tuple[str, str, str], condition: str, mutation: JsonObject
) -> list[JsonObject]:
    """A policy and its binding."""
    group, resource_version, plural = resource
    rule = {
        "apiGroups": [group],
        "apiVersions": [resource_version],
        "operations": ["CREATE", "UPDATE"] if group else ["CREATE"],
        "resources": [plural],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "needs-it", "expression": condition}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [mutation],
    }
    about = {"apiVersion": f"{_GROUP}/{version}", "metadata": {"name": name}}
    return [
        {**about, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**about, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": name}},
    ]


def _build_expression(node: LaneNode) -> str:
    """CEL for the volumes of ``/proc`` with the tree's places, and one for ``/sys``.

    The names of the volumes are those of the chart and of ``deploy/``.
    """
    procfs = node.hardware.procfs_root
    places = {"proc": procfs, "proc-irq": procfs / "irq", _SYSFS_VOLUME: node.hardware.sysfs_root}
    volumes = ", ".join(
        f"Object.spec.volumes{{name: {json.dumps(name)}, "
        f'hostPath: Object.spec.volumes.hostPath{{path: {json.dumps(str(path))}, type: "Directory"}}}}'
        for name, path in places.items()
    )
    mount = (
        f"Object.spec.containers.volumeMounts{{name: {json.dumps(_SYSFS_VOLUME)}, "
        'mountPath: "/sys", readOnly: true}'
    )
    container = f'Object.spec.containers{{name: "dranet", volumeMounts: [{mount}]}}'
    return f"Object{{spec: Object.spec{{volumes: [{volumes}], containers: [{container}]}}}}"

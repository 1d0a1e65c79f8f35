"""Fits a cluster to what this machine is, by admission policies, so that every installation works as it is.

On a real node the driver reads the node's ``/sys`` and ``/proc``. Here these are the machine's, and the
described hardware is a tree of files: a MutatingAdmissionPolicy puts that tree in their place in each pod of
the driver. Where the machine lacks a right that nodes have, another one leaves out what needs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster.node import LaneNode

JsonObject = dict[str, Any]
HARDWARE, LIMITS = "described-hardware", "limits-of-this-machine"
_GROUP = "admissionregistration.k8s.io"
SYSFS_VOLUME = "described-sysfs"
_CAP_SYS_RESOURCE = 24
DRIVER_LABELS = {"app.kubernetes.io/name": "dranet"}
_IS_DRIVER = 'object.metadata.?labels["app.kubernetes.io/name"].orValue("") == "dranet"'
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


def build_hardware_policy(node: LaneNode, version: str) -> list[JsonObject]:
    """Show the described hardware to every driver. ``version`` of the API group: ``v1``."""
    mutation = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": _build_expression(node)},
    }
    return _build_policy(HARDWARE, version, ("", "v1", "pods"), _IS_DRIVER, mutation)


def build_limits_policy(version: str) -> list[JsonObject]:
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
    places = {"proc": procfs, "proc-irq": procfs / "irq", SYSFS_VOLUME: node.hardware.sysfs_root}
    volumes = ", ".join(
        f"Object.spec.volumes{{name: {json.dumps(name)}, "
        f'hostPath: Object.spec.volumes.hostPath{{path: {json.dumps(str(path))}, type: "Directory"}}}}'
        for name, path in places.items()
    )
    mount = (
        f"Object.spec.containers.volumeMounts{{name: {json.dumps(SYSFS_VOLUME)}, "
        'mountPath: "/sys", readOnly: true}'
    )
    container = f'Object.spec.containers{{name: "dranet", volumeMounts: [{mount}]}}'
    return f"Object{{spec: Object.spec{{volumes: [{volumes}], containers: [{container}]}}}}"

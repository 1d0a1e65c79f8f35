"""Shows the hardware that a cluster's node is described with to every driver that is installed on it.

On a real node the driver reads the node's ``/sys`` and ``/proc``. Here these are the machine's, and the
described hardware is a tree of files. A MutatingAdmissionPolicy puts that tree in their place in each pod of
the driver, so that the chart and ``deploy/`` install as they are.
"""

from __future__ import annotations

import json
from typing import Any

from e2e.cluster.node import LaneNode

JsonObject = dict[str, Any]
NAME = "described-hardware"
_GROUP = "admissionregistration.k8s.io"
_SYSFS_VOLUME = "described-sysfs"
_IS_DRIVER = 'object.metadata.?labels["app.kubernetes.io/name"].orValue("") == "dranet"'


def build_policy(node: LaneNode, version: str) -> list[JsonObject]:
    """The policy and its binding, in the group's ``version``."""
    api_version = f"{_GROUP}/{version}"
    resources = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        "scope": "Namespaced",
    }
    spec = {
        "matchConstraints": {"resourceRules": [resources]},
        "matchConditions": [{"name": "is-driver", "expression": _IS_DRIVER}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _build_expression(node)}}
        ],
    }
    return [
        {
            "apiVersion": api_version,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": spec,
        },
        {
            "apiVersion": api_version,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME},
        },
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

"""What the examples may say in objects of other projects: a closed shape for each kind, of what is used.

Read off the definitions of August 2026: Kubeflow Trainer 2.3, Training Operator 1.9, MPI Operator 0.8, JobSet
0.13, LeaderWorkerSet 0.10, KubeRay 1.7, Kueue 0.20, NVIDIA's DRA driver 0.5. A leaf says what a value is;
``POD`` stands for a pod template, which the schemas of Kubernetes judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

JsonObject = dict[str, Any]
Shape = Any

POD = "a pod template"
ANY_NAME = "*"
"""The only key of a map with keys of the user's own."""


def _needs(shape: Mapping[str, Shape], *fields: str) -> dict[str, Shape]:
    """A mapping with fields that must be there; it may have the others."""
    return {**shape, _NEEDED: fields}


_NEEDED = "(needed)"

_JOB = {
    "completionMode": str,
    "completions": int,
    "parallelism": int,
    "backoffLimit": int,
    "template": POD,
}
_REPLICATED_JOB = _needs(
    {
        "name": str,
        "replicas": int,
        "template": {"metadata": {"labels": {ANY_NAME: str}}, "spec": _needs(_JOB, "template")},
    },
    "name",
    "template",
)
_ROLE = _needs({"replicas": int, "restartPolicy": str, "template": POD}, "template")
_RAY_CLUSTER = _needs(
    {
        "headGroupSpec": _needs(
            {"rayStartParams": {ANY_NAME: str}, "template": POD}, "rayStartParams", "template"
        ),
        "workerGroupSpecs": [
            _needs(
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {ANY_NAME: str},
                    "template": POD,
                },
                *("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            )
        ],
    },
    "headGroupSpec",
)

SPECS: Mapping[tuple[str, str], Shape] = {
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): {
        "mlPolicy": {"numNodes": int, "torch": {}},
        "template": {"spec": {"replicatedJobs": [_REPLICATED_JOB]}},
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): _needs(
        {
            "runtimeRef": _needs({"apiGroup": str, "kind": str, "name": str}, "name"),
            "trainer": {"numNodes": int, "numProcPerNode": int, "command": [str]},
        },
        "runtimeRef",
    ),
    ("kubeflow.org/v1", "PyTorchJob"): _needs(
        {"nprocPerNode": str, "pytorchReplicaSpecs": {"Master": _ROLE, "Worker": _ROLE}},
        "pytorchReplicaSpecs",
    ),
    ("kubeflow.org/v2beta1", "MPIJob"): _needs(
        {
            "slotsPerWorker": int,
            "launcherCreationPolicy": str,
            "runPolicy": {"cleanPodPolicy": str},
            "mpiReplicaSpecs": {"Launcher": _ROLE, "Worker": _ROLE},
        },
        "mpiReplicaSpecs",
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "failurePolicy": {"maxRestarts": int},
        "replicatedJobs": [_REPLICATED_JOB],
    },
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _needs(
        {
            "replicas": int,
            "leaderWorkerTemplate": _needs(
                {"size": int, "restartPolicy": str, "leaderTemplate": POD, "workerTemplate": POD},
                "workerTemplate",
            ),
        },
        "leaderWorkerTemplate",
    ),
    ("ray.io/v1", "RayCluster"): _RAY_CLUSTER,
    ("ray.io/v1", "RayJob"): {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "rayClusterSpec": _RAY_CLUSTER,
    },
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): {},
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): {
        "namespaceSelector": {},
        "resourceGroups": [
            _needs(
                {
                    "coveredResources": [str],
                    "flavors": [
                        _needs(
                            {"name": str, "resources": [{"name": str, "nominalQuota": int}]},
                            "name",
                            "resources",
                        )
                    ],
                },
                *("coveredResources", "flavors"),
            )
        ],
    },
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): {"clusterQueue": str},
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): _needs(
        {
            "numNodes": int,
            "channel": _needs(
                {"resourceClaimTemplate": _needs({"name": str}, "name"), "allocationMode": str},
                "resourceClaimTemplate",
            ),
        },
        "channel",
    ),
}
"""Of each kind: what its ``spec`` may have."""


def find_faults(item: JsonObject) -> Iterator[str]:
    """What an object of another project has that it may not, or lacks."""
    shape = SPECS[item["apiVersion"], item["kind"]]
    yield from _compare(item.get("spec", {}), shape, f"{item['kind']}.spec")


def find_templates(item: JsonObject) -> Iterator[JsonObject]:
    """Its pod templates."""
    yield from _templates(item.get("spec", {}), SPECS[item["apiVersion"], item["kind"]])


def _compare(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if shape is POD:
        if not isinstance(value, dict) or "spec" not in value:
            yield f"{path}: is no pod template"
    elif isinstance(shape, type):
        if type(value) is not shape:
            yield f"{path}: is no {shape.__name__}"
    elif isinstance(shape, list) != isinstance(value, list) or isinstance(shape, dict) != isinstance(
        value, dict
    ):
        yield f"{path}: is a {type(value).__name__}"
    elif isinstance(shape, list):
        for index, entry in enumerate(value):
            yield from _compare(entry, shape[0], f"{path}[{index}]")
    else:
        yield from (f"{path}.{name}: is missing" for name in shape.get(_NEEDED, ()) if name not in value)
        for name, child in value.items():
            known = shape.get(name, shape.get(ANY_NAME))
            yield from (
                [f"{path}.{name}: unknown field"]
                if known is None
                else _compare(child, known, f"{path}.{name}")
            )


def _templates(value: Any, shape: Shape) -> Iterator[JsonObject]:
    if shape is POD:
        yield value
    elif isinstance(shape, list):
        for entry in value:
            yield from _templates(entry, shape[0])
    elif isinstance(shape, dict):
        for name, child in value.items():
            yield from _templates(child, shape.get(name, shape.get(ANY_NAME)))

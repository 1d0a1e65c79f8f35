"""What controllers would make of an object: pods from pod templates, and the claim templates of a
ComputeDomain.

A stand-in of as little as the examples need: which template, how many pods, what they are called, and the
index that an Indexed Job tells. Nothing is restarted, owned or told apart by status.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

JsonObject = dict[str, Any]


def make_pods(objects: Sequence[JsonObject]) -> list[JsonObject]:
    """The pods of all objects, in their order; of a kind without pods none."""
    return [
        pod for item in objects if item["kind"] in _MAKERS for pod in _MAKERS[item["kind"]](item, objects)
    ]


def make_templates(objects: Sequence[JsonObject]) -> list[JsonObject]:
    """The ResourceClaimTemplates that NVIDIA's controller makes, one for each ComputeDomain.

    Source: kubernetes-sigs/dra-driver-nvidia-gpu, ``cmd/compute-domain-controller/resourceclaimtemplate.go``.
    """
    return [_channel_template(item) for item in objects if item["kind"] == "ComputeDomain"]


def _channel_template(domain: JsonObject) -> JsonObject:
    channel = domain["spec"]["channel"]
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": "5b0c3c3e-0d4c-4a55-9c5a-2f4b6a1d7e90",  # its UID
        "allocationMode": channel.get("allocationMode", "Single"),
    }
    opaque = {"driver": "compute-domain.nvidia.com", "parameters": parameters}
    request = {
        "name": "channel",
        "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
    }
    devices = {"requests": [request], "config": [{"requests": ["channel"], "opaque": opaque}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": channel["resourceClaimTemplate"]["name"]},
        "spec": {"spec": {"devices": devices}},
    }


def _pod(name: str, template: JsonObject, **environment: str) -> JsonObject:
    template = copy.deepcopy(template)
    metadata = {**template.get("metadata", {}), "name": name}
    for container in template["spec"]["containers"]:
        told = [{"name": key, "value": value} for key, value in environment.items()]
        container["env"] = [*container.get("env", ()), *told]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _of_pod(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    yield item


def _of_replicas(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    for index in range(item["spec"].get("replicas", 1)):
        yield _pod(f"{item['metadata']['name']}-{index}", item["spec"]["template"])


def _of_job(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Also of a suspended one: that its queue lets it go is not played."""
    yield from _job_pods(item["metadata"]["name"], item["spec"])


def _job_pods(name: str, spec: JsonObject, count: int = 0) -> Iterator[JsonObject]:
    count = count or min(spec.get("parallelism", 1), spec.get("completions", 1))
    for index in range(count):
        told = {"JOB_COMPLETION_INDEX": str(index)} if spec.get("completionMode") == "Indexed" else {}
        yield _pod(f"{name}-{index}", spec["template"], **told)


def _of_job_set(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    yield from _replicated_jobs(item["metadata"]["name"], item["spec"])


def _replicated_jobs(name: str, spec: JsonObject, trainers: int = 0) -> Iterator[JsonObject]:
    for job in spec["replicatedJobs"]:
        is_trainer = _TRAINER.items() <= job["template"].get("metadata", {}).get("labels", {}).items()
        for index in range(job.get("replicas", 1)):
            count = trainers if is_trainer else 0
            yield from _job_pods(f"{name}-{job['name']}-{index}", job["template"]["spec"], count)


_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def _of_train_job(item: JsonObject, objects: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The JobSet of its runtime, which is in the same file."""
    wanted = item["spec"]["runtimeRef"]
    runtime = next(
        o for o in objects if (o["kind"], o["metadata"]["name"]) == (wanted["kind"], wanted["name"])
    )
    nodes = item["spec"]["trainer"].get("numNodes") or runtime["spec"]["mlPolicy"]["numNodes"]
    yield from _replicated_jobs(item["metadata"]["name"], runtime["spec"]["template"]["spec"], nodes)


def _of_leader_worker_set(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    name, template = item["metadata"]["name"], item["spec"]["leaderWorkerTemplate"]
    for group in range(item["spec"].get("replicas", 1)):
        yield _pod(f"{name}-{group}", template.get("leaderTemplate", template["workerTemplate"]))
        for worker in range(1, template.get("size", 1)):
            yield _pod(f"{name}-{group}-{worker}", template["workerTemplate"])


def _of_roles(field: str) -> Callable[[JsonObject, Sequence[JsonObject]], Iterator[JsonObject]]:
    """Of Kubeflow's jobs: a spec for each role."""

    def make(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
        for role, spec in item["spec"][field].items():
            for index in range(spec.get("replicas", 1)):
                yield _pod(f"{item['metadata']['name']}-{role.lower()}-{index}", spec["template"])

    return make


def _of_ray_cluster(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    yield from _ray_pods(item["metadata"]["name"], item["spec"])


def _of_ray_job(item: JsonObject, _: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Without the pod that submits the job, which has no claim."""
    yield from _ray_pods(item["metadata"]["name"], item["spec"]["rayClusterSpec"])


def _ray_pods(name: str, spec: JsonObject) -> Iterator[JsonObject]:
    yield _pod(f"{name}-head", spec["headGroupSpec"]["template"])
    for group in spec["workerGroupSpecs"]:
        for index in range(group.get("replicas", 1)):
            yield _pod(f"{name}-{group['groupName']}-{index}", group["template"])


_MAKERS: Mapping[str, Callable[[JsonObject, Sequence[JsonObject]], Iterator[JsonObject]]] = {
    "Pod": _of_pod,
    "Deployment": _of_replicas,
    "Job": _of_job,
    "JobSet": _of_job_set,
    "TrainJob": _of_train_job,
    "LeaderWorkerSet": _of_leader_worker_set,
    "MPIJob": _of_roles("mpiReplicaSpecs"),
    "PyTorchJob": _of_roles("pytorchReplicaSpecs"),
    "RayCluster": _of_ray_cluster,
    "RayJob": _of_ray_job,
}

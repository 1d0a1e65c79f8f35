"""What an example says twice agrees: to its programs, to its operator, and to the cluster.

No program of an example is started here, so a name or a number in a command line would go wrong unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dranet.model.claim import CONFIG_NAME
from dranet.model.claim import FOLDER as CONTAINER_FOLDER
from tests.examples.controllers import make_pods
from tests.examples.table import FOLDER

JsonObject = dict[str, Any]

GPU_CLASSES = ("dranet-gpu", "gpu.nvidia.com")


def read(file: str) -> list[JsonObject]:
    return [item for item in yaml.safe_load_all((FOLDER / file).read_text()) if item]


def one(file: str, kind: str) -> JsonObject:
    (item,) = (item for item in read(file) if item["kind"] == kind)
    return item


def workers(file: str) -> list[JsonObject]:
    """Its pods that have a claim."""
    return [pod for pod in make_pods(read(file)) if pod["spec"].get("resourceClaims")]


def gpus_of_a_worker(file: str) -> int:
    requests = one(file, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"]
    asked = [request["exactly"] for request in requests]
    return sum(one.get("count", 1) for one in asked if one["deviceClassName"] in GPU_CLASSES)


def said(file: str, *options: str) -> Iterator[int]:
    """The numbers behind these words, wherever they stand."""
    text = (FOLDER / file).read_text().partition("\napiVersion")[2]
    for option in options:
        found = re.findall(rf'{option}["\s:=-]+(\d+)', text)
        yield from map(int, found)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("pytorch-ddp-job.yaml", ("--nnodes", "completions", "parallelism")),
        ("jobset.yaml", ("--nnodes", "completions", "parallelism")),
        ("nccl-tests.yaml", ("- -np",)),
        ("kubeflow-trainjob.yaml", (r"trainer:\n    numNodes",)),
    ],
)
def test_the_number_of_processes_is_that_of_the_pods_with_devices(
    file: str, options: tuple[str, ...]
) -> None:
    numbers = list(said(file, *options))
    assert len(numbers) == len(options)
    assert set(numbers) == {len(workers(file))}


@pytest.mark.parametrize(
    ("file", "option"),
    [
        ("pytorch-ddp-job.yaml", "--nproc-per-node"),
        ("jobset.yaml", "--nproc-per-node"),
        ("kubeflow-trainjob.yaml", "numProcPerNode"),
        ("kubeflow-pytorchjob.yaml", "nprocPerNode"),
        ("nccl-tests.yaml", "slotsPerWorker"),
        ("mpi-operator.yaml", "slotsPerWorker"),
        ("kuberay-raycluster.yaml", "num-gpus"),
        ("kuberay-rayjob.yaml", "num-gpus"),
    ],
)
def test_an_operator_is_told_of_the_gpus_of_a_claim_which_it_does_not_count(file: str, option: str) -> None:
    assert list(said(file, option)) == [gpus_of_a_worker(file)]


def test_mpirun_starts_a_rank_for_each_gpu() -> None:
    (ranks,) = said("mpi-operator.yaml", "- -np")
    assert ranks == len(workers("mpi-operator.yaml")) * gpus_of_a_worker("mpi-operator.yaml")


def test_the_master_of_a_job_is_its_first_pod_by_the_name_that_its_service_gives() -> None:
    file = "pytorch-ddp-job.yaml"
    job, service = one(file, "Job"), one(file, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--master-addr={host} " in (FOLDER / file).read_text()


def test_the_master_of_a_job_set_is_its_first_pod_by_the_name_that_job_set_gives() -> None:
    """``JOBSET-JOB-INDEX-POD``, below a service that has the name of the JobSet."""
    file = "jobset.yaml"
    name = one(file, "JobSet")["metadata"]["name"]
    host = f"{workers(file)[0]['metadata']['name']}.{name}"
    assert f"--master-addr={host} " in (FOLDER / file).read_text()


def test_the_training_operator_finds_its_container() -> None:
    roles = one("kubeflow-pytorchjob.yaml", "PyTorchJob")["spec"]["pytorchReplicaSpecs"].values()
    names = [[c["name"] for c in role["template"]["spec"]["containers"]] for role in roles]
    assert names == [["pytorch"], ["pytorch"]]


def test_mpirun_hands_on_the_file_that_the_driver_mounts() -> None:
    path = f"{CONTAINER_FOLDER}/{CONFIG_NAME}"
    assert f"- NCCL_CONF_FILE={path}\n" in (FOLDER / "mpi-operator.yaml").read_text()


def test_kueue_counts_the_classes_of_the_claim_by_names_that_have_a_quota() -> None:
    file = "kueue.yaml"
    head = (FOLDER / file).read_text().partition("\napiVersion")[0]
    lines = [line.removeprefix("#").removeprefix("   ") for line in head.splitlines()]
    start = next(n for n, line in enumerate(lines) if line.strip() == "resources:")
    told = "\n".join(line for line in lines[start : start + 6])
    mappings = yaml.safe_load(told)["resources"]["deviceClassMappings"]
    counted = {name: entry["name"] for entry in mappings for name in entry["deviceClassNames"]}

    requests = one(file, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"]
    needed = {counted[r["exactly"]["deviceClassName"]]: r["exactly"]["count"] for r in requests}
    (group,) = one(file, "ClusterQueue")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    quotas = {entry["name"]: entry["nominalQuota"] for entry in flavor["resources"]}
    assert list(needed) == list(quotas) == group["coveredResources"]
    assert all(quotas[name] >= count for name, count in needed.items())
    assert flavor["name"] == one(file, "ResourceFlavor")["metadata"]["name"]
    queue = one(file, "LocalQueue")
    assert queue["spec"]["clusterQueue"] == one(file, "ClusterQueue")["metadata"]["name"]
    assert one(file, "Job")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": queue["metadata"]["name"]}

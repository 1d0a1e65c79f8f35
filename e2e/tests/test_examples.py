"""The examples with public images start unchanged, except for what this cluster lacks.

It has no such images, no operators (the test makes the pods that they would make) and no second node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dranet.cluster.client import ApiClient
from e2e.objects import collection
from e2e.tests.pods import PodMaker, fit_pod, lower_memlock
from tests.examples.controllers import make_pods

_FOLDER = Path(__file__).parents[2] / "examples"
_CREATED = ("ConfigMap", "ResourceClaimTemplate")


@pytest.mark.parametrize(
    ("file", "links"),
    [("nccl-tests.yaml", 1), ("pytorch-ddp-job.yaml", 1), ("perftest.yaml", 1), ("mpi-operator.yaml", 8)],
)
async def test_every_pod_of_the_example_starts_with_its_nics(
    file: str, links: int, pods: PodMaker, api: ApiClient
) -> None:
    objects = [item for item in yaml.safe_load_all((_FOLDER / file).read_text()) if item]
    for item in objects:
        if item["kind"] in _CREATED:
            await api.create(
                collection(item["apiVersion"], item["kind"], pods.namespace), lower_memlock(item)
            )
    for pod in make_pods(objects):
        name = pod["metadata"]["name"]
        await pods.create(fit_pod(pod, pods.image))
        running = await pods.wait_ready(name)
        has_claim = bool(pod["spec"].get("resourceClaims"))
        assert len(await pods.list_links(running)) == (links if has_claim else 0), name
        await pods.delete(name)

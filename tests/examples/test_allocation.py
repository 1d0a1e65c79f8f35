"""Examples on machines that the testbed does not have, and on several nodes, as far as the allocation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import yaml

from dranet.desk.allocation.allocator import (
    ClusterDevices,
    Node,
    Unschedulable,
    allocate,
    read_devices_in_use,
)
from dranet.model.facts import Distance
from tests.data.gpu_drivers import COMPUTE_DOMAIN, compute_domain_slice, device_classes
from tests.desk.templates.distances import distances_of
from tests.desk.templates.layout_clusters import World, world
from tests.examples.controllers import make_pods, make_templates
from tests.examples.table import ALLOCATIONS, CLASSES, FOLDER, Allocation

JsonObject = dict[str, Any]
MANY = 20


def read(file: str) -> list[JsonObject]:
    return [item for item in yaml.safe_load_all((FOLDER / file).read_text()) if item]


class Cluster:
    """Nodes of one layout, filled pod by pod."""

    def __init__(self, example: Allocation) -> None:
        self.objects = read(example.file)
        names = [f"node-{number}" for number in range(example.nodes)]
        self.nodes = [world(example.layout, example.gpus, name, example.has_lists) for name in names]
        self.slices = [body for node in self.nodes for body in node.slices]
        self.slices += map(compute_domain_slice, names)
        here = [*read(str(CLASSES)), *device_classes(), *self.objects]
        self.classes = {item["metadata"]["name"]: item for item in here if item["kind"] == "DeviceClass"}
        templates = [*self.objects, *make_templates(self.objects)]
        self.templates = {
            item["metadata"]["name"]: item for item in templates if item["kind"] == "ResourceClaimTemplate"
        }
        self.claims: list[JsonObject] = []

    def pods(self) -> Iterator[tuple[World, list[JsonObject]]]:
        """The node and the results of each pod that has room; the example's pods again and again."""
        for pod in islice(cycle(make_pods(self.objects)), MANY):
            placed = self._place([self.templates[name] for name in templates_of(pod)])
            if placed is None:
                return
            yield placed

    def _place(self, templates: list[JsonObject]) -> tuple[World, list[JsonObject]] | None:
        claims = [
            {"metadata": {"namespace": "n", "name": f"{number}"}, "spec": template["spec"]["spec"]}
            for number, template in enumerate(templates)
        ]
        devices = ClusterDevices(self.slices, self.classes, read_devices_in_use(self.claims))
        for node in self.nodes:
            try:
                allocations = allocate(claims, Node(node.node, {}), devices)
            except Unschedulable:
                continue
            self.claims += [
                {**claim, "status": {"allocation": allocation}}
                for claim, allocation in zip(claims, allocations, strict=True)
            ]
            return node, [result for one in allocations for result in one["devices"]["results"]]
        return None


def templates_of(pod: JsonObject) -> list[str]:
    return [entry["resourceClaimTemplateName"] for entry in pod["spec"]["resourceClaims"]]


@pytest.mark.parametrize("example", ALLOCATIONS, ids=lambda example: f"{example.file} {example.layout}")
def test_each_pod_that_has_room_gets_devices_at_the_distance_of_the_table(example: Allocation) -> None:
    found = [set(distances_of(devices_of(node, results), node)) for node, results in Cluster(example).pods()]
    assert found == [{Distance[example.distance]}] * example.pods


def devices_of(node: World, results: list[JsonObject]) -> list[Any]:
    return node.devices(one["device"] for one in results if one["driver"] != COMPUTE_DOMAIN)


def test_a_compute_domain_has_one_pod_on_each_node_with_its_channel() -> None:
    (example,) = (
        one for one in ALLOCATIONS if (one.file, one.layout) == ("gb200-compute-domain.yaml", "gb200-nvl72")
    )
    cluster = Cluster(example)
    found = [
        (node.node, [one["pool"] for one in results if one["device"] == "channel-0"])
        for node, results in cluster.pods()
    ]
    assert found == [("node-0", ["node-0"]), ("node-1", ["node-1"])]

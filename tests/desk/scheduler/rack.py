"""The job of ``examples/gb200-compute-domain.yaml`` on a real scheduler: two racks of two GB200 trays.

A pod of the job more than a rack has trays must wait, although the other rack is free: a pod affinity keeps
the job in one NVLink domain, and a tray has the channel and the GPUs of one pod. A pod with a channel alone
finds none on a tray of the job. Prints a line for each pod.

Exit codes: 0 it is so; 1 it is not; 3 this machine lacks what is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import yaml

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.model.facts import Distance
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from tests.data.gpu_drivers import COMPUTE_DOMAIN, compute_domain_slice, device_classes
from tests.desk.scheduler.cases import NAMESPACE, Json
from tests.desk.scheduler.layouts import build_node, instantiate
from tests.desk.scheduler.settings import SETTINGS, Setting, open_scheduler
from tests.desk.scheduler.submission import prepare
from tests.desk.templates.distances import distances_of
from tests.desk.templates.layout_clusters import Gpus, world
from tests.examples.controllers import make_pods, make_templates
from tests.examples.table import CLASSES, FOLDER
from tests.support.waiting import until

FAILED, CANNOT_RUN_HERE = 1, 3
RACKS = {"a": ("a-0", "a-1"), "b": ("b-0", "b-1")}
CLIQUE = "nvidia.com/gpu.clique"
_LAYOUT = "gb200-nvl72"


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with a node."""

    pod: str
    node: str
    devices: tuple[tuple[str, str], ...]
    """Driver and device."""

    @property
    def rack(self) -> str:
        return self.node.partition("-")[0]

    @property
    def channels(self) -> list[str]:
        return [device for driver, device in self.devices if driver == COMPUTE_DOMAIN]

    @property
    def distances(self) -> set[Distance | None]:
        machine = world(_LAYOUT, Gpus.VENDOR, self.node)
        names = [device for driver, device in self.devices if driver != COMPUTE_DOMAIN]
        return set(distances_of(machine.devices(names), machine))

    def __str__(self) -> str:
        words = sorted("unknown" if one is None else one.name for one in self.distances)
        return f"{self.pod} on {self.node}: {' '.join((*self.channels, *words))}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.desk.scheduler.rack", description=__doc__)
    parser.add_argument("--version", choices=sorted({s.version for s in SETTINGS}), default="1.37")
    version = parser.parse_args(arguments).version
    setting = next(s for s in SETTINGS if (s.version, s.name) == (version, "defaults"))
    try:
        kit = find_kit(build.print_progress, version)
        return run_isolated(lambda: asyncio.run(_run(kit, setting, Path(WORK_DIR))))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        sys.stdout.write(f"skipped: {missing}\n")
        return CANNOT_RUN_HERE


async def _run(kit: ControlPlaneKit, setting: Setting, folder: Path) -> int:
    """In the private tree."""
    objects = _read(FOLDER / "gb200-compute-domain.yaml")
    objects += make_templates(objects)
    first, second = make_pods(objects)
    async with open_scheduler(kit, setting, folder / f"{setting.slug}-rack") as api:
        await prepare(api)
        await _publish(api)
        placed = [await _place(api, pod, objects) for pod in (first, second)]
        spare = _named(first, "one-more"), _with_channel_alone(first, placed[0].node)
        refused = [await _refuse(api, pod, objects) for pod in spare]
    sys.stdout.write("".join(f"{one}\n" for one in (*placed, *refused)))
    return 0 if _is_as_expected(*placed) else FAILED


def _is_as_expected(first: Placed, second: Placed) -> bool:
    is_near = all(pod.distances == {Distance.NODE} for pod in (first, second))
    has_channels = all(pod.channels == ["channel-0"] for pod in (first, second))
    return first.rack == second.rack and first.node != second.node and is_near and has_channels


def _read(file: Path) -> list[Json]:
    return [item for item in yaml.safe_load_all(file.read_text()) if item]


async def _publish(api: ApiClient) -> None:
    for body in (*_read(CLASSES), *device_classes()):
        await api.create(paths.DEVICE_CLASSES, body)
    for rack, names in RACKS.items():
        for name in names:
            node = build_node(name)
            node["metadata"]["labels"][CLIQUE] = rack
            await api.create(paths.NODES, node)
            for body in (*world(_LAYOUT, Gpus.VENDOR, name).slices, compute_domain_slice(name)):
                await api.create(paths.RESOURCE_SLICES, body)


def _named(pod: Json, name: str) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


def _with_channel_alone(pod: Json, node: str) -> Json:
    """A pod for this tray, with nothing else."""
    alone = deepcopy(_named(pod, "channel-alone"))
    entries = alone["spec"]["resourceClaims"]
    alone["spec"]["resourceClaims"] = [entry for entry in entries if entry["name"] == "channel"]
    alone["spec"]["nodeSelector"] = {"machine": node}
    for container in alone["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": "channel"}]}
    return alone


async def _place(api: ApiClient, pod: Json, objects: Sequence[Json]) -> Placed:
    """Wait until the pod has a node."""
    name, claims = await _create(api, pod, objects)

    async def find_node() -> str:
        return str((await api.get(paths.pod(NAMESPACE, name)))["spec"].get("nodeName") or "")

    node = await until(find_node, f"pod {name} has a node")
    allocated = [await api.get(paths.resource_claim(NAMESPACE, claim)) for claim in claims]
    results = [one for claim in allocated for one in claim["status"]["allocation"]["devices"]["results"]]
    return Placed(name, node, tuple((one["driver"], one["device"]) for one in results))


async def _refuse(api: ApiClient, pod: Json, objects: Sequence[Json]) -> str:
    """Wait until the scheduler has found no node for the pod; return its message."""
    name, _ = await _create(api, pod, objects)

    async def find_message() -> str:
        status = (await api.get(paths.pod(NAMESPACE, name))).get("status") or {}
        refusals = [one for one in status.get("conditions") or () if one["status"] == "False"]
        return next((one["message"] for one in refusals if one["type"] == "PodScheduled"), "")

    return f"{name} waits: {await until(find_message, f'pod {name} has no node')}"


async def _create(api: ApiClient, pod: Json, objects: Sequence[Json]) -> tuple[str, list[str]]:
    """The pod with its claims, as Kubernetes makes them of templates; their names."""
    manifests = [*(item for item in objects if item["kind"] == "ResourceClaimTemplate"), pod]
    name = pod["metadata"]["name"]
    claims, made = instantiate(manifests, name, "")
    for body in claims:
        await api.create(paths.resource_claims(NAMESPACE), body)
    labels = {**made["metadata"], "labels": pod["metadata"].get("labels", {})}
    chosen = {"nodeSelector": pod["spec"].get("nodeSelector", {})}
    await api.create(paths.pods(NAMESPACE), {**made, "metadata": labels, "spec": {**made["spec"], **chosen}})
    return name, [body["metadata"]["name"] for body in claims]


if __name__ == "__main__":
    sys.exit(main())

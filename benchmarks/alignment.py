"""Jobs on nodes with a vendor's GPUs: how many pods get the nearest NIC, and what it costs the scheduler.

A real API server, controller manager and scheduler; no kubelet. Each pod claims a GPU and a NIC, by turns
with the claim of ``dranet claim new`` and with plain requests for the same classes. All pods are created at
once. It runs by itself, ``python -m benchmarks.alignment``, and prints figures of
``docs/dev/scheduler-jobs.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.scale import print_table
from benchmarks.scale_cluster.cluster import (
    FIELD_MANAGER,
    UNLIMITED,
    build_node,
    each,
    open_plane,
    start_controllers,
)
from benchmarks.scale_cluster.jobs import NAMESPACE, run_pods, wait_account, write_claim
from benchmarks.scale_cluster.phases import print_progress
from dranet.claims.alignment import best_possible, level, pair
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.slice_plan import Feature, build_pages, withhold
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import build_slices
from dranet.model.attributes import STANDARD_NUMA_NODE, STANDARD_PCI_BUS_ID
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance
from dranet.view.options import read_capture
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlane, ControlPlaneKit, find_kit
from e2e.installation import read_manifests
from e2e.objects import JsonObject, path_of
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated

CANNOT_RUN_HERE = 3
_DATA = Path(__file__).parents[1] / "tests/data"
_OUTPUT = Path(__file__).parent / "results/alignment.local.json"
_LOGS = Path(".cache/benchmarks/alignment").resolve()
_SEED = 24
_OTHERS = "others"
_NIC_DRIVER, _GPU_DRIVER = "dra.net", "gpu.nvidia.com"
_VENDORS_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": _GPU_DRIVER},
    "spec": {
        "selectors": [
            {
                "cel": {
                    "expression": f"device.driver == '{_GPU_DRIVER}' && "
                    f"device.attributes['{_GPU_DRIVER}'].type == 'gpu'"
                }
            }
        ]
    },
}
"""As NVIDIA's chart has it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster and a job."""

    title: str
    layouts: Sequence[str]
    """Each for an equal share of the nodes."""
    pods: int = 4
    """For each node."""
    devices: int = 1
    """GPUs and NICs of each pod."""
    has_numa: bool = False
    """The vendor's driver publishes the NUMA node of its GPUs, as NVIDIA's does from v0.5.0 on."""
    taken: float = 0.0
    """The share of GPUs and of NICs that others have, each chosen at random; then the job has as many pods as
    fit with pairs at the best distance alone."""


SCENES = (
    Scene("azure-gb300", ("azure-gb300",)),
    Scene("oci-gb200", ("oci-gb200",)),
    Scene("dgx-h100", ("dgx-h100",)),
    Scene("azure-gb300 and azure-nd-h100-v5", ("azure-gb300", "azure-nd-h100-v5")),
    Scene("azure-gb300, half of all GPUs and NICs taken at random", ("azure-gb300",), taken=0.5),
    Scene("azure-nd-h100-v5, 4 GPUs and 4 NICs", ("azure-nd-h100-v5",), pods=2, devices=4),
    Scene("azure-nd-h100-v5, 2 and 2, half taken", ("azure-nd-h100-v5",), devices=2, taken=0.5),
    Scene("oci-gb200, GPUs with NUMA nodes", ("oci-gb200",), has_numa=True),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A layout: what its node publishes, and the true places of the devices by their names."""

    slices: Sequence[JsonObject]
    gpus: Mapping[str, Device]
    nics: Mapping[str, Device]

    def build_slices(self, node: str) -> Iterator[JsonObject]:
        """Those of a node. A vendor's driver lists its GPUs in random order."""
        for number, entry in enumerate(self.slices):
            pool, devices = {**entry["spec"]["pool"], "name": node}, entry["spec"]["devices"]
            if entry["spec"]["driver"] != _NIC_DRIVER:
                devices = random.Random(node).sample(devices, len(devices))
            spec = {**entry["spec"], "nodeName": node, "pool": pool, "devices": devices}
            yield {**entry, "metadata": {"name": f"{node}-{number}"}, "spec": spec}


def read_machine(layout: str, *, has_numa: bool = False) -> Machine:
    """NICs as the driver publishes them, GPUs as the vendor's DRA driver does."""
    facts = read_capture(str(_DATA / layout / "capture.json"), "capture").facts
    decisions = take_inventory(facts, {}, Policy())
    cards = {d.device.pci_address: d.device for d in decisions if d.device.kind is DeviceKind.GPU}
    nics = [d.device for d in decisions if d.published and d.device.kind is not DeviceKind.GPU]
    theirs = list(yaml.safe_load_all((_DATA / layout / "gpu-slices.yaml").read_text(encoding="utf-8")))
    published = [device for entry in theirs for device in entry["spec"]["devices"]]
    addresses = {d["name"]: d["attributes"][STANDARD_PCI_BUS_ID.qualified]["string"] for d in published}
    gpus = {name: cards[address] for name, address in addresses.items()}
    for device in published if has_numa else ():
        device["attributes"][STANDARD_NUMA_NODE.qualified] = {"int": gpus[device["name"]].numa_node}
    pages = [withhold(page, frozenset(Feature)) for page in build_pages(build_slices(nics))]
    ours = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "spec": {
                "driver": _NIC_DRIVER,
                "pool": {"name": "", "generation": 1, "resourceSliceCount": len(pages)},
                "devices": list(page),
            },
        }
        for page in pages
    ]
    return Machine([*ours, *theirs], gpus, {nic.name: nic for nic in nics})


Distances = tuple[Distance | None, ...]


@dataclass
class Cluster:
    """The nodes of a scene with what others have taken of them."""

    machines: Mapping[str, Machine]
    """By node."""
    taken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names of devices by node."""

    def find_best(self) -> Distances:
        """The distances of all pairs that the cluster can give at once, the nearest first."""
        every = (found for node in self.machines for found in self._find_best_of(node))
        return tuple(sorted(every, key=level))

    def count_best(self, devices: int) -> int:
        """How many pods with so many pairs fit at the best distance."""
        best = self.find_best()[0]
        return sum(self._find_best_of(node).count(best) // devices for node in self.machines)

    def _find_best_of(self, node: str) -> Distances:
        machine, taken = self.machines[node], self.taken.get(node, frozenset())
        gpus = [gpu for name, gpu in machine.gpus.items() if name not in taken]
        nics = [nic for name, nic in machine.nics.items() if name not in taken]
        return best_possible(nics, gpus, min(len(gpus), len(nics)))

    def measure(self, claims: Iterable[JsonObject]) -> Distances:
        """The distance of each NIC to a GPU of its pod, the nearest first."""
        results = [claim["status"]["allocation"]["devices"]["results"] for claim in claims]
        return tuple(sorted((found for one in results for found in self._measure(one)), key=level))

    def _measure(self, results: Sequence[JsonObject]) -> Distances:
        machine = self.machines[results[0]["pool"]]
        names = [result["device"] for result in results]
        nics = [machine.nics[name] for name in names if name in machine.nics]
        gpus = [machine.gpus[name] for name in names if name in machine.gpus]
        return pair(nics, gpus).distances


@dataclass(frozen=True, slots=True)
class Run:
    """One job, placed."""

    distances: Distances
    seconds: float
    scheduler: float
    """Processor time in seconds."""


@dataclass(frozen=True, slots=True)
class Result:
    """A scene with its jobs by turns."""

    scene: Scene
    form: str
    """How many alternatives and constraints the claim has."""
    possible: Distances
    aligned: Sequence[Run]
    plain: Sequence[Run]

    @property
    def pods(self) -> int:
        return len(self.possible) // self.scene.devices

    @property
    def share(self) -> float:
        """The part of the NICs that have the best possible distance, in the worst run."""
        return min(_share(run.distances, self.possible) for run in self.aligned)

    @property
    def ratio(self) -> float:
        """Seconds against those of the plain claim, the median of the pairs."""
        return statistics.median(a.seconds / b.seconds for a, b in zip(self.aligned, self.plain, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.scene.title,
            "pods": self.pods,
            "form": self.form,
            "possible": describe(self.possible),
            "aligned": [describe(run.distances) for run in self.aligned],
            "plain": [describe(run.distances) for run in self.plain],
            "share": round(self.share, 4),
            "ratio": round(self.ratio, 2),
            "seconds": [[round(run.seconds, 2) for run in runs] for runs in (self.aligned, self.plain)],
            "scheduler_seconds": [
                [round(run.scheduler, 1) for run in runs] for runs in (self.aligned, self.plain)
            ],
        }


def _share(got: Distances, possible: Distances) -> float:
    return sum(level(a) <= level(b) for a, b in zip(got, possible, strict=True)) / len(possible)


def describe(distances: Iterable[Distance | None]) -> str:
    """``500 NODE, 12 SYS``."""
    words = Counter("unknown" if found is None else found.name for found in distances)
    return ", ".join(f"{count} {word}" for word, count in words.items())


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        kit = find_kit(build.print_progress)
        return run_isolated(partial(_run, kit, options))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return CANNOT_RUN_HERE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignment", description=__doc__)
    parser.add_argument("--nodes", type=int, default=128, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="jobs with each claim, by turns")
    parser.add_argument("--scenes", type=int, nargs="+", metavar="N", help="their numbers; default: all")
    parser.add_argument("--output", type=Path, default=_OUTPUT, help="where the JSON goes")
    return parser.parse_args(arguments)


def _run(kit: ControlPlaneKit, options: argparse.Namespace) -> int:
    """Measure in the private tree, print, and write."""
    logging.getLogger("dranet.cluster").setLevel(logging.ERROR)  # our own watches end as well
    chosen = [SCENES[number] for number in options.scenes or range(len(SCENES))]
    results = [asyncio.run(measure(kit, scene, options.nodes, options.rounds)) for scene in chosen]
    version = kit.kubernetes.version
    print(f"Kubernetes {version}, {options.nodes} nodes, {options.rounds} rounds\n")
    print_results(results)
    written = {"version": version, "nodes": options.nodes, "scenes": [result.as_json() for result in results]}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(written, indent=2) + "\n")
    print(f"written to {options.output}")
    return 0


async def measure(kit: ControlPlaneKit, scene: Scene, nodes: int, rounds: int) -> Result:
    """Run a scene in a cluster of its own."""
    print_progress(f"{scene.title}: starting the control plane ...")
    folder = scene.title.replace(" ", "-").replace(",", "")
    async with open_plane(kit, WORK_DIR / folder, _LOGS / folder) as plane, plane.connect() as api:
        await api.create(paths.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await start_controllers(plane, *UNLIMITED)
        await wait_account(api)
        cluster = await _publish(api, scene, nodes)
        templates, spec = await _write_claims(plane, api, scene.devices)
        wanted = cluster.count_best(scene.devices) if scene.taken else scene.pods * nodes
        await run_pods(plane, api, _name_template(spec, "plain"), 1)  # the caches are full then
        runs: dict[str, list[Run]] = defaultdict(list)
        for number, (name, pod) in enumerate(
            [("aligned", spec), ("plain", _name_template(spec, "plain"))] * rounds
        ):
            print_progress(f"{scene.title}: a job of {wanted} pods, {name}, round {number // 2 + 1} ...")
            seconds, processor = await run_pods(plane, api, pod, wanted)
            distances = cluster.measure(await _list_claims(api))
            print_progress(f"  {seconds:.1f} s, {describe(distances)}")
            runs[name].append(Run(distances, seconds, processor["kube-scheduler"]))
        possible = cluster.find_best()[: wanted * scene.devices]
        return Result(scene, _describe_form(templates), possible, runs["aligned"], runs["plain"])


async def _publish(api: ApiClient, scene: Scene, nodes: int) -> Cluster:
    """Create nodes, slices, classes, and the claims of others."""
    names = [f"node-{number:03}" for number in range(nodes)]
    kinds = [read_machine(layout, has_numa=scene.has_numa) for layout in scene.layouts]
    machines = {name: kinds[number % len(kinds)] for number, name in enumerate(names)}
    cluster = Cluster(machines, _take(machines, scene.taken))
    for item in (*read_manifests("deviceclasses.yaml"), _VENDORS_CLASS):
        await api.apply(path_of(item), item, FIELD_MANAGER)
    await each(names, lambda name: api.create(paths.NODES, build_node(name)))
    slices = [body for name, machine in machines.items() for body in machine.build_slices(name)]
    bodies = {body["metadata"]["name"]: body for body in slices}
    await each(bodies, lambda name: api.create(paths.RESOURCE_SLICES, bodies[name]))
    await api.create(paths.NAMESPACES, {"metadata": {"name": _OTHERS}})
    await each(cluster.taken, lambda node: _hold(api, node, cluster))
    return cluster


def _take(machines: Mapping[str, Machine], share: float) -> dict[str, frozenset[str]]:
    """Choose so many GPUs and so many NICs of the whole cluster at random."""
    chance = random.Random(_SEED)
    taken: dict[str, set[str]] = defaultdict(set)
    for kind in ("gpus", "nics"):
        every = [(node, name) for node, machine in machines.items() for name in getattr(machine, kind)]
        for node, name in chance.sample(every, int(share * len(every))):
            taken[node].add(name)
    return {node: frozenset(names) for node, names in taken.items()}


async def _hold(api: ApiClient, node: str, cluster: Cluster) -> None:
    """Create a claim that has all that others have taken of a node."""
    machine = cluster.machines[node]
    results = [
        {"request": "nics" if name in machine.nics else "gpus", "pool": node, "device": name}
        | {"driver": _NIC_DRIVER if name in machine.nics else _GPU_DRIVER}
        for name in sorted(cluster.taken[node])
    ]
    requests = [
        {"name": name, "exactly": {"deviceClassName": _GPU_DRIVER, "allocationMode": "All"}}
        for name in ("nics", "gpus")
    ]
    body = {"metadata": {"name": f"others-{node}"}, "spec": {"devices": {"requests": requests}}}
    stored = await api.create(paths.resource_claims(_OTHERS), body)
    status = {"allocation": {"devices": {"results": results}}}
    await api.replace(paths.resource_claim_status(_OTHERS, f"others-{node}"), {**stored, "status": status})


async def _write_claims(plane: ControlPlane, api: ApiClient, devices: int) -> tuple[JsonObject, JsonObject]:
    """Create the template of ``claim new`` and a plain one; return the first, and the spec of its pod."""
    *others, pod = await write_claim(plane, ("--gpus", str(devices), "--nics", str(devices)))
    (template,) = [item for item in others if item["kind"] == "ResourceClaimTemplate"]
    plain = {
        **template,
        "metadata": {**template["metadata"], "name": "plain"},
        "spec": {"spec": _strip(template)},
    }
    for item in (*others, plain):
        await api.apply(path_of(item), item, FIELD_MANAGER)
    return template, pod["spec"]


def _strip(template: JsonObject) -> JsonObject:
    """The classes of the requests alone."""
    requests = []
    for request in template["spec"]["spec"]["devices"]["requests"]:
        option = request.get("exactly") or request["firstAvailable"][0]
        requests.append({"name": request["name"], "exactly": {"deviceClassName": option["deviceClassName"]}})
    return {"devices": {"requests": requests}}


def _name_template(spec: JsonObject, name: str) -> JsonObject:
    """The pod with another template."""
    (entry,) = spec["resourceClaims"]
    return {**spec, "resourceClaims": [{**entry, "resourceClaimTemplateName": name}]}


async def _list_claims(api: ApiClient) -> list[JsonObject]:
    """Those of the pods. A controller whose cache is behind makes one more now and then, without devices."""
    items = (await api.list(paths.resource_claims(NAMESPACE)))["items"]
    return [item for item in items if (item.get("status") or {}).get("allocation")]


def _describe_form(template: JsonObject) -> str:
    """``3 x 2 alternatives, pciBusID matched``: of a NIC and of a GPU."""
    devices = template["spec"]["spec"]["devices"]
    numbers = [len(request.get("firstAvailable", [request])) for request in devices["requests"]]
    names = {c["matchAttribute"].rpartition("/")[2] for c in devices.get("constraints", ())}
    return f"{' x '.join(map(str, numbers[:2]))} alternatives, {' and '.join(sorted(names))} matched"


def print_results(results: Sequence[Result]) -> None:
    header = ("nodes", "claim", "pods", "best possible", "pods got", "share of the best", "without alignment")
    print_table(header, [_row(result) for result in results])
    costs = ("nodes", "seconds", "without alignment", "ratio", "scheduler, s", "without alignment, s")
    print_table(costs, [_cost_row(result) for result in results])


def _row(result: Result) -> tuple[str, ...]:
    worst = min(result.aligned, key=lambda run: _share(run.distances, result.possible))
    return (
        result.scene.title,
        result.form,
        f"{result.pods}",
        describe(result.possible),
        describe(worst.distances),
        f"{100 * result.share:.1f} %",
        describe(result.plain[0].distances),
    )


def _cost_row(result: Result) -> tuple[str, ...]:
    columns = [
        " ".join(f"{getattr(run, name):.1f}" for run in runs)
        for name in ("seconds", "scheduler")
        for runs in (result.aligned, result.plain)
    ]
    return (result.scene.title, *columns[:2], f"{result.ratio:.2f}", *columns[2:])


if __name__ == "__main__":
    sys.exit(main())

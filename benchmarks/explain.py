"""``dranet explain`` of a claim of 8 requests over 100 nodes of 12 NICs and 8 GPUs: when it can be allocated
and when it cannot be, for one reason or another; and what the whole command takes with all of it in a file.

Every device of every node has a MAC address and GUIDs of its own, as real ones have: no two are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Series
from dranet.desk.cli.objects import capture_slices
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.subject import claim_subject
from dranet.settings import Settings

CAPTURE = Path(__file__).parents[1] / "tests/data/dgx-h100/capture.json"
NODES = 100
RUNS = 9
BOUND_MS = 1000.0

_GPU = 'device.driver == "dra.net" && device.attributes["dra.net"].type == "gpu"'
_NIC = 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'
_ROOT = "resource.kubernetes.io/pcieRoot"
_OWN = ("mac", "rdmaNodeGuid", "rdmaPortGuid", "uuid")

Json = dict[str, Any]


def run() -> Iterator[Result]:
    """Each kind of answer in this process, then the slowest one as a command."""
    nodes, slices = make_nodes(NODES)
    for name, (claim, others) in make_cases(slices).items():
        world = ClusterView(slices, make_classes(), [claim, *others], nodes)
        title = f"explain 8 requests on {NODES} nodes: {name}"
        yield Result(title, Series(title, tuple(_time(claim, world) for _ in range(RUNS))), bound=BOUND_MS)
    yield _time_command(nodes, slices)


def _time(claim: Json, world: ClusterView) -> float:
    """Processor time of a calculation in one thread; other processes do not count."""
    started = time.process_time()
    explain(claim_subject(claim), ClusterView(world.slices, world.classes, world.claims, world.nodes))
    return (time.process_time() - started) * 1000


def _time_command(nodes: list[Json], slices: list[Json]) -> Result:
    claim, others = make_cases(slices)["devices in use"]
    items = [*nodes, *slices, *make_classes(), claim, *others]
    title = "the same as a command: start, a file of 3 MB in JSON, text"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        samples = []
        for _ in range(3):
            started = time.perf_counter()
            command = (sys.executable, "-m", "dranet", "explain", "claim", "ranks", "-f", str(file))
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            samples.append((time.perf_counter() - started) * 1000)
    return Result(title, Series(title, tuple(samples)))


def make_nodes(number: int) -> tuple[list[Json], list[Json]]:
    """Nodes and slices of so many machines."""
    found = capture_slices([CAPTURE] * number, Settings())
    for index, entry in enumerate(found.slices):
        for place, device in enumerate(entry["spec"]["devices"]):
            for name, value in device["attributes"].items():
                if name.rpartition("/")[2] in _OWN and "string" in value:
                    value["string"] = f"{value['string']}-{index}-{place}"
    return found.nodes, found.slices


def make_classes() -> list[Json]:
    return [_class("gpu", _GPU), _class("nic", _NIC)]


def _class(name: str, expression: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def make_cases(slices: list[Json]) -> dict[str, tuple[Json, list[Json]]]:
    """By name: a claim of four pairs, each under one root, and the claims of others."""
    pairs = make_claim()
    apart = make_claim({"matchAttribute": _ROOT})
    picky = make_claim(selector='device.attributes["dra.net"].?mtu.orValue(0) > 20000')
    return {
        "can be allocated": (pairs, []),
        "devices in use": (pairs, [_take_gpus(entry) for entry in slices]),
        "a constraint that cannot be met": (apart, []),
        "a selector that matches nothing": (picky, []),
    }


def make_claim(*constraints: Json, selector: str = "true") -> Json:
    """Every request has a selector of its own text, so that nothing is evaluated for two of them at once."""
    requests, own = [], []
    for rank in range(4):
        for kind in ("gpu", "nic"):
            wanted = selector if (rank, kind) == (3, "nic") else "true"
            expression = f'{rank} >= 0 && device.attributes["dra.net"].numaNode >= 0 && {wanted}'
            exactly = {"deviceClassName": kind, "selectors": [{"cel": {"expression": expression}}]}
            requests.append({"name": f"{kind}-{rank}", "exactly": exactly})
        own.append({"matchAttribute": _ROOT, "requests": [f"gpu-{rank}", f"nic-{rank}"]})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "ranks", "namespace": "team-a"},
        "spec": {"devices": {"requests": requests, "constraints": [*own, *constraints]}},
    }


def _take_gpus(entry: Json) -> Json:
    """A claim that has five of the eight GPUs of a node."""
    node = entry["spec"]["nodeName"]
    gpus = [device["name"] for device in entry["spec"]["devices"] if device["name"].startswith("gpu")][:5]
    results = [{"request": "gpu", "driver": "dra.net", "pool": node, "device": gpu} for gpu in gpus]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"other-{node}", "namespace": "team-b"},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": results}}},
    }

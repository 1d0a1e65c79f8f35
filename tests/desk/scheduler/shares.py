"""Pods that share a NIC by bandwidth, and how many of them wait although all fit.

While a scheduler writes an allocation, it counts its amount twice: once as being written, once as
written. A pod that is tried meanwhile may find too little left. No event brings it back, and the scheduler
tries it again after five minutes.

Exit codes: 0 the pods were created and counted; 3 this machine lacks what is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from tests.desk.scheduler.cases import EVERYTHING, NAMESPACE, Json
from tests.desk.scheduler.settings import SETTINGS, open_scheduler
from tests.desk.scheduler.submission import prepare

CANNOT_RUN_HERE = 3
_BANDWIDTH = "dra.net/bandwidth"
_AMOUNTS = ("6G", *["100M"] * 25)
"""Of the pods of a node: 8.5 of its 10 Gbit/s."""
_SOON, _RETRIED = 10.0, 330.0
"""Seconds after the last pod."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.desk.scheduler.shares", description=__doc__)
    parser.add_argument("--version", choices=("1.36", "1.37"), default="1.37")
    parser.add_argument("--nodes", type=int, default=40, metavar="N")
    options = parser.parse_args(arguments)
    try:
        kit = find_kit(build.print_progress, options.version)
        return run_isolated(lambda: asyncio.run(_run(kit, options.version, options.nodes)))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        sys.stdout.write(f"skipped: {missing}\n")
        return CANNOT_RUN_HERE


async def _run(kit: ControlPlaneKit, version: str, nodes: int) -> int:
    setting = next(s for s in SETTINGS if (s.version, s.name) == (version, "defaults"))
    async with open_scheduler(kit, setting, WORK_DIR / "shares") as api:
        await prepare(api)
        await _give_nodes(api, nodes)
        for number in range(nodes):
            for name in _names(number):
                await api.create(paths.pods(NAMESPACE), _build_pod(name, f"node-{number}"))
        for seconds in (_SOON, _RETRIED - _SOON):
            await asyncio.sleep(seconds)
            pods = (await api.list(paths.pods(NAMESPACE)))["items"]
            waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
            sys.stdout.write(f"{len(waiting)} of {len(pods)} pods wait\n")
            sys.stdout.flush()
    return 0


async def _give_nodes(api: ApiClient, nodes: int) -> None:
    """Nodes with a shared NIC each, and the claims of their pods."""
    selector = {"cel": {"expression": 'device.driver == "dra.net"'}}
    await api.create(
        paths.DEVICE_CLASSES, {"metadata": {"name": "shared"}, "spec": {"selectors": [selector]}}
    )
    for number in range(nodes):
        name = f"node-{number}"
        room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
        metadata = {"name": name, "labels": {"node": name}}
        await api.create(paths.NODES, {"metadata": metadata, "status": {"allocatable": room}})
        await api.create(paths.RESOURCE_SLICES, _build_slice(name))
        for claim, amount in zip(_names(number), _AMOUNTS, strict=True):
            await api.create(paths.resource_claims(NAMESPACE), _build_claim(claim, amount))


def _names(node: int) -> list[str]:
    return [f"share-{node}-{number}" for number in range(len(_AMOUNTS))]


def _build_slice(node: str) -> Json:
    capacity = {_BANDWIDTH: {"value": "10G", "requestPolicy": {"default": "1G"}}}
    device = {"name": "nic", "allowMultipleAllocations": True, "capacity": capacity}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "dra.net", "nodeName": node, "pool": pool, "devices": [device]}
    return {"metadata": {"name": node}, "spec": spec}


def _build_claim(name: str, amount: str) -> Json:
    exactly = {"deviceClassName": "shared", "capacity": {"requests": {_BANDWIDTH: amount}}}
    devices = {"requests": [{"name": "nic", "exactly": exactly}]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"devices": devices}}


def _build_pod(name: str, node: str) -> Json:
    spec = {
        "nodeSelector": {"node": node},
        "tolerations": [EVERYTHING],
        "containers": [{"name": "c", "image": "none"}],
        "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
    }
    return {"metadata": {"name": name}, "spec": spec}


if __name__ == "__main__":
    sys.exit(main())

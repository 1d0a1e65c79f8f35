"""``dranet installed``: does this installation work? The test of the Helm chart (``helm test``) runs it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject, fetch_snapshot
from dranet.cluster.pods import is_ready
from dranet.health import TAINT_KEYS
from dranet.terminal import count_of, printable

EXIT_PROBLEM = 1

_PAUSE_SECONDS = 2.0

_DESCRIPTION = """\
Check an installation from inside the cluster: each DaemonSet is ready on the
nodes that it selects, and each of these nodes publishes its devices. Wait for
it, then print what was found. The exit code is 1 if there is a problem. It
needs the right to get the DaemonSets, and to list pods and ResourceSlices.
"""

_EPILOG = """\
The test pod of the Helm chart runs it:
dranet installed --namespace dranet-system dranet
"""


class Found(Struct, frozen=True):
    """``good``, ``problems`` and ``notes`` are lines to print."""

    good: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


class Driver(Struct, frozen=True):
    """A DaemonSet with its pods."""

    daemonset: JsonObject
    pods: Sequence[JsonObject]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "installed",
        help="exit with 0 if the driver is ready on its nodes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "daemonsets", metavar="DAEMONSET", nargs="+", help="name of a DaemonSet of the driver"
    )
    parser.add_argument("--namespace", required=True, metavar="NAME", help="the namespace of the DaemonSets")
    parser.add_argument("--driver-name", default="dra.net", metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="how long to wait (%(default)g)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = asyncio.run(wait_until_installed(ApiClient.from_in_cluster(), options))
    for line in (*found.good, *found.notes):
        print(line)
    for line in found.problems:
        print(line, file=sys.stderr)
    return EXIT_PROBLEM if found.problems else 0


async def wait_until_installed(opened: ApiClient, options: argparse.Namespace) -> Found:
    """Look again until there is no problem, or the time is over."""
    end = time.monotonic() + options.timeout
    async with opened as client:
        while True:
            found = await _look(client, options)
            if not found.problems or time.monotonic() >= end:
                return found
            await asyncio.sleep(_PAUSE_SECONDS)


async def _look(client: ApiClient, options: argparse.Namespace) -> Found:
    drivers = [await _fetch_driver(client, options.namespace, name) for name in options.daemonsets]
    selector = f"spec.driver={options.driver_name}"
    slices = (await fetch_snapshot(client, paths.RESOURCE_SLICES, field_selector=selector)).items
    return judge(options.driver_name, drivers, slices)


async def _fetch_driver(client: ApiClient, namespace: str, name: str) -> Driver:
    daemonset = await client.get(paths.daemon_set(namespace, name))
    labels = ",".join(f"{key}={value}" for key, value in daemonset["spec"]["selector"]["matchLabels"].items())
    pods = (await fetch_snapshot(client, paths.pods(namespace), label_selector=labels)).items
    return Driver(daemonset, pods)


def judge(driver_name: str, drivers: Sequence[Driver], slices: Sequence[JsonObject]) -> Found:
    """Return what works and what does not."""
    unready = tuple(line for driver in drivers for line in _judge_daemonset(driver))
    nodes = sorted({_node(pod) for driver in drivers for pod in driver.pods if is_ready(pod)})
    devices: Counter[str] = Counter()
    for one in slices:
        devices[one["spec"].get("nodeName", "")] += len(one["spec"].get("devices") or ())
    silent = [node for node in nodes if node not in devices]
    missing = [
        f"problem: node {node} has a ready driver and no ResourceSlice of {driver_name}" for node in silent
    ]
    if missing:
        missing.append("  fix: look for a refusal of the API server in the log of the node's driver")
    good = [] if unready else [_describe(driver) for driver in drivers]
    if nodes and not silent:
        total = sum(devices[node] for node in nodes)
        good.append(f"ok: {count_of(total, 'device')} of {driver_name} on {count_of(len(nodes), 'node')}")
    notes = [
        f"note: node {node} publishes no device; `dranet devices` in its pod has the reasons"
        for node in nodes
        if node in devices and not devices[node]
    ]
    return Found(tuple(good), (*unready, *missing), (*notes, *_note_faults(slices)))


def _judge_daemonset(driver: Driver) -> Iterator[str]:
    status = driver.daemonset.get("status") or {}
    name, namespace = driver.daemonset["metadata"]["name"], driver.daemonset["metadata"]["namespace"]
    wanted = status.get("desiredNumberScheduled", 0)
    current = _count_current(driver)
    is_seen = status.get("observedGeneration", 0) >= driver.daemonset["metadata"].get("generation", 0)
    if is_seen and not wanted:
        yield f"problem: DaemonSet {name} selects no node"
        yield "  fix: compare nodeSelector, affinity and tolerations with `kubectl get nodes --show-labels`"
    elif not is_seen or current < wanted:
        version = "the new version of " if current < status.get("numberReady", 0) else ""
        yield f"problem: {version}DaemonSet {name} is ready on {current} of {count_of(wanted, 'node')}"
        yield from (line for pod in driver.pods for line in _explain_pod(pod))
        yield f"  fix: read `kubectl -n {namespace} describe pod POD`, and the log of the pod"


def _count_current(driver: Driver) -> int:
    """Nodes with a ready pod of this version."""
    status = driver.daemonset.get("status") or {}
    by_hand = driver.daemonset["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
    counts = ["numberReady"] if by_hand else ["numberReady", "updatedNumberScheduled"]
    return min(int(status.get(name, 0)) for name in counts)


def _describe(driver: Driver) -> str:
    wanted = driver.daemonset["status"]["desiredNumberScheduled"]
    return f"ok: DaemonSet {driver.daemonset['metadata']['name']} is ready on {count_of(wanted, 'node')}"


def _explain_pod(pod: JsonObject) -> Iterator[str]:
    """Why a pod is not ready, as the kubelet and the scheduler report it."""
    if is_ready(pod):
        return
    place = f"  pod {pod['metadata']['name']} on node {_node(pod) or 'none yet'}"
    status = pod.get("status") or {}
    reasons = list(_iter_reasons(status))
    if not reasons:
        yield f"{place}: not ready ({status.get('phase', 'Unknown')})"
    for reason in reasons:
        yield f"{place}: {printable(reason)}"


def _iter_reasons(status: JsonObject) -> Iterator[str]:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting: JsonObject = container.get("state", {}).get("waiting") or {}
        ended: JsonObject = container.get("lastState", {}).get("terminated") or {}
        if waiting.get("reason", "PodInitializing") != "PodInitializing":
            yield _sentence(container["name"], waiting)
        if ended:
            yield _sentence(f"{container['name']} ended with exit code {ended.get('exitCode')}", ended)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            yield _sentence("not scheduled", condition)


def _sentence(subject: str, state: JsonObject) -> str:
    return ": ".join(filter(None, (subject, state.get("reason", ""), state.get("message", "").strip())))


def _node(pod: JsonObject) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _note_faults(slices: Sequence[JsonObject]) -> Iterator[str]:
    """Devices that the driver reports as faulty. It is no problem of the installation: a port without a cable
    is one of them."""
    for one in slices:
        for device in one["spec"].get("devices") or ():
            faults = [taint["value"] for taint in device.get("taints") or () if taint["key"] in TAINT_KEYS]
            if faults:
                node = one["spec"].get("nodeName", "")
                yield f"note: node {node}: device {device['name']} has a fault: {', '.join(faults)}"

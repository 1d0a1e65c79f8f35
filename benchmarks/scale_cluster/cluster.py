"""A real control plane with the Nodes and the driver's pods of a large cluster, and no kubelet.

Each node has a pod of the driver's service account, so that its token names its node, and the
driver's roles and admission policies hold as they do in a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from e2e.cluster import config
from e2e.cluster.controlplane import ControlPlane, ControlPlaneKit, open_control_plane
from e2e.installation import NAME, SYSTEM_NAMESPACE, read_manifests
from e2e.objects import JsonObject, path_of

UNLIMITED = ("--kube-api-qps=2000", "--kube-api-burst=4000")
"""Flags of scheduler and controller manager: their own limits of requests do not count."""
EVERYTHING = {"operator": "Exists"}
"""Tolerates the taint of a new node, which no kubelet removes."""
FIELD_MANAGER = "dranet-benchmark"

_CONTROLLERS = (
    "*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller,-daemonset-controller"
)
"""No kubelet reports, and these would mark the nodes as lost, and evict their pods."""
_INSTALLED = ("00-namespace.yaml", "rbac.yaml", "admission-policy.yaml", "deviceclasses.yaml")
_AT_A_TIME = 32
_TOKEN_SECONDS = 4 * 3600

T = TypeVar("T")


@asynccontextmanager
async def open_plane(kit: ControlPlaneKit, folder: Path, logs: Path) -> AsyncIterator[ControlPlane]:
    """Start everything but a kubelet; inside a private tree only."""
    plan = config.Plan(folder / "kubernetes")
    async with open_control_plane(kit, plan, logs, parts=()) as plane:
        await start_controllers(plane)
        yield plane


async def start_controllers(plane: ControlPlane, *flags: str) -> None:
    """Start scheduler and controller manager, again if they run, with these flags as well."""
    programs = plane.kit.kubernetes.paths
    commands = {
        "kube-scheduler": [*config.scheduler_flags(plane.plan), *flags],
        "kube-controller-manager": [
            *config.controller_manager_flags(plane.plan),
            f"--controllers={_CONTROLLERS}",
            *flags,
        ],
    }
    for name, command in commands.items():
        if plane.programs.is_running(name):
            await plane.programs.stop(name)
        await plane.programs.start(programs[name], command)


async def populate(api: ApiClient, nodes: Sequence[str]) -> dict[str, str]:
    """Create the nodes and what the driver's installation has; return the driver's token on each node."""
    for file in _INSTALLED:
        for item in read_manifests(file):
            await api.apply(path_of(item), item, FIELD_MANAGER)
    await each(nodes, lambda node: api.create(paths.NODES, build_node(node)))
    tokens = await each(nodes, lambda node: _make_token(api, node))
    return dict(zip(nodes, tokens, strict=True))


async def each(names: Iterable[str], act: Callable[[str], Awaitable[T]]) -> list[T]:
    """Act on each name, some at a time; return the results in order."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def run(name: str) -> T:
        async with turn:
            return await act(name)

    return await asyncio.gather(*map(run, names))


async def _make_token(api: ApiClient, node: str) -> str:
    """Return a token that is bound to a pod of the driver on this node, as the kubelet's are."""
    pod = await api.create(paths.pods(SYSTEM_NAMESPACE), _build_pod(node))
    bound = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
    }
    spec = {"boundObjectRef": bound, "expirationSeconds": _TOKEN_SECONDS}
    path = f"{paths.namespace(SYSTEM_NAMESPACE)}/serviceaccounts/{NAME}/token"
    return str((await api.create(path, {"spec": spec}))["status"]["token"])


def build_node(name: str) -> JsonObject:
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def _build_pod(node: str) -> JsonObject:
    return {
        "metadata": {"name": f"{NAME}-{node}", "labels": {"app.kubernetes.io/name": NAME}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": NAME,
            "priorityClassName": "system-node-critical",
            "tolerations": [EVERYTHING],
            "containers": [{"name": "driver", "image": "none"}],
        },
    }

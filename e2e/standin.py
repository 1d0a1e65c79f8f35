"""The lane without a cluster: the testbed's stand-ins, reached through a kubeconfig as any cluster is.

It shows that the suite itself is right, on every machine and in CI: the API server, scheduler, controllers,
kubelet and container runtime are stand-ins; the driver, the kernel and its links are real.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.access import Access
from e2e.standin_daemonset import StandInDaemonSets
from testbed.cluster import NODE_NAME, Places, build_api_server
from testbed.isolation import require_isolation
from testbed.kubelet.kubelet import TestbedKubelet
from testbed.kubelet.nouns import KubeletOptions
from testbed.node.hardware import Hardware
from testbed.node.iproute import read_text
from testbed.node.node import Node
from testbed.runtime.contract import RunningContainer
from testbed.runtimes import stand_in
from testbed.scheduler.controllers import Controllers
from testbed.scheduler.scheduler import Scheduler

LANE = "stand-in"
_BIND_ADDRESS = "127.0.0.1:9177"  # the network namespace is the lane's alone
_OTHERS_PODS = "app.kubernetes.io/name!=dranet"


class _Hands:
    """The stand-in's runtime has no processes to look for: its kubelet knows."""

    def __init__(self, kubelet: TestbedKubelet, daemon_sets: StandInDaemonSets) -> None:
        self._kubelet = kubelet
        self._daemon_sets = daemon_sets

    async def run(self, *command: str) -> str:
        return await asyncio.to_thread(read_text, *command)

    async def find_netns(self, pod_uid: str) -> str:
        sandbox = self._kubelet.sandbox(pod_uid)
        return sandbox.netns_path if sandbox else ""

    async def inspect_container(self, pod_uid: str) -> RunningContainer | None:
        return next(iter(self._kubelet.containers(pod_uid).values()), None)

    async def kill_driver(self, pod_uid: str) -> None:
        await self._daemon_sets.kill(pod_uid)


@asynccontextmanager
async def open_standin(
    hardware: Hardware,
    work_dir: Path,
    _feature_gates: Sequence[str] = (),
) -> AsyncIterator[Access]:
    """Boot it; inside a private tree only. Every feature gate is on there.

    Raises:
        IsolationRefused: this is not one.
        DranetError: a part did not come up.
    """
    require_isolation()
    places = Places(work_dir)
    places.make()
    async with AsyncExitStack() as stack:
        node = Node(hardware, work_dir)
        await asyncio.to_thread(stack.enter_context, node)
        token = secrets.token_urlsafe()
        server = await stack.enter_async_context(build_api_server(token))
        server.write_kubeconfig(places.kubeconfig)
        server.write_kubeconfig(places.driver_kubeconfig, token=token)
        hands = await _start_parts(stack, places, node)
        yield Access(
            lane=LANE,
            kubeconfig=places.kubeconfig,
            node_name=NODE_NAME,
            image="dranet",
            pod_image="busybox",
            hands=hands,
            layout=node,
            log_file=places.driver_log,
        )


async def _start_parts(stack: AsyncExitStack, places: Places, node: Node) -> _Hands:
    async def open_client() -> ApiClient:
        client = ApiClient.from_kubeconfig(places.kubeconfig, user_agent="testbed")
        return await stack.enter_async_context(client)

    await stack.enter_async_context(Controllers(await open_client()))
    await stack.enter_async_context(Scheduler(await open_client()))
    runtime = stand_in(places, node)
    await runtime.start()
    stack.push_async_callback(runtime.stop)
    options = KubeletOptions(pod_selector=_OTHERS_PODS)
    kubelet = await stack.enter_async_context(
        TestbedKubelet(await open_client(), runtime, places.kubelet_root, NODE_NAME, options)
    )
    daemon_sets = await stack.enter_async_context(
        StandInDaemonSets(
            await open_client(),
            NODE_NAME,
            places.work_dir / "pods",
            places.driver_log,
            _build_settings(places, node),
        )
    )
    return _Hands(kubelet, daemon_sets)


def _build_settings(places: Places, node: Node) -> dict[str, str]:
    """Where things are, which on a real node are at the places of the manifests."""
    return {
        "bind_address": _BIND_ADDRESS,
        "kubeconfig": str(places.driver_kubeconfig),
        "sysfs_root": str(node.sysfs_root),
        "procfs_root": str(node.procfs_root),
        "state_dir": str(places.work_dir / "state"),
        "cdi_dir": str(places.cdi_dir),
        "vendor_cdi_dirs": str(places.cdi_dir),
        "nri_socket": str(places.nri_socket),
        "kubelet_root": str(places.kubelet_root),
    }

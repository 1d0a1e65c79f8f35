"""Which container runtime a testbed gets, by name."""

from __future__ import annotations

import asyncio

from testbed.cluster import Places, RuntimeFactory
from testbed.containerd.fetch import Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.node.node import Node
from testbed.runtime.contract import PodRuntime
from testbed.runtime.standin import StandInRuntime


def stand_in(places: Places, node: Node) -> PodRuntime:
    """The runtime stand-in. It reclaims NICs from dying namespaces, as the kernel does for physical ones."""

    async def reclaim(netns_path: str) -> None:
        await asyncio.to_thread(node.reclaim, netns_path)

    return StandInRuntime(places.nri_socket, places.cdi_dir, places.netns_dir, before_netns_ends=reclaim)


def containerd(toolchain: Toolchain) -> RuntimeFactory:
    """A real containerd and runc out of a fetched toolchain."""

    def make(places: Places, _: Node) -> PodRuntime:
        work_dir = places.work_dir / "containerd"
        work_dir.mkdir(parents=True)
        return ContainerdRuntime(toolchain, work_dir, places.nri_socket, places.cdi_dir)

    return make

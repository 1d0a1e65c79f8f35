"""A further node of the cluster: a private tree inside the cluster's, with a kubelet of its own.

A veth pair joins the network namespaces of the two nodes. Each node routes to the address and the pods of the
other, as network plugins with one subnet per node do. The NICs of both are plugged into one fabric.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from dranet.kernel.namespaces.netns import NetworkNamespace
from e2e.cluster import config
from e2e.cluster.config import Plan
from e2e.cluster.local import ClusterKit, LocalCluster, check_ready, plan_kubelet
from e2e.cluster.node import boot_node
from e2e.cluster.programs import Programs
from testbed.containerd.node import bind
from testbed.isolation import WORK_DIR
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hardware import Hardware
from testbed.node.iproute import NETNS_FOLDER, run_batch

_READY_SECONDS = 120.0
_LINK = "to-cluster"


@dataclass(frozen=True, slots=True)
class FirstNode:
    """What a further node has of the first. It is read before the further node's tree covers the files."""

    plan: Plan
    files: dict[Path, bytes]
    netns: int
    """An open file of its network namespace."""
    fabric: int
    """The same of the fabric's."""

    @classmethod
    def read(cls, plan: Plan, number: int) -> Self:
        kept = (*plan.kubelet_client, plan.kubeconfig(f"kubelet-{config.node_name(number)}"))
        return cls(
            plan,
            {path: path.read_bytes() for path in kept},
            os.open("/proc/self/ns/net", os.O_RDONLY),
            os.open(NETNS_FOLDER / FABRIC_NETNS, os.O_RDONLY),
        )

    def write_files(self) -> None:
        self.plan.folder.mkdir(parents=True)
        for path, content in self.files.items():
            path.write_bytes(content)


async def add_node(cluster: LocalCluster, number: int, hardware: str, version: str) -> None:
    """Start a further node as a process of its own, and wait until it is ready.

    Raises:
        E2eFailed: it does not come up; with the end of its log.
    """
    name, programs = config.node_name(number), cluster.plane.programs
    words = [
        "-m",
        "e2e.cluster",
        "join",
        "--number",
        str(number),
        "--hardware",
        hardware,
        "--version",
        version,
    ]
    await programs.start(Path(sys.executable), words, name)
    await programs.wait(name, lambda: check_ready(cluster.plane, name), _READY_SECONDS)


@asynccontextmanager
async def open_further_node(
    kit: ClusterKit, first: FirstNode, hardware: Hardware, number: int, logs: Path
) -> AsyncIterator[None]:
    """Run node ``number``; inside a private tree of its own only. Node 0 is the first."""
    async with AsyncExitStack() as stack:
        _show_fabric(first)
        node = await boot_node(
            stack, kit.toolchain, kit.image, hardware.as_node(number), WORK_DIR, logs, number
        )
        _connect(first, number)
        first.write_files()
        kubelet = plan_kubelet(first.plan, node, number)
        kubelet.config.write_text(yaml.safe_dump(config.build_kubelet_config(kubelet)))
        programs = await stack.enter_async_context(Programs(node.logs))
        await programs.start(kit.control_plane.kubernetes.paths["kubelet"], config.kubelet_flags(kubelet))
        yield


def _show_fabric(first: FirstNode) -> None:
    """Give the fabric's namespace the name that it has on the first node."""
    place = NETNS_FOLDER / FABRIC_NETNS
    NETNS_FOLDER.mkdir(parents=True)
    bind(NETNS_FOLDER, NETNS_FOLDER)  # a mount of its own, as ``ip netns add`` makes it
    place.touch()
    bind(Path(f"/proc/self/fd/{first.fabric}"), place)


def _connect(first: FirstNode, number: int) -> None:
    """Make the veth pair and the routes of both sides."""
    pid = os.getpid()
    with NetworkNamespace.open(Path(f"/proc/self/fd/{first.netns}")) as netns:
        netns.run(lambda: run_batch(_first_side(number, pid)))
    run_batch(_further_side(number))


def _first_side(number: int, pid: int) -> Iterator[str]:
    link, address = f"to-node-{number + 1}", config.node_address(number)
    yield f"link add {link} type veth peer name {_LINK} netns {pid}"
    yield f"link set {link} up"
    yield f"route add {address} dev {link} src {config.NODE_ADDRESS}"
    yield f"route add {config.pod_subnet(number)} via {address} dev {link}"


def _further_side(number: int) -> Iterator[str]:
    address = config.node_address(number)
    yield f"address add {address}/32 dev lo"
    yield f"link set {_LINK} up"
    for destination in (config.NODE_ADDRESS, config.SERVICE_NETWORK):
        yield f"route add {destination} dev {_LINK} src {address}"
    for network in (config.NODE_NETWORK, config.POD_NETWORK):  # of the nodes behind the first
        yield f"route add {network} via {config.NODE_ADDRESS} dev {_LINK} src {address}"

"""The lane of a cluster that is there: everything through its API server, on the hardware that it has.

What asks for a layout of hardware, or for access to the node, is skipped by name. A cluster that has the
driver already is not touched unless the user allows it. What will be done to it is printed first.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from e2e import basics
from e2e.access import Access, Hands, LaneUnavailable
from e2e.installation import SYSTEM_NAMESPACE
from e2e.live_cluster import find_installed
from e2e.live_driver import is_ready
from e2e.objects import NAMESPACE, JsonObject
from e2e.run import Book, choose, note_skipped, walk
from e2e.table import Reach

LANE = "kubeconfig"
_OLDEST = (1, 34)
_YES = "E2E_YES"
_PATIENCE = 6.0


async def run(names: Sequence[str], book: Book) -> None:
    """The parts that can be run on the cluster of ``KUBECONFIG``.

    Raises:
        LaneUnavailable: no image named, no such node, too old, or a driver is installed already.
    """
    file, image = os.environ.get("KUBECONFIG", ""), os.environ.get("E2E_IMAGE", "")
    if not file or os.pathsep in file:
        raise LaneUnavailable("KUBECONFIG does not name one file", hint="KUBECONFIG=FILE make e2e")
    if not image:
        raise LaneUnavailable(
            "E2E_IMAGE does not name the image of the driver the nodes can pull",
            hint="build one with `make image`, push it, and name it: E2E_IMAGE=registry.example.com/dranet:1",
        )
    await run_on(Path(file), image, LANE, names, book)


async def run_on(
    kubeconfig: Path, image: str, lane: str, names: Sequence[str], book: Book, hands: Hands | None = None
) -> None:
    """The parts that can be run on a cluster as it is."""
    async with ApiClient.from_kubeconfig(kubeconfig, user_agent="dranet-e2e") as api:
        server, version = api.url, await check_version(api)
        node = await find_node(api, os.environ.get("E2E_NODE", ""))
        may_replace = await ask_before_installing(api)
    access = Access(
        lane=lane,
        kubeconfig=kubeconfig,
        node_name=node,
        image=image,
        pod_image=os.environ.get("E2E_POD_IMAGE", "busybox"),
        hands=hands,
        may_replace=may_replace,
        patience=_PATIENCE,
    )
    note_skipped(choose(names), Reach(has_hands=hands is not None, has_layout=False), book)
    if not names or basics.NAME in names:
        sys.stdout.write(f"e2e: {lane}: {server}, Kubernetes {version}, image {image}\n{_foretell(node)}\n")
        await walk(access, None, book)


def _foretell(node: str) -> str:
    return (
        f"     makes namespaces {NAMESPACE} and {SYSTEM_NAMESPACE}, and the cluster-wide objects of deploy;\n"
        f"     runs the driver on node {node} alone, and takes a NIC there for about a minute;\n"
        "     takes everything away at the end"
    )


async def check_version(api: ApiClient) -> str:
    """The server's version.

    Raises:
        LaneUnavailable: it is older than what the driver supports.
    """
    answer = await api.get("/version")
    found = int(answer["major"]), int(str(answer["minor"]).rstrip("+"))
    if found < _OLDEST:
        raise LaneUnavailable(
            f"the cluster is Kubernetes {answer.get('gitVersion', found)}; 1.34 is the oldest"
        )
    return str(answer.get("gitVersion", ".".join(map(str, found))))


async def find_node(api: ApiClient, wanted: str) -> str:
    """The node to look at: the one that is named, or the first that takes pods.

    Raises:
        LaneUnavailable: no kubeconfig is found.
    """
    nodes = (await api.list(paths.NODES)).get("items", ())
    fit = [node["metadata"]["name"] for node in nodes if _takes_pods(node)]
    if wanted and wanted not in fit:
        raise LaneUnavailable(f"node {wanted} takes no pods; those that do: {', '.join(fit) or 'none'}")
    if not fit:
        raise LaneUnavailable("no node of the cluster is ready and takes pods")
    return wanted or fit[0]


def _takes_pods(node: JsonObject) -> bool:
    spec = node.get("spec", {})
    tainted = any(taint["effect"] != "PreferNoSchedule" for taint in spec.get("taints") or ())
    return is_ready(node) and not spec.get("unschedulable") and not tainted


async def ask_before_installing(api: ApiClient) -> bool:
    """Return whether an installed driver may be replaced.

    Raises:
        LaneUnavailable: a driver is installed, and the user does not allow to remove it.
    """
    if os.environ.get(_YES) == "1":
        return True
    found = await find_installed(api)
    if not found:
        return False
    question = f"{found} is there already. Install over it, and take it away at the end? [y/N] "
    if not sys.stdin.isatty() or (await asyncio.to_thread(input, question)).strip().lower() not in (
        "y",
        "yes",
    ):
        raise LaneUnavailable(
            f"{found} is there already; e2e would install over it and take it away at the end",
            hint=f"use another cluster, or set {_YES}=1",
        )
    return True

"""The Deployment of the chart that labels nodes, with the rights that the chart gives it."""

from __future__ import annotations

import contextlib
import copy
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dranet.cli.label import NodeLabeller
from dranet.cli.main import NODE_COMMANDS, parse_arguments
from dranet.cluster import paths
from dranet.cluster.client import ApiClient, fetch_snapshot
from dranet.errors import ClusterError
from testbed.apiserver.identity import User
from testbed.apiserver.server import ApiServer
from tests.desk.fabric.fabrics import cable
from tests.desk.fabric.slices import make_slices
from tests.tools.manifests.chart.rendering import NAMESPACE, JsonObject, find, of_kind, pod_of, render
from tests.tools.manifests.chart.value_sets import TOPOLOGY_LABELS

NAME = "dranet-topology-labels"
NODE: JsonObject = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-0", "labels": {"pool": "h100"}},
    "spec": {"unschedulable": False},
}


@contextlib.asynccontextmanager
async def as_both(values: JsonObject, folder: Path) -> AsyncIterator[tuple[ApiClient, ApiClient]]:
    """Clients of an administrator and of the Deployment's account."""
    account = User(f"system:serviceaccount:{NAMESPACE}:{NAME}")
    users = {"labels": account}
    manifests = [
        item for item in render(values) if item["kind"] not in ("Deployment", "DaemonSet", "ConfigMap")
    ]
    async with ApiServer(users=users, manifests=manifests, tokens=["root"]) as server:
        for token in ("labels", "root"):
            server.write_kubeconfig(folder / token, token=token)
        async with (
            ApiClient.from_kubeconfig(folder / "root") as admin,
            ApiClient.from_kubeconfig(folder / "labels") as labels,
        ):
            await admin.create(paths.NODES, copy.deepcopy(NODE))
            yield admin, labels


def test_it_is_off_by_default() -> None:
    assert of_kind(render({}), "Deployment") == []
    assert NAME not in str(render({}))


def test_its_command_is_in_the_image_and_its_pod_has_no_rights_on_the_node() -> None:
    pod = pod_of(find(render(TOPOLOGY_LABELS), "Deployment", "topology-labels"))
    (container,) = pod["containers"]
    program, *arguments = container["command"]
    assert program == "dranet"
    assert arguments[0] in NODE_COMMANDS
    options = parse_arguments(arguments)
    assert (options.driver_name, options.hold_seconds) == ("dra.net", 300)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["runAsNonRoot"]
    assert "volumes" not in pod


def test_it_knows_the_name_of_the_driver() -> None:
    items = render(TOPOLOGY_LABELS | {"settings": {"driver_name": "nic.example.com"}})
    command = shlex.join(pod_of(find(items, "Deployment", "topology-labels"))["containers"][0]["command"])
    assert "--driver-name=nic.example.com" in command
    assert "fabric.nic.example.com/" in str(of_kind(items, "ValidatingAdmissionPolicy"))


@pytest.mark.socket
async def test_its_rights_are_enough_to_label_nodes(tmp_path: Path) -> None:
    async with as_both(TOPOLOGY_LABELS, tmp_path) as (admin, client):
        for body in make_slices(cable(nodes=1).values()):
            await admin.create(paths.RESOURCE_SLICES, body)
        labeller = NodeLabeller(client, "dra.net")
        labeller.take(await fetch_snapshot(client, paths.RESOURCE_SLICES))
        assert await labeller.write_labels() == 1
        node = await admin.get(paths.node("gpu-0"))
        assert node["metadata"]["labels"] == {"pool": "h100", "fabric.dra.net/unit": "leaf-0-0"}


FORBIDDEN: dict[str, JsonObject] = {
    "another label": {"metadata": {"labels": {"pool": "other"}}},
    "the removal of another label": {"metadata": {"labels": {"pool": None}}},
    "a label that only looks like one": {"metadata": {"labels": {"fabric.dra.network/unit": "x"}}},
    "an annotation": {"metadata": {"annotations": {"a": "b"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/a"]}},
    "a taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "the cordon": {"spec": {"unschedulable": True}},
}


@pytest.mark.socket
@pytest.mark.parametrize("what", FORBIDDEN)
async def test_its_account_changes_nothing_else_of_a_node(what: str, tmp_path: Path) -> None:
    async with as_both(TOPOLOGY_LABELS, tmp_path) as (admin, client):
        with pytest.raises(ClusterError, match="this account changes"):
            await client.patch(paths.node("gpu-0"), FORBIDDEN[what])
        await admin.patch(paths.node("gpu-0"), FORBIDDEN[what])

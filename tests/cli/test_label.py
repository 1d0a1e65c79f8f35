"""``dranet label`` against an API server: labels follow the slices, and others' labels stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dranet.cli.label import NodeLabeller
from dranet.cluster import paths
from dranet.cluster.client import ApiClient, Backoff, fetch_snapshot
from dranet.cluster.transport import access_from_url
from testbed.apiserver.server import ApiServer
from tests.desk.fabric.fabrics import Cabling, cable, unplug
from tests.desk.fabric.slices import make_slices, placed
from tests.support.waiting import until

pytestmark = pytest.mark.socket

JsonObject = dict[str, Any]
UNIT = "fabric.dra.net/unit"
AT_ONCE: JsonObject = {"settle_seconds": 0.0, "retries": Backoff(0.0, 0.0)}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(access_from_url(server.url)) as connected:
        yield connected


async def add_nodes(client: ApiClient, *names: str, **labels: str) -> None:
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        await client.create(paths.NODES, node)


async def publish(client: ApiClient, slices: list[JsonObject]) -> None:
    for body in slices:
        await client.create(paths.RESOURCE_SLICES, body)


async def change(client: ApiClient, body: JsonObject) -> None:
    path = f"{paths.RESOURCE_SLICES}/{body['metadata']['name']}"
    stored = await client.get(path)
    await client.replace(path, {**stored, "spec": body["spec"]})


def labels_of(server: ApiServer) -> dict[str, JsonObject]:
    nodes = server.objects("nodes")
    return {body["metadata"]["name"]: body["metadata"].get("labels") or {} for body in nodes}


def patches(server: ApiServer) -> int:
    return sum(record.method == "PATCH" for record in server.requests)


@contextlib.asynccontextmanager
async def labelling(client: ApiClient, **options: Any) -> AsyncIterator[NodeLabeller]:
    labeller = NodeLabeller(client, "dra.net", **(AT_ONCE | options))
    task = asyncio.create_task(labeller.run())
    try:
        yield labeller
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def take_all(client: ApiClient, labeller: NodeLabeller) -> None:
    labeller.take(await fetch_snapshot(client, paths.RESOURCE_SLICES))


async def test_nodes_are_labelled_with_their_unit_and_follow_a_change(
    server: ApiServer, client: ApiClient
) -> None:
    cabling = cable(units=2, nodes=2)
    await add_nodes(client, *(f"gpu-{n}" for n in range(4)), pool="h100")
    await add_nodes(client, "cpu-0")
    await publish(client, make_slices(cabling.values()))
    wanted = {f"gpu-{n}": {"pool": "h100", UNIT: f"leaf-{n // 2}-0"} for n in range(4)}
    async with labelling(client):
        await until(lambda: labels_of(server) == {**wanted, "cpu-0": {}})
        for rail in range(8):  # gpu-3 moves to the other unit
            cabling["gpu-3", rail] = _moved(cabling, rail)
        await change(client, make_slices(cabling.values())[3])
        await until(lambda: labels_of(server)["gpu-3"][UNIT] == "leaf-0-0")
    assert patches(server) == 5


def _moved(cabling: Cabling, rail: int) -> Any:
    from msgspec.structs import replace

    there = cabling["gpu-0", rail]
    return replace(cabling["gpu-3", rail], switch=there.switch, switch_name=there.switch_name)


async def test_a_second_comparison_writes_nothing(client: ApiClient) -> None:
    await add_nodes(client, "gpu-0", "gpu-1")
    await publish(client, make_slices(cable(nodes=2).values()))
    labeller = NodeLabeller(client, "dra.net")
    await take_all(client, labeller)
    assert [await labeller.write_labels() for _ in range(2)] == [2, 0]


async def test_labels_below_the_prefix_are_ours_and_all_others_are_not(
    server: ApiServer, client: ApiClient
) -> None:
    others = {"fabric.dra.networks/unit": "x", "dra.net/unit": "x", "example.com/leaf": "x"}
    await add_nodes(client, "gpu-0", **others, **{UNIT: "wrong", "fabric.dra.net/block": "old"})
    await publish(client, make_slices(cable(nodes=1).values()))
    labeller = NodeLabeller(client, "dra.net")
    await take_all(client, labeller)
    assert await labeller.write_labels() == 1
    assert labels_of(server)["gpu-0"] == {**others, UNIT: "leaf-0-0"}


async def test_another_drivers_labels_have_another_prefix(client: ApiClient) -> None:
    await add_nodes(client, "gpu-0", **{UNIT: "leaf-9"})
    labeller = NodeLabeller(client, "nic.example.com")
    await take_all(client, labeller)
    assert await labeller.write_labels() == 0


async def test_a_place_that_is_no_longer_known_is_held_and_then_removed(
    server: ApiServer, client: ApiClient
) -> None:
    """As after the restart of a driver, which has not yet heard its neighbours."""
    now = [100.0]
    cabling = cable(nodes=1)
    await add_nodes(client, "gpu-0")
    await publish(client, make_slices(cabling.values()))
    labeller = NodeLabeller(client, "dra.net", hold_seconds=300, clock=lambda: now[0])
    await take_all(client, labeller)
    await labeller.write_labels()
    for rail in range(8):
        unplug(cabling, ("gpu-0", rail))
    await change(client, make_slices(cabling.values())[0])
    await take_all(client, labeller)
    for now[0] in (200.0, 499.0):
        assert await labeller.write_labels() == 0
    assert labels_of(server)["gpu-0"] == {UNIT: "leaf-0-0"}
    now[0] = 500.0
    assert await labeller.write_labels() == 1
    assert labels_of(server)["gpu-0"] == {}


async def test_the_levels_of_a_cloud_become_labels(server: ApiServer, client: ApiClient) -> None:
    await add_nodes(client, "gke-1")
    await publish(client, [placed("gke-1", gce_block="b" * 64, gce_subBlock="s/1", gce_host="h")])
    labeller = NodeLabeller(client, "dra.net")
    await take_all(client, labeller)
    await labeller.write_labels()
    labels = labels_of(server)["gke-1"]
    assert labels.keys() == {f"fabric.dra.net/{name}" for name in ("block", "subBlock", "host")}
    assert all(len(value) <= 63 for value in labels.values())


async def test_a_node_that_is_gone_and_a_server_that_refuses_stop_nothing(
    server: ApiServer, client: ApiClient
) -> None:
    await add_nodes(client, "gpu-0", "gpu-1")
    await publish(client, make_slices(cable(nodes=2).values()))
    server.fail_next("PATCH", paths.node("gpu-0"), 404)
    server.fail_next("PATCH", paths.node("gpu-1"), 500)
    async with labelling(client):
        await until(lambda: labels_of(server)["gpu-1"].get(UNIT) == "leaf-0-0")
        await until(lambda: labels_of(server)["gpu-0"].get(UNIT) == "leaf-0-0")


def lists(server: ApiServer) -> int:
    return sum(record.method == "GET" and record.path == paths.NODES for record in server.requests)


async def test_a_node_that_refuses_its_patch_is_named_and_holds_up_no_other(
    server: ApiServer, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    cabling = cable(nodes=4)
    await add_nodes(client, *(f"gpu-{n}" for n in range(4)))
    await publish(client, make_slices(cabling.values()))
    for name in ("gpu-1", "gpu-2"):
        server.fail_next("PATCH", paths.node(name), 403, count=1000)
    async with labelling(client, retries=Backoff(3600.0, 3600.0)):
        await until(lambda: labels_of(server)["gpu-3"].get(UNIT))
        await until(lambda: "not written" in caplog.text)
        assert "node gpu-1: " in caplog.text
        assert "also refused: gpu-2 (1 node)" in caplog.text
        tried = lists(server)
        unplug(cabling, ("gpu-0", 0))
        await change(client, make_slices(cabling.values())[0])
        await until(lambda: lists(server) > tried)  # the change, long before the retry


async def test_a_refusal_is_tried_again_later_each_time(server: ApiServer, client: ApiClient) -> None:
    class Recorded(Backoff):
        asked = 0

        def next_seconds(self) -> float:
            self.asked += 1
            return 0.0 if self.asked < 3 else 3600.0

    await add_nodes(client, "gpu-0")
    await publish(client, make_slices(cable(nodes=1).values()))
    server.fail_next("PATCH", paths.node("gpu-0"), 403, count=1000)
    retries = Recorded(1.0, 1.0)
    async with labelling(client, retries=retries):
        await until(lambda: retries.asked >= 3)
    assert patches(server) == retries.asked == 3


@pytest.mark.process
async def test_the_program_ends_at_sigterm_and_leaves_the_labels(
    server: ApiServer, client: ApiClient, tmp_path: Path
) -> None:
    await add_nodes(client, "gpu-0")
    await publish(client, make_slices(cable(nodes=1).values()))
    server.write_kubeconfig(tmp_path / "config")
    command = (sys.executable, "-m", "dranet.cli.main", "label", "--kubeconfig", str(tmp_path / "config"))
    program = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=os.environ)
    await until(lambda: labels_of(server)["gpu-0"].get(UNIT) == "leaf-0-0")
    program.send_signal(signal.SIGTERM)
    _, log = await program.communicate()
    assert program.returncode == 0
    assert b"labelled node gpu-0: fabric.dra.net/unit=leaf-0-0" in log
    assert labels_of(server)["gpu-0"] == {UNIT: "leaf-0-0"}

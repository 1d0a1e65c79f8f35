"""What containers get for the programs in them: NCCL's files, variables, memory near the devices.

The driver is the ordinary program in a process of its own. Whoever tells the story brings the container
runtime; with a real one the files are read inside the containers. NCCL itself is not there: it takes GPUs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dranet.claims.nccl_topology import parse_topology
from testbed.cluster import RuntimeFactory
from tests.runtime.metadata_story import Story, a_container, a_pod, tell
from tests.support.objects import device_class

FOLDER = "/var/run/dranet/nccl"
CONF, TOPOLOGY = f"{FOLDER}/nccl.conf", f"{FOLDER}/topology.xml"
GPU = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-0f4e8a61-77b2-4d0c-8f7e-51c2d3a90024"}
"""As a device plugin says it; the GPU beside mlx5_0, on NUMA node 0."""

PARAMETERS = {
    "interface": {"name": "net1"},
    "nccl": {"topologyFile": True, "configFile": True, "gidIndex": "auto", "socketInterface": "eth0"},
    "ucx": {"netDevices": True},
    "rdma": {"forkSafe": True},
    "memory": {"policy": "bind"},
}


def a_class(name: str, ifname: str, parameters: dict[str, Any]) -> dict[str, Any]:
    expression = f'device.attributes["dra.net"].ifName == "{ifname}"'
    config = [{"opaque": {"driver": "dra.net", "parameters": parameters}}] if parameters else []
    return device_class(name, expression, config=config)


def a_template(name: str) -> dict[str, Any]:
    requests = [{"name": "nic", "exactly": {"deviceClassName": name}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


MANIFESTS = [
    a_class("near", "enp35s0np0", PARAMETERS),
    a_template("near"),
    a_class("plain", "enp131s0np0", {}),
    a_template("plain"),
]


def a_claim(name: str) -> dict[str, str]:
    return {"name": name, "resourceClaimTemplateName": name}


def with_env(container: dict[str, Any], *variables: dict[str, str]) -> dict[str, Any]:
    return {**container, "env": list(variables)}


TRAIN = a_pod(
    "train",
    a_claim("near"),
    [
        with_env(a_container("main", "near"), GPU),
        with_env(
            a_container("own", "near"),
            {"name": "NCCL_IB_HCA", "value": "=mlx5_9"},
            {"name": "UCX_NET_DEVICES", "value": "all"},
            {"name": "IBV_FORK_SAFE", "value": "0"},
        ),
        with_env(a_container("file", "near"), {"name": "NCCL_CONF_FILE", "value": "/own/nccl.conf"}),
        a_container("sidecar"),
    ],
)
PLAIN = a_pod("plain", a_claim("plain"), [a_container("main", "plain")])


def play(make_runtime: RuntimeFactory, folder: Path) -> None:
    """Tell the story, or skip where the runtime cannot be had."""
    tell(
        make_runtime,
        folder,
        MANIFESTS,
        a_container_finds_the_pods_devices_near_its_gpu,
        what_a_container_has_set_itself_stays,
        a_container_that_names_no_claim_gets_nothing,
        a_driver_that_restarts_leaves_the_files_and_takes_them_with_the_claim,
    )


def settings_in(conf: str) -> dict[str, str]:
    """As NCCL reads the file."""
    lines = (line.partition("=") for line in conf.splitlines() if not line.startswith("#"))
    return {name: value for name, sign, value in lines if sign}


async def a_container_finds_the_pods_devices_near_its_gpu(story: Story) -> None:
    await story.run(TRAIN)
    main = story.container("train")
    assert main.env["NCCL_CONF_FILE"] == CONF
    assert main.env["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert main.env["RDMAV_FORK_SAFE"] == "1"
    assert "NCCL_TOPO_FILE" not in main.env, "it is in the file, over which a variable would win"
    conf = (await story.cat("train", CONF)).decode()
    assert settings_in(conf) == {
        "NCCL_TOPO_FILE": TOPOLOGY,
        "NCCL_IB_HCA": "=mlx5_0",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }
    assert "mlx5_0 (net1) at 0000:23:00.0, PIX from the GPU at 0000:24:00.0" in conf
    assert "no RoCE v2 GID of the pod's address on mlx5_0" in conf, "the stand-in's table has none"
    cpu, *idle = parse_topology((await story.cat("train", TOPOLOGY)).decode()).cpus
    assert not any(one.below for one in idle)
    assert cpu.numa_node == 0
    (switch,) = cpu.below
    assert [leaf.address for leaf in switch.below] == ["0000:23:00.0", "0000:24:00.0"]
    assert main.memory_nodes == "0"
    if story.testbed.runtime.name != "stand-in":
        done = await story.testbed.runtime.exec_in_container(main, ("touch", f"{FOLDER}/x"))
        assert "Read-only file system" in done.stderr
        done = await story.testbed.runtime.exec_in_container(
            main, ("grep", "Mems_allowed_list", "/proc/self/status")
        )
        assert done.stdout.split() == ["Mems_allowed_list:", "0"]


async def what_a_container_has_set_itself_stays(story: Story) -> None:
    own = story.container("train", "own")
    assert own.env["NCCL_IB_HCA"] == "=mlx5_9"
    assert own.env["UCX_NET_DEVICES"] == "all"
    assert (own.env["IBV_FORK_SAFE"], "RDMAV_FORK_SAFE" in own.env) == ("0", False)
    conf = (await story.cat("train", CONF, "own")).decode()
    assert "NCCL_IB_HCA" not in settings_in(conf)
    assert "NCCL_IB_HCA is set in the environment of the container" in conf
    file = story.container("train", "file")
    assert file.env["NCCL_CONF_FILE"] == "/own/nccl.conf"
    assert "NCCL_TOPO_FILE" not in file.env, "the file of its own may name one"
    assert await story.cat("train", CONF, "file"), "it can include ours"


async def a_container_that_names_no_claim_gets_nothing(story: Story) -> None:
    await story.run(PLAIN)
    for container in (story.container("train", "sidecar"), story.container("plain")):
        assert not any(name.startswith(("NCCL", "UCX", "RDMAV")) for name in container.env)
        assert FOLDER not in container.mounts
        assert container.memory_nodes == ""


async def a_driver_that_restarts_leaves_the_files_and_takes_them_with_the_claim(story: Story) -> None:
    driver = story.testbed.driver
    before = await story.cat("train", CONF)
    await driver.kill()
    await driver.start()
    await driver.wait_ready(30)
    assert await story.cat("train", CONF) == before
    state = story.testbed.places.work_dir / "state" / "workload"
    assert await asyncio.to_thread(lambda: len(list(state.iterdir()))) == 1
    await story.end("train")
    assert await asyncio.to_thread(lambda: list(state.iterdir())) == []

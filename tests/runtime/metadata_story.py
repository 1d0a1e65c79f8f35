"""A training pod and a monitoring pod on one NIC, and what their containers find about it (KEP-5304).

The driver is the ordinary program in a process of its own. Whoever tells the story brings the container
runtime; with a real one the files are read inside the containers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import RuntimeFactory, Testbed
from testbed.containerd.fetch import ContainerdUnavailable
from testbed.node.hardware import load_hardware
from testbed.runtime.contract import RunningContainer
from tests.support import metadata_reader
from tests.support.objects import device_class

IFNAME, DEVICE, GID = "enp35s0np0", "pci-0000-23-00-0", "fe80:0000:0000:0000:ba3f:d2ff:fe6c:0023"
ROOT = "/var/run/kubernetes.io/dra-device-attributes"
NAME = "dra.net-metadata.json"
TRAIN_FILE = f"{ROOT}/resourceclaimtemplates/rail/nic/{NAME}"
WATCH_FILE = f"{ROOT}/resourceclaims/watch/nic/{NAME}"
COUNTERS = f"/var/run/dranet/counters/{DEVICE}"
SECONDS = 60


def a_request(**more: Any) -> dict[str, Any]:
    return {"name": "nic", "exactly": {"deviceClassName": "rail0", **more}}


def a_pod(name: str, claim: dict[str, str], containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    spec = {"resourceClaims": [claim], "containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def a_container(name: str, *claims: str) -> dict[str, Any]:
    return {"name": name, "image": "x", "resources": {"claims": [{"name": claim} for claim in claims]}}


EXPRESSION = f'device.attributes["dra.net"].ifName == "{IFNAME}"'
PARAMETERS = {"interface": {"name": "net1", "mtu": 4200}}
MANIFESTS: list[dict[str, Any]] = [
    device_class("rail0", EXPRESSION),
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "rail"},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [a_request()],
                    "config": [{"opaque": {"driver": "dra.net", "parameters": PARAMETERS}}],
                }
            }
        },
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "watch"},
        "spec": {"devices": {"requests": [a_request(adminAccess=True)]}},
    },
]
TRAIN = a_pod(
    "train",
    {"name": "rail", "resourceClaimTemplateName": "rail"},
    [a_container("main", "rail"), a_container("sidecar")],
)
MONITOR = a_pod("monitor", {"name": "watch", "resourceClaimName": "watch"}, [a_container("main", "watch")])


class Story:
    """The testbed, and its containers as somebody inside sees them."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed

    async def run(self, pod: dict[str, Any]) -> None:
        await self.testbed.apply([pod])
        await self.testbed.kubelet.wait_running(self.testbed.pod_uid(pod["metadata"]["name"]))

    async def end(self, name: str) -> None:
        await self.testbed.delete_pod(name)
        await self.testbed.kubelet.wait_gone(self.testbed.pod_uid(name))

    def container(self, pod: str, name: str = "main") -> RunningContainer:
        return self.testbed.containers(pod)[name]

    async def cat(self, pod: str, path: str, name: str = "main") -> bytes:
        """What a container reads; the stand-in runtime's are looked at from outside."""
        container = self.container(pod, name)
        if self.testbed.runtime.name == "stand-in":
            for inside, source in container.mounts.items():
                if path.startswith(f"{inside}/"):
                    return await asyncio.to_thread(Path(source + path.removeprefix(inside)).read_bytes)
            raise FileNotFoundError(path)
        done = await self.testbed.runtime.exec_in_container(container, ("cat", path))
        if done.exit_code:
            raise FileNotFoundError(f"{path}: {done.stderr}")
        return done.stdout.encode()

    async def device(self, pod: str, path: str) -> dict[str, Any]:
        """The one device of a file."""
        found = metadata_reader.decode(await self.cat(pod, path))
        ((device,),) = (request["devices"] for request in found["requests"])
        return dict(device)


Scene = Callable[[Story], Awaitable[None]]


def play(make_runtime: RuntimeFactory, folder: Path) -> None:
    """Tell the story, or skip where the runtime cannot be had."""
    tell(
        make_runtime,
        folder,
        MANIFESTS,
        a_training_pod_finds_its_link,
        a_monitoring_pod_beside_it_finds_facts_and_counters,
        the_monitor_sees_the_link_come_back,
    )


def tell(
    make_runtime: RuntimeFactory, folder: Path, manifests: Sequence[dict[str, Any]], *scenes: Scene
) -> None:
    """One scene after the other, on a node with these objects; skips where the runtime cannot be had."""

    async def boot_and_tell() -> None:
        async with asyncio.timeout(SECONDS), _booted(make_runtime, folder, manifests) as story:
            for scene in scenes:
                await scene(story)

    try:
        asyncio.run(boot_and_tell())
    except ContainerdUnavailable as error:
        pytest.skip(str(error))


@asynccontextmanager
async def _booted(
    make_runtime: RuntimeFactory, folder: Path, manifests: Sequence[dict[str, Any]]
) -> AsyncIterator[Story]:
    async with Testbed(load_hardware("two-nic"), make_runtime, folder) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        await testbed.api.patch("/api/v1/namespaces/default", label)
        await testbed.apply(manifests)
        yield Story(testbed)


async def a_training_pod_finds_its_link(story: Story) -> None:
    await story.run(TRAIN)
    content = await story.cat("train", TRAIN_FILE)
    found = metadata_reader.decode(content)
    assert found["podClaimName"] == "rail"
    assert found["metadata"]["generation"] == 2  # Prepare, and the attach
    device = await story.device("train", TRAIN_FILE)
    assert device["networkData"]["interfaceName"] == "net1"
    assert device["networkData"]["ips"] == ["10.64.0.1/24"]
    assert device["networkData"]["hardwareAddress"] == "b8:3f:d2:6c:00:23"
    assert device["attributes"]["dra.net/rdmaDevice"] == {"string": "mlx5_0"}
    assert device["attributes"]["dra.net/rdmaGids"] == {"strings": [GID]}
    for path in (TRAIN_FILE, COUNTERS):
        with pytest.raises(FileNotFoundError):
            await story.cat("train", path, "sidecar")  # it names no claim


async def a_monitoring_pod_beside_it_finds_facts_and_counters(story: Story) -> None:
    await story.run(MONITOR)
    device = await story.device("monitor", WATCH_FILE)
    assert device["attributes"]["dra.net/linkInPod"] == {"bool": True}
    assert "networkData" not in device
    counter = f"{COUNTERS}/infiniband/mlx5_0/ports/1/counters/port_rcv_data"
    assert (await story.cat("monitor", counter)).strip().isdigit()
    assert not any("infiniband" in path for path in story.container("monitor").devices)
    shown = await story.testbed.runtime.exec_in_container(
        story.container("train"), ("cat", "/sys/class/net/net1/address")
    )
    assert shown.exit_code == 0 or story.testbed.runtime.name == "stand-in"


async def the_monitor_sees_the_link_come_back(story: Story) -> None:
    """In a container that has been running all the time."""
    await story.end("train")
    device = await story.device("monitor", WATCH_FILE)
    assert device["attributes"]["dra.net/linkInPod"] == {"bool": False}
    counter = f"{COUNTERS}/net/{IFNAME}/statistics/rx_bytes"
    while True:  # the testbed's sysfs follows the kernel's links a moment later
        try:
            content = await story.cat("monitor", counter)
        except FileNotFoundError:
            await asyncio.sleep(0.05)
        else:
            break
    assert content.strip().isdigit()
    await story.end("monitor")
    assert await asyncio.to_thread(find_files, story.testbed.places.work_dir) == []


def find_files(folder: Path) -> list[Path]:
    """Files with metadata below ``folder``, where the runtime may be removing folders at this time."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(NAME)]

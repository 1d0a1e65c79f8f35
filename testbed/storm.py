"""A storm of pods with NICs that come and go, judged from outside, while something happens to the driver.

It asks the API server, the kernel (through iproute2) and the runtime what became of each pod, and a watch of
its own what became of the slices; never the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, EventType, Snapshot, list_and_watch
from testbed.cluster import DRIVER_NAME, NODE_NAME, JsonObject, Testbed

POD_SECONDS = 60.0
"""A pod that takes longer to come or to go is lost."""
IFNAME = "net1"

_CLASS: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "storm"},
    "spec": {"selectors": [{"cel": {"expression": 'device.attributes["dra.net"].rdma'}}]},
}
_TEMPLATE: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "storm"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": "storm"}}],
                "config": [
                    {"opaque": {"driver": DRIVER_NAME, "parameters": {"interface": {"name": IFNAME}}}}
                ],
            }
        }
    },
}


def _pod(name: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "storm"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
        },
    }


@dataclass(slots=True)
class Damage:
    """What the storm has counted so far."""

    started: int = 0
    """Pods that ran."""
    gone: int = 0
    """Pods that ran and have ended as they should."""
    bare: list[str] = field(default_factory=list)
    """Pods whose containers ran without their NIC, and what was there instead."""
    lost: list[str] = field(default_factory=list)
    """Pods that did not come up or did not go in time, and why."""
    failures: list[str] = field(default_factory=list)
    """The kubelet's errors of tries that failed; a retry may have succeeded."""
    prepare_seconds: list[float] = field(default_factory=list)
    fewest_devices: int | None = None
    """That the slices have ever had, by the watch."""

    @property
    def failed_prepares(self) -> list[str]:
        return [failure for failure in self.failures if failure.startswith("FailedPrepareDynamicResources")]


class Storm:
    """``workers`` pods at a time, each with a NIC of its own: no more than the node has."""

    def __init__(self, testbed: Testbed, workers: int) -> None:
        self.damage = Damage()
        self._testbed = testbed
        self._workers = workers
        self._calm = asyncio.Event()

    @contextlib.asynccontextmanager
    async def raging(self) -> AsyncIterator[Damage]:
        """Pods come and go until the block ends; each that has begun is then waited for."""
        await self._testbed.apply([_CLASS, _TEMPLATE])
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch_slices(), name="storm: slices")
            workers = [
                tasks.create_task(self._work(number), name=f"storm: {number}")
                for number in range(self._workers)
            ]
            try:
                yield self.damage
            finally:
                self._calm.set()
                await asyncio.wait(workers)
                watch.cancel()
        await self._collect_failures()

    async def wait_started(self, count: int) -> None:
        """Until so many further pods have run, or one is lost."""
        target = self.damage.started + count
        while True:
            if self.damage.started >= target or self.damage.lost:
                return
            await asyncio.sleep(0.02)

    async def _work(self, number: int) -> None:
        turn = 0
        while not self._calm.is_set():
            turn += 1
            name = f"storm-{number}-{turn}"
            await self._testbed.apply([_pod(name)])
            try:
                async with asyncio.timeout(POD_SECONDS):
                    await self._live(name)
            except TimeoutError:
                kubelet, uid = self._testbed.kubelet, self._testbed.pod_uid(name)
                self.damage.lost.append(f"{name}: {kubelet.stage(uid).name}: {kubelet.failure(uid)}")
                return

    async def _live(self, name: str) -> None:
        kubelet, uid = self._testbed.kubelet, self._testbed.pod_uid(name)
        await kubelet.wait_running(uid)
        await self._judge(name)
        self.damage.started += 1
        self.damage.prepare_seconds.append(kubelet.timings(uid).prepare_seconds or 0.0)
        await self._testbed.delete_pod(name)
        await kubelet.wait_gone(uid)
        self.damage.gone += 1

    async def _judge(self, name: str) -> None:
        """Its containers run: is its NIC there, up and with its address?"""
        sandbox = self._testbed.sandbox(name)
        assert sandbox is not None
        found = await asyncio.to_thread(self._testbed.node.nics_in, sandbox.netns_path)
        links = [link for link, _ in found]
        whole = [
            link
            for link in links
            if link["ifname"] == IFNAME
            and "UP" in link["flags"]
            and any(address["family"] == "inet" for address in link["addr_info"])
        ]
        if not (len(links) == len(whole) == 1):
            self.damage.bare.append(f"{name}: {links}")

    async def _watch_slices(self) -> None:
        async with ApiClient.from_kubeconfig(self._testbed.places.kubeconfig) as client:
            selector = f"spec.driver={DRIVER_NAME},spec.nodeName={NODE_NAME}"
            known: dict[str, int] = {}
            news = list_and_watch(client, paths.RESOURCE_SLICES, field_selector=selector)
            async with contextlib.aclosing(news):
                async for item in news:
                    if isinstance(item, Snapshot):
                        known = dict(map(_count_devices, item.items))
                    elif item.type is EventType.DELETED:
                        known.pop(item.object["metadata"]["name"], None)
                    else:
                        known.update([_count_devices(item.object)])
                    self._note_devices(sum(known.values()))

    def _note_devices(self, count: int) -> None:
        fewest = self.damage.fewest_devices
        self.damage.fewest_devices = count if fewest is None else min(fewest, count)

    async def _collect_failures(self) -> None:
        """The kubelet's own words, as a user would read them."""
        for event in await self._testbed.fetch_events():
            if event["type"] == "Warning" and event["involvedObject"]["name"].startswith("storm-"):
                self.damage.failures.append(f"{event['reason']}: {event.get('message', '')}")


def _count_devices(slice_: JsonObject) -> tuple[str, int]:
    return slice_["metadata"]["name"], len(slice_["spec"].get("devices", ()))

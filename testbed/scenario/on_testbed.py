"""The testbed as what a scenario is walked on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from dranet.inventory.policy import Decision
from testbed.cluster import DRIVER_NAME, Testbed
from testbed.node.hoststate import HostState
from testbed.node.iproute import in_namespace, read_json, read_text
from testbed.runtime.contract import RunningContainer
from testbed.scenario.counterpart import JsonObject, NotThere
from testbed.scenario.walk import StepFailed
from testbed.traffic import Endpoint


class _Driver:
    """The driver as a child process."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed

    async def start(self, settings: Mapping[str, str]) -> None:
        await self._testbed.driver.start(settings)

    async def check_ready(self) -> str:
        return await self._testbed.driver.check_ready()

    def describe(self) -> str:
        return f"dranet run, pid {self._testbed.driver.pid}"

    async def stop(self, within: float) -> int | None:
        return (await self._testbed.driver.stop(within)).exit_code

    async def kill(self, *, stays_away: bool) -> None:  # noqa: ARG002 -- no kubelet starts it again here
        await self._testbed.driver.kill()
        await self._testbed.kubelet.wait_driver(DRIVER_NAME, registered=False)

    async def roll(self, within: float) -> str:
        roll = await self._testbed.roll_driver(within)
        if roll.old.exit_code != 0:
            raise StepFailed(f"the old driver's exit code is {roll.old.exit_code}")
        ready, gone = f"{roll.ready_seconds:.1f} s", f"{roll.stop_seconds:.1f} s"
        return f"pid {self._testbed.driver.pid} was ready after {ready}, the old one gone {gone} later"

    def log_tail(self) -> str:
        return self._testbed.driver.log_tail()


class _Pods:
    """Pods as the stand-in kubelet knows them."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed

    async def wait_prepared(self, pod: str) -> None:
        await self._testbed.kubelet.wait_prepared(self._testbed.pod_uid(pod))

    async def wait_running(self, pod: str) -> None:
        await self._testbed.kubelet.wait_running(self._testbed.pod_uid(pod))

    async def wait_gone(self, pod: str) -> None:
        await self._testbed.kubelet.wait_gone(self._testbed.pod_uid(pod))

    def describe_start(self, pod: str) -> str:
        timings = self._testbed.kubelet.timings(self._testbed.pod_uid(pod))
        phases = {
            "Prepare": timings.prepare_seconds,
            "sandbox with NRI hook": timings.sandbox_seconds,
            "containers": timings.containers_seconds,
        }
        return f"{pod}: " + ", ".join(
            f"{name} {seconds * 1000:.0f} ms" for name, seconds in phases.items() if seconds is not None
        )

    async def explain(self, pod: str) -> str:
        kubelet, uid = self._testbed.kubelet, self._testbed.pod_uid(pod)
        failure = kubelet.failure(uid) or "no failure known to the kubelet"
        return f"pod {pod} is {kubelet.stage(uid).name.lower()}: {failure}"

    def hold_sandboxes(self, hold: bool) -> None:
        self._testbed.kubelet.hold_sandboxes(hold)

    async def find_nics(self, pod: str) -> list[JsonObject]:
        found = await asyncio.to_thread(self._testbed.node.nics_in, self._find_netns(pod))
        return [dict(link) for link, _ in found]

    async def run_inside(self, pod: str, command: Sequence[str]) -> str:
        return await asyncio.to_thread(read_text, *in_namespace(self._find_netns(pod), *command))

    async def inspect_container(self, pod: str) -> RunningContainer:
        containers = list(self._testbed.containers(pod).values())
        if not containers:
            raise NotThere(f"pod {pod} has no running container")
        return containers[0]

    async def find_endpoint(self, pod: str) -> Endpoint:
        return find_endpoint(pod, self._find_netns(pod), await self.find_nics(pod))

    def _find_netns(self, pod: str) -> str:
        sandbox = self._testbed.sandbox(pod)
        if sandbox is None:
            raise NotThere(f"pod {pod} has no sandbox")
        return sandbox.netns_path


def find_endpoint(pod: str, netns_path: str, links: Sequence[JsonObject]) -> Endpoint:
    """The first of a pod's NICs that has an IPv4 address.

    Raises:
        NotThere: none has.
    """
    for link in links:
        for address in link.get("addr_info", ()):
            if address["family"] == "inet":
                return Endpoint(netns_path, link["ifname"], address["local"])
    raise NotThere(f"pod {pod} has no NIC with an IPv4 address")


class OnTestbed:
    """A testbed that the caller has booted, as a :class:`Counterpart <...scenario.counterpart>`."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.driver = _Driver(testbed)
        self.pods = _Pods(testbed)

    @property
    def decisions(self) -> Sequence[Decision]:
        return self.testbed.decisions

    async def start_vendor_driver(self, driver: str) -> None:
        await self.testbed.add_vendor(driver)
        await self.testbed.kubelet.wait_driver(driver)

    async def add_device_plugin(self, resource: str, ids: Sequence[str]) -> None:
        self.testbed.kubelet.add_device_plugin(resource, ids)

    async def apply(self, manifests: Sequence[JsonObject]) -> None:
        await self.testbed.apply(manifests)

    async def allocate(self, claim: str, devices: Mapping[str, str]) -> None:
        await self.testbed.allocate(claim, devices)

    async def delete_pod(self, name: str) -> None:
        await self.testbed.delete_pod(name)

    async def fetch_pod(self, name: str) -> JsonObject:
        return await self.testbed.fetch_pod(name)

    async def fetch_claim(self, name: str) -> JsonObject:
        return await self.testbed.fetch_claim(name)

    async def fetch_pod_claims(self, name: str) -> list[JsonObject]:
        return await self.testbed.fetch_pod_claims(name)

    async def fetch_slices(self) -> list[JsonObject]:
        return await self.testbed.fetch_slices()

    async def fetch_events(self, name: str) -> list[JsonObject]:
        return await self.testbed.fetch_events(name)

    async def read_node_links(self) -> list[JsonObject]:
        links = await asyncio.to_thread(read_json, "ip", "-json", "address")
        return [dict(link) for link in links]

    async def read_host_state(self) -> HostState:
        return await asyncio.to_thread(self.testbed.node.snapshot)

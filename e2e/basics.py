"""What every cluster can show, whatever hardware it has: a NIC's way from the installation to the removal.

Install, slices, a claim for the first NIC that is free, the interface inside the pod, the condition, the
return of the NICs, an update with surge, and removal. Steps and their output are reported as a scenario's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from e2e.access import E2eFailed
from e2e.live_cluster import LiveCluster
from e2e.objects import NAMESPACE, on_node
from testbed.cluster import DRIVER_NAME
from testbed.node.iproute import in_namespace
from testbed.scenario.counterpart import JsonObject
from testbed.scenario.run import Execution
from testbed.scenario.walk import Lines

NAME = "basics"
INTERFACE = "e2e0"
_POD, _NEXT_POD = "first", "second"
_SECONDS = 30.0
_POLL_SECONDS = 0.2
_RESOURCE = "resource.k8s.io/v1"
_IDENTITIES = ((DRIVER_NAME, "ifName"), (DRIVER_NAME, "rdmaDevice"), ("resource.kubernetes.io", "pciBusID"))
"""Attributes, by domain: the first one that a NIC has distinguishes it from all others of the node."""


class NoFreeNic(E2eFailed):
    """The node has none that the driver offers: what comes after it cannot be shown there."""


@dataclass(slots=True)
class Basics:
    """One walk. ``device`` is the NIC that was taken, once one is."""

    cluster: LiveCluster
    device: str = ""
    skipped: list[str] = field(default_factory=list)

    async def walk(self, execution: Execution) -> bool:
        """Whether every step was as expected; the first failure ends it."""
        steps: list[tuple[str, Callable[[], Awaitable[Lines]]]] = [
            ("Install the manifests, and wait for the driver on the node", self._install),
            ("What it publishes for the node", self._expect_slices),
            ("A pod that claims one NIC, whichever is free", partial(self._run_pod, _POD)),
            ("The claim's status is ready and has the name inside the pod", self._expect_ready),
            ("The interface inside the pod", self._expect_interface),
            ("An update with surge; the pod keeps its NIC", self._roll),
            ("A pod that starts after the update, on the NIC that the first one returned", self._take_over),
            ("Its pod goes", partial(self._delete_pod, _NEXT_POD)),
        ]
        for title, work in steps:
            if not await execution.perform(title, partial(self._with_deadline, work)):
                return False
        return True

    async def _with_deadline(self, work: Callable[[], Awaitable[Lines]]) -> Lines:
        try:
            async with asyncio.timeout(_SECONDS * self.cluster.access.patience):
                return await work()
        except TimeoutError as error:
            stuck = await self.cluster.pods.explain(_POD)
            raise E2eFailed(f"not in time; {stuck}; {await self.cluster.driver.check_ready()}") from error

    async def _install(self) -> Lines:
        await self.cluster.driver.start({})
        while await self.cluster.driver.check_ready():
            await asyncio.sleep(_POLL_SECONDS)
        return (self.cluster.driver.describe(),)

    async def _expect_slices(self) -> Lines:
        while not (slices := await self.cluster.fetch_slices()):
            await asyncio.sleep(_POLL_SECONDS)
        devices = _list_devices(slices)
        nics = [device for device in devices if not _is_gpu(device)]
        if not nics:
            raise NoFreeNic(
                f"node {self.cluster.access.node_name} offers no NIC",
                hint="give the node one besides its uplink",
            )
        return (f"{len(devices)} devices, {len(nics)} of them NICs",)

    async def _run_pod(self, name: str, selector: str = "") -> Lines:
        template = _build_template(name, selector)
        await self.cluster.apply([_CLASS, template, _build_pod(name, self.cluster.access.node_name)])
        await self.cluster.pods.wait_running(name)
        (claim,) = await self.cluster.fetch_pod_claims(name)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        if self.device not in ("", result["device"]):
            raise E2eFailed(f"pod {name} got {result['device']}, not {self.device}, which was returned")
        self.device = result["device"]
        return (f"pod {name} runs with {self.device}",)

    async def _expect_ready(self) -> Lines:
        while True:
            (claim,) = await self.cluster.fetch_pod_claims(_POD)
            for entry in claim["status"].get("devices", ()):
                conditions = {item["type"]: item["status"] for item in entry.get("conditions", ())}
                if entry["driver"] == DRIVER_NAME and conditions.get("Ready") == "True":
                    data = entry.get("networkData", {})
                    if data.get("interfaceName") != INTERFACE:
                        raise E2eFailed(f"the claim calls it {data.get('interfaceName')}, not {INTERFACE}")
                    return (f"Ready, {INTERFACE} {' '.join(data.get('ips', ()))}".strip(),)
            await asyncio.sleep(_POLL_SECONDS)

    async def _expect_interface(self) -> Lines:
        hands = self.cluster.access.hands
        if hands is None:
            self.skipped.append("a look into the pod: this lane cannot reach the node")
            return ("skipped: this lane cannot reach the node",)
        netns = await self.cluster.pods.find_netns(_POD)
        links = json.loads(await hands.run(*in_namespace(netns, "ip", "-json", "address")))
        found = [link for link in links if link["ifname"] == INTERFACE]
        if not found or "UP" not in found[0]["flags"]:
            raise E2eFailed(f"pod {_POD} has {[link['ifname'] for link in links]}; {INTERFACE} is to be up")
        return (f"{INTERFACE}: up mtu {found[0]['mtu']}",)

    async def _roll(self) -> Lines:
        lines = await self.cluster.driver.roll(_SECONDS * self.cluster.access.patience)
        await self._expect_ready()
        return (lines, *await self._expect_interface())

    async def _take_over(self) -> Lines:
        """The next pod asks for that very NIC, whatever else is free: its claim waits until the first one's
        has been taken away, which may be after its pod."""
        selector = await self._select_device()
        await self._delete_pod(_POD)
        return await self._run_pod(_NEXT_POD, selector)

    async def _select_device(self) -> str:
        """CEL that holds for the NIC that was taken, and for no other of the node."""
        devices = {device["name"]: device for device in _list_devices(await self.cluster.fetch_slices())}
        if self.device not in devices:
            raise E2eFailed(f"{self.device} is not published any more, and a pod has it")
        for domain, name in _IDENTITIES:
            if value := _read_attribute(devices[self.device], domain, name):
                return f'device.attributes["{domain}"].?{name}.orValue("") == {json.dumps(value)}'
        raise E2eFailed(f"{self.device} has none of {', '.join(name for _, name in _IDENTITIES)}")

    async def _delete_pod(self, name: str) -> Lines:
        await self.cluster.delete_pod(name)
        await self.cluster.pods.wait_gone(name)
        return (f"pod {name} is gone",)


def _list_devices(slices: Sequence[JsonObject]) -> list[JsonObject]:
    return [device for item in slices for device in item["spec"].get("devices", ())]


def _is_gpu(device: JsonObject) -> bool:
    return _read_attribute(device, DRIVER_NAME, "type") == "gpu"


def _read_attribute(device: JsonObject, domain: str, name: str) -> str:
    """Its text, or an empty string. A driver may leave its own domain out."""
    attributes = device.get("attributes", {})
    own = attributes.get(name, {}) if domain == DRIVER_NAME else {}
    return str(attributes.get(f"{domain}/{name}", own).get("string", ""))


_CLASS: JsonObject = {
    "apiVersion": _RESOURCE,
    "kind": "DeviceClass",
    "metadata": {"name": "dranet-e2e"},
    "spec": {
        "selectors": [
            {
                "cel": {
                    "expression": f'device.driver == "{DRIVER_NAME}" && '
                    f'device.attributes["{DRIVER_NAME}"].?type.orValue("") != "gpu"'
                }
            }
        ]
    },
}


def _build_template(pod: str, selector: str) -> JsonObject:
    selectors = [{"cel": {"expression": selector}}] if selector else []
    exactly = {"deviceClassName": "dranet-e2e", "selectors": selectors}
    parameters = {"interface": {"name": INTERFACE}}
    return {
        "apiVersion": _RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"nic-of-{pod}", "namespace": NAMESPACE},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "nic", "exactly": exactly}],
                    "config": [{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}],
                }
            }
        },
    }


def _build_pod(name: str, node: str) -> JsonObject:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "infinity"],
        "resources": {"claims": [{"name": "nic"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "affinity": on_node(node),
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": f"nic-of-{name}"}],
            "containers": [container],
        },
    }

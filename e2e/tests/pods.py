"""Pods with NICs for the tests: made, waited for, looked into, deleted."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dranet.errors import ClusterError, Reason
from e2e.access import E2eFailed
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.objects import JsonObject, collection
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hoststate import HostState

RESOURCE = "resource.k8s.io/v1"
NIC_CLASS = "dranet-rdma"
"""A DeviceClass of ``deploy/``."""
NIC_PARAMETERS: JsonObject = {"rdma": {"memlock": "64Ki"}}
"""A machine without CAP_SYS_RESOURCE cannot raise the limit that the class asks for."""
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_IGNORED = ("lo", "eth0")


async def wait_until(look: Callable[[], Awaitable[object]], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until ``look`` returns something true, or, if it returns text, no text; return that.

    Raises:
        E2eFailed: not in time; with the last answer.
    """
    answer: object = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = await look()
                if (answer == "") if isinstance(answer, str) else answer:
                    return answer
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise E2eFailed(f"{what}: not within {seconds:g} s: {answer}") from error


async def find_difference(live: LiveCluster, before: HostState) -> str:
    """What of the node's network is not as it was; empty when all is."""
    return "\n".join(before.differences(await live.read_host_state()))


class PodMaker:
    """Pods of one namespace. Every pod ends at once when asked to."""

    def __init__(self, live: LiveCluster, namespace: str) -> None:
        self.live = live
        self.namespace = namespace
        self._api = live.api
        self._pods = collection("v1", "Pod", namespace)
        self._made: list[str] = []

    async def make(
        self, name: str, *, nics: int = 1, claims: int = 1, parameters: JsonObject | None = None
    ) -> JsonObject:
        """Create a pod with ``claims`` claims of ``nics`` NICs each, from a template of its own."""
        await self._api.create(self._templates, build_template(name, nics, parameters))
        return await self.create(build_pod(name, [name] * claims, self.image))

    async def create(self, pod: JsonObject) -> JsonObject:
        self._made.append(pod["metadata"]["name"])
        return await self._api.create(self._pods, pod)

    async def run(self, name: str, **options: Any) -> JsonObject:
        """Make a pod and wait until it is ready; the pod."""
        await self.make(name, **options)
        return await self.wait_ready(name)

    async def wait_ready(self, name: str) -> JsonObject:
        async def look() -> JsonObject | None:
            pod = await self.get(name)
            return pod if is_ready(pod) else None

        try:
            found: JsonObject = await wait_until(look, f"pod {name} is ready", 4 * WAIT_SECONDS)
        except E2eFailed as error:
            raise E2eFailed(f"pod {name} is not ready: {await self.explain(name)}") from error
        return found

    async def get(self, name: str) -> JsonObject:
        return await self._api.get(f"{self._pods}/{name}")

    async def explain(self, name: str) -> str:
        """The pod's Events, one after the other."""
        events = collection_of_events(self.namespace)
        answer = await self._api.list(events, field_selector=f"involvedObject.name={name}")
        return "; ".join(f"{event['reason']}: {event.get('message', '')}" for event in answer["items"])

    async def wait_unscheduled(self, name: str) -> None:
        """Wait until the scheduler reports that the pod finds no node."""
        await self.wait_event(name, "FailedScheduling")
        assert not (await self.get(name))["spec"].get("nodeName")

    async def wait_event(self, name: str, reason: str) -> None:
        async def look() -> bool:
            return f"{reason}:" in await self.explain(name)

        await wait_until(look, f"pod {name} has an Event {reason}")

    async def create_claim(self, name: str, spec: JsonObject) -> JsonObject:
        """Create a ResourceClaim; pods refer to it by ``claims`` of :func:`build_pod`."""
        item = {"apiVersion": RESOURCE, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        return await self._api.create(self._claims, item)

    async def get_claim(self, name: str) -> JsonObject:
        return await self._api.get(f"{self._claims}/{name}")

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete it and wait until its object is gone. ``force`` does not wait for the kubelet."""
        await self._api.delete(f"{self._pods}/{name}", grace_period_seconds=0 if force else None)
        await self.wait_gone(name)

    async def wait_gone(self, name: str) -> None:
        async def look() -> bool:
            try:
                await self.get(name)
            except ClusterError as error:
                return error.reason is Reason.API_NOT_FOUND
            return False

        await wait_until(look, f"pod {name} is gone")

    async def delete_all(self) -> None:
        for name in self._made:
            try:
                await self.delete(name)
            except ClusterError as error:
                if error.reason is not Reason.API_NOT_FOUND:
                    raise

    async def fetch_claims(self, pod: JsonObject) -> list[JsonObject]:
        """In the order of the pod's names for them; the status has them in any."""
        entries = sorted(pod["status"]["resourceClaimStatuses"], key=lambda entry: str(entry["name"]))
        return [await self.get_claim(entry["resourceClaimName"]) for entry in entries]

    async def list_links(self, pod: JsonObject) -> list[str]:
        """Names of the links in the pod, without the runtime's own."""
        assert self.live.access.hands is not None
        netns = await self._find_netns(pod)
        text = await self.live.access.hands.run("nsenter", f"--net={netns}", "ip", "-json", "link")
        return [link["ifname"] for link in json.loads(text) if link["ifname"] not in _IGNORED]

    async def wait_health(self, name: str, health: str) -> JsonObject:
        """Wait until the kubelet reports it of the pod's devices; return the pod."""

        async def look() -> JsonObject | None:
            pod = await self.get(name)
            entries = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus", ())
            found = {resource["health"] for entry in entries for resource in entry["resources"]}
            return pod if found == {health} else None

        found: JsonObject = await wait_until(look, f"the device of pod {name} is {health}", 2 * WAIT_SECONDS)
        return found

    @asynccontextmanager
    async def pulled_cable(self, pod: JsonObject) -> AsyncIterator[None]:
        """The pod's only NIC has no carrier inside, wherever the NIC goes meanwhile."""
        assert self.live.access.hands is not None
        assert self.live.access.layout is not None
        netns = await self._find_netns(pod)
        ((link, _),) = await asyncio.to_thread(self.live.access.layout.nics_in, netns)
        port = ("ip", "-n", FABRIC_NETNS, "link", "set", f"sw-{link['link_index']}")
        await self.live.access.hands.run(*port, "down")
        try:
            yield
        finally:
            await self.live.access.hands.run(*port, "up")

    async def _find_netns(self, pod: JsonObject) -> str:
        assert self.live.access.hands is not None
        return await self.live.access.hands.find_netns(pod["metadata"]["uid"])

    @property
    def _claims(self) -> str:
        return collection(RESOURCE, "ResourceClaim", self.namespace)

    @property
    def _templates(self) -> str:
        return collection(RESOURCE, "ResourceClaimTemplate", self.namespace)

    @property
    def image(self) -> str:
        return self.live.access.pod_image


def build_request(name: str = "nic", device_class: str = NIC_CLASS, **more: Any) -> JsonObject:
    """A request for a device of a class."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def build_spec(*requests: JsonObject, parameters: JsonObject | None = None) -> JsonObject:
    """The spec of a claim for NICs, with the driver's parameters if there are any."""
    own = {**NIC_PARAMETERS, **(parameters or {})}
    config = [{"opaque": {"driver": "dra.net", "parameters": own}}]
    return {"devices": {"requests": list(requests), "config": config}}


def build_template(name: str, nics: int = 1, parameters: JsonObject | None = None) -> JsonObject:
    """A template of claims for NICs."""
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": build_spec(build_request(count=nics), parameters=parameters)},
    }


def build_pod(name: str, templates: Sequence[str], image: str, claims: Sequence[str] = ()) -> JsonObject:
    """A pod with a claim from each template, and with ``claims``, which exist."""
    sources = [{"resourceClaimTemplateName": template} for template in templates]
    sources += [{"resourceClaimName": claim} for claim in claims]
    entries = [{"name": f"nic{number}", **source} for number, source in enumerate(sources)]
    container: JsonObject = {
        "name": "main",
        "image": image,
        "command": ["sh", "-c", "trap exit TERM; sleep infinity & wait"],
        "resources": {"claims": [{"name": entry["name"]} for entry in entries]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "resourceClaims": entries},
    }


def lower_memlock(item: JsonObject) -> JsonObject:
    """A machine without CAP_SYS_RESOURCE cannot raise the limit to what the class asks for."""
    if item["kind"] != "ResourceClaimTemplate":
        return item
    changed = copy.deepcopy(item)
    devices = changed["spec"]["spec"]["devices"]
    names = [one["name"] for one in devices["requests"] if one["exactly"]["deviceClassName"] == NIC_CLASS]
    opaque = {"driver": "dra.net", "parameters": NIC_PARAMETERS}
    devices.setdefault("config", []).append({"requests": names, "opaque": opaque})
    return changed


def fit_pod(pod: JsonObject, image: str) -> JsonObject:
    """A pod, or a template of pods, with an image that is here and a program that sleeps, and without a rule
    about other nodes."""
    fitted = copy.deepcopy(pod)
    fitted["spec"].pop("affinity", None)
    (sleeping,) = build_pod("", [], image)["spec"]["containers"]
    for container in fitted["spec"]["containers"]:
        container.pop("args", None)
        container.update(image=image, command=sleeping["command"])
    return fitted


def collection_of_events(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/events"


async def restart_kubelet(cluster: LocalCluster) -> None:
    """Kill it and start it again; its node is ready afterwards."""
    await cluster.kill_kubelet()
    await cluster.start_kubelet()

"""A cluster behind a kubeconfig, as what a scenario is walked on.

Everything goes through the API server, except what only the node knows (inside a pod, its own links),
which the lane's hands look at. What the suite makes, it takes away again: pods first, then the driver, then
its namespace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision
from dranet.kernel.discovery.scan import NodeScanner
from e2e.access import Access, E2eFailed
from e2e.installation import SYSTEM_NAMESPACE
from e2e.live_driver import MANAGER, LiveDriver
from e2e.live_pods import LivePods
from e2e.objects import MARK, NAMESPACE, collection, fit, is_namespaced, path_of
from e2e.ownership import check_ours, is_ours, suppress_not_found
from testbed.cluster import DRIVER_NAME
from testbed.node.hoststate import HostState
from testbed.scenario.counterpart import JsonObject

_CLEANING_SECONDS = 90.0
_POLL_SECONDS = 0.1
_RESOURCE = "resource.k8s.io/v1"
_CLAIMS = collection(_RESOURCE, "ResourceClaim", NAMESPACE)
_SLICES = f"/apis/{_RESOURCE}/resourceslices"


class LiveCluster:
    """Implements :class:`~testbed.scenario.counterpart.Counterpart`; ``async with`` makes the suite's
    namespace and takes away at the end what was made. ``with_classes``: also install the DeviceClasses."""

    def __init__(self, access: Access, *, with_classes: bool = False) -> None:
        self.access = access
        self.api = ApiClient.from_kubeconfig(access.kubeconfig, user_agent=MANAGER)
        self.driver = LiveDriver(self.api, access, with_classes=with_classes)
        self.pods = LivePods(self.api, access)
        self.decisions: Sequence[Decision] = ()
        self._made: dict[str, JsonObject] = {}
        self._allocated_by_hand: set[str] = set()

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        await self._make(_namespace(NAMESPACE))
        if self.access.layout is not None:
            self.decisions = await asyncio.to_thread(self._read_decisions)
        return self

    async def __aexit__(self, *_: object) -> None:
        within = _CLEANING_SECONDS * self.access.patience
        try:
            async with asyncio.timeout(within):
                await self._clean_up()
        except TimeoutError as error:
            raise E2eFailed(
                f"not everything was taken away within {within:g} s",
                hint=f"look at the namespaces {NAMESPACE} and {SYSTEM_NAMESPACE}",
            ) from error
        finally:
            await self.api.aclose()

    def _read_decisions(self) -> Sequence[Decision]:
        assert self.access.layout is not None
        return take_inventory(
            NodeScanner(self.access.layout.sysfs_root, self.access.layout.procfs_root).read(), {}
        )

    async def start_vendor_driver(self, driver: str) -> None:
        assert self.access.control is not None
        await self.access.control.start_vendor_driver(driver)

    async def add_device_plugin(self, resource: str, ids: Sequence[str]) -> None:
        assert self.access.control is not None
        await self.access.control.add_device_plugin(resource, ids)

    async def apply(self, manifests: Sequence[JsonObject]) -> None:
        for manifest in manifests:
            item = fit(manifest, self.access.pod_image)
            by_hand = self._allocated_by_hand.intersection(_claims_of(item))
            if by_hand:
                item["spec"]["nodeName"] = self.access.node_name
            answer = await self._make(item)
            if item["kind"] == "Pod":
                self.pods.uids[item["metadata"]["name"]] = answer["metadata"]["uid"]
            for claim in by_hand:
                await self._reserve(claim, answer)

    async def allocate(self, claim: str, devices: Mapping[str, str]) -> None:
        node = self.access.node_name
        results = [
            {"request": request, "driver": DRIVER_NAME, "pool": node, "device": device}
            for request, device in devices.items()
        ]
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector = {"nodeSelectorTerms": [{"matchFields": [here]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": selector}
        await self.api.patch(f"{_CLAIMS}/{claim}/status", {"status": {"allocation": allocation}})
        self._allocated_by_hand.add(claim)

    async def _reserve(self, claim: str, pod: JsonObject) -> None:
        """For a pod that no scheduler has seen: a scheduler would undo what it has not allocated itself."""
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        await self.api.patch(f"{_CLAIMS}/{claim}/status", {"status": {"reservedFor": [consumer]}})

    async def delete_pod(self, name: str) -> None:
        await self.api.delete(f"{collection('v1', 'Pod', NAMESPACE)}/{name}", uid=self.pods.uids.get(name))

    async def fetch_pod(self, name: str) -> JsonObject:
        return await self.api.get(f"{collection('v1', 'Pod', NAMESPACE)}/{name}")

    async def fetch_claim(self, name: str) -> JsonObject:
        return await self.api.get(f"{_CLAIMS}/{name}")

    async def fetch_pod_claims(self, name: str) -> list[JsonObject]:
        pod = await self.fetch_pod(name)
        statuses = pod.get("status", {}).get("resourceClaimStatuses", ())
        made = {status["name"]: status.get("resourceClaimName") for status in statuses}
        entries = pod["spec"].get("resourceClaims", ())
        names = [entry.get("resourceClaimName") or made.get(entry["name"]) for entry in entries]
        return [await self.fetch_claim(claim) for claim in names if claim]

    async def fetch_slices(self) -> list[JsonObject]:
        selector = f"spec.driver={DRIVER_NAME},spec.nodeName={self.access.node_name}"
        return list((await self.api.list(_SLICES, field_selector=selector)).get("items", ()))

    async def fetch_events(self, name: str) -> list[JsonObject]:
        return await self.pods.fetch_events(name)

    async def read_node_links(self) -> list[JsonObject]:
        assert self.access.hands is not None
        links: list[JsonObject] = json.loads(await self.access.hands.run("ip", "-json", "address"))
        return links

    async def read_host_state(self) -> HostState:
        if self.access.layout is None:
            return HostState(frozenset())
        return await asyncio.to_thread(self.access.layout.snapshot)

    async def _make(self, item: JsonObject) -> JsonObject:
        """Apply it, and remember it before: a call that was cancelled may still have made it. What is
        another owner's outside the namespace is left alone."""
        path = path_of(item)
        if not is_namespaced(item):
            await check_ours(self.api, item)
        self._made[path] = item
        return await self.api.apply(path, item, field_manager=MANAGER)

    async def _clean_up(self) -> None:
        """Pods and claims while the driver is there to return NICs, then the driver, then the namespace."""
        for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"):
            for path in [path for path, item in self._made.items() if item["kind"] == kind]:
                with suppress_not_found():
                    await self.api.delete(path)
        while (await self.api.list(collection("v1", "Pod", NAMESPACE))).get("items"):
            await asyncio.sleep(_POLL_SECONDS)
        await self.driver.remove()
        for path in reversed(self._made):
            with suppress_not_found():
                await self.api.delete(path)
        await self._wait_namespaces_gone()

    async def _wait_namespaces_gone(self) -> None:
        """So that the next scenario does not find a namespace that is on its way out."""
        for name in (NAMESPACE, SYSTEM_NAMESPACE):
            with suppress(ClusterError):
                while is_ours(await self.api.get(path_of(_namespace(name)))):
                    await asyncio.sleep(_POLL_SECONDS)


def _claims_of(item: JsonObject) -> list[str]:
    """The claims that a pod names itself."""
    if item["kind"] != "Pod":
        return []
    entries = item["spec"].get("resourceClaims", ())
    return [entry["resourceClaimName"] for entry in entries if "resourceClaimName" in entry]


def _namespace(name: str) -> JsonObject:
    """Its pods ask for no rights and drop none."""
    labels = {MARK: "true", "pod-security.kubernetes.io/enforce": "baseline"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


async def find_installed(api: ApiClient) -> str:
    """The installation of the driver that is there already, or an empty string."""
    found = await api.list(collection("apps/v1", "DaemonSet"), label_selector="app.kubernetes.io/name=dranet")
    names = [
        f"DaemonSet {item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in found.get("items", ())
        if not is_ours(item)
    ]
    if not names:
        slices = await api.list(_SLICES, field_selector=f"spec.driver={DRIVER_NAME}")
        names = [f"ResourceSlice {item['metadata']['name']}" for item in slices.get("items", ())[:1]]
    return ", ".join(names)

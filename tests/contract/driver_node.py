"""The real driver on a testbed node, and what a kubelet would see and touch of it.

One node serves every test of a module, one after the other, inside a private tree (see ``conftest``). A test
plays the kubelet itself with :class:`tests.contract.calls.Calls`, or lets the testbed's kubelet run a pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dranet.cluster import paths
from dranet.errors import ClusterError, DranetError
from dranet.model.claim import ClaimRef
from testbed.cluster import DRIVER_NAME, NAMESPACE, NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.contract.calls import Calls
from tests.contract.proxy import ApiProxy
from tests.support.objects import device_class
from tests.support.waiting import until

JsonObject = dict[str, Any]

TEST_SECONDS = 90.0
"""For one story: more than the deadlines within the longest of them, on a machine that does much else."""
READY_SECONDS = 20.0
NIC, OTHER_NIC, GPU = "pci-0000-23-00-0", "pci-0000-83-00-0", "gpu-0000-24-00-0"


@dataclass(frozen=True, slots=True)
class Result:
    """One entry of an allocation."""

    device: str
    request: str = "nic"
    driver: str = DRIVER_NAME
    pool: str = NODE_NAME
    admin_access: bool = False

    def to_json(self) -> JsonObject:
        entry: JsonObject = {
            "request": self.request,
            "driver": self.driver,
            "pool": self.pool,
            "device": self.device,
        }
        return {**entry, "adminAccess": True} if self.admin_access else entry


class DrivenNode:
    """One node with the driver as a child process, its API server behind a proxy that can stall."""

    def __init__(self, testbed: Testbed, proxy: ApiProxy, kubeconfig: Path) -> None:
        self.testbed = testbed
        self.proxy = proxy
        self._kubeconfig = kubeconfig
        self._claims: list[ClaimRef] = []
        self._pods: list[str] = []
        self._consumers: dict[str, str] = {}

    @property
    def calls(self) -> Calls:
        root = self.testbed.places.kubelet_root
        return Calls(
            root / "plugins_registry" / f"{DRIVER_NAME}-reg.sock",
            root / "plugins" / DRIVER_NAME / "dra.sock",
        )

    async def start(self, *, wait: bool = True, command: Sequence[str] = ()) -> None:
        """Start the driver, or the build ``command`` of it, and wait until it is ready."""
        await self.testbed.driver.start({"kubeconfig": str(self._kubeconfig)}, command=command)
        if wait:
            await self.testbed.driver.wait_ready(READY_SECONDS)

    async def claim(
        self,
        name: str,
        *results: Result,
        spec: Sequence[JsonObject] = (),
        config: Sequence[JsonObject] = (),
    ) -> ClaimRef:
        """A claim, allocated and reserved past the scheduler, for a pod that only the API server knows."""
        requests = list(spec) or [
            {"name": result.request, "exactly": {"deviceClassName": "any"}} for result in results
        ]
        unique = {request["name"]: request for request in requests}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": list(unique.values())}},
        }
        made = await self.testbed.api.create(paths.resource_claims(NAMESPACE), body)
        ref = ClaimRef(NAMESPACE, name, made["metadata"]["uid"])
        self._claims.append(ref)
        node_selector = {"nodeSelectorTerms": [{"matchFields": [_OF_THIS_NODE]}]}
        status = {
            "allocation": {
                "devices": {"results": [result.to_json() for result in results], "config": list(config)},
                "nodeSelector": node_selector,
            },
            "reservedFor": [{"resource": "pods", "name": name, "uid": await self._make_consumer(name)}],
        }
        await self.testbed.api.patch(paths.resource_claim_status(NAMESPACE, name), {"status": status})
        return ref

    async def _make_consumer(self, name: str) -> str:
        """A pod of another node, so that no kubelet here minds it; its UID."""
        if name not in self._consumers:
            container = {"name": "main", "image": "x"}
            spec = {"nodeName": "elsewhere", "containers": [container]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            made = await self.testbed.api.create(paths.pods(NAMESPACE), body)
            self._consumers[name] = made["metadata"]["uid"]
        return self._consumers[name]

    async def delete_claim(self, ref: ClaimRef) -> None:
        await self.testbed.api.delete(paths.resource_claim(ref.namespace, ref.name))

    async def running_pod(self, name: str = "worker", claim: str = "nic") -> str:
        """A pod with one NIC that the scheduler chose, up and running; its UID."""
        await self.testbed.apply(
            [
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": claim},
                    "spec": {
                        "devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}
                    },
                },
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name},
                    "spec": {
                        "resourceClaims": [{"name": "nic", "resourceClaimName": claim}],
                        "containers": [
                            {"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}
                        ],
                    },
                },
            ]
        )
        self._pods.append(name)
        uid = self.testbed.pod_uid(name)
        await self.testbed.kubelet.wait_running(uid)
        body = await self.testbed.fetch_claim(claim)
        self._claims.append(ClaimRef(NAMESPACE, claim, body["metadata"]["uid"]))
        return uid

    def forget_pod(self, name: str) -> None:
        """It is gone already."""
        self._pods.remove(name)

    def claim_of(self, name: str) -> ClaimRef:
        """The newest claim of that name."""
        return next(ref for ref in reversed(self._claims) if ref.name == name)

    # What is where

    def stored(self) -> set[str]:
        """UIDs of the claims in the driver's store, read behind its back."""
        return {file.stem for file in (self.testbed.places.work_dir / "state/claims").glob("*.json")}

    def cdi_names(self) -> set[str]:
        """Every device that a runtime could resolve now, fully qualified."""
        specs = [json.loads(path.read_text()) for path in self.testbed.places.cdi_dir.glob("*.json")]
        return {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}

    async def fetch(self, path: str) -> str:
        """A page of the probe port, whatever its status."""
        reader, writer = await asyncio.open_connection("127.0.0.1", 9177)
        with contextlib.closing(writer):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: driver\r\nConnection: close\r\n\r\n".encode())
            return (await reader.read()).partition(b"\r\n\r\n")[2].decode()

    # Between two tests

    async def tidy(self) -> None:
        """Give everything back, so that the next test finds the node as the first one did."""
        self.proxy.flow()
        if not self.testbed.driver.is_running:
            await self.start()
        await self.testbed.driver.wait_ready(READY_SECONDS)
        for name in self._pods:
            await self.testbed.delete_pod(name)
            await self.testbed.kubelet.wait_gone(self.testbed.pod_uid(name))
        answers = await self.calls.unprepare(self._claims)
        assert not any(entry.error for entry in answers.claims.values()), answers
        for ref in self._claims:
            with contextlib.suppress(ClusterError):
                await self.delete_claim(ref)
        self._pods.clear()
        self._claims.clear()
        await until(self.testbed.fetch_slices)
        assert not self.stored()
        assert not self.cdi_names()


@asynccontextmanager
async def driven_node() -> AsyncIterator[DrivenNode]:
    """A booted node with a driver that is ready."""
    async with AsyncExitStack() as stack:
        testbed = await stack.enter_async_context(Testbed(load_hardware("two-nic"), stand_in, WORK_DIR))
        proxy = ApiProxy(Path(testbed._settings()["kubeconfig"]))
        kubeconfig = WORK_DIR / "kubeconfig-of-the-driver"
        await stack.enter_async_context(proxy.running())
        proxy.write_kubeconfig(kubeconfig)
        await testbed.apply([device_class("any", "true"), device_class("nic", _HAS_RDMA)])
        node = DrivenNode(testbed, proxy, kubeconfig)
        await node.start(wait=False)
        try:
            await testbed.driver.wait_ready(READY_SECONDS)
        except DranetError as error:
            raise AssertionError(testbed.driver.log_tail()) from error
        yield node


_OF_THIS_NODE = {"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}
_HAS_RDMA = 'device.attributes["dra.net"].rdma && has(device.attributes["dra.net"].ifName)'


Story = Callable[[DrivenNode], Awaitable[None]]


async def run_stories(stories: Sequence[Story]) -> list[str]:
    """Run them on one node; for each what went wrong, empty if nothing did."""
    async with driven_node() as node:
        return [await _run(story, node) for story in stories]


async def _run(story: Story, node: DrivenNode) -> str:
    complaint = await _complaint_of(story(node), node)
    untidy = await _complaint_of(node.tidy(), node)
    return complaint + (f"while tidying up:\n{untidy}" if untidy else "")


async def _complaint_of(work: Awaitable[None], node: DrivenNode) -> str:
    async def in_time() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await work

    (failure,) = await asyncio.gather(in_time(), return_exceptions=True)
    if failure is None:
        return ""
    return "".join(traceback.format_exception(failure)) + node.testbed.driver.log_tail()

"""A whole one-node cluster: hardware, API server, scheduler, kubelet, runtime, and the driver as a child.

It composes the testbed's parts and speaks for the person at the keyboard: apply, delete, look. Everything
it asks of Kubernetes goes over HTTP; everything it asks of the driver goes over the driver's own sockets and
signals. It must run inside the private tree of ``isolation``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from dranet.cluster import paths, permissions
from dranet.cluster.client import ApiClient
from dranet.errors import DranetError
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision
from dranet.kernel.discovery.scan import NodeScanner
from testbed.apiserver.identity import ADMIN, service_account
from testbed.apiserver.server import ApiServer
from testbed.driver.process import DriverExit, DriverProcess
from testbed.isolation import require_isolation
from testbed.kubelet.kubelet import TestbedKubelet
from testbed.node.hardware import Hardware
from testbed.node.node import Node
from testbed.runtime.contract import PodRuntime, RunningContainer, RunningSandbox
from testbed.scheduler.controllers import Controllers
from testbed.scheduler.scheduler import Scheduler
from testbed.vendor import VendorDriver, list_gpus
from tools.manifests.admission import Driver, build_policies, build_slice_owners
from tools.manifests.parameters_policy import build_parameters_policy

JsonObject = dict[str, Any]

NODE_NAME = "testbed-node"
NAMESPACE = "default"
DRIVER_NAME = permissions.DRIVER_NAME

USER_AGENT = "testbed"
"""The user agent of every part of the cluster except the driver."""


def build_api_server(
    driver_token: str,
    driver: str = DRIVER_NAME,
    *,
    answers_about_others: bool = False,
    judges_parameters: bool = False,
) -> ApiServer:
    """An API server that lets ``driver`` do what ``deploy/rbac.yaml`` and ``deploy/admission-policy.yaml``
    let its service account do, with a token that is bound to a pod on this node. Every other user is an
    administrator. ``answers_about_others``: also what ``metrics_authentication`` needs.
    ``judges_parameters``: wrong parameters are refused when a claim is made, and no other user writes slices
    in the driver's name."""
    user = service_account(
        permissions.NAMESPACE, permissions.SERVICE_ACCOUNT, node=NODE_NAME, pod="dranet-testbed"
    )
    manifests = [*permissions.build_rbac(driver), *build_policies(driver)]
    if judges_parameters:
        manifests += [*build_slice_owners(Driver(driver), (ADMIN.name,)), *build_parameters_policy(driver)]
    if answers_about_others:
        role = next(manifest for manifest in manifests if manifest["kind"] == "ClusterRole")
        role["rules"] += permissions.build_rules(driver, permissions.AUTHENTICATION_PERMISSIONS)
    return ApiServer(users={driver_token: user}, manifests=manifests)


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of everything below the private work folder."""

    work_dir: Path

    @property
    def kubelet_root(self) -> Path:
        return self.work_dir / "kubelet"

    @property
    def nri_socket(self) -> Path:
        return self.work_dir / "nri" / "nri.sock"

    @property
    def cdi_dir(self) -> Path:
        return self.work_dir / "cdi"

    @property
    def netns_dir(self) -> Path:
        return self.work_dir / "netns"

    @property
    def kubeconfig(self) -> Path:
        return self.work_dir / "kubeconfig"

    @property
    def driver_kubeconfig(self) -> Path:
        """The driver's own: it may do what its role lets it, on this node."""
        return self.work_dir / "driver-kubeconfig"

    @property
    def driver_log(self) -> Path:
        return self.work_dir / "driver.log"

    def make(self) -> None:
        for folder in (self.kubelet_root, self.nri_socket.parent, self.cdi_dir, self.netns_dir):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Roll:
    """An update of the driver: how the old one ended, and how long it took."""

    old: DriverExit
    ready_seconds: float
    """From the start of the new one until it is ready as the active instance."""
    stop_seconds: float
    """From SIGTERM until the old one has ended."""


class PodNotApplied(DranetError):
    """A pod was never applied here; the text has the names that were."""


RuntimeFactory = Callable[[Places, Node], PodRuntime]
"""Makes the runtime of a testbed; it is started and stopped by the testbed."""


@runtime_checkable
class RunsDrivers(Protocol):
    """A runtime in which the driver itself is to run, as a container next to the pods that it serves."""

    def make_driver(self, settings: Mapping[str, str], log_file: Path) -> DriverProcess: ...


class Testbed:
    """One cluster; ``async with`` boots it and takes it down.

    ``driver_settings`` go over those that the testbed needs (names as in ``dranet.settings.Settings``).
    ``judges_parameters``: its API server has the admission policies for claims, as a cluster has that was
    installed with the chart; without it wrong claims get as far as the driver.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        hardware: Hardware,
        make_runtime: RuntimeFactory,
        work_dir: Path,
        driver_settings: Mapping[str, str] | None = None,
        *,
        judges_parameters: bool = False,
    ) -> None:
        self._judges_parameters = judges_parameters
        self.places = Places(work_dir)
        self.hardware = hardware
        self.node = Node(hardware, work_dir)
        self.runtime = make_runtime(self.places, self.node)
        self._driver_settings = dict(driver_settings or {})
        self._drivers: list[DriverProcess] = []
        self._closing = AsyncExitStack()
        self._pod_uids: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Boot everything but the driver.

        Raises:
            IsolationRefused: this is not a private tree.
            DranetError: a part did not come up; what did is taken down again.
        """
        require_isolation()
        async with AsyncExitStack() as stack:
            await asyncio.to_thread(self.places.make)
            await asyncio.to_thread(stack.enter_context, self.node)
            await self._start_control_plane(stack)
            await self._start_node_services(stack)
            self.decisions = await asyncio.to_thread(self._read_decisions)
            self._closing = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _start_control_plane(self, stack: AsyncExitStack) -> None:
        token, driver = secrets.token_urlsafe(), self._settings()["driver_name"]
        server = self.server = await stack.enter_async_context(
            build_api_server(
                token,
                driver,
                answers_about_others=self._driver_settings.get("metrics_authentication") == "kubernetes",
                judges_parameters=self._judges_parameters,
            )
        )
        server.write_kubeconfig(self.places.kubeconfig)
        server.write_kubeconfig(self.places.driver_kubeconfig, token=token)
        self.api = await self._open_client(stack)
        await stack.enter_async_context(Controllers(await self._open_client(stack)))
        await stack.enter_async_context(Scheduler(await self._open_client(stack)))

    async def _start_node_services(self, stack: AsyncExitStack) -> None:
        await self.runtime.start()
        stack.push_async_callback(self.runtime.stop)
        client = await self._open_client(stack)
        self.kubelet = await stack.enter_async_context(
            TestbedKubelet(client, self.runtime, self.places.kubelet_root, NODE_NAME)
        )
        stack.push_async_callback(self._kill_drivers)
        self.driver = self._add_driver({}, self.places.driver_log)

    async def _open_client(self, stack: AsyncExitStack) -> ApiClient:
        """A client with connections of its own, as each part of a cluster has."""
        client = ApiClient.from_kubeconfig(self.places.kubeconfig, user_agent=USER_AGENT)
        return await stack.enter_async_context(client)

    def add_instance(self) -> DriverProcess:
        """One more driver for this node, with the same settings and a pod UID of its own; not started."""
        log_file = self.places.driver_log.with_name(f"driver-{len(self._drivers) + 1}.log")
        return self._add_driver({"pod_uid": str(uuid.uuid4())}, log_file)

    async def add_vendor(self, driver: str, devices: Sequence[JsonObject] = ()) -> None:
        """Start the DRA driver of a vendor alongside ours; it ends with the testbed.

        Args:
            driver: its name.
            devices: what it publishes; the node's GPUs by default.

        Raises:
            DranetError: it cannot be registered, or its slice is refused.
        """
        published = devices or list_gpus(self.hardware)
        vendor = VendorDriver(driver, self.api, published, NODE_NAME, self.places.kubelet_root)
        await self._closing.enter_async_context(vendor)

    async def roll_driver(self, timeout_seconds: float = 30.0) -> Roll:
        """Update the driver as a DaemonSet with surge does: start a successor, wait until it is ready, stop
        the old one. :attr:`driver` is the new one from then on.

        Raises:
            DriverFailed: one of them did not do its part in time.
        """
        old, new = self.driver, self.add_instance()
        begin = time.monotonic()
        await new.start()
        await new.wait_ready(timeout_seconds)
        ready = time.monotonic()
        self.driver = new
        ended = await old.stop(timeout_seconds)
        return Roll(ended, ready - begin, time.monotonic() - ready)

    def _add_driver(self, settings: Mapping[str, str], log_file: Path) -> DriverProcess:
        make = self.runtime.make_driver if isinstance(self.runtime, RunsDrivers) else DriverProcess
        driver = make({**self._settings(), **settings}, log_file)
        self._drivers.append(driver)
        return driver

    async def _kill_drivers(self) -> None:
        for driver in self._drivers:
            if driver.is_running:
                await driver.kill()

    def _settings(self) -> dict[str, str]:
        places = self.places
        return {
            "driver_name": DRIVER_NAME,
            "node_name": NODE_NAME,
            "kubeconfig": str(places.driver_kubeconfig),
            "sysfs_root": str(self.node.sysfs_root),
            "procfs_root": str(self.node.procfs_root),
            "state_dir": str(places.work_dir / "state"),
            "cdi_dir": str(places.cdi_dir),
            "vendor_cdi_dirs": str(places.cdi_dir),
            "nri_socket": str(places.nri_socket),
            "kubelet_root": str(places.kubelet_root),
            "bind_address": "127.0.0.1:9177",  # the network namespace is ours alone
            **self._driver_settings,
        }

    def _read_decisions(self) -> tuple[Decision, ...]:
        facts = NodeScanner(self.node.sysfs_root, self.node.procfs_root).read()
        return take_inventory(facts, {})

    # What a person does

    async def apply(self, manifests: Sequence[JsonObject]) -> None:
        """Create or update objects, in their order; those with a namespace go to ``default``.

        Raises:
            ClusterError: the API server refuses one.
        """
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            answer = await self.api.apply(_path(manifest["kind"], name), manifest, field_manager="testbed")
            if manifest["kind"] == "Pod":
                self._pod_uids[name] = answer["metadata"]["uid"]

    async def allocate(self, claim: str, devices: Mapping[str, str]) -> None:
        """Write a claim's allocation past the scheduler: request name -> device name, on this node."""
        results = [
            {"request": request, "driver": DRIVER_NAME, "pool": NODE_NAME, "device": device}
            for request, device in devices.items()
        ]
        here = {"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}
        allocation = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
        path = paths.resource_claim_status(NAMESPACE, claim)
        await self.api.patch(path, {"status": {"allocation": allocation}})

    async def delete_pod(self, name: str) -> None:
        """Ask for deletion; see ``kubelet.wait_gone``."""
        await self.api.delete(paths.pod(NAMESPACE, name), uid=self.pod_uid(name))

    def pod_uid(self, name: str) -> str:
        """The uid of a pod applied here, also after its end.

        Raises:
            PodNotApplied: with the names that were.
        """
        if name not in self._pod_uids:
            known = ", ".join(self._pod_uids) or "none"
            raise PodNotApplied(f"pod {name} was not applied; known are {known}")
        return self._pod_uids[name]

    @property
    def applied_pods(self) -> Mapping[str, str]:
        """Every pod applied here, name -> uid; the later one where two have one name."""
        return dict(self._pod_uids)

    # What a person looks at

    async def fetch_claim(self, name: str) -> JsonObject:
        """One ResourceClaim."""
        return await self.api.get(paths.resource_claim(NAMESPACE, name))

    async def fetch_pod(self, name: str) -> JsonObject:
        """One Pod that was applied here.

        Raises:
            PodNotApplied: it was not.
            ClusterError: it is gone.
        """
        self.pod_uid(name)
        return await self.api.get(paths.pod(NAMESPACE, name))

    async def fetch_pod_claims(self, name: str) -> list[JsonObject]:
        """The claims of a pod, templates resolved."""
        pod = await self.fetch_pod(name)
        made = {
            status["name"]: status.get("resourceClaimName")
            for status in pod.get("status", {}).get("resourceClaimStatuses", ())
        }
        names = [
            entry.get("resourceClaimName") or made.get(entry["name"])
            for entry in pod["spec"].get("resourceClaims", ())
        ]
        return [await self.fetch_claim(claim) for claim in names if claim]

    async def fetch_slices(self) -> list[JsonObject]:
        """Every ResourceSlice of the driver."""
        answer = await self.api.list(
            paths.RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER_NAME},spec.nodeName={NODE_NAME}"
        )
        return list(answer.get("items", ()))

    async def fetch_events(self, name: str = "") -> list[JsonObject]:
        """Events, of all objects or of those with a name."""
        answer = await self.api.list(paths.events(NAMESPACE))
        return [
            event for event in answer.get("items", ()) if not name or event["involvedObject"]["name"] == name
        ]

    def sandbox(self, pod: str) -> RunningSandbox | None:
        """The pod's sandbox, if it runs."""
        return self.kubelet.sandbox(self.pod_uid(pod))

    def containers(self, pod: str) -> Mapping[str, RunningContainer]:
        """The pod's running containers by name."""
        return self.kubelet.containers(self.pod_uid(pod))


def _path(kind: str, name: str) -> str:
    """The request path of an object of a kind that a scenario may apply."""
    if kind == "DeviceClass":
        return paths.device_class(name)
    namespaced = {
        "ConfigMap": paths.config_map,
        "Pod": paths.pod,
        "ResourceClaim": paths.resource_claim,
        "ResourceClaimTemplate": paths.resource_claim_template,
    }
    return namespaced[kind](NAMESPACE, name)

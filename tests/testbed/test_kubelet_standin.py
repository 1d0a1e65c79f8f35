"""The stand-in kubelet between the API server stand-in, a small driver on real sockets and a runtime that
only remembers. The driver here is plain gRPC on purpose: it can answer what ours never would."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError, Reason
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.plugin import PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2, health_v1_pb2, registration_pb2
from testbed.apiserver.server import ApiServer
from testbed.kubelet.kubelet import TestbedKubelet
from testbed.kubelet.nouns import KubeletOptions, PodStage
from testbed.runtime.contract import (
    ContainerSpec,
    ExecResult,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)

pytestmark = pytest.mark.socket

DEADLINE = 20.0
NODE = "node-1"
QUICK = KubeletOptions(
    registration_retry_seconds=0.02,
    registration_retry_cap_seconds=0.05,
    pod_retry_seconds=0.02,
    pod_retry_cap_seconds=0.05,
    health_retry_seconds=0.02,
    wipe_slices_after_seconds=DEADLINE,
)


class MemoryRuntime:
    """A runtime that remembers what it was asked; ``refuse`` makes the named call fail."""

    name = "memory 1.0"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.created: list[ContainerSpec] = []
        self.sandboxes: set[str] = set()
        self.refuse: dict[str, str] = {}
        self._count = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox:
        self._note("run_sandbox", spec.name)
        self._count += 1
        self.sandboxes.add(f"sandbox-{self._count}")
        return RunningSandbox(f"sandbox-{self._count}", "/run/netns/x")

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        self._note("create_container", spec.name)
        assert sandbox.id in self.sandboxes
        self.created.append(spec)
        return RunningContainer(f"{sandbox.id}-{spec.name}", spec.name)

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult:
        return ExecResult(0, f"{container.id} {command}", "")

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self._note("stop_sandbox", sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        self._note("remove_sandbox", sandbox_id)
        self.sandboxes.discard(sandbox_id)

    def _note(self, call: str, what: str) -> None:
        self.calls.append(f"{call} {what}")
        if call in self.refuse:
            raise RuntimeFailure(self.refuse[call])


Answer = Callable[[Sequence[dra_v1_pb2.Claim]], dra_v1_pb2.NodePrepareResourcesResponse]


def one_nic(
    claims: Sequence[dra_v1_pb2.Claim], driver: str = "dra.net"
) -> dra_v1_pb2.NodePrepareResourcesResponse:
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    for claim in claims:
        response.claims[claim.uid].devices.add(
            request_names=["nic"],
            pool_name=NODE,
            device_name="nic-1",
            cdi_device_ids=[f"{driver}/claim={claim.uid}-nic-1"],
        )
    return response


def _open_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class SmallDriver:
    """A driver of plain gRPC. ``answer`` makes the Prepare answer, ``unprepare_error`` fails Unprepare."""

    root: Path
    name: str = "dra.net"
    answer: Answer = one_nic
    unprepare_error: str = ""
    prepared: list[list[str]] = field(default_factory=list)
    unprepared: list[list[str]] = field(default_factory=list)
    health: list[health_v1_pb2.DeviceHealth] = field(default_factory=list)
    health_changed: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=_open_event)
    """Prepare and Unprepare wait for it before they answer."""

    @property
    def endpoint(self) -> Path:
        return self.root / f"{self.name}.sock"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SmallDriver]:
        servers = [
            await _serve(self.endpoint, self._dra(), self._health()),
            await _serve(self.root / "plugins_registry" / f"{self.name}-reg.sock", self._registration()),
        ]
        try:
            yield self
        finally:
            for server in reversed(servers):
                await server.stop(0)

    async def _get_info(self, _request: object, _context: object) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self.name,
            endpoint=str(self.endpoint),
            supported_versions=["v1.DRAPlugin", "v1.DRAResourceHealth"],
        )

    async def _notify(
        self, _request: object, _context: object
    ) -> registration_pb2.RegistrationStatusResponse:
        return registration_pb2.RegistrationStatusResponse()

    async def _prepare(
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, _context: object
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        self.prepared.append([claim.uid for claim in request.claims])
        await self.answers.wait()
        return self.answer(request.claims)

    async def _unprepare(
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, _context: object
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        self.unprepared.append([claim.uid for claim in request.claims])
        await self.answers.wait()
        return dra_v1_pb2.NodeUnprepareResourcesResponse(
            claims={
                claim.uid: dra_v1_pb2.NodeUnprepareResourceResponse(error=self.unprepare_error)
                for claim in request.claims
            }
        )

    async def _watch(
        self, _request: object, _context: object
    ) -> AsyncIterator[health_v1_pb2.NodeWatchResourcesResponse]:
        while True:
            self.health_changed.clear()
            yield health_v1_pb2.NodeWatchResourcesResponse(devices=self.health)
            await self.health_changed.wait()

    def _registration(self) -> grpc.GenericRpcHandler:
        pb = registration_pb2
        return _service(
            "pluginregistration.Registration",
            GetInfo=_unary(self._get_info, pb.InfoRequest, pb.PluginInfo),
            NotifyRegistrationStatus=_unary(
                self._notify, pb.RegistrationStatus, pb.RegistrationStatusResponse
            ),
        )

    def _dra(self) -> grpc.GenericRpcHandler:
        pb = dra_v1_pb2
        return _service(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=_unary(
                self._prepare, pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse
            ),
            NodeUnprepareResources=_unary(
                self._unprepare, pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse
            ),
        )

    def _health(self) -> grpc.GenericRpcHandler:
        return _service(
            "v1.DRAResourceHealth",
            NodeWatchResources=grpc.unary_stream_rpc_method_handler(
                self._watch,
                health_v1_pb2.NodeWatchResourcesRequest.FromString,
                health_v1_pb2.NodeWatchResourcesResponse.SerializeToString,
            ),
        )


async def _serve(path: Path, *handlers: grpc.GenericRpcHandler) -> grpc.aio.Server:
    server = grpc.aio.server(handlers=handlers)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def _service(name: str, **methods: grpc.RpcMethodHandler[Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, methods)


def _unary(
    behaviour: Callable[..., Awaitable[Any]], request: Any, answer: Any
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, answer.SerializeToString)


@dataclass
class Cluster:
    """Everything around the stand-in kubelet, and the hand of a scheduler."""

    root: Path
    server: ApiServer
    client: ApiClient
    runtime: MemoryRuntime
    kubelet: TestbedKubelet

    async def claim(
        self,
        name: str,
        *drivers: str,
        pods: Sequence[JsonObject] = (),
        owner: JsonObject | None = None,
    ) -> str:
        """A claim allocated from ``drivers`` and reserved for ``pods``; its UID."""
        metadata: JsonObject = {"name": name}
        if owner is not None:
            reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"]}
            metadata["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
        request = {"name": "nic", "exactly": {"deviceClassName": "dranet"}}
        made = await self.client.create(
            paths.resource_claims("default"),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": {"devices": {"requests": [request]}},
            },
        )
        await self.reserve(name, *drivers, pods=pods)
        return str(made["metadata"]["uid"])

    async def reserve(self, name: str, *drivers: str, pods: Sequence[JsonObject]) -> None:
        results = [
            {"request": "nic", "driver": driver, "pool": NODE, "device": f"nic-{number}"}
            for number, driver in enumerate(drivers, start=1)
        ]
        consumers = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            for pod in pods
        ]
        status: JsonObject = {"reservedFor": consumers}
        if drivers:
            status["allocation"] = {"devices": {"results": results}}
        await self.client.patch(paths.resource_claim_status("default", name), {"status": status})

    async def pod(self, name: str, *claims: str, containers: Sequence[JsonObject] = ()) -> JsonObject:
        """A pod bound to the node, each container asking for every claim by its own name."""
        uses = [{"name": claim} for claim in claims]
        default = [{"name": "main", "image": "web:1", "resources": {"claims": uses}}]
        return await self.client.create(
            paths.pods("default"),
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "nodeName": NODE,
                    "containers": list(containers) or default,
                    "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                },
            },
        )

    async def status(self, name: str) -> JsonObject:
        found = await self.client.get(paths.pod("default", name))
        return dict(found["status"])

    async def delete(self, name: str) -> None:
        await self.client.delete(paths.pod("default", name))

    def events(self, pod: JsonObject) -> list[tuple[str, str]]:
        uid = pod["metadata"]["uid"]
        found = [event for event in self.server.objects("events") if event["involvedObject"]["uid"] == uid]
        return [(event["reason"], event["message"]) for event in found]


@asynccontextmanager
async def running_cluster(options: KubeletOptions = QUICK) -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        root = Path(name)
        async with ApiServer() as server, ApiClient(access_from_url(server.url)) as client:
            runtime = MemoryRuntime()
            async with TestbedKubelet(client, runtime, root, NODE, options) as kubelet:
                yield Cluster(root, server, client, runtime, kubelet)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster() as made:
        yield made


def uid(pod: JsonObject) -> str:
    return str(pod["metadata"]["uid"])


async def soon(waiting: Awaitable[None]) -> None:
    await asyncio.wait_for(waiting, DEADLINE)


async def eventually(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "waited too long"
        await asyncio.sleep(0.005)


async def is_gone(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.client.get(paths.pod("default", name))
    except ClusterError as error:
        return error.reason is Reason.API_NOT_FOUND
    return False


async def start_pod(cluster: Cluster, driver: SmallDriver) -> tuple[JsonObject, str]:
    """A running pod ``web`` with one claim ``nic``; the pod and the claim's UID."""
    await soon(cluster.kubelet.wait_driver(driver.name))
    pod = await cluster.pod("web", "nic")
    claim_uid = await cluster.claim("nic", driver.name, pods=[pod])
    await soon(cluster.kubelet.wait_running(uid(pod)))
    return pod, claim_uid


async def test_the_node_is_registered_and_called_ready(cluster: Cluster) -> None:
    node = await cluster.client.get(paths.node(NODE))
    assert [(c["type"], c["status"]) for c in node["status"]["conditions"]] == [("Ready", "True")]


@pytest.mark.smoke
async def test_a_pod_is_prepared_given_its_cdi_devices_run_and_shown_as_running(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        pod, claim_uid = await start_pod(cluster, driver)
        assert driver.prepared == [[claim_uid]]
        assert cluster.runtime.calls == ["run_sandbox web", "create_container main"]
        assert cluster.runtime.created[0].cdi_devices == (f"dra.net/claim={claim_uid}-nic-1",)
        await eventually(lambda: cluster.server.objects("pods")[0]["status"]["phase"] == "Running")
        status = await cluster.status("web")
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert status["containerStatuses"][0]["containerID"] == "memory://sandbox-1-main"
    timings = cluster.kubelet.timings(uid(pod))
    assert timings.prepare_seconds is not None
    assert timings.sandbox_seconds is not None
    assert timings.containers_seconds is not None
    assert list(cluster.kubelet.containers(uid(pod))) == ["main"]


async def test_a_pod_without_claims_needs_no_driver(cluster: Cluster) -> None:
    pod = await cluster.pod("plain")
    await soon(cluster.kubelet.wait_running(uid(pod)))


async def test_a_pod_of_another_node_is_not_ours(cluster: Cluster) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "elsewhere"},
        "spec": {"nodeName": "node-2", "containers": [{"name": "main", "image": "x"}]},
    }
    other = await cluster.client.create(paths.pods("default"), body)
    ours = await cluster.pod("plain")
    await soon(cluster.kubelet.wait_running(uid(ours)))
    assert cluster.kubelet.stage(uid(other)) is PodStage.PENDING
    assert cluster.runtime.calls == ["run_sandbox plain", "create_container main"]


async def test_one_call_per_driver_carries_all_claims_of_the_pod(cluster: Cluster) -> None:
    async with (
        SmallDriver(cluster.root).running() as nics,
        SmallDriver(
            cluster.root, "gpu.example", answer=lambda claims: one_nic(claims, "gpu.example")
        ).running() as gpus,
    ):
        await soon(cluster.kubelet.wait_driver("dra.net"))
        await soon(cluster.kubelet.wait_driver("gpu.example"))
        pod = await cluster.pod("web", "a", "b")
        first = await cluster.claim("a", "dra.net", "gpu.example", pods=[pod])
        second = await cluster.claim("b", "dra.net", pods=[pod])
        await soon(cluster.kubelet.wait_running(uid(pod)))
        assert [sorted(batch) for batch in nics.prepared] == [sorted([first, second])]
        assert gpus.prepared == [[first]]
    assert cluster.runtime.created[0].cdi_devices == (
        f"dra.net/claim={first}-nic-1",
        f"gpu.example/claim={first}-nic-1",
        f"dra.net/claim={second}-nic-1",
    )


async def test_a_container_gets_what_its_own_request_names(cluster: Cluster) -> None:
    containers: list[JsonObject] = [
        {"name": "uses", "image": "x", "resources": {"claims": [{"name": "nic", "request": "nic"}]}},
        {"name": "other", "image": "x", "resources": {"claims": [{"name": "nic", "request": "gpu"}]}},
        {"name": "none", "image": "x"},
    ]
    async with SmallDriver(cluster.root).running():
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic", containers=containers)
        await cluster.claim("nic", "dra.net", pods=[pod])
        await soon(cluster.kubelet.wait_running(uid(pod)))
    assert {spec.name: len(spec.cdi_devices) for spec in cluster.runtime.created} == {
        "uses": 1,
        "other": 0,
        "none": 0,
    }


async def test_a_claim_is_not_prepared_before_it_is_allocated_and_reserved_for_the_pod(
    cluster: Cluster,
) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        await eventually(lambda: "not found" in cluster.kubelet.failure(uid(pod)))
        await cluster.claim("nic")
        await eventually(lambda: "is not allocated" in cluster.kubelet.failure(uid(pod)))
        await cluster.reserve("nic", "dra.net", pods=[])
        await eventually(lambda: "is not allowed to use" in cluster.kubelet.failure(uid(pod)))
        assert driver.prepared == []
        await cluster.reserve("nic", "dra.net", pods=[pod])
        await soon(cluster.kubelet.wait_running(uid(pod)))
        assert len(driver.prepared) == 1
    assert {reason for reason, _ in cluster.events(pod)} == {"FailedPrepareDynamicResources"}
    assert cluster.kubelet.failure(uid(pod)) == ""


async def test_a_template_claim_must_be_owned_by_its_pod(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running():
        await soon(cluster.kubelet.wait_driver("dra.net"))
        template = {"name": "nic", "resourceClaimTemplateName": "t"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
                "resourceClaims": [template],
            },
        }
        pod = await cluster.client.create(paths.pods("default"), body)
        await eventually(lambda: "not made from its template" in cluster.kubelet.failure(uid(pod)))
        await cluster.claim("foreign", "dra.net", pods=[pod])
        await cluster.claim("web-nic", "dra.net", pods=[pod], owner=pod)
        status = paths.pod_status("default", "web")
        await cluster.client.patch(
            status, {"status": {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "foreign"}]}}
        )
        await eventually(lambda: "pod is not owner" in cluster.kubelet.failure(uid(pod)))
        await cluster.client.patch(
            status, {"status": {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "web-nic"}]}}
        )
        await soon(cluster.kubelet.wait_running(uid(pod)))


async def test_a_pod_waits_for_a_driver_that_is_not_registered(cluster: Cluster) -> None:
    pod = await cluster.pod("web", "nic")
    await cluster.claim("nic", "dra.net", pods=[pod])
    await eventually(lambda: "DRA driver dra.net is not registered" in cluster.kubelet.failure(uid(pod)))
    async with SmallDriver(cluster.root).running():
        await soon(cluster.kubelet.wait_running(uid(pod)))


def no_entry(_claims: Sequence[dra_v1_pb2.Claim]) -> dra_v1_pb2.NodePrepareResourcesResponse:
    return dra_v1_pb2.NodePrepareResourcesResponse()


def strange_entry(claims: Sequence[dra_v1_pb2.Claim]) -> dra_v1_pb2.NodePrepareResourcesResponse:
    response = one_nic(claims)
    response.claims["stranger"].error = ""
    return response


def error_entry(claims: Sequence[dra_v1_pb2.Claim]) -> dra_v1_pb2.NodePrepareResourcesResponse:
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    for claim in claims:
        response.claims[claim.uid].error = "link is down"
    return response


def raises(_claims: Sequence[dra_v1_pb2.Claim]) -> dra_v1_pb2.NodePrepareResourcesResponse:
    raise RuntimeError("crashed")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (no_entry, "NodePrepareResources skipped 1 ResourceClaims"),
        (strange_entry, "unknown claim stranger"),
        (error_entry, "NodePrepareResources failed for ResourceClaim nic: link is down"),
        (raises, "code = UNKNOWN"),
    ],
)
async def test_a_bad_answer_fails_the_pod_which_is_tried_again(
    cluster: Cluster, answer: Answer, text: str
) -> None:
    async with SmallDriver(cluster.root, answer=answer).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])
        await eventually(lambda: text in cluster.kubelet.failure(uid(pod)))
        assert cluster.runtime.calls == []
        driver.answer = one_nic
        await soon(cluster.kubelet.wait_running(uid(pod)))
        assert len(driver.prepared) >= 2
    reasons = [reason for reason, message in cluster.events(pod) if text in message]
    assert reasons == ["FailedPrepareDynamicResources"]


async def test_the_same_failure_again_counts_its_event_up(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root, answer=error_entry).running():
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])

        def counted() -> bool:
            events = cluster.server.objects("events")
            return any(event["count"] >= 3 and "link is down" in event["message"] for event in events)

        await eventually(counted)
    assert len([message for _, message in cluster.events(pod) if "link is down" in message]) == 1


async def test_a_failed_sandbox_is_retried_without_a_second_prepare(cluster: Cluster) -> None:
    cluster.runtime.refuse["run_sandbox"] = "plugin refused"
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])
        await eventually(lambda: cluster.runtime.calls.count("run_sandbox web") >= 2)
        await eventually(
            lambda: (
                ("FailedCreatePodSandBox", "Failed to create pod sandbox: plugin refused")
                in cluster.events(pod)
            )
        )
        cluster.runtime.refuse.clear()
        await soon(cluster.kubelet.wait_running(uid(pod)))
        assert len(driver.prepared) == 1


async def test_a_failed_container_is_retried_in_the_same_sandbox_and_shown(cluster: Cluster) -> None:
    cluster.runtime.refuse["create_container"] = "mount source is missing"
    async with SmallDriver(cluster.root).running():
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])

        def shown() -> bool:
            (found,) = cluster.server.objects("pods")
            states = [c["state"] for c in found["status"].get("containerStatuses", ())]
            waiting = {"reason": "CreateContainerError", "message": "Error: mount source is missing"}
            return states == [{"waiting": waiting}]

        await eventually(shown)
        assert ("Failed", "Error: mount source is missing") in cluster.events(pod)
        cluster.runtime.refuse.clear()
        await soon(cluster.kubelet.wait_running(uid(pod)))
    assert cluster.runtime.calls.count("run_sandbox web") == 1


async def test_a_deleted_pod_is_taken_down_unprepared_and_only_then_gone(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        pod, claim_uid = await start_pod(cluster, driver)
        cluster.runtime.calls.clear()
        await cluster.delete("web")
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert cluster.runtime.calls == ["stop_sandbox sandbox-1", "remove_sandbox sandbox-1"]
        assert driver.unprepared == [[claim_uid]]
        assert await is_gone(cluster, "web")
    assert cluster.kubelet.timings(uid(pod)).prepare_seconds is not None


async def test_a_pod_stays_terminating_until_unprepare_succeeds(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root, unprepare_error="device busy").running() as driver:
        pod, _ = await start_pod(cluster, driver)
        await cluster.delete("web")
        await eventually(lambda: len(driver.unprepared) >= 2)
        assert not await is_gone(cluster, "web")
        driver.unprepare_error = ""
        await soon(cluster.kubelet.wait_gone(uid(pod)))
    assert any(reason == "FailedUnprepareDynamicResources" for reason, _ in cluster.events(pod))


async def test_a_pod_stays_terminating_until_its_driver_is_back(cluster: Cluster) -> None:
    driver = SmallDriver(cluster.root)
    async with driver.running():
        pod, claim_uid = await start_pod(cluster, driver)
    await soon(cluster.kubelet.wait_driver("dra.net", registered=False))
    await cluster.delete("web")
    await eventually(lambda: "is not registered" in cluster.kubelet.failure(uid(pod)))
    assert not await is_gone(cluster, "web")
    async with driver.running():
        await soon(cluster.kubelet.wait_gone(uid(pod)))
    assert driver.unprepared == [[claim_uid]]


async def test_a_pod_deleted_by_force_is_cleaned_up_too(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        pod, claim_uid = await start_pod(cluster, driver)
        await cluster.client.delete(paths.pod("default", "web"), grace_period_seconds=0)
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert driver.unprepared == [[claim_uid]]
        assert cluster.runtime.sandboxes == set()


async def test_a_pod_deleted_while_its_prepare_fails_is_unprepared_and_gone(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root, answer=error_entry).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pod = await cluster.pod("web", "nic")
        claim_uid = await cluster.claim("nic", "dra.net", pods=[pod])
        await eventually(lambda: bool(driver.prepared))
        await cluster.delete("web")
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert driver.unprepared == [[claim_uid]]
    assert cluster.runtime.calls == []


async def test_a_shared_claim_is_prepared_once_and_unprepared_after_its_last_pod(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pods = [await cluster.pod("one", "nic")]
        claim_uid = await cluster.claim("nic", "dra.net", pods=pods)
        await soon(cluster.kubelet.wait_running(uid(pods[0])))
        pods.append(await cluster.pod("two", "nic"))
        await cluster.reserve("nic", pods=pods)
        await soon(cluster.kubelet.wait_running(uid(pods[1])))
        assert driver.prepared == [[claim_uid]]
        assert {spec.cdi_devices for spec in cluster.runtime.created} == {
            (f"dra.net/claim={claim_uid}-nic-1",)
        }
        await cluster.delete("one")
        await soon(cluster.kubelet.wait_gone(uid(pods[0])))
        assert driver.unprepared == []
        await cluster.delete("two")
        await soon(cluster.kubelet.wait_gone(uid(pods[1])))
        assert driver.unprepared == [[claim_uid]]


async def test_two_pods_that_start_together_both_have_their_shared_claim_prepared(cluster: Cluster) -> None:
    """No lock of the kubelet is held across a call: a driver meets the same claim twice at the same time."""
    driver = SmallDriver(cluster.root, answers=asyncio.Event())
    async with driver.running():
        await soon(cluster.kubelet.wait_driver("dra.net"))
        pods = [await cluster.pod(name, "nic") for name in ("one", "two")]
        claim_uid = await cluster.claim("nic", "dra.net", pods=pods)
        await eventually(lambda: driver.prepared == [[claim_uid]] * 2)
        driver.answers.set()
        for pod in pods:
            await soon(cluster.kubelet.wait_running(uid(pod)))
        assert driver.prepared == [[claim_uid]] * 2
        for name in ("one", "two"):
            await cluster.delete(name)
        for pod in pods:
            await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert driver.unprepared == [[claim_uid]]


async def test_a_pod_that_comes_while_its_claim_is_unprepared_has_it_prepared_again(cluster: Cluster) -> None:
    driver = SmallDriver(cluster.root)
    async with driver.running():
        old, claim_uid = await start_pod(cluster, driver)
        driver.answers.clear()
        await cluster.delete("web")
        await eventually(lambda: driver.unprepared == [[claim_uid]])
        new = await cluster.pod("web-2", "nic")
        cluster.kubelet.hold_sandboxes(True)
        await cluster.reserve("nic", pods=[old, new])
        await soon(cluster.kubelet.wait_prepared(uid(new)))
        driver.answers.set()
        await soon(cluster.kubelet.wait_gone(uid(old)))
        cluster.runtime.refuse["run_sandbox"] = "no device"
        cluster.kubelet.hold_sandboxes(False)
        await eventually(lambda: driver.prepared == [[claim_uid]] * 2)
        cluster.runtime.refuse.clear()
        await soon(cluster.kubelet.wait_running(uid(new)))


async def test_a_claim_that_is_prepared_is_of_no_use_while_its_driver_is_away(cluster: Cluster) -> None:
    driver = SmallDriver(cluster.root)
    async with driver.running():
        first, claim_uid = await start_pod(cluster, driver)
    await eventually(lambda: cluster.kubelet._plugins.plugins == ())  # nor one that only lost its connection
    second = await cluster.pod("web-2", "nic")
    await cluster.reserve("nic", pods=[first, second])
    await eventually(lambda: "dra.net is not registered" in cluster.kubelet.failure(uid(second)))
    async with driver.running():
        await soon(cluster.kubelet.wait_running(uid(second)))
    assert driver.prepared == [[claim_uid]]


async def test_a_pod_whose_driver_never_came_is_deleted_without_one(cluster: Cluster) -> None:
    pod = await cluster.pod("web", "nic")
    await cluster.claim("nic", "dra.net", pods=[pod])
    await eventually(lambda: "dra.net is not registered" in cluster.kubelet.failure(uid(pod)))
    await cluster.delete("web")
    await soon(cluster.kubelet.wait_gone(uid(pod)))


async def test_a_sandbox_is_removed_after_its_claims_are_unprepared_and_its_object_is_gone(
    cluster: Cluster,
) -> None:
    cluster.runtime.refuse["remove_sandbox"] = "not now"
    async with SmallDriver(cluster.root).running() as driver:
        pod, claim_uid = await start_pod(cluster, driver)
        await cluster.delete("web")
        await eventually(lambda: cluster.runtime.calls.count("remove_sandbox sandbox-1") >= 2)
        assert driver.unprepared == [[claim_uid]]
        assert await is_gone(cluster, "web")
        assert cluster.runtime.calls.count("stop_sandbox sandbox-1") == 1
        cluster.runtime.refuse.clear()
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert cluster.runtime.sandboxes == set()


async def test_a_new_claim_of_an_old_name_waits_until_the_old_one_is_unprepared(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root, unprepare_error="device busy").running() as driver:
        old, old_claim = await start_pod(cluster, driver)
        await cluster.client.delete(paths.resource_claim("default", "nic"))
        await cluster.delete("web")
        new = await cluster.pod("web-2", "nic")
        new_claim = await cluster.claim("nic", "dra.net", pods=[new])
        await eventually(lambda: f"different UID {old_claim}" in cluster.kubelet.failure(uid(new)))
        driver.unprepare_error = ""
        await soon(cluster.kubelet.wait_gone(uid(old)))
        await soon(cluster.kubelet.wait_running(uid(new)))
        assert driver.prepared == [[old_claim], [new_claim]]


async def test_a_held_pod_is_prepared_and_its_sandbox_waits(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        cluster.kubelet.hold_sandboxes(True)
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])
        await soon(cluster.kubelet.wait_prepared(uid(pod)))
        assert len(driver.prepared) == 1
        assert cluster.runtime.calls == []
        cluster.kubelet.hold_sandboxes(False)
        await soon(cluster.kubelet.wait_running(uid(pod)))


async def test_a_held_pod_can_be_deleted(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        cluster.kubelet.hold_sandboxes(True)
        pod = await cluster.pod("web", "nic")
        await cluster.claim("nic", "dra.net", pods=[pod])
        await soon(cluster.kubelet.wait_prepared(uid(pod)))
        await cluster.delete("web")
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert len(driver.unprepared) == 1
    assert cluster.runtime.calls == []


async def test_a_restarted_kubelet_prepares_again_and_disturbs_no_running_pod(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        pod, claim_uid = await start_pod(cluster, driver)
        calls = list(cluster.runtime.calls)
        await cluster.kubelet.restart()
        await eventually(lambda: driver.prepared == [[claim_uid]] * 2)
        assert cluster.runtime.calls == calls
        assert cluster.kubelet.stage(uid(pod)) is PodStage.RUNNING


async def test_a_restarted_kubelet_wipes_the_slices_of_its_own_node_only(cluster: Cluster) -> None:
    for name, node in (("ours", NODE), ("theirs", "node-2")):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        await cluster.client.create(
            paths.RESOURCE_SLICES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": {"driver": "dra.net", "nodeName": node, "pool": pool, "devices": []},
            },
        )
    await cluster.kubelet.restart()
    assert [found["metadata"]["name"] for found in cluster.server.objects("resourceslices")] == ["theirs"]


def health_of(pod: JsonObject) -> Any:
    (container,) = pod["status"].get("containerStatuses", [{}])
    return container.get("allocatedResourcesStatus")


async def test_the_health_stream_shows_in_the_status_of_the_container(cluster: Cluster) -> None:
    identifier = health_v1_pb2.DeviceIdentifier(pool_name=NODE, device_name="nic-1")
    up = health_v1_pb2.DeviceHealth(device=identifier, health=health_v1_pb2.HEALTHY)
    down = health_v1_pb2.DeviceHealth(
        device=identifier, health=health_v1_pb2.UNHEALTHY, message="carrier lost"
    )
    driver = SmallDriver(cluster.root, health=[up])
    async with driver.running():
        _, claim_uid = await start_pod(cluster, driver)
        resource = {"resourceID": f"dra.net/claim={claim_uid}-nic-1"}

        def shows(**state: str) -> Callable[[], bool]:
            expected = [{"name": "claim:nic", "resources": [{**resource, **state}]}]
            return lambda: health_of(cluster.server.objects("pods")[0]) == expected

        await eventually(shows(health="Healthy"))
        driver.health = [down]
        driver.health_changed.set()
        await eventually(shows(health="Unhealthy", message="carrier lost"))
    await eventually(shows(health="Unknown"))


async def test_health_that_is_not_repeated_in_time_becomes_unknown(cluster: Cluster) -> None:
    identifier = health_v1_pb2.DeviceIdentifier(pool_name=NODE, device_name="nic-1")
    short = health_v1_pb2.DeviceHealth(
        device=identifier, health=health_v1_pb2.HEALTHY, health_check_timeout_seconds=1
    )
    async with SmallDriver(cluster.root, health=[short]).running() as driver:
        await start_pod(cluster, driver)

        def state() -> str:
            found = health_of(cluster.server.objects("pods")[0])
            return str(found[0]["resources"][0]["health"]) if found else ""

        def is_healthy() -> bool:
            driver.health_changed.set()  # said again each time, or its second may be over before we look
            return state() == "Healthy"

        await eventually(is_healthy)
        await eventually(lambda: state() == "Unknown")


async def test_an_api_server_that_stumbles_delays_a_pod_and_breaks_nothing(cluster: Cluster) -> None:
    async with SmallDriver(cluster.root).running() as driver:
        await soon(cluster.kubelet.wait_driver("dra.net"))
        cluster.server.fail_next("GET", paths.resource_claims("default"), 500, 2)
        cluster.server.fail_next("PATCH", paths.pods("default"), 500, 2)
        pod, _ = await start_pod(cluster, driver)
        await eventually(lambda: cluster.server.objects("pods")[0]["status"]["phase"] == "Running")
        driver.unprepare_error = "not yet"
        await cluster.delete("web")
        await eventually(lambda: bool(driver.unprepared))
        cluster.server.fail_next("DELETE", paths.pods("default"), 500, 2)
        driver.unprepare_error = ""
        await soon(cluster.kubelet.wait_gone(uid(pod)))
        assert await is_gone(cluster, "web")


async def test_nothing_is_written_when_nothing_of_the_pod_changed(cluster: Cluster) -> None:
    foreign = health_v1_pb2.DeviceHealth(
        device=health_v1_pb2.DeviceIdentifier(pool_name=NODE, device_name="nic-9"),
        health=health_v1_pb2.HEALTHY,
    )
    async with SmallDriver(cluster.root).running() as driver:
        await start_pod(cluster, driver)
        await eventually(lambda: cluster.server.objects("pods")[0]["status"]["phase"] == "Running")
        marker = len(cluster.server.requests)
        await cluster.client.patch(paths.pod("default", "web"), {"metadata": {"labels": {"a": "b"}}})
        driver.health = [foreign]
        driver.health_changed.set()
        await eventually(lambda: bool(cluster.kubelet._health._known))
        second = await cluster.pod("plain")
        await soon(cluster.kubelet.wait_running(uid(second)))
        later = list(cluster.server.requests)[marker:]
    assert [request.path for request in later if request.path.endswith("/pods/web/status")] == []


async def test_stop_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with running_cluster() as cluster, SmallDriver(cluster.root).running() as driver:
        await start_pod(cluster, driver)
        cluster.kubelet.hold_sandboxes(True)
        await cluster.pod("held")
        await cluster.kubelet.stop()
        await cluster.kubelet.stop()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert {
        task.get_name()
        for task in left
        if task.get_name().startswith(("pod ", "kubelet", "plugin", "register"))
    } == set()


class OurDriver:
    """A handler for the driver's real kubelet room."""

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        device = PreparedDeviceAnswer(("nic",), NODE, "nic-1", ("dra.net/claim=x",))
        return {ref.uid: PrepareOutcome((device,)) for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        return {ref.uid: "" for ref in refs}

    def snapshot(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("known", [("v1.DRAPlugin", "v1beta1.DRAPlugin"), ("v1beta1.DRAPlugin",)])
async def test_our_own_kubelet_room_meets_new_and_old_kubelets(known: tuple[str, ...]) -> None:
    options = KubeletOptions(
        known_services=known,
        registration_retry_seconds=0.02,
        pod_retry_seconds=0.02,
        pod_retry_cap_seconds=0.05,
    )
    async with running_cluster(options) as cluster:
        handler = OurDriver()
        plugin = KubeletPlugin(
            "dra.net",
            cluster.root / "plugins" / "dra.net" / "dra.sock",
            cluster.root / "plugins_registry" / "dra.net-reg.sock",
            handler,
            health=handler,
        )
        await plugin.start()
        try:
            await soon(cluster.kubelet.wait_driver("dra.net"))
            await eventually(lambda: plugin.capabilities.registered is True)
            pod = await cluster.pod("web", "nic")
            await cluster.claim("nic", "dra.net", pods=[pod])
            await soon(cluster.kubelet.wait_running(uid(pod)))
            assert cluster.runtime.created[0].cdi_devices == ("dra.net/claim=x",)
            await cluster.delete("web")
            await soon(cluster.kubelet.wait_gone(uid(pod)))
        finally:
            await plugin.stop()
        await soon(cluster.kubelet.wait_driver("dra.net", registered=False))

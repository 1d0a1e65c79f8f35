"""The kubelet's pod resources socket, played by a real gRPC server with the kubelet's service name."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dranet.errors import ProtocolError
from dranet.kubelet import pod_resources
from dranet.kubelet.pod_resources import MAX_DEVICES, SERVICE, PodDevices, PodResources
from dranet.model.claim import AllocationResult, PodRef
from dranet.pb import podresources_pb2 as pb

pytestmark = pytest.mark.socket

POD = PodRef("team", "train-0", "uid")


def given(name: str = "train-0", namespace: str = "team") -> pb.PodResources:
    claim = pb.DynamicResource(
        claim_name="gpus",
        claim_namespace=namespace,
        claim_resources=[pb.ClaimResource(driver_name="gpu.example", pool_name="n", device_name="gpu-3")],
    )
    main = pb.ContainerResources(
        name="main",
        devices=[pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1", "GPU-2::0"])],
        dynamic_resources=[claim],
    )
    side = pb.ContainerResources(
        name="side", devices=[pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1"])]
    )
    return pb.PodResources(name=name, namespace=namespace, containers=[main, side])


class Kubelet:
    """``refuses`` are methods that it answers with this code."""

    def __init__(self, *pods: pb.PodResources, refuses: dict[str, grpc.StatusCode] | None = None) -> None:
        self.pods = pods
        self.refuses = refuses or {}
        self.asked: list[str] = []

    async def _note(self, method: str, context: grpc.aio.ServicerContext[object, object]) -> None:
        self.asked.append(method)
        if method in self.refuses:
            await context.abort(self.refuses[method], "PodResources API Get method disabled")

    async def get(
        self, request: pb.GetPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetPodResourcesResponse:
        await self._note("Get", context)
        wanted = (request.pod_namespace, request.pod_name)
        (pod,) = [pod for pod in self.pods if (pod.namespace, pod.name) == wanted]
        return pb.GetPodResourcesResponse(pod_resources=pod)

    async def list(
        self, _: pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ListPodResourcesResponse:
        await self._note("List", context)
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    @asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Get": grpc.unary_unary_rpc_method_handler(
                self.get, pb.GetPodResourcesRequest.FromString, pb.GetPodResourcesResponse.SerializeToString
            ),
            "List": grpc.unary_unary_rpc_method_handler(
                self.list,
                pb.ListPodResourcesRequest.FromString,
                pb.ListPodResourcesResponse.SerializeToString,
            ),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        yield
        await server.stop(None)


EXPECTED = PodDevices(
    (("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2::0")),
    (AllocationResult("", "gpu.example", "n", "gpu-3"),),
)


async def test_what_the_kubelet_gave_to_the_pod_is_told_each_once(tmp_path: Path) -> None:
    kubelet, path = Kubelet(given("other"), given()), tmp_path / "kubelet.sock"
    async with kubelet.serving(path):
        assert await PodResources(path).read(POD) == EXPECTED
    assert kubelet.asked == ["Get"]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN])
async def test_a_kubelet_without_get_is_asked_for_the_whole_list(
    tmp_path: Path, code: grpc.StatusCode
) -> None:
    kubelet = Kubelet(given("other"), given("train-0", "elsewhere"), given(), refuses={"Get": code})
    path = tmp_path / "kubelet.sock"
    async with kubelet.serving(path):
        assert await PodResources(path).read(POD) == EXPECTED
        with pytest.raises(ProtocolError, match="does not know pod team/gone") as caught:
            await PodResources(path).read(PodRef("team", "gone", "uid"))
    assert caught.value.retryable, "nothing told is not the same as nothing given"
    assert kubelet.asked == ["Get", "List", "Get", "List"]


async def test_a_kubelet_that_refuses_both_is_named_with_its_word(tmp_path: Path) -> None:
    denied = grpc.StatusCode.PERMISSION_DENIED
    path = tmp_path / "kubelet.sock"
    async with Kubelet(refuses={"Get": denied, "List": denied}).serving(path):
        with pytest.raises(ProtocolError, match="pod team/train-0: PERMISSION_DENIED") as caught:
            await PodResources(path).read(POD)
    assert caught.value.retryable


async def test_no_socket_and_nobody_behind_it_are_errors_to_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with pytest.raises(ProtocolError, match="no socket") as caught:
        await PodResources(path).read(POD)
    assert caught.value.retryable
    path.touch()
    with pytest.raises(ProtocolError, match="UNAVAILABLE"):
        await PodResources(path).read(POD)


@pytest.mark.socket
async def test_a_kubelet_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "TIMEOUT_SECONDS", 0.2)
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen()
        with pytest.raises(ProtocolError) as caught:
            await PodResources(path).read(POD)
    assert caught.value.retryable


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", b""])
async def test_an_answer_that_means_nothing_is_an_error_and_no_bug(tmp_path: Path, answer: bytes) -> None:
    async def say(_: bytes, __: grpc.aio.ServicerContext[object, object]) -> bytes:
        return answer

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(say) for name in ("Get", "List")
    }
    server, path = grpc.aio.server(), tmp_path / "kubelet.sock"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    with pytest.raises(ProtocolError) as caught:
        await PodResources(path).read(POD)
    assert caught.value.retryable
    await server.stop(None)


async def test_an_answer_beyond_all_measure_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "MAX_MESSAGE_BYTES", 1000)
    path = tmp_path / "kubelet.sock"
    async with Kubelet(*(given(f"other-{n}") for n in range(100)), given()).serving(path):
        assert await PodResources(path).read(POD) == EXPECTED, "of the pod alone"
    refusing = Kubelet(
        *(given(f"other-{n}") for n in range(100)), refuses={"Get": grpc.StatusCode.UNIMPLEMENTED}
    )
    async with refusing.serving(path):
        with pytest.raises(ProtocolError, match="RESOURCE_EXHAUSTED"):
            await PodResources(path).read(POD)


async def test_what_is_kept_of_an_answer_is_bounded(tmp_path: Path) -> None:
    devices = [pb.ContainerDevices(resource_name="r", device_ids=[str(n) for n in range(5 * MAX_DEVICES)])]
    pod = pb.PodResources(
        name="train-0", namespace="team", containers=[pb.ContainerResources(name="c", devices=devices)]
    )
    path = tmp_path / "kubelet.sock"
    async with Kubelet(pod).serving(path):
        assert len((await PodResources(path).read(POD)).ids) == MAX_DEVICES


async def test_who_gave_devices_to_any_pod_is_told_by_name(tmp_path: Path) -> None:
    none = pb.ContainerDevices(resource_name="example.com/none", device_ids=[])
    idle = pb.PodResources(name="x", containers=[pb.ContainerResources(name="c", devices=[none])])
    path = tmp_path / "kubelet.sock"
    async with Kubelet(idle, given("a"), given("b", "other")).serving(path):
        assert await PodResources(path).read_givers() == {"nvidia.com/gpu", "gpu.example"}
    path.touch()
    with pytest.raises(ProtocolError, match="the node's pods"):
        await PodResources(path).read_givers()

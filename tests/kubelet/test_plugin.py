"""Prepare and Unprepare over a real socket, in both versions, by a plain gRPC client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from dranet.errors import ClaimError, StoreError
from dranet.kubelet.plugin import DraPluginServer, HealthService, PreparedDeviceAnswer, PrepareOutcome
from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2 as v1
from testbed.pb import dra_v1beta1_pb2 as v1beta1

pytestmark = pytest.mark.socket

DEADLINE = 30.0
V1 = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"

_Answer = TypeVar("_Answer", bound=Message)


class Handler:
    """A driver of nothing: records what it was asked, answers what a test set."""

    def __init__(self) -> None:
        self.prepared: list[list[ClaimRef]] = []
        self.unprepared: list[list[ClaimRef]] = []
        self.outcomes: dict[str, PrepareOutcome] = {}
        self.errors: dict[str, str] = {}
        self.forget: set[str] = set()
        self.failure: Exception | None = None
        self.gate: Callable[[Sequence[ClaimRef]], Awaitable[None]] | None = None

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        self.prepared.append(list(refs))
        await self._pass(refs)
        known = [ref.uid for ref in refs if ref.uid not in self.forget]
        return {uid: self.outcomes.get(uid, PrepareOutcome((nic(uid),))) for uid in known}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        self.unprepared.append(list(refs))
        await self._pass(refs)
        return {ref.uid: self.errors.get(ref.uid, "") for ref in refs if ref.uid not in self.forget}

    async def _pass(self, refs: Sequence[ClaimRef]) -> None:
        if self.gate is not None:
            await self.gate(refs)
        if self.failure is not None:
            raise self.failure


def nic(uid: str, share_id: str | None = None) -> PreparedDeviceAnswer:
    return PreparedDeviceAnswer(("nic",), "node-1", "nic-1", (f"dra.net/claim={uid}-nic-1",), share_id)


class Client:
    """The kubelet's calls, with the messages of the version that is asked for."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def ask(
        self, service: str, method: str, request: Message, answer: type[_Answer], seconds: float = DEADLINE
    ) -> _Answer:
        call: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=seconds)

    async def prepare(self, *uids: str, seconds: float = DEADLINE) -> v1.NodePrepareResourcesResponse:
        request = v1.NodePrepareResourcesRequest(claims=[claim(uid) for uid in uids])
        return await self.ask(V1, "NodePrepareResources", request, v1.NodePrepareResourcesResponse, seconds)

    async def unprepare(self, *uids: str) -> v1.NodeUnprepareResourcesResponse:
        request = v1.NodeUnprepareResourcesRequest(claims=[claim(uid) for uid in uids])
        return await self.ask(V1, "NodeUnprepareResources", request, v1.NodeUnprepareResourcesResponse)


def errors_of_ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Not what the interpreter has to say of tasks of earlier tests, whenever it comes across them."""
    return [r for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("dranet.")]


async def eventually(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "waited too long"
        await asyncio.sleep(0.005)


def claim(uid: str) -> v1.Claim:
    return v1.Claim(namespace="team", name=f"claim-{uid}", uid=uid)


@asynccontextmanager
async def serving(root: Path, handler: Handler) -> AsyncIterator[tuple[DraPluginServer, Client]]:
    server = DraPluginServer(root / "dra.sock", handler)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{root / 'dra.sock'}") as channel:
            yield server, Client(channel)
    finally:
        await server.stop()


class Gate:
    """Holds handler calls of chosen claims until opened; tells when one has arrived."""

    def __init__(self, *uids: str) -> None:
        self._uids = set(uids)
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, refs: Sequence[ClaimRef]) -> None:
        if self._uids & {ref.uid for ref in refs}:
            self.reached.set()
            await asyncio.wait_for(self.open.wait(), DEADLINE)


@pytest.mark.smoke
async def test_prepare_passes_the_claims_on_and_answers_each_by_uid(kubelet_root: Path) -> None:
    handler = Handler()
    handler.outcomes["b"] = PrepareOutcome(error="no such device")
    async with serving(kubelet_root, handler) as (_, client):
        response = await client.prepare("a", "b")
    assert handler.prepared == [[ClaimRef("team", "claim-a", "a"), ClaimRef("team", "claim-b", "b")]]
    assert response.claims["a"] == v1.NodePrepareResourceResponse(
        devices=[
            v1.Device(
                request_names=["nic"],
                pool_name="node-1",
                device_name="nic-1",
                cdi_device_ids=["dra.net/claim=a-nic-1"],
            )
        ]
    )
    assert response.claims["b"] == v1.NodePrepareResourceResponse(error="no such device")


async def test_v1beta1_is_the_same_without_a_share_id(kubelet_root: Path) -> None:
    handler = Handler()
    handler.outcomes["a"] = PrepareOutcome((nic("a", share_id="a-share"),))
    request = v1beta1.NodePrepareResourcesRequest(
        claims=[v1beta1.Claim(namespace="team", name="claim-a", uid="a")]
    )
    async with serving(kubelet_root, handler) as (_, client):
        answer = await client.ask(
            V1BETA1, "NodePrepareResources", request, v1beta1.NodePrepareResourcesResponse
        )
        raw = await client.ask(V1BETA1, "NodePrepareResources", request, v1.NodePrepareResourcesResponse)
    assert handler.prepared[0] == [ClaimRef("team", "claim-a", "a")]
    (device,) = answer.claims["a"].devices
    assert (device.pool_name, device.device_name) == ("node-1", "nic-1")
    assert not raw.claims["a"].devices[0].HasField("share_id")


async def test_v1beta1_unprepares_too(kubelet_root: Path) -> None:
    handler = Handler()
    request = v1beta1.NodeUnprepareResourcesRequest(
        claims=[v1beta1.Claim(namespace="team", name="claim-a", uid="a")]
    )
    async with serving(kubelet_root, handler) as (_, client):
        answer = await client.ask(
            V1BETA1, "NodeUnprepareResources", request, v1beta1.NodeUnprepareResourcesResponse
        )
    assert dict(answer.claims) == {"a": v1beta1.NodeUnprepareResourceResponse()}
    assert handler.unprepared == [[ClaimRef("team", "claim-a", "a")]]


async def test_a_share_id_is_present_only_where_the_allocation_has_one(kubelet_root: Path) -> None:
    handler = Handler()
    handler.outcomes["a"] = PrepareOutcome((nic("a"), nic("a", share_id="0a")))
    async with serving(kubelet_root, handler) as (_, client):
        plain, shared = (await client.prepare("a")).claims["a"].devices
    assert not plain.HasField("share_id")
    assert shared.HasField("share_id")
    assert shared.share_id == "0a"


async def test_a_claim_that_the_handler_forgot_still_gets_an_entry_that_names_the_bug(
    kubelet_root: Path,
) -> None:
    handler = Handler()
    handler.forget = {"b"}
    async with serving(kubelet_root, handler) as (_, client):
        prepared, unprepared = await client.prepare("a", "b"), await client.unprepare("a", "b")
    bug = "bug in the driver: no answer for claim team/claim-b"
    assert {uid: entry.error for uid, entry in prepared.claims.items()} == {"a": "", "b": bug}
    assert {uid: entry.error for uid, entry in unprepared.claims.items()} == {"a": "", "b": bug}


async def test_an_answer_for_a_claim_that_nobody_asked_for_does_not_reach_the_kubelet(
    kubelet_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Chatty(Handler):
        async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
            return {**await super().unprepare(refs), "stranger": ""}

    async with serving(kubelet_root, Chatty()) as (_, client):
        response = await client.unprepare("a")
    assert list(response.claims) == ["a"]
    assert "stranger" in caplog.text


async def test_preparing_twice_gives_the_same_bytes(kubelet_root: Path) -> None:
    async with serving(kubelet_root, Handler()) as (_, client):
        first, second = await client.prepare("a"), await client.prepare("a")
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


async def test_unprepare_of_an_unknown_claim_is_an_empty_entry(kubelet_root: Path) -> None:
    async with serving(kubelet_root, Handler()) as (_, client):
        response = await client.unprepare("never-seen")
    assert dict(response.claims) == {"never-seen": v1.NodeUnprepareResourceResponse()}


async def test_an_unprepare_error_stays_with_its_claim(kubelet_root: Path) -> None:
    handler = Handler()
    handler.errors["b"] = "device busy"
    async with serving(kubelet_root, handler) as (_, client):
        response = await client.unprepare("a", "b")
    assert {uid: entry.error for uid, entry in response.claims.items()} == {"a": "", "b": "device busy"}


async def test_an_empty_request_is_answered_without_the_handler(kubelet_root: Path) -> None:
    handler = Handler()
    async with serving(kubelet_root, handler) as (_, client):
        assert not (await client.prepare()).claims
        assert not (await client.unprepare()).claims
    assert handler.prepared == handler.unprepared == []


async def test_a_named_error_of_the_whole_call_becomes_each_claims_own(kubelet_root: Path) -> None:
    handler = Handler()
    handler.failure = StoreError("store is read-only", hint="free the disk")
    async with serving(kubelet_root, handler) as (_, client):
        response, undone = await client.prepare("a", "b"), await client.unprepare("a")
    text = "store is read-only (free the disk)"
    assert {uid: entry.error for uid, entry in response.claims.items()} == {"a": text, "b": text}
    assert undone.claims["a"].error == text


async def test_a_bug_is_logged_with_its_traceback_and_told_as_internal(
    kubelet_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    handler.failure = ZeroDivisionError("oops")
    async with serving(kubelet_root, handler) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.prepare("a")
        handler.failure = None
        assert (await client.prepare("a")).claims["a"].devices
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "bug in the driver: ZeroDivisionError: oops"
    (record,) = errors_of_ours(caplog)
    assert record.exc_info is not None
    assert "team/claim-a (a)" in record.getMessage()


@pytest.mark.parametrize("method", [f"/{V1}/NodeDanceResources", "/v1.DRAPlugin/NodePrepareResources"])
async def test_unknown_methods_and_advertised_names_used_as_services_are_unimplemented(
    kubelet_root: Path, method: str
) -> None:
    service, _, name = method.removeprefix("/").partition("/")
    async with serving(kubelet_root, Handler()) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await client.ask(service, name, v1.NodePrepareResourcesRequest(), v1.NodePrepareResourcesResponse)
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_a_health_source_the_health_service_is_neither_advertised_nor_served(
    kubelet_root: Path,
) -> None:
    async with serving(kubelet_root, Handler()) as (server, client):
        assert server.supported_versions == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await client.ask(
                "v1.DRAResourceHealth",
                "NodeWatchResources",
                v1.NodePrepareResourcesRequest(),
                v1.NodePrepareResourcesResponse,
            )
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_with_a_health_source_both_health_services_are_advertised_last(kubelet_root: Path) -> None:
    class NoDevices:
        def snapshot(self) -> tuple[()]:
            return ()

    server = DraPluginServer(kubelet_root / "dra.sock", Handler(), HealthService(NoDevices()))
    assert server.supported_versions == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )


async def test_a_claim_without_a_uid_is_an_invalid_argument(kubelet_root: Path) -> None:
    handler = Handler()
    async with serving(kubelet_root, handler) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as invalid:
            await client.prepare("")
    assert invalid.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert handler.prepared == []


async def test_bytes_that_are_no_message_do_not_reach_the_handler(kubelet_root: Path) -> None:
    handler = Handler()
    async with (
        serving(kubelet_root, handler) as (_, client),
        grpc.aio.insecure_channel(f"unix:{kubelet_root / 'dra.sock'}") as channel,
    ):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{V1}/NodePrepareResources"
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff", timeout=DEADLINE)
        assert (await client.prepare("a")).claims["a"].devices
    assert len(handler.prepared) == 1


async def test_calls_for_one_claim_wait_for_each_other_and_other_claims_pass(kubelet_root: Path) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    async with serving(kubelet_root, handler) as (server, client):
        slow = asyncio.create_task(client.prepare("a"))
        await gate.reached.wait()
        undo = asyncio.create_task(client.unprepare("b", "a"))
        await eventually(lambda: len(server.list_calls()) == 2)
        assert (await client.prepare("c")).claims["c"].devices
        assert handler.unprepared == []
        gate.open.set()
        await slow
        assert set((await undo).claims) == {"a", "b"}
    assert len(handler.unprepared) == 1


async def test_two_batches_with_the_same_claims_in_opposite_order_do_not_block_each_other(
    kubelet_root: Path,
) -> None:
    async with serving(kubelet_root, Handler()) as (_, client):
        answers = await asyncio.gather(*(client.prepare(*pair) for pair in [("a", "b"), ("b", "a")] * 10))
    assert all(len(answer.claims) == 2 for answer in answers)


async def test_work_goes_on_when_the_kubelet_gives_up_and_the_retry_waits_for_it(kubelet_root: Path) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    async with serving(kubelet_root, handler) as (server, client):
        while not gate.reached.is_set():  # on a busy machine the time may be over before it has arrived
            with pytest.raises(grpc.aio.AioRpcError) as gave_up:
                await client.prepare("a", seconds=0.2)
            assert gave_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: len(server.list_calls()) == 1)
        retry = asyncio.create_task(client.prepare("a"))
        gate.open.set()
        assert (await retry).claims["a"].devices
        assert len(handler.prepared) == 2


async def test_a_call_that_was_given_up_before_its_turn_never_starts(kubelet_root: Path) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    async with serving(kubelet_root, handler) as (server, client):
        slow = asyncio.create_task(client.prepare("a"))
        await gate.reached.wait()
        second = asyncio.create_task(client.prepare("a"))
        await eventually(lambda: len(server.list_calls()) == 2)
        second.cancel()
        await asyncio.wait({second})
        await eventually(lambda: len(server.list_calls()) == 1)
        gate.open.set()
        await slow
        assert await server.drain(DEADLINE)
    assert len(handler.prepared) == 1


async def test_drain_waits_for_calls_in_flight_and_says_whether_it_was_enough(kubelet_root: Path) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    async with serving(kubelet_root, handler) as (server, client):
        assert await server.drain(0)
        slow = asyncio.create_task(client.prepare("a"))
        await gate.reached.wait()
        assert not await server.drain(0.01)
        drained = asyncio.create_task(server.drain(DEADLINE))
        gate.open.set()
        assert await drained
        assert (await slow).claims["a"].devices
        assert len(server.list_calls()) == 0


async def test_after_refuse_prepare_fails_per_claim_and_unprepare_still_works(kubelet_root: Path) -> None:
    handler = Handler()
    async with serving(kubelet_root, handler) as (server, client):
        server.refuse("the driver is stopping")
        response = await client.prepare("a", "b")
        assert {uid: entry.error for uid, entry in response.claims.items()} == dict.fromkeys(
            ("a", "b"), "the driver is stopping"
        )
        assert (await client.unprepare("a")).claims["a"].error == ""
        assert not (await client.prepare()).claims
    assert handler.prepared == []


async def test_stop_ends_a_call_that_would_not_and_tells_its_caller(kubelet_root: Path) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    async with serving(kubelet_root, handler) as (server, client):
        stuck = asyncio.create_task(client.prepare("a"))
        await gate.reached.wait()
        await server.stop()
        with pytest.raises(grpc.aio.AioRpcError) as stopped:
            await stuck
        assert len(server.list_calls()) == 0
    assert stopped.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_vanished_socket_is_served_again_while_a_call_in_flight_is_finished(
    kubelet_root: Path,
) -> None:
    handler, gate = Handler(), Gate("a")
    handler.gate = gate
    path = kubelet_root / "dra.sock"
    async with serving(kubelet_root, handler) as (_, client):
        slow = asyncio.create_task(client.prepare("a"))
        await gate.reached.wait()
        path.unlink()
        # Of its own, not the connection to the old server that gRPC would share.
        apart = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{path}", options=apart) as channel:
            await asyncio.wait_for(channel.channel_ready(), DEADLINE)
            assert (await Client(channel).prepare("b")).claims["b"].devices
        gate.open.set()
        assert (await slow).claims["a"].devices


async def test_a_named_error_needs_no_error_log(kubelet_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = Handler()
    handler.failure = ClaimError("bad config")
    async with serving(kubelet_root, handler) as (_, client):
        await client.prepare("a")
    assert errors_of_ours(caplog) == []

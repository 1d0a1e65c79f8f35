"""Sections 2.1 to 2.3 against the kubelet room: what Prepare carries, who gets an answer, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from msgspec import structs

from dranet.cluster.client import DEFAULT_TIMEOUT_SECONDS
from dranet.errors import ClusterError
from dranet.kubelet.plugin import ANSWER_SECONDS, KUBELET_TIMEOUT_SECONDS
from dranet.pb import dra_v1_pb2
from testbed.kubelet.nouns import PluginFailure
from testbed.pb import dra_v1beta1_pb2
from tests.contract.calls import CALL_SECONDS, SERVICES, ask, eventually, refs
from tests.contract.kubelet_room import DRIVER, QUICK, Room, Script, a_device, registered

pytestmark = pytest.mark.socket


@pytest.fixture
def script() -> Script:
    return Script()


# 2.1 the messages


async def test_the_uid_is_the_second_field_and_the_name_the_third(root: Path) -> None:
    """2.1: ``Claim`` is namespace 1, uid 2, name 3; swapped, every claim would be of another name."""
    claim = b"\x0a\x02ns\x12\x03uid\x1a\x04name"
    request = dra_v1_pb2.NodePrepareResourcesRequest.FromString(b"\x0a" + bytes([len(claim)]) + claim)
    async with Room(root).serving() as room:
        method = f"{SERVICES['v1.DRAPlugin']}/NodePrepareResources"
        answer = dra_v1_pb2.NodePrepareResourcesResponse
        response = await ask(room.calls.dra_socket, method, request, answer, CALL_SECONDS)
    assert room.script.prepared == [["uid"]]
    assert list(response.claims) == ["uid"]


async def test_both_versions_answer_the_same_but_for_the_share(root: Path, script: Script) -> None:
    """2.1: v1beta1 is v1 without ``share_id``; its answer has no byte that a v1beta1 kubelet cannot read."""
    script.devices["u1"] = (a_device("u1", share_id="s1"),)
    async with Room(root, script).serving() as room:
        new = await room.calls.prepare(refs("u1"))
        old = await room.calls.prepare(refs("u1"), "v1beta1.DRAPlugin")
        new.claims["u1"].devices[0].ClearField("share_id")
        assert old == new
    read = dra_v1beta1_pb2.NodePrepareResourcesResponse.FromString(old.SerializeToString())
    assert read.SerializeToString(deterministic=True) == old.SerializeToString(deterministic=True)
    assert read.claims["u1"].devices[0].device_name == "nic-1"


# 2.2 the fields


@pytest.mark.parametrize("share_id", [None, "a1b2"])
async def test_a_share_id_is_present_exactly_when_the_allocation_has_one(
    root: Path, script: Script, share_id: str | None
) -> None:
    """2.2: presence matters, an empty text is not the same as none."""
    script.devices["u1"] = (a_device("u1", share_id=share_id),)
    async with Room(root, script).serving() as room:
        (device,) = (await room.calls.prepare(refs("u1"))).claims["u1"].devices
    assert device.HasField("share_id") is (share_id is not None)
    assert device.share_id == (share_id or "")


async def test_one_device_twice_is_two_entries_with_two_shares(root: Path, script: Script) -> None:
    """2.2: the same device twice is right only with different share ids."""
    script.devices["u1"] = (a_device("u1", share_id="s1"), a_device("u1", share_id="s2"))
    async with Room(root, script).serving() as room:
        devices = (await room.calls.prepare(refs("u1"))).claims["u1"].devices
    assert [(device.device_name, device.share_id) for device in devices] == [("nic-1", "s1"), ("nic-1", "s2")]


async def test_no_request_names_and_no_cdi_names_are_allowed(root: Path, script: Script) -> None:
    """2.2: an empty list of requests is for every container, an empty list of CDI names needs no file."""
    script.devices["u1"] = (structs.replace(a_device("u1"), request_names=(), cdi_ids=()),)
    async with registered(root) as (room, node):
        room.script.devices = script.devices
        (device,) = (await node.manager.find(DRIVER).prepare(refs("u1")))["u1"]
    assert device.serves("any")
    assert device.resource_id == f"{DRIVER}/node-1/nic-1"


# 2.3 what the kubelet makes of an answer


async def test_every_claim_of_a_batch_gets_an_entry_and_no_other(root: Path, script: Script) -> None:
    """2.3: a missing entry is "skipped N ResourceClaims", an unknown one fails the call."""
    script.devices["none"] = ()
    async with registered(root) as (room, node):
        room.script.devices = script.devices
        answers = await node.manager.find(DRIVER).prepare(refs("none", "u1", "u2"))
    assert {uid: len(devices) for uid, devices in answers.items()} == {"none": 0, "u1": 1, "u2": 1}


async def test_one_bad_claim_does_not_fail_the_batch(root: Path, script: Script) -> None:
    """2.3: its error is in its own entry, and the call itself succeeds."""
    script.errors["bad"] = "no such device"
    async with Room(root, script).serving() as room:
        claims = (await room.calls.prepare(refs("good", "bad", "fine"))).claims
    assert {uid: entry.error for uid, entry in claims.items()} == {
        "good": "",
        "bad": "no such device",
        "fine": "",
    }
    assert (len(claims["good"].devices), len(claims["bad"].devices)) == (1, 0)


async def test_after_an_error_all_claims_are_prepared_again_with_the_same_answer(root: Path) -> None:
    """2.3: the kubelet records nothing of the others in that answer, and asks for all of them anew."""
    async with registered(root) as (room, node):
        plugin = node.manager.find(DRIVER)
        room.script.errors["bad"] = "not yet"
        with pytest.raises(PluginFailure, match="not yet"):
            await plugin.prepare(refs("good", "bad"))
        before = await room.calls.prepare(refs("good"))
        room.script.errors.clear()
        assert set(await plugin.prepare(refs("good", "bad"))) == {"good", "bad"}
        assert await room.calls.prepare(refs("good")) == before


async def test_an_error_of_the_whole_call_is_told_for_each_claim(root: Path) -> None:
    """2.3: a gRPC error would say nothing of which claim; a named error reaches each of them."""
    script = Script()

    async def fail(_: object) -> dict[str, object]:
        raise ClusterError("the API server is away")

    script.prepare = fail  # type: ignore[assignment, method-assign]
    async with Room(root, script).serving() as room:
        claims = (await room.calls.prepare(refs("u1", "u2"))).claims
    assert {entry.error for entry in claims.values()} == {"the API server is away"}


async def test_a_call_is_answered_before_the_kubelets_patience_ends(root: Path) -> None:
    """2.3, 11.12: 45 s are for the whole batch. What hangs is answered with a reason of its own, the work
    goes on, and the repeated call waits for it instead of doing it twice."""
    async with Room(root, answer_seconds=0.1).serving() as room:
        room.script.hold("slow")
        first = await room.calls.prepare(refs("slow"))
        assert "not done after 0.1 s" in first.claims["slow"].error
        second = await room.calls.prepare(refs("slow"))
        assert "not done after 0.1 s" in second.claims["slow"].error
        await eventually(lambda: len(room.plugin.list_calls()) == 1)
        assert room.script.prepared == [["slow"]]
        room.script.release()
        await eventually(lambda: len(room.plugin.list_calls()) == 0)
        assert (await room.calls.prepare(refs("slow"))).claims["slow"].devices


def test_what_prepare_waits_for_ends_before_the_answer_and_that_before_the_kubelet() -> None:
    """2.3, 11.12: one request to the API server, then the whole, then the kubelet."""
    assert DEFAULT_TIMEOUT_SECONDS < ANSWER_SECONDS < KUBELET_TIMEOUT_SECONDS == CALL_SECONDS == 45


async def test_an_empty_request_is_answered_at_once_while_prepares_hang(root: Path) -> None:
    """9.3: the liveness probe asks for no claims, and waits for no lock."""
    async with Room(root).serving() as room, asyncio.TaskGroup() as tasks:
        room.script.hold("u1")
        for _ in range(3):
            tasks.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: len(room.plugin.list_calls()) == 3)
        for version in SERVICES:
            assert not (await room.calls.prepare([], version, seconds=1)).claims
            assert not (await room.calls.unprepare([], version, seconds=1)).claims
        assert len(room.plugin.list_calls()) == 3
        assert room.plugin.capabilities.prepared_at is not None
        room.script.release()


async def test_claims_of_other_pods_do_not_wait_for_one_that_hangs(root: Path) -> None:
    """2.4, 4.3: only calls for the same claim wait for each other."""
    async with Room(root).serving() as room, asyncio.TaskGroup() as tasks:
        room.script.hold("slow")
        slow = tasks.create_task(room.calls.prepare(refs("slow")))
        await eventually(lambda: room.script.prepared)
        assert (await room.calls.prepare(refs("quick"))).claims["quick"].devices
        assert "gone" in (await room.calls.unprepare(refs("gone"))).claims
        assert not slow.done()
        room.script.release()


async def test_a_call_that_the_kubelet_cancels_goes_on_and_its_repetition_gets_the_result(
    root: Path,
) -> None:
    """2.3: Prepare may be cut anywhere and repeated; the claim is never worked on twice at a time."""
    async with Room(root).serving() as room:
        room.script.hold("u1")
        cut = asyncio.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: room.script.prepared == [["u1"]])
        cut.cancel()
        await asyncio.wait({cut})
        again = asyncio.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: len(room.plugin.list_calls()) == 2)
        assert room.script.prepared == [["u1"]]
        room.script.release()
        assert (await again).claims["u1"].devices
        assert room.script.prepared == [["u1"], ["u1"]]


async def test_a_call_whose_deadline_passed_before_its_turn_is_never_begun(root: Path) -> None:
    """2.3: the kubelet has given it up and sends another; work that nobody waits for is not begun."""
    async with Room(root).serving() as room:
        room.script.hold("u1")
        first = asyncio.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: room.script.prepared == [["u1"]])
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await room.calls.prepare(refs("u1"), seconds=0.05)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: len(room.plugin.list_calls()) == 1)
        room.script.release()
        await first
        assert room.script.prepared == [["u1"]]


async def test_a_claim_without_a_uid_is_refused_before_any_work(root: Path) -> None:
    """2.1: the UID is the key of the answer; without one there is none to give."""
    async with Room(root).serving() as room:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await room.calls.prepare(refs("u1", ""))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert room.script.prepared == []


async def test_an_answer_of_many_claims_fits_what_a_client_receives(root: Path, script: Script) -> None:
    """4.1: gRPC's default of 4 MiB: a pod may have 32 claims with 32 devices each, with the longest names."""
    uids = [f"{number:0>36}" for number in range(32)]
    for uid in uids:
        cdi = f"{DRIVER}/claim={uid}-{'d' * 63}"
        script.devices[uid] = (
            structs.replace(a_device(uid), device="d" * 63, pool="p" * 253, cdi_ids=(cdi,)),
        ) * 32
    async with Room(root, script).serving() as room:
        response = await room.calls.prepare(refs(*uids))
    assert response.ByteSize() < 4 << 20
    assert {len(entry.devices) for entry in response.claims.values()} == {32}


async def test_what_the_kubelet_called_is_remembered(root: Path) -> None:
    """1.5: what a kubelet can do is seen in what it calls, in no version string; a probe without claims
    teaches nothing."""
    async with registered(root, replace(QUICK, known_services=("v1beta1.DRAPlugin",))) as (room, node):
        await room.calls.prepare([])
        assert room.plugin.capabilities.dra_service == ""
        await node.manager.find(DRIVER).prepare(refs("u1"))
        capabilities = room.plugin.capabilities
        assert (capabilities.dra_service, capabilities.unprepared_at) == ("v1beta1.DRAPlugin", None)
        await room.calls.unprepare(refs("u1"))
        assert room.plugin.capabilities.dra_service == "v1.DRAPlugin"
        assert room.plugin.capabilities.unprepared_at is not None

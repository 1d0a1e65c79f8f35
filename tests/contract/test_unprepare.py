"""Section 2.4 against the kubelet room: Unprepare answers for each claim, always works, and is repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed.kubelet.nouns import PluginFailure
from tests.contract.calls import SERVICES, eventually, refs
from tests.contract.kubelet_room import DRIVER, Room, registered

pytestmark = pytest.mark.socket


@pytest.mark.parametrize("version", SERVICES)
async def test_every_claim_gets_an_entry_an_unknown_one_an_empty_one(root: Path, version: str) -> None:
    """2.4: an unknown UID is success, and every UID has its entry."""
    async with Room(root).serving() as room:
        response = await room.calls.unprepare(refs("u1", "never-seen"), version)
    assert {uid: entry.error for uid, entry in response.claims.items()} == {"u1": "", "never-seen": ""}


async def test_an_error_stays_with_its_claim_and_the_call_is_repeated_until_success(root: Path) -> None:
    """2.4: the kubelet repeats until success, the pod stays Terminating meanwhile."""
    async with registered(root) as (room, node):
        room.script.errors["u1"] = "the link is busy"
        for _ in range(2):
            with pytest.raises(PluginFailure, match="the link is busy"):
                await node.manager.find(DRIVER).unprepare(refs("u1", "u2"))
        room.script.errors.clear()
        await node.manager.find(DRIVER).unprepare(refs("u1", "u2"))
    assert room.script.unprepared == [["u1", "u2"]] * 3


async def test_unprepare_waits_for_a_prepare_of_the_same_claim_alone(root: Path) -> None:
    """2.4: it may run beside Prepare of other claims, never beside that of its own."""
    async with Room(root).serving() as room, asyncio.TaskGroup() as tasks:
        room.script.hold("u1")
        tasks.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: room.script.prepared == [["u1"]])
        own = tasks.create_task(room.calls.unprepare(refs("u1")))
        await room.calls.unprepare(refs("u2"))
        assert not own.done()
        assert room.script.unprepared == [["u2"]]
        room.script.release()
    assert room.script.unprepared == [["u2"], ["u1"]]


async def test_an_unprepare_that_hangs_is_answered_in_time_too(root: Path) -> None:
    """2.4: its patience is the same 45 s; the work goes on, and the repetition finds it done."""
    async with Room(root, answer_seconds=0.1).serving() as room:
        room.script.hold("u1")
        assert "not done after" in (await room.calls.unprepare(refs("u1"))).claims["u1"].error
        room.script.release()
        await eventually(lambda: len(room.plugin.list_calls()) == 0)
        assert (await room.calls.unprepare(refs("u1"))).claims["u1"].error == ""


async def test_a_driver_that_drains_refuses_prepare_and_still_unprepares(root: Path) -> None:
    """2.4: without an Unprepare pods hang; so it is the last thing that a leaving driver stops doing."""
    async with Room(root).serving() as room:
        room.plugin.refuse("the driver is stopping")
        prepared = (await room.calls.prepare(refs("u1"))).claims
        assert prepared["u1"].error == "the driver is stopping"
        assert (await room.calls.unprepare(refs("u1"))).claims["u1"].error == ""
    assert (room.script.prepared, room.script.unprepared) == ([], [["u1"]])

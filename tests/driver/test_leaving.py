"""The way out beside another instance, with the kubelet that hangs up on who is not registered any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dranet.driver.instances import leader
from dranet.driver.instances.leader import Drain, Leadership
from dranet.driver.reports.reporter import Reporter
from dranet.kubelet.plugin import PreparedDeviceAnswer
from dranet.store.claim_store import ClaimStore
from testbed.kubelet.nouns import PluginFailure
from tests.contract.calls import eventually, refs
from tests.contract.conftest import root
from tests.contract.kubelet_room import Room, registered

pytestmark = pytest.mark.socket

__all__ = ["root"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClaimStore]:
    with closing(ClaimStore(tmp_path / "claims")) as store:
        store.open()
        yield store


async def say_yes(_: float) -> bool:
    return True


def leaving_of(room: Room, store: ClaimStore) -> Drain:
    """Of an instance beside which another one stays."""
    handover = cast("Leadership", SimpleNamespace(relieve=say_yes))
    return Drain(handover, room.plugin, store, cast("Reporter", SimpleNamespace(flush=say_yes)))


async def test_a_call_in_flight_is_answered_before_the_kubelet_hangs_up(
    root: Path, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that waits for its DHCP server, when the instance that has it is updated."""
    monkeypatch.setattr(leader, "LINGER_SECONDS", 0.2)
    async with registered(root) as (room, node):
        room.script.hold("slow")
        (plugin,) = node.manager.plugins
        call = asyncio.create_task(plugin.prepare(refs("slow")))
        await eventually(lambda: room.script.prepared == [["slow"]])
        ending = asyncio.create_task(leaving_of(room, store).run(10.0))
        assert (await plugin.prepare(refs("late"))).keys() == {"late"}
        room.script.release()
        assert (await call).keys() == {"slow"}
        await ending
        await eventually(lambda: node.manager.plugins == ())


async def test_an_answer_that_takes_a_while_to_be_sent_is_waited_for(
    root: Path, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way when the handler has long ended; here it is as large as the kubelet takes it."""
    monkeypatch.setattr(leader, "LINGER_SECONDS", 0.0)
    async with registered(root) as (room, node):
        cdi_ids = tuple(f"dra.net/claim=large-{number:090}" for number in range(30_000))
        room.script.devices["large"] = (PreparedDeviceAnswer(("nic",), "node-1", "nic-1", cdi_ids),)
        room.script.hold("large")
        (plugin,) = node.manager.plugins
        call = asyncio.create_task(plugin.prepare(refs("large")))
        await eventually(lambda: room.script.prepared == [["large"]])
        ending = asyncio.create_task(leaving_of(room, store).run(10.0))
        room.script.release()
        assert (await call).keys() == {"large"}
        await ending


async def test_a_call_that_does_not_end_holds_the_way_out_up_for_its_time_only(
    root: Path, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "LINGER_SECONDS", 0.1)
    async with registered(root) as (room, node):
        room.script.hold("hangs")
        (plugin,) = node.manager.plugins
        call = asyncio.create_task(plugin.prepare(refs("hangs")))
        await eventually(lambda: room.script.prepared == [["hangs"]])
        async with asyncio.timeout(30):  # it hangs for ever
            await leaving_of(room, store).run(0.3)
        await eventually(lambda: node.manager.plugins == ())
        (failure,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(failure, PluginFailure)

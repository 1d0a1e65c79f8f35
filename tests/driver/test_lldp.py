"""Neighbours as facts of a scan: by listening, over a restart, and from lldpd's file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.driver import lldp
from dranet.driver.lldp import (
    HeardNeighbours,
    LldpdNeighbours,
    NeighbourFile,
    read_for_command,
)
from dranet.errors import KernelError
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.kernel.lldp.listener import Heard
from dranet.kernel.lldp.message import NEAREST_BRIDGE, Message
from dranet.model.facts import Link, LldpNeighbour, NodeFacts
from dranet.settings import Lldp, Settings
from tests.support.waiting import until

ETH0 = Link(2, "eth0", carrier=True)
KNOWN = LldpNeighbour("eth0", "c", "swp1", "leaf-1")
LEAF = Message("c", "swp1", 120, "leaf-1")


class Script:
    """Stands in for the packet socket: frames that a test puts there, and a pipe that wakes the loop."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.frames: list[Heard] = []
        self.odd_frames, self.oddity = 0, ""
        self.refusal: KernelError | None = None

    def fileno(self) -> int:
        return self.reading

    def join(self, _: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    def put(self, ifname: str, message: Message) -> None:
        self.frames.append(Heard(ifname, NEAREST_BRIDGE, message))
        os.write(self.writing, b"x")

    def read(self, hear: Callable[[Heard], None]) -> int:
        if self.frames:
            os.read(self.reading, 1000)
        frames, self.frames = self.frames, []
        for frame in frames:
            hear(frame)
        return len(frames)

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()
    monkeypatch.setattr(lldp, "Listener", lambda: found)
    monkeypatch.setattr(lldp, "SETTLE_SECONDS", 0.0)
    return found


async def follow(source: HeardNeighbours, script: Script, *messages: Message) -> list[str]:
    """The name of the switch after each change; no message: time has passed."""
    changed = asyncio.Event()
    running = asyncio.create_task(source.run(changed.set))
    names = []
    try:
        for message in messages:
            script.put("eth0", message)
            await asyncio.wait_for(changed.wait(), 40)
            changed.clear()
            names.append(",".join(one.system_name for one in source.look([ETH0]).neighbours))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return names


def test_a_frame_and_a_goodbye_each_ask_for_a_scan(tmp_path: Path, script: Script) -> None:
    source = HeardNeighbours(NeighbourFile(tmp_path), lambda: True)
    assert source.look([ETH0]).neighbours == ()
    assert asyncio.run(follow(source, script, LEAF, Message("c", "swp1", 0))) == ["leaf-1", ""]
    source.close()


def test_what_is_not_renewed_ends_by_itself_and_asks_for_a_scan(tmp_path: Path, script: Script) -> None:
    now = [100.0]
    source = HeardNeighbours(NeighbourFile(tmp_path), lambda: True, lambda: now[0])
    source.look([ETH0])

    async def scenario() -> None:
        await follow(source, script, LEAF)
        now[0] = 219.99  # the rest passes while it waits
        changed = asyncio.Event()
        running = asyncio.create_task(source.run(changed.set))
        await asyncio.sleep(0)
        now[0] = 220.0
        await asyncio.wait_for(changed.wait(), 40)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert source.look([ETH0]).neighbours == ()
    source.close()


@pytest.mark.parametrize("may_write", [True, False])
def test_the_file_has_a_neighbour_before_the_scan_ends_and_the_next_run_begins_with_it(
    tmp_path: Path, script: Script, may_write: bool
) -> None:
    source = HeardNeighbours(NeighbourFile(tmp_path), lambda: may_write)
    source.look([ETH0])
    asyncio.run(follow(source, script, LEAF))
    source.close()
    again = HeardNeighbours(NeighbourFile(tmp_path), lambda: may_write)
    assert again.look([ETH0]).neighbours == ((KNOWN,) if may_write else ())


class SlowFile(NeighbourFile):
    """On a disk that answers only while the event loop runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.answers: list[bool] = []

    def _wait(self) -> None:
        self.asked.set()
        self.answers.append(self.may_answer.wait(10))

    def read(self) -> tuple[LldpNeighbour, ...]:
        self._wait()
        return super().read()

    def write(self, neighbours: tuple[LldpNeighbour, ...]) -> None:
        self._wait()
        super().write(neighbours)


def test_the_event_loop_hears_neighbours_while_the_disk_does_not_answer(
    tmp_path: Path, script: Script
) -> None:
    file = SlowFile(tmp_path)
    source = HeardNeighbours(file, lambda: True)

    async def scenario() -> None:
        changed = asyncio.Event()
        running = asyncio.create_task(source.run(changed.set))
        await asyncio.sleep(0)
        scan = asyncio.create_task(asyncio.to_thread(source.look, [ETH0]))
        await until(file.asked.is_set, "the file is read")
        file.may_answer.set()
        await scan
        file.may_answer.clear()
        file.asked.clear()
        scan = asyncio.create_task(asyncio.to_thread(source.look, [ETH0]))
        await until(file.asked.is_set, "the file is written")
        script.put("eth0", LEAF)
        await asyncio.wait_for(changed.wait(), 40)
        file.may_answer.set()
        await scan
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert file.answers
    assert all(file.answers)
    source.close()


def test_neighbours_of_the_file_are_no_change_and_the_first_frame_of_another_is_one(
    tmp_path: Path, script: Script
) -> None:
    NeighbourFile(tmp_path).write((KNOWN,))
    source = HeardNeighbours(NeighbourFile(tmp_path), lambda: True)
    assert source.look([ETH0]).neighbours == (KNOWN,)
    other = Message("c", "swp1", 120, "leaf-2")
    assert asyncio.run(follow(source, script, other)) == ["leaf-2"]
    source.close()


def test_a_refusal_is_a_warning_of_the_scan_and_tried_again(tmp_path: Path, script: Script) -> None:
    source = HeardNeighbours(NeighbourFile(tmp_path), lambda: True)
    script.refusal = KernelError("listen for LLDP: not permitted", hint="add CAP_NET_RAW")
    assert source.look([ETH0]).warnings == ("listen for LLDP: not permitted: add CAP_NET_RAW",)
    script.refusal = None
    assert source.look([ETH0]).warnings == ()
    source.close()


@given(
    st.binary(max_size=60) | st.sampled_from([b"[]", b'{"format": 2}', b'{"format": 1, "neighbours": [{}]}'])
)
def test_a_damaged_file_is_as_good_as_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / lldp.FILE_NAME).write_bytes(content)
    assert NeighbourFile(folder).read() == ()


def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    NeighbourFile(tmp_path / "file").write((KNOWN,))
    assert "cannot be written" in caplog.text


class Facts:
    is_live = True

    def __init__(self, *links: Link) -> None:
        self.links = links

    def set_protected_addresses(self, _: object) -> None: ...

    def read(self, _: Changes = EVERYTHING, /) -> NodeFacts:
        return NodeFacts(links=self.links, warnings=("old",))


def test_neighbours_and_warnings_are_added_to_the_facts(tmp_path: Path) -> None:
    NeighbourFile(tmp_path).write((KNOWN,))
    reader = read_for_command(Facts(ETH0), Settings(state_dir=tmp_path, lldp=Lldp.LISTEN))
    assert reader.is_live
    assert reader.read().lldp_neighbours == (KNOWN,)
    missing = Settings(lldp=Lldp.LLDPD, lldpd_file=tmp_path / "none")
    facts = read_for_command(Facts(ETH0), missing).read()
    assert facts.lldp_neighbours == ()
    assert facts.warnings == (
        "old",
        f"lldpd_file {tmp_path}/none: No such file or directory; see docs/networking/rails.md",
    )


class LldpdFile:
    """What the node writes, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, 1_000_000.0
        self.source = LldpdNeighbours(path, lambda: self.now)

    def write(self, *names: str) -> None:
        interfaces = [
            {
                ifname: {
                    "chassis": {switch: {"id": {"type": "mac", "value": "c"}}},
                    "port": {"id": {"type": "ifname", "value": "swp1"}, "ttl": "120"},
                }
            }
            for ifname, _, switch in (name.partition("=") for name in names)
        ]
        self.path.write_text(json.dumps({"lldp": {"interface": interfaces}}))
        os.utime(self.path, (self.now, self.now))

    def look(self, *ifnames: str) -> list[str]:
        wires = [Link(number, ifname, carrier=True) for number, ifname in enumerate(ifnames, 2)]
        return [f"{one.ifname}={one.system_name}" for one in self.source.look(wires).neighbours]


def test_a_neighbour_of_lldpd_holds_for_its_time_after_the_file_was_written(tmp_path: Path) -> None:
    file = LldpdFile(tmp_path / "n.json")
    file.write("eth0=leaf-1", "lo=x")
    assert file.look("eth0") == ["eth0=leaf-1"]
    file.now += 119
    assert file.look("eth0") == ["eth0=leaf-1"]
    file.now += 1
    assert file.look("eth0") == []


def test_lldpd_forgets_a_link_in_a_pod_and_the_driver_does_not(tmp_path: Path) -> None:
    file = LldpdFile(tmp_path / "n.json")
    file.write("eth0=leaf-1", "eth1=leaf-2")
    file.look("eth0", "eth1")
    file.now += 1000
    file.write("eth1=leaf-2")
    assert file.look("eth1") == ["eth0=leaf-1", "eth1=leaf-2"]
    assert file.look("eth0", "eth1") == ["eth0=leaf-1", "eth1=leaf-2"]
    file.now += 30
    file.write("eth0=leaf-9", "eth1=leaf-2")
    assert file.look("eth0", "eth1") == ["eth0=leaf-9", "eth1=leaf-2"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b" " * (1 << 21)])
def test_a_file_that_lldpd_has_not_written_is_a_warning_and_what_is_known_holds(
    tmp_path: Path, content: bytes
) -> None:
    file = LldpdFile(tmp_path / "n.json")
    file.write("eth0=leaf-1")
    file.look("eth0")
    file.path.write_bytes(content)
    found = file.source.look([ETH0])
    assert [one.system_name for one in found.neighbours] == ["leaf-1"]
    assert "docs/networking/rails.md" in found.warnings[0]

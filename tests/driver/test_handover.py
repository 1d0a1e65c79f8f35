"""Who has the duties: two and three instances over one folder, some in processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dranet.driver.instances import leader
from dranet.driver.instances.leader import InstanceState, Leadership
from dranet.driver.instances.members import Members
from dranet.errors import SettingsError
from dranet.telemetry import HandoverMetrics, Recorder

SECONDS = 30.0

HOLDER = """
import asyncio, sys
from pathlib import Path
from dranet.driver.instances.leader import Leadership
from dranet.driver.instances.members import Members
from dranet.telemetry import HandoverMetrics, Recorder

async def main(state_dir, uid):
    handover = Leadership(
        state_dir, Members(state_dir / "instances", uid, lambda _: ()),
        HandoverMetrics(Recorder()), is_fit=lambda: True,
        on_state=lambda state: print(state, flush=True), on_company=lambda: None, on_gone=lambda: None,
    )
    handover.join()
    await handover.run(asyncio.Event().wait)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


class Instance:
    """One instance of this process; counts how many have the duties at a time."""

    on_duty = 0

    def __init__(self, state_dir: Path, uid: str, *, fit: bool = True) -> None:
        self.fit = fit
        self.states: list[InstanceState] = []
        self.gone = 0
        recorder = Recorder()
        self.registry = recorder.registry
        self.handover = Leadership(
            state_dir,
            Members(state_dir / "instances", uid, lambda _: ()),
            HandoverMetrics(recorder),
            is_fit=lambda: self.fit,
            on_state=self.states.append,
            on_company=lambda: None,
            on_gone=self.note_gone,
        )

    @property
    def state(self) -> InstanceState:
        return self.handover.state

    def note_gone(self) -> None:
        self.gone += 1

    async def do_duties(self) -> None:
        Instance.on_duty += 1
        assert Instance.on_duty == 1, "two instances have the duties"
        try:
            await asyncio.Event().wait()
        finally:
            Instance.on_duty -= 1


@asynccontextmanager
async def running(state_dir: Path, uid: str, *, fit: bool = True) -> AsyncIterator[Instance]:
    instance = Instance(state_dir, uid, fit=fit)
    instance.handover.join()
    task = asyncio.create_task(instance.handover.run(instance.do_duties))
    try:
        yield instance
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        instance.handover.leave()


@asynccontextmanager
async def other_process(state_dir: Path, uid: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(state_dir), uid, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def hear(process: asyncio.subprocess.Process) -> str:
    """The next state that it says it has."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode().strip()


async def eventually(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if look():
                return
            await asyncio.sleep(0.01)


def descriptors(target: str) -> int:
    """How many of ours lead there."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # other threads close some of theirs
            found += str(link.readlink()) == target
    return found


def files(state_dir: Path) -> list[str]:
    return sorted(path.name for path in (state_dir / "instances").iterdir())


async def test_one_that_is_alone_has_the_duties_before_it_serves(tmp_path: Path) -> None:
    instance = Instance(tmp_path, "", fit=False)
    instance.handover.join()
    assert instance.states == [InstanceState.LEADER]
    assert not instance.handover.others
    instance.handover.leave()
    assert files(tmp_path) == []


async def test_a_fit_newcomer_gets_the_duties_and_the_old_one_goes_on_without_them(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "new", fit=False) as new:
        await eventually(lambda: old.handover.newcomers == {"new"})
        assert new.state is InstanceState.WAITING
        assert files(tmp_path) == ["new.lock", "old.lock"]  # it does not ask before it is fit
        new.fit = True
        await eventually(lambda: new.state is InstanceState.LEADER and Instance.on_duty == 1)
        assert old.states == [InstanceState.LEADER, InstanceState.RETIRED]
        assert not new.handover.newcomers
        assert old.registry.get_sample_value("dranet_instance_state", {"state": "retired"}) == 1
        assert old.registry.get_sample_value("dranet_instances") == 2
        assert old.registry.get_sample_value("dranet_handovers_total", {"side": "given"}) == 1
        assert files(tmp_path) == ["new.lock", "old.lock"]


@pytest.mark.process
async def test_a_retired_instance_has_the_duties_again_when_its_successor_dies(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old:
        async with other_process(tmp_path, "new") as successor:
            assert [await hear(successor) for _ in range(2)] == ["waiting", "on-duty"]
            await eventually(lambda: old.state is InstanceState.RETIRED)
            successor.send_signal(signal.SIGKILL)
            await eventually(lambda: old.state is InstanceState.LEADER and Instance.on_duty == 1)
        await eventually(lambda: not old.handover.others)
        assert old.gone == 1


@pytest.mark.process
async def test_a_newcomer_has_the_duties_of_a_killed_predecessor_fit_or_not(tmp_path: Path) -> None:
    async with other_process(tmp_path, "old") as predecessor:
        assert await hear(predecessor) == "on-duty"
        async with running(tmp_path, "new", fit=False) as new:
            assert new.state is InstanceState.WAITING
            predecessor.send_signal(signal.SIGKILL)
            await eventually(lambda: new.state is InstanceState.LEADER)
            await eventually(lambda: new.gone == 1)


@pytest.mark.process
async def test_a_successor_that_dies_after_it_asked_leaves_the_duties_with_who_has_them(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "old") as old:
        dead = Members(tmp_path / "instances", "new", lambda _: ())
        dead.request()  # and it never had a lock: as one that was killed between the two
        async with other_process(tmp_path, "newer") as newer:
            assert [await hear(newer) for _ in range(2)] == ["waiting", "on-duty"]
        assert InstanceState.RETIRED in old.states


async def test_what_a_dead_process_of_the_same_pod_asked_for_is_not_given_to_its_restart(
    tmp_path: Path,
) -> None:
    """A container that restarts has the UID of the one before, and is not fit for long."""
    async with running(tmp_path, "old") as old:
        (tmp_path / "instances" / "new.wants-duties").touch()
        new = Instance(tmp_path, "new", fit=False)
        new.handover.join()  # and then it takes its time to start
        await eventually(lambda: old.handover.newcomers == {"new"})
        assert not await old.handover.relieve(1.0)  # long enough for it to see a request
        assert old.state is InstanceState.LEADER
        new.handover.leave()


async def test_of_two_newcomers_one_waits_for_the_other(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "b", fit=False) as first:
        async with running(tmp_path, "c") as second:
            await eventually(lambda: old.handover.newcomers == {"b", "c"})
            assert (old.state, second.state) == (InstanceState.LEADER, InstanceState.WAITING)
            first.fit = True
            await eventually(lambda: InstanceState.LEADER in first.states)
            await eventually(lambda: second.state is InstanceState.LEADER)
            assert [old.state, first.state] == [InstanceState.RETIRED] * 2
        await eventually(lambda: InstanceState.LEADER in (old.state, first.state))


async def test_who_leaves_waits_for_a_newcomer_to_be_fit(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "new", fit=False) as new:
        await eventually(lambda: bool(old.handover.newcomers))
        leaving = asyncio.create_task(old.handover.relieve(SECONDS))
        await eventually(lambda: bool(old.handover.newcomers))
        assert not leaving.done()
        new.fit = True
        assert await leaving
        assert old.state is InstanceState.RETIRED


async def test_who_leaves_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "new", fit=False):
        assert not await old.handover.relieve(0.3)
        assert old.state is InstanceState.LEADER


async def test_who_leaves_alone_is_told_so_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old:
        assert not await old.handover.relieve(SECONDS)


async def test_of_those_that_leave_at_the_same_time_the_last_does_not_count_on_the_others(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "new") as new:
        await eventually(lambda: new.state is InstanceState.LEADER)  # who leaves before takes no duties
        assert old.state is InstanceState.RETIRED
        assert await old.handover.relieve(SECONDS)  # it alone leaves, and the new one stays
        assert not await new.handover.relieve(SECONDS)
        assert files(tmp_path) == ["new.is-leaving", "new.lock", "old.is-leaving", "old.lock"]
        async with running(tmp_path, "newest", fit=False) as newest:
            await eventually(lambda: "newest" in new.handover.newcomers)
            leaving = asyncio.create_task(new.handover.relieve(SECONDS))
            await asyncio.sleep(0)
            assert not leaving.done()
            newest.fit = True
            assert await leaving
    assert files(tmp_path) == []


async def test_who_leaves_does_not_wait_for_a_newcomer_that_leaves(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "new", fit=False) as new:
        await eventually(lambda: bool(old.handover.newcomers))
        assert await new.handover.relieve(0)
        async with asyncio.timeout(SECONDS / 2):
            assert not await old.handover.relieve(SECONDS)


async def test_a_good_bye_is_over_with_the_process_that_said_it(tmp_path: Path) -> None:
    """Two were killed while they left; the container of one restarts, with the UID of before."""
    (tmp_path / "instances").mkdir()
    for name in ("old.is-leaving", "dead.is-leaving", "dead.lock"):
        (tmp_path / "instances" / name).touch()
    async with running(tmp_path, "old") as old, running(tmp_path, "new") as new:
        assert files(tmp_path) == ["new.lock", "old.lock"]
        await eventually(lambda: old.state is InstanceState.RETIRED)
        assert await new.handover.relieve(SECONDS)


@pytest.mark.process
async def test_who_is_not_given_the_duties_tells_who_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It hangs, or is stopped: only a kill helps, and somebody has to know of whom."""
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    async with other_process(tmp_path, "old") as stopped:
        assert await hear(stopped) == "on-duty"
        stopped.send_signal(signal.SIGSTOP)
        async with running(tmp_path, "new") as new, running(tmp_path, "newest"):
            has_duties = f"process {stopped.pid} has {tmp_path}/duty.lock; here are also newest, old"
            is_next = f"process {os.getpid()} has {tmp_path}/successor.lock; here are also new, old"
            await eventually(lambda: has_duties in caplog.text and is_next in caplog.text)
            stopped.send_signal(signal.SIGKILL)
            await eventually(lambda: InstanceState.LEADER in new.states)
        assert caplog.text.count("the lead is not handed over") == 2


async def test_words_that_cannot_be_removed_end_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that has turned read-only."""

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    async with running(tmp_path, "old") as old:
        monkeypatch.setattr("dranet.files.remove_file", refuse)
        for name in ("new", "dead"):
            (tmp_path / "instances" / f"{name}.wants-duties").touch()
        async with running(tmp_path, "new", fit=False) as new:
            await eventually(lambda: old.state is InstanceState.RETIRED)
            await eventually(lambda: new.state is InstanceState.LEADER)
            assert await old.handover.relieve(0)


@pytest.mark.parametrize("lost", ["file", "folder"])
async def test_an_instance_whose_file_was_removed_makes_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """Somebody took it for a leftover, or the whole folder."""
    folder = tmp_path / "instances"
    watches = descriptors("anon_inode:inotify")  # of other tests
    async with running(tmp_path, "old"):
        await eventually(lambda: descriptors("anon_inode:inotify") > watches)
        (folder / "old.lock").unlink()
        if lost == "folder":
            folder.rmdir()
        await eventually((folder / "old.lock").exists)
        async with running(tmp_path, "new") as new:
            assert new.handover.others == {"old"}
            await eventually(lambda: new.state is InstanceState.LEADER)
        assert caplog.text.count("was removed while this instance lives") == 1


async def test_a_newcomer_that_leaves_lets_the_next_one_be_the_successor(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old, running(tmp_path, "b", fit=False) as first:
        assert await first.handover.relieve(0)  # the old one stays
        async with running(tmp_path, "c") as second:
            await eventually(lambda: second.state is InstanceState.LEADER)
            assert (old.state, first.state) == (InstanceState.RETIRED, InstanceState.WAITING)


async def test_who_steps_aside_lets_the_duties_go_and_does_not_take_them_again(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old:
        async with running(tmp_path, "new", fit=False) as new:
            old.handover.step_aside("the store is of a newer driver")
            old.handover.step_aside("said once")
            await eventually(lambda: new.state is InstanceState.LEADER)
        assert old.states == [InstanceState.LEADER, InstanceState.ASIDE]
        assert await old.handover.relieve(SECONDS) is False


async def test_who_was_aside_and_comes_back_has_the_duties_that_nobody_else_has(tmp_path: Path) -> None:
    async with running(tmp_path, "old") as old:
        async with running(tmp_path, "new", fit=False) as new:
            old.handover.step_aside("the store is of a newer driver")
            await eventually(lambda: new.state is InstanceState.LEADER)
            old.handover.come_back()
            assert old.state is InstanceState.ASIDE  # or it would take them from the newer one
        await eventually(lambda: not old.handover.others)
        old.handover.come_back()
        await eventually(lambda: old.state is InstanceState.LEADER and Instance.on_duty == 1)


async def test_what_a_duty_raises_ends_the_driver(tmp_path: Path) -> None:
    instance = Instance(tmp_path, "one")
    instance.handover.join()

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await instance.handover.run(fail)
    assert caught.group_contains(ZeroDivisionError)
    instance.handover.leave()


class TestInstances:
    def test_two_processes_with_one_pod_uid_are_refused(self, tmp_path: Path) -> None:
        first, second = (Members(tmp_path, "one", lambda _: ()) for _ in range(2))
        first.join()
        with pytest.raises(SettingsError, match="has the same pod UID, one"):
            second.join()
        first.leave()
        second.join()
        second.leave()

    @pytest.mark.socket
    def test_the_sockets_of_the_dead_are_removed_and_those_of_the_living_are_not(
        self, tmp_path: Path
    ) -> None:
        def sockets_of(uid: str) -> tuple[Path, ...]:
            return (tmp_path / f"{uid or 'lone'}.sock",)

        folder = tmp_path / "instances"
        living = Members(folder, "living", sockets_of)
        living.join()
        (folder / "dead.lock").touch()
        (folder / "dead.wants-duties").touch()
        for uid in ("dead", "living", "", "stranger"):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(*sockets_of(uid)))
        fresh = Members(folder, "fresh", sockets_of)
        fresh.join()
        assert sorted(path.name for path in tmp_path.glob("*.sock")) == ["living.sock", "stranger.sock"]
        assert sorted(path.name for path in folder.iterdir()) == ["fresh.lock", "living.lock"]
        assert fresh.find_others() == {"living"}
        for instance in (living, fresh):
            instance.leave()
            instance.leave()
        assert list(folder.iterdir()) == []

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SettingsError, match=r"cannot use folder .*file/instances"):
            Members(tmp_path / "file" / "instances", "one", lambda _: ()).join()

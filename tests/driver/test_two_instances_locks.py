"""What is one at a time in all instances, while another one does not go on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dranet.driver.instances import members
from dranet.driver.instances.members import Members, NodeLock, Work, WorkLocks
from dranet.errors import KernelError
from dranet.files import FileLock
from dranet.kubelet.plugin import ANSWER_SECONDS

HOLDER = """
import asyncio, sys
from pathlib import Path
from dranet.driver.instances.members import Members
from dranet.driver.instances.members import Work, WorkLocks
folder = Path(sys.argv[1])
async def main():
    instance = Members(folder / "instances", "stuck", lambda _: ())
    instance.join()
    async with WorkLocks(folder).hold(Work.CLAIM, ["uid-1"]):
        print("held", flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


@pytest.mark.process
async def test_who_waits_for_a_claim_of_an_instance_that_is_stuck_is_told_which_ones_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod waits with a reason, and nothing is left that asks for the lock for ever."""
    monkeypatch.setattr("dranet.driver.instances.members.WAIT_SECONDS", 0.2)
    stuck = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert stuck.stdout is not None
    assert await stuck.stdout.readline() == b"held\n"
    mine, work = Members(tmp_path / "instances", "mine", lambda _: ()), WorkLocks(tmp_path)
    mine.join()
    with pytest.raises(KernelError, match=r"works on claim uid-1, for .* live here: mine, stuck\)") as caught:
        async with work.hold(Work.CLAIM, ["uid-1"]):
            pytest.fail("it is another's")
    assert caught.value.retryable
    async with work.hold(Work.CLAIM, ["uid-2"]):
        assert not work.is_held(Work.CLAIM, "uid-3")
    stuck.kill()
    await stuck.communicate()
    async with asyncio.timeout(30), work.hold(Work.CLAIM, ["uid-1"]):
        assert work.is_held(Work.CLAIM, "uid-1")
    mine.leave()


def test_the_reason_comes_before_the_answer_that_has_none() -> None:
    assert members.WAIT_SECONDS < ANSWER_SECONDS


def test_who_waits_for_the_devices_is_told_the_pod_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLock, "pod_uid", "0815")
    with closing(FileLock(tmp_path / "devices.lock")) as other:
        assert other.acquire(time.monotonic() + 5)
        with (
            pytest.raises(KernelError, match=rf"in process {os.getpid()} of pod 0815$"),
            NodeLock(other.path).hold(0.1, None),
        ):
            pytest.fail("it is another's")

"""The file that a readiness probe looks for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dranet.driver.probes.server import PartState, ReadyFile
from dranet.errors import SettingsError
from tests.support.waiting import until_in_thread


async def wait_for(path: Path, *, there: bool) -> None:
    await until_in_thread(lambda: path.exists() is there, f"{path} there: {there}")


async def test_the_file_is_there_while_every_part_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    parts = {"kubelet": PartState(True), "slices": PartState(False, "not yet")}
    file = ReadyFile(path, lambda: parts)
    path.touch()  # of the container's last life
    file.start()
    assert not path.exists()
    following = asyncio.create_task(file.run())
    parts["slices"] = PartState(True)
    await wait_for(path, there=True)
    parts["kubelet"] = PartState(False, "the kubelet is away")
    await wait_for(path, there=False)
    parts["kubelet"] = PartState(True)
    await wait_for(path, there=True)
    following.cancel()
    file.remove()
    file.remove()
    assert not path.exists()


def test_a_folder_that_is_missing_is_a_bad_setting(tmp_path: Path) -> None:
    file = ReadyFile(tmp_path / "missing" / "ready", dict)
    with pytest.raises(SettingsError, match=r"--ready-file: cannot write .*missing/ready: No such file"):
        file.start()

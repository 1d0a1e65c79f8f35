"""FolderWatch against the running kernel's inotify."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from dranet.kubelet import sockets
from dranet.kubelet.sockets import FolderWatch

SOON = 15.0
"""Far below the 30 s after which the watch returns by itself."""


def count_watches() -> int:
    """Open inotify descriptors alone: threads of earlier tests may still close others of this process."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the listing itself
            targets.append(str(entry.readlink()))
    return targets.count("anon_inode:inotify")


async def test_a_new_name_wakes_the_waiter(kubelet_root: Path) -> None:
    with FolderWatch(kubelet_root) as watch:
        waiter = asyncio.create_task(watch.wait_changed())
        (kubelet_root / "new").touch()
        await asyncio.wait_for(waiter, SOON)


@pytest.mark.parametrize("change", ["unlink", "rename-away", "rename-in", "remove-folder"])
async def test_each_kind_of_change_wakes_the_waiter(kubelet_root: Path, change: str) -> None:
    watched = kubelet_root / "watched"
    watched.mkdir()
    (watched / "old").touch()
    (kubelet_root / "outside").touch()
    with FolderWatch(watched) as watch:
        match change:
            case "unlink":
                (watched / "old").unlink()
            case "rename-away":
                (watched / "old").rename(kubelet_root / "gone")
            case "rename-in":
                (kubelet_root / "outside").rename(watched / "new")
            case _:
                shutil.rmtree(watched)
        await asyncio.wait_for(watch.wait_changed(), SOON)


async def test_a_change_between_two_waits_is_not_lost(kubelet_root: Path) -> None:
    with FolderWatch(kubelet_root) as watch:
        (kubelet_root / "one").touch()
        await asyncio.wait_for(watch.wait_changed(), SOON)
        (kubelet_root / "two").touch()
        await asyncio.wait_for(watch.wait_changed(), SOON)


async def test_nothing_changed_means_no_wake_up(kubelet_root: Path) -> None:
    with FolderWatch(kubelet_root) as watch:
        waiter = asyncio.create_task(watch.wait_changed())
        done, _ = await asyncio.wait({waiter}, timeout=0.1)
        assert not done
        waiter.cancel()


async def test_a_missing_folder_falls_back_to_time(
    kubelet_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "POLL_SECONDS", 0.01)
    with FolderWatch(kubelet_root / "missing") as watch:
        await asyncio.wait_for(watch.wait_changed(), SOON)


async def test_leaving_the_watch_closes_its_descriptor(kubelet_root: Path) -> None:
    before = count_watches()
    with FolderWatch(kubelet_root):
        assert count_watches() == before + 1
    assert count_watches() == before

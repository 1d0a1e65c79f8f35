"""The folder in which plugins announce themselves, watched as the kubelet watches it.

Source of the behaviour: ``pkg/kubelet/pluginmanager/pluginwatcher`` of Kubernetes: the folder and its
subfolders, sockets only, and no name that begins with a dot, be it of a socket or of a folder.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

from dranet.kubelet.folder import FolderWatch

Identity = tuple[int, int]
"""Of one socket as it was created once: inode number, and the time that tells it from a later one."""


class RegistryWatch:
    """Follows ``folder`` and what is below it, folders that come later included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = asyncio.Event()
        self._followers: dict[Path, _Follower] = {}

    async def wait_changed(self) -> None:
        """Return when something may have changed since the last :meth:`scan`."""
        await self._changed.wait()

    def scan(self) -> dict[Path, Identity]:
        """The sockets that are there now; new folders are followed from here on."""
        self._changed.clear()
        # Until there is no new one: what is made in a folder before it is followed wakes nobody.
        while (folders := {self._folder, *_iter_folders(self._folder)}) != self._followers.keys():
            self._follow(folders)
        return {path: identity for folder in self._followers for path, identity in _iter_sockets(folder)}

    async def stop(self) -> None:
        """Follow nothing any more. Repeatable."""
        tasks = {follower.task for follower in self._followers.values()}
        self._follow(set())
        if tasks:
            await asyncio.wait(tasks)

    def _follow(self, folders: set[Path]) -> None:
        for gone in self._followers.keys() - folders:
            self._followers.pop(gone).close()
        for folder in folders - self._followers.keys():
            self._followers[folder] = _Follower(folder, self._changed)


class _Follower:
    """Sets ``changed`` whenever one folder's list of names changes. Made before the folder is read, so that
    no change falls between."""

    def __init__(self, folder: Path, changed: asyncio.Event) -> None:
        self._watch = FolderWatch(folder)
        self._watch.__enter__()
        self._changed = changed
        self.task = asyncio.create_task(self._follow(), name=f"watch {folder}")

    def close(self) -> None:
        self.task.cancel()
        self._watch.__exit__()

    async def _follow(self) -> None:
        while True:
            await self._watch.wait_changed()
            self._changed.set()


def _iter_folders(folder: Path) -> Iterator[Path]:
    for path in _list(folder):
        if path.is_dir() and not path.is_symlink():
            yield path
            yield from _iter_folders(path)


def _iter_sockets(folder: Path) -> Iterator[tuple[Path, Identity]]:
    for path in _list(folder):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield path, (status.st_ino, status.st_ctime_ns)


def _list(folder: Path) -> list[Path]:
    """Visible entries; of a folder that went away meanwhile, none."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []

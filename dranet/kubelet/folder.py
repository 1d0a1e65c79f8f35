"""Notice when something appears in or vanishes from a folder, without polling (``inotify(7)``)."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

log = logging.getLogger(__name__)

_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_ONLYDIR = 0x01000000
_MASK = (
    _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
)

FALLBACK_SECONDS = 30.0
"""inotify does not see a folder whose *parent* is renamed; look again this often all the same."""

POLL_SECONDS = 2.0
"""Pace where the user's inotify instances are used up (``fs.inotify.max_user_instances``)."""


class FolderWatch:
    """Wakes its one waiter when the folder's list of names changes, or the folder itself goes away.

    The kernel's events are only a hint to look again: what changed is not told. Use as a context manager
    in a running event loop; where the folder does not exist, or inotify is refused, it falls back to time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._changed = asyncio.Event()
        self._patience = POLL_SECONDS
        self._remove_reader: Callable[[int], bool] | None = None

    def __enter__(self) -> Self:
        try:
            self._fd = _open_inotify(self._folder)
        except OSError as error:
            log.debug("no inotify on %s (%s): looking every %g s", self._folder, error.strerror, POLL_SECONDS)
            return self
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._on_readable)
        self._remove_reader = loop.remove_reader
        self._patience = FALLBACK_SECONDS
        return self

    def __exit__(self, *_: object) -> None:
        if self._remove_reader is not None:
            self._remove_reader(self._fd)
            os.close(self._fd)
            self._remove_reader = None

    async def wait_changed(self) -> None:
        """Return when something may have changed since the last call (or since the start)."""
        try:
            async with asyncio.timeout(self._patience):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _on_readable(self) -> None:
        os.read(self._fd, 65536)
        self._changed.set()


def _open_inotify(folder: Path) -> int:
    """A non-blocking inotify descriptor with one watch. The standard library has no call for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _last_error(folder)
    if libc.inotify_add_watch(fd, os.fsencode(folder), ctypes.c_uint32(_MASK)) < 0:
        error = _last_error(folder)
        os.close(fd)
        raise error
    return fd


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))

"""Which instances of the driver live on this node: one locked file each, in a folder that they share.

The kernel drops the lock of a process however it ends, so a file without one tells of a dead instance, whose
sockets nobody serves any more. The folder is also where one instance leaves word for another: whoever watches
it (``kubelet.folder.FolderWatch``) is woken when somebody comes, goes or asks.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dranet.errors import DranetError, SettingsError
from dranet.filelock import FileLock
from dranet.kubelet.sockets import remove_dead_socket

log = logging.getLogger(__name__)

FOLDER_MODE = 0o750
_LOCK = ".lock"
_REQUEST = ".wants-duties"
_ALONE = "(alone)"
"""An instance without a pod UID; no UID has parentheses."""
_JOIN_SECONDS = 2.0
"""Others look whether we live by taking our lock for a moment; longer it is held by a namesake only."""


class Instances:
    """The living instances, by pod UID; ``sockets_of`` names the sockets that one of them would have."""

    def __init__(self, folder: Path, pod_uid: str, sockets_of: Callable[[str], Iterable[Path]]) -> None:
        self.folder = folder
        self._own = pod_uid or _ALONE
        self._sockets_of = sockets_of
        self._lock = FileLock(self._path(self._own))

    def join(self) -> None:
        """Be one of them, and tidy up behind those that are dead. Blocks for a moment.

        Raises:
            SettingsError: a process with our pod UID lives.
            StoreError: the folder cannot be used.
        """
        try:
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"cannot make {self.folder}: {error.strerror}", hint="check --state-dir"
            ) from error
        if not self._lock.acquire(time.monotonic() + _JOIN_SECONDS):
            raise SettingsError(
                f"another driver{self._describe_holder()} has the same pod UID, {self._own}",
                hint="set --pod-uid to metadata.uid of the driver's own pod",
            )
        self.withdraw_request()  # of a dead process: a container that restarts has the same UID
        self._remove_dead()

    def leave(self) -> None:
        """Be gone for the others; repeatable. The last thing that an instance does."""
        if self._lock.held:
            self.withdraw_request()
            self._path(self._own).unlink(missing_ok=True)
        self._lock.close()

    def find_others(self) -> frozenset[str]:
        """Those that live beside us."""
        return frozenset(name for name in self._list_names(_LOCK) - {self._own} if self._lives(name))

    # Word for another one

    def request(self) -> None:
        """Ask who has the duties to hand them over; repeatable."""
        try:
            self._request(self._own).touch()
        except OSError as error:
            log.debug("cannot ask for the duties: %s", error)

    def find_askers(self) -> frozenset[str]:
        """Those that asked, also when they are dead by now."""
        return self._list_names(_REQUEST)

    def withdraw_request(self, name: str = "") -> None:
        """Ours, or that of ``name``: it is fulfilled or void. Wakes who asked. Repeatable."""
        self._request(name or self._own).unlink(missing_ok=True)

    # Who lives

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_LOCK}"

    def _request(self, name: str) -> Path:
        return self.folder / f"{name}{_REQUEST}"

    def _list_names(self, suffix: str) -> frozenset[str]:
        return frozenset(path.name.removesuffix(suffix) for path in self.folder.glob(f"*{suffix}"))

    def _lives(self, name: str) -> bool:
        """A lock that cannot be asked for counts as held."""
        with contextlib.closing(FileLock(self._path(name))) as lock:
            try:
                return self._path(name).exists() and not lock.try_acquire(shared=True)
            except DranetError as error:
                log.debug("cannot tell whether instance %s lives: %s", name, error)
                return True

    def _remove_dead(self) -> None:
        """With the lock of a dead one in our hands nobody else can start under its name meanwhile. Of a lone
        one that knew nothing of this folder there is only the lock of the plugin folder, which we have."""
        for name in (self._list_names(_LOCK) | {_ALONE}) - {self._own}:
            with contextlib.closing(FileLock(self._path(name))) as lock:
                if not lock.try_acquire():
                    continue
                for path in self._sockets_of(name if name != _ALONE else ""):
                    if remove_dead_socket(path):
                        log.info("removed %s, left behind by a dead instance of the driver", path)
                self.withdraw_request(name)
                self._path(name).unlink(missing_ok=True)

    def _describe_holder(self) -> str:
        pid = self._lock.read_holder()
        return f" (pid {pid})" if pid else ""

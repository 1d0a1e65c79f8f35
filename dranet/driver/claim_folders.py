"""Folders of files about claims, which containers see: ``<state_dir>/<kind>/<claim uid>/<name>/``.

The last folder is what a container sees, read-only; a file in it is replaced by a rename, so that a reader
finds the old one or the new one, also in a container that runs already. Every user of a container may read
it; the folders above are for the driver alone, as a mount does not ask for them. No file is synced to the
disk: after a power cut all are written again, and so the runtime's hook can write one.
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.errors import ProtocolError, StoreError
from dranet.locks import FileLock
from dranet.runtime.cdi import is_name

log = logging.getLogger(__name__)

FILE_MODE, FOLDER_MODE = 0o644, 0o755
"""Modes of what a container sees."""

LOCK_SECONDS = 0.5
"""How long one waits for the other instance of a rolling update, which holds the lock for small writes."""

_LOCK = ".lock"
_TEMPORARY = ".new"


class ClaimFolders:
    """The folders of one kind; two instances of the driver may work on the same ones.

    ``names`` are those of all files that may be in one. ``noun`` and ``hint`` are for messages: what the
    files are, and what else helps where the folder cannot be written.
    """

    def __init__(self, root: Path, names: Collection[str], noun: str, hint: str = "") -> None:
        self._root = root
        self._names = names
        self._noun = noun
        self._hint = hint

    def folder_of(self, claim_uid: str, name: str) -> Path:
        """What containers see.

        Raises:
            ProtocolError: one of the names cannot be part of a path.
        """
        return self._claim_folder(claim_uid) / _checked(name)

    @contextmanager
    def open_for_writing(self, claim_uid: str, name: str) -> Iterator[Path]:
        """The folder, made if it is not there; meanwhile no other thread or process writes for this claim.

        Raises:
            StoreError: the folder cannot be written; also for an OSError of the block.
            ProtocolError: as :meth:`folder_of`.
        """
        folder = self.folder_of(claim_uid, name)
        try:
            files.make_folder(self._root, is_setting=not self._root.parent.exists())
            files.make_folder(folder.parent)
            files.make_folder(folder, FOLDER_MODE)
            with self._locked(claim_uid):
                yield folder
        except OSError as error:
            raise self._unwritable(folder, error) from error

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file of a folder that is open for writing."""
        folder = path.parent
        files.replace_file(path, folder.parent / f".{folder.name}{_TEMPORARY}", content, FILE_MODE)

    def remove(self, claim_uid: str) -> None:
        """Remove all folders of a claim; nothing there is fine. Containers that still run lose their files.

        What the driver did not make there stays. What cannot be removed holds up no pod's end: it is
        harmless, and the next start tries again.

        Raises:
            ProtocolError: the uid cannot be part of a path.
        """
        folder = self._claim_folder(claim_uid)
        try:
            files.check_folder(self._root)
            files.check_folder(folder)
            for path in folder.iterdir():
                with suppress(FileNotFoundError):  # the other instance also removes them
                    self._remove_own(path)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("left behind: %s", self._unwritable(folder, error))

    def _remove_own(self, path: Path) -> None:
        """One entry of a claim's folder."""
        if stat.S_ISDIR(path.lstat().st_mode):
            for name in self._names:
                files.remove_file(path / name)
            path.rmdir()
        elif path.name == _LOCK or path.name.endswith(_TEMPORARY):
            files.remove_file(path)

    def list_claims(self) -> frozenset[str]:
        """UIDs of the claims that have a folder here, for the sweep at start; none if it cannot be read."""
        try:
            files.check_folder(self._root)
            return frozenset(entry.name for entry in self._root.iterdir() if is_name(entry.name))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            log.warning("not swept: %s", self._unwritable(self._root, error))
            return frozenset()

    def _claim_folder(self, claim_uid: str) -> Path:
        return self._root / _checked(claim_uid)

    @contextmanager
    def _locked(self, claim_uid: str) -> Iterator[None]:
        """Opened each time, so that threads exclude each other as well."""
        lock = FileLock(self._claim_folder(claim_uid) / _LOCK)
        try:
            if not lock.acquire(time.monotonic() + LOCK_SECONDS):
                raise StoreError(
                    f"{self._noun} of claim {claim_uid}: process {lock.read_holder()} writes there longer "
                    f"than {LOCK_SECONDS} s",
                    retryable=True,
                )
            yield
        finally:
            lock.close()

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        hint = f"make {self._root} writable, with free space{self._hint}"
        return StoreError(
            f"{self._noun} {path}: {error.strerror}", hint=files.hint_for(error, hint), retryable=True
        )


def _checked(name: str) -> str:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a path")
    return name

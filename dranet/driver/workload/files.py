"""The files for the programs of a container, as they lie on the host.

``<state_dir>/workload/<claim uid>/<container>/``, by the claim by which the container asks for them. That
folder is what the container sees, read-only; a file in it is replaced by a rename. Whoever the container runs
as may read it; the folders above are for the driver alone. Nothing is synced to the disk: each container that
is created has its files written anew, so that one which somebody removed is there again.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.errors import ProtocolError, StoreError
from dranet.filelock import FileLock
from dranet.runtime.cdi import is_name

FILE_MODE, FOLDER_MODE = 0o644, 0o755
"""Of what a container sees."""

LOCK_SECONDS = 0.5
"""How long one waits for the other instance of a rolling update, which holds it for two small writes."""

_MOST_BYTES = 1 << 20
_LOCK = ".lock"
_TEMPORARY = ".new"


class WorkloadFiles:
    """The files of all containers; two instances of the driver may work on the same ones."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "workload"

    def folder_of(self, claim_uid: str, container: str) -> Path:
        """What the container gets.

        Raises:
            ProtocolError: one of the names cannot be part of a path.
        """
        return self._claim_folder(claim_uid) / _checked(container)

    def write(self, claim_uid: str, container: str, contents: Mapping[str, str]) -> None:
        """Make these the files of a container; one that says the same stays.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: one of the names cannot be part of a path.
        """
        folder = self.folder_of(claim_uid, container)
        try:
            self._make_folders(folder)
            with self._locked(claim_uid):
                for name in _list_files(folder) - contents.keys():
                    files.remove_file(folder / name)
                for name, text in contents.items():
                    self._write_one(folder, name, text.encode())
        except OSError as error:
            raise self._unwritable(folder, error) from error

    def _write_one(self, folder: Path, name: str, content: bytes) -> None:
        path = folder / name
        with suppress(FileNotFoundError):
            if files.read_file(path, _MOST_BYTES) == content:
                return
        temporary = folder.parent / f".{folder.name}{_TEMPORARY}"
        files.replace_file(path, temporary, content, FILE_MODE)

    def remove(self, claim_uid: str) -> None:
        """Remove all files of a claim; nothing there is fine. What the driver did not make there stays.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: the uid cannot be part of a path.
        """
        folder = self._claim_folder(claim_uid)
        try:
            files.check_folder(self._folder)
            files.check_folder(folder)
            for path in folder.iterdir():
                with suppress(FileNotFoundError):  # the other instance removes them, too
                    _remove_own(path)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unwritable(folder, error) from error

    def list_claims(self) -> frozenset[str]:
        """Uids of all claims that have files here.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            files.check_folder(self._folder)
            return frozenset(entry.name for entry in self._folder.iterdir() if is_name(entry.name))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise self._unwritable(self._folder, error) from error

    def _claim_folder(self, claim_uid: str) -> Path:
        return self._folder / _checked(claim_uid)

    def _make_folders(self, folder: Path) -> None:
        files.make_folder(self._folder, is_setting=not self._folder.parent.exists())
        files.make_folder(folder.parent)
        files.make_folder(folder, FOLDER_MODE)

    @contextmanager
    def _locked(self, claim_uid: str) -> Iterator[None]:
        """Opened anew each time, so that threads exclude each other, too."""
        lock = FileLock(self._claim_folder(claim_uid) / _LOCK)
        try:
            if not lock.acquire(time.monotonic() + LOCK_SECONDS):
                raise StoreError(
                    f"files of claim {claim_uid} for containers: process {lock.read_holder()} writes them "
                    f"for longer than {LOCK_SECONDS} s",
                    retryable=True,
                )
            yield
        finally:
            lock.close()

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(
            f"files for containers {path}: {error.strerror}",
            hint=files.hint_for(error, f"make {self._folder} writable, with free space"),
            retryable=True,
        )


def _list_files(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _remove_own(path: Path) -> None:
    """One entry of a claim's folder."""
    if stat.S_ISDIR(path.lstat().st_mode):
        for file in path.iterdir():
            files.remove_file(file)
        path.rmdir()
    elif path.name == _LOCK or path.name.endswith(_TEMPORARY):
        files.remove_file(path)


def _checked(name: str) -> str:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a path")
    return name

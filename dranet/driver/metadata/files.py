"""The files that tell containers about their devices, as they lie on the host.

``<state_dir>/metadata/<claim uid>/<request>/<driver>-metadata.json``. The folder of a request is what a
container sees, and has nothing in it but the file, which is replaced by a rename: a reader finds the old one
or the new one, also in a container that runs already. Whoever a container runs as may read both; the folders
above them are for the driver alone, as a mount does not ask for them. No file is synced to the disk, because
after a power cut every claim is prepared anew; so the runtime's hook can write one.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet import files
from dranet.claims.metadata import JsonObject, MetadataError, decode_stream, encode_stream, file_name
from dranet.errors import ProtocolError, StoreError
from dranet.filelock import FileLock
from dranet.runtime.cdi import is_name

FILE_MODE, FOLDER_MODE = 0o644, 0o755
"""Of what a container sees."""

_MOST_BYTES = 8 << 20
"""Of a file; one device's part is a few kilobytes."""

LOCK_SECONDS = 0.5
"""How long one waits for the other instance of a rolling update, which holds the lock for one small write."""

_LOCK = ".lock"
_TEMPORARY = ".new"


class MetadataFiles:
    """The files of one driver; two instances of it may work on the same ones."""

    def __init__(self, state_dir: Path, driver_name: str) -> None:
        self._folder = state_dir / "metadata"
        self._name = file_name(driver_name)

    def folder_of(self, claim_uid: str, request: str) -> Path:
        """What the containers of a request get.

        Raises:
            ProtocolError: one of the names cannot be part of a path.
        """
        return self._claim_folder(claim_uid) / _checked(request)

    def read(self, claim_uid: str, request: str) -> tuple[JsonObject, int] | None:
        """The document of a request with its generation; ``None`` where there is none, or a damaged one.

        Raises:
            ProtocolError: as :meth:`folder_of`.
        """
        try:
            path = self.folder_of(claim_uid, request) / self._name
            return decode_stream(files.read_file(path, _MOST_BYTES))
        except (OSError, MetadataError):
            return None

    def write(self, claim_uid: str, request: str, document: JsonObject) -> bool:
        """Make this the document of a request; one that says the same stays. Returns whether it was written.

        The generation is one more than that of the file before.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: as :meth:`folder_of`.
        """
        folder = self.folder_of(claim_uid, request)
        try:
            _make_folders(folder, self._folder)
            with self._locked(claim_uid):
                before = self.read(claim_uid, request)
                if before is not None and before[0] == document:
                    return False
                content = encode_stream(document, 1 if before is None else before[1] + 1)
                temporary = folder.parent / f".{request}{_TEMPORARY}"
                files.replace_file(folder / self._name, temporary, content, FILE_MODE)
        except OSError as error:
            raise self._unwritable(folder, error) from error
        return True

    def remove(self, claim_uid: str) -> None:
        """Remove all files of a claim; nothing there is fine. Containers that still run lose them.

        What the driver did not make there stays.

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
                    self._remove_own(path)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unwritable(folder, error) from error

    def _remove_own(self, path: Path) -> None:
        """One entry of a claim's folder."""
        if stat.S_ISDIR(path.lstat().st_mode):
            files.remove_file(path / self._name)
            path.rmdir()
        elif path.name == _LOCK or path.name.endswith(_TEMPORARY):
            files.remove_file(path)

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

    @contextmanager
    def _locked(self, claim_uid: str) -> Iterator[None]:
        """What is read stays so until the write. Opened anew each time, so that threads exclude each other,
        too."""
        lock = FileLock(self._claim_folder(claim_uid) / _LOCK)
        try:
            if not lock.acquire(time.monotonic() + LOCK_SECONDS):
                raise StoreError(
                    f"device metadata of claim {claim_uid}: process {lock.read_holder()} writes it for "
                    f"longer than {LOCK_SECONDS} s",
                    retryable=True,
                )
            yield
        finally:
            lock.close()

    def _unwritable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(
            f"device metadata {path}: {error.strerror}",
            hint=files.hint_for(
                error, f"make {self._folder} writable, with free space, or set device_metadata to false"
            ),
            retryable=True,
        )


def _checked(name: str) -> str:
    if not is_name(name):
        raise ProtocolError(f"{name!r} cannot be part of a path")
    return name


def _make_folders(folder: Path, root: Path) -> None:
    files.make_folder(root, is_setting=not root.parent.exists())
    files.make_folder(folder.parent)
    files.make_folder(folder, FOLDER_MODE)

"""What was asked for from outside the node's kernel, and has to be released: addresses, profiles.

One file for each claim, ``UID.json``. An entry is on the disk before its question is asked, and it goes
when the thing was released: after a kill at any point the entries show what may have been given. A claim's
record (:mod:`~dranet.store.claim_store`) then shows whether it is in use. Callers hold the claim
(``Work.CLAIM``), so no one else writes its file.

A program that a question starts may outlive a driver that is killed. It inherits a descriptor of the file
with a shared ``flock(2)``, by which the next driver waits for its end before it asks again. The folder is
made with the first entry: a driver that asks nothing has none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.model.claim import ClaimRef
from dranet.store.record_folder import RecordError, decode_record, encode_record

FOLDER = "journal"
"""In the state folder."""
JOURNAL_VERSION = 1
_RECORD = ".json"
_MAX_RECORD_BYTES = 16 << 20
_AGAIN_SECONDS = 0.01


class JournalEntry(Struct, frozen=True):
    kind: Literal["ipam", "profile"]
    device: str
    """Which device of the claim it is for."""
    request: Mapping[str, Any]
    """What was asked, with all that is needed to release it; its shape is its kind's."""


class JournalRecord(Struct, frozen=True):
    claim: ClaimRef
    entries: tuple[JournalEntry, ...]
    version: int = JOURNAL_VERSION


class Journal:
    """Methods raise StoreError: ``STORE_UNWRITABLE`` when the disk refuses, ``STORE_CORRUPT`` for a file that
    is no record, ``STORE_NEWER`` for one of a newer driver."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def has(self, claim_uid: str) -> bool:
        """Whether the claim has entries; one look at the disk."""
        return files.is_file(self._path(claim_uid))

    def list_claims(self) -> list[str]:
        """Return the UIDs of all claims with entries."""
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refusal("read", error) from error
        return [unquote(name.removesuffix(_RECORD)) for name in names if name.endswith(_RECORD)]

    def read(self, claim_uid: str) -> JournalRecord | None:
        path = self._path(claim_uid)
        try:
            text = files.read_file(path, _MAX_RECORD_BYTES).decode(errors="surrogateescape")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal("read", error) from error
        return _decode(path, claim_uid, text)

    def add(self, claim: ClaimRef, entries: Iterable[JournalEntry]) -> None:
        """Add entries; when this returns they survive a kill and a power cut."""
        known = self.read(claim.uid)
        kept = known.entries if known is not None else ()
        self._write(JournalRecord(claim, (*kept, *(entry for entry in entries if entry not in kept))))

    def remove(self, claim_uid: str, entries: Collection[JournalEntry]) -> None:
        """Remove entries whose things were released. A power cut may bring them back."""
        known = self.read(claim_uid)
        if known is None:
            return
        kept = tuple(entry for entry in known.entries if entry not in entries)
        if kept:
            self._write(replace(known, entries=kept))
            return
        try:
            files.remove_file(self._path(claim_uid))
        except OSError as error:
            raise self._refusal("write", error) from error

    # --- programs that a question starts -----------------------------------------------------------------

    @contextmanager
    def running(self, claim_uid: str) -> Iterator[int]:
        """Give the descriptor that a program started for the claim is to inherit."""
        try:
            descriptor = files.open_file(self._path(claim_uid), os.O_RDONLY)
        except OSError as error:
            raise self._refusal("read", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield descriptor
        finally:
            os.close(descriptor)

    def wait_for_programs(self, claim_uid: str, seconds: float) -> None:
        """Wait until no program that was started earlier for the claim runs; blocks the thread. The
        StoreError after that time is retryable."""
        deadline = time.monotonic() + seconds
        try:
            descriptor = files.open_file(self._path(claim_uid), os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refusal("read", error) from error
        try:
            while not _is_free(descriptor):
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"journal {self._folder}: a program that was started earlier for claim "
                        f"{claim_uid} still runs",
                        hint="end it: it may still get an address",
                        retryable=True,
                    )
                time.sleep(_AGAIN_SECONDS)
        finally:
            os.close(descriptor)

    # ---

    def _path(self, claim_uid: str) -> Path:
        return self._folder / f"{quote(claim_uid, safe='')}{_RECORD}"

    def _write(self, record: JournalRecord) -> None:
        path = self._path(record.claim.uid)
        try:
            content = encode_record(record).encode()
            files.make_folder(self._folder)
            files.replace_file(path, path.with_name(f"{path.name}.tmp"), content, durable=True)
        except OSError as error:
            raise self._refusal("write", error) from error
        except ValueError as error:
            raise StoreError(f"journal {path}: cannot be written: {error}") from error

    def _refusal(self, operation: str, error: OSError) -> StoreError:
        hint = files.hint_for(error, "is the state folder a writable mount with free space?")
        return StoreError(f"journal {self._folder}: cannot {operation}: {error.strerror}", hint=hint)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return False
    return True


def _decode(path: Path, claim_uid: str, text: str) -> JournalRecord:
    try:
        record = decode_record(JournalRecord, text)
    except RecordError as error:
        raise _corrupt(path, str(error)) from error
    if record.claim.uid != claim_uid:
        raise _corrupt(path, f"claim.uid: is {record.claim.uid!r}, and the file is of {claim_uid!r}")
    if record.version > JOURNAL_VERSION:
        raise StoreError(
            f"journal {path} has version {record.version}, this driver knows {JOURNAL_VERSION}",
            hint="run the newer driver that wrote it",
            reason=Reason.STORE_NEWER,
            retryable=True,
        )
    return record


def _corrupt(path: Path, why: str) -> StoreError:
    return StoreError(
        f"journal {path}: {why}",
        hint="the driver cannot release what the claim got: do it by hand, then remove the file",
        reason=Reason.STORE_CORRUPT,
    )

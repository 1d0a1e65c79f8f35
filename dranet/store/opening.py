"""How the store's file comes to be open: looked at before SQLite touches it, salvaged where it is damaged.

SQLite would follow a link, wait for a pipe, make the file for everybody to read, and take damage for the end
of the content. So each opening asks first what lies there and reads all of it; only then it lets SQLite in.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.locks import FileLock
from dranet.store.db import (
    BUSY_SECONDS,
    SCHEMA_VERSION,
    connect,
    is_read_only,
    is_refusal,
    move_aside,
    newer_error,
    store_error,
    try_to_write,
)
from dranet.store.file import Content, DamagedError, Image, read_content, read_image
from dranet.store.mirror import Mirror
from dranet.store.salvage import finish_replacing, read_damaged, replace_damaged

log = logging.getLogger(__name__)

OPEN_LOCK = "claims.lock"
"""Held while the file is opened: one salvages, the others find it done."""

_OURS = ("", "-wal", "-shm", "-journal", ".salvaging", ".salvaged")
"""Ends of the names that the store uses."""


class StoreFile:
    """The file, and the connection that writes to it. Who calls this lets nobody else call meanwhile."""

    def __init__(self, path: Path, mirror: Mirror, tell: Callable[[Reason, str], None]) -> None:
        """``tell`` is called with what people should know of the file."""
        self._path = path
        self._mirror = mirror
        self._tell = tell
        self._identity: tuple[int, int] | None = None
        """Device and inode number of what is open."""
        self.db: sqlite3.Connection | None = None
        """``None`` while the file is closed, or the disk does not let it be opened."""
        self.content = Content()
        """Of the file before it was opened, or could not be."""
        self.quarantined: tuple[str, ...] = ()
        """Claim UIDs whose records could not be read at the last look; this process set them aside."""

    def open(self) -> StoreError | None:
        """Open or make the file, and have the mirror show what it says; returns why the disk refuses writes.

        Raises:
            StoreError: a newer driver's records are in it, it cannot be read, or something else has its name.
        """
        with self._alone() as is_alone:
            self._secure()
            self.content, refused = self._inspect(may_mend=is_alone)
            if refused is None:
                refused = self._attach()
        if self.db is None:
            self._mirror.show(self.content.rows)
        return refused

    def close(self) -> None:
        """Repeatable; the mirror goes on showing what it has read."""
        self._mirror.close()
        if self.db is not None:
            self.db.close()
            self.db = None

    def check_in_place(self) -> None:
        """Refuse to promise what no restart would find; what is open serves the claims that it has.

        Raises:
            StoreError: what is open here is not what lies there.
        """
        if self._read_identity() != self._identity:
            raise StoreError(
                f"store {self._path} was removed or replaced while the driver runs: what it knows of earlier "
                "claims is in its memory alone",
                hint="drain the node, so that their devices are given back, then restart the driver",
            )

    def set_aside(self) -> None:
        """Move records that cannot be read to where they block nobody, unless another instance does it."""
        db, moved = self.db, list[str]()
        if db is None:
            return
        try:
            moved += [uid for uid, record in self._mirror.bad.items() if move_aside(db, uid, record)]
        except sqlite3.DatabaseError as error:
            log.error("store %s: records cannot be set aside yet: %s", self._path, error)
        self.quarantined = tuple(moved)
        if moved:
            reached(Failpoint.MIGRATE_SET_ASIDE)
            claims = ", ".join(moved)
            self._tell(Reason.STORE_CORRUPT, f"store {self._path}: records of claims {claims} cannot be read")

    def read_set_aside(self, claim_uid: str) -> Sequence[str]:
        """The texts of a claim's records that could not be read, the last one first."""
        if self.db is None:
            return [row.text for row in self.content.quarantine if row.claim_uid == claim_uid]
        statement = "SELECT record FROM quarantine WHERE claim_uid = ? ORDER BY at DESC"
        try:
            return [text for (text,) in self.db.execute(statement, (claim_uid,))]
        except sqlite3.DatabaseError as error:
            self._mirror.complain(error)
            return []

    # --- before SQLite ----------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other instance opens the file meanwhile: else nothing is to be mended."""
        with closing(FileLock(self._path.with_name(OPEN_LOCK))) as lock:
            try:
                is_alone = lock.acquire(time.monotonic() + BUSY_SECONDS)
            except StoreError as error:
                log.info("store %s: opened without a lock: %s", self._path, error)
                is_alone = False
            yield is_alone

    def _secure(self) -> None:
        """What an earlier version has left readable is for its owner alone from now on. A disk that takes no
        writes keeps its rights, and is read all the same."""
        for end in _OURS:
            path = self._path.with_name(f"{self._path.name}{end}")
            try:
                files.tighten_file(path)
            except files.NotOurs as error:
                raise StoreError(f"store {self._path}: {error.strerror}") from error
            except OSError as error:
                log.warning("store %s: %s keeps its rights: %s", self._path, path.name, error.strerror)

    def _inspect(self, *, may_mend: bool) -> tuple[Content, StoreError | None]:
        """What the file says, without touching it; and why it must not be opened."""
        try:
            if may_mend:
                finish_replacing(self._path)
            image = read_image(self._path)
        except FileNotFoundError:
            return Content(), None
        except OSError as error:
            raise StoreError(f"store {self._path}: cannot read: {error.strerror}") from error
        if image.version > SCHEMA_VERSION:
            raise newer_error(self._path, image.version)
        try:
            return read_content(image), None
        except DamagedError as error:
            return self._salvage(image, str(error), may_mend=may_mend)

    def _salvage(self, image: Image, why: str, *, may_mend: bool) -> tuple[Content, StoreError | None]:
        salvage = read_damaged(image, why)
        refused = None
        try:
            end = f"it lies at {replace_damaged(self._path, salvage.content)}" if may_mend else ""
        except (OSError, sqlite3.Error) as error:
            end = ""
            log.error("store %s: cannot be replaced by a fresh one: %s", self._path, error)
        if not end:
            end = "it could not be replaced, so no claim is prepared"
            refused = StoreError(f"store {self._path}: damaged: {why}", reason=Reason.STORE_CORRUPT)
        self._tell(Reason.STORE_CORRUPT, f"store {self._path}: {salvage.describe()}; {end}")
        return salvage.content, refused

    # --- with SQLite ------------------------------------------------------------------------------------

    def _attach(self) -> StoreError | None:
        """Returns why the disk does not let the file be opened, or written to."""
        try:
            files.make_file(self._path)
            self.db = connect(self._path)
            reached(Failpoint.MIGRATE_TABLES_MADE)
            self._mirror.open()
        except OSError as error:
            return StoreError(f"store {self._path}: cannot make it: {error.strerror}")
        except sqlite3.DatabaseError as error:
            self.close()
            if not is_refusal(error):
                raise store_error(self._path, "open", error) from error
            return store_error(self._path, "open", error)
        self._identity = self._read_identity()
        self.set_aside()
        return self._try_to_write(self.db)

    def _try_to_write(self, db: sqlite3.Connection) -> StoreError | None:
        """So that people hear of it before a pod waits. A connection that can never write is closed."""
        try:
            try_to_write(db)
        except sqlite3.DatabaseError as error:
            if is_read_only(error):
                self.close()
            return store_error(self._path, "write", error)
        return None

    def _read_identity(self) -> tuple[int, int] | None:
        """Of what lies at the path; ``None`` where nothing does, or nothing can be found out."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

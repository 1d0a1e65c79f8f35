"""SQLite as the store uses it: connections, what its errors mean, and rows that are set aside."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from dranet.errors import Reason, StoreError
from dranet.model.plan import RECORD_VERSION
from dranet.store.file import PAGE_BYTES
from dranet.store.mirror import CREATE_TABLES, BadRecord, read_user_version, transaction

SCHEMA_VERSION = RECORD_VERSION
"""``PRAGMA user_version`` of a file with records that this driver wrote. A newer one is never written to."""
EMPTY_VERSION = 1
"""Of a file without records: any driver may go on with it."""
BUSY_SECONDS = 5.0
"""How long a write waits for another process's, at most: a transaction is one write to the disk."""
_LOOK_AGAIN_SECONDS = 0.01


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes, to a file with its tables.

    Raises:
        sqlite3.DatabaseError: it cannot be opened or made.
        StoreError: ``STORE_NEWER``.
    """
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _set_up(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    db.execute(f"PRAGMA page_size={PAGE_BYTES}")  # of a file that is made now
    _switch_to_wal(db)
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA secure_delete=ON")  # a salvage must not meet rows of yesterday
    version = read_user_version(db)
    if version > SCHEMA_VERSION:
        raise newer_error(path, version)
    with transaction(db):
        for statement in CREATE_TABLES:
            db.execute(statement)
        if read_user_version(db) == 0:
            db.execute(f"PRAGMA user_version={EMPTY_VERSION}")


def _switch_to_wal(db: sqlite3.Connection) -> None:
    """Several that open a new file at the same time want the same. SQLite lets one of them and refuses the
    others at once, whatever the busy timeout: they could wait for each other."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not _is_in_wal(db, deadline):
        time.sleep(_LOOK_AGAIN_SECONDS)


def _is_in_wal(db: sqlite3.Connection, deadline: float) -> bool:
    try:
        db.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        if not is_busy(error) or time.monotonic() >= deadline:
            raise
        return False
    return True


def try_to_write(db: sqlite3.Connection) -> None:
    """Commit nothing new.

    Raises:
        sqlite3.DatabaseError: the disk refuses.
    """
    with transaction(db):
        db.execute(f"PRAGMA user_version={read_user_version(db)}")


def move_aside(db: sqlite3.Connection, claim_uid: str, record: BadRecord) -> bool:
    """Whether it was still there, as it was read."""
    with transaction(db):
        found = db.execute(
            "DELETE FROM prepared WHERE claim_uid = ? AND record = ?", (claim_uid, record.text)
        )
        if found.rowcount:
            row = (claim_uid, record.text, record.why)
            db.execute("INSERT INTO quarantine (claim_uid, record, why) VALUES (?, ?, ?)", row)
        return bool(found.rowcount)


# --- errors ---------------------------------------------------------------------------------------------


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process kept us waiting."""
    code: int | None = getattr(error, "sqlite_errorcode", None)  # only what SQLite itself raised has one
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def is_refusal(error: sqlite3.Error) -> bool:
    """Whether the disk is full, read-only or fails, and the file may be sound."""
    return isinstance(error, sqlite3.OperationalError) and not is_busy(error)


def is_read_only(error: sqlite3.Error) -> bool:
    """Whether the connection cannot write, now or later: SQLite opened the file on a read-only mount."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_READONLY


def newer_error(path: Path, version: int) -> StoreError:
    return StoreError(
        f"store {path} has schema version {version}, this driver knows {SCHEMA_VERSION}",
        hint="run the newer driver that wrote it; once the node is drained, an older one may follow",
        reason=Reason.STORE_NEWER,
        retryable=True,
    )


def store_error(path: Path, operation: str, error: sqlite3.DatabaseError) -> StoreError:
    """What SQLite says, for whoever must act."""
    if is_busy(error):
        return StoreError(
            f"store {path}: cannot {operation}: another process is writing to it all the time",
            hint="end whatever has the file open, or look for a disk that hangs",
            retryable=True,
        )
    if is_refusal(error):
        return StoreError(
            f"store {path}: cannot {operation}: {error}",
            hint="is the state folder a writable mount with free space?",
        )
    return StoreError(
        f"store {path}: {error}",
        hint="the file is damaged; restart the driver, which reads out of it what can be read",
        reason=Reason.STORE_CORRUPT,
    )

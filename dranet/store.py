"""Prepared claims on disk, keyed by claim UID: what the driver promised before it answered the kubelet.

SQLite in WAL mode with ``synchronous=FULL``: a commit survives a kill at any point and a power cut, and
costs about a quarter of a millisecond. The whole content is mirrored in memory, so that the runtime's
hook reads no disk. The store holds intent; what really is lies in the kernel (``driver.reconcile``).

Two instances of the driver may share the file. Each look asks SQLite, in shared memory and on a connection
that no commit keeps waiting, whether somebody else has committed since; only then is the disk read, and only
records that have changed are decoded. Who reads a record to write it back holds the node's devices meanwhile
(``driver.attachments``), for nothing here keeps the other instance from doing the same.

It knows no kernel, cluster or runtime; it is called from the event loop and from the NRI thread.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dranet.errors import Reason, StoreError
from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.model.record_json import encode_record
from dranet.store_mirror import (
    BadRecord,
    Claims,
    Mirror,
    read_data_version,
    read_user_version,
    transaction,
)

log = logging.getLogger(__name__)

SCHEMA_VERSION = RECORD_VERSION
"""``PRAGMA user_version`` of a file with records that this driver wrote. A newer one is never written to."""
EMPTY_VERSION = 1
"""Of a file without records: any driver may go on with it."""
_LOOK_AGAIN_SECONDS = 0.01
BUSY_SECONDS = 5.0
"""How long a write waits for another process's, at most: a transaction is one write to the disk."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS prepared (claim_uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS quarantine (
        claim_uid TEXT NOT NULL,
        record TEXT NOT NULL,
        why TEXT NOT NULL,
        at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    )""",
)


class ClaimStore:
    """Durable map of claim UID to :class:`PreparedClaim`; safe to call from any thread.

    Reading raises nothing: where the disk fails, memory shows what was read last.

    Raises:
        StoreError: ``STORE_UNWRITABLE`` when the disk refuses; the memory then still shows what the
            disk has. ``STORE_CORRUPT`` when the file is not ours. ``STORE_NEWER`` when a newer driver has
            written records into it, before or since.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        """Held while the disk works; readers do not take it."""
        self._db: sqlite3.Connection | None = None
        self._mirror = Mirror(path, self._tell_change)
        self._file: tuple[int, int] | None = None
        """Device and inode number of what is open."""
        self.quarantined: tuple[str, ...] = ()
        """Claim UIDs whose records could not be read at the last open; this process set them aside."""
        self.on_foreign_change: Callable[[], None] | None = None
        """Called after a look, on its thread, that found records of somebody else's. Must be quick."""

    @property
    def folder(self) -> Path:
        """Where the file lies; who shares the one shares the other."""
        return self._path.parent

    def open(self) -> None:
        """Open or create the file and read every record. One bad record never blocks another."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._db = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._set_up(self._db)
        except sqlite3.DatabaseError as error:
            self.close()
            raise self._failure("open", error) from error
        except StoreError:
            self.close()
            raise
        except OSError as error:
            raise StoreError(
                f"store {self._path}: {error.strerror}", hint="is the state folder a writable mount?"
            ) from error

    def _set_up(self, db: sqlite3.Connection) -> None:
        _switch_to_wal(db)
        db.execute("PRAGMA synchronous=FULL")
        version = read_user_version(db)
        if version > SCHEMA_VERSION:
            raise self._newer(version)
        with transaction(db):
            for statement in _TABLES:
                db.execute(statement)
            if read_user_version(db) == 0:
                db.execute(f"PRAGMA user_version={EMPTY_VERSION}")
        self._mirror.open()
        self._file = self._read_identity()
        self._set_aside(db, self._mirror.bad)

    def _read_identity(self) -> tuple[int, int] | None:
        """Of what lies at the path; ``None`` where nothing does, or nothing can be found out."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_in_place(self) -> None:
        """Refuse to promise what no restart would find; what is open serves the claims that it has."""
        if self._read_identity() != self._file:
            raise StoreError(
                f"store {self._path} was removed or replaced while the driver runs: what it knows of earlier "
                "claims is in its memory alone",
                hint="drain the node, so that their devices are given back, then restart the driver",
            )

    def _set_aside(self, db: sqlite3.Connection, bad: Mapping[str, BadRecord]) -> None:
        """Move records that cannot be read to where they block nobody, unless another instance does it."""
        self.quarantined = tuple(uid for uid, record in bad.items() if _move_aside(db, uid, record))
        for claim_uid in self.quarantined:
            log.error("store %s: the record of claim %s is set aside", self._path, claim_uid)

    def close(self) -> None:
        """Close the file; the memory stays readable."""
        with self._lock:
            self._mirror.close()
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def is_newer(self) -> bool:
        """A newer driver has written records since this one opened the file. What is read here then is what
        was before, nothing can be written, and this instance had better leave the node to the other."""
        self._mirror.refresh()
        return self._mirror.newer_version > 0

    def check_version(self) -> None:
        """Pass while this driver knows every record of the file, and memory shows what is in it.

        Raises:
            StoreError: ``STORE_NEWER``, retryable: the newer driver will answer. Or the disk refuses, and
                what others have committed is not known.
        """
        self._look()
        if self.is_newer:
            raise self._newer(self._mirror.newer_version)

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return self._mirror.refresh().get(claim_uid)

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        """The claims prepared for one pod, in a fixed order (claim name, then UID)."""
        mine = [c for c in self._mirror.refresh().values() if c.pod.uid == pod_uid]
        return tuple(sorted(mine, key=lambda c: (c.claim.name, c.claim.uid)))

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return tuple(self._mirror.refresh().values())

    def _tell_change(self) -> None:
        if self.on_foreign_change is not None:
            self.on_foreign_change()

    def put(self, record: PreparedClaim) -> None:
        """Commit one record; when this returns, it survives a kill and a power cut."""
        self.put_all((record,))

    def put_all(self, records: Iterable[PreparedClaim], *, deadline: float | None = None) -> None:
        """Commit several records in one transaction: all or none.

        ``deadline`` (``time.monotonic()``) ends the wait for another process's transaction sooner.
        """
        batch = tuple(records)
        rows = [(r.claim.uid, self._encode(r)) for r in batch]
        with self._writing(deadline) as writing:
            before = writing.before
            if any(uid not in before for uid, _ in rows):
                self._check_in_place()
            writing.write("INSERT OR REPLACE INTO prepared (claim_uid, record) VALUES (?, ?)", rows)
            writing.set_version(SCHEMA_VERSION if before or batch else EMPTY_VERSION)
            writing.commit({**before, **{r.claim.uid: r for r in batch}}, dict(rows))

    def _encode(self, record: PreparedClaim) -> str:
        try:
            return encode_record(record)
        except ValueError as error:
            raise StoreError(
                f"store {self._path}: the record of claim {record.claim} cannot be written down: {error}"
            ) from error

    def delete(self, claim_uid: str) -> None:
        """Forget a claim; an unknown one is fine."""
        if claim_uid not in self._look():
            return
        with self._writing() as writing:
            kept = {uid: record for uid, record in writing.before.items() if uid != claim_uid}
            writing.write("DELETE FROM prepared WHERE claim_uid = ?", [(claim_uid,)])
            if not kept:
                writing.set_version(EMPTY_VERSION)
            writing.commit(kept, {})

    def _look(self) -> Claims:
        """For who acts on what is not there: a look that fails is no answer."""
        try:
            return self._mirror.look()
        except sqlite3.DatabaseError as error:
            raise self._failure("read", error) from error

    @contextmanager
    def _writing(self, deadline: float | None = None) -> Iterator[_Writing]:
        """A transaction on the freshest content, with nobody else writing; rolled back unless committed."""
        with self._lock:
            if self._db is None:
                raise StoreError(f"store {self._path} is closed")
            seconds = BUSY_SECONDS if deadline is None else deadline - time.monotonic()
            try:
                self._db.execute(f"PRAGMA busy_timeout={int(min(max(seconds, 0.0), BUSY_SECONDS) * 1000)}")
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    before = self._mirror.look()
                    if self._mirror.newer_version:
                        raise self._newer(self._mirror.newer_version)
                    yield _Writing(self._db, self._mirror, before)
                finally:
                    if self._db.in_transaction:  # SQLite has ended it by itself after some errors
                        self._db.execute("ROLLBACK")
            except sqlite3.DatabaseError as error:
                raise self._failure("write", error) from error

    def _newer(self, version: int) -> StoreError:
        return StoreError(
            f"store {self._path} has schema version {version}, this driver knows {SCHEMA_VERSION}",
            hint="run the newer driver that wrote it; once the node is drained, an older one may follow",
            reason=Reason.STORE_NEWER,
            retryable=True,
        )

    def _failure(self, operation: str, error: sqlite3.DatabaseError) -> StoreError:
        if _is_busy(error):
            return StoreError(
                f"store {self._path}: cannot {operation}: another process is writing to it all the time",
                hint="end whatever has the file open, or look for a disk that hangs",
                retryable=True,
            )
        if isinstance(error, sqlite3.OperationalError):
            return StoreError(
                f"store {self._path}: cannot {operation}: {error}",
                hint="is the state folder a writable mount with free space?",
            )
        return StoreError(
            f"store {self._path}: {error}",
            hint="the file is damaged; drain the node, then remove it",
            reason=Reason.STORE_CORRUPT,
        )


class _Writing:
    """A transaction under way."""

    def __init__(self, db: sqlite3.Connection, mirror: Mirror, before: Claims) -> None:
        self._db = db
        self._mirror = mirror
        self._others = read_data_version(db)
        self.before = before
        """What is in the file."""

    def write(self, statement: str, rows: Sequence[tuple[str, ...]]) -> None:
        self._db.executemany(statement, rows)

    def set_version(self, version: int) -> None:
        """What it takes to read the file from now on."""
        if version != read_user_version(self._db):
            self._db.execute(f"PRAGMA user_version={version}")

    def commit(self, after: Claims, texts: Mapping[str, str]) -> None:
        """Change the disk, then the memory to ``after``."""
        self._db.execute("COMMIT")
        self._mirror.adopt(self.before, after, texts, self._is_alone)

    def _is_alone(self) -> bool:
        return read_data_version(self._db) == self._others


def _move_aside(db: sqlite3.Connection, claim_uid: str, record: BadRecord) -> bool:
    """Whether it was still there, as it was read."""
    with transaction(db):
        found = db.execute(
            "DELETE FROM prepared WHERE claim_uid = ? AND record = ?", (claim_uid, record.text)
        )
        if found.rowcount:
            row = (claim_uid, record.text, record.why)
            db.execute("INSERT INTO quarantine (claim_uid, record, why) VALUES (?, ?, ?)", row)
        return bool(found.rowcount)


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
        if not _is_busy(error) or time.monotonic() >= deadline:
            raise
        return False
    return True


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    code: int | None = getattr(error, "sqlite_errorcode", None)  # only what SQLite itself raised has one
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY

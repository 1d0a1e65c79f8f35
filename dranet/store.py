"""Prepared claims on disk, keyed by claim UID: what the driver promised before it answered the kubelet.

SQLite in WAL mode with ``synchronous=FULL``: a commit survives a kill at any point and a power cut, and
costs about a quarter of a millisecond. The whole content is mirrored in memory, so that the runtime's
hook reads no disk. The store holds intent; what really is lies in the kernel (``driver.reconcile``).

It knows no kernel, cluster or runtime; it is called from the event loop and from the NRI thread.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dranet.errors import Reason, StoreError
from dranet.model.plan import RECORD_VERSION, PreparedClaim

if TYPE_CHECKING:
    from pydantic import TypeAdapter

log = logging.getLogger(__name__)

SCHEMA_VERSION = RECORD_VERSION
"""``PRAGMA user_version`` of a file with records. A newer file is refused, never rewritten."""
EMPTY_VERSION = 1
"""Of a file without records: any driver may go on with it."""


@functools.cache
def _record() -> TypeAdapter[PreparedClaim]:
    """Made for the first record: pydantic is 10 MB that a node without claims does without."""
    from pydantic import TypeAdapter

    return TypeAdapter(PreparedClaim)


_TABLES = """
CREATE TABLE IF NOT EXISTS prepared (claim_uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quarantine (
    claim_uid TEXT NOT NULL,
    record TEXT NOT NULL,
    why TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
"""


class ClaimStore:
    """Durable map of claim UID to :class:`PreparedClaim`; safe to call from any thread.

    Raises:
        StoreError: ``STORE_UNWRITABLE`` when the disk refuses; the memory then still shows what the
            disk has. ``STORE_CORRUPT`` when the file is not ours or is newer than this driver.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        """Held while the disk works; readers do not take it."""
        self._claims: Mapping[str, PreparedClaim] = {}
        """Replaced as a whole by each commit, never changed."""
        self._db: sqlite3.Connection | None = None
        self._version = 0
        """``PRAGMA user_version`` as it is."""
        self.quarantined: tuple[str, ...] = ()
        """Claim UIDs whose records could not be read at the last open; they were set aside."""

    def open(self) -> None:
        """Open or create the file and read every record. One bad record never blocks another."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
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
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        self._check_version(db)
        db.executescript(_TABLES)
        self._read_all(db)
        self._set_version(db, _version_of(self._claims))

    def close(self) -> None:
        """Close the file; the memory stays readable."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return self._claims.get(claim_uid)

    def get_by_pod(self, pod_uid: str) -> tuple[PreparedClaim, ...]:
        """The claims prepared for one pod, in a fixed order (claim name, then UID)."""
        mine = [c for c in self._claims.values() if c.pod.uid == pod_uid]
        return tuple(sorted(mine, key=lambda c: (c.claim.name, c.claim.uid)))

    def get_all(self) -> tuple[PreparedClaim, ...]:
        return tuple(self._claims.values())

    def put(self, record: PreparedClaim) -> None:
        """Commit one record; when this returns, it survives a kill and a power cut."""
        self.put_all((record,))

    def put_all(self, records: Iterable[PreparedClaim]) -> None:
        """Commit several records in one transaction: all or none."""
        batch = tuple(records)
        rows = [(r.claim.uid, self._encode(r)) for r in batch]
        with self._lock:
            claims = {**self._claims, **{r.claim.uid: r for r in batch}}
            self._write("INSERT OR REPLACE INTO prepared (claim_uid, record) VALUES (?, ?)", rows, claims)

    def _encode(self, record: PreparedClaim) -> str:
        try:
            return _record().dump_json(record).decode()
        except ValueError as error:  # pydantic's PydanticSerializationError is one
            raise StoreError(
                f"store {self._path}: the record of claim {record.claim} cannot be written down: {error}"
            ) from error

    def delete(self, claim_uid: str) -> None:
        """Forget a claim; an unknown one is fine."""
        with self._lock:
            if claim_uid in self._claims:
                claims = {uid: kept for uid, kept in self._claims.items() if uid != claim_uid}
                self._write("DELETE FROM prepared WHERE claim_uid = ?", [(claim_uid,)], claims)

    def _write(
        self, statement: str, rows: Sequence[tuple[str, ...]], claims: Mapping[str, PreparedClaim]
    ) -> None:
        """Change the disk, then the memory to ``claims``."""
        if self._db is None:
            raise StoreError(f"store {self._path} is closed")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(statement, rows)
                if (version := _version_of(claims)) != self._version:
                    self._db.execute(f"PRAGMA user_version={version}")
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # SQLite has ended it by itself after some errors
                    self._db.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise self._failure("write", error) from error
        self._version, self._claims = version, claims

    def _set_version(self, db: sqlite3.Connection, version: int) -> None:
        if version != self._version:
            db.execute(f"PRAGMA user_version={version}")
            self._version = version

    def _check_version(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        self._version = version
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"store {self._path} has schema version {version}, this driver knows {SCHEMA_VERSION}",
                hint="run the newer driver that wrote it; once the node is drained, an older one may follow",
                reason=Reason.STORE_CORRUPT,
            )

    def _read_all(self, db: sqlite3.Connection) -> None:
        claims: dict[str, PreparedClaim] = {}
        bad: list[tuple[str, str, str]] = []
        for claim_uid, text in db.execute(
            "SELECT claim_uid, record FROM prepared ORDER BY claim_uid"
        ).fetchall():
            try:
                record = _record().validate_json(text)
            except ValueError as error:  # pydantic's ValidationError is one
                bad.append((claim_uid, text, str(error)))
                continue
            claims[claim_uid] = record
        for row in bad:
            log.error(
                "store %s: the record of claim %s cannot be read and is set aside: %s",
                self._path,
                row[0],
                row[2],
            )
            db.execute("INSERT INTO quarantine (claim_uid, record, why) VALUES (?, ?, ?)", row)
            db.execute("DELETE FROM prepared WHERE claim_uid = ?", (row[0],))
        self._claims = claims
        self.quarantined = tuple(row[0] for row in bad)

    def _failure(self, operation: str, error: sqlite3.DatabaseError) -> StoreError:
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


def _version_of(claims: Mapping[str, PreparedClaim]) -> int:
    return SCHEMA_VERSION if claims else EMPTY_VERSION

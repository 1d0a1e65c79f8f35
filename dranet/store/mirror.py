"""What the store's file says, in memory: the reading half of ``claim_store``.

``PRAGMA data_version`` on a connection that never writes tells whether anybody else has committed since the
last look. It compares a few bytes of shared memory, so that a look costs microseconds, and in WAL mode no
writer keeps it waiting, not even one that waits for the disk.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.store.pending import Changes, Claims, add_changes, apply_changes, rebase_changes
from dranet.store.record_json import RecordError, decode_record

log = logging.getLogger(__name__)

LOOK_BUSY_SECONDS = 0.2
"""How long a look waits. SQLite keeps readers waiting only while it recovers a file after a crash."""


CREATE_TABLES = (
    "CREATE TABLE IF NOT EXISTS prepared (claim_uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS quarantine (
        claim_uid TEXT NOT NULL,
        record TEXT NOT NULL,
        why TEXT NOT NULL,
        at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    )""",
)


class BadRecord(Struct, frozen=True):
    """A row that is no record of ours."""

    text: str
    why: str


class Mirror:
    """The records as of the last look. One lock, which is not held while anybody writes to the disk."""

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        """``on_change`` is called after a refresh that found other records, with no lock held here."""
        self._path = path
        self._on_change = on_change
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._seen = -1
        """``data_version`` at the last look."""
        self._digests: dict[str, int] = {}
        """Of the text of each row, by claim UID: what has changed is told without decoding it."""
        self._complaint = ""
        self.filed: Claims = {}
        """What the file says. Replaced as a whole, never changed."""
        self.pending: Changes = {}
        """What the disk has refused. Replaced as a whole, never changed."""
        self.claims: Claims = {}
        """What the file says, but for what it is still to take. Replaced as a whole, never changed."""
        self.bad: Mapping[str, BadRecord] = {}
        """Rows that could not be read at the last look that found changes."""
        self.newer_version = 0
        """That of the file, where a newer driver has written records into it; else 0. ``claims`` are then
        what they were before."""

    def open(self) -> None:
        """Read the file, which is there, with its tables.

        Raises:
            sqlite3.DatabaseError: it cannot be read.
        """
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with self._lock:
            self._db = sqlite3.connect(
                uri, uri=True, timeout=LOOK_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._seen = -1  # of an earlier connection it means nothing
            self._catch_up(self._db)

    def show(self, texts: Mapping[str, str]) -> None:
        """Take the rows from elsewhere, because SQLite cannot open the file: a disk that takes no writes."""
        with self._lock:
            if self._digests != {uid: hash(text) for uid, text in texts.items()}:
                self._read_rows(texts.items())

    @property
    def is_open(self) -> bool:
        """Whether what others commit is seen."""
        return self._db is not None

    def count_quarantined(self) -> int:
        """Rows that have been set aside, or should be.

        Raises:
            sqlite3.Error: the disk fails.
        """
        with self._lock:
            (count,) = self._db.execute("SELECT count(*) FROM quarantine").fetchone() if self._db else (0,)
            return int(count) + len(self.bad)

    def keep(self, wanted: Mapping[str, PreparedClaim | None]) -> None:
        """Remember what the disk has refused until it takes it: records by claim UID, ``None`` for none."""
        with self._lock:
            self.pending = add_changes(self.pending, self.filed, wanted)
            self.claims = apply_changes(self.filed, self.pending)

    def close(self) -> None:
        """Close the file; ``claims`` stay."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def refresh(self) -> Claims:
        """The records as they are now. Where the disk fails, as they were, and the log says so once."""
        try:
            return self.look()
        except sqlite3.Error as error:
            self.complain(error)
            return self.claims

    def look(self) -> Claims:
        """The records as they are now.

        Raises:
            sqlite3.Error: the disk fails.
        """
        with self._lock:
            before = self.claims
            if self._db is not None:
                self._catch_up(self._db)
                self._complaint = ""
            after = self.claims
        if after is not before:
            self._on_change()
        return after

    def adopt(
        self,
        before: Claims,
        after: Claims,
        texts: Mapping[str, str],
        settled: Changes,
        is_alone: Callable[[], bool],
    ) -> None:
        """Take over what this process has just committed, without reading it back.

        Args:
            before: what the transaction began with.
            after: what is in the file now, unless somebody else has committed, too.
            texts: the rows written, by claim UID.
            settled: what was pending and is in the file now, or has been overtaken.
            is_alone: whether nobody else has committed since the transaction began.
        """
        with self._lock:
            self.pending = {u: c for u, c in self.pending.items() if c is not settled.get(u)}
            try:
                seen = self._seen if self._db is None else read_data_version(self._db)
                is_known = self.filed is before and is_alone()
            except sqlite3.Error as error:
                self.complain(error)
                seen, is_known = self._seen, True
            if is_known:
                kept = {uid: digest for uid, digest in self._digests.items() if uid not in before}
                known = {uid: self._digests[uid] for uid in after if uid not in texts}
                self._digests = kept | known | {uid: hash(text) for uid, text in texts.items()}
                self.filed, self._seen = after, seen
            self.claims = apply_changes(self.filed, self.pending)
        if not is_known:
            self.refresh()

    def _catch_up(self, db: sqlite3.Connection) -> None:
        if read_data_version(db) == self._seen:
            return
        with transaction(db, "DEFERRED"):
            seen, version = read_data_version(db), read_user_version(db)
            if version > RECORD_VERSION:
                self._note_newer(version)
            else:
                self._read_changes(db)
                self.newer_version = 0
        self._seen = seen

    def _read_changes(self, db: sqlite3.Connection) -> None:
        self._read_rows(db.execute("SELECT claim_uid, record FROM prepared ORDER BY claim_uid"))

    def _read_rows(self, rows: Iterable[tuple[str, str]]) -> None:
        claims: dict[str, PreparedClaim] = {}
        digests: dict[str, int] = {}
        bad: dict[str, BadRecord] = {}
        for claim_uid, text in rows:
            digests[claim_uid] = hash(text)
            known = self.filed.get(claim_uid)
            if known is not None and self._digests[claim_uid] == digests[claim_uid]:
                claims[claim_uid] = known
                continue
            try:
                claims[claim_uid] = decode_row(claim_uid, text)
            except RecordError as error:
                bad[claim_uid] = BadRecord(text, str(error))
                if self._digests.get(claim_uid) != digests[claim_uid]:
                    _log_bad(self._path, claim_uid, error)
        if digests != self._digests:
            self.filed = claims
            self.pending = rebase_changes(self.pending, claims)
            self.claims = apply_changes(claims, self.pending)
        self._digests, self.bad = digests, bad

    def _note_newer(self, version: int) -> None:
        if not self.newer_version:
            log.warning(
                "store %s: a newer driver has written records of version %d, this one knows %d; "
                "the node's claims are left to it",
                self._path,
                version,
                RECORD_VERSION,
            )
        self.newer_version = version

    def complain(self, error: sqlite3.Error) -> None:
        """Say once that the file cannot be read."""
        if str(error) != self._complaint:
            log.error("store %s: cannot be read, memory has to do: %s", self._path, error)
        self._complaint = str(error)


def decode_row(claim_uid: str, text: str) -> PreparedClaim:
    """The record of a row.

    Raises:
        RecordError: it is none, or another claim's.
    """
    record = decode_record(PreparedClaim, text)
    if record.claim.uid != claim_uid:
        raise RecordError(f"is {record.claim.uid!r}, and the row is of {claim_uid!r}", ".claim.uid")
    return record


def read_data_version(db: sqlite3.Connection) -> int:
    """A number that changes when another connection commits; it means nothing on any other connection."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return int(version)


def read_user_version(db: sqlite3.Connection) -> int:
    """The version of the records in the file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit at the end, roll back after an error."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # SQLite has ended it by itself after some errors
            db.execute("ROLLBACK")


def _log_bad(path: Path, claim_uid: str, error: RecordError) -> None:
    log.error("store %s: the record of claim %s cannot be read: %s", path, claim_uid, error)

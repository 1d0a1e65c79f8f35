"""A transaction of the store: rows, the version of the file, and the mirror in memory change together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from dranet.failpoints import Failpoint, reached
from dranet.store.db import EMPTY_VERSION, SCHEMA_VERSION
from dranet.store.loose import decode_loosely
from dranet.store.mirror import Mirror, read_data_version, read_user_version
from dranet.store.pending import Changes, Claims


class Writing:
    """A transaction under way; who begins it ends it, where :meth:`commit` has not."""

    def __init__(self, db: sqlite3.Connection, mirror: Mirror) -> None:
        self._db = db
        self._mirror = mirror
        self._others = read_data_version(db)
        self.before = mirror.filed
        """What is in the file."""

    def write(self, gone: Iterable[str], texts: Mapping[str, str], *, is_empty: bool) -> None:
        """Remove some rows, write others, and say what it takes to read the file from now on. Something is
        written in any case: where nothing is wanted, to see whether the disk takes it."""
        for claim_uid in gone:
            self._db.execute("DELETE FROM prepared WHERE claim_uid = ?", (claim_uid,))
            self._forget_set_aside(claim_uid)
        self._db.executemany(
            "INSERT OR REPLACE INTO prepared (claim_uid, record) VALUES (?, ?)", texts.items()
        )
        now = read_user_version(self._db)
        needed = SCHEMA_VERSION if texts else EMPTY_VERSION if is_empty else now
        if needed != now or not texts:
            self._db.execute(f"PRAGMA user_version={needed}")
            reached(Failpoint.MIGRATE_VERSION_SET)

    def _forget_set_aside(self, claim_uid: str) -> None:
        """Of a claim that was given back by it. What was of no use stays, for people to look at."""
        rows = self._db.execute("SELECT record FROM quarantine WHERE claim_uid = ?", (claim_uid,)).fetchall()
        used = [(claim_uid, text) for (text,) in rows if decode_loosely(text) is not None]
        self._db.executemany("DELETE FROM quarantine WHERE claim_uid = ? AND record = ?", used)

    def commit(self, after: Claims, texts: Mapping[str, str], settled: Changes) -> None:
        """Change the disk, then the memory to ``after``."""
        self._db.execute("COMMIT")
        reached(Failpoint.MIGRATE_COMMITTED)
        self._mirror.adopt(self.before, after, texts, settled, self._is_alone)

    def _is_alone(self) -> bool:
        return read_data_version(self._db) == self._others

"""A damaged store: set aside whole, and a fresh one made of every row that can still be read.

In an order in which a kill leaves either the damaged file, or the fresh one and the way to finish: the fresh
file is written and synced under another name; once it is complete it gets the name at which every start looks
for it; only then do the two change places.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, field

from dranet.model.plan import RECORD_VERSION
from dranet.store.file import PAGE_BYTES, Content, Image, QuarantinedRow
from dranet.store.mirror import CREATE_TABLES, decode_row
from dranet.store.pages import FoundRow, find_rows
from dranet.store.record_json import RecordError

KEPT = 3
"""Damaged files, the newest; each may be as large as the store."""

_BESIDE = ("-wal", "-shm", "")
"""What SQLite names its files by; the database itself goes last."""


class Salvage(Struct, frozen=True):
    """What could be read of a damaged store."""

    why: str
    content: Content
    """The rows of the fresh one."""
    odd_pages: int
    """Pages with rows in which something did not fit: rows of them may be lost without a name."""
    set_aside: tuple[str, ...] = field(default=())
    """Claim UIDs of rows that are damaged themselves."""

    def describe(self) -> str:
        """For logs and Events."""
        rows = f"{len(self.content.rows)} records were read out of it"
        bad = f", those of claims {', '.join(self.set_aside)} are damaged" if self.set_aside else ""
        lost = f", {self.odd_pages} of its pages may have held others" if self.odd_pages else ""
        return f"damaged: {self.why}; {rows}{bad}{lost}"


def read_damaged(image: Image, why: str) -> Salvage:
    """Every row that can be read, wherever the damage is."""
    found = find_rows(image.content, PAGE_BYTES)
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    rows: dict[str, str] = {}
    bad: list[QuarantinedRow] = []
    for row in found.prepared:
        claim_uid, text = row.columns
        fault = _find_fault(row)
        if not fault and rows.setdefault(claim_uid, text) != text:
            fault = "the damaged store had another record of this claim, too"
        if fault:
            bad.append(QuarantinedRow(claim_uid, text, fault, now))
    earlier = [QuarantinedRow(*row.columns) for row in found.quarantine]
    content = Content(RECORD_VERSION, rows, (*earlier, *bad))
    return Salvage(why, content, found.odd_pages, tuple(row.claim_uid for row in bad))


def _find_fault(row: FoundRow) -> str:
    if row.missing_bytes:
        return f"the disk has lost its last {row.missing_bytes} bytes"
    try:
        decode_row(*row.columns)
    except RecordError as error:
        return str(error)
    return ""


def replace_damaged(path: Path, content: Content) -> Path:
    """Put a store with these rows in the place of the damaged one; returns where that is now.

    Raises:
        OSError, sqlite3.Error: the disk refuses; the damaged one is still there.
    """
    making = path.with_name(f"{path.name}.salvaging")
    for suffix in ("", "-journal"):
        making.with_name(making.name + suffix).unlink(missing_ok=True)
    _write_fresh(making, content)
    making.rename(_salvaged(path))
    _sync_folder(path.parent)
    return _change_places(path)


def finish_replacing(path: Path) -> None:
    """Do what a salvage could not finish, if one was ended in between.

    Raises:
        OSError: the disk refuses.
    """
    if _salvaged(path).exists():
        _change_places(path)


def find_damaged(path: Path) -> list[Path]:
    """Damaged stores that were set aside, oldest first."""
    found = path.parent.glob(f"{path.name}.damaged-*")
    return sorted(file for file in found if not file.name.endswith(_BESIDE[:2]))


def _salvaged(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _write_fresh(path: Path, content: Content) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN")
        for statement in CREATE_TABLES:
            db.execute(statement)
        db.executemany("INSERT INTO prepared VALUES (?, ?)", content.rows.items())
        rows = [(row.claim_uid, row.text, row.why, row.at) for row in content.quarantine]
        db.executemany("INSERT INTO quarantine (claim_uid, record, why, at) VALUES (?, ?, ?, ?)", rows)
        db.execute(f"PRAGMA user_version={content.version if content.rows else 1}")
        db.execute("COMMIT")


def _change_places(path: Path) -> Path:
    aside = _name_aside(path)
    for suffix in _BESIDE:
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    _salvaged(path).rename(path)
    _sync_folder(path.parent)
    _remove_oldest(find_damaged(path)[:-KEPT])
    return aside


def _name_aside(path: Path) -> Path:
    """Says when (UTC)."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (f"{path.name}.damaged-{stamp}.{number}" for number in range(1000))
    return next(free for name in names if not (free := path.with_name(name)).exists())


def _remove_oldest(files: Sequence[Path]) -> None:
    for file in files:
        for suffix in _BESIDE:
            file.with_name(file.name + suffix).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """So that the names survive a power cut, too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

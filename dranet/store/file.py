"""What lies in the store's files, read without SQLite's locks and without touching them.

For a disk that takes no writes, on which SQLite cannot open a file in WAL mode; for a file that is damaged;
and for ``dranet claims``, which looks beside a running driver. The formats are SQLite's
(https://www.sqlite.org/fileformat2.html, section 4: the write-ahead log).

SQLite takes the first damaged frame of the log for its end, for so a log looks that a power cut has torn.
Here frames behind it are checked as well: a commit among them was promised, and the file is damaged.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct, field

from dranet import files

PAGE_BYTES = 4096
"""Of every file that the driver makes."""
MOST_BYTES = 1 << 30
"""Of a file that is read whole."""

_LOG_HEADER = struct.Struct(">8I")
"""Magic, version, page size, sequence, two salts, two checksums."""
_FRAME_HEADER = struct.Struct(">6I")
"""Page, pages after a commit or 0, two salts, two checksums."""
_MAGIC = 0x377F0682
"""Its lowest bit says that checksums are of big-endian words."""
_DATABASE_HEADER_BYTES = 100
_FIRST_BYTES = b"SQLite format 3\0"
_NO_VERSION = 1000
_ATTEMPTS = 20
_READ_BYTES = 1 << 20

Checksum = tuple[int, int]


class Log(Struct, frozen=True):
    """The committed pages of a write-ahead log."""

    pages: Mapping[int, bytes] = field(default_factory=dict)
    """By number, from 1; the last committed content of each."""
    page_count: int = 0
    """Of the database after the last commit; 0 where there is none."""
    damage: str = ""
    """Why SQLite would not see all that has been committed."""


class Image(Struct, frozen=True):
    """A database as its files say it is."""

    content: bytes
    damage: str = ""
    """What is wrong with the files themselves."""

    @property
    def version(self) -> int:
        """Of the records; 0 where there is none that a driver would write."""
        found = int.from_bytes(self.content[60:64]) if self.content.startswith(_FIRST_BYTES) else 0
        return found if found < _NO_VERSION else 0


def read_image(path: Path) -> Image:
    """The database at one moment, also while others write to it: every page that a checkpoint changes is in
    the log, unless that is begun anew.

    Raises:
        OSError: it cannot be read, or something else than a file has its name.
    """
    for _ in range(_ATTEMPTS):
        began = _look(path)
        content = _read(path)
        log = _read_if_there(path.with_name(f"{path.name}-wal"))
        if _look(path) == began:
            break
    return _build_image(content, read_log(log))


def _look(path: Path) -> tuple[object, ...]:
    """What differs when the log was begun anew, or there is none and the file was changed."""
    try:
        head = files.read_file(path.with_name(f"{path.name}-wal"), _LOG_HEADER.size)
    except FileNotFoundError:
        head = b""
    found = path.stat()
    return found.st_ino, head, head or (found.st_size, found.st_mtime_ns)


def _read(path: Path) -> bytes:
    """All of it; zeros where a bad disk gives nothing, so that the rest can be read."""
    with os.fdopen(files.open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        size = min(os.fstat(file.fileno()).st_size, MOST_BYTES)
        content = bytearray(size)
        for start in range(0, size, _READ_BYTES):
            try:
                part = os.pread(file.fileno(), min(_READ_BYTES, size - start), start)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                part = _read_pages(file.fileno(), start, min(start + _READ_BYTES, size))
            content[start : start + len(part)] = part
        return bytes(content)


def _read_pages(fd: int, start: int, end: int) -> bytes:
    content = bytearray(end - start)
    for at in range(start, end, PAGE_BYTES):
        with suppress(OSError):
            part = os.pread(fd, min(PAGE_BYTES, end - at), at)
            content[at - start : at - start + len(part)] = part
    return bytes(content)


def _read_if_there(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        return b""


def _build_image(content: bytes, log: Log) -> Image:
    image = bytearray(content)
    if log.page_count:
        size = len(next(iter(log.pages.values()), b""))
        image = image[: log.page_count * size].ljust(log.page_count * size, b"\0")
        for number, page in log.pages.items():
            image[(number - 1) * size : number * size] = page
    return Image(bytes(image), log.damage or _find_header_damage(image))


def _find_header_damage(image: bytearray) -> str:
    """Of what SQLite would refuse, or silently take for something else."""
    if not image:
        return ""
    if len(image) < _DATABASE_HEADER_BYTES or image[:16] != _FIRST_BYTES:
        return "it is no SQLite database"
    sound = {"page size": image[16:18] == b"\x10\0", "versions": {*image[18:20]} <= {1, 2}}
    sound |= {
        "layout": image[20:24] == b"\0\x40\x20\x20",
        "encoding": image[56:60] in (b"\0\0\0\1", bytes(4)),
    }
    wrong = [name for name, is_sound in sound.items() if not is_sound]
    return f"its header is damaged: {', '.join(wrong)}" if wrong else ""


# --- the write-ahead log --------------------------------------------------------------------------------


def read_log(data: bytes) -> Log:
    """What the log has committed, its damaged frames left out."""
    if len(data) < _LOG_HEADER.size:
        return Log()
    reader = _LogReader(data)
    pages: dict[int, bytes] = {}
    committed: dict[int, bytes] = {}
    page_count = 0
    for start in range(_LOG_HEADER.size, len(data) - reader.frame_bytes + 1, reader.frame_bytes):
        number, size_after = reader.read_frame(start)
        if number:
            pages[number] = data[start + _FRAME_HEADER.size : start + reader.frame_bytes]
        if size_after:
            committed, page_count, reader.damaged_at_commit = dict(pages), size_after, reader.damaged
    if not reader.damaged_at_commit:
        return Log(committed, page_count)
    return Log(committed, page_count, f"its write-ahead log is damaged at {reader.damaged_at_commit}")


class _LogReader:
    """Checks one frame after the other. Each checksum goes on from the one before it, so behind damage a
    frame is sound if it follows from either what the damaged one says or what it should say."""

    def __init__(self, data: bytes) -> None:
        magic, _, page_bytes, _, *rest = _LOG_HEADER.unpack_from(data)
        salts, stored = (rest[0], rest[1]), (rest[2], rest[3])
        self._data = data
        self._order = ">" if magic & 1 else "<"
        computed = self._sum((0, 0), 0, _LOG_HEADER.size - 8)
        is_sound = computed == stored and magic & ~1 == _MAGIC
        self.frame_bytes = (page_bytes if is_sound else PAGE_BYTES) + _FRAME_HEADER.size
        self._salts = salts if is_sound else self._find_salts(salts)
        self._before = {stored, computed}
        self.damaged = "" if is_sound else "its header"
        """The first thing that is."""
        self.damaged_at_commit = ""
        """The same, where something is committed behind it."""

    def _find_salts(self, told: tuple[int, int]) -> tuple[int, int]:
        starts = range(_LOG_HEADER.size, len(self._data) - self.frame_bytes + 1, self.frame_bytes)
        found = Counter(_FRAME_HEADER.unpack_from(self._data, start)[2:4] for start in starts)
        return next(((first, second) for (first, second), _ in found.most_common(1)), told)

    def read_frame(self, start: int) -> tuple[int, int]:
        """Page number, and pages after a commit or 0; page 0 where the frame is not sound, or of old."""
        number, size_after, *rest = _FRAME_HEADER.unpack_from(self._data, start)
        salts, stored = (rest[0], rest[1]), (rest[2], rest[3])
        computed = set()
        if salts == self._salts or not self.damaged:
            body = start + _FRAME_HEADER.size
            for before in self._before:
                head = self._sum(before, start, start + 8)
                computed.add(self._sum(head, body, start + self.frame_bytes))
        if salts == self._salts and stored in computed and number:
            self._before = {stored}
            return number, size_after
        self.damaged = self.damaged or f"byte {start}"
        self._before = {stored, *computed}
        return 0, 0

    def _sum(self, before: Checksum, start: int, end: int) -> Checksum:
        first, second = before
        words = struct.unpack_from(f"{self._order}{(end - start) // 4}I", self._data, start)
        pairs = iter(words)
        for even, odd in zip(pairs, pairs, strict=True):
            first = (first + even + second) & 0xFFFFFFFF
            second = (second + odd + first) & 0xFFFFFFFF
        return first, second


# --- rows -----------------------------------------------------------------------------------------------


class QuarantinedRow(Struct, frozen=True):
    """A record that could not be read, set aside."""

    claim_uid: str
    text: str
    why: str
    at: str
    """UTC, ``YYYY-MM-DD HH:MM:SS``."""


class Content(Struct, frozen=True):
    """The rows of a database."""

    version: int = 0
    """``PRAGMA user_version``: of the records."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The texts of the records, by claim UID."""
    quarantine: tuple[QuarantinedRow, ...] = ()


class DamagedError(Exception):
    """A database is not what a driver has made. The text says why."""


_PREPARED = "SELECT claim_uid, record FROM prepared ORDER BY 1"
_QUARANTINE = "SELECT claim_uid, record, why, at FROM quarantine ORDER BY at"
_TABLES = frozenset({"prepared", "quarantine"})


def read_content(image: Image) -> Content:
    """Every row, after a look at the whole of it.

    Raises:
        DamagedError: it is not sound.
    """
    if image.damage:
        raise DamagedError(image.damage)
    if not image.content:
        return Content()
    try:
        with closing(open_in_memory(image)) as db:
            return _read_content(db)
    except (sqlite3.Error, UnicodeError) as error:
        raise DamagedError(str(error)) from error


def open_in_memory(image: Image) -> sqlite3.Connection:
    """A copy, so that nothing happens to the files. Not in WAL mode, which needs some."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.deserialize(image.content[:18] + b"\1\1" + image.content[20:])
    return db


def _read_content(db: sqlite3.Connection) -> Content:
    (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise DamagedError(" ".join(str(verdict).split()))
    tables = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables <= _TABLES:
        raise DamagedError(f"its tables are {', '.join(sorted(tables))}")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version >= _NO_VERSION:
        raise DamagedError(f"its records are of version {version}")
    rows = _read_rows(db, _PREPARED) if "prepared" in tables else []
    aside = _read_rows(db, _QUARANTINE) if "quarantine" in tables else []
    texts = {row[0]: row[1] for row in rows}
    return Content(int(version), texts, tuple(QuarantinedRow(*row) for row in aside))


def _read_rows(db: sqlite3.Connection, statement: str) -> list[tuple[str, ...]]:
    rows = db.execute(statement).fetchall()
    if not all(isinstance(cell, str) for row in rows for cell in row):
        raise DamagedError("a row has what is no text")
    return rows

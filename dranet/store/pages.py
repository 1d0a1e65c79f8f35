"""Rows out of the pages of a damaged database: page by page, so that a damaged one costs no other. Pure.

SQLite walks down a tree and stops where a page is none. Here every page is looked at for itself, whether or
not anything still leads to it, but for those that are free (https://www.sqlite.org/fileformat2.html, sections
1.5 and 1.6). The two tables tell themselves apart: rows of ``prepared``, which has no row numbers, lie in
pages of indexes; rows of ``quarantine`` lie in pages of tables.
"""

from __future__ import annotations

import struct

from msgspec import Struct

_INDEX_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 0x02, 0x0A, 0x0D
_HEADER_BYTES = {_INDEX_INTERIOR: 12, _INDEX_LEAF: 8, _TABLE_LEAF: 8}
_FILE_HEADER_BYTES = 100
_MOST_ROW_BYTES = 64 << 20
_TEXT = 13
"""The first serial type of text: all odd numbers from here on."""


class FoundRow(Struct, frozen=True):
    """The columns of one row."""

    columns: tuple[str, ...]
    missing_bytes: int = 0
    """At the end, where the pages that they were on are not to be found."""


class FoundRows(Struct, frozen=True):
    """What lies in the pages."""

    prepared: tuple[FoundRow, ...]
    quarantine: tuple[FoundRow, ...]
    odd_pages: int
    """Pages of rows in which something does not fit."""


def find_rows(content: bytes, page_bytes: int) -> FoundRows:
    """Every row of every page that is not free."""
    pages = _Pages(content, page_bytes)
    prepared: list[FoundRow] = []
    quarantine: list[FoundRow] = []
    odd = 0
    for number in range(1, pages.count + 1):
        kind = pages.kind_of(number)
        if number in pages.free or kind not in _HEADER_BYTES:
            continue
        rows, is_odd = pages.read_rows(number, kind)
        odd += is_odd
        wanted, columns = (quarantine, 4) if kind == _TABLE_LEAF else (prepared, 2)
        wanted += [row for row in rows if len(row.columns) == columns and row.columns[0]]
    return FoundRows(tuple(prepared), tuple(quarantine), odd)


class _Pages:
    def __init__(self, content: bytes, page_bytes: int) -> None:
        self._content = content
        self._size = page_bytes
        self.count = -(-len(content) // page_bytes)
        self.free = self._find_free()

    def _page(self, number: int) -> bytes:
        return self._content[(number - 1) * self._size : number * self._size].ljust(self._size, b"\0")

    def kind_of(self, number: int) -> int:
        return self._page(number)[self._start(number)]

    def _start(self, number: int) -> int:
        return _FILE_HEADER_BYTES if number == 1 else 0

    def _find_free(self) -> frozenset[int]:
        """Pages of the free list, as far as it can be followed and is one."""
        found: set[int] = set()
        trunk = _u32(self._content, 32) if len(self._content) >= _FILE_HEADER_BYTES else 0
        while 1 < trunk <= self.count and trunk not in found and self.kind_of(trunk) not in _HEADER_BYTES:
            found.add(trunk)
            page = self._page(trunk)
            leaves = min(_u32(page, 4), self._size // 4 - 2)
            found |= {_u32(page, 8 + 4 * leaf) for leaf in range(leaves)}
            trunk = _u32(page, 0)
        return frozenset(found)

    def read_rows(self, number: int, kind: int) -> tuple[list[FoundRow], bool]:
        """The rows of a page, and whether something in it does not fit."""
        page = self._page(number)
        start = self._start(number)
        first = start + _HEADER_BYTES[kind]
        told = _u16(page, start + 3)
        cells = min(told, (self._size - first) // 2)
        rows: list[FoundRow] = []
        for cell in range(cells):
            try:
                rows.append(self._read_cell(page, _u16(page, first + 2 * cell), kind))
            except (ValueError, IndexError, struct.error):
                continue
        return rows, len(rows) < told or any(row.missing_bytes for row in rows)

    def _read_cell(self, page: bytes, at: int, kind: int) -> FoundRow:
        at += 4 if kind == _INDEX_INTERIOR else 0
        length, at = _varint(page, at)
        if kind == _TABLE_LEAF:
            _, at = _varint(page, at)
        if not 0 < length <= _MOST_ROW_BYTES:
            raise ValueError("no row is of that length")
        local = self._local_bytes(length, kind)
        payload = page[at : at + local]
        if local < length:
            payload += self._follow(_u32(page, at + local), length - local)
        return _parse_row(payload, length)

    def _local_bytes(self, length: int, kind: int) -> int:
        """Of a row, how much lies in its page."""
        most = self._size - 35 if kind == _TABLE_LEAF else (self._size - 12) * 64 // 255 - 23
        if length <= most:
            return length
        least = (self._size - 12) * 32 // 255 - 23
        fitting = least + (length - least) % (self._size - 4)
        return fitting if fitting <= most else least

    def _follow(self, number: int, wanted: int) -> bytes:
        """The rest of a row, through its overflow pages, as far as they lead."""
        parts = []
        seen: set[int] = set()
        while wanted > 0 and 1 < number <= self.count and number not in seen and number not in self.free:
            seen.add(number)
            page = self._page(number)
            parts.append(page[4 : 4 + wanted])
            wanted -= len(parts[-1])
            number = _u32(page, 0)
        return b"".join(parts)


def _parse_row(payload: bytes, length: int) -> FoundRow:
    """
    Raises:
        ValueError: it is no row of texts.
        IndexError: it ends within its header.
    """
    header_bytes, at = _varint(payload, 0)
    body = header_bytes
    columns: list[str] = []
    while at < header_bytes:
        kind, at = _varint(payload, at)
        if kind < _TEXT or kind % 2 == 0:
            raise ValueError("a column is no text")
        size = (kind - _TEXT) // 2
        columns.append(payload[body : body + size].decode(errors="backslashreplace"))
        body += size
    if at != header_bytes or body != length:
        raise ValueError("the columns are not of the row's length")
    return FoundRow(tuple(columns), max(length - len(payload), 0))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 9 bytes, and where it ends."""
    value = 0
    for count in range(1, 10):
        byte = data[at]
        at += 1
        if count == 9:
            return (value << 8) | byte, at
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            break
    return value, at


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2])


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4])

"""What an ELF file says of itself: for which machine it is, and which libraries it needs.

For 64 bits and little-endian, as both architectures are. Sources: System V ABI, chapters 4 and 5; ``elf(5)``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINES = {"amd64": 62, "arm64": 183}
"""``e_machine`` by Debian's names."""

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5


@dataclass(frozen=True, slots=True)
class Elf:
    machine: int
    needed: tuple[str, ...]


def read_elf(path: Path) -> Elf | None:
    """``None`` for what is no ELF file."""
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
    data = path.read_bytes()
    (machine,) = struct.unpack_from("<H", data, 18)
    return Elf(machine, tuple(_read_needed(data)))


def _read_needed(data: bytes) -> Iterator[str]:
    segments = list(_read_segments(data))
    dynamic = next(((offset, size) for kind, offset, _, size in segments if kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return
    offset, size = dynamic
    entries = list(struct.iter_unpack("<qQ", data[offset : offset + size]))
    strings = next(value for tag, value in entries if tag == _DT_STRTAB)
    start = next(o + strings - a for kind, o, a, s in segments if kind == _PT_LOAD and a <= strings < a + s)
    for tag, value in entries:
        if tag == _DT_NEEDED:
            end = data.index(b"\0", start + value)
            yield data[start + value : end].decode()


def _read_segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, offset, address and size of each program header."""
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    for number in range(count):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, table + number * entry_size)
        yield kind, offset, address, size

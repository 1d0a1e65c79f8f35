"""Names of PCI vendors and devices from the database of the PCI ID Project (the file ``pci.ids``).

Manifests select devices by these texts, so they are returned exactly as the file has them. Its format is
described in its own head and in ``pci.ids(5)``: a vendor line is four hex digits, two spaces and the name;
the devices of the vendor follow, indented by one tab, their subsystems by two; then come the classes, each
line with ``C``.

The database has 1.4 MB and 36,000 lines, of which a node needs ten. It is read line by line for the wanted
ids only, and again only for a new id or a changed file.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from dranet.kernel.sysfs.files import printable

_PATH_VARIABLE = "PCIDB_PATH"
"""As DraNet has it."""

_DEFAULT_PATHS = tuple(
    Path(f"{path}{suffix}")
    for path in ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")
    for suffix in ("", ".gz")
)

_GZIP_MAGIC = b"\x1f\x8b"

_LONGEST_LINE = 1024
"""Bytes. The longest line of the real file has 195; what has more is no entry."""

_PIECE_BYTES = 64 * 1024

_VENDOR = re.compile(rb"\n([0-9a-f]{4})  ([^\n]*)")
_DEVICE_OR_END = re.compile(rb"\n(?:\t([0-9a-f]{4})  ([^\n]*)|[^\t#\n])")
"""A device of the vendor, or the line after its last one."""

_MOST_BYTES = 8 << 20
"""Six times the real file; a bound on the time that a file which never ends, or unpacks to no end, takes."""


class PciName(Struct, frozen=True):
    """Empty where the database does not know the id."""

    vendor: str = ""
    device: str = ""


class _Edition(Struct, frozen=True):
    """Which file was read, and as of when."""

    path: str
    modified_ns: int
    size: int


class PciIds:
    """Names by ``(vendor id, device id)``, from the database at ``path``; where that is ``None``, at
    ``$PCIDB_PATH``; where that is not set, where distributions keep it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._edition: _Edition | None = None
        self._names: dict[tuple[int, int], PciName] = {}
        self._warnings: tuple[str, ...] = ()

    def read_names(
        self, wanted: Collection[tuple[int, int]], warnings: list[str]
    ) -> Mapping[tuple[int, int], PciName]:
        """The name of each wanted id. A database that is missing or broken is one warning."""
        if wanted:
            edition = self._find_edition()
            if edition is None:
                self._names, self._warnings = {}, (self._describe_missing(),)
            elif edition != self._edition or not set(wanted) <= self._names.keys():
                self._names, self._warnings = _read_names(edition.path, wanted)
            self._edition = edition
            warnings += self._warnings
        return {ids: self._names.get(ids, PciName()) for ids in wanted}

    def _find_edition(self) -> _Edition | None:
        for path in self._places():
            try:
                found = path.stat()
            except (OSError, ValueError):
                continue
            return _Edition(str(path), found.st_mtime_ns, found.st_size)
        return None

    def _places(self) -> tuple[Path, ...]:
        chosen = self._path or Path(os.environ.get(_PATH_VARIABLE, ""))
        return (chosen,) if chosen != Path() else _DEFAULT_PATHS

    def _describe_missing(self) -> str:
        places = ", ".join(repr(str(place)) for place in self._places())
        return (
            f"no PCI ID database at {places}: vendors and devices have no names; "
            f"install the Debian package pci.ids or set ${_PATH_VARIABLE}"
        )


def _read_names(
    path: str, wanted: Collection[tuple[int, int]]
) -> tuple[dict[tuple[int, int], PciName], tuple[str, ...]]:
    """All wanted ids, found or not, and what was odd about the file."""
    search = _Search(wanted)
    try:
        with ExitStack() as files:
            search.run(_read_lines(_open(path, files)))
    except (OSError, EOFError, zlib.error) as error:  # a torn gzip file gives each of these
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return search.names, (f"{path!r}: {problem}: some vendors and devices may have no names",)
    return search.names, ()


def _open(path: str, files: ExitStack) -> io.BufferedIOBase:
    """Open the database, plain or compressed, without waiting for what is no file (a FIFO)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    plain = files.enter_context(os.fdopen(fd, "rb"))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError("not a file")
    if not plain.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
        return plain
    from gzip import GzipFile  # costs what only a compressed database has to pay

    return files.enter_context(GzipFile(fileobj=plain))


def _read_lines(database: io.BufferedIOBase) -> Iterator[bytes]:
    """Pieces of whole lines, each line with its end *before* it, as the patterns want it. What is too long
    for a line loses its middle.

    Raises:
        OSError: there are more bytes than a database has.
    """
    size, rest = 0, b"\n"
    while piece := database.read(_PIECE_BYTES):
        size += len(piece)
        if size > _MOST_BYTES:
            raise OSError(f"only the first {_MOST_BYTES} bytes are read")
        piece = rest + piece
        end = piece.rfind(b"\n")
        yield piece[:end]
        rest = piece[end:][: _LONGEST_LINE + 1]
    yield rest


class _Search:
    """One way through the database. The patterns pass over the lines of no interest, which are most."""

    def __init__(self, wanted: Collection[tuple[int, int]]) -> None:
        self.names = dict.fromkeys(wanted, PciName())
        self._devices: dict[int, set[int]] = {}
        for vendor_id, device_id in wanted:
            self._devices.setdefault(vendor_id, set()).add(device_id)
        self._vendor_id, self._vendor, self._left = 0, "", set[int]()

    def run(self, pieces: Iterable[bytes]) -> None:
        """Take the names, up to the end or until nothing is left to find."""
        for piece in pieces:
            at = 0
            while (self._left or self._devices) and (found := self._pattern.search(piece, at)):
                at = self._take_device(found) if self._left else self._take_vendor(found)

    @property
    def _pattern(self) -> re.Pattern[bytes]:
        return _DEVICE_OR_END if self._left else _VENDOR

    def _take_vendor(self, found: re.Match[bytes]) -> int:
        """Name the vendor's devices, if wanted, and look for them next; where to go on."""
        self._vendor_id = int(found[1], 16)
        self._left = self._devices.pop(self._vendor_id, set())
        self._vendor = _name(found[2]) if self._left else ""  # a node has two or three of 1,850 vendors
        for device_id in self._left:
            self.names[self._vendor_id, device_id] = PciName(self._vendor)
        return found.end()

    def _take_device(self, found: re.Match[bytes]) -> int:
        """Name the device, if wanted, or leave the vendor at its end; where to go on."""
        if found[1] is None:
            self._left = set()
            return found.start()
        device_id = int(found[1], 16)
        if device_id in self._left:
            self._left.discard(device_id)
            self.names[self._vendor_id, device_id] = PciName(self._vendor, _name(found[2]))
        return found.end()


def _name(text: bytes) -> str:
    return printable(text.rstrip(b"\r").decode(errors="replace")) if len(text) <= _LONGEST_LINE else ""

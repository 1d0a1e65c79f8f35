"""Neighbours of links as facts of a scan: heard by ourselves, or read from lldpd. Imported only where the
setting ``lldp`` asks for it.

The last neighbours are in a file, so that a restart changes no slice: a switch announces itself every 30
seconds only. Commands on the node read the same file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dranet import files
from dranet.decoding import decode
from dranet.driver.publish import FactsReader
from dranet.errors import KernelError, ProtocolError
from dranet.inventory.cabling import find_wires
from dranet.kernel.discovery.scan import ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.kernel.lldp.listener import MAX_FRAMES_PER_READ, Listener
from dranet.kernel.lldp.lldpd import parse_neighbours
from dranet.kernel.lldp.message import Message
from dranet.kernel.lldp.neighbours import Neighbours
from dranet.model.facts import Link, LldpNeighbour, NodeFacts
from dranet.settings import Lldp, Settings

log = logging.getLogger(__name__)

FILE_NAME = "lldp.json"
SETTLE_SECONDS = 2.0
"""After a driver has started, the switches of all NICs announce themselves one after another."""
PAUSE_SECONDS = 1.0
"""After as many frames as one reading takes: a neighbour that floods costs no more than that."""

_FORMAT = 1
_MAX_FILE_BYTES = 1 << 20

Clock = Callable[[], float]


class _Document(Struct, forbid_unknown_fields=True):
    format: int
    neighbours: tuple[LldpNeighbour, ...]


class NeighbourFile:
    """``<state_dir>/lldp.json``. Best effort: what cannot be read or written is heard again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._written: tuple[LldpNeighbour, ...] | None = None

    def read(self) -> tuple[LldpNeighbour, ...]:
        """Blocking."""
        try:
            document = decode(files.read_file(self._path, _MAX_FILE_BYTES), _Document)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, neighbors are heard again: %s", self._path, error)
            return ()
        return document.neighbours if document.format == _FORMAT else ()

    def write(self, neighbours: tuple[LldpNeighbour, ...]) -> None:
        """If they have changed. Blocking."""
        if neighbours == self._written:
            return
        document = msgspec.to_builtins(_Document(_FORMAT, neighbours))
        if files.save(self._path, json.dumps(document).encode()):
            self._written = neighbours


class Found(Struct, frozen=True):
    neighbours: tuple[LldpNeighbour, ...] = ()
    warnings: tuple[str, ...] = ()


class Source(Protocol):
    def look(self, wires: Sequence[Link]) -> Found:
        """The neighbours of these links, and of those that pods have. Blocking."""


class ReaderWithNeighbours:
    """Adds the neighbours to the facts of another reader."""

    def __init__(self, reader: FactsReader, source: Source, offered_kinds: Iterable[str] = ()) -> None:
        self._reader = reader
        self._source = source
        self._offered_kinds = frozenset(offered_kinds)

    @property
    def is_live(self) -> bool:
        return self._reader.is_live

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self._reader.set_protected_addresses(targets)

    def read(self, changes: Changes = EVERYTHING, /) -> NodeFacts:
        facts = self._reader.read(changes)
        found = self._source.look(find_wires(facts, self._offered_kinds))
        return replace(facts, lldp_neighbours=found.neighbours, warnings=(*facts.warnings, *found.warnings))


class HeardNeighbours:
    """Listens on the links of the host. ``look`` is for the thread of a scan, ``run`` for the event loop."""

    def __init__(
        self, file: NeighbourFile, may_write: Callable[[], bool], clock: Clock = time.monotonic
    ) -> None:
        """``may_write``: whether this instance keeps the file."""
        self._file = file
        self._may_write = may_write
        self._clock = clock
        self._lock = threading.Lock()
        self._neighbours: Neighbours | None = None
        """Made by the first scan, before there is a listener."""
        self._reported: tuple[LldpNeighbour, ...] = ()
        """The neighbours of the last scan, or those for which the last scan was asked for."""
        self._listener: Listener | None = None
        self._has_listener: Callable[[], object] = lambda: None

    def look(self, wires: Sequence[Link]) -> Found:
        neighbours = self._recall()
        with self._lock:
            warnings = self._listen(wires)
            neighbours.follow({link.ifname: link.carrier for link in wires}, self._clock())
            neighbours.expire(self._clock())
            found = Found(neighbours.shown, (*warnings, *_describe_ambiguous(neighbours)))
        if self._may_write():
            self._file.write(found.neighbours)  # before it is published
        return found

    def _recall(self) -> Neighbours:
        """Without the lock while it reads: the event loop takes it for each frame."""
        if self._neighbours is None:
            neighbours = Neighbours(self._file.read())
            with self._lock:
                self._neighbours, self._reported = neighbours, neighbours.shown
        return self._neighbours

    def _listen(self, wires: Sequence[Link]) -> tuple[str, ...]:
        """A refusal is tried again at the next scan."""
        try:
            if self._listener is None:
                self._listener = Listener()
                self._has_listener()
            self._listener.join({link.ifindex: link.ifname for link in wires})
        except KernelError as error:
            hint = f": {error.hint}" if error.hint else ""
            return (f"{error.message}{hint}",)
        return ()

    async def run(self, on_change: Callable[[], None]) -> None:
        """Read frames, and end what has not been renewed, until cancelled. ``on_change``: the neighbours are
        others than before."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._has_listener = lambda: loop.call_soon_threadsafe(woken.set)
        listener: Listener | None = None
        try:
            while True:
                woken.clear()
                if listener is None and (listener := self._listener) is not None:
                    loop.add_reader(listener.fileno(), woken.set)
                is_full = listener is not None and self._hear(listener) >= MAX_FRAMES_PER_READ
                is_changed, deadline = self._expire()
                if is_changed:
                    await asyncio.sleep(SETTLE_SECONDS)
                    on_change()
                if is_full:
                    await asyncio.sleep(PAUSE_SECONDS)
                await _wait(woken, None if deadline is None else deadline - self._clock())
        finally:
            self._has_listener = lambda: None
            if listener is not None:
                loop.remove_reader(listener.fileno())

    def _hear(self, listener: Listener) -> int:
        """Returns how many frames were read."""
        odd = listener.odd_frames
        with self._lock:
            neighbours, now = self._neighbours, self._clock()
            assert neighbours is not None
            try:
                number = listener.read(
                    lambda heard: neighbours.hear(heard.ifname, heard.group, heard.message, now)
                )
            except KernelError as error:
                log.warning("%s", error)
                return MAX_FRAMES_PER_READ  # with a pause before the next try
        if listener.odd_frames > odd:
            log.debug("%d LLDP frames were not read, the last on %s", listener.odd_frames, listener.oddity)
        return number

    def _expire(self) -> tuple[bool, float | None]:
        """Whether the neighbours have changed since the last call, and when the next of them ends."""
        with self._lock:
            if self._neighbours is None:
                return False, None
            deadline = self._neighbours.expire(self._clock())
            before, self._reported = self._reported, self._neighbours.shown
            return before != self._reported, deadline

    def close(self) -> None:
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None


async def _wait(woken: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds if seconds is None else max(0.0, seconds)):
            await woken.wait()
    except TimeoutError:
        pass


def _describe_ambiguous(neighbours: Neighbours) -> Iterable[str]:
    for ifname, number in sorted(neighbours.ambiguous.items()):
        yield (
            f"{ifname}: {number} LLDP neighbors of which any may be the nearest, so none is "
            "published; is there a hub, or a relay that forwards LLDP?"
        )


class LldpdNeighbours:
    """Reads the file that the node writes with lldpd's own command. A link in a pod keeps its neighbour."""

    def __init__(self, path: Path, clock: Clock = time.time) -> None:
        self._path = path
        self._clock = clock
        self._neighbours = Neighbours()

    async def run(self, on_change: Callable[[], None]) -> None:
        """Nothing to do: each scan reads the file."""

    def close(self) -> None:
        """Nothing is open."""

    def look(self, wires: Sequence[Link]) -> Found:
        now, warnings = self._clock(), tuple[str, ...]()
        self._neighbours.follow({link.ifname: True for link in wires}, now)
        try:
            content, written = _read_whole(self._path)
            for one in parse_neighbours(content):
                known = one.neighbour
                left = int(min(one.ttl, written + one.ttl - now))
                if left > 0:
                    message = Message(
                        known.chassis_id, known.port_id, left, known.system_name, known.port_description
                    )
                    self._neighbours.replace(known.ifname, message, now)
        except OSError as error:
            warnings = (f"lldpd_file {self._path}: {error.strerror}; see docs/networking/rails.md",)
        except (ProtocolError, UnicodeDecodeError) as error:
            warnings = (f"lldpd_file {self._path} {error}; see docs/networking/rails.md",)
        self._neighbours.expire(now)
        return Found(self._neighbours.shown, warnings)


def _read_whole(path: Path) -> tuple[str, float]:
    """The text, and when it was written (unix time)."""
    with path.open("rb") as file:
        content, written = file.read(_MAX_FILE_BYTES + 1), os.fstat(file.fileno()).st_mtime
    if len(content) > _MAX_FILE_BYTES:
        raise ProtocolError(f"has more than {_MAX_FILE_BYTES} bytes")
    return content.decode(), written


def open_source(settings: Settings, may_write: Callable[[], bool]) -> HeardNeighbours | LldpdNeighbours:
    """For the daemon."""
    if settings.lldp is Lldp.LLDPD:
        return LldpdNeighbours(settings.lldpd_file)
    return HeardNeighbours(NeighbourFile(settings.state_dir), may_write)


class RecordedNeighbours:
    """What the running driver knows, for a command on the node."""

    def __init__(self, file: NeighbourFile) -> None:
        self._file = file

    def look(self, _: Sequence[Link]) -> Found:
        return Found(self._file.read())


def read_for_command(reader: FactsReader, settings: Settings) -> FactsReader:
    """The facts as the driver of this node has them."""
    source: Source = RecordedNeighbours(NeighbourFile(settings.state_dir))
    if settings.lldp is Lldp.LLDPD:
        source = LldpdNeighbours(settings.lldpd_file)
    return ReaderWithNeighbours(reader, source, settings.offer_link_kinds)

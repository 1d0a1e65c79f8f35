"""The folder of claim records: one file for each claim, written atomically, watched by a generation number.

========================  ==============================================================
``UID.json``              the record: JSON, with the version of its shape as ``version``
``UID.N.unreadable``      a record that could not be decoded, set aside
``UID.json.tmp``          a record being written; removed at the next opening
``generation``            8 bytes; odd while records are being replaced
========================  ==============================================================

Several processes share the folder. They write while they hold the lock file next to it. They read without a
lock: the number in ``generation`` changes with each write, so that a look costs one ``pread(2)``.

Unknown fields of a record are ignored and absent ones take their default, because another version of the
driver may have written it (docs/decisions/018).
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from dranet import files
from dranet.decoding import decode
from dranet.failpoints import Failpoint, reached
from dranet.model.plan import RECORD_VERSION, PreparedClaim

Kind = TypeVar("Kind")

_ERROR = re.compile(r"(?P<why>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+|\.\.\.)\]")


class RecordError(ValueError):
    """A text is not a record of the expected class. ``path`` leads to the offending value."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.')}: {why}" if path else why)
        self.why = why
        self.path = path


def encode_record(record: object) -> str:
    """Encode a record of structs, tuples, mappings with text keys, enums and plain values as JSON.

    Raises:
        ValueError: a text in it is not valid Unicode.
    """
    return _ENCODER.encode(record).decode()


def decode_record(kind: type[Kind], text: str) -> Kind:
    """Decode a record of that class; raises RecordError."""
    try:
        record = decode(text, kind)
    except msgspec.ValidationError as error:
        raise _explain(kind, text, str(error)) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error
    assert isinstance(record, kind)
    return record


def _encode_mapping(value: object) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} cannot be part of a record")
    return dict(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_mapping)


def _explain(kind: type[Any], text: str, message: str) -> RecordError:
    """Translate msgspec's message, and name the keys that its path leaves out."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # msgspec stops at the first wrong value, before the end
        return RecordError(f"no JSON: {error}")
    found = _ERROR.fullmatch(message)
    assert found is not None
    path = _name_keys(kind, document, message, found["path"] or "")
    missing = _MISSING.fullmatch(found["why"])
    if missing:
        return RecordError("is missing", f"{path}.{missing[1]}")
    return RecordError(found["why"][:1].lower() + found["why"][1:], path)


def _name_keys(kind: type[Any], document: Any, message: str, path: str) -> str:
    """Replace each ``[...]`` of a path by the key. It is the last one of the shortest beginning of its
    mapping that still gives the error."""
    named, value = "", document
    for step in _STEP.finditer(path):
        key: Any = step["field"]
        if step["index"] == "...":
            items = list(value.items())

            def is_wrong(count: int, holder: dict[str, Any] = value, items: Any = items) -> bool:
                holder.clear()
                holder.update(items[:count])
                return _message_of(kind, document) == message

            count = bisect_left(range(1, len(items)), True, key=is_wrong) + 1
            is_wrong(count)
            key = items[count - 1][0]
        elif step["index"]:
            key = int(step["index"])
        named += f".{key}" if step["field"] else f"[{key!r}]"
        value = value[key]
    return named


def _message_of(kind: type[Any], document: object) -> str:
    try:
        decode(json.dumps(document), kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


_RECORD = ".json"
_TEMPORARY = ".tmp"
_UNREADABLE = ".unreadable"
_GENERATION = "generation"
_GENERATION_BYTES = 8
_MAX_RECORD_BYTES = 16 << 20
_PROBE_BYTES = 4096
_NO_STAMP = (0, 0, 0)
_STEP_SECONDS = 0.2
"""How long a reader waits for another process to finish replacing records. Renames take microseconds."""
_AGAIN_SECONDS = 0.0005


Stamp = tuple[int, int, int]
"""Inode number, time of writing in nanoseconds and size: equal only for the same content."""


class Row(Struct, frozen=True):
    """The file of a record."""

    stamp: Stamp
    text: str = ""
    """Empty if the caller knows the stamp."""
    failure: str = ""
    """Why the file cannot be read, and stays where it is."""


Rows = Mapping[str, Row]
"""By claim UID."""


class UnreadableRecord(Struct, frozen=True):
    claim_uid: str
    text: str
    why: str
    at: str = ""
    """When it was set aside, in UTC; empty while it has not been."""
    file: Path | None = None
    """Where it was set aside."""


class RecordFolder:
    """Not thread-safe, except :meth:`read`, :meth:`read_generation` and :meth:`read_unreadable`. Methods
    raise ``files.NotOurs`` if something else has one of the names, else OSError if the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        """Descriptor of the generation file."""

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def open(self) -> None:
        """Make the folder and the generation file where they are missing; repeatable."""
        files.make_folder(self.path)
        if self._fd is None:
            files.make_file(self.path / _GENERATION)
            self._fd = files.open_file(self.path / _GENERATION, os.O_RDWR)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    # --- reading ----------------------------------------------------------------------------------------

    def read_generation(self) -> int:
        """A number that another process's write changes; odd while one replaces records, or died doing so."""
        return int.from_bytes(os.pread(self._fd, _GENERATION_BYTES, 0)) if self._fd is not None else 0

    def read(self, known: Mapping[str, Stamp], seen: int = -1) -> tuple[int, Rows]:
        """Return the generation and all records as they are in it; the text only of those not yet known.
        Waits a moment for a process that is replacing records, unless it died in generation ``seen``."""
        give_up = time.monotonic() + _STEP_SECONDS
        while True:
            before = self.read_generation()
            rows = dict(self._read_rows(known))
            is_settled = before % 2 == 0 and before == self.read_generation()
            if is_settled or before == seen or time.monotonic() >= give_up:
                return before, rows
            time.sleep(_AGAIN_SECONDS)

    def _read_rows(self, known: Mapping[str, Stamp]) -> Iterator[tuple[str, Row]]:
        for entry in sorted(self._list(_RECORD), key=lambda entry: entry.name):
            claim_uid = unquote(entry.name.removesuffix(_RECORD))
            with suppress(FileNotFoundError):  # deleted since it was listed
                stamp = _stamp_of(entry.stat(follow_symlinks=False))
                is_known = known.get(claim_uid) == stamp
                yield claim_uid, Row(stamp) if is_known else self._read_row(entry.name, stamp)

    def _read_row(self, name: str, stamp: Stamp) -> Row:
        try:
            content = files.read_file(self.path / name, _MAX_RECORD_BYTES)
        except files.NotOurs as error:
            return Row(stamp, failure=str(error.strerror))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return Row(stamp, failure=os.strerror(errno.EIO))
        return Row(stamp, content.decode(errors="surrogateescape"))

    def _list(self, end: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(end):
                    yield entry

    def count_unreadable(self) -> int:
        return sum(1 for _ in self._list(_UNREADABLE))

    def read_unreadable(self, claim_uid: str = "") -> list[UnreadableRecord]:
        """Return the records that were set aside, the newest first; all, or those of one claim."""
        found: list[UnreadableRecord] = []
        for path in self._find_unreadable(claim_uid):
            with suppress(FileNotFoundError):
                found.append(_read_unreadable(path))
        return found

    def _find_unreadable(self, claim_uid: str) -> list[Path]:
        found = [(*_split_unreadable(entry.name), Path(entry.path)) for entry in self._list(_UNREADABLE)]
        numbered = [(number, path) for uid, number, path in found if claim_uid in ("", uid)]
        return [path for _, path in sorted(numbered, reverse=True)]

    def find_removed(self, claim_uids: Collection[str]) -> list[str]:
        """Return which of these claims have no file; all, if the folder is gone or another one."""
        try:
            is_ours = self._fd is not None and os.path.samestat(
                os.fstat(self._fd), (self.path / _GENERATION).lstat()
            )
            there = {entry.name for entry in self._list(_RECORD)} if is_ours else set()
        except FileNotFoundError:
            is_ours, there = False, set()
        missing = [uid for uid in claim_uids if _name_of(uid) not in there]
        return missing if is_ours else missing or [""]

    @property
    def size_bytes(self) -> int:
        """Total size of the files; 0 without a folder."""
        size = 0
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
        return size

    # --- writing, with the lock -------------------------------------------------------------------------

    def write(
        self, texts: Mapping[str, str], gone: Collection[str], *, durable: bool
    ) -> tuple[int, Mapping[str, Stamp]]:
        """Replace and remove records in one step; return the new generation, and the stamps of ``texts``.

        Nothing changes where a record cannot be written in full. Without ``durable`` the step survives a
        kill, but a power cut may undo it, or leave an empty file. Other processes see new records before
        they are synced, and see them go if that fails.
        """
        made = [name for name in map(_name_of, texts) if not files.is_file(self.path / name)]
        try:
            stamps = {uid: self._stage(uid, text, made, durable=durable) for uid, text in texts.items()}
            self._step_to(odd=True)
        except OSError:
            self._remove_staged(texts)
            raise
        try:
            self._replace(texts, gone)
        except OSError:
            self._take_back(made)
            self._remove_staged(texts)
            raise
        finally:
            generation = self._step_to(odd=False)
        if durable:
            self._sync(made)
        return generation, stamps

    def _sync(self, made: Collection[str]) -> None:
        """One commit of a journaling file system: it has the content of the new files and their names."""
        try:
            for name in made:
                files.sync_file(self.path / name)
            files.sync_folder(self.path)
        except OSError:
            self._step_to(odd=True)
            self._take_back(made)
            self._step_to(odd=False)
            raise

    def _stage(self, claim_uid: str, text: str, made: Collection[str], *, durable: bool) -> Stamp:
        """Write a record under its temporary name; synced only if another one is to be replaced by it."""
        name = _name_of(claim_uid)
        temporary = self.path / f"{name}{_TEMPORARY}"
        files.stage_file(self.path / name, temporary, text.encode(), durable=durable and name not in made)
        now = time.time_ns()
        os.utime(temporary, ns=(now, now))  # the kernel's own clock may have the same time for two writes
        reached(Failpoint.MIGRATE_STAGED)
        return _stamp_of(temporary.lstat())

    def _remove_staged(self, texts: Mapping[str, str]) -> None:
        for claim_uid in texts:
            with suppress(OSError):
                files.remove_file(self.path / f"{_name_of(claim_uid)}{_TEMPORARY}")

    def _replace(self, texts: Mapping[str, str], gone: Collection[str]) -> None:
        for name in map(_name_of, texts):
            (self.path / f"{name}{_TEMPORARY}").replace(self.path / name)
            reached(Failpoint.MIGRATE_REPLACED)
        for claim_uid in gone:
            files.remove_file(self.path / _name_of(claim_uid))

    def _take_back(self, made: Collection[str]) -> None:
        """Remove records whose writing failed: they were not promised, so none may be found later."""
        for name in made:
            with suppress(OSError):
                (self.path / name).unlink()

    def _step_to(self, *, odd: bool) -> int:
        generation = self.read_generation() + 1
        if generation % 2 != odd:  # another process died within its step
            generation += 1
        if self._fd is not None:
            os.pwrite(self._fd, generation.to_bytes(_GENERATION_BYTES), 0)
        return generation

    def try_to_write(self) -> None:
        """Write a file and remove it, to see whether the disk takes what it is given."""
        probe = self.path / f"probe{_TEMPORARY}"
        try:
            files.stage_file(probe, probe, bytes(_PROBE_BYTES), durable=True)
        finally:
            with suppress(OSError):
                files.remove_file(probe)

    def tidy_up(self) -> None:
        """Remove what a kill has left: staged files, and an odd generation."""
        for entry in list(self._list(_TEMPORARY)):
            with suppress(files.NotOurs):
                files.remove_file(Path(entry.path))
        if self.read_generation() % 2:
            self._step_to(odd=False)

    def set_aside(self, claim_uid: str, text: str) -> bool:
        """Rename a record that cannot be decoded; return whether it still had this text. An empty file is
        removed: a power cut leaves it, and the record was of an earlier boot."""
        path = self.path / _name_of(claim_uid)
        try:
            if self._read_row(path.name, _NO_STAMP) != Row(_NO_STAMP, text):
                return False
        except FileNotFoundError:
            return False
        last = next(iter(self._find_unreadable(claim_uid)), None)
        number = 1 + (_split_unreadable(last.name)[1] if last is not None else 0)
        self._step_to(odd=True)
        if text:
            path.rename(path.with_name(f"{path.name.removesuffix(_RECORD)}.{number}{_UNREADABLE}"))
        else:
            path.unlink()
        self._step_to(odd=False)
        return True


def encode_row(text: str) -> str:
    """Return the content of a record's file: the JSON of a record, with its version."""
    return f'{{"version":{RECORD_VERSION},{text[1:]}'


def read_row_version(text: str) -> int:
    """Return the version of a record; raises RecordError."""
    try:
        version = json.loads(text.encode()).get("version")
    except (AttributeError, ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error
    if type(version) is not int:
        raise RecordError("is missing", ".version")
    return version


def decode_row(claim_uid: str, text: str) -> PreparedClaim:
    """Return the record that a file contains, unless it is another claim's; raises RecordError."""
    record = decode_record(PreparedClaim, text)
    if record.claim.uid != claim_uid:
        raise RecordError(f"is {record.claim.uid!r}, and the file is of {claim_uid!r}", ".claim.uid")
    return record


def _name_of(claim_uid: str) -> str:
    return f"{quote(claim_uid, safe='')}{_RECORD}"


def _stamp_of(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _split_unreadable(name: str) -> tuple[str, int]:
    """The claim UID and the number in ``UID.N.unreadable``."""
    quoted, _, number = name.removesuffix(_UNREADABLE).rpartition(".")
    return unquote(quoted), int(number) if number.isdecimal() else 0


def _read_unreadable(path: Path) -> UnreadableRecord:
    claim_uid, _ = _split_unreadable(path.name)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(path.lstat().st_ctime))
    try:
        text = files.read_file(path, _MAX_RECORD_BYTES).decode(errors="replace")
    except files.NotOurs as error:
        return UnreadableRecord(claim_uid, "", str(error.strerror), at, path)
    return UnreadableRecord(claim_uid, text, find_fault(claim_uid, text), at, path)


def find_fault(claim_uid: str, text: str) -> str:
    """Return why a text is no record of the claim; empty where it is one."""
    try:
        read_row_version(text)
        decode_row(claim_uid, text)
    except RecordError as error:
        return str(error)
    return ""


_MOST_LEFT_OUT = 200
_PATH_STEP = re.compile(
    r"\.(?P<field>\w+)|\[(?P<item>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
)


def decode_partially(text: str) -> PreparedClaim | None:
    """Return the record without its unreadable parts. ``None`` if too little is left to restore devices: the
    pod, the namespace and the host state of each link are needed."""
    for _ in range(_MOST_LEFT_OUT):
        try:
            record = decode_record(PreparedClaim, text)
        except RecordError as error:
            shorter = _leave_out(text, error)
            if shorter is None:
                return None
            text = shorter
        else:
            return record if _is_enough(record) else None
    return None


def _is_enough(record: PreparedClaim) -> bool:
    known = [plan.is_on_top or (plan.host is not None and bool(plan.pod_ifname)) for plan in record.plans]
    return bool(record.netns_path) and bool(known) and all(known)


def _leave_out(text: str, error: RecordError) -> str | None:
    """Drop what the error names: a field, which then takes its default, or the object that lacks a required
    field. Return ``None`` if nothing would be left."""
    steps = [_key_of(match) for match in _PATH_STEP.finditer(error.path)]
    if error.why == "is missing":
        steps = steps[:-1]
    document: Any = json.loads(text) if steps else None  # an error without a path: it may not be JSON
    while steps:
        if _remove(document, steps):
            return json.dumps(document)
        steps = steps[:-1]
    return None


def _remove(document: Any, steps: list[str | int]) -> bool:
    holder = document
    try:
        for step in steps[:-1]:
            holder = holder[step]
        del holder[steps[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _key_of(match: re.Match[str]) -> str | int:
    if match["item"] is not None:
        return int(match["item"])
    if match["key"] is not None:
        return match["key"][1:-1]
    return match["field"]

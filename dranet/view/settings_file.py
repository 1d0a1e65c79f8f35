"""A YAML or JSON file that a setting names and that may change while we run, such as a mounted ConfigMap: its
content, the line of each value, and a stamp by which a change is noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet.errors import SettingsError

MAX_FILE_BYTES = 1 << 20
"""A ConfigMap cannot hold more either."""

Stamp = tuple[int, ...]
"""Which file it is, and as of when."""
Place = tuple[str | int, ...]
"""Keys and indexes from the top: ``("attributes", 2, "set", "rail")``."""


class Document(Struct, frozen=True):
    flag: str
    file: Path
    data: object
    lines: Mapping[Place, int]
    stamp: Stamp

    def describe(self, path: Place, place: str, text: str) -> str:
        """A problem with the file and, where it is known, the line."""
        lines = self.lines
        known = (lines[part] for n in range(len(path), -1, -1) if (part := path[:n]) in lines)
        line = next(known, 0)
        return f"{self.flag} {self.file}{f':{line}' if line else ''}: {place}: {text}"


def read_document(flag: str, file: Path) -> Document:
    """The file as it is now. ``flag`` names the setting in errors. Raises SettingsError."""
    try:
        text, stamp = _read_text(file)
        data, lines = _parse_json(text) if file.suffix == ".json" else _parse_yaml(text)
    except SettingsError as error:
        raise SettingsError(f"{flag} {file}{error.message}") from error.__cause__
    return Document(flag, file, data, lines, stamp)


def read_stamp(file: Path) -> Stamp:
    """Changes when the file does, also by a link to it that is pointed elsewhere, and when it vanishes."""
    try:
        return _stamp_of(file.stat())
    except OSError as error:
        return (error.errno or -1,)


def _stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read_text(file: Path) -> tuple[str, Stamp]:
    try:
        # does not block: a pipe without a writer would delay every scan
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            stamp = _stamp_of(os.fstat(stream.fileno()))
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode(), stamp
    except OSError as error:
        raise SettingsError(f": {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(": not UTF-8 text") from error
    raise SettingsError(f": has more than {MAX_FILE_BYTES} bytes")


def _parse_json(text: str) -> tuple[object, Mapping[Place, int]]:
    try:
        return json.loads(text, object_pairs_hook=_without_doubles), {}
    except (ValueError, RecursionError) as error:
        raise SettingsError(f": not JSON: {error}") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {', '.join(key for key, _ in pairs)}")
    return found


def _parse_yaml(text: str) -> tuple[object, Mapping[Place, int]]:
    import yaml  # costs time and memory that most nodes never pay

    try:
        _refuse_aliases(yaml.parse(text, Loader=yaml.SafeLoader))
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader), ()))
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f": not YAML: {error}") from error


def _refuse_aliases(events: Iterable[Any]) -> None:
    """With them a small file can stand for one that fills the memory."""
    for event in events:
        if getattr(event, "anchor", None):
            raise ValueError(f"line {event.start_mark.line + 1}: write out what & and * stand for")


def _lines(node: Any, path: Place) -> Iterator[tuple[Place, int]]:
    """Line of each place as deep as rules go. Raises ValueError for a key that occurs twice."""
    if node is None or len(path) > 4:
        return
    yield path, node.start_mark.line + 1
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            yield from _lines(child, (*path, index))
    elif node.id == "mapping":
        seen: set[str] = set()
        for key, child in node.value:
            name = str(key.value) if key.id == "scalar" else ""
            if name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: the key {name} occurs twice")
            seen.add(name)
            yield (*path, name), key.start_mark.line + 1
            yield from _lines(child, (*path, name))

"""The file of the operator's own attributes, read whole: its rules, or every problem with file and line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dranet.errors import DranetError, SettingsError
from dranet.inventory.rules import OwnAttributes, RuleProblem, parse_rules
from dranet.inventory.rules import Path as Place

MAX_FILE_BYTES = 1 << 20
"""A ConfigMap cannot hold more either."""

Stamp = tuple[int, ...]
"""Which file it is, and as of when."""


def read_rules(file: Path, driver: str) -> tuple[OwnAttributes, Stamp]:
    """The rules of the file as it is now; ``driver`` is what expressions know as ``device.driver``.

    Raises:
        SettingsError: every problem of the file, each with its place; or an expression needs the CEL engine
            and it is not installed.
    """
    text, stamp = _read_text(file)
    data, lines = _parse_json(file, text) if file.suffix == ".json" else _parse_yaml(file, text)
    try:
        own, problems = parse_rules(data, driver)
    except DranetError as error:
        raise SettingsError(f"--attributes-file {file}: {error.message}", hint=error.hint) from error
    if problems:
        raise SettingsError("; ".join(_describe(file, lines, problem) for problem in problems))
    return own, stamp


def _describe(file: Path, lines: Mapping[Place, int], problem: RuleProblem) -> str:
    known = (lines[path] for n in range(len(problem.path), -1, -1) if (path := problem.path[:n]) in lines)
    line = next(known, 0)
    return f"--attributes-file {file}{f':{line}' if line else ''}: {problem.place}: {problem.text}"


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
        with open(file, "rb", opener=_open_at_once) as stream:
            stamp = _stamp_of(os.fstat(stream.fileno()))
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode(), stamp
    except OSError as error:
        raise SettingsError(f"--attributes-file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"--attributes-file {file}: not UTF-8 text") from error
    raise SettingsError(f"--attributes-file {file}: has more than {MAX_FILE_BYTES} bytes")


def _open_at_once(path: str, flags: int) -> int:
    """Do not block: a pipe without a writer would delay every scan."""
    return os.open(path, flags | os.O_NONBLOCK)


def _parse_json(file: Path, text: str) -> tuple[object, Mapping[Place, int]]:
    try:
        return json.loads(text, object_pairs_hook=_without_doubles), {}
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--attributes-file {file}: not JSON: {error}") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {', '.join(key for key, _ in pairs)}")
    return found


def _parse_yaml(file: Path, text: str) -> tuple[object, Mapping[Place, int]]:
    import yaml  # costs time and memory that most nodes never pay

    try:
        _refuse_aliases(yaml.parse(text, Loader=yaml.SafeLoader))
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader), ()))
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"--attributes-file {file}{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"--attributes-file {file}: not YAML: {error}") from error


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

"""Text that may be hostile -> JSON values: YAML of several documents, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dranet.errors import SettingsError

STANDARD_INPUT = "-"
MAX_BYTES = 64 * 1024 * 1024
"""Slices of a thousand nodes with twenty devices each are about 40 MiB."""

MAX_DEPTH = 100
"""The API server refuses deeper objects; the YAML library ends the process at some ten thousand."""

MAX_VALUES = 10_000_000
"""Values of one document. With aliases a few lines of YAML can mean more values than there are atoms."""

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_OF_HELM = "render a template of Helm first: helm template ... | dranet validate -"
_ENDINGS = (".yaml", ".yml", ".json")
_WORDS = {"datetime": "a date", "date": "a date", "bytes": "binary", "set": "a set"}


def expand(path: str) -> Iterator[str]:
    """Iterate over the file itself, or over a folder's YAML and JSON files, sorted by name.

    Raises:
        SettingsError: a folder without such files.
    """
    if path == STANDARD_INPUT or not Path(path).is_dir():
        yield path
        return
    files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in _ENDINGS)
    if not files:
        raise SettingsError(f"{path}: the folder has no file that ends in {', '.join(_ENDINGS)}")
    yield from files


def name_of(path: str) -> str:
    """The name of a file in error messages."""
    return "standard input" if path == STANDARD_INPUT else path


class Document(NamedTuple):
    """One document of a file."""

    place: str
    """File and number, for people."""
    value: Any
    text: str


def read_texts(path: str) -> list[Document]:
    """The documents of one file, each with its own text. Text whose limits are not certain is written again.

    Raises:
        SettingsError: as :func:`read_documents`.
    """
    from dranet.view.node_view import to_yaml

    name = name_of(path)
    text = _read(path, name)
    found = _read_values(text, name)
    texts = dict(enumerate(_split(text), 1))
    return [
        Document(
            f"{name}, document {number}",
            value,
            texts[number] if _is_text_of(texts.get(number, ""), value) else to_yaml([value]),
        )
        for number, value in found
    ]


def _split(text: str) -> list[str]:
    """The text of each YAML document, with the comments before it."""
    import yaml

    from dranet.desk.cli.object_yaml import TextLoader

    if _looks_like_json(text):
        return [text]
    events = yaml.parse(text, Loader=TextLoader)
    marks = (event.start_mark for event in events if isinstance(event, yaml.DocumentStartEvent))
    starts = [mark.line for mark in marks if mark]
    lines = text.split("\n")
    limits = [0, *starts[1:], len(lines)]
    return ["\n".join(lines[a:b]) for a, b in pairwise(limits)]


def _is_text_of(text: str, value: Any) -> bool:
    try:
        return not text.startswith("%") and _parse(text, "") == [value]
    except SettingsError:
        return False


def read_documents(path: str) -> list[tuple[int, Any]]:
    """The documents of one file, each with its number from 1; those without content are left out.

    Raises:
        SettingsError: unreadable, too large, neither YAML nor JSON, or a document that cannot be JSON; names
            the file, the document and the cause.
    """
    name = name_of(path)
    return _read_values(_read(path, name), name)


def _read_values(text: str, name: str) -> list[tuple[int, Any]]:
    documents = [(n, value) for n, value in enumerate(_parse(text, name), 1) if value is not None]
    for number, value in documents:
        try:
            _check_plain(value)
        except ValueError as error:
            raise SettingsError(f"{name}, document {number}: {error}") from None
    return documents


def _read(path: str, name: str) -> str:
    try:
        data = _read_bytes(path)
        if len(data) > MAX_BYTES:
            raise SettingsError(f"{name}: longer than {MAX_BYTES >> 20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{name}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name}: not UTF-8 text") from error


def _read_bytes(path: str) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(path).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _parse(text: str, name: str) -> list[Any]:
    if _looks_like_json(text):  # what programs write; ten times as fast as the same as YAML
        try:
            return [json.loads(text, parse_constant=_refuse_constant)]
        except (ValueError, RecursionError):
            pass  # YAML in braces is no JSON, and YAML names the place of what is wrong
    return _parse_yaml(text, name)


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _parse_yaml(text: str, name: str) -> list[Any]:
    import yaml

    from dranet.desk.cli.object_yaml import TextLoader

    try:
        _check_depth(text, name)
        return list(yaml.load_all(text, Loader=TextLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        hint = _OF_HELM if "{{" in text else ""
        raise SettingsError(f"{place}: not YAML: {error.problem or error.context}", hint=hint) from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())[:200]}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{name}: not YAML: {error}") from error


def _check_depth(text: str, name: str) -> None:
    """Refuse deep documents before the library nests its own calls as deeply."""
    import yaml

    from dranet.desk.cli.object_yaml import TextLoader

    depth, document = 0, 0
    for event in yaml.parse(text, Loader=TextLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            document += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SettingsError(f"{name}, document {document}: {_TOO_DEEP}")


def _check_plain(value: Any) -> None:
    """Check that the value can be JSON. Repetitions count: an alias counts as all that it names.

    Raises:
        ValueError: something else, too much or too deep.
    """
    size, height = _measure(value, MAX_DEPTH, {})
    if size > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values, with what aliases repeat")
    if height > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)


def _measure(value: Any, room: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values, and how deep; each mapping and list is looked at once."""
    if isinstance(value, str | int | float | bool | None):
        return 1, 0
    if id(value) in known:
        return known[id(value)]
    if not room:
        raise ValueError(_TOO_DEEP)
    measured = [_measure(item, room - 1, known) for item in _parts(value)]
    known[id(value)] = 1 + sum(size for size, _ in measured), 1 + max((h for _, h in measured), default=0)
    return known[id(value)]


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{_WORDS.get(type(value).__name__, type(value).__name__)} has no place here")  # noqa: TRY004
    odd = next((key for key in value if not isinstance(key, str)), None)
    if odd is not None:
        raise ValueError(f"the key {odd!r} is no text (put quotes around it)")
    return value.values()

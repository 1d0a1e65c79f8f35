"""Records as JSON and back: what the store keeps on disk.

Documents from outside are read by others (``capture``, ``network``), which report every error. Here unknown
fields are ignored and absent ones take their default, because another version of the driver may have written
the record (docs/decisions/018).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

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
    """Decode a record of that class.

    Raises:
        RecordError: the text does not contain one.
    """
    try:
        record = _decoder_of(kind).decode(text)
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


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder_of(kind: type) -> msgspec.json.Decoder[Any]:
    return _DECODERS.get(kind) or _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))


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
        _decoder_of(kind).decode(json.dumps(document))
    except msgspec.ValidationError as error:
        return str(error)
    return ""

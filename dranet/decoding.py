"""Decoding into structs, for any number of threads.

msgspec looks at a Struct class when it first decodes into it, and lets other threads use the class before it
has finished: the process ends with SIGSEGV (msgspec 0.22). So one thread at a time makes a decoder, and the
classes in it are complete from then on.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}
_lock = threading.Lock()


def decode(content: bytes | str, kind: type[T]) -> T:
    """Decode JSON.

    Raises:
        msgspec.ValidationError: a value is not what ``kind`` has at its place.
        msgspec.DecodeError: no JSON; it and the former are ValueErrors.
        RecursionError: it is nested too deeply.
    """
    return cast("T", _find_decoder(kind).decode(content))


def convert(document: object, kind: type[T]) -> T:
    """Convert mappings, lists and plain values; raises msgspec.ValidationError, a ValueError."""
    _find_decoder(kind)
    return msgspec.convert(document, kind)


def _find_decoder(kind: type) -> msgspec.json.Decoder[Any]:
    if kind not in _DECODERS:
        with _lock:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]

"""Decode JSON and plain values into structs, safely in several threads.

msgspec inspects a Struct class when it first decodes into it, and lets other threads use the class before the
inspection is complete, which crashes the process (SIGSEGV, msgspec 0.22). Here one thread at a time makes a
decoder; the classes that it needs are complete from then on.
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
        msgspec.ValidationError: a value does not fit ``kind``. A ValueError.
        msgspec.DecodeError: the content is not JSON. A ValueError.
        RecursionError: the content is nested too deeply.
    """
    return cast("T", _find_decoder(kind).decode(content))


def convert(document: object, kind: type[T]) -> T:
    """Convert mappings, lists and plain values.

    Raises:
        msgspec.ValidationError: a value does not fit ``kind``. A ValueError.
    """
    _find_decoder(kind)  # for the classes: msgspec.convert would inspect them
    return msgspec.convert(document, kind)


def _find_decoder(kind: type) -> msgspec.json.Decoder[Any]:
    if kind not in _DECODERS:
        with _lock:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]

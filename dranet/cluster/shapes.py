"""Read fields of API JSON that may have any shape: the value, or a ProtocolError that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

from dranet.cluster.client import JsonObject
from dranet.errors import ProtocolError

_T = TypeVar("_T")


def get_field(parent: JsonObject, key: str, kind: type[_T]) -> _T | None:
    """A field of a known JSON type; ``None`` where it is absent or null.

    Raises:
        ProtocolError: it is of another type.
    """
    value = parent.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise ProtocolError(f"API object: field {key!r} is a {type(value).__name__}, not a {kind.__name__}")


def get_object(parent: JsonObject, key: str) -> JsonObject:
    """Empty where it is absent."""
    return get_field(parent, key, dict) or {}


def get_text(parent: JsonObject, key: str) -> str:
    """Empty where it is absent."""
    return get_field(parent, key, str) or ""


def get_items(parent: JsonObject, key: str) -> list[JsonObject]:
    """A list of objects, empty where it is absent."""
    return _list_of(parent, key, dict)


def get_texts(parent: JsonObject, key: str) -> tuple[str, ...]:
    """A list of texts, empty where it is absent."""
    return tuple(_list_of(parent, key, str))


def _list_of(parent: JsonObject, key: str, kind: type[_T]) -> list[_T]:
    items: list[Any] = get_field(parent, key, list) or []
    for item in items:
        if not isinstance(item, kind):
            raise ProtocolError(
                f"API object: an entry of {key!r} is a {type(item).__name__}, not a {kind.__name__}"
            )
    return items

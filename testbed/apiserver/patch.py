"""JSON merge patch (RFC 7396) and JSON patch (RFC 6902) for the API server stand-in."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from dranet.desk.kubeapi.errors import bad_request
from dranet.desk.kubeapi.objects import JsonObject


def merge_patch(target: Any, patch: Any) -> Any:
    """``target`` with ``patch`` merged into it; neither is changed."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: JsonObject, operations: Sequence[Any]) -> JsonObject:
    """``target`` after all operations, or a 400 or 422 like refusal; ``target`` is not changed."""
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            _apply_operation(document, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise bad_request(f"json patch operation {operation!r} cannot be applied: {error!r}") from error
    return document


def _apply_operation(document: JsonObject, operation: Mapping[str, Any]) -> None:
    name = operation["op"]
    if name == "remove":
        _remove(document, operation["path"])
    elif name in ("add", "replace"):
        _write(document, operation["path"], operation["value"], insert=name == "add")
    elif name == "test":
        if _read(document, operation["path"]) != operation["value"]:
            raise ValueError("test failed")
    elif name in ("copy", "move"):
        value = copy.deepcopy(_read(document, operation["from"]))
        if name == "move":
            _remove(document, operation["from"])
        _write(document, operation["path"], value, insert=True)
    else:
        raise ValueError(f"unknown op {name!r}")


def _split_pointer(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise ValueError(f"not a JSON pointer below the document: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _step(container: Any, part: str) -> Any:
    return container[int(part)] if isinstance(container, list) else container[part]


def _read(document: Any, pointer: str) -> Any:
    for part in _split_pointer(pointer):
        document = _step(document, part)
    return document


def _parent(document: Any, pointer: str) -> tuple[Any, str]:
    *parents, last = _split_pointer(pointer)
    for part in parents:
        document = _step(document, part)
    return document, last


def _remove(document: Any, pointer: str) -> None:
    parent, last = _parent(document, pointer)
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]


def _write(document: Any, pointer: str, value: Any, *, insert: bool) -> None:
    parent, last = _parent(document, pointer)
    if isinstance(parent, dict):
        if not insert and last not in parent:
            raise KeyError(last)
        parent[last] = value
    elif insert:
        parent.insert(len(parent) if last == "-" else int(last), value)
    else:
        parent[int(last)] = value

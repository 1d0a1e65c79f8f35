"""Field ownership and server-side apply, as far as the served kinds need it.

Fields are paths in the spelling of ``metadata.managedFields[].fieldsV1`` (``f:status``, ``k:{...}`` for
an entry of a keyed list, ``v:...`` for an entry of a set). Sources: KEP-555 and the
``structured-merge-diff`` rules; the list types come from the markers in ``k8s.io/api``. A list that is
not in the tables below is atomic: owned and replaced as a whole.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.desk.kubeapi.kinds import Kind
from dranet.desk.kubeapi.objects import JsonObject

FieldPath = tuple[str, ...]
Owners = Mapping["Manager", frozenset[FieldPath]]


@dataclass(frozen=True, slots=True)
class Manager:
    """An owner of fields: one entry of ``managedFields``. ``operation`` is ``Apply`` or ``Update``."""

    name: str
    operation: str
    subresource: str = ""


_SET: tuple[str, ...] = ()
_COMMON_LISTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("metadata", "ownerReferences"): ("uid",),
    ("metadata", "finalizers"): _SET,
}
_KEYED_LISTS: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "resourceclaims": {
        ("status", "devices"): ("driver", "device", "pool", "shareID"),
        ("status", "devices", "conditions"): ("type",),
        ("status", "reservedFor"): ("uid",),
    },
    "pods": {
        ("spec", "containers"): ("name",),
        ("spec", "initContainers"): ("name",),
        ("spec", "resourceClaims"): ("name",),
        ("status", "conditions"): ("type",),
        ("status", "resourceClaimStatuses"): ("name",),
    },
    "nodes": {("status", "conditions"): ("type",)},
    "namespaces": {("status", "conditions"): ("type",)},
}
_ATOMIC_MAPS: dict[str, frozenset[tuple[str, ...]]] = {
    "resourceclaims": frozenset({("status", "devices", "data"), ("status", "allocation")})
}
_IDENTITY = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "generateName",
    }
)


def _list_keys(kind: Kind, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The keys of a keyed list, ``()`` for a set, ``None`` for an atomic list."""
    return _COMMON_LISTS.get(names, _KEYED_LISTS.get(kind.plural, {}).get(names))


def _is_granular_map(kind: Kind, names: tuple[str, ...], value: Any) -> bool:
    return isinstance(value, dict) and names not in _ATOMIC_MAPS.get(kind.plural, frozenset())


def _entry_element(keys: tuple[str, ...], entry: Any) -> str:
    if not keys:
        return "v:" + json.dumps(entry)
    found = {key: entry[key] for key in sorted(keys) if key in entry}
    return "k:" + json.dumps(found, separators=(",", ":"))


def flatten_fields(kind: Kind, body: JsonObject) -> dict[FieldPath, Any]:
    """Every owned path of an object with its value; an entry of a keyed list itself counts, without
    value. Type and identity have no owner."""
    owned = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    metadata = owned.pop("metadata", {})
    owned["metadata"] = {key: value for key, value in metadata.items() if key not in _IDENTITY}
    if not owned["metadata"]:
        del owned["metadata"]
    return dict(_walk(kind, owned, (), ()))


def _walk(kind: Kind, value: Any, path: FieldPath, names: tuple[str, ...]) -> Iterator[tuple[FieldPath, Any]]:
    if not path or (value and _is_granular_map(kind, names, value)):
        for key, child in value.items():
            yield from _walk(kind, child, (*path, f"f:{key}"), (*names, key))
        return
    keys = _list_keys(kind, names) if isinstance(value, list) else None
    if keys is None:
        yield path, value
        return
    for entry in value:
        element = (*path, _entry_element(keys, entry))
        yield element, None
        if keys:
            yield from _walk(kind, entry, element, names)


def find_double_entry(kind: Kind, applied: JsonObject) -> str:
    """A keyed list with two entries of one key, or a set with one value twice; empty without one."""
    return next(_iter_double_entries(kind, applied, ()), "")


def _iter_double_entries(kind: Kind, value: Any, names: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _iter_double_entries(kind, child, (*names, key))
    elif isinstance(value, list) and (keys := _list_keys(kind, names)) is not None:
        elements = [_entry_element(keys, entry) for entry in value]
        for index, element in enumerate(elements):
            if element in elements[:index]:
                yield f".{'.'.join(names)}: duplicate entries for key {element[2:]}"
        for entry in value:
            yield from _iter_double_entries(kind, entry, names)


def merge_applied(kind: Kind, live: JsonObject, applied: JsonObject) -> JsonObject:
    """``live`` with every field of ``applied``; keyed lists entry by entry, the rest replaced."""
    merged: JsonObject = _merge(kind, live, applied, ())
    return merged


def _merge(kind: Kind, live: Any, applied: Any, names: tuple[str, ...]) -> Any:
    if isinstance(live, dict) and (not names or _is_granular_map(kind, names, applied)):
        changed = {key: _merge(kind, live.get(key), value, (*names, key)) for key, value in applied.items()}
        return {**live, **changed}
    keys = _list_keys(kind, names) if isinstance(applied, list) else None
    if keys is None or not isinstance(live, list):
        return copy.deepcopy(applied)
    entries = {_entry_element(keys, entry): entry for entry in live}
    for entry in applied:
        element = _entry_element(keys, entry)
        known = entries.get(element)
        entries[element] = entry if known is None else _merge_entry(kind, known, entry, names)
    return list(entries.values())


def _merge_entry(kind: Kind, known: Any, entry: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(entry, dict):
        return entry
    changed = {key: _merge(kind, known.get(key), value, (*names, key)) for key, value in entry.items()}
    return {**known, **changed}


def remove_fields(kind: Kind, body: JsonObject, paths: Sequence[FieldPath]) -> JsonObject:
    """``body`` without the given fields; what becomes empty by that goes too."""
    pruned = copy.deepcopy(body)
    for path in sorted(paths, key=len):  # a whole entry before its fields: its keys identify it
        _remove(kind, pruned, path, ())
    return pruned


def _remove(kind: Kind, value: Any, path: FieldPath, names: tuple[str, ...]) -> None:
    head, *rest = path
    if head.startswith("f:"):
        name = head[2:]
        if not isinstance(value, dict) or name not in value:
            return
        if rest:
            _remove(kind, value[name], tuple(rest), (*names, name))
        if not rest or value[name] in ({}, []):
            del value[name]
        return
    keys = _list_keys(kind, names) or ()
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if _entry_element(keys, entry) == head:
            if rest:
                _remove(kind, entry, tuple(rest), names)
            else:
                del value[index]
            return


def find_conflicts(
    kind: Kind, live: JsonObject, applied: JsonObject, owners: Owners, manager: Manager
) -> list[tuple[FieldPath, Manager]]:
    """Return the fields that ``applied`` would change although another manager owns them."""
    wanted, present = flatten_fields(kind, applied), flatten_fields(kind, live)
    return [
        (path, owner)
        for owner, owned in owners.items()
        if owner != manager
        for path in sorted(owned & wanted.keys())
        if wanted[path] != present.get(path)
    ]


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of an apply."""

    body: JsonObject
    owners: Owners


def apply_fields(
    kind: Kind, live: JsonObject, applied: JsonObject, owners: Owners, manager: Manager
) -> Applied:
    """Merge, take over what conflicts, and remove what this manager had applied before and omits now,
    unless another manager also owns it. Conflicts are the caller's to refuse before."""
    wanted = frozenset(flatten_fields(kind, applied))
    taken = {path for path, _ in find_conflicts(kind, live, applied, owners, manager)}
    remaining = {
        owner: owned - taken for owner, owned in owners.items() if owner != manager and owned - taken
    }
    dropped = owners.get(manager, frozenset()) - wanted
    merged = remove_fields(kind, merge_applied(kind, live, applied), _orphans(dropped, remaining))
    return Applied(merged, {**remaining, manager: wanted} if wanted else remaining)


def _orphans(dropped: frozenset[FieldPath], owners: Owners) -> list[FieldPath]:
    """Return the dropped paths that no other manager owns, neither as such nor below."""
    kept = {
        path[:length] for owned in owners.values() for path in owned for length in range(1, len(path) + 1)
    }
    return [path for path in dropped if path not in kept]


def own_update(kind: Kind, before: JsonObject, after: JsonObject, owners: Owners, manager: Manager) -> Owners:
    """Ownership after a plain write: the writer owns changed fields; removed ones have no owner."""
    old, new = flatten_fields(kind, before), flatten_fields(kind, after)
    changed = frozenset(path for path, value in new.items() if path not in old or old[path] != value)
    lost = changed | (old.keys() - new.keys())
    result = {owner: owned - lost for owner, owned in owners.items() if owned - lost}
    if changed:
        result[manager] = result.get(manager, frozenset()) | changed
    return result


def build_managed_fields(owners: Owners, api_version: str, now: str) -> list[JsonObject]:
    """``metadata.managedFields`` for a client to read."""
    entries = []
    for manager, owned in owners.items():
        entry: JsonObject = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": api_version,
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": _nest(owned),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    return entries


def _nest(owned: frozenset[FieldPath]) -> JsonObject:
    root: JsonObject = {}
    for path in sorted(owned):
        level = root
        for element in path:
            level = level.setdefault(element, {})
        if path[-1].startswith("k:"):
            level["."] = {}
    return root

"""``dranet validate --convert``: a stream of objects, those of ``resource.k8s.io`` in v1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dranet.desk.cli.object_files import Document, expand, read_texts
from dranet.desk.kubeapi.versions import CURRENT, GROUP, can_convert, convert, has_other_version
from dranet.view.node_view import to_yaml


class Converted(NamedTuple):
    """One document."""

    text: str
    changed: tuple[str, ...]
    """The objects that are new, in words."""
    refused: tuple[str, ...]
    """The objects of a version that cannot be converted."""


def convert_files(paths: Iterable[str]) -> Iterator[Converted]:
    """Convert the documents of these files; one in which nothing changes keeps its text.

    Raises:
        SettingsError: as for every file with objects.
    """
    for path in (file for named in paths for file in expand(str(named))):
        for document in read_texts(path):
            yield _convert_document(document)


def join(documents: Iterable[Converted]) -> str:
    """The stream."""
    texts = (one.text.rstrip("\n") for one in documents)
    return "\n---\n".join(text.removeprefix("---\n") for text in texts)


def _convert_document(document: Document) -> Converted:
    value = document.value
    objects = _objects_of(value)
    changed = [body for body in objects if convert(body) is not body]
    refused = [body for body in objects if has_other_version(body) and not can_convert(body)]
    text = _write(document) if changed else document.text
    return Converted(text, *(tuple(_name(body, document) for body in some) for some in (changed, refused)))


def _objects_of(value: Any) -> list[dict[str, Any]]:
    """The object itself, or the items of a list, with the kind that a typed list gives them."""
    items = value if isinstance(value, list) else _items(value)
    found = (
        [value] if items is None else [{**_common(value), **one} for one in items if isinstance(one, dict)]
    )
    return [body for body in found if isinstance(body, dict)]


def _items(value: Any) -> list[Any] | None:
    is_list = isinstance(value, dict) and str(value.get("kind", "")).endswith("List")
    items = value.get("items") if is_list else None
    return items if isinstance(items, list) else None


def _common(value: Any) -> dict[str, Any]:
    kind = str(value.get("kind")).removesuffix("List") if isinstance(value, dict) else ""
    return {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}


def _write(document: Document) -> str:
    """As YAML, below the comments that the document begins with."""
    comments = []
    for line in document.text.splitlines():
        if line.startswith("#"):
            comments.append(line)
        elif line.strip() not in ("", "---"):
            break
    return "\n".join([*comments, to_yaml([_convert(document.value)])])


def _convert(value: Any) -> Any:
    items = value if isinstance(value, list) else _items(value)
    if items is None:
        return convert(value)
    new = [convert({**_common(value), **one}) if isinstance(one, dict) else one for one in items]
    if isinstance(value, list):
        return {"apiVersion": "v1", "kind": "List", "items": new}
    is_typed = str(value.get("apiVersion")).startswith(f"{GROUP}/")
    return {**value, **({"apiVersion": CURRENT} if is_typed else {}), "items": new}


def _name(body: dict[str, Any], document: Document) -> str:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return f"{body['kind']} {name or ''} of {body['apiVersion']} ({document.place})"

"""``dranet claim new`` in print: the manifests as YAML with the reasons above them, or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from dranet.terminal import PROSE
from dranet.view.documents import to_json, to_yaml


def as_yaml(manifests: Sequence[dict[str, Any]], notes: Iterable[str]) -> str:
    """A stream of documents that ``kubectl apply -f -`` takes; the notes are comments."""
    return "\n".join([*comment(notes), to_yaml(manifests).rstrip("\n")])


def as_json(manifests: Sequence[dict[str, Any]]) -> str:
    """One ``List``; JSON has no comments."""
    return to_json({"apiVersion": "v1", "kind": "List", "items": list(manifests)})


def comment(notes: Iterable[str]) -> list[str]:
    """Each note wrapped, its further lines indented."""
    return [
        line
        for note in notes
        for line in textwrap.wrap(
            note, PROSE, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
        )
    ]

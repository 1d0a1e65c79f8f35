"""The notes of a release: its section of ``CHANGELOG.md``."""

from __future__ import annotations

import re

UNRELEASED = "Unreleased"

_SECTION = re.compile(r"^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class NotesError(Exception):
    """The changelog does not have what a release needs; the text gives the reason and a fix."""


def read_sections(changelog: str) -> dict[str, str]:
    """Return the text of each section, by its version, the newest first."""
    return {version: text.strip() for version, _, text in _SECTION.findall(changelog)}


def find_notes(changelog: str, version: str, *, strict: bool) -> str:
    """Return the section of a version; without ``strict`` and without such a section, what is unreleased.

    Raises:
        NotesError: there is no such section.
    """
    sections = read_sections(changelog)
    text = sections.get(version) or ("" if strict else sections.get(UNRELEASED, ""))
    if not text:
        raise NotesError(
            f"CHANGELOG.md has no section {version}: write `## {version} (YYYY-MM-DD)` above its changes"
        )
    return text


def list_changes(notes: str) -> list[str]:
    """Return the first sentence of each change, without markup: what Artifact Hub shows."""
    items = re.findall(r"^- (.*(?:\n  .*)*)", notes, re.MULTILINE)
    return [_first_sentence(" ".join(item.split())) for item in items]


def _first_sentence(text: str) -> str:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("**", "")
    return plain.partition(". ")[0].rstrip(".")

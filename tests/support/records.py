"""The store's folder as another process would read and change it, and a disk that refuses."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dranet.model.plan import RECORD_VERSION
from dranet.store.claim_store import ClaimStore

JsonObject = dict[str, Any]


def read_texts(store: Path) -> dict[str, str]:
    """The content of each record's file, by claim UID."""
    return {path.stem: path.read_text() for path in sorted(store.glob("*.json"))}


def read_versions(store: Path) -> set[int]:
    """The versions of the records."""
    return {json.loads(text)["version"] for text in read_texts(store).values()}


def write_text(store: Path, claim_uid: str, text: str | bytes) -> None:
    """Replace the content of a record's file."""
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = store / "new"
    new.write_bytes(text.encode() if isinstance(text, str) else text)
    new.replace(store / f"{claim_uid}.json")
    note_change(store)


def write_record(store: Path, claim_uid: str, text: str, version: int = RECORD_VERSION) -> None:
    """Write a record as a driver of that version does."""
    write_text(store, claim_uid, json.dumps({"version": version, **json.loads(text)}))


def edit_record(store: Path, claim_uid: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
    """Change the document of a record; ``change`` may return another one."""
    document = json.loads(read_texts(store)[claim_uid])
    write_text(store, claim_uid, json.dumps(change(document) or document))


def remove_record(store: Path, claim_uid: str) -> None:
    """Delete a record as another instance does."""
    (store / f"{claim_uid}.json").unlink()
    note_change(store)


def write_newer(store: Path, claim_uid: str = "new") -> None:
    """Prepare a claim as a later driver does."""
    write_text(store, claim_uid, json.dumps({"version": RECORD_VERSION + 1, "unheard": "of"}))


def refuse_writes(store: ClaimStore, patch: pytest.MonkeyPatch) -> None:
    """Make the disk full for a store."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(store._folder, "write", refuse)


def note_change(store: Path, by: int = 2) -> None:
    """Change the number that tells other processes of a write."""
    fd = os.open(store / "generation", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, (int.from_bytes(os.pread(fd, 8, 0)) + by).to_bytes(8), 0)
    finally:
        os.close(fd)

"""The file of a support bundle: what is in it is bounded, in one order, and for its owner alone."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dranet import __version__
from dranet.errors import SettingsError

FORMAT = "dranet.bundle/1"
MODE = 0o600
MOST_BYTES = 64 << 20
"""Of the whole, unpacked; a node with 10,000 links has a capture of 8 MiB."""


@dataclass(frozen=True)
class Piece:
    """One file of the bundle: its text, or why there is none."""

    file: str
    about: str
    text: str = ""
    missing: str = ""


def check_target(path: Path, *, force: bool) -> None:
    """Before anything is collected.

    Raises:
        SettingsError: something is there already, or there is no folder that can be written.
    """
    if path.exists() and (not force or not path.is_file()):
        hint = "name another file, or give --force" if path.is_file() else "name a file"
        raise SettingsError(f"--bundle {path}: is there already", hint=hint)
    if not path.parent.is_dir():
        raise SettingsError(f"--bundle {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):  # as the driver's container, whose root is read-only
        raise SettingsError(
            f"--bundle {path}: {path.parent} cannot be written",
            hint="write to standard output, into a file of yours: dranet doctor --bundle - > bundle.tgz",
        )


def pack(pieces: Sequence[Piece], counts: Mapping[str, int], redacts: bool) -> bytes:
    """The archive: the manifest first, then the files by name; nothing in it depends on who made it."""
    kept, left_out = _fit(sorted((p for p in pieces if not p.missing), key=lambda piece: piece.file))
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "redacted": redacts,
        "replaced": dict(sorted(counts.items())),
        "files": [{"file": p.file, "about": p.about, "bytes": len(_encode(p.text))} for p in kept],
        "missing": [
            {
                "file": p.file,
                "about": p.about,
                "why": p.missing or f"the bundle would exceed {MOST_BYTES} bytes",
            }
            for p in (*sorted((p for p in pieces if p.missing), key=lambda piece: piece.file), *left_out)
        ],
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file, text in (("manifest.json", to_json(manifest)), *((p.file, p.text) for p in kept)):
            content = _encode(text)
            entry = tarfile.TarInfo(f"dranet-bundle/{file}")
            entry.size, entry.mode = len(content), MODE
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _fit(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    kept: list[Piece] = []
    left_out: list[Piece] = []
    size = 0
    for piece in pieces:
        size += len(_encode(piece.text))
        (kept if size <= MOST_BYTES else left_out).append(piece)
    return kept, left_out


def _encode(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def write(path: Path, content: bytes) -> None:
    """Whole or not at all, and for its owner alone."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            neighbour.replace(path)
        finally:
            neighbour.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"--bundle {path}: {os.strerror(error.errno or 0)}") from error


def to_json(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

"""Files that a command writes for its user. None is replaced unless ``--force`` is given."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dranet.errors import SettingsError

PRIVATE, SHARED = 0o600, 0o666
"""Modes of a new file, of which the umask takes its part."""


def add_output_flags(parser: argparse._ActionsContainer, about: str) -> None:
    """``--output-file`` and ``--force``."""
    parser.add_argument("--output-file", metavar="OUT", help=about)
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")


def check_output(file: str, named_by: str, *, force: bool) -> Path:
    """Return the path to write. Raises SettingsError where something is in its place, or it has no folder."""
    path = Path(file)
    if os.path.lexists(path) and not path.is_file():
        raise SettingsError(f"{named_by} {file}: is not a regular file", hint="name a file")
    if os.path.lexists(path) and not force:
        raise SettingsError(
            f"{named_by} {file}: exists already", hint="name another file, or add --force to replace it"
        )
    if not path.parent.is_dir():
        raise SettingsError(f"{named_by} {file}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):  # as the driver's container, whose root is read-only
        way = "leave it out, and add" if named_by == "--output-file" else f"use {named_by} -"
        hint = f"write to standard output, into a file of yours: {way} > {path.name}"
        raise SettingsError(f"{named_by} {file}: {path.parent} cannot be written", hint=hint)
    return path


def write_output(path: Path, content: bytes, mode: int, named_by: str) -> None:
    """Write the file by a rename, so that half of it is never read. The umask takes its part of ``mode``,
    unlike in :mod:`dranet.files`: this file is the user's."""
    path = Path(os.path.realpath(path))
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            neighbour.replace(path)
        finally:
            neighbour.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"{named_by} {path}: {os.strerror(error.errno or 0)}") from error

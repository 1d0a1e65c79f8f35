"""Reads a capture of a node (``dranet capture``), from a file or from standard input."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dranet.errors import SettingsError

if TYPE_CHECKING:
    from dranet.model.capture import Capture

STANDARD_INPUT = "-"


def read_capture(file: str, named_by: str) -> Capture:
    """Read a capture of at most 64 MiB; ``-`` is standard input.

    Args:
        file: where it is.
        named_by: the flag or setting that named it, for the error.

    Raises:
        SettingsError: it cannot be read, is too long, or does not fit.
    """
    from dranet.model.capture import MAX_CAPTURE_BYTES, decode_capture  # the daemon rarely needs it

    try:
        return decode_capture(_read_at_most(file, MAX_CAPTURE_BYTES).decode())
    except OSError as error:
        raise SettingsError(f"{named_by} {file}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{named_by} {file}: not UTF-8 text") from error
    except SettingsError as error:
        raise SettingsError(f"{named_by} {file}: {error.message}", hint=error.hint) from error


def _read_at_most(file: str, size: int) -> bytes:
    if file == STANDARD_INPUT:
        data = sys.stdin.buffer.read(size + 1)
    else:
        with Path(file).open("rb") as stream:
            data = stream.read(size + 1)
    if len(data) > size:
        raise SettingsError(f"longer than {size >> 20} MiB")
    return data

"""What a command is given: settings by flags, environment and file, and the capture of a node."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dranet.errors import SettingsError
from dranet.settings import DECLARATIONS, Declaration, Settings, load_settings

if TYPE_CHECKING:
    from dranet.model.capture import Capture

_FILES = ("pci_ids", "facts_file", "attributes_file")
"""Settings that name a file."""
STANDARD_INPUT = "-"


def add_settings_flags(parser: argparse._ActionsContainer, fields: tuple[str, ...]) -> None:
    """One flag for each named setting, with help, default and environment name."""
    for name in fields:
        setting = DECLARATIONS[name]
        default = f"default {default_text(setting.default)}; " if default_text(setting.default) else ""
        parser.add_argument(
            setting.flag,
            dest=name,
            metavar=_metavar(setting),
            default=argparse.SUPPRESS,
            help=f"{setting.description} ({default}{setting.environment})".replace("%", "%%"),
        )


def default_text(default: object) -> str:
    """A setting's default as one would type it; empty if it has none."""
    if default in ("", None, ()):
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _metavar(setting: Declaration) -> str:
    if isinstance(setting.default, bool):
        return "true|false"
    return "FILE" if setting.name in _FILES else setting.name.rpartition("_")[2].upper()


def settings_from(options: argparse.Namespace) -> Settings:
    """As :func:`read_settings`; the node's name defaults to the host's."""
    settings = read_settings(options)
    return settings if settings.node_name else replace(settings, node_name=socket.gethostname())


def read_settings(options: argparse.Namespace) -> Settings:
    """Merge file, environment and flags. A file named by a flag is looked for where the user is."""
    values = {name: value for name, value in vars(options).items() if name in DECLARATIONS}
    values |= {name: str(Path(values[name]).absolute()) for name in _FILES if values.get(name)}
    file = Path(options.config) if getattr(options, "config", None) else None
    return load_settings(values, os.environ, file)


def read_capture(file: str, named_by: str) -> Capture:
    """A capture of at most 64 MiB; ``-`` is standard input. Raises SettingsError, which names the flag
    ``named_by``, where it cannot be read, is too long, or does not fit."""
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

"""Known device faults on disk, so that a restart of the driver does not forget a broken NIC.

Without it, each restart and each rolling update would remove taints and add them again ten seconds later, and
pods would be placed on broken devices in between. Times are those of the monotonic clock, which all processes
of one boot share; a file of an earlier boot is ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dranet import files
from dranet.health.tracker import DeviceMemory

log = logging.getLogger(__name__)

_FORMAT = 2
_MOST_BYTES = 8 << 20


class _Header(msgspec.Struct):
    format: int
    boot: str


class _Document(_Header):
    devices: dict[str, DeviceMemory]


class HealthFile:
    """``<state_dir>/health.json``. Best effort: faults that cannot be read or written are found again after a
    while."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._complained = False

    def read(self) -> dict[str, DeviceMemory]:
        """Memories by device; empty without any of this boot. Blocking."""
        try:
            document = json.loads(files.read_file(self._path, _MOST_BYTES))
            header = msgspec.convert(document, _Header)
            if (header.format, header.boot) != (_FORMAT, self._boot_id):
                return {}
            return msgspec.convert(document, _Document).devices
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, faults are found again: %s", self._path, error)
            return {}

    def write(self, memories: Mapping[str, DeviceMemory]) -> None:
        """Replace the file. Blocking."""
        document = msgspec.to_builtins(_Document(_FORMAT, self._boot_id, dict(memories)))
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            files.replace_file(self._path, fresh, json.dumps(document).encode())
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("%s cannot be written (logged once): %s", self._path, error)

"""What is known of faults, on disk: a restart of the driver is no reason to forget a broken NIC.

Without it, each restart and each rolling update would take taints away and put them back ten seconds later,
and pods would be placed on what is broken meanwhile. Times are those of the monotonic clock, which all
processes of one boot share; a file of an earlier boot counts for nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from dranet import files
from dranet.health.damping import FaultState
from dranet.health.tracker import DeviceMemory, KnownFault
from dranet.model.health import FaultKind

log = logging.getLogger(__name__)

_FORMAT = 1
_MOST_BYTES = 8 << 20
_LATEST = 1e11
"""Seconds; of any clock. Python's calendar ends in the year 9999."""


class HealthFile:
    """``<state_dir>/health.json``. Best effort: what cannot be read or written is known anew after a
    while."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._complained = False

    def read(self) -> dict[str, DeviceMemory]:
        """Memories by device; empty where there are none of this boot."""
        try:
            return self._decode(json.loads(files.read_file(self._path, _MOST_BYTES)))
        except FileNotFoundError:
            return {}
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
            OverflowError,
        ) as error:
            log.warning("%s cannot be read, faults are found anew: %s", self._path, error)
            return {}

    def write(self, memories: Mapping[str, DeviceMemory]) -> None:
        """Replace the file. Blocking."""
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            files.replace_file(self._path, fresh, json.dumps(self._encode(memories)).encode())
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("%s cannot be written (said once): %s", self._path, error)

    def _encode(self, memories: Mapping[str, DeviceMemory]) -> dict[str, object]:
        devices = {
            name: {
                "versions": dict(memory.versions),
                "faults": {str(kind): _encode_fault(known) for kind, known in memory.faults.items()},
            }
            for name, memory in memories.items()
        }
        return {"format": _FORMAT, "boot": self._boot_id, "devices": devices}

    def _decode(self, document: Mapping[str, object]) -> dict[str, DeviceMemory]:
        if document["format"] != _FORMAT or document["boot"] != self._boot_id:
            return {}
        devices = document["devices"]
        if not isinstance(devices, dict):
            raise TypeError("devices are no mapping")
        return {str(name): _decode_device(entry) for name, entry in devices.items()}


def _encode_fault(known: KnownFault) -> dict[str, object]:
    state = known.state
    return {
        "text": known.text,
        "since": known.since,
        "present": state.present,
        "changed_at": state.changed_at,
        "raised": state.raised,
        "relapses": state.relapses,
        "cleared_at": state.cleared_at,
    }


def _decode_device(entry: Mapping[str, Mapping[str, Mapping[str, object]]]) -> DeviceMemory:
    versions = {str(what): str(version) for what, version in entry["versions"].items()}
    faults = {FaultKind(kind): _decode_fault(told) for kind, told in entry["faults"].items()}
    return DeviceMemory(faults, versions)


def _decode_fault(told: Mapping[str, object]) -> KnownFault:
    cleared_at = told["cleared_at"]
    state = FaultState(
        present=bool(told["present"]),
        changed_at=_number(told["changed_at"]),
        raised=bool(told["raised"]),
        relapses=int(_number(told["relapses"])),
        cleared_at=None if cleared_at is None else _number(cleared_at),
    )
    return KnownFault(state, str(told["text"]), _number(told["since"]))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise TypeError("not a time or a count")
    return float(value)

"""Reads the journals of all API server stand-ins of a test run, those of child processes included."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]

_DRIVER_AGENT = "dranet/"
_TAKEN = ".taken"
_APPLY = "application/apply-patch+yaml"


class JournalReader:
    """Follows the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._permissions: set[tuple[str, str, str]] = set()

    def read_faults(self) -> list[str]:
        """What is wrong with the objects that were written since the last call."""
        faults: list[str] = []
        for entry in self._read_new():
            if "write" in entry:
                faults += judge_write(entry["write"])
            else:
                asked = entry["permission"]
                self._permissions.add((asked["group"], asked["resource"], asked["verb"]))
        return faults

    def get_permissions(self) -> set[tuple[str, str, str]]:
        """Group, resource and verb of everything that was allowed to somebody who is no administrator."""
        return self._permissions

    def _read_new(self) -> Iterator[JsonObject]:
        """Take each file away (its server begins another one), and look once more the next time, for the line
        that was being written meanwhile."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix == _TAKEN:
                yield from self._read_rest(path)
                path.unlink()
                del self._read[path]
            else:
                yield from self._read_rest(path.rename(path.with_name(f"{uuid.uuid4()}{_TAKEN}")))

    def _read_rest(self, path: Path) -> Iterator[JsonObject]:
        fresh = path.read_bytes()[self._read.get(path, 0) :]
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        yield from map(json.loads, whole.splitlines())


def judge_write(write: JsonObject) -> list[str]:
    """The faults of one accepted write, if it is one of the driver."""
    body = _find_driver_object(write)
    if body is None:
        return []
    # Loaded with the first object: most tests, and all in the virtual machine, write none.
    from tests.support.written_objects.limits import find_limit_faults
    from tests.support.written_objects.schemas import find_schema_faults

    return find_schema_faults(body) + find_limit_faults(body)


def _find_driver_object(write: JsonObject) -> JsonObject | None:
    """What to judge: the object as it was sent, completed from what was kept where a patch leaves things out.

    The testbed's other parts use the same client as administrators; what they write is theirs: claims, pods
    and allocations. Who has the driver's own rights is the driver, whatever it writes, and however.
    """
    sent, kept = write["sent"], write["kept"]
    kind = kept.get("kind")
    is_ours = kind in ("ResourceSlice", "Event") or (kind == "ResourceClaim" and write["how"] == _APPLY)
    is_driver = not write["admin"] and kind in ("ResourceSlice", "Event", "ResourceClaim")
    if not (is_ours or is_driver) or not write["agent"].startswith(_DRIVER_AGENT):
        return None
    typed = {**sent, "apiVersion": kept["apiVersion"], "kind": kind}
    if write["how"] in ("POST", "PUT"):
        return typed
    return {**kept, **typed} if write["how"] == _APPLY else kept

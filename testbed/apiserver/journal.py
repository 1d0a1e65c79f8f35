"""What clients wrote and which permissions they used, as lines in a file for the process that
started the tests.

A testbed is a tree of processes of its own; what its API server saw comes out through a folder named in the
environment. Without that nothing is written.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.identity import User
from testbed.apiserver.rbac import Attributes

FOLDER_VARIABLE = "TESTBED_JOURNAL"
"""Names an existing folder; each server adds a file of its own."""


class Journal:
    """Lines of one server, each thing once: ``{"write": ...}`` and ``{"permission": ...}``."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, f"{uuid.uuid4()}.jsonl") if folder else None
        self._known: set[int] = set()

    @classmethod
    def from_environment(cls) -> Journal:
        return cls(os.environ.get(FOLDER_VARIABLE, ""))

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def note_permission(self, user: User, asked: Attributes) -> None:
        """A question that was answered with yes."""
        entry = {
            "user": user.name,
            "verb": asked.verb,
            "group": asked.group,
            "resource": asked.resource,
            "name": asked.name,
        }
        self._note({"permission": entry})

    def note_write(self, agent: str, user: User, how: str, sent: JsonObject, kept: JsonObject) -> None:
        """An object as it was sent and as it was answered. ``how`` is POST, PUT, or a patch's content
        type."""
        entry = {
            "agent": agent,
            "admin": user.is_admin,
            "how": how,
            "sent": sent,
            "kept": kept,
        }
        self._note({"write": entry})

    def _note(self, entry: JsonObject) -> None:
        if self._path is None:
            return
        line = json.dumps(entry, sort_keys=True) + "\n"
        if hash(line) not in self._known:
            self._known.add(hash(line))
            with self._path.open("a") as file:
                file.write(line)

"""The files for the programs of a container, as they lie on the host: ``workload/<claim uid>/<container>/``.

By the claim by which the container asks for them. Each container that is created has its files written anew,
so that one which somebody removed is there again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dranet import files
from dranet.driver.claim_folders import ClaimFolders
from dranet.model.workload import CONFIG_NAME, TOPOLOGY_NAME

_NAMES = (TOPOLOGY_NAME, CONFIG_NAME)
_MOST_BYTES = 1 << 20


class WorkloadFiles:
    """The files of all containers; see :class:`ClaimFolders` for what is raised."""

    def __init__(self, state_dir: Path) -> None:
        self._folders = ClaimFolders(state_dir / "workload", _NAMES, "files for containers")
        self.folder_of = self._folders.folder_of
        self.remove = self._folders.remove
        self.list_claims = self._folders.list_claims

    def write(self, claim_uid: str, container: str, contents: Mapping[str, str]) -> None:
        """Make these the files of a container; one that says the same stays.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: one of the names cannot be part of a path.
        """
        with self._folders.open_for_writing(claim_uid, container) as folder:
            for name in _NAMES:
                if name not in contents:
                    files.remove_file(folder / name)
            for name, text in contents.items():
                self._write_one(folder / name, text.encode())

    def _write_one(self, path: Path, content: bytes) -> None:
        with suppress(FileNotFoundError):
            if files.read_file(path, _MOST_BYTES) == content:
                return
        self._folders.replace(path, content)

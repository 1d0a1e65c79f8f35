"""The files that tell containers about their devices, as they lie on the host.

``metadata/<claim uid>/<request>/<driver>-metadata.json``, a folder for each request of a claim.
"""

from __future__ import annotations

from pathlib import Path

from dranet import files
from dranet.claims.metadata import JsonObject, MetadataError, decode_stream, encode_stream, file_name
from dranet.driver.claim_folders import ClaimFolders

_MOST_BYTES = 8 << 20
"""Of a file; one device's part is a few kilobytes."""


class MetadataFiles:
    """The files of one driver; see :class:`ClaimFolders` for what is raised."""

    def __init__(self, state_dir: Path, driver_name: str) -> None:
        self._name = file_name(driver_name)
        self._folders = ClaimFolders(
            state_dir / "metadata", (self._name,), "device metadata", ", or set device_metadata to false"
        )
        self.folder_of = self._folders.folder_of
        self.remove = self._folders.remove
        self.list_claims = self._folders.list_claims

    def read(self, claim_uid: str, request: str) -> tuple[JsonObject, int] | None:
        """The document of a request with its generation; ``None`` where there is none, or a damaged one.

        Raises:
            ProtocolError: one of the names cannot be part of a path.
        """
        try:
            path = self.folder_of(claim_uid, request) / self._name
            return decode_stream(files.read_file(path, _MOST_BYTES))
        except (OSError, MetadataError):
            return None

    def write(self, claim_uid: str, request: str, document: JsonObject) -> bool:
        """Make this the document of a request; one that says the same stays. Returns whether it was written.

        The generation is one more than that of the file before.

        Raises:
            StoreError: the folder cannot be written.
            ProtocolError: one of the names cannot be part of a path.
        """
        with self._folders.open_for_writing(claim_uid, request) as folder:
            before = self.read(claim_uid, request)  # nobody writes between this and the write
            if before is not None and before[0] == document:
                return False
            content = encode_stream(document, 1 if before is None else before[1] + 1)
            self._folders.replace(folder / self._name, content)
        return True

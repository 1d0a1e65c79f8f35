"""Facts from a capture instead of the kernel: for trying out what a machine would offer."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.kernel.discovery.changes import EVERYTHING, Changes
from dranet.kernel.discovery.protected_addresses import ProtectedAddress
from dranet.model.facts import NodeFacts
from dranet.view.capture_file import read_capture


class CapturedFacts:
    """The facts of a capture, the same for ever. No kernel is asked, and no pod can have the devices: this
    node may have others of their names. Arguments: see :func:`read_capture`."""

    is_live = False

    def __init__(self, file: str, named_by: str = "facts_file") -> None:
        self._file, self._named_by = file, named_by
        self._facts: NodeFacts | None = None

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        """A capture has its own."""

    def read(self, _: Changes = EVERYTHING, /) -> NodeFacts:
        """Read the file at the first call.

        Raises:
            SettingsError: it cannot be read, or is no capture.
        """
        if self._facts is None:
            self._facts = read_capture(self._file, self._named_by).facts
        return self._facts

"""Which vendors' GPUs this driver offered last, on disk: nobody else had them then.

At a start the GPUs of a vendor are offered only when its own driver or device plugin has had time to come, or
to come back. Where they were ours before, there is none to wait for: a restart takes nothing back, and after
a boot pods of ours start again at once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from dranet import files

log = logging.getLogger(__name__)

_MOST_BYTES = 64 << 10


class OwnGpus:
    """``<state_dir>/gpus.json``. Best effort: where it cannot be read, there is only a wait. Blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: frozenset[str] | None = None

    def read(self) -> frozenset[str] | None:
        """Vendors as in ``model.facts.Gpu``; none of them where the file says nothing fit, and ``None`` where
        there is no file: this driver has never looked at the GPUs of this node."""
        try:
            found = json.loads(files.read_file(self._path, _MOST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, GPUs wait for their vendors' drivers: %s", self._path, error)
            return frozenset()
        vendors = found.get("offered") if isinstance(found, dict) else None
        return (
            frozenset(v for v in vendors if isinstance(v, str)) if isinstance(vendors, list) else frozenset()
        )

    def write(self, vendors: Iterable[str]) -> None:
        """Replace the file, where it would say something else."""
        offered = frozenset(vendors)
        if offered == self._written:
            return
        self._written = offered
        content = json.dumps({"offered": sorted(offered)}).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            files.replace_file(self._path, self._path.with_suffix(".new"), content)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

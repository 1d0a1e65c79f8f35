"""The release of this checkout, made as a stranger makes it: by ``make release-dry-run``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.project import REPOSITORY

_VARIABLE = "RELEASE_FOLDER"


def find_release() -> Path | None:
    """The folder of a release that was made before, which ``RELEASE_FOLDER`` names: several runs share it."""
    folder = os.environ.get(_VARIABLE, "")
    return Path(folder).resolve(strict=True) if folder else None


def make_release(folder: Path) -> Path:
    """The folder of a release: one that was made before, else it is made into ``folder``.

    Raises:
        subprocess.CalledProcessError: it cannot be made; make has printed why.
    """
    if found := find_release():
        return found
    subprocess.run(["make", "release-dry-run", f"RELEASE={folder}"], cwd=REPOSITORY, check=True)
    return folder.resolve()

"""The release of this checkout, made as a stranger makes it: by ``make release-dry-run``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.project import REPOSITORY

FOLDER_VARIABLE = "RELEASE_FOLDER"
"""Names the folder of a release that was made before, so that several runs need to make it only once."""


def make_release(folder: Path) -> Path:
    """The folder of ``RELEASE_FOLDER``; without one a release is made into ``folder``.

    Raises:
        subprocess.CalledProcessError: it cannot be made; make has printed why.
    """
    if named := os.environ.get(FOLDER_VARIABLE, ""):
        return Path(named).resolve(strict=True)
    subprocess.run(["make", "release-dry-run", f"RELEASE={folder}"], cwd=REPOSITORY, check=True)
    return folder.resolve()

"""Another root filesystem to run the driver in: read-only, with the node's folders in it as a pod has them.

For the files of the container image without a container engine. It works inside the private tree of
``isolation``, whose end takes the mounts away; it knows nothing of what is in the root filesystem.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from testbed.isolation import WORK_DIR, require_isolation

_SHARED = WORK_DIR.parent
"""Where the testbed has everything; what it mounts there later must arrive inside (HostToContainer)."""


def mount_root(root: Path) -> tuple[str, ...]:
    """Mount the node's folders below ``root``; returns the start of a command that runs inside.

    Raises:
        IsolationRefused: this is not a private tree.
    """
    require_isolation()
    _mount("--bind", str(root), str(root))
    _mount("-o", "remount,bind,ro", str(root))
    _mount("--make-rshared", str(_SHARED))
    for folder in (Path("/dev"), Path("/proc"), Path("/sys"), _SHARED):
        _mount("--rbind", str(folder), str(root / folder.relative_to("/")))
    return (shutil.which("chroot") or "/usr/sbin/chroot", str(root))


def _mount(*arguments: str) -> None:
    subprocess.run(("mount", *arguments), check=True)

"""An image for tests and experiments: built once for each state of the sources, and kept in a cache.

The key is a hash of everything that goes in. What nobody asked for in the last hours is removed; the lock on
the cache is held only while an image is looked up or built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.debian.packages import cache_folder
from tools.image.base import forget_old, host_architecture
from tools.image.build import Image, Report, build_image, describe_image
from tools.image.lock import LOCK_FILE
from tools.image.trees import REPOSITORY, list_driver_files
from tools.image.wheels import REQUIREMENTS

_KEPT_SECONDS = 3 * 3600
"""Since an image in the cache was last asked for: longer than anybody works with one."""


def _ignore(_line: str) -> None:
    """Nobody asked how it goes."""


def find_or_build(
    architecture: str | None = None,
    *,
    current: bool = False,
    cache: Path | None = None,
    report: Report = _ignore,
) -> Image:
    """The image of the sources as they are now, for this machine's architecture by default (2 s on a base
    that is cached, else 10 s).

    It is everybody's: read it, run programs in it, do not write to it.

    Raises:
        StaleLock, PackagesUnavailable, ImageError: as :func:`~tools.image.build.build_image`.
    """
    architecture = architecture or host_architecture()
    cache = cache_folder("image") if cache is None else cache
    with _locked(cache):
        folder = cache / "built" / f"{architecture}-{_hash_sources()}{'-current' if current else ''}"
        if not (folder / "image.json").exists():
            build_image(architecture, folder, current=current, cache=cache, report=report)
            forget_old(folder.parent, _KEPT_SECONDS)
        os.utime(folder)
        return describe_image(folder)


def _hash_sources() -> str:
    files = [LOCK_FILE, REQUIREMENTS, REPOSITORY / "LICENSE", *sorted(Path(__file__).parent.glob("*.py"))]
    files += list_driver_files()
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()[:20]


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""The user-mode emulator for arm64, of the distribution's packages and not installed: it runs one program of
another architecture without a kernel of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Shortage,
    cache_folder,
    make_cache,
    read_release,
    unpack,
)

_PACKAGES = {"qemu-user-static": "usr/bin/qemu-aarch64-static", "qemu-user": "usr/bin/qemu-aarch64"}
"""Package -> its program; releases from trixie on have it in ``qemu-user``, which is static then."""


def fetch_emulator() -> Path:
    """The static program, from the cache where it is there (62 MB to download else; 13 are kept).

    Raises:
        PackagesUnavailable: neither package can be had on this machine.
    """
    folder = cache_folder("image")
    program = folder / "qemu-aarch64"
    if not program.exists():
        make_cache(folder)
        with tempfile.TemporaryDirectory(prefix="qemu-", dir=folder) as work:
            _fetch(Path(work)).rename(program)
    return program


def _fetch(work: Path) -> Path:
    release = read_release()
    apt = PrivateApt(work / "apt", release.source, (release.suite,), release.architecture)
    apt.update()
    for package, name in _PACKAGES.items():
        if apt.list_versions([package])[package]:
            tree = work / package
            unpack(apt.download([package], work / "debs")[package], tree)
            if (tree / name).is_file():
                return tree / name
    raise PackagesUnavailable(Shortage.FETCH_FAILED, f"no {' or '.join(_PACKAGES)} with an emulator of arm64")

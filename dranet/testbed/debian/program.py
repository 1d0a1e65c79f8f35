"""One program out of a package of the distribution, fetched without installing it and kept in a cache."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dranet.testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Release,
    Shortage,
    cache_folder,
    make_cache,
    read_release,
    read_version,
    unpack,
)


def find_program(name: str, package: str, suites: Sequence[str]) -> Path:
    """The cached one, or one of the first of ``suites`` that serves it, before the machine's own release.

    Raises:
        PackagesUnavailable: no apt, not Debian-like, no mirror, no network, no such package.
    """
    cache = cache_folder(package)
    cached = sorted(cache.glob(f"*/{name}"), reverse=True)
    return cached[0] if cached else _fetch(cache, name, package, suites)


def _fetch(cache: Path, name: str, package: str, suites: Sequence[str]) -> Path:
    release = read_release()
    make_cache(cache)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as temporary:
        work = Path(temporary)
        deb = _download(work, release, package, dict.fromkeys((*suites, release.suite)))
        unpack(deb, work / "tree")
        if not (work / "tree" / "usr" / "bin" / name).exists():
            raise PackagesUnavailable(Shortage.FETCH_FAILED, f"package {package} has no usr/bin/{name}")
        final = cache / f"{read_version(deb).replace(':', '-')}-{release.architecture}"
        with contextlib.suppress(OSError):  # somebody else may have won the race; theirs is as good
            (work / "tree" / "usr" / "bin").rename(final)
    return final / name


def _download(work: Path, release: Release, package: str, suites: dict[str, None]) -> Path:
    """The package from the first suite that has it."""
    complaint: PackagesUnavailable | None = None
    for suite in suites:
        try:
            apt = PrivateApt(work / suite, release.source, (suite,), release.architecture)
            apt.update()
            return apt.download([f"{package}/{suite}"], work / "debs")[package]
        except PackagesUnavailable as error:
            complaint = error
    assert complaint is not None
    raise complaint

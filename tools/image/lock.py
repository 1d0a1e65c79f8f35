"""``packages.lock``: which version of each Debian package goes in, with the hash of its file.

One line a package and architecture: ``libc6 amd64 2.41-12 sha256:...``. Text in, values out; what a mirror
serves is asked elsewhere (``debian.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.image.slices import SLICES

ARCHITECTURES = ("amd64", "arm64")
LOCK_FILE = Path(__file__).with_name("packages.lock")

_HEAD = """\
# Debian packages of the image: name, architecture, version, hash of the file.
# Made by `make image-lock`; docs/dev/image.md says when.
"""


class ImageError(Exception):
    """The image cannot be built; the text says why and how to mend it."""


class StaleLock(ImageError):
    """The mirror no longer serves what is locked. ``changes`` has a line for each package."""

    def __init__(self, changes: Iterable[str]) -> None:
        self.changes = tuple(changes)
        listed = "".join(f"\n  {change}" for change in self.changes)
        super().__init__(
            f"tools/image/packages.lock is stale: the mirror has moved on{listed}\n"
            "lock what it serves now with `make image-lock`, or build with that once with --current"
        )


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """One file of the distribution, exactly."""

    name: str
    architecture: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.architecture} {self.version} sha256:{self.sha256}"


def wanted_packages() -> tuple[str, ...]:
    """The names of all packages that the image takes something of."""
    return tuple(sorted({piece.package for piece in SLICES}))


def read_lock(architecture: str, file: Path = LOCK_FILE) -> tuple[Package, ...]:
    """What is locked for one architecture.

    Raises:
        ImageError: a line is no such line, or what is locked is not what is wanted.
    """
    packages = tuple(p for p in read_all(file) if p.architecture == architecture)
    locked, wanted = {package.name for package in packages}, set(wanted_packages())
    if locked != wanted:
        odd = ", ".join(sorted(locked ^ wanted))
        raise ImageError(f"{file.name} and slices.py differ for {architecture}: {odd} (make image-lock)")
    return packages


def read_all(file: Path = LOCK_FILE) -> tuple[Package, ...]:
    """What the lock says, for all architectures."""
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(map(_parse, lines))


def write_lock(packages: Iterable[Package], file: Path = LOCK_FILE) -> None:
    file.write_text(_HEAD + "".join(f"{package}\n" for package in sorted(packages)))


def describe_changes(before: Iterable[Package], now: Mapping[tuple[str, str], str]) -> list[str]:
    """A line for each package whose version is another; ``now`` maps name and architecture to a version."""
    pairs = ((package, now.get((package.name, package.architecture), "no version")) for package in before)
    return [
        f"{package.name} ({package.architecture}): locked {package.version}, served {version}"
        for package, version in pairs
        if version != package.version
    ]


def _parse(line: str) -> Package:
    try:
        name, architecture, version, digest = line.split()
    except ValueError as error:
        raise ImageError(f"packages.lock: not a package: {line!r} (make image-lock)") from error
    return Package(name, architecture, version, digest.removeprefix("sha256:"))

"""The Debian packages of the image: locked versions, download by a private apt, verification, and unpacking.

``packages.lock`` has a line for each package and architecture: ``libc6 amd64 2.41-12 sha256:...``. Downloads
use apt and dpkg-deb through ``testbed.debian``; nothing is installed or configured, so packages of another
architecture need no emulation. Each file is cached by its hash and verified at every use, so a build from the
cache needs no network.

Debian's mirrors serve only the newest versions. When a locked version can be had neither there nor from the
cache, the build takes every package as the mirror serves it now: that set is consistent, because Debian keeps
it so, while a mixture of locked and current versions need not be (``libpython3.13-stdlib`` depends on exactly
one version of ``libpython3.13-minimal``)."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.debian.packages import (
    PrivateApt,
    find_host_source,
    read_release,
    run_tool,
    unpack,
)
from tools.image.slices import SLICES, SUITE, Slice

ARCHITECTURES = ("amd64", "arm64")
LOCK_FILE = Path(__file__).with_name("packages.lock")

_HEAD = """\
# Debian packages of the image: name, architecture, version, hash of the file.
# Made by `make image-lock`; docs/dev/image.md explains when.
"""


class ImageError(Exception):
    """The image cannot be built; the text gives the reason and a fix."""


class StaleLock(ImageError):
    """The mirror no longer serves the locked versions. ``changes`` has a line for each package."""

    def __init__(self, changes: Iterable[str]) -> None:
        self.changes = tuple(changes)
        listed = "".join(f"\n  {change}" for change in self.changes)
        super().__init__(
            f"tools/image/packages.lock is stale: the mirror serves other versions{listed}\n"
            "lock the current ones with `make image-lock`, or build from them without LOCKED=1"
        )


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package file of the distribution, identified by its hash."""

    name: str
    architecture: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.architecture} {self.version} sha256:{self.sha256}"


def wanted_packages() -> tuple[str, ...]:
    """Return the names of all packages from which the image keeps files."""
    return tuple(sorted({piece.package for piece in SLICES}))


def read_lock(architecture: str, file: Path = LOCK_FILE) -> tuple[Package, ...]:
    """Return the locked packages for one architecture.

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
    """Return the locked packages of all architectures."""
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(map(_parse, lines))


def write_lock(packages: Iterable[Package], file: Path = LOCK_FILE, head: str = _HEAD) -> None:
    file.write_text(head + "".join(f"{package}\n" for package in sorted(packages)))


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


def fetch_packages(locked: Sequence[Package], cache: Path, *, strict: bool) -> tuple[Package, ...]:
    """Fetch the locked packages into the cache and return them; all of them as the mirror serves them now if
    it no longer serves one of them.

    Raises:
        StaleLock: with ``strict``, the mirror serves other versions.
        PackagesUnavailable: this machine has no apt, or no mirror answers.
        ImageError: the hash of a file differs from the lock.
    """
    missing = _list_missing(locked, cache)
    if not missing:
        return tuple(locked)
    with _open_apt(locked[0].architecture) as apt:
        changes = _find_changes(missing, apt)
        if changes and strict:
            raise StaleLock(changes)
        packages = _list_served(apt, locked[0].architecture) if changes else tuple(locked)
        _download(apt, _list_missing(packages, cache), cache)
    return packages


def find_files(packages: Iterable[Package], cache: Path) -> dict[str, Path]:
    """Return the cached file of each fetched package, by package name.

    Raises:
        ImageError: the hash of a file differs.
    """
    files = {package.name: _place(cache, package) for package in packages}
    for package in packages:
        _check(files[package.name], package)
    return files


def list_current(architecture: str) -> tuple[Package, ...]:
    """Return every wanted package in the version that the mirror serves now.

    Raises:
        PackagesUnavailable: this machine has no apt, or no mirror answers.
    """
    with _open_apt(architecture) as apt:
        return _list_served(apt, architecture)


def unpack_slices(files: Mapping[str, Path], root: Path) -> None:
    """Copy the wanted files of each package, its licence, and its record for scanners below ``root``."""
    records = root / "var/lib/dpkg/status.d"  # where scanners look in images without a package manager
    records.mkdir(parents=True)
    for name, file in sorted(files.items()):
        with tempfile.TemporaryDirectory(prefix="image-") as folder:
            tree = Path(folder)
            unpack(file, tree)
            for piece in SLICES:
                if piece.package == name:
                    _move_slice(piece, tree, root)
            _move(tree, f"usr/share/doc/{name}/copyright", root)
            _move(tree, f"usr/share/doc/{name}", root, only_links=True)
        (records / name).write_text(run_tool(["dpkg-deb", "-f", str(file)]))


def _list_missing(packages: Iterable[Package], cache: Path) -> list[Package]:
    return [package for package in packages if not _place(cache, package).exists()]


def _list_served(apt: PrivateApt, architecture: str) -> tuple[Package, ...]:
    files = apt.locate(wanted_packages())
    return tuple(Package(name, architecture, *found) for name, found in files.items())


def _find_changes(packages: Sequence[Package], apt: PrivateApt) -> list[str]:
    """A line for each package whose locked version is no longer served."""
    served = apt.list_versions([package.name for package in packages])
    return describe_changes(
        packages, {(p.name, p.architecture): _name_versions(p, served[p.name]) for p in packages}
    )


def _download(apt: PrivateApt, packages: Sequence[Package], cache: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="image-debs-") as folder:
        debs = apt.download([f"{p.name}={p.version}" for p in packages], Path(folder)) if packages else {}
        for package in packages:
            _check(debs[package.name], package)
            _keep(package, debs[package.name], cache)


def _name_versions(package: Package, served: set[str]) -> str:
    """Name the locked version if the mirror still serves it, otherwise all others."""
    return package.version if package.version in served else " and ".join(sorted(served)) or "no version"


@contextmanager
def _open_apt(architecture: str) -> Iterator[PrivateApt]:
    """Open an apt with the release of the image and its security updates, from this machine's mirror."""
    release = read_release()
    security = find_host_source(f"{release.suite}-security")
    also = [(security, [f"{SUITE}-security"])] if security else []
    with tempfile.TemporaryDirectory(prefix="image-apt-") as folder:
        suites = (SUITE, f"{SUITE}-updates")
        apt = PrivateApt(Path(folder), release.source, suites, architecture, also)
        apt.update()
        yield apt


def _keep(package: Package, file: Path, cache: Path) -> None:
    place = _place(cache, package)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(f".{id(package)}")
    shutil.copyfile(file, partial)
    partial.replace(place)


def _place(cache: Path, package: Package) -> Path:
    return cache / "debs" / f"{package.name}_{package.sha256}.deb"


def _check(file: Path, package: Package) -> None:
    found = hash_file(file)
    if found != package.sha256:
        raise ImageError(
            f"{file.name} is not the locked {package}: its hash is {found}; remove it, build again"
        )


def hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _move_slice(piece: Slice, tree: Path, root: Path) -> None:
    for pattern in piece.keep:
        found = find(tree, pattern)
        if not found and "*" not in pattern and not _is_optional(pattern):
            raise ImageError(f"package {piece.package} has no {pattern} (correct tools/image/slices.py)")
        for path in found:
            _move(tree, str(path.relative_to(tree)), root)


def find(tree: Path, pattern: str) -> list[Path]:
    """Return the paths below ``tree`` that match a pattern, including dangling links: their target may be in
    another package."""
    if "*" in pattern:
        return sorted(tree.glob(pattern))
    path = tree / pattern
    return [path] if path.is_symlink() or path.exists() else []


def _is_optional(pattern: str) -> bool:
    return pattern in ("lib64", "usr/lib64")  # arm64 has no such folder


def _move(tree: Path, name: str, root: Path, *, only_links: bool = False) -> None:
    """Copy a file, link or folder to its place in ``root``, merging folders."""
    source, target = tree / name, root / name
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
    elif only_links:
        return
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)

"""The Debian packages of the image: fetched by an apt of our own, checked, and the wanted files unpacked.

Talks to apt and dpkg-deb by ``testbed.debian``: nothing is installed or configured, so that packages
of another architecture need no emulation. Each file is kept in a cache, by its hash, and is checked whenever
it is used; a build from the cache needs no network.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.debian.packages import (
    PrivateApt,
    find_host_source,
    read_release,
    read_version,
    run_tool,
    unpack,
)
from tools.image.lock import ImageError, Package, StaleLock, describe_changes, wanted_packages
from tools.image.slices import SLICES, SUITE, Slice


def fetch_locked(packages: Sequence[Package], cache: Path) -> dict[str, Path]:
    """Package -> its file in the cache.

    Raises:
        StaleLock: the mirror serves other versions.
        PackagesUnavailable: this machine has no apt, or no mirror answers.
        ImageError: a file is not the locked one.
    """
    missing = [package for package in packages if not _place(cache, package).exists()]
    if missing:
        _fetch(missing, cache)
    for package in packages:
        _check(_place(cache, package), package)
    return {package.name: _place(cache, package) for package in packages}


def fetch_current(architecture: str, cache: Path) -> tuple[Package, ...]:
    """Every wanted package in the version that the mirror would install now, into the cache.

    Raises:
        PackagesUnavailable: this machine has no apt, or no mirror answers.
    """
    with _open_apt(architecture) as (apt, folder):
        files = apt.download(wanted_packages(), folder / "debs")
        return tuple(_keep(name, architecture, file, cache) for name, file in files.items())


def unpack_slices(files: Mapping[str, Path], root: Path) -> None:
    """Put what is kept of each package below ``root``, its licence, and its record for scanners."""
    records = root / "var/lib/dpkg/status.d"  # where they look in images without a package manager
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


def _fetch(packages: Sequence[Package], cache: Path) -> None:
    names = [package.name for package in packages]
    with _open_apt(packages[0].architecture) as (apt, folder):
        served = apt.list_versions(names)
        if any(package.version not in served[package.name] for package in packages):
            newest = {(p.name, p.architecture): _name_versions(p, served[p.name]) for p in packages}
            raise StaleLock(describe_changes(packages, newest))
        debs = apt.download([f"{p.name}={p.version}" for p in packages], folder / "debs")
        for package in packages:
            _check(debs[package.name], package)
            _keep(package.name, package.architecture, debs[package.name], cache)


def _name_versions(package: Package, served: set[str]) -> str:
    """What is served: the locked version where it still is, else all others."""
    return package.version if package.version in served else " and ".join(sorted(served)) or "no version"


@contextmanager
def _open_apt(architecture: str) -> Iterator[tuple[PrivateApt, Path]]:
    """apt with the release of the image and its security updates, from where this machine gets its own."""
    release = read_release()
    security = find_host_source(f"{release.suite}-security")
    also = [(security, [f"{SUITE}-security"])] if security else []
    with tempfile.TemporaryDirectory(prefix="image-apt-") as folder:
        suites = (SUITE, f"{SUITE}-updates")
        apt = PrivateApt(Path(folder, "apt"), release.source, suites, architecture, also)
        apt.update()
        yield apt, Path(folder)


def _keep(name: str, architecture: str, file: Path, cache: Path) -> Package:
    package = Package(name, architecture, read_version(file), hash_file(file))
    place = _place(cache, package)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(f".{id(package)}")
    shutil.copyfile(file, partial)
    partial.replace(place)
    return package


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
            raise ImageError(f"package {piece.package} has no {pattern} (mend tools/image/slices.py)")
        for path in found:
            _move(tree, str(path.relative_to(tree)), root)


def find(tree: Path, pattern: str) -> list[Path]:
    """What a pattern names below ``tree``; links that lead nowhere, too, as those of a package alone may."""
    if "*" in pattern:
        return sorted(tree.glob(pattern))
    path = tree / pattern
    return [path] if path.is_symlink() or path.exists() else []


def _is_optional(pattern: str) -> bool:
    return pattern in ("lib64", "usr/lib64")  # arm64 has none


def _move(tree: Path, name: str, root: Path, *, only_links: bool = False) -> None:
    """One file, link or whole folder to its place in ``root``, where a folder may have some of it already."""
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

"""Get a stock kernel, QEMU and the guest's tools from the distribution, without installing anything.

Talks to the private apt of ``testbed.debian``. What is unpacked stays in one folder per version of a
cache that may be deleted at any time. Knows nothing of what the machine looks like or what it runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Release,
    Shortage,
    Unavailable,
    cache_folder,
    make_cache,
    read_release,
    unpack,
)

Report = Callable[[str], None]
"""Takes one line of progress."""

KERNEL_SUITES: Mapping[str, str] = {"bookworm": "bookworm-backports", "trixie": "trixie"}
"""Debian release -> the suite with Linux 6.12 and QEMU 10 (igb came with QEMU 8.0)."""

_PROGRAMS = (
    "qemu-system-x86",
    "busybox-static",
    "ethtool",
    "iproute2",
    "iputils-ping",
    "kmod",
    "pciutils",
    "zstd",
)

_COMPILER = {"gcc": "gcc", "make": "make"}
"""Program -> package; taken only where the host has none."""

_NEVER = re.compile(
    r"libc6|libc-bin|.*-base|adduser|passwd|debconf.*|perl.*|libpam.*|libaudit.*|libsemanage.*"
)
"""What each Debian has. A second libc next to the host's loader would not even start."""

_MERGED = ("bin", "sbin", "lib", "lib64")
"""Top folders that are links into ``usr`` since the merge; in an overlay real ones would hide the host's."""

_REMEDIES: Mapping[StrEnum, str] = {
    Shortage.NO_APT: "run it on Debian bookworm or trixie",
    Shortage.NOT_DEBIAN_LIKE: "run it on Debian bookworm or trixie",
    Shortage.NO_MIRROR: "add one to /etc/apt, or run it on Debian bookworm or trixie",
    Shortage.FETCH_FAILED: "the package mirror must be in reach once; then the cache serves",
}

_WALL = "only Debian bookworm and trixie on amd64 have the packages this lane knows"


class Cause(StrEnum):
    """Why, besides a :class:`Shortage` of packages, there is no machine here."""

    UNKNOWN_RELEASE = "UnknownRelease"
    WRONG_ARCHITECTURE = "WrongArchitecture"
    NO_CHECKOUT = "NoCheckout"
    BUILD_FAILED = "BuildFailed"
    NOT_RUNNABLE = "NotRunnable"


class MachineUnavailable(Unavailable):
    """The machine cannot be had here; the lane is skipped with the cause in one line."""


@dataclass(frozen=True, slots=True)
class Packages:
    """Unpacked packages. ``kernel`` is the release as ``uname -r`` prints it."""

    folder: Path
    kernel: str
    versions: Mapping[str, str]

    @property
    def prefix(self) -> Path:
        """QEMU and the tools; also a layer of the guest's root, so it holds ``usr`` and links into it."""
        return self.folder / "prefix"

    @property
    def kernel_tree(self) -> Path:
        """``boot/vmlinuz-*``, ``usr/lib/modules`` and the headers in ``usr/src``."""
        return self.folder / "kernel"

    @property
    def library_dir(self) -> Path:
        return self.prefix / "usr/lib/x86_64-linux-gnu"

    def environment(self) -> dict[str, str]:
        """For programs of the prefix that run on the host: they find their libraries and each other."""
        own = [str(self.prefix / "usr" / name) for name in ("bin", "sbin")]
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *own])
        return {**os.environ, "LC_ALL": "C.UTF-8", "PATH": path, "LD_LIBRARY_PATH": str(self.library_dir)}


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/dranet/machine``, by default below ``~/.cache``.

    Raises:
        MachineUnavailable: the caller has no home.
    """
    try:
        return cache_folder("machine")
    except PackagesUnavailable as error:
        raise MachineUnavailable(error.cause, error.detail) from error


def find_packages(cache_dir: Path) -> Packages | None:
    """The newest packages that were fetched before for what we want now, or ``None``; needs no network."""
    manifests = cache_dir.resolve().glob(f"packages-*-{_digest(_wanted())}/manifest.json")
    newest = max(manifests, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return None
    data = json.loads(newest.read_text())
    return Packages(newest.parent, data["kernel"], data["versions"])


def fetch_packages(cache_dir: Path, report: Report) -> Packages:
    """Return the cached packages, or fetch and unpack them (20 s, 150 MB of packages). Blocks.

    Raises:
        MachineUnavailable: no apt, another release or architecture, no mirror, no network.
    """
    found = find_packages(cache_dir)
    if found is not None:
        return found
    try:
        release = read_release()
        check_release(release)
        cache_dir = cache_dir.resolve()
        make_cache(cache_dir)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir) as temporary:
            return _fetch(Path(temporary), cache_dir, release, report)
    except PackagesUnavailable as error:
        raise MachineUnavailable(error.cause, f"{error.detail} ({_REMEDIES[error.cause]})") from error


def check_release(release: Release) -> None:
    """Refuse by name what this lane has no package names for.

    Raises:
        MachineUnavailable: another distribution, suite or architecture.
    """
    if release.distribution != "debian" or release.suite not in KERNEL_SUITES:
        detail = f"this is {release.distribution} {release.suite}; {_WALL}"
        raise MachineUnavailable(Cause.UNKNOWN_RELEASE, detail)
    if release.architecture != "amd64":
        raise MachineUnavailable(Cause.WRONG_ARCHITECTURE, f"this is {release.architecture}; {_WALL}")


def _wanted() -> list[str]:
    return [*_PROGRAMS, *(name for program, name in _COMPILER.items() if shutil.which(program) is None)]


def _digest(names: list[str]) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


def _fetch(work: Path, cache_dir: Path, release: Release, report: Report) -> Packages:
    suite = KERNEL_SUITES[release.suite]
    apt = PrivateApt(work / "apt", release.source, (release.suite, suite), release.architecture)
    report(f"reading the package index of {release.suite} and {suite}")
    apt.update()
    programs = {n: v for n, v in apt.resolve(_wanted(), suite).items() if not _NEVER.fullmatch(n)}
    kernel, kernel_packages = _resolve_kernel(apt, suite)
    report(f"downloading Linux {kernel}, QEMU {programs['qemu-system-x86']} and tools")
    wanted = [f"{name}={version}" for name, version in programs.items()]
    debs = apt.download([*wanted, *(f"{name}/{suite}" for name in kernel_packages)], work / "debs")
    report("unpacking")
    stage = work / "stage"
    for name, deb in debs.items():
        unpack(deb, stage / ("kernel" if name in kernel_packages else "prefix"))
    merge_usr(stage / "kernel")
    merge_usr(stage / "prefix")
    manifest = {"kernel": kernel, "versions": programs}
    (stage / "manifest.json").write_text(json.dumps(manifest, indent=1))
    final = cache_dir / f"packages-{release.suite}-{kernel}-{_digest(_wanted())}"
    # Another process may have won the race; its result is as good.
    with contextlib.suppress(OSError):
        stage.rename(final)
    return Packages(final, kernel, programs)


def _resolve_kernel(apt: PrivateApt, suite: str) -> tuple[str, tuple[str, ...]]:
    """The release, and the packages of the image and of the headers to build modules for it."""
    depends = apt.read_field("linux-image-amd64", "Depends", suite)
    kernel = _first(r"linux-image-(\S+)", depends)
    headers = f"linux-headers-{kernel}"
    depends = apt.read_field(headers, "Depends", suite)
    common, kbuild = (
        _first(r"(linux-headers-\S+-common)", depends),
        _first(r"(linux-kbuild-[^\s,]+)", depends),
    )
    return kernel, (f"linux-image-{kernel}", headers, common, kbuild)


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise MachineUnavailable(Shortage.FETCH_FAILED, f"no {pattern} among the dependencies {text!r}")
    return match[1]


def merge_usr(tree: Path) -> None:
    """Bring a tree of packages from before the merge of ``/lib`` and ``/usr/lib`` to the new shape.

    Absolute links stay inside the tree then (``depmod`` is one, to ``/bin/kmod``), and what belongs to the
    host's own state (``etc``, ``var``) goes.
    """
    for name in _MERGED:
        folder, target = tree / name, tree / "usr" / name
        target.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and not folder.is_symlink():
            shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True, copy_function=os.replace)
            shutil.rmtree(folder)
        folder.symlink_to(f"usr/{name}")
    for name in ("etc", "var"):
        shutil.rmtree(tree / name, ignore_errors=True)
    for entry in (*(tree / "usr/bin").iterdir(), *(tree / "usr/sbin").iterdir()):
        _keep_inside(tree, entry)


def _keep_inside(tree: Path, link: Path) -> None:
    if link.is_symlink() and link.readlink().is_absolute():
        target = tree / link.readlink().relative_to("/")
        link.unlink()
        link.symlink_to(os.path.relpath(target, link.parent))

"""Get a real containerd and runc from the distribution's packages, without installing anything.

Talks to the private apt of ``testbed.debian``. What is kept is only the handful of programs that a pod
needs, in one folder per version of a cache that may be deleted at any time.

Knows nothing of pods, the CRI or namespaces.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from testbed.containerd.image import write_image_archive
from testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Release,
    Report,
    Shortage,
    ToolFailed,
    Unavailable,
    cache_folder,
    keep,
    make_cache,
    read_release,
    read_version,
    run_tool,
    unpack,
)

DEBIAN_CONTAINERD_SUITE = "trixie"
"""The stable Debian release with containerd 1.7; its binary runs from glibc 2.34 on, so on bookworm too."""

NEWER_SUITES = ("forky", "sid")
"""Debian releases in the making, the steadier one first, for a containerd of a later major version."""

_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
    "runc": ("usr/sbin/runc",),
    "containernetworking-plugins": ("usr/lib/cni/ptp", "usr/lib/cni/host-local", "usr/lib/cni/loopback"),
    "busybox-static": ("bin/busybox",),
}
"""Package -> the files kept of it. Everything lands in one flat ``bin`` folder."""


class Cause(StrEnum):
    """Why, besides a :class:`Shortage` of packages, there is no real runtime here."""

    NOT_ROOT = "NotRoot"
    NOT_RUNNABLE = "NotRunnable"
    NOT_ISOLATED = "NotIsolated"
    NO_MOUNTS = "NoMounts"
    NO_CGROUPS = "NoCgroups"


class ContainerdUnavailable(Unavailable):
    """A real containerd cannot be had on this machine; each skipped test names the reason in one line."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs of one containerd version. ``packages`` maps each package to its full version."""

    folder: Path
    version: str
    packages: Mapping[str, str]

    @property
    def major(self) -> int:
        """1 or 2: they differ in their configuration, and in what they send to plugins."""
        return int(self.version.partition(".")[0])

    @property
    def bin_dir(self) -> Path:
        """containerd, its shim, ctr, runc, busybox and the CNI plugins."""
        return self.folder / "bin"

    @property
    def image_archive(self) -> Path:
        """OCI archive with the pause and the busybox image."""
        return self.folder / "images.tar"


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/dranet/containerd``, by default below ``~/.cache``.

    Raises:
        ContainerdUnavailable: the caller has no home.
    """
    try:
        return cache_folder("containerd")
    except PackagesUnavailable as error:
        raise ContainerdUnavailable(error.cause, error.detail) from error


def find_toolchain(cache_dir: Path, containerd_suite: str | None = None) -> Toolchain | None:
    """A toolchain that was fetched before, or ``None``; needs no network."""
    manifests = cache_dir.resolve().glob(f"{containerd_suite or '*'}-*/manifest.json")
    for manifest in sorted(manifests, reverse=True):
        if containerd_suite or not json.loads(manifest.read_text())["explicit_suite"]:
            return read_toolchain(manifest.parent)
    return None


def read_toolchain(folder: Path) -> Toolchain:
    """The toolchain that was unpacked in this folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return Toolchain(folder, manifest["version"], manifest["packages"])


def fetch_toolchain(cache_dir: Path, report: Report, containerd_suite: str | None = None) -> Toolchain:
    """Return the cached toolchain, or fetch and unpack one (5 s, 43 MB of packages).

    ``containerd_suite`` overrides the release that containerd is taken from. Blocks; give it a thread.

    Raises:
        ContainerdUnavailable: no apt, not Debian-like, no mirror, no network, or the binary does not run.
    """
    found = find_toolchain(cache_dir, containerd_suite)
    if found is not None:
        return found
    try:
        return _fetch(cache_dir.resolve(), report, containerd_suite)
    except PackagesUnavailable as error:
        raise ContainerdUnavailable(error.cause, error.detail) from error


def fetch_newer_toolchain(cache_dir: Path, report: Report) -> Toolchain:
    """As :func:`fetch_toolchain`, with a containerd of version 2 or later: whatever is offered today.

    Raises:
        ContainerdUnavailable: none is, or it does not run here; names the cause for each place.
    """
    cached = (find_toolchain(cache_dir, suite) for suite in NEWER_SUITES)
    if found := next((toolchain for toolchain in cached if toolchain and toolchain.major >= 2), None):
        return found
    complaints = []
    for suite in NEWER_SUITES:
        try:
            toolchain = fetch_toolchain(cache_dir, report, suite)
        except ContainerdUnavailable as error:
            complaints.append(f"{suite}: {error}")
        else:
            if toolchain.major >= 2:
                return toolchain
            complaints.append(f"{suite} has containerd {toolchain.version}")
    raise ContainerdUnavailable(Shortage.FETCH_FAILED, f"no containerd 2: {'; '.join(complaints)}")


def _fetch(cache_dir: Path, report: Report, explicit_suite: str | None) -> Toolchain:
    release = read_release()
    suite = explicit_suite or (DEBIAN_CONTAINERD_SUITE if release.distribution == "debian" else release.suite)
    make_cache(cache_dir)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir) as temporary:
        work = Path(temporary)
        debs = _download(work, release, suite, report)
        report("unpacking")
        stage = work / "stage"
        packages = {name: _keep(deb, _PROGRAMS[name], stage / "bin") for name, deb in debs.items()}
        version = _read_containerd_version(stage / "bin" / "containerd")
        write_image_archive(stage / "bin" / "busybox", stage / "images.tar")
        manifest = {"version": version, "packages": packages, "explicit_suite": explicit_suite is not None}
        (stage / "manifest.json").write_text(json.dumps(manifest, indent=1))
        final = cache_dir / f"{suite}-{version}-{release.suite}-{release.architecture}"
        keep(stage, final)
    report(f"containerd {version} is ready in {final}")
    return Toolchain(final, version, packages)


def _download(work: Path, release: Release, containerd_suite: str, report: Report) -> dict[str, Path]:
    """Package name -> the downloaded ``.deb``; index and packages go with the temporary folder."""
    apt = PrivateApt(work / "apt", release.source, (release.suite, containerd_suite), release.architecture)
    report(f"reading the package index of {release.suite} and {containerd_suite}")
    apt.update()
    report(f"downloading {', '.join(_PROGRAMS)}")
    wanted = [f"{name}/{containerd_suite if name == 'containerd' else release.suite}" for name in _PROGRAMS]
    return apt.download(wanted, work / "debs")


def _keep(deb: Path, wanted: Sequence[str], bin_dir: Path) -> str:
    """Keep ``wanted`` of one package; returns the package's version."""
    tree = deb.with_suffix("")
    unpack(deb, tree)
    bin_dir.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        _find_program(tree, name).rename(bin_dir / Path(name).name)
    shutil.rmtree(tree)
    return read_version(deb)


def _find_program(tree: Path, name: str) -> Path:
    """Releases after the merge of ``/bin`` and ``/usr/bin`` ship the same program below ``/usr``."""
    for candidate in (tree / name, tree / "usr" / name, tree / name.replace("/sbin/", "/bin/")):
        if candidate.is_file():
            return candidate
    raise ContainerdUnavailable(Shortage.FETCH_FAILED, f"package {tree.name} has no {name}")


def _read_containerd_version(containerd: Path) -> str:
    try:
        text = run_tool([str(containerd), "--version"])
    except ToolFailed as error:
        raise ContainerdUnavailable(Cause.NOT_RUNNABLE, str(error)) from error
    match = re.search(r"\d+\.\d+\.\d+", text)
    if match is None:
        raise ContainerdUnavailable(Cause.NOT_RUNNABLE, f"containerd --version printed {text!r}")
    return match.group()

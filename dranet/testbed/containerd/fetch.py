"""Get a real containerd and runc from the distribution's packages, without installing anything.

Talks to apt-get and dpkg-deb with an index, cache and configuration of their own; the host's package
database is neither read nor written, and no maintainer script runs. What is kept is only the handful of
programs that a pod needs, in one folder per version of a cache that may be deleted at any time.

Knows nothing of pods, the CRI or namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dranet.testbed.containerd.apt import (
    AptSource,
    find_source,
    parse_classic,
    parse_deb822,
    parse_os_release,
)
from dranet.testbed.containerd.image import write_image_archive

Report = Callable[[str], None]
"""Takes one line of progress."""

DEBIAN_CONTAINERD_SUITE = "trixie"
"""The stable Debian release with containerd 1.7; its binary runs from glibc 2.34 on, so on bookworm too."""

_APT_TIMEOUT_SECONDS = 300.0

_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
    "runc": ("usr/sbin/runc",),
    "containernetworking-plugins": ("usr/lib/cni/ptp", "usr/lib/cni/host-local", "usr/lib/cni/loopback"),
    "busybox-static": ("bin/busybox",),
}
"""Package -> the files kept of it. Everything lands in one flat ``bin`` folder."""


class Cause(StrEnum):
    """Why there is no real runtime here; said in one line with each skipped test."""

    NOT_ROOT = "NotRoot"
    NO_APT = "NoApt"
    NOT_DEBIAN_LIKE = "NotDebianLike"
    NO_MIRROR = "NoMirror"
    FETCH_FAILED = "FetchFailed"
    NOT_RUNNABLE = "NotRunnable"
    NOT_ISOLATED = "NotIsolated"
    NO_MOUNTS = "NoMounts"
    NO_CGROUPS = "NoCgroups"


class ContainerdUnavailable(Exception):
    """A real containerd cannot be had on this machine; nothing is broken. ``cause`` is from a closed list."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{cause}: {' '.join(detail.split())}")
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs of one containerd version. ``packages`` maps each package to its full version."""

    folder: Path
    version: str
    packages: Mapping[str, str]

    @property
    def bin_dir(self) -> Path:
        """containerd, its shim, ctr, runc, busybox and the CNI plugins."""
        return self.folder / "bin"

    @property
    def image_archive(self) -> Path:
        """OCI archive with the pause and the busybox image."""
        return self.folder / "images.tar"


@dataclass(frozen=True, slots=True)
class _Release:
    """The host's release and where containerd comes from."""

    suite: str
    containerd_suite: str
    architecture: str
    source: AptSource


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/dranet/containerd``, by default below ``~/.cache``.

    Raises:
        ContainerdUnavailable: the caller has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "dranet" / "containerd"
    except RuntimeError as error:
        raise _no_cache(base, str(error)) from error


def find_toolchain(cache_dir: Path, containerd_suite: str | None = None) -> Toolchain | None:
    """A toolchain that was fetched before, or ``None``; needs no network."""
    manifests = cache_dir.resolve().glob(f"{containerd_suite or '*'}-*/manifest.json")
    for manifest in sorted(manifests, reverse=True):
        data = json.loads(manifest.read_text())
        if containerd_suite or not data["explicit_suite"]:
            return Toolchain(manifest.parent, data["version"], data["packages"])
    return None


def fetch_toolchain(cache_dir: Path, report: Report, containerd_suite: str | None = None) -> Toolchain:
    """Return the cached toolchain, or fetch and unpack one (5 s, 43 MB of packages).

    ``containerd_suite`` overrides the release that containerd is taken from. Blocks; give it a thread.

    Raises:
        ContainerdUnavailable: no apt, not Debian-like, no mirror, no network, or the binary does not run.
    """
    found = find_toolchain(cache_dir, containerd_suite)
    if found is not None:
        return found
    release = _read_release(containerd_suite)
    cache_dir = cache_dir.resolve()
    _make_cache(cache_dir)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir) as temporary:
        work = Path(temporary)
        debs = _download(work / "apt", release, report)
        report("unpacking")
        stage = work / "stage"
        packages = {name: _unpack(deb, _PROGRAMS[name], stage / "bin") for name, deb in debs.items()}
        version = _read_version(stage / "bin" / "containerd")
        write_image_archive(stage / "bin" / "busybox", stage / "images.tar")
        manifest = {"version": version, "packages": packages, "explicit_suite": containerd_suite is not None}
        (stage / "manifest.json").write_text(json.dumps(manifest, indent=1))
        final = cache_dir / f"{release.containerd_suite}-{version}-{release.suite}-{release.architecture}"
        # Somebody else may have won the race; theirs is as good.
        with contextlib.suppress(OSError):
            stage.rename(final)
    report(f"containerd {version} is ready in {final}")
    return Toolchain(final, version, packages)


def _make_cache(cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_cache(str(cache_dir), error.strerror or str(error)) from error


def _no_cache(where: str, why: str) -> ContainerdUnavailable:
    return ContainerdUnavailable(
        Cause.FETCH_FAILED, f"{where}: {why}; name a writable folder with XDG_CACHE_HOME"
    )


def _read_release(containerd_suite: str | None) -> _Release:
    for program in ("apt-get", "dpkg", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ContainerdUnavailable(Cause.NO_APT, f"this machine has no {program}")
    os_release = parse_os_release(_read_text(Path("/etc/os-release")))
    suite = os_release.get("VERSION_CODENAME", "")
    if not suite:
        raise ContainerdUnavailable(Cause.NOT_DEBIAN_LIKE, "/etc/os-release has no VERSION_CODENAME")
    source = find_source(_read_sources(Path("/etc/apt")), suite)
    if source is None:
        raise ContainerdUnavailable(Cause.NO_MIRROR, f"no apt source here serves {suite} main")
    own = DEBIAN_CONTAINERD_SUITE if os_release.get("ID") == "debian" else suite
    architecture = _run(["dpkg", "--print-architecture"], Cause.NO_APT).strip()
    return _Release(suite, containerd_suite or own, architecture, source)


def _read_sources(apt_dir: Path) -> list[AptSource]:
    files = [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]
    sources: list[AptSource] = []
    for file in files:
        parse = {".sources": parse_deb822, ".list": parse_classic}.get(file.suffix)
        if parse is not None:
            sources += parse(_read_text(file))
    return sources


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _download(apt_dir: Path, release: _Release, report: Report) -> dict[str, Path]:
    """Package name -> the downloaded ``.deb``; index and packages go with the temporary folder."""
    config = _write_apt_config(apt_dir, release)
    report(f"reading the package index of {release.suite} and {release.containerd_suite}")
    _run(["apt-get", "-qq", "-c", str(config), "update"], Cause.FETCH_FAILED)
    downloads = apt_dir / "debs"
    downloads.mkdir()
    report(f"downloading {', '.join(_PROGRAMS)}")
    wanted = [
        f"{name}/{release.containerd_suite if name == 'containerd' else release.suite}" for name in _PROGRAMS
    ]
    _run(["apt-get", "-qq", "-c", str(config), "download", *wanted], Cause.FETCH_FAILED, cwd=downloads)
    return {name: next(downloads.glob(f"{name}_*.deb")) for name in _PROGRAMS}


def _write_apt_config(apt_dir: Path, release: _Release) -> Path:
    """A configuration read after the host's own: its proxies hold, and nothing of the host is touched.

    The host's hooks are cleared (some images delete the host's package cache after each update), and so are
    the further indexes that desktop packages ask for.
    """
    for folder in ("parts", "state/lists/partial", "cache/archives/partial"):
        (apt_dir / folder).mkdir(parents=True)
    status = apt_dir / "status"
    status.touch()
    suites = dict.fromkeys((release.suite, release.containerd_suite))
    (apt_dir / "parts" / "testbed.sources").write_text(release.source.stanza(suites, release.architecture))
    config = apt_dir / "apt.conf"
    config.write_text(
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
        "#clear DPkg::Post-Invoke;\n"
        "#clear Acquire::IndexTargets;\n"
        'Acquire::IndexTargets::deb::Packages { MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages"; '
        'ShortDescription "Packages"; Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages"; '
        'Optional "no"; };\n'
        'Dir::Etc::SourceList "/dev/null";\n'
        f'Dir::Etc::SourceParts "{apt_dir / "parts"}";\n'
        f'Dir::State "{apt_dir / "state"}";\n'
        f'Dir::State::status "{status}";\n'
        f'Dir::Cache "{apt_dir / "cache"}";\n'
        'APT::Sandbox::User "root";\n'
        'APT::Update::Error-Mode "any";\n'
        'APT::Default-Release "";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "2";\n'
        'Acquire::http::Timeout "20";\n'
        'Acquire::https::Timeout "20";\n'
    )
    return config


def _unpack(deb: Path, wanted: Sequence[str], bin_dir: Path) -> str:
    """Keep ``wanted`` of one package; returns the package's version."""
    tree = deb.with_suffix("")
    _run(["dpkg-deb", "-x", str(deb), str(tree)], Cause.FETCH_FAILED)
    bin_dir.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        _find_program(tree, name).rename(bin_dir / Path(name).name)
    shutil.rmtree(tree)
    return _run(["dpkg-deb", "-f", str(deb), "Version"], Cause.FETCH_FAILED).strip()


def _find_program(tree: Path, name: str) -> Path:
    """Releases after the merge of ``/bin`` and ``/usr/bin`` ship the same program below ``/usr``."""
    for candidate in (tree / name, tree / "usr" / name, tree / name.replace("/sbin/", "/bin/")):
        if candidate.is_file():
            return candidate
    raise ContainerdUnavailable(Cause.FETCH_FAILED, f"package {tree.name} has no {name}")


def _read_version(containerd: Path) -> str:
    text = _run([str(containerd), "--version"], Cause.NOT_RUNNABLE)
    match = re.search(r"\d+\.\d+\.\d+", text)
    if match is None:
        raise ContainerdUnavailable(Cause.NOT_RUNNABLE, f"containerd --version says {text!r}")
    return match.group()


def _run(command: Sequence[str], cause: Cause, cwd: Path | None = None) -> str:
    """Standard output of ``command``; its first error line becomes the detail."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_APT_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or [f"exit code {error.returncode}"]
        raise ContainerdUnavailable(cause, f"{Path(command[0]).name}: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContainerdUnavailable(cause, f"{Path(command[0]).name}: {error}") from error
    return done.stdout

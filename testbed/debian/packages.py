"""Download and unpack packages of the host's release with an apt of our own; nothing is installed.

Talks to apt-get, apt-cache and dpkg-deb with an index, cache and configuration below one folder; the host's
package database is neither read nor written, and no maintainer script runs. Knows nothing of what the
packages are for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from testbed.debian.sources import (
    AptSource,
    find_source,
    parse_classic,
    parse_deb822,
    parse_os_release,
)

Report = Callable[[str], None]
"""Takes one line of progress."""

_TIMEOUT_SECONDS = 300.0

_SIMULATED_INSTALL = re.compile(r"^Inst (\S+) \((\S+)", re.MULTILINE)

_LOCATED = re.compile(r"^'[^']+' (\S+?)_(\S+)_\S+\.deb \d+ SHA256:([0-9a-f]{64})$", re.MULTILINE)


class Shortage(StrEnum):
    """Why packages cannot be had on this machine."""

    NO_APT = "NoApt"
    NOT_DEBIAN_LIKE = "NotDebianLike"
    NO_MIRROR = "NoMirror"
    FETCH_FAILED = "FetchFailed"


class Unavailable(Exception):
    """This machine does not have what is wanted; nothing is broken. ``cause`` is from a closed list."""

    def __init__(self, cause: StrEnum, detail: str) -> None:
        self.cause, self.detail = cause, " ".join(detail.split())
        super().__init__(f"{cause}: {self.detail}")


class PackagesUnavailable(Unavailable):
    """Packages cannot be had. ``cause`` is a :class:`Shortage`."""


class ToolFailed(Exception):
    """A program ended badly, or could not be started; the text names it and its first error line."""


@dataclass(frozen=True, slots=True)
class Release:
    """The host's release: ``debian``, ``bookworm``, ``amd64``, and where its packages come from."""

    distribution: str
    suite: str
    architecture: str
    source: AptSource


def read_release() -> Release:
    """The release this machine runs.

    Raises:
        PackagesUnavailable: no apt, not Debian-like, or no source of its own suite.
    """
    for program in ("apt-get", "apt-cache", "dpkg", "dpkg-deb"):
        if shutil.which(program) is None:
            raise PackagesUnavailable(Shortage.NO_APT, f"this machine has no {program}")
    os_release = parse_os_release(_read_text(Path("/etc/os-release")))
    suite = os_release.get("VERSION_CODENAME", "")
    if not suite:
        raise PackagesUnavailable(Shortage.NOT_DEBIAN_LIKE, "/etc/os-release has no VERSION_CODENAME")
    source = find_host_source(suite)
    if source is None:
        raise PackagesUnavailable(Shortage.NO_MIRROR, f"no apt source here serves {suite} main")
    try:
        architecture = run_tool(["dpkg", "--print-architecture"]).strip()
    except ToolFailed as error:
        raise PackagesUnavailable(Shortage.NO_APT, str(error)) from error
    return Release(os_release.get("ID", ""), suite, architecture, source)


def find_host_source(suite: str) -> AptSource | None:
    """Where this machine gets component ``main`` of ``suite`` from."""
    return find_source(_read_sources(Path("/etc/apt")), suite)


def cache_folder(lane: str) -> Path:
    """``$XDG_CACHE_HOME/dranet/<lane>``, by default below ``~/.cache``; perhaps not there yet.

    Raises:
        PackagesUnavailable: the caller has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "dranet" / lane
    except RuntimeError as error:
        raise _no_cache(base, str(error)) from error


def make_cache(folder: Path) -> None:
    """Make a cache folder that may be there.

    Raises:
        PackagesUnavailable: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_cache(str(folder), error.strerror or str(error)) from error


def keep(stage: Path, final: Path) -> None:
    """Move what was made into its place in the cache; where another process was quicker, its result is as
    good.

    Raises:
        PackagesUnavailable: it cannot be kept.
    """
    try:
        stage.rename(final)
    except OSError as error:
        if not final.is_dir():
            raise _no_cache(str(final), error.strerror or str(error)) from error


def _no_cache(where: str, why: str) -> PackagesUnavailable:
    detail = f"{where}: {why}; name a writable folder with XDG_CACHE_HOME"
    return PackagesUnavailable(Shortage.FETCH_FAILED, detail)


class PrivateApt:
    """apt with everything below ``folder``, for ``suites`` of one source. The caller removes the folder.

    ``architecture`` need not be the machine's. ``also`` are further sources, each with its suites.
    """

    def __init__(
        self,
        folder: Path,
        source: AptSource,
        suites: Iterable[str],
        architecture: str,
        also: Iterable[tuple[AptSource, Iterable[str]]] = (),
    ) -> None:
        self._folder = folder
        self._config = write_apt_config(folder, source, suites, architecture, also)

    def update(self) -> None:
        """Read the package indexes.

        Raises:
            PackagesUnavailable: the mirror does not answer, or does not serve a suite.
        """
        self._run("apt-get", "-qq", "update")

    def resolve(self, names: Sequence[str], suite: str) -> dict[str, str]:
        """Package -> version of ``names`` and all they depend on, preferring ``suite``; no recommendations.

        Raises:
            PackagesUnavailable: one is unknown, or they do not fit together.
        """
        options = ("-qq", "--simulate", "--no-install-recommends", "-t", suite)
        text = self._run("apt-get", *options, "install", *names)
        return dict(_SIMULATED_INSTALL.findall(text))

    def read_field(self, name: str, field: str, suite: str) -> str:
        """One field of a package's record (``Depends``), empty where it has none."""
        text = self._run(
            "apt-cache", "-o", f"APT::Default-Release={suite}", "show", "--no-all-versions", name
        )
        match = re.search(rf"^{re.escape(field)}: (.*)$", text, re.MULTILINE)
        return match[1] if match else ""

    def list_versions(self, names: Sequence[str]) -> dict[str, set[str]]:
        """Package -> every version that the sources serve."""
        rows = (line.split("|") for line in self._run("apt-cache", "madison", *names).splitlines())
        versions: dict[str, set[str]] = {name: set() for name in names}
        for name, version, *_ in rows:
            versions[name.strip()].add(version.strip())
        return versions

    def locate(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Package -> version and SHA-256 of the file that would be downloaded.

        Raises:
            PackagesUnavailable: one is unknown, or the mirror's index has no such hash.
        """
        text = self._run("apt-get", "-qq", "--print-uris", "download", *names)
        found = {name: (unquote(version), digest) for name, version, digest in _LOCATED.findall(text)}
        if missing := set(names) - set(found):
            raise PackagesUnavailable(
                Shortage.FETCH_FAILED, f"not in the index: {', '.join(sorted(missing))}"
            )
        return {name: found[name] for name in names}

    def download(self, wanted: Sequence[str], folder: Path) -> dict[str, Path]:
        """Package -> its ``.deb`` in ``folder``; ``wanted`` may contain ``name/suite`` or ``name=version``.

        Raises:
            PackagesUnavailable: one cannot be had.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._run("apt-get", "-qq", "download", *wanted, cwd=folder)
        names = [re.split("[/=]", item)[0] for item in wanted]
        return {name: next(folder.glob(f"{name}_*.deb")) for name in names}

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        try:
            return run_tool([program, "-c", str(self._config), *arguments], cwd=cwd)
        except ToolFailed as error:
            raise PackagesUnavailable(Shortage.FETCH_FAILED, str(error)) from error


def write_apt_config(
    folder: Path,
    source: AptSource,
    suites: Iterable[str],
    architecture: str,
    also: Iterable[tuple[AptSource, Iterable[str]]] = (),
) -> Path:
    """A configuration read after the host's own: its proxies hold, and nothing of the host is touched.

    The host's hooks are cleared (some images delete the host's package cache after each update), and so are
    the further indexes that desktop packages ask for.
    """
    for name in ("parts", "state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    status = folder / "status"
    status.touch()
    stanzas = (
        place.stanza(dict.fromkeys(theirs), architecture) for place, theirs in ((source, suites), *also)
    )
    (folder / "parts" / "testbed.sources").write_text("\n".join(stanzas))
    config = folder / "apt.conf"
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
        f'Dir::Etc::SourceParts "{folder / "parts"}";\n'
        'Dir::Etc::Preferences "/dev/null";\n'
        'Dir::Etc::PreferencesParts "/dev/null";\n'
        f'Dir::State "{folder / "state"}";\n'
        f'Dir::State::status "{status}";\n'
        f'Dir::Cache "{folder / "cache"}";\n'
        'APT::Sandbox::User "root";\n'
        'APT::Update::Error-Mode "any";\n'
        'APT::Default-Release "";\n'
        "#clear APT::Architectures;\n"
        f'APT::Architecture "{architecture}";\n'
        f'APT::Architectures {{ "{architecture}"; }};\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "2";\n'
        'Acquire::http::Timeout "20";\n'
        'Acquire::https::Timeout "20";\n'
    )
    return config


def unpack(deb: Path, tree: Path) -> None:
    """The files of one package below ``tree``, which may hold others already.

    Raises:
        PackagesUnavailable: it is no package, or the disk is full.
    """
    tree.mkdir(parents=True, exist_ok=True)
    try:
        run_tool(["dpkg-deb", "-x", str(deb), str(tree)])
    except ToolFailed as error:
        raise PackagesUnavailable(Shortage.FETCH_FAILED, str(error)) from error


def read_version(deb: Path) -> str:
    """The full version of a package file."""
    try:
        return run_tool(["dpkg-deb", "-f", str(deb), "Version"]).strip()
    except ToolFailed as error:
        raise PackagesUnavailable(Shortage.FETCH_FAILED, str(error)) from error


def run_tool(command: Sequence[str], cwd: Path | None = None) -> str:
    """Standard output of ``command``.

    Raises:
        ToolFailed: with the first line of its errors.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or [f"exit code {error.returncode}"]
        raise ToolFailed(f"{name}: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolFailed(f"{name}: {error}") from error
    return done.stdout


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

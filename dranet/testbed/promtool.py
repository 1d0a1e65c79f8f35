"""Get ``promtool`` and ``prometheus`` from the distribution's packages, without installing anything.

Prometheus' own tool judges what the driver exposes (``promtool check metrics``), and rules and alerts; the
server scrapes a driver of the testbed. Talks to the private apt of ``dranet.testbed.debian``; what is kept
lies in one folder per version of a cache that may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dranet.testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Release,
    ToolFailed,
    Unavailable,
    make_cache,
    read_release,
    run_tool,
    unpack,
)

Report = Callable[[str], None]
"""Takes one line of progress."""

PROGRAM = "promtool"
SERVER = "prometheus"
SUITE = "trixie"
"""Of Debian, whatever release the machine runs: the linter of an older one knows fewer rules."""
_PACKAGE_BEFORE = "prometheus"
"""The tool has a package of its own since Debian 13; until then it came with the server."""


class Cause(StrEnum):
    """Why, besides a shortage of packages, there is none here."""

    NOT_RUNNABLE = "NotRunnable"


class PromtoolUnavailable(Unavailable):
    """It cannot be had on this machine; said in one line with each skipped test."""


@dataclass(frozen=True, slots=True)
class Promtool:
    """The program in a folder of its own."""

    program: Path
    version: str

    def check_metrics(self, text: str) -> tuple[str, ...]:
        """What is wrong with an exposition, one complaint a line; nothing is the best."""
        done = self.run("check", "metrics", text=text)
        return tuple(line for line in (done.stderr + done.stdout).splitlines() if line.strip())

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Any of its commands. The exit code is left to the caller."""
        command = [str(self.program), *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def find_promtool(cache_dir: Path) -> Promtool | None:
    """One that was fetched before; needs no network."""
    program = _find(cache_dir, PROGRAM)
    return Promtool(program, program.parent.name) if program else None


def fetch_promtool(cache_dir: Path, report: Report) -> Promtool:
    """The cached one, or fetch and unpack it. Blocking.

    Raises:
        PackagesUnavailable: no apt, not Debian-like, no mirror, no network, no such package.
        PromtoolUnavailable: it does not run here.
    """
    program = _find(cache_dir, PROGRAM) or _fetch(cache_dir.resolve(), PROGRAM, report)
    return Promtool(program, program.parent.name)


def find_prometheus(cache_dir: Path) -> Path | None:
    """The server that was fetched before, in a folder of its version; needs no network."""
    return _find(cache_dir, SERVER)


def fetch_prometheus(cache_dir: Path, report: Report) -> Path:
    """The server (17 MB to download), as :func:`fetch_promtool`."""
    return _find(cache_dir, SERVER) or _fetch(cache_dir.resolve(), SERVER, report)


def _find(cache_dir: Path, name: str) -> Path | None:
    return next(iter(sorted(cache_dir.resolve().glob(f"*/{name}"), reverse=True)), None)


def _fetch(cache_dir: Path, name: str, report: Report) -> Path:
    release = read_release()
    make_cache(cache_dir)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir) as temporary:
        work = Path(temporary)
        deb = _download(work, release, name, report)
        report("unpacking")
        unpack(deb, work / "tree")
        program = work / "tree" / "usr" / "bin" / name
        version = _read_version(program)
        stage = work / "stage"
        stage.mkdir()
        program.rename(stage / name)
        final = cache_dir / f"{version}-{release.architecture}"
        # Somebody else may have won the race; theirs is as good.
        with contextlib.suppress(OSError):
            stage.rename(final)
    report(f"{name} {version} is ready in {final}")
    return final / name


def _download(work: Path, release: Release, name: str, report: Report) -> Path:
    """The newer one where the mirror serves it, else that of the machine's own release."""
    try:
        return _download_from(work / "newer", release, SUITE, name, report)
    except PackagesUnavailable:
        return _download_from(work / "own", release, release.suite, _PACKAGE_BEFORE, report)


def _download_from(work: Path, release: Release, suite: str, package: str, report: Report) -> Path:
    work.mkdir()
    apt = PrivateApt(work / "apt", release.source, (suite,), release.architecture)
    report(f"reading the package index of {suite}")
    apt.update()
    report(f"downloading {package}")
    return apt.download([f"{package}/{suite}"], work / "debs")[package]


def _read_version(program: Path) -> str:
    try:
        text = run_tool([str(program), "--version"])
    except ToolFailed as error:
        raise PromtoolUnavailable(Cause.NOT_RUNNABLE, str(error)) from error
    found = re.search(r"version (\d+\.\d+\.\d+)", text)
    if found is None:
        raise PromtoolUnavailable(Cause.NOT_RUNNABLE, f"{program.name} --version says {text!r}")
    return found[1]

"""One program out of a package of the distribution, fetched without installing it and kept in a cache.

The cache has a folder for each program and in it one for each version; it may be deleted at any time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

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


class Cause(StrEnum):
    """Why, besides a :class:`Shortage` of packages, the program cannot be had here."""

    NOT_RUNNABLE = "NotRunnable"


class ProgramUnavailable(Unavailable):
    """What the packages have does not run on this machine."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program below ``usr/bin``. ``packages`` are those that have it, each with a suite of Debian, the best
    first; without a suite it is the machine's own release."""

    name: str
    packages: Sequence[tuple[str, str]]
    version_words: Sequence[str] = ("--version",)
    """What it is asked, to see that it runs here."""

    def find(self, cache: Path | None = None) -> Path | None:
        """One that was fetched before; needs no network."""
        folder = (cache or cache_folder(self.name)).resolve()
        return next(iter(sorted(folder.glob(f"*/{self.name}"), reverse=True)), None)

    def fetch(self, cache: Path | None = None, report: Report = lambda _: None) -> Path:
        """The cached one, or the first that is served and runs here. Blocking.

        Raises:
            PackagesUnavailable: no apt, not Debian-like, no mirror, no network, no such package.
            ProgramUnavailable: none runs here.
        """
        return self.find(cache) or self._fetch((cache or cache_folder(self.name)).resolve(), report)

    def _fetch(self, cache: Path, report: Report) -> Path:
        release = read_release()
        make_cache(cache)
        complaint: Unavailable | None = None
        for package, suite in self.packages:
            try:
                return self._fetch_from(cache, release, package, suite or release.suite, report)
            except Unavailable as error:
                complaint = error
        assert complaint is not None
        raise complaint

    def _fetch_from(self, cache: Path, release: Release, package: str, suite: str, report: Report) -> Path:
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as temporary:
            work = Path(temporary)
            apt = PrivateApt(work / "apt", release.source, (suite,), release.architecture)
            report(f"reading the package index of {suite}")
            apt.update()
            report(f"downloading {package}")
            deb = apt.download([f"{package}/{suite}"], work / "debs")[package]
            unpack(deb, work / "tree")
            final = cache / f"{read_version(deb).replace(':', '-')}-{release.architecture}"
            keep(self._stage(work, package), final)
        report(f"{self.name} is ready in {final}")
        return final / self.name

    def _stage(self, work: Path, package: str) -> Path:
        """A folder with the program alone, which runs."""
        program, stage = work / "tree" / "usr" / "bin" / self.name, work / "stage"
        if not program.is_file():
            raise PackagesUnavailable(Shortage.FETCH_FAILED, f"package {package} has no usr/bin/{self.name}")
        try:
            run_tool([str(program), *self.version_words])
        except ToolFailed as error:
            raise ProgramUnavailable(Cause.NOT_RUNNABLE, str(error)) from error
        stage.mkdir()
        program.rename(stage / self.name)
        return stage


KUBECTL = Program("kubectl", (("kubectl", "forky"), ("kubectl", "sid")), ("version", "--client"))
"""The suites before have one that is older than the API which the driver needs."""

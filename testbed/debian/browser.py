"""Get a real headless browser from the distribution's packages, without installing anything.

Talks to the private apt of ``testbed.debian``: Chromium's headless shell, the libraries that it loads
and one family of fonts, so that pages look the same on every machine. Each version has one folder
of a cache that may be deleted at any time. Driving the browser is the caller's affair.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from testbed.debian.packages import (
    PrivateApt,
    Release,
    Report,
    Shortage,
    ToolFailed,
    Unavailable,
    keep,
    make_cache,
    read_release,
    run_tool,
    unpack,
)

SHELL, COMMON, FONTS = "chromium-headless-shell", "chromium-common", "fonts-dejavu-core"

_NEEDED = (SHELL, "headless_*", "icudtl.dat", "*snapshot*.bin")
"""Files next to the program; the rest is for a browser that has a window."""

_NOT_LOADED = ("libc6", "libllvm", "libz3", "libgl", "libdrm-", "libx11-data", "libicu")
"""Libraries for graphics cards and of the C library, which the host has: nothing is drawn on a screen."""

_FONTS_CONF = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">font-cache</cachedir></fontconfig>
"""


class Cause(StrEnum):
    """Why, besides a :class:`Shortage` of packages, there is no browser here."""

    NOT_RUNNABLE = "NotRunnable"


class BrowserUnavailable(Unavailable):
    """The browser cannot be had on this machine; each skipped test names the reason in one line."""


@dataclass(frozen=True, slots=True)
class HeadlessBrowser:
    """A browser in a folder of its own."""

    folder: Path
    version: str

    @property
    def program(self) -> Path:
        return self.folder / "browser" / SHELL

    @property
    def environment(self) -> Mapping[str, str]:
        """What the program needs to find its own libraries and fonts, and no others."""
        return {
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "FONTCONFIG_FILE": str(self.folder / "fonts.conf"),
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder),
        }


def find_browser(cache_dir: Path) -> HeadlessBrowser | None:
    """One that was fetched before; needs no network."""
    for manifest in sorted(cache_dir.resolve().glob("*/manifest.json"), reverse=True):
        return HeadlessBrowser(manifest.parent, json.loads(manifest.read_text())["version"])
    return None


def fetch_browser(cache_dir: Path, report: Report) -> HeadlessBrowser:
    """The cached browser, or fetch and unpack one (10 s, 77 MB of packages). Blocking.

    Raises:
        PackagesUnavailable: no apt, not Debian-like, no mirror, no network, no such package.
        BrowserUnavailable: it does not run here.
    """
    return find_browser(cache_dir) or _fetch(cache_dir.resolve(), report)


def _fetch(cache_dir: Path, report: Report) -> HeadlessBrowser:
    release = read_release()
    make_cache(cache_dir)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir) as temporary:
        work = Path(temporary)
        debs = _download(work, release, report)
        report("unpacking")
        for deb in debs:
            unpack(deb, work / "tree")
            deb.unlink()
        stage = work / "stage"
        _arrange(work / "tree", stage)
        version = _read_version(HeadlessBrowser(stage, ""))
        (stage / "manifest.json").write_text(json.dumps({"version": version}))
        final = cache_dir / f"{release.suite}-{version}-{release.architecture}"
        keep(stage, final)
    report(f"Chromium {version} is ready in {final}")
    return HeadlessBrowser(final, version)


def _download(work: Path, release: Release, report: Report) -> list[Path]:
    apt = PrivateApt(work / "apt", release.source, (release.suite,), release.architecture)
    report(f"reading the package index of {release.suite}")
    apt.update()
    wanted = _choose(apt.resolve([SHELL, FONTS], release.suite))
    report(f"downloading {SHELL}, {FONTS} and {len(wanted) - 3} libraries")
    return list(apt.download(wanted, work / "debs").values())


def _choose(packages: Iterable[str]) -> list[str]:
    """The packages that it loads, out of all that it depends on."""
    libraries = [name for name in packages if name.startswith("lib") and not name.startswith(_NOT_LOADED)]
    return [SHELL, COMMON, FONTS, *libraries]


def _arrange(tree: Path, stage: Path) -> None:
    """The program with its own files, all libraries in one folder, the fonts."""
    program = next(path for path in tree.rglob(SHELL) if path.parent.name == "chromium")
    (stage / "lib").mkdir(parents=True)
    (stage / "browser").mkdir()
    for file in [file for pattern in _NEEDED for file in program.parent.glob(pattern)]:
        file.rename(stage / "browser" / file.name)
    for library in tree.rglob("*.so*"):
        if library.is_file():
            shutil.copyfile(library, stage / "lib" / library.name)
    (tree / "usr/share/fonts").rename(stage / "fonts")
    (stage / "fonts.conf").write_text(_FONTS_CONF)


def _read_version(browser: HeadlessBrowser) -> str:
    """The version of a browser that can show a page."""
    command = ["env", *(f"{name}={value}" for name, value in browser.environment.items())]
    command += [str(browser.program), "--no-sandbox"]
    try:
        text = run_tool([*command, "--version"])
        run_tool([*command, "--dump-dom", "about:blank"])
    except ToolFailed as error:
        raise BrowserUnavailable(Cause.NOT_RUNNABLE, str(error)) from error
    match = re.search(r"\d+(\.\d+)+", text)
    if match is None:
        raise BrowserUnavailable(Shortage.FETCH_FAILED, f"{SHELL} --version printed {text!r}")
    return match.group()

"""The browser of the page's tests: found where it was kept, and a named shortage where it cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.debian import browser
from testbed.debian.browser import Cause, HeadlessBrowser, fetch_browser, find_browser
from testbed.debian.packages import PackagesUnavailable, Shortage


def keep(folder: Path, version: str) -> None:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"version": version}))


def test_what_was_fetched_before_is_found_without_a_network(tmp_path: Path) -> None:
    assert find_browser(tmp_path) is None
    keep(tmp_path / "bookworm-150.1-amd64", "150.1")
    found = fetch_browser(tmp_path, print)
    assert found == HeadlessBrowser(tmp_path / "bookworm-150.1-amd64", "150.1")
    assert found.program == found.folder / "browser" / "chromium-headless-shell"
    assert found.environment["LD_LIBRARY_PATH"] == str(found.folder / "lib")


def test_without_a_mirror_the_shortage_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PackagesUnavailable(Shortage.NO_MIRROR, "no apt source here serves bookworm main")

    monkeypatch.setattr(browser, "read_release", refuse)
    with pytest.raises(PackagesUnavailable, match="NoMirror"):
        fetch_browser(tmp_path, print)


def test_of_all_that_it_depends_on_only_what_it_loads_is_fetched() -> None:
    packages = ["libc6", "libnss3", "x11-utils", "libllvm15", "libgbm1", "debconf", "libx11-6", "libx11-data"]
    assert browser._choose(packages)[3:] == ["libnss3", "libgbm1", "libx11-6"]


@pytest.mark.process
def test_a_program_that_does_not_run_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "browser").mkdir()
    program = HeadlessBrowser(tmp_path, "").program
    program.write_text("#!/bin/sh\necho 'no such library' >&2; exit 1\n")
    program.chmod(0o755)
    with pytest.raises(browser.BrowserUnavailable, match="no such library") as caught:
        browser._read_version(HeadlessBrowser(tmp_path, ""))
    assert caught.value.cause is Cause.NOT_RUNNABLE

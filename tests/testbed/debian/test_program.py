"""One program of the distribution: which package it is taken from, what is kept, and what is said without it.

The packages are real ones, built here; only the mirror is played.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from testbed.debian import program as module
from testbed.debian.packages import PackagesUnavailable, Release, Shortage, keep
from testbed.debian.program import Cause, Program, ProgramUnavailable
from testbed.debian.sources import AptSource

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")

RUNS = "#!/bin/sh\necho tool 1.2\n"
NOT_HERE = "#!/nonexistent\n"
TOOL = Program("tool", (("tool", "newer"), ("suite-of-tools", "")))

Mirror = Mapping[tuple[str, str], str]


def build_deb(folder: Path, package: str, script: str) -> Path:
    tree = folder / "built" / package
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    control = f"Package: {package}\nVersion: 1:1.2-3\nArchitecture: all\nMaintainer: x <x@example.com>\n"
    (tree / "DEBIAN" / "control").write_text(control + "Description: x\n")
    for name in ("tool", "another"):
        (tree / "usr/bin" / name).write_text(script)
        (tree / "usr/bin" / name).chmod(0o755)
    folder.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "-b", str(tree), str(folder)], check=True, capture_output=True)
    return next(folder.glob("*.deb"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mirror], list[str]]:
    """A mirror with these packages, by name and suite, on a machine of release ``own``; returns what was
    asked of it."""
    asked: list[str] = []

    def start(mirror: Mirror) -> list[str]:
        class Apt:
            def __init__(self, folder: Path, _source: AptSource, suites: Sequence[str], _arch: str) -> None:
                (self.suite,) = suites
                folder.mkdir()

            def update(self) -> None: ...

            def download(self, wanted: Sequence[str], folder: Path) -> dict[str, Path]:
                asked.extend(wanted)
                package = wanted[0].partition("/")[0]
                if (package, self.suite) not in mirror:
                    raise PackagesUnavailable(Shortage.FETCH_FAILED, f"no {wanted[0]}")
                return {package: build_deb(folder, package, mirror[package, self.suite])}

        monkeypatch.setattr(module, "PrivateApt", Apt)
        return asked

    source = AptSource("http://example.com", ("own",), ("main",), {})
    monkeypatch.setattr(module, "read_release", lambda: Release("debian", "own", "amd64", source))
    return start


@pytest.mark.process
def test_it_is_fetched_once_and_kept_alone_below_its_version(
    serve: Callable[[Mirror], list[str]], tmp_path: Path
) -> None:
    asked = serve({("tool", "newer"): RUNS})
    program = TOOL.fetch(tmp_path)
    assert program == tmp_path / "1-1.2-3-amd64" / "tool"
    assert [file.name for file in program.parent.iterdir()] == ["tool"]
    assert TOOL.fetch(tmp_path) == TOOL.find(tmp_path) == program
    assert asked == ["tool/newer"]
    assert list(tmp_path.iterdir()) == [program.parent], "nothing of the fetching stays"


@pytest.mark.process
@pytest.mark.parametrize("newer", [{}, {("tool", "newer"): NOT_HERE}], ids=["not served", "does not run"])
def test_where_the_newer_one_cannot_be_had_it_is_that_of_the_machines_release(
    serve: Callable[[Mirror], list[str]], tmp_path: Path, newer: Mirror
) -> None:
    asked = serve({**newer, ("suite-of-tools", "own"): RUNS})
    assert TOOL.fetch(tmp_path).is_file()
    assert asked == ["tool/newer", "suite-of-tools/own"]


@pytest.mark.process
def test_one_that_does_not_run_here_is_no_program(
    serve: Callable[[Mirror], list[str]], tmp_path: Path
) -> None:
    serve({("suite-of-tools", "own"): NOT_HERE})
    with pytest.raises(ProgramUnavailable, match="NotRunnable: tool") as caught:
        TOOL.fetch(tmp_path)
    assert caught.value.cause is Cause.NOT_RUNNABLE
    assert TOOL.find(tmp_path) is None


@pytest.mark.process
def test_a_package_without_it_is_said(serve: Callable[[Mirror], list[str]], tmp_path: Path) -> None:
    serve({("tool", "newer"): RUNS})
    with pytest.raises(PackagesUnavailable, match="package tool has no usr/bin/missing"):
        Program("missing", (("tool", "newer"),)).fetch(tmp_path)


def test_who_comes_second_takes_what_the_first_has_kept(tmp_path: Path) -> None:
    for name in ("stage", "final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    keep(tmp_path / "stage", tmp_path / "final")
    assert (tmp_path / "final" / "file").read_text() == "final"
    with pytest.raises(PackagesUnavailable, match="nowhere"):
        keep(tmp_path / "stage", tmp_path / "nowhere" / "final")

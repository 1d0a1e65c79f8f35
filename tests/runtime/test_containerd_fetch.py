"""Getting containerd from the distribution: what is kept, and how it says that it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from testbed.containerd import fetch as containerd_fetch
from testbed.containerd.fetch import (
    ContainerdUnavailable,
    default_cache_dir,
    fetch_newer_toolchain,
    fetch_toolchain,
    find_toolchain,
)
from testbed.debian.packages import Release, Shortage
from testbed.debian.sources import AptSource


def test_the_cache_is_the_users_own_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_cache_dir() == Path("/elsewhere/dranet/containerd")


def test_a_machine_without_apt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerdUnavailable, match=r"^NoApt: this machine has no apt-get$") as caught:
        fetch_toolchain(tmp_path / "cache", print)
    assert caught.value.cause is Shortage.NO_APT


def test_what_was_fetched_before_needs_no_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trixie-1.7.24-bookworm-amd64"
    folder.mkdir()
    manifest = {"version": "1.7.24", "packages": {"runc": "1.1.5"}, "explicit_suite": False}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setenv("PATH", str(tmp_path))
    toolchain = fetch_toolchain(tmp_path, print)
    assert (toolchain.folder, toolchain.version) == (folder, "1.7.24")
    assert find_toolchain(tmp_path, "sid") is None


def test_an_unfinished_fetch_is_not_taken_for_a_toolchain(tmp_path: Path) -> None:
    (tmp_path / "fetch-x" / "stage" / "bin").mkdir(parents=True)
    assert find_toolchain(tmp_path) is None


def note_toolchain(cache: Path, suite: str, version: str) -> None:
    folder = cache / f"{suite}-{version}-bookworm-amd64"
    folder.mkdir(parents=True)
    manifest = {"version": version, "packages": {}, "explicit_suite": True}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_newer_one_is_of_version_2_whatever_else_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    note_toolchain(tmp_path, "forky", "1.7.99")
    note_toolchain(tmp_path, "sid", "2.4.1")
    toolchain = fetch_newer_toolchain(tmp_path, print)
    assert (toolchain.version, toolchain.major) == ("2.4.1", 2)


def test_without_a_newer_one_each_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    note_toolchain(tmp_path, "forky", "1.7.99")
    with pytest.raises(
        ContainerdUnavailable, match=r"forky has containerd 1\.7\.99; sid: NoApt: this machine"
    ):
        fetch_newer_toolchain(tmp_path, print)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get")
def test_a_mirror_out_of_reach_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AptSource(f"file:{tmp_path}/no-mirror", ("bookworm",), ("main",), {})
    release = Release("debian", "bookworm", "amd64", source)
    monkeypatch.setattr(containerd_fetch, "read_release", lambda: release)
    with pytest.raises(ContainerdUnavailable, match=r"^FetchFailed: apt-get: .*no-mirror"):
        fetch_toolchain(tmp_path / "cache", print)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.process
def test_a_program_that_does_not_run_is_named(tmp_path: Path) -> None:
    program = tmp_path / "containerd"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    with pytest.raises(ContainerdUnavailable, match=r"^NotRunnable: containerd: "):
        containerd_fetch._read_containerd_version(program)

"""Getting containerd from the distribution: whose mirror, what is kept, and how it says that it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.testbed.containerd import fetch as containerd_fetch
from dranet.testbed.containerd.apt import (
    AptSource,
    find_source,
    parse_classic,
    parse_deb822,
    parse_os_release,
)
from dranet.testbed.containerd.fetch import (
    Cause,
    ContainerdUnavailable,
    default_cache_dir,
    fetch_toolchain,
    find_toolchain,
)

DEB822 = """\
# the main archive
Types: deb deb-src
URIs: http://one.example/debian http://two.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""

CLASSIC = """\
# deb http://commented.example/ubuntu noble main
deb-src http://source.example/ubuntu noble main
deb [arch=amd64 signed-by=/k.gpg] http://one.example/ubuntu noble main universe # the mirror
deb http://two.example/ubuntu   noble-updates main

"""

WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-/:", min_size=1).map(lambda text: f"x{text}")


def test_deb822_stanzas_give_one_source_for_each_address() -> None:
    trust = {"Signed-By": "/usr/share/keyrings/k.gpg"}
    suites, components = ("bookworm", "bookworm-updates"), ("main", "contrib")
    assert parse_deb822(DEB822) == (
        AptSource("http://one.example/debian", suites, components, trust),
        AptSource("http://two.example/debian", suites, components, trust),
    )


def test_classic_lines_keep_whom_to_trust_and_drop_the_other_options() -> None:
    assert parse_classic(CLASSIC) == (
        AptSource("http://one.example/ubuntu", ("noble",), ("main", "universe"), {"Signed-By": "/k.gpg"}),
        AptSource("http://two.example/ubuntu", ("noble-updates",), ("main",), {}),
    )


def test_a_key_written_into_the_stanza_survives_the_way_into_ours() -> None:
    key = (
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n -----END PGP PUBLIC KEY BLOCK-----\n"
    )
    text = f"Types: deb\nURIs: http://m.example\nSuites: trixie\nComponents: main\n{key}"
    (source,) = parse_deb822(text)
    assert parse_deb822(source.stanza(["trixie"], "amd64"))[0].trust == source.trust
    assert " mDMEY\n" in source.stanza(["trixie"], "amd64")


@given(uri=WORD, suites=st.lists(WORD, min_size=1), key=st.none() | WORD)
def test_our_stanza_reads_back_as_written(uri: str, suites: list[str], key: str | None) -> None:
    source = AptSource(uri, tuple(suites), ("main",), {"Signed-By": key} if key else {})
    assert parse_deb822(source.stanza(suites, "arm64")) == (source,)


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    for source in (*parse_deb822(text), *parse_classic(text)):
        assert source.uri
    parse_os_release(text)


def test_the_source_must_serve_main_of_the_suite() -> None:
    sources = parse_deb822(DEB822)
    assert find_source(sources, "bookworm") == sources[0]
    assert find_source(sources, "trixie") is None
    assert find_source([AptSource("u", ("bookworm",), ("contrib",), {})], "bookworm") is None


def test_os_release_values_lose_their_quotes() -> None:
    text = "# c\nID=ubuntu\nVERSION_CODENAME='noble'\nPRETTY_NAME=\"Ubuntu 24.04\"\n"
    assert parse_os_release(text) == {
        "ID": "ubuntu",
        "VERSION_CODENAME": "noble",
        "PRETTY_NAME": "Ubuntu 24.04",
    }


def test_the_cache_is_the_users_own_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_cache_dir() == Path("/elsewhere/dranet/containerd")


def test_a_machine_without_apt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerdUnavailable, match=r"^NoApt: this machine has no apt-get$") as caught:
        fetch_toolchain(tmp_path / "cache", print)
    assert caught.value.cause is Cause.NO_APT


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


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get")
def test_a_mirror_out_of_reach_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AptSource(f"file:{tmp_path}/no-mirror", ("bookworm",), ("main",), {})
    release = containerd_fetch._Release("bookworm", "trixie", "amd64", source)
    monkeypatch.setattr(containerd_fetch, "_read_release", lambda _: release)
    with pytest.raises(ContainerdUnavailable, match=r"^FetchFailed: apt-get: .*no-mirror"):
        fetch_toolchain(tmp_path / "cache", print)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="no apt-config")
def test_apt_runs_no_hook_of_the_host_and_writes_below_our_folder_only(tmp_path: Path) -> None:
    source = AptSource("http://m.example", ("bookworm",), ("main",), {})
    release = containerd_fetch._Release("bookworm", "trixie", "amd64", source)
    config = containerd_fetch._write_apt_config(tmp_path / "apt", release)
    dump = subprocess.run(
        ["apt-config", "-c", config, "dump"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line for line in dump if "-Invoke" in line and not line.endswith('"";')] == []
    for key in ("Dir::State ", "Dir::State::status ", "Dir::Cache ", "Dir::Etc::SourceParts "):
        assert any(line.lower().startswith(f'{key}"{tmp_path}'.lower()) for line in dump), key
    assert "Suites: bookworm trixie" in (tmp_path / "apt" / "parts" / "testbed.sources").read_text()


def test_a_program_that_does_not_run_is_named(tmp_path: Path) -> None:
    program = tmp_path / "containerd"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    with pytest.raises(ContainerdUnavailable, match=r"^NotRunnable: containerd: "):
        containerd_fetch._read_version(program)

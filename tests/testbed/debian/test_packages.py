"""Packages of the host's release: whose mirror, and an apt that touches nothing of the host."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    Shortage,
    ToolFailed,
    read_release,
    read_version,
    run_tool,
    unpack,
    write_apt_config,
)
from testbed.debian.sources import (
    AptSource,
    find_source,
    parse_classic,
    parse_deb822,
    parse_os_release,
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


@pytest.mark.process
@pytest.mark.skipif(shutil.which("apt-config") is None, reason="no apt-config")
def test_apt_runs_no_hook_of_the_host_and_writes_below_our_folder_only(tmp_path: Path) -> None:
    source = AptSource("http://m.example", ("bookworm",), ("main",), {})
    config = write_apt_config(tmp_path / "apt", source, ("bookworm", "trixie"), "amd64")
    dump = subprocess.run(
        ["apt-config", "-c", config, "dump"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line for line in dump if "-Invoke" in line and not line.endswith('"";')] == []
    for key in ("Dir::State ", "Dir::State::status ", "Dir::Cache ", "Dir::Etc::SourceParts "):
        assert any(line.lower().startswith(f'{key}"{tmp_path}'.lower()) for line in dump), key
    assert "Suites: bookworm trixie" in (tmp_path / "apt" / "parts" / "testbed.sources").read_text()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("apt-config") is None, reason="no apt-config")
def test_apt_serves_another_architecture_and_more_than_one_source(tmp_path: Path) -> None:
    source, security = (AptSource(f"http://{name}.example", (), (), {}) for name in ("m", "s"))
    config = write_apt_config(
        tmp_path / "apt", source, ("trixie",), "arm64", [(security, ["trixie-security"])]
    )
    dump = run_tool(["apt-config", "-c", str(config), "dump"])
    assert 'APT::Architecture "arm64";' in dump
    assert [line for line in dump.splitlines() if line.startswith("APT::Architectures::")] == [
        'APT::Architectures:: "arm64";'
    ]
    stanzas = (tmp_path / "apt/parts/testbed.sources").read_text().split("\n\n")
    assert ["Suites: trixie\n" in stanzas[0], "Suites: trixie-security\n" in stanzas[1]] == [True, True]


def make_package(folder: Path, name: str, version: str, depends: str = "") -> Path:
    """A package with one file, ``usr/share/<name>``, built by dpkg-deb itself."""
    tree = folder / name
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share").mkdir(parents=True)
    (tree / "usr/share" / name).write_text(name)
    needs = f"Depends: {depends}\n" if depends else ""
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: M <m@m.example>\n{needs}"
        "Description: made for a test\n"
    )
    deb = folder / f"{name}_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, deb], check=True, capture_output=True)
    return deb


def release_file(suite: str, index: str) -> str:
    """What apt believes only with the checksum of its index."""
    checksum = hashlib.sha256(index.encode()).hexdigest()
    return f"Suite: {suite}\nSHA256:\n {checksum} {len(index)} main/binary-amd64/Packages\n"


NEEDS_DPKG = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
NEEDS_APT = pytest.mark.skipif(shutil.which("dpkg-scanpackages") is None, reason="no dpkg-scanpackages")


@pytest.mark.process
@NEEDS_DPKG
def test_packages_unpack_into_one_tree(tmp_path: Path) -> None:
    for deb in (make_package(tmp_path, "one", "1.2-3"), make_package(tmp_path, "two", "7")):
        unpack(deb, tmp_path / "tree")
    assert sorted(p.name for p in (tmp_path / "tree/usr/share").iterdir()) == ["one", "two"]
    assert read_version(tmp_path / "one_1.2-3_amd64.deb") == "1.2-3"


@pytest.mark.process
@NEEDS_DPKG
def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_text("<html>not found</html>")
    with pytest.raises(PackagesUnavailable, match=r"^FetchFailed: dpkg-deb: ") as caught:
        unpack(tmp_path / "x.deb", tmp_path / "tree")
    assert caught.value.cause is Shortage.FETCH_FAILED


@pytest.mark.process
@NEEDS_APT
def test_what_a_package_depends_on_is_resolved_and_downloaded(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    index = mirror / "dists/here/main/binary-amd64"
    index.mkdir(parents=True)
    make_package(mirror, "program", "2.0", "library (>= 1)")
    make_package(mirror, "library", "1.5")
    listed = subprocess.run(["dpkg-scanpackages", "-m", "."], cwd=mirror, capture_output=True, text=True)
    (index / "Packages").write_text(listed.stdout)
    (index.parent.parent / "Release").write_text(release_file("here", listed.stdout))
    source = AptSource(f"file:{mirror}", ("here",), ("main",), {"Trusted": "yes"})
    apt = PrivateApt(tmp_path / "apt", source, ("here",), "amd64")
    apt.update()
    assert apt.resolve(["program"], "here") == {"library": "1.5", "program": "2.0"}
    assert apt.read_field("program", "Depends", "here") == "library (>= 1)"
    assert apt.read_field("library", "Depends", "here") == ""
    assert apt.list_versions(["library", "absent"]) == {"library": {"1.5"}, "absent": set()}
    debs = apt.download(["library=1.5", "program/here"], tmp_path / "debs")
    assert {name: read_version(deb) for name, deb in debs.items()} == {"library": "1.5", "program": "2.0"}
    with pytest.raises(PackagesUnavailable, match=r"^FetchFailed: apt-get: E: .*absent"):
        apt.resolve(["absent"], "here")


def test_a_machine_without_apt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackagesUnavailable, match=r"^NoApt: this machine has no apt-get$"):
        read_release()


@pytest.mark.process
def test_a_tool_that_fails_says_its_first_line() -> None:
    with pytest.raises(ToolFailed, match=r"^sh: one$"):
        run_tool(["sh", "-c", "echo one >&2; echo two >&2; exit 3"])
    with pytest.raises(ToolFailed, match=r"^sh: exit code 4$"):
        run_tool(["sh", "-c", "exit 4"])

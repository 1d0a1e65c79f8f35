"""Programs of a real cluster: which versions there are, where they are kept, and why they cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.access import LaneUnavailable
from e2e.cluster import build, local

_GO = """\
#!/bin/sh
[ "$1" = env ] && {{ echo {version}; exit; }}
{build}
"""


@pytest.fixture(autouse=True)
def an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBE_VERSION", raising=False)


def put_go(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, script: str = "exit 1") -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "go"
    program.write_text(_GO.format(version=version, build=script))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_the_newest_version_is_the_default_and_others_are_chosen_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert build.choose_version() == build.known_versions()[-1] == "1.37"
    monkeypatch.setenv("KUBE_VERSION", "1.34")
    assert build.choose_version() == "1.34"


def test_an_unknown_version_is_refused_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_VERSION", "1.33")
    with pytest.raises(LaneUnavailable, match=r"KUBE_VERSION=1\.33 is not known") as refused:
        build.choose_version()
    assert "1.34, 1.36, 1.37" in refused.value.hint


@pytest.mark.parametrize("version", build.known_versions())
def test_each_module_requires_a_release_of_its_version_and_every_staging_module_of_the_same(
    version: str,
) -> None:
    module = build.kubernetes(version)
    assert module.version.startswith(f"{version}.")
    text = (module.folder / "go.mod").read_text()
    replaced = [line.split(" => ")[1] for line in text.splitlines() if " => k8s.io/" in line]
    assert len(replaced) > 30
    assert {line.split()[-1] for line in replaced} == {f"v0.{module.version.removeprefix('1.')}"}
    assert (module.folder / "go.sum").exists()


def test_the_version_is_linked_into_kubernetes_programs() -> None:
    flags = build.kubernetes("1.37").link_flags
    assert "component-base/version.gitVersion=v1.37." in flags
    assert "component-base/version.gitMinor=37" in flags


def test_without_go_the_hint_names_both_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaneUnavailable, match="no Go on PATH") as refused:
        build.build(build.HELM, lambda _: None)
    assert "install Go 1.26" in refused.value.hint
    assert "KUBE_BIN_DIR" in refused.value.hint


@pytest.mark.process
def test_a_go_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_go(tmp_path, monkeypatch, "go1.24.3")
    with pytest.raises(LaneUnavailable, match=r"is go1\.24\.3; Kubernetes needs 1\.26"):
        build.build(build.HELM, lambda _: None)


@pytest.mark.process
def test_a_build_that_fails_ends_with_what_go_said_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_go(tmp_path, monkeypatch, "go1.26.8", "echo verifying module: checksum mismatch >&2; exit 1")
    with pytest.raises(LaneUnavailable, match=r"go build of helm\.sh/helm/v3 .* failed: .*checksum mismatch"):
        build.build(build.HELM, lambda _: None)
    assert build.find_built(build.HELM) is None
    assert not list((tmp_path / "cache/dranet/cluster").iterdir())


@pytest.mark.process
def test_what_was_built_is_found_again_without_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'for word in "$@"; do case $word in */) out=$word;; esac; done\ncp /bin/true "$out/helm"'
    put_go(tmp_path, monkeypatch, "go1.26.8", script)
    said: list[str] = []
    folder = build.build(build.HELM, said.append)
    assert (folder / "helm").exists()
    assert any("is ready in" in text for text in said)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert build.build(build.HELM, said.append) == folder


def test_an_upgrade_names_the_versions_that_are_not_built() -> None:
    with pytest.raises(LaneUnavailable, match=r"Kubernetes 1\.34 and 1\.37 is not built") as refused:
        local.prepare_upgrade(lambda _: None)
    assert refused.value.hint == "KUBE_VERSION=1.34 make cluster; KUBE_VERSION=1.37 make cluster"


def test_an_upgrade_is_not_possible_with_the_programs_of_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_BIN_DIR", "/opt/kubernetes")
    with pytest.raises(LaneUnavailable, match="several versions"):
        local.prepare_upgrade(lambda _: None)

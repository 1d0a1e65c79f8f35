"""``make cluster-up`` as far as it starts nothing."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.cluster import build, command, local, standing
from e2e.cluster.standing import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setattr(standing, "default_place", lambda: place)
    return place


def test_a_second_one_is_refused_before_anything_is_built(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(*_: Any) -> None:
        raise AssertionError("it builds")

    monkeypatch.setattr(local, "prepare", prepare)
    with place.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert command.main(["up"]) == command.FAILED
    told = capsys.readouterr()
    assert told.err == "cluster: the cluster is up already (make cluster-down ends it)\n"
    assert told.out == ""


@pytest.mark.usefixtures("place")
def test_the_path_that_it_prints_has_kubectl_helm_and_dranet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"kubelet": tmp_path / "kubelet"}
    kit = SimpleNamespace(control_plane=SimpleNamespace(kubernetes=SimpleNamespace(paths=paths)))
    monkeypatch.setattr(local, "prepare", lambda *_: kit)
    monkeypatch.setattr(build, "build", lambda *_: tmp_path)
    linked: list[Path] = []
    monkeypatch.setattr(standing, "start", lambda *arguments: linked.extend(arguments[3]))
    assert command.main(["up"]) == 0
    assert [program.name for program in linked] == ["kubectl", "helm", "dranet", "kubectl-dranet"]
    assert all(program.exists() for program in linked if "dranet" in program.name)

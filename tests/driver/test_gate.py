"""The ready gate on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.driver.gate import ReadyGate
from dranet.errors import StoreError


def a_namespace(folder: Path, name: str) -> Path:
    """A path that comes and goes with a sandbox."""
    path = folder / name
    path.touch()
    return path


def test_the_mount_source_exists_only_while_the_gate_is_open(tmp_path: Path) -> None:
    gate = ReadyGate(tmp_path)
    source = Path(gate.mount_for("uid").source)
    netns = a_namespace(tmp_path, "netns")
    assert not source.exists()
    gate.open("uid", str(netns))
    assert source.exists()
    assert gate.list_open() == {"uid"}
    gate.close("uid")
    gate.close("uid")
    assert not source.exists()
    assert gate.list_open() == frozenset()


def test_gates_of_two_claims_are_apart(tmp_path: Path) -> None:
    gate = ReadyGate(tmp_path)
    gate.open("a", str(a_namespace(tmp_path, "netns")))
    assert gate.is_open("a")
    assert not gate.is_open("b")


def test_a_disk_that_refuses_keeps_the_gate_shut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("a file where the folder should be")
    gate = ReadyGate(tmp_path)
    with pytest.raises(StoreError, match="state folder"):
        gate.open("uid", "/proc/self/ns/net")


def test_the_gate_shuts_by_itself_with_the_end_of_the_sandbox(tmp_path: Path) -> None:
    gate = ReadyGate(tmp_path)
    netns = a_namespace(tmp_path, "first")
    gate.open("uid", str(netns))
    netns.unlink()
    assert not gate.is_open("uid")
    assert gate.list_open() == {"uid"}  # still to be swept
    gate.open("uid", str(a_namespace(tmp_path, "second")))
    assert gate.is_open("uid")

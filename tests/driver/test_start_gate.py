"""The ready gate on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.driver.start_gate import StartGate
from dranet.errors import StoreError


def a_namespace(folder: Path, name: str) -> Path:
    """A path that comes and goes with a sandbox."""
    path = folder / name
    path.touch()
    return path


def attach(gate: StartGate, claim_uid: str, netns: str) -> None:
    gate.note_attached(claim_uid, netns)
    gate.open(claim_uid, netns)


def test_the_mount_source_exists_only_while_the_gate_is_open(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    source = Path(gate.mount_for("uid").source)
    netns = a_namespace(tmp_path, "netns")
    assert not source.exists()
    attach(gate, "uid", str(netns))
    assert source.exists()
    assert gate.list_claims() == {"uid"}
    gate.close("uid")
    gate.close("uid")
    assert not source.exists()
    assert gate.list_claims() == frozenset()


def test_gates_of_two_claims_are_apart(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    attach(gate, "a", str(a_namespace(tmp_path, "netns")))
    assert gate.is_open("a")
    assert not gate.is_open("b")


def test_a_disk_that_refuses_keeps_the_gate_shut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("a file where the folder should be")
    gate = StartGate(tmp_path)
    with pytest.raises(StoreError, match="ready is a file, which the driver did not make: move it away"):
        attach(gate, "uid", "/proc/self/ns/net")


def test_the_gate_shuts_by_itself_with_the_end_of_the_sandbox(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    netns = a_namespace(tmp_path, "first")
    attach(gate, "uid", str(netns))
    netns.unlink()
    assert not gate.is_open("uid")
    assert gate.list_claims() == {"uid"}  # still to be swept
    attach(gate, "uid", str(a_namespace(tmp_path, "second")))
    assert gate.is_open("uid")


def test_a_gate_that_is_shut_is_that_of_an_attached_claim_and_opens_again(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    attach(gate, "uid", str(a_namespace(tmp_path, "netns")))
    gate.shut("uid")
    gate.shut("uid")
    assert (gate.is_open("uid"), gate.is_attached("uid")) == (False, True)
    gate.open_again("uid")
    assert gate.is_open("uid")
    gate.close("uid")
    assert (gate.is_open("uid"), gate.is_attached("uid")) == (False, False)
    assert not list((tmp_path / "attached").iterdir())


def test_the_gate_of_a_claim_that_is_not_attached_does_not_open(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    with pytest.raises(StoreError, match="uid"):
        gate.open_again("uid")
    assert not gate.is_open("uid")

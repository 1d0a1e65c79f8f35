"""``dranet forget``: removes what no driver can use, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dranet.cli.main import main
from dranet.store.claim_store import ClaimStore
from dranet.store.record_folder import RecordFolder
from tests.store.test_claim_store import a_record
from tests.support.records import edit_record, write_text

RUBBISH = '{"version": 1, "claim"'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store as a driver leaves it that could not read one of its records."""
    path = tmp_path / "claims"
    write_text(path, "5f0c", RUBBISH)
    open_once(path)
    assert [record.claim_uid for record in RecordFolder(path).read_unreadable()] == ["5f0c"]
    return path


def open_once(path: Path) -> None:
    with closing(ClaimStore(path)) as store:
        store.open()


def put(path: Path, uid: str) -> None:
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put(a_record(uid))


def forget(store: Path, *arguments: str) -> int:
    return main(["forget", *arguments, "--state-dir", str(store.parent)])


def test_it_shows_what_it_would_remove_and_removes_it_when_told_to(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = store / "5f0c.1.unreadable"
    assert forget(store, "5f0c") == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{file}: no JSON")
    assert said.err == "nothing is removed: add --yes to remove it\n"
    assert file.read_text() == RUBBISH

    assert forget(store, "5f0c", "--yes") == 0
    assert "the record of claim 5f0c is removed" in capsys.readouterr().out
    assert not file.exists()
    assert RecordFolder(store).read_unreadable() == []


def test_what_is_not_there_is_not_found(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(store, "other", "--yes") == 1
    assert "NotFound: no damaged record of a claim other" in capsys.readouterr().err
    assert forget(store / "none", "5f0c", "--yes") == 1
    assert "NotFound: the store" in capsys.readouterr().err
    assert (store / "5f0c.1.unreadable").exists()


def test_a_claim_that_is_in_use_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "used")
    assert forget(store, "used", "--yes") == 1
    assert "claim used is prepared on this node, and its record is in use" in capsys.readouterr().err
    assert (store / "used.json").exists()


def test_a_record_that_the_driver_can_still_restore_from_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, "half")
    edit_record(store, "half", lambda document: {**document, "sandbox_id": 7})
    open_once(store)
    (file,) = store.glob("half.*.unreadable")
    assert forget(store, "half", "--yes") == 1
    assert "the driver can still restore the devices of claim half" in capsys.readouterr().err
    assert file.exists()

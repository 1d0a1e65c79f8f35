"""The journal: an entry is there before its question and goes after its end, whatever happens between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dranet.errors import Reason, StoreError
from dranet.model.claim import ClaimRef
from dranet.store.journal import FOLDER, Journal, JournalEntry

CLAIM = ClaimRef(uid="uid-1", namespace="team", name="claim")
NET1 = JournalEntry("ipam", "eth1", {"ifname": "net1"})
NET2 = JournalEntry("ipam", "eth2", {"ifname": "net2"})
PROFILE = JournalEntry("profile", "eth1", {"profile": "rail"})


def test_without_an_entry_there_is_no_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert (journal.list_claims(), journal.has("uid-1"), journal.read("uid-1")) == ([], False, None)
    journal.remove("uid-1", [NET1])
    assert not (tmp_path / FOLDER).exists()


def test_entries_of_all_kinds_share_a_file_and_go_one_by_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(CLAIM, [NET1, NET2])
    journal.add(CLAIM, [PROFILE, NET1])
    found = Journal(tmp_path).read("uid-1")
    assert found is not None
    assert found.entries == (NET1, NET2, PROFILE)
    journal.remove("uid-1", [NET1, NET2])
    found = journal.read("uid-1")
    assert found is not None
    assert found.entries == (PROFILE,)
    assert journal.list_claims() == ["uid-1"]
    journal.remove("uid-1", [PROFILE])
    assert journal.list_claims() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"claim":',
        '{"claim": {"uid": "other", "namespace": "", "name": ""}, "entries": []}',
    ],
)
def test_a_file_that_is_no_record_is_an_error_with_its_place_and_stays(tmp_path: Path, text: str) -> None:
    journal = Journal(tmp_path)
    journal.add(CLAIM, [NET1])
    file = tmp_path / FOLDER / "uid-1.json"
    file.write_text(text)
    with pytest.raises(StoreError, match=str(file)) as caught:
        journal.read("uid-1")
    assert caught.value.reason is Reason.STORE_CORRUPT
    assert caught.value.hint
    assert file.read_text() == text


def test_a_record_of_a_newer_driver_is_left_to_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(CLAIM, [NET1])
    file = tmp_path / FOLDER / "uid-1.json"
    file.write_text(file.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(StoreError) as caught:
        journal.add(CLAIM, [NET2])
    assert caught.value.reason is Reason.STORE_NEWER
    assert caught.value.retryable


def test_a_disk_that_refuses_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).symlink_to(tmp_path)
    with pytest.raises(StoreError, match="symbolic link"):
        Journal(tmp_path).add(CLAIM, [NET1])


@pytest.mark.process
def test_a_program_of_an_earlier_driver_is_waited_for(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(CLAIM, [NET1])
    with journal.running("uid-1") as descriptor:
        program = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor], text=True
        )
    with pytest.raises(StoreError, match="still runs") as caught:
        journal.wait_for_programs("uid-1", 0)
    assert caught.value.retryable
    program.communicate("\n")
    journal.wait_for_programs("uid-1", 0)
    journal.wait_for_programs("unknown", 0)

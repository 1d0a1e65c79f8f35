"""kill -9 at any moment of a writing driver: what was acknowledged is there, and no more than the last."""

from __future__ import annotations

import os
import random
import select
import signal
from contextlib import closing
from pathlib import Path

import pytest

from dranet.store.claim_store import ClaimStore
from tests.store.test_claim_store import a_record

pytestmark = pytest.mark.process

KILLS = 15
CLAIMS = 5


def write_for_ever(path: Path, acknowledge: int) -> None:
    """Rounds over a few claims, each put and deleted in turn; says every step once it is committed."""
    with closing(ClaimStore(path)) as store:
        store.open()
        start = int(os.environ.get("START", "0"))
        for step in range(start, 1 << 30):
            uid = f"claim-{step % CLAIMS}"
            if step // CLAIMS % 2:
                store.delete(uid)
            else:
                store.put(a_record(uid, f"pod-{step}"))
            os.write(acknowledge, step.to_bytes(8))


def expected(steps: int) -> dict[str, str]:
    """The pods of the claims that are there after so many steps."""
    there: dict[str, str] = {}
    for step in range(steps):
        uid = f"claim-{step % CLAIMS}"
        if step // CLAIMS % 2:
            there.pop(uid, None)
        else:
            there[uid] = f"pod-{step}"
    return there


def found(path: Path) -> dict[str, str]:
    told: list[str] = []
    store = ClaimStore(path, on_trouble=lambda _, note: told.append(note))
    with closing(store):
        store.open()
        assert told == [], "a kill damages nothing"
        return {record.claim.uid: record.pod.uid for record in store.get_all()}


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claims"
    chance = random.Random(seed)
    steps = 0
    for _ in range(KILLS):
        monkeypatch.setenv("START", str(steps))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            write_for_ever(path, writer)
        os.close(writer)
        wanted = steps + chance.randrange(1, 40)
        while steps < wanted:  # then at once, wherever it is by now
            assert select.select([reader], [], [], 30)[0]
            steps = int.from_bytes(os.read(reader, 8)) + 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while last := os.read(reader, 8):
            steps = int.from_bytes(last) + 1
        os.close(reader)
        there = found(path)
        assert there in (expected(steps), expected(steps + 1))
        steps += there != expected(steps)

"""The store of claims, on the disk of the checkout: a synced write, a removal, a look without a change.

The floor does by hand what a synced write must do: write a file of the same size, sync it, rename it, sync
the folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmarks.measure import Result, Series, time_ms
from benchmarks.scrape import build_claim
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore

RUNS = 200
PUT_BOUND = 1.5
LOOKS = 100
_DISK = Path(__file__).parents[1] / ".cache"


def run() -> Iterator[Result]:
    _DISK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_DISK) as folder:
        yield from measure(Path(folder))


def measure(folder: Path) -> Iterator[Result]:
    store, by_hand = ClaimStore(folder / "claims"), folder / "by-hand"
    by_hand.mkdir()
    store.open()
    puts, floors, looks = list[float](), list[float](), list[float]()
    for number in range(RUNS):
        record = _build_record(number)
        puts.append(time_ms(partial(store.put, record)))
        text = (folder / "claims" / f"{record.claim.uid}.json").read_bytes()
        floors.append(time_ms(partial(_write, by_hand, f"{number}.json", text)))
        looks.append(time_ms(lambda: [store.get_all() for _ in range(LOOKS)]) / LOOKS)
    deletes = tuple(time_ms(partial(store.delete, f"claim-{number}")) for number in range(RUNS))
    store.close()
    yield Result("put of a claim", Series("put", tuple(puts)), Series("by hand", tuple(floors)), PUT_BOUND)
    yield Result("delete of a claim", Series("delete", deletes))
    yield Result("look, nothing new", Series("look", tuple(looks)))


def _build_record(number: int) -> PreparedClaim:
    """A claim of one NIC that is prepared and not attached."""
    record = build_claim(number, nics=1)
    return replace(record, sandbox_id="", netns_path="")


def _write(folder: Path, name: str, text: bytes) -> None:
    new = folder / "new"
    with new.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(folder / name)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(place)
    finally:
        os.close(place)

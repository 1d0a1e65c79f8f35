"""The driver, armed: it kills itself (SIGKILL) at a marked step. Else it is the ordinary program.

``python -m tests.survival.builds.dying_driver FOLDER [--die-at attach:link-moved:2] [--rdma FOLDER]
[--slow SECONDS] OPTIONS``

``STEP:n`` means the n-th time that the step is reached, counted from the moment of arming, and
``STEP:n@OTHER`` counted from the first time that the step ``OTHER`` is reached. A driver that
runs is armed by SIGUSR1, with what the file ``die-at`` in ``FOLDER`` says then; it removes the file when it
is armed. Each step that it reaches is a line of ``FOLDER/journal``, the last one included. While it is armed
each link takes ``--slow`` seconds to move, as with a NIC whose firmware stops its queues; the kernel is not
involved, so nothing else waits as it would for RTNL.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dranet import failpoints
from dranet.cli.main import main as run_dranet
from dranet.failpoints import Failpoint
from tests.survival.builds import rdma_of_files

JOURNAL, ORDER = "journal", "die-at"

SLOW = frozenset(
    {
        Failpoint.ATTACH_LINK_FOUND,
        Failpoint.ATTACH_SUBLINK_UNNAMED,
        Failpoint.RELEASE_LINK_HOME,
    }
)
"""A link has moved, or is about to."""


class Hand:
    """Counts steps, and kills at the one that it was told."""

    def __init__(self, folder: Path, slow_seconds: float) -> None:
        self._slow_seconds = slow_seconds
        self._order = folder / ORDER
        self._journal = os.open(
            folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._lock = threading.RLock()
        """Re-entrant: a signal comes to the main thread wherever it is."""
        self._seen: Counter[str] = Counter()
        self._die_at = self._after = ""

    def arm(self, die_at: str) -> None:
        with self._lock:
            self._seen.clear()
            self._die_at, _, self._after = die_at.partition("@")

    def take_order(self, *_: object) -> None:
        self.arm(self._order.read_text())
        self._order.unlink()

    def note(self, step: Failpoint) -> None:
        with self._lock:
            os.write(self._journal, f"{step}\n".encode())
            self._count(step)
            is_slow = bool(self._die_at) and step in SLOW
        if is_slow:
            time.sleep(self._slow_seconds)

    def _count(self, step: Failpoint) -> None:
        if step == self._after:
            self._after = ""
            self._seen.clear()
            return
        self._seen[step] += 1
        if not self._after and f"{step}:{self._seen[step]}" == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-at", default="")
    parser.add_argument("--rdma", type=Path)
    parser.add_argument("--slow", type=float, default=0.0)
    own, options = parser.parse_known_args(arguments)
    hand = Hand(own.folder, own.slow)
    hand.arm(own.die_at)
    failpoints.listen(hand.note)
    signal.signal(signal.SIGUSR1, hand.take_order)
    if own.rdma is not None:
        rdma_of_files.install(own.rdma)
    return run_dranet(["run", *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

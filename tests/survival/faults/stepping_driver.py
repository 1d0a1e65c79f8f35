"""The driver with a wall clock that somebody sets: the seconds in a file are added to it at each look.

Linux lets no process have a ``CLOCK_REALTIME`` of its own (``time_namespaces(7)``: monotonic and boot time
alone), and this one is everybody's. Run as the driver, the file before its options.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from pathlib import Path

_real_time = time.time


def _offset() -> float:
    return float(Path(sys.argv[1]).read_text())


def _stepped_time() -> float:
    return _real_time() + _offset()


class _SteppedDateTime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _SteppedDateTime:
        return cls.fromtimestamp(_stepped_time(), tz)


def _step_clocks() -> None:
    """Before anything of the driver is imported, which takes them from these modules."""
    vars(time).update(time=_stepped_time, time_ns=lambda: int(_stepped_time() * 1e9))
    vars(dt).update(datetime=_SteppedDateTime)


if __name__ == "__main__":
    _step_clocks()
    from dranet.cli.main import main

    sys.exit(main(["run", *sys.argv[2:]]))

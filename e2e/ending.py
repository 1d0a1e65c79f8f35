"""SIGTERM and SIGHUP end the suite as Ctrl-C does: through every ``finally``, so that nothing is left."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

BY_SIGNAL = 128
"""An exit code above it says which signal it was."""
_NUMBERS = (signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """Outside an event loop: what is under way is left by an exception."""
    for number in _NUMBERS:
        signal.signal(number, _exit)


def _exit(number: int, _: object) -> None:
    sys.exit(BY_SIGNAL + number)


def run_in_order(work: Coroutine[Any, Any, None]) -> int:
    """Run it; a signal cancels it alone, while the tasks that it still needs for tidying up live on. The exit
    code: 0, or 128 + n when signal n ended it."""
    received: list[int] = []

    async def run() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in _NUMBERS:
            loop.add_signal_handler(number, end, number)
        await work

    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        if not received:
            raise
    return BY_SIGNAL + received[0] if received else 0

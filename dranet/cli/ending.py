"""SIGINT, SIGTERM and SIGHUP end a command in order: through every ``finally``, so that nothing is left.

For commands that make things on the machine; the driver itself has :mod:`dranet.driver.ending`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

BY_SIGNAL = 128
"""An exit code above it says which signal it was."""
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """Outside an event loop: what is under way is left by an exception, as Ctrl-C does by itself."""
    for number in _NUMBERS:
        if number != signal.SIGINT and _is_heard(number):
            signal.signal(number, _exit)


def _exit(number: int, _: object) -> None:
    sys.exit(BY_SIGNAL + number)


def run_in_order(work: Coroutine[Any, Any, int | None]) -> int:
    """Run it in an event loop of its own; a signal cancels it alone, while the tasks that it still needs for
    tidying up live on. A second Ctrl-C ends it at once, by ``KeyboardInterrupt``.

    The loop hands the signals on between two steps of its own. An exception out of a signal's handler, and
    asyncio's own SIGINT, which cancels within its handler, come between any two instructions: where a future
    is just given its result, or where something is half tidied up.

    Returns:
        The exit code: what ``work`` says (0 for ``None``), or 128 + n when signal n has come.
    """
    received: list[int] = []

    async def run() -> int | None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: int) -> None:
            received.append(number)
            if number == signal.SIGINT:
                loop.remove_signal_handler(number)
            task.cancel()

        for number in filter(_is_heard, _NUMBERS):
            loop.add_signal_handler(number, end, number)
        return await work

    with _handlers_as_before():
        try:
            code = asyncio.run(run())
        except asyncio.CancelledError:
            if not received:
                raise
    return BY_SIGNAL + received[0] if received else code or 0


def _is_heard(number: int) -> bool:
    """What the caller ignores (nohup, a shell's background) stays ignored."""
    return signal.getsignal(number) is not signal.SIG_IGN


@contextmanager
def _handlers_as_before() -> Iterator[None]:
    """An event loop that ends leaves the kernel's own ones."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

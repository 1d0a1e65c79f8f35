"""SIGINT, SIGTERM and SIGHUP end a command in order: through every ``finally``, so that nothing is left.

The first one ends it. A terminal that closes, a shell or a shutdown may repeat SIGTERM and SIGHUP: that
changes nothing. A second Ctrl-C comes from a person, and ends it at once, by ``KeyboardInterrupt``.

For commands that make things on the machine; the driver itself has :mod:`dranet.driver.app`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

BY_SIGNAL = 128
"""Added to the number of the signal that ended a command."""
_REPEATED = (signal.SIGTERM, signal.SIGHUP)
_NUMBERS = (signal.SIGINT, *_REPEATED)


def end_in_order() -> None:
    """Outside an event loop: what is under way is left by an exception, as Ctrl-C does by itself."""
    for number in filter(_is_heard, _REPEATED):
        signal.signal(number, _exit)


def _exit(number: int, _: object) -> None:
    _ignore_repeated()
    sys.exit(BY_SIGNAL + number)


def run_in_order(work: Coroutine[Any, Any, int | None]) -> int:
    """Run it in an event loop of its own; a signal cancels it alone, while the tasks that it still needs for
    tidying up live on.

    The loop hands the signals on between two steps of its own. An exception out of a signal's handler, and
    asyncio's own SIGINT, which cancels within its handler, come between any two instructions: where a future
    is just given its result, or where something is half tidied up.

    Returns:
        The exit code: that of ``work`` (0 for ``None``), or 128 + n when signal n has come.
    """
    received: list[int] = []

    async def run() -> int | None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: int) -> None:
            if not received:
                task.cancel()
                loop.remove_signal_handler(signal.SIGINT)
            received.append(number)

        for number in filter(_is_heard, _NUMBERS):
            loop.add_signal_handler(number, end, number)
        return await work

    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        code = asyncio.run(run())
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number, handler in before.items():  # an event loop that ends leaves the kernel's own ones
            signal.signal(number, handler)
        if received:  # the caller also cleans up
            _ignore_repeated()
    return BY_SIGNAL + received[0] if received else code or 0


def _ignore_repeated() -> None:
    """Programs that are run for cleaning up inherit it."""
    for number in _REPEATED:
        signal.signal(number, signal.SIG_IGN)


def _is_heard(number: int) -> bool:
    """What the caller ignores (nohup, a shell's background) stays ignored."""
    return signal.getsignal(number) is not signal.SIG_IGN

"""Waiting for what no notification tells of: looking again and again, until it is so or the time is over."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

SECONDS = 40.0
"""More than a busy machine needs; only a test that fails waits for so long."""
_PAUSE_SECONDS = 0.01


async def until(look: Callable[[], Any], what: str = "", seconds: float = SECONDS) -> Any:
    """The first answer of ``look`` that counts as true; ``look`` may be a coroutine function.

    Raises:
        AssertionError: there was none in time; names ``what``, and the last answer.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        answer = await found if inspect.isawaitable(found) else found
        if answer:
            return answer
        assert time.monotonic() < deadline, _say(what, answer, seconds)
        await asyncio.sleep(_PAUSE_SECONDS)


async def until_in_thread(look: Callable[[], object], what: str = "", seconds: float = SECONDS) -> None:
    """As :func:`until`, for a look that would hold up the event loop."""
    await until(lambda: asyncio.to_thread(look), what, seconds)


def wait_until(look: Callable[[], object], what: str = "", seconds: float = SECONDS) -> None:
    """As :func:`until`, for tests without an event loop."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not (answer := look()):
        assert time.monotonic() < deadline, _say(what, answer, seconds)
        pause.wait(_PAUSE_SECONDS)


def _say(what: str, answer: object, seconds: float) -> str:
    return f"after {seconds:g} s still not: {what or 'what was waited for'} ({answer!r})"

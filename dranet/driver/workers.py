"""Threads for what blocks: a few for the kernel and the disk, and others for names that are looked up.

asyncio gives both to one pool. A name server that does not answer holds a look-up for minutes: some of them
would leave no thread for scans and claims, and the end of the process would wait for them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from dranet import malloc
from dranet.driver.at_work import noted

P = ParamSpec("P")
T = TypeVar("T")


class NotedThreads(ThreadPoolExecutor):
    """A pool whose threads say what they are at (``at_work``)."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(_noted, partial(fn, *args, **kwargs))


def _noted(call: Callable[[], T]) -> T:
    with noted(call):
        return call()


class Workers(NotedThreads):
    """The default executor of the driver's event loop.

    A look-up gets a thread that nobody waits for; who asks the same while it runs gets the same answer, so
    there are no more of them than names.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads, thread_name_prefix="worker")
        self._look_ups: dict[Any, Future[Any]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = partial(fn, *args, **kwargs)
        if fn is not socket.getaddrinfo:
            return super().submit(_run, call)
        key = args, tuple(kwargs.items())
        running = self._look_ups.get(key)
        if running is None or running.done():
            running = self._look_ups[key] = _look_up(call)
        return running


def _run(call: Callable[[], T]) -> T:
    """A scan or a claim needs much for a moment. What failed keeps it until its error has been told."""
    answer = call()
    malloc.give_back()
    return answer


def _look_up(call: Callable[[], T]) -> Future[T]:
    found: Future[T] = Future()
    found.set_running_or_notify_cancel()  # it cannot be called off: others may wait for it, too

    def run() -> None:
        try:
            found.set_result(call())
        except (OSError, ValueError) as error:
            found.set_exception(error)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return found

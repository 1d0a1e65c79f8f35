"""Which threads are at work on what, and since when: to be told should the end of the process wait for one.

A system call that hangs cannot be called off, and a thread in one cannot be asked. So each job is noted when
it begins; only who tells of it later pays for words.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import _current_frames as read_frames
from types import FrameType

from dranet.dataclass import dataclass

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class _Job:
    work: object
    """Text, or what is called."""
    since: float
    """``time.monotonic()``."""


_jobs: dict[int, _Job] = {}
"""By thread."""


@contextmanager
def noted(work: object) -> Iterator[None]:
    """This thread is at ``work`` (a text, or what is called) until the block ends."""
    thread = threading.get_ident()
    _jobs[thread] = _Job(work, time.monotonic())
    try:
        yield
    finally:
        del _jobs[thread]


def is_anybody() -> bool:
    """Whether any thread is at work."""
    return bool(_jobs)


def describe_threads() -> list[str]:
    """A line for each thread at work: its name, at what, since when and where in the code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames, now = read_frames(), time.monotonic()
    return [
        f"thread {names.get(ident, ident)}: {_describe(job.work)} for {now - job.since:.1f} s"
        f"{describe_place(frames.get(ident))}"
        for ident, job in tuple(_jobs.items())
    ]


def describe_place(frame: FrameType | None) -> str:
    """The innermost line of ours that a thread or coroutine is in; empty where there is none."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE) and path != Path(__file__):
            return f" in {path.relative_to(_PACKAGE.parent)}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return ""


def _describe(work: object) -> str:
    """The function below the wrappings of asyncio (``to_thread``: ``Context.run`` of it) and of ours."""
    while isinstance(work, functools.partial):
        inner = work.args[0] if work.args and callable(work.args[0]) else None
        is_wrapping = getattr(work.func, "__name__", "") in ("run", "_run")
        work = inner if is_wrapping and inner is not None else work.func
    return work if isinstance(work, str) else str(getattr(work, "__qualname__", work))

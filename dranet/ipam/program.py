"""Run a program that is not trusted to end, or to be brief: its input, what it prints, how it ends.

It runs in a session of its own, so that its children end with it, and with an environment of its own. Its
input is a file in memory (``memfd_create(2)``): a program that does not read it blocks no one.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

MAX_OUTPUT_BYTES = 1 << 20
"""For output and error output each."""
_CHUNK_BYTES = 1 << 16
_REAP_SECONDS = 1.0
"""How long a killed program may take to end; one that the kernel keeps does not."""


class Outcome(Struct, frozen=True):
    status: int
    """Negative: the signal that ended it."""
    output: bytes
    errors: bytes
    is_late: bool = False
    """It was killed because its time was over."""
    is_too_long: bool = False
    """It was killed because of what it printed."""


def run_program(
    path: Path, environment: Mapping[str, str], text: bytes, *, seconds: float, inherited: int
) -> Outcome:
    """Blocks the thread. ``inherited`` is a descriptor that the program and its children keep open. Raises
    OSError where it cannot be started."""
    with os.fdopen(os.memfd_create(path.name), "r+b") as inputs:
        inputs.write(text)
        inputs.seek(0)
        process = subprocess.Popen(
            [path],
            stdin=inputs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            pass_fds=[inherited],
            start_new_session=True,
        )
    try:
        return _listen(process, time.monotonic() + seconds)
    finally:
        _end(process)
        _close_pipes(process)


def _listen(process: subprocess.Popen[bytes], deadline: float) -> Outcome:
    assert process.stdout is not None
    assert process.stderr is not None
    printed = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    is_late = is_too_long = False
    with selectors.DefaultSelector() as selector:
        for descriptor in printed:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and not (is_late or is_too_long):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            is_late = not ready
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fd)
                printed[key.fd] += chunk
            is_too_long = any(len(text) > MAX_OUTPUT_BYTES for text in printed.values())
    if not (is_late or is_too_long):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            is_late = True
    _end(process)
    output, errors = map(bytes, printed.values())
    return Outcome(process.returncode or 0, output, errors, is_late, is_too_long)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Not by ``with process``: that waits without limit for a program that the kernel keeps. The next program
    that is started lets :mod:`subprocess` reap those that have ended since."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its children where they still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)

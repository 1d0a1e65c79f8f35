"""Change links with iproute2: it is not the driver's code, so the two check each other."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dranet.errors import KernelError, Reason

NETNS_FOLDER = Path("/run/netns")
"""Where ``ip netns`` keeps its names; private to the tree."""

PROGRAMS = ("ip", "tc", "nsenter")
"""The programs that the testbed calls, from iproute2 and util-linux."""

_DEADLINE_SECONDS = 30


class ProgramsMissing(KernelError):
    """A program of iproute2 or util-linux is not installed here."""

    default_reason = Reason.MISSING_FEATURE
    default_retryable = False

    def __init__(self, *names: str) -> None:
        are = "is" if len(names) == 1 else "are"
        super().__init__(f"{', '.join(names)} {are} not installed", hint="install iproute2 and util-linux")


def check_programs() -> None:
    """Before anything is begun.

    Raises:
        ProgramsMissing: with every program that is.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise ProgramsMissing(*missing)


def run_ip(*arguments: str, netns: str = "") -> str:
    """Run ``ip`` here or in the named namespace and return what it prints.

    Raises:
        KernelError: with ip's own words.
    """
    where = ("-n", netns) if netns else ()
    return _run(["ip", *where, *arguments])


def run_batch(lines: Iterable[str], netns: str = "") -> None:
    """Run many ``ip`` commands in one process; stops at the first that fails.

    Raises:
        KernelError: with ip's own words, which name the line.
    """
    where = ("-n", netns) if netns else ()
    _run(["ip", *where, "-batch", "-"], stdin="\n".join(lines) + "\n")


def read_json(*command: str) -> list[dict[str, Any]]:
    """Run a command of iproute2 that prints a JSON list of objects; nothing printed is an empty list.

    Raises:
        KernelError: it failed.
    """
    text = _run(command)
    answer: list[dict[str, Any]] = json.loads(text) if text.strip() else []
    return [entry for entry in answer if entry]  # ip prints {} for what a filter dropped


def read_text(*command: str) -> str:
    """What a command of iproute2, or one that it runs, prints.

    Raises:
        KernelError: it failed.
    """
    return _run(command)


def in_namespace(netns_path: str, *command: str) -> tuple[str, ...]:
    """The command, run in the network namespace that a path names (``ip -n`` takes names only)."""
    return ("nsenter", f"--net={netns_path}", *command)


def _run(command: Sequence[str], stdin: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise ProgramsMissing(command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{' '.join(command)}: no answer in {_DEADLINE_SECONDS} s") from error
    if done.returncode != 0:
        raise KernelError(f"{' '.join(command)}: {done.stderr.strip()}", operation=" ".join(command))
    return done.stdout

"""``kubectl`` from the distribution's packages, without installing anything: it judges what pages say."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

import pytest

from dranet.testbed.debian.packages import (
    PrivateApt,
    Unavailable,
    cache_folder,
    make_cache,
    read_release,
    unpack,
)
from tests.documents.commands import Command

SUITE = "forky"
"""Of Debian, whatever release the machine runs: earlier ones are older than the API that the driver needs."""
_PACKAGE = "kubectl"


def find_kubectl() -> Path:
    """The program, from the cache or fetched; without it the test is skipped with the cause."""
    try:
        cache = cache_folder(_PACKAGE)
        return next(cache.glob(f"*/{_PACKAGE}"), None) or _fetch(cache)
    except Unavailable as shortage:
        pytest.skip(f"kubectl: {shortage}")


def _fetch(cache: Path) -> Path:
    release = read_release()
    make_cache(cache)
    final = cache / f"{SUITE}-{release.architecture}"
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as temporary:
        work = Path(temporary)
        apt = PrivateApt(work / "apt", release.source, (SUITE,), release.architecture)
        apt.update()
        unpack(apt.download([f"{_PACKAGE}/{SUITE}"], work / "debs")[_PACKAGE], work / "tree")
        (work / "stage").mkdir()
        (work / "tree" / "usr" / "bin" / _PACKAGE).rename(work / "stage" / _PACKAGE)
        with contextlib.suppress(OSError):  # somebody else may have won the race; theirs is as good
            (work / "stage").rename(final)
    return final / _PACKAGE


def complain(kubectl: Path, command: Command) -> list[str]:
    """What ``kubectl`` says of a command's flags: it reads them all before it gives the help that is asked
    for behind them. Nothing of what is behind ``--`` is its business."""
    words = list(command[1:])
    end = words.index("--") if "--" in words else len(words)
    asked = [str(kubectl), *words[:end], "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return [f"{' '.join(command)}: {done.stderr}"] if done.returncode else []

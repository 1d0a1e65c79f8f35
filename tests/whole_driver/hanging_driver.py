"""A build of the driver that hangs, as in a system call that does not return, where a test tells it to.

``python -m tests.whole_driver.hanging_driver FOLDER END_SECONDS run ...``: a point hangs from the moment on
at which a file with its name is in the folder; ``POINT.hangs`` then says that it does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dranet.cli.main import main
from dranet.driver import app, attachments
from dranet.driver.prepare import Preparer
from dranet.kernel.discovery.scan import NodeScanner
from dranet.store.claim_store import ClaimStore

POINTS: dict[str, tuple[object, str]] = {
    "scan": (NodeScanner, "read"),
    "attach": (attachments, "attach"),
    "store": (ClaimStore, "get_all"),
    "store-close": (ClaimStore, "close"),
}
"""By name: the function that never returns."""
CALL: tuple[object, str] = (Preparer, "prepare")
"""The point ``call``: a coroutine that neither ends nor can be cancelled."""


def _hang_for_ever() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


def _arm(folder: Path, point: str) -> None:
    owner, name = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if (folder / point).exists():
            (folder / f"{point}.hangs").touch()
            _hang_for_ever()
        return real(*arguments, **named)

    setattr(owner, name, call)


def _arm_call(folder: Path) -> None:
    owner, name = CALL
    real: Callable[..., Any] = getattr(owner, name)

    async def prepare(*arguments: Any) -> Any:
        while (folder / "call").exists():
            (folder / "call.hangs").touch()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return await real(*arguments)

    setattr(owner, name, prepare)


if __name__ == "__main__":
    folder, end_seconds, *arguments = sys.argv[1:]
    app.END_SECONDS = float(end_seconds)
    for known in POINTS:
        _arm(Path(folder), known)
    _arm_call(Path(folder))
    sys.exit(main(arguments))

"""Fills the outputs into a page of the documentation whose code blocks begin with ``$ dranet ...``.

Such a block holds one command and what it prints, run in the root of the repository and in a pipe. A test
fails when a page is stale; ``make docs`` writes it anew.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from dranet.cli.main import main

PAGES = ("topology.md",)
PICTURES = {"topology-dgx-h100.svg": "topology --facts tests/data/dgx-h100/capture.json -o svg"}
"""File below ``docs/user`` -> the command that draws it."""

_BLOCK = re.compile(r"^```\n\$ dranet ([^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def fill_page(text: str) -> str:
    """The page with the outputs of now."""
    return _BLOCK.sub(lambda block: f"```\n$ dranet {block[1]}\n{print_out(block[1])}```", text)


def print_out(command: str) -> str:
    """What ``dranet COMMAND`` prints.

    Raises:
        RuntimeError: it failed.
    """
    with redirect_stdout(io.StringIO()) as printed:
        code = main(command.split())
    if code:
        raise RuntimeError(f"dranet {command} ended with {code}")
    return printed.getvalue()


def write_examples(folder: Path) -> None:
    """Bring pages and pictures in ``docs/user`` up to date."""
    for name in PAGES:
        page = folder / name
        page.write_text(fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, command in PICTURES.items():
        (folder / name).write_text(print_out(command), encoding="utf-8")

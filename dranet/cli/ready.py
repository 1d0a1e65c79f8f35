"""``dranet ready``: is the driver of this very pod ready? For the readiness probe, in an image that has no
other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "ready",
        help="exit with 0 if the driver of this pod is ready",
        description="Exit with 0 while the driver of this pod is ready, and with 1 while it is not: for a "
        "readiness probe, which an HTTP probe cannot be while two instances overlap.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the driver's --ready-file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The kubelet shows what is printed."""
    if options.file.exists():
        return 0
    print(f"not ready: {options.file} does not exist; /readyz and the log have the reason", file=sys.stderr)
    return 1

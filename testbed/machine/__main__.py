"""``python -m testbed.machine``: the machine lane from the command line."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from testbed.machine.fetch import MachineUnavailable
from testbed.machine.lane import TESTS, Options, run_lane
from testbed.machine.machine import MachineDied

EXIT_FAILED = 1


def main() -> int:
    """0: all passed, or the machine cannot be had here (the cause is printed, unless ``--require``); 1: a
    failure."""
    arguments = _parser().parse_args()
    options = Options(
        tests=arguments.tests or TESTS,
        script=arguments.script.read_text() if arguments.script else "",
        capture=arguments.keep_capture,
        keep=arguments.keep,
        timeout_seconds=arguments.timeout_seconds,
    )
    try:
        return EXIT_FAILED if run_lane(options, _show).status else 0
    except MachineUnavailable as unavailable:
        _show(f"the machine lane was skipped: {unavailable}\n")
        return EXIT_FAILED if arguments.require else 0
    except MachineDied as died:
        _show(f"{died}\n")
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.machine",
        description="Boot a stock kernel in a virtual machine and run tests inside it.",
    )
    add = parser.add_argument
    add("tests", nargs="*", help="pytest arguments instead of the lane's own tests")
    add(
        "--keep-capture",
        type=Path,
        metavar="FILE",
        help="write the output of `dranet capture --redact` inside",
    )
    add(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep the console, output, JUnit file, capture and devices",
    )
    add("--script", type=Path, metavar="FILE", help="run this shell script inside instead of the tests")
    add(
        "--timeout-seconds",
        type=float,
        default=3600.0,
        help="time limit of the boot and all that runs inside",
    )
    add("--require", action="store_true", help="fail where the machine cannot be had")
    return parser


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # unwinds, so that folders are also removed
    sys.exit(main())

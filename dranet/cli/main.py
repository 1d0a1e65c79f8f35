"""``dranet``: one program, one module per command. No decisions here, only arguments and print-outs."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from dranet import __version__
from dranet.errors import DranetError, SettingsError

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""

VERSION_FLAG = "--version"
_OUTPUT_IS_FULL = (errno.ENOSPC, errno.EDQUOT)

COMMANDS = {
    "run": "dranet.cli.run",
    "devices": "dranet.cli.devices",
    "topology": "dranet.cli.topology",
    "claims": "dranet.cli.claims",
    "claim": "dranet.cli.claim",
    "explain": "dranet.cli.explain",
    "validate": "dranet.cli.validate",
    "capture": "dranet.cli.capture",
    "doctor": "dranet.cli.doctor",
    "ready": "dranet.cli.ready",
    "seccomp": "dranet.cli.seccomp",
    "demo": "dranet.cli.demo",
    "testbed": "dranet.cli.testbed",
}
"""Command -> module with ``add_parser(commands)``. Only the module of the given command is loaded: the
driver pays neither start time nor memory for the others."""


def build_parser(first_argument: str) -> argparse.ArgumentParser:
    """The command line; all of it, unless the first argument names a command."""
    parser = argparse.ArgumentParser(
        prog="dranet",
        description="Kubernetes DRA network driver: the pod's NIC beside its GPU, whole or not at all.",
    )
    parser.add_argument(VERSION_FLAG, action="version", version=f"dranet {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name in _choose_commands(first_argument):
        import_module(COMMANDS[name]).add_parser(commands)
    return parser


def _choose_commands(first_argument: str) -> Iterable[str]:
    """Those that the command line can be about: the one that is named, none for the version, or all."""
    if first_argument == VERSION_FLAG:
        return ()
    return (first_argument,) if first_argument in COMMANDS else COMMANDS


def parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """As ``parse_args``, and says which command's help knows better."""
    parser = build_parser(given[0] if given else "")
    options, unknown = parser.parse_known_args(given)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)} (see dranet {options.command} --help)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad arguments or settings."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # pydantic would read the metadata of every installed package to look for plugins: 50 ms for nothing
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        options = parse_arguments(given)
        code = int(options.run(options))
        sys.stdout.flush()  # here, where a reader that went away is still caught
    except SettingsError as error:
        print(f"dranet: {error}", file=sys.stderr)
        return EXIT_BAD_SETTINGS
    except DranetError as error:
        print(f"dranet: {error.reason}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        return _explain_missing(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _OUTPUT_IS_FULL:
            raise
        _drop_output()
        print(f"dranet: cannot write the output: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _explain_missing(error: ModuleNotFoundError) -> int:
    """The image leaves the testbed out; any other module that is missing is our mistake."""
    if not (error.name or "").startswith("dranet.testbed"):
        raise error
    print("dranet: the testbed is not in this image (run it from a checkout: make demo)", file=sys.stderr)
    return EXIT_FAILED


def _drop_output() -> None:
    """So that the last flush, when Python ends, says nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

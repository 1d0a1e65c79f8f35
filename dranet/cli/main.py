"""``dranet``: one program, a module for each command or two. No decisions, only arguments and print-outs."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec

from dranet import __version__
from dranet.errors import DranetError, SettingsError

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""

VERSION_FLAG = "--version"
_OUTPUT_IS_FULL = (errno.ENOSPC, errno.EDQUOT)

NODE_COMMANDS = {
    "run": "dranet.cli.run",
    "devices": "dranet.cli.devices",
    "topology": "dranet.cli.topology",
    "claims": "dranet.cli.claims",
    "capture": "dranet.cli.look",
    "doctor": "dranet.cli.doctor.command",
    "ready": "dranet.cli.pod",
    "seccomp": "dranet.cli.pod",
    "installed": "dranet.cli.installed",
}
"""What runs on a node: the image holds these and the modules they reach (``tools.image.trees``)."""

DESK_COMMANDS = {
    "claim": "dranet.desk.cli.claim",
    "explain": "dranet.desk.cli.explain",
    "validate": "dranet.desk.cli.validate",
}
"""What people run where their kubeconfig is. Not in the image."""

TESTBED_COMMANDS = {"demo": "testbed.cli.demo", "testbed": "testbed.cli.testbed"}
"""Commands of the distribution dranet-testbed, which ``make setup`` installs from a checkout."""

COMMANDS = NODE_COMMANDS | DESK_COMMANDS | TESTBED_COMMANDS
"""Command -> module with ``add_parser(commands)``. Only the module of the given command is loaded: the
driver pays neither start time nor memory for the others."""


def build_parser(first_argument: str) -> argparse.ArgumentParser:
    """The command line; all of it, unless the first argument names a command."""
    parser = argparse.ArgumentParser(
        prog="dranet",
        description="Kubernetes DRA network driver: the pod's NIC next to its GPU, all or nothing.",
    )
    parser.add_argument(VERSION_FLAG, action="version", version=f"dranet {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS[name] for name in _choose_commands(first_argument)):
        import_module(module).add_parser(commands)
    return parser


def _choose_commands(first_argument: str) -> Iterable[str]:
    """The command that is named, none for the version, or all that are installed."""
    if first_argument == VERSION_FLAG:
        return ()
    if first_argument in COMMANDS:
        return (first_argument,)
    return filter(_is_installed, COMMANDS)


def _is_installed(command: str) -> bool:
    try:
        return find_spec(COMMANDS[command]) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """As ``parse_args``, with a pointer to the command's help in the error."""
    parser = build_parser(arguments[0] if arguments else "")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)} (see dranet {options.command} --help)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad arguments or settings."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    # pydantic would read the metadata of every installed package to look for plugins: 50 ms for nothing
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        options = parse_arguments(typed)
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
    """Name the remedy for a command that this installation leaves out; any other missing module is a bug."""
    missing = error.name or ""
    if missing.startswith("dranet.desk"):
        remedy = "not in the driver's image: run it at your desk (in a checkout: pip install '.[desk]')"
    elif missing.startswith("testbed"):
        remedy = "the testbed is not installed: run it from a checkout (make setup, then .venv/bin/dranet)"
    else:
        raise error
    print(f"dranet: {remedy}", file=sys.stderr)
    return EXIT_FAILED


def _drop_output() -> None:
    """Drop what is still buffered, so that the last flush of Python does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

"""``dranet``: one program, a module for each command or two. No decisions, only arguments and print-outs.

It is a plugin of kubectl too: as ``kubectl-dranet`` it runs as ``kubectl dranet``, and as
``kubectl_complete-dranet`` it completes what is typed after that.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dranet import __version__
from dranet.cli.parser import EXIT_BAD_ARGUMENTS, Parser, suggest
from dranet.errors import DranetError, NotFoundError, SettingsError

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = EXIT_BAD_ARGUMENTS
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""

VERSION_FLAG, HELP, HELP_FLAGS = "--version", "help", ("-h", "--help")
REMOVES = "forget"
"""A command that removes something, so that no misspelt word leads to it."""
_OUTPUT_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_COMPLETION, _COMPLETION_ENVIRONMENT = "dranet.cli.completion", "_ARGCOMPLETE"


class Command(NamedTuple):
    """``module`` has ``add_parser(commands)``. Only the module of the given command is loaded: the driver
    pays neither start time nor memory for the others."""

    module: str
    about: str


GROUPS: Mapping[str, Mapping[str, Command]] = {
    "Write and check claims": {
        "claim": Command("dranet.desk.cli.claim", "write claims that align NICs and GPUs on this hardware"),
        "validate": Command(
            "dranet.desk.cli.validate", "find mistakes in claims and pods before you apply them"
        ),
        "pool": Command("dranet.desk.cli.pool", "check pools of addresses, and list what each node gets"),
        "explain": Command("dranet.desk.cli.explain", "show why a claim or a pod gets its devices or not"),
    },
    "Look at hardware": {
        "devices": Command("dranet.cli.devices", "list the devices of a node, and why one is not offered"),
        "topology": Command(
            "dranet.cli.topology", "show the distances of NICs and GPUs: tree, matrix, picture"
        ),
        "nodes": Command("dranet.desk.cli.nodes", "show all nodes: drivers, devices, claims, problems"),
        "fabric": Command(
            "dranet.desk.cli.fabric", "show switches, rails and nodes, and what does not fit; export them"
        ),
        "capture": Command("dranet.cli.look", "write all hardware facts of this node as one document"),
    },
    "Look after a node": {
        "doctor": Command("dranet.cli.doctor.command", "show what works, what does not, and how to fix it"),
        "prepared": Command("dranet.cli.prepared", "list the claims that are prepared on this node"),
        "forget": Command("dranet.cli.forget", "remove the damaged record of a claim from this node"),
    },
    "Try it out": {
        "demo": Command("testbed.cli.demo", "show the driver at work on a simulated DGX H100"),
        "testbed": Command("testbed.cli.testbed", "run scenarios on a one-node cluster in one process tree"),
    },
    "Run by the DaemonSet": {
        "run": Command("dranet.cli.run", "run the driver on this node"),
        "ready": Command("dranet.cli.pod", "exit with 0 if the driver of this pod is ready"),
        "seccomp": Command("dranet.cli.pod", "print the driver's seccomp profile, or put it on the node"),
    },
    "Run by helm test": {
        "installed": Command("dranet.cli.installed", "exit with 0 if the driver is ready on its nodes"),
    },
    "Run by the chart's Deployment": {
        "label": Command("dranet.cli.label", "keep the labels of nodes about their place in the fabric"),
    },
    "Other commands": {
        "version": Command(
            "dranet.desk.cli.version", "print the versions of this program and of the drivers"
        ),
        "completion": Command("dranet.cli.completion", "print the completion script for bash, zsh or fish"),
    },
}
"""The commands by the headings of ``dranet --help``. ``dranet.desk`` is what people run where their
kubeconfig is; ``testbed`` is the distribution dranet-testbed, which ``make setup`` installs from a checkout.
"""

COMMANDS: Mapping[str, Command] = {name: one for group in GROUPS.values() for name, one in group.items()}

NOT_IN_THE_IMAGE = ("dranet.desk.", "dranet.cli.completion", "testbed.")
NODE_COMMANDS = {
    name: one.module for name, one in COMMANDS.items() if not one.module.startswith(NOT_IN_THE_IMAGE)
}
"""What runs on a node: the image holds these and the modules they reach (``tools.image.trees``)."""
DESK_COMMANDS = {name: one.module for name, one in COMMANDS.items() if one.module.startswith("dranet.desk.")}

ALIASES = {"topo": "topology", "claims": "prepared"}
RENAMED = ("claims",)
"""Aliases that are old names, which get a hint."""


def find_program_name() -> str:
    """``kubectl dranet`` where kubectl has started this program."""
    return "kubectl dranet" if Path(sys.argv[0]).name.startswith("kubectl-dranet") else "dranet"


def build_parser(command: str, prog: str = "dranet") -> Parser:
    """The command line with this command."""
    parser = _build_bare_parser(prog)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    import_module(COMMANDS[command].module).add_parser(commands)
    return parser


def _build_bare_parser(prog: str) -> Parser:
    parser = Parser(prog=prog)
    parser.add_argument(VERSION_FLAG, action="version", version=f"dranet {__version__}")
    return parser


def is_installed(command: str) -> bool:
    try:
        return find_spec(COMMANDS[command].module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def render_help(prog: str) -> str:
    """Every installed command, by group."""
    return "\n".join(_iter_help(prog))


def _iter_help(prog: str) -> Iterator[str]:
    yield "Kubernetes DRA network driver: the pod's NIC next to its GPU, all or nothing."
    for title, group in GROUPS.items():
        rows = [f"  {name:11} {one.about}" for name, one in group.items() if is_installed(name)]
        yield from ("", f"{title}:", *rows) if rows else ()
    yield ""
    yield "Usage:"
    yield f"  {prog} COMMAND [options]"
    yield ""
    yield f"'{prog} COMMAND --help' has examples and options; '{prog} help COMMAND' does the same."


def parse_arguments(typed: Sequence[str], prog: str = "dranet") -> argparse.Namespace:
    """As ``parse_args``; a command that does not exist is refused with the nearest one."""
    first, *others = typed
    if first.startswith("-"):
        return _build_bare_parser(prog).parse_args(typed)
    if first in RENAMED:
        _hint_new_name(first, others)
    name = ALIASES.get(first, first)
    if name not in COMMANDS:
        known = {*COMMANDS, *ALIASES, HELP} - {REMOVES}
        hint = suggest(first, known)
        raise SettingsError(f"unknown command {first!r}{hint or f' ({prog} --help lists them)'}")
    parser = build_parser(name, prog)
    if not others:
        parser.explain_bare_command(name)
    return parser.parse_args([name, *others])


def _hint_new_name(old: str, others: Sequence[str]) -> None:
    if others[:1] == ["new"]:
        raise SettingsError("unknown command 'claims new': did you mean dranet claim new?")
    print(f"dranet: the command {old} is now called {ALIASES[old]}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad arguments or settings."""
    if _COMPLETION_ENVIRONMENT in os.environ:
        import_module(_COMPLETION).complete_for_shell()
    if Path(sys.argv[0]).name.startswith("kubectl_complete-dranet"):
        import_module(_COMPLETION).complete_for_kubectl()
    typed = sys.argv[1:] if arguments is None else list(arguments)
    # pydantic would read the metadata of every installed package to look for plugins: 50 ms for nothing
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code = _run(typed, find_program_name())
        sys.stdout.flush()  # here, where a reader that went away is still caught
    except DranetError as error:
        print(f"dranet: {'NotFound: ' if isinstance(error, NotFoundError) else ''}{error}", file=sys.stderr)
        return EXIT_BAD_SETTINGS if isinstance(error, SettingsError) else EXIT_FAILED
    except ModuleNotFoundError as error:
        return _explain_missing(error, typed)
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


def _run(typed: list[str], prog: str) -> int:
    if typed[:1] == [HELP]:
        typed = [*typed[1:], HELP_FLAGS[-1]]
    if not typed or typed[0] in HELP_FLAGS:
        print(render_help(prog))
        return 0
    options = parse_arguments(typed, prog)
    return int(options.run(options))


def _drop_output() -> None:
    from dranet.terminal import drop_output  # not for a probe that starts every few seconds

    drop_output()


_OF_THE_DRIVER = ("grpc", "prometheus_client", "pyudev")
"""Packages that only the driver needs: the single-file ``kubectl-dranet`` and other systems do without."""


def _explain_missing(error: ModuleNotFoundError, typed: Sequence[str]) -> int:
    """Name the remedy for a command that this installation leaves out; any other missing module is a bug."""
    missing = error.name or ""
    if missing.startswith(("dranet.desk", "dranet.cli.completion")):
        remedy = "not in the driver's image: run it where your kubeconfig is and dranet is installed by pip"
    elif missing.startswith("testbed"):
        command = " ".join((".venv/bin/dranet", *typed))
        remedy = f"not part of the pip package or the image: in a checkout, make setup, then {command}"
    elif missing in _OF_THE_DRIVER:
        remedy = "the driver is not in this installation: it runs in its image, which the chart installs"
    else:
        raise error
    print(f"dranet: {remedy}", file=sys.stderr)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

"""Completion of commands, options and their values: in bash, zsh and fish, and after ``kubectl dranet``.

The shell starts this program for each TAB, with the line that was typed in its environment; argcomplete
answers from the parser of the command that the line names.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import Any, NoReturn

import argcomplete
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from dranet.cli.main import ALIASES, COMMANDS, HELP, build_parser, is_installed
from dranet.cli.parser import Parser

_SHELLS = ("bash", "zsh", "fish")
_PROGRAMS = ("dranet", "kubectl-dranet")
_FILES = ("FILE", "CAPTURE", "BUNDLE", "OUT", "FOLDER", "DIR")
"""What stands for a file in the help."""

_NO_FILES = ":4"
"""The last line for kubectl: complete nothing else, and add a space (``ShellCompDirectiveNoFileComp``)."""

_DESCRIPTION = """\
Print the script that teaches a shell to complete commands and options.

  source <(dranet completion bash)             # in ~/.bashrc
  source <(dranet completion zsh)              # in ~/.zshrc, after compinit
  dranet completion fish > ~/.config/fish/completions/dranet.fish

After "kubectl dranet", kubectl's own completion asks the program
kubectl_complete-dranet, which pip installs next to dranet.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "completion", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="bash|zsh|fish", help="the shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    # without bash's own completion, which offers the files of the folder where this one offers nothing
    print("\n".join(shellcode([name], use_defaults=False, shell=options.shell) for name in _PROGRAMS))
    return 0


def complete_for_shell() -> NoReturn:
    """Answer the shell's script, on its descriptor."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split(" ")
    _complete(words[1:])
    raise SystemExit(1)  # never reached: the answer ends the process


def complete_for_kubectl() -> NoReturn:
    """``kubectl_complete-dranet WORD...``: print what the last word can become, a line each."""
    words = sys.argv[1:] or [""]
    line = " ".join(["dranet", *words])
    os.environ |= {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_DFS": "\t",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    answer = io.StringIO()

    def finish(_: int) -> None:
        print("\n".join(filter(None, [answer.getvalue().strip(), _NO_FILES])))
        sys.stdout.flush()
        os._exit(0)

    _complete(words, output_stream=answer, exit_method=finish)
    raise SystemExit(1)


def _complete(words: list[str], **options: Any) -> None:
    """With the parser of the command that is typed already, else with one that knows the names."""
    first = ALIASES.get(words[0], words[0]) if words else ""
    is_typed = len(words) > 1 and first in COMMANDS and is_installed(first)
    parser = build_parser(first) if is_typed else _build_parser_of_names()
    argcomplete.autocomplete(
        parser,
        always_complete_options=False,
        default_completer=_FileCompleter(),
        exclude=parser.list_settings() if is_typed else None,
        **options,
    )


def _build_parser_of_names() -> Parser:
    parser = Parser(prog="dranet")
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        if is_installed(name):
            commands.add_parser(name, help=command.about)
    commands.add_parser(HELP, help="show the help of a command")
    return parser


class _FileCompleter(BaseCompleter):
    """Files where a file is meant, and nothing for a name."""

    def __call__(self, *, prefix: str, action: argparse.Action, **_: Any) -> list[str]:
        return list(FilesCompleter()(prefix)) if action.metavar in _FILES else []

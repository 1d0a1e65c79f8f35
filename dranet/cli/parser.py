"""The parser of every command: kubectl's habits where those of argparse are others.

An option is never guessed from its beginning; what is unknown is refused with the nearest name. The settings
of the driver, 15 to 40 lines in each command, are listed by ``--help-all`` alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

EXIT_BAD_ARGUMENTS = 2
_LEAST_CONTAINED = 3
_OUTPUT = "output"


class Parser(argparse.ArgumentParser):
    """Its subparsers are of this class too."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)
        self.shows_settings = False
        self.takes_no_less = False
        """Whether without any argument the help is printed, as where an argument is required."""

    def format_help(self) -> str:
        """Leave the settings out, unless ``--help-all`` was given."""
        from dranet.view.options import SETTINGS_GROUP  # not for --version, nor for a probe

        groups = self._action_groups
        if not self.shows_settings:
            self._action_groups = [group for group in groups if group.title != SETTINGS_GROUP]
        try:
            return super().format_help()
        finally:
            self._action_groups = groups

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is unknown here, in the parser whose options are near it."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._describe_unknown(unknown[0]))
        return known, unknown

    @property
    def needs_arguments(self) -> bool:
        """argparse calls a ``*`` without a default required."""
        positionals = self._get_positional_actions()
        return self.takes_no_less or any(one.required and one.nargs != "*" for one in positionals)

    def explain_bare_command(self, name: str) -> None:
        """Print the help of a command that was typed without its arguments, and exit, if it needs some."""
        choices: Any = next(one.choices for one in self._actions if one.dest == "command")
        command: Parser = choices[name]
        if command.needs_arguments:
            command.print_help(sys.stderr)
            command.exit(EXIT_BAD_ARGUMENTS)

    def _describe_unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            is_file = "-f" in self._option_string_actions and Path(argument).suffix
            hint = f": did you mean -f {argument}?" if is_file else ""
            return f"unexpected argument {argument!r}{hint}"
        name = argument.partition("=")[0]
        hint = suggest(name, self._list_own_options()) or suggest(
            name, self._option_string_actions, by_part=False
        )
        return f"unknown option {name}{hint}"

    def _list_own_options(self) -> list[str]:
        """Without the settings, which are rarely meant."""
        from dranet.view.options import SETTINGS_GROUP

        own = (one for one in self._actions if _group_title(one) != SETTINGS_GROUP)
        return [name for action in own for name in action.option_strings]

    def list_settings(self) -> set[str]:
        """The options of the command and its actions that ``--help-all`` alone shows."""
        found = self._option_string_actions.keys() - set(self._list_own_options())
        for action in self._actions:
            if isinstance(action.choices, dict):
                found = found.union(*(parser.list_settings() for parser in action.choices.values()))
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        names = list(map(str, choices))
        is_long = len(str(value)) >= _LEAST_CONTAINED  # "sh" is near each of bash, zsh and fish
        hint = (suggest(str(value), names) if is_long else "") or f" (one of {', '.join(names)})"
        raise argparse.ArgumentError(action, f"unknown value {str(value)!r}{hint}")

    def error(self, message: str) -> NoReturn:
        """Print the error and where help is, without the usage."""
        print(f"dranet: {message}\nSee '{self.prog} --help' for usage.", file=sys.stderr)
        self.exit(EXIT_BAD_ARGUMENTS)


def _group_title(action: argparse.Action) -> str | None:
    title: str | None = getattr(getattr(action, "container", None), "title", None)
    return title


def suggest(name: str, known: Iterable[str], *, by_part: bool = True) -> str:
    """``: did you mean --gpus?``: the shortest name that contains it (``by_part``), else a near one, else
    nothing. Dashes make no two names alike, and what names an input is no option for an output."""
    from difflib import get_close_matches  # not for a probe that starts every few seconds

    word = name.strip("-")
    names = {one.strip("-"): one for one in sorted(known, key=lambda one: (len(one), one))}
    if not word.startswith(_OUTPUT[0]):
        names = {bare: one for bare, one in names.items() if not bare.startswith(_OUTPUT)}
    is_part = by_part and len(word) >= _LEAST_CONTAINED
    longer = [one for bare, one in names.items() if is_part and word in bare]
    near = longer or [names[bare] for bare in get_close_matches(word, names, n=1)]
    return f": did you mean {near[0]}?" if near else ""

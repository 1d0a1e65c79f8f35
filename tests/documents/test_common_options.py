"""The table of options that commands have in common: each of them has it, and no other command does."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from dranet.cli.main import GROUPS, build_parser
from dranet.cli.parser import Parser
from tests.documents.blocks import REPOSITORY

PAGE = (REPOSITORY / "docs/commands/README.md").read_text()
ROWS = re.findall(r"^\| (`-.*) \| .* \| (.*) \|$", PAGE.partition("## Common options")[2], re.MULTILINE)
TITLES = [title for title in GROUPS if not title.startswith("Run by")]


def list_commands(parser: Parser, name: str) -> Iterator[tuple[str, Parser]]:
    """The command, or each of its actions: ``claim new``."""
    actions = [one.choices for one in parser._actions if isinstance(one.choices, dict)]
    if not actions:
        yield name, parser
    for action, below in actions[0].items() if actions else ():
        yield from list_commands(below, f"{name} {action}".lstrip())


def find_options() -> dict[str, set[str]]:
    """Option -> the commands whose help has it."""
    found = defaultdict[str, set[str]](set)
    for title in TITLES:
        for command in GROUPS[title]:
            for name, parser in list_commands(build_parser(command), ""):
                for option in parser._option_string_actions.keys() - parser.list_settings():
                    found[option].add(name)
    return found


@pytest.mark.parametrize(("options", "commands"), ROWS)
def test_the_commands_of_a_row_are_those_that_have_the_option(options: str, commands: str) -> None:
    found = find_options()
    for option in re.findall(r"`(--?[a-z-]+)", options):
        assert found[option] == set(re.findall(r"`([a-z ]+)`", commands))

"""The page of the command line: each command with its examples and options, from its own parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from dranet.cli.main import GROUPS, build_parser
from dranet.view.options import SETTINGS_GROUP
from tools.pages.page import fill, table

_SETTINGS_LINK = "[settings](settings.md)"
_MARKS = re.compile(r"([<>|*_\[\]])")


def cli_page() -> str:
    """``docs/reference/cli.md``."""
    return fill("cli.md", overview="\n\n".join(_iter_overview()), commands="\n\n".join(_iter_sections()))


def _iter_overview() -> Iterator[str]:
    for title, group in GROUPS.items():
        yield f"**{title}**"
        rows = ((f"[`{name}`](#dranet-{name})", one.about) for name, one in group.items())
        yield table(("command", ""), rows).strip()


def _iter_sections() -> Iterator[str]:
    for group in GROUPS.values():
        for name in group:
            yield from _describe(_subparsers(build_parser(name))[name])


def _describe(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A command, and the actions that it has."""
    actions = _subparsers(parser)
    yield f"## {parser.prog}" if parser.prog.count(" ") == 1 else f"### {parser.prog}"
    yield from _paragraphs(parser.description or "")
    if not actions:
        yield table(("option", "meaning"), _iter_options(parser)).strip()
        yield from _paragraphs(parser.epilog or "")
    for action in actions.values():
        yield from _describe(action)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001
    return dict(found[0].choices) if found else {}


def _paragraphs(text: str) -> Iterator[str]:
    """Prose as it is; what is indented, or aligned, as a block."""
    for paragraph in filter(None, text.strip("\n").split("\n\n")):
        lines = paragraph.splitlines()
        heading = lines[0] if len(lines) > 1 and all(line.startswith("  ") for line in lines[1:]) else ""
        if all(line.startswith("  ") for line in lines):
            yield "```text\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```"
        elif heading and not heading.startswith(" "):
            yield heading
            yield "```text\n" + "\n".join(line.removeprefix("  ") for line in lines[1:]) + "\n```"
        else:
            yield _MARKS.sub(r"\\\1", " ".join(paragraph.split()))


def _iter_options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    settings = next((g for g in parser._action_groups if g.title == SETTINGS_GROUP), None)  # noqa: SLF001
    folded = set(settings._group_actions) if settings else set()  # noqa: SLF001
    for action in parser._actions:  # noqa: SLF001
        if action not in folded and "--help" not in action.option_strings:
            value = "" if action.nargs == 0 else _value_of(action)
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            yield f"{names} {f'`{value}`' if value else ''}".strip(), _meaning(parser, action)
    if settings:
        flags = ", ".join(f"`{action.option_strings[0]}`" for action in settings._group_actions)  # noqa: SLF001
        yield _SETTINGS_LINK, f"{settings.description}: {flags if len(folded) < 40 else 'all of them'}"


def _value_of(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help as argparse prints it, with its default."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
    return _MARKS.sub(r"\\\1", text).replace(r"\|", "|")

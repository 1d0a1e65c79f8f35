"""Find words that the project no longer uses: ``python -m tools.words [PATH...]``.

Reads names, docstrings, comments and messages of Python files, sentences of Markdown files and comments of
YAML files, compares them with ``tools/words.toml`` and prints ``path:line: word -> what to write instead``.
Exits with 1 if it finds any. Without paths it reads what ``pyproject.toml`` lists as clean
(``tool.words.clean``); ``make check`` runs it that way.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")

_GENERATED = ("dranet/pb/", "e2e/pb/", "testbed/pb/")
_SUFFIXES = {".py", ".md", ".yaml"}
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_NOT_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|(?<=\])\([^)\s]*\)", re.MULTILINE | re.DOTALL)
"""Code blocks, comments and targets of links in Markdown."""
_BEGINS = re.compile(r" *([|#>]|[-*] |[0-9]+\. )")
"""What begins a table's row, a heading, a quote and a list's entry in Markdown."""


@dataclass(frozen=True, slots=True)
class Found:
    """One use of an old word."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} -> {self.instead}"


@dataclass(frozen=True, slots=True)
class NameRule:
    """Parts of names; ``kinds`` are the kinds of names that may not have them, empty for all."""

    words: frozenset[str]
    kinds: frozenset[str]
    instead: str


@dataclass(frozen=True, slots=True)
class ProseRule:
    """A pattern in sentences."""

    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, slots=True)
class Exemption:
    """A name or a line that is not reported, and the files in which it is not."""

    pattern: re.Pattern[str]
    path: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Table:
    """The rules of ``words.toml``."""

    names: tuple[NameRule, ...]
    prose: tuple[ProseRule, ...]
    exemptions: tuple[Exemption, ...]

    def allows(self, path: str, text: str) -> bool:
        """Whether an exemption covers this name or line."""
        return any(one.path.search(path) and one.pattern.search(text) for one in self.exemptions)


def read_table(file: Path = TABLE) -> Table:
    data = tomllib.loads(file.read_text())
    return Table(
        tuple(
            NameRule(frozenset(one["words"]), frozenset(one.get("only", ())), one["say"])
            for one in data["name"]
        ),
        tuple(ProseRule(_compile(one["find"]), one["say"]) for one in data["prose"]),
        tuple(Exemption(re.compile(one["text"]), re.compile(one.get("path", ""))) for one in data["allow"]),
    )


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def check_text(path: str, source: str, table: Table) -> list[Found]:
    """Return the old words of one file, in the order of its lines. Its suffix decides how it is read."""
    lines = source.splitlines()
    if path.endswith(".md"):
        found = [*_check_prose(path, source, _iter_paragraphs(source), table)]
    elif path.endswith(".py"):
        tree = ast.parse(source)
        prose = chain(_iter_comments(source), _iter_strings(tree))
        found = [*_check_names(path, tree, table), *_check_prose(path, source, prose, table)]
    else:
        found = [*_check_prose(path, source, _iter_comment_lines(lines), table)]
    found = [one for one in found if not table.allows(path, lines[one.line - 1] if lines else "")]
    return sorted(set(found), key=lambda one: (one.line, one.word))


def _check_names(path: str, tree: ast.Module, table: Table) -> Iterator[Found]:
    file = Path(path)
    module = file.parent.name if file.stem == "__init__" else file.stem
    for line, kind, name in [(1, "module", module), *_iter_names(tree)]:
        if table.allows(path, name):
            continue
        for rule in table.names:
            if (not rule.kinds or kind in rule.kinds) and _has_word(name, rule.words):
                yield Found(path, line, name, rule.instead)


def _iter_names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each name that the file defines. Names that it only uses are not read."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield node.lineno, "class", name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, "function", name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, "variable", name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, "variable", name
            case ast.alias(asname=str(name)):
                yield node.lineno, "variable", name
            case _:
                pass


def _has_word(name: str, words: frozenset[str]) -> bool:
    text = "_" + "_".join(part.lower() for part in _NAME_WORD.findall(name)) + "_"
    return any(f"_{word}_" in text for word in words)


def _check_prose(
    path: str, source: str, prose: Iterable[tuple[int, int, str]], table: Table
) -> Iterator[Found]:
    lines = source.splitlines()
    for first, last, text in prose:
        sentence, offsets = _join_lines(_CODE.sub(lambda code: re.sub(r"\S", "`", code.group()), text))
        for rule in table.prose:
            for match in rule.pattern.finditer(sentence):
                word = match.group().strip(" .,:;()")
                line = _find_line(lines, word, min(first + offsets[match.end() - 1], last), first, last)
                yield Found(path, line, word, rule.instead)


def _join_lines(text: str) -> tuple[str, list[int]]:
    """The text with one space for all white space between two words, and the line of each character."""
    pieces, offsets, line = [], [], 0
    for piece in re.split(r"(\s+)", text):
        pieces.append(" " if piece.isspace() else piece)
        offsets += [line] * len(pieces[-1])
        line += piece.count("\n")
    return "".join(pieces), offsets


def _find_line(lines: Sequence[str], word: str, guess: int, first: int, last: int) -> int:
    """The line with the last word of a match: the guess, or another one if a string is in several pieces."""
    end = re.compile(rf"(?<!\w){re.escape(word.split(' ')[-1])}(?!\w)")
    candidates = (guess, *range(first, last + 1))
    return next((line for line in candidates if end.search(lines[line - 1])), guess)


def _iter_paragraphs(source: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and text of each paragraph of a Markdown file."""
    block: list[str] = []
    lines = _NOT_PROSE.sub(lambda found: re.sub(r"\S", "`", found.group()), source).splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if block and (not line.strip() or _BEGINS.match(line)):
            yield number - len(block), number - 1, "\n".join([_BEGINS.sub("", block[0]), *block[1:]])
            block = []
        if line.strip():
            block.append(line)


def _iter_comment_lines(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """First line, last line and text of each block of comments of a YAML file or a template."""
    numbered = enumerate((line.lstrip() for line in lines), 1)
    for is_comment, block in groupby(numbered, key=lambda one: one[1].startswith("#")):
        if is_comment:
            numbers, texts = zip(*block, strict=True)
            yield numbers[0], numbers[-1], "\n".join(text.lstrip("# ") for text in texts)


def _iter_comments(source: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and text of each block of comments."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != last + 1:
            yield last - len(block) + 1, last, "\n".join(block)
            block = []
        block.append(token.string.lstrip("#: "))
        last = token.start[0]
    if block:
        yield last - len(block) + 1, last, "\n".join(block)


def _iter_strings(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """First line, last line and text of each string with several words; a value in an f-string is ``{}``."""
    pieces: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces |= {id(one) for one in node.values}
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, node.end_lineno or node.lineno, text


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Python, Markdown and YAML files at and below the paths."""
    for path in paths:
        yield from (
            sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES) if path.is_dir() else [path]
        )


def check_paths(paths: Iterable[Path], table: Table) -> Iterator[Found]:
    """Return the old words of all files at and below the paths."""
    for file in list_files(paths):
        path = (
            str(file.resolve().relative_to(REPOSITORY))
            if file.resolve().is_relative_to(REPOSITORY)
            else str(file)
        )
        if not path.startswith(_GENERATED):
            yield from check_text(path, file.read_text(), table)


def list_clean(repository: Path = REPOSITORY) -> list[Path]:
    """The paths that ``pyproject.toml`` lists as free of old words."""
    settings: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())
    return [repository / path for path in settings["tool"]["words"]["clean"]]


def main(arguments: Sequence[str]) -> int:
    found = list(check_paths(map(Path, arguments) if arguments else list_clean(), read_table()))
    for one in found:
        print(one)
    if found:
        print(f"{len(found)} old words; tools/words.toml lists them all", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Blocks of commands: which programs they call, with which words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

Command = tuple[str, ...]

_COMMENT = re.compile(r"(?:^|\s)#(?:\s.*)?$", re.MULTILINE)
_CONTINUED = re.compile(r"\\\n")
_ENDS = frozenset("|;&\n")
_INNER = re.compile(r"\$\(([^()]*)\)")
_LOOP = frozenset({"for", "done"})
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


def iter_commands(text: str) -> Iterator[Command]:
    """Each command of a block, in a pipe, a loop or a substitution as well, without redirections, comments
    and settings before it.

    Raises:
        ValueError: a quotation without an end, as in what a program says.
    """
    for inner in _INNER.findall(text):
        yield from iter_commands(inner)
    plain = _INNER.sub("SUBSTITUTED", _COMMENT.sub("", _CONTINUED.sub(" ", text)))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="|;&<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if word and set(word) <= _ENDS:
            yield from _finish(words)
            words = []
        else:
            words.append(word)


def _finish(words: list[str]) -> Iterator[Command]:
    kept, skip = list[str](), False
    for word in words:
        if skip or set(word) <= {"<", ">"}:
            skip = not skip  # the file after it
        elif kept or (word not in ("$", "do") and not _ASSIGNMENT.fullmatch(word)):
            kept.append(word)
    if kept and kept[0] not in _LOOP:
        yield tuple(kept)


def programs(text: str) -> set[str]:
    """What a block calls; nothing where it cannot be read as commands."""
    try:
        return {command[0] for command in iter_commands(text)}
    except ValueError:
        return set()

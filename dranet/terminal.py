"""What the reader of the output can see: how wide it is, whether it has colours, and tables that fit in."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from msgspec import Struct


def printable(text: str) -> str:
    """Escape every character of ``text`` that is not printable or could move the cursor: ``\\x1b``. The
    kernel lets an interface name hold any byte but white space, ``/`` and ``:``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def count_of(number: int, word: str) -> str:
    """``1 NIC``, ``2 NICs``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def join_words(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes of UTF-8, whole characters; what is longer ends in three dots."""
    encoded = text.encode(errors="replace")  # names of files and links need not be UTF-8
    if len(encoded) <= most:
        return encoded.decode()
    return encoded[: most - 3].decode(errors="ignore") + "..."


GAP = "  "
PROSE = 100
"""The most columns that sentences take, on a screen however wide, in a pipe and in a file."""
CONTINUED = "    "
"""Indents what did not fit on the line of its row."""

_LEAST_WRAPPED = 24
"""Text wrapped to less than this reads worse than on a line of its own."""

_DIM, _BOLD, _RED, _YELLOW, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[1;31m", "\x1b[1;33m", "\x1b[0m"


class Screen(Struct, frozen=True):
    """Where the output goes. ``columns`` is ``None`` where there is no limit, as in a pipe or a file."""

    columns: int | None = None
    lines: int | None = None
    colours: bool = False

    def dim(self, text: str) -> str:
        return self._style(_DIM, text)

    def bold(self, text: str) -> str:
        return self._style(_BOLD, text)

    def red(self, text: str) -> str:
        """For an error or a problem."""
        return self._style(_RED, text)

    def yellow(self, text: str) -> str:
        """For a warning."""
        return self._style(_YELLOW, text)

    def _style(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self.colours and text else text

    def cut(self, text: str) -> str:
        return cut(text, self.columns)


def find_screen() -> Screen:
    """The terminal on standard output; elsewhere no colours, and no limit but ``COLUMNS``. ``NO_COLOR``
    (no-color.org) and ``TERM=dumb`` turn colours off; ``CLICOLOR_FORCE`` and ``FORCE_COLOR`` turn them on
    in a pipe."""
    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        limit = int(columns) if columns.isdecimal() and int(columns) else None
        return Screen(columns=limit, colours=_wants_colours(is_terminal=False))
    size = shutil.get_terminal_size()
    return Screen(size.columns, size.lines, _wants_colours(is_terminal=True))


def _wants_colours(*, is_terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("CLICOLOR_FORCE", "FORCE_COLOR")):
        return True
    return is_terminal and os.environ.get("TERM", "") not in ("", "dumb")


_LOOK_ALIKES = {"├": "|", "└": "`", "│": "|", "─": "-", "·": "-", "…": "~"}
"""One character for one, so that columns line up."""


def never_fail_to_print() -> None:
    """Show what the output's encoding lacks as what looks like it, or as an escape (``\\u2714``)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_STAND_IN)


def print_document(text: str) -> None:
    """What programs read, in UTF-8 whatever the locale."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    print(text)


def drop_output() -> None:
    """Drop what is still buffered, so that the last flush of Python does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    odd = error.object[error.start : error.end]
    texts = (_LOOK_ALIKES.get(c) or c.encode("ascii", "backslashreplace").decode() for c in odd)
    return "".join(texts), error.end


_STAND_IN = "dranet.stand-in"
codecs.register_error(_STAND_IN, _stand_in)


def cut(text: str, columns: int | None) -> str:
    """``text`` in at most ``columns`` characters, with ``…`` for what is left out."""
    if columns is None or len(text) <= columns:
        return text
    return text[: max(columns - 1, 0)].rstrip() + "…"


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], columns: int | None = None
) -> list[list[str]]:
    """Left-aligned columns, two spaces apart: the lines of the header, then those of each row. A row that is
    too long continues below itself, indented: a last cell on its own wraps next to the others while that is
    readable; columns that do not fit at all come as further lines of every row."""
    table = [tuple(map(printable, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    groups = _fold(widths, len(header[-1]), columns)
    return [_format_row(row, widths, groups, columns) for row in table]


def _fold(widths: Sequence[int], last_floor: int, columns: int | None) -> list[list[int]]:
    """Which columns share a line. The last one needs room for its title only: it can wrap."""
    groups: list[list[int]] = [[]]
    used = 0
    for column, width in enumerate(widths):
        needed = min(width, last_floor) if column == len(widths) - 1 else width
        if columns is not None and groups[-1] and used + len(GAP) + needed > columns:
            groups.append([])
            used = len(CONTINUED)
        used += needed + (len(GAP) if groups[-1] else 0)
        groups[-1].append(column)
    return groups


def _format_row(
    row: Sequence[str], widths: Sequence[int], groups: Sequence[Sequence[int]], columns: int | None
) -> list[str]:
    lines: list[str] = []
    for number, group in enumerate(groups):
        indent = CONTINUED if number else ""
        *fixed, end = group
        if number and not any(row[column] for column in group):
            continue
        start = indent + "".join(row[column].ljust(widths[column]) + GAP for column in fixed)
        lines += _end_line(start, row[end], columns)
    return lines


def _end_line(start: str, text: str, columns: int | None) -> list[str]:
    """Append the last cell to ``start``: on the same line, wrapped next to it, or below it."""
    if columns is None or len(start) + len(text) <= columns:
        return [(start + text).rstrip()]
    room = columns - len(start)
    if room >= _LEAST_WRAPPED:
        first, *rest = textwrap.wrap(text, room, break_on_hyphens=False)
        return [start + first, *(" " * len(start) + line for line in rest)]
    below = textwrap.wrap(text, max(columns - len(CONTINUED), 1), break_on_hyphens=False)
    return [start.rstrip(), *(CONTINUED + line for line in below)]

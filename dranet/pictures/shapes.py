"""Shapes of a picture (rectangles, lines, texts, blocks of them), in pixels, and the width of texts without a
font.

The width of each printable ASCII character is the larger of two: in Arial (and Arimo and Liberation Sans,
which have its metrics) and in DejaVu Sans, the widest font that browsers use for ``sans-serif``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.model.distance import Distance

ELLIPSIS = "…"

_FIRST = 32


def _table(widths: str) -> tuple[int, ...]:
    """Hundredths of the font size, beginning with the space."""
    return tuple(map(int, widths.split()))


_REGULAR = _table(
    "32 41 46 84 64 96 78 28 40 40 50 84 32 37 32 34 "
    "64 64 64 64 64 64 64 64 64 64 34 34 84 84 84 56 "
    "102 69 69 73 78 67 62 78 76 30 50 67 56 87 75 79 "
    "67 79 73 67 62 74 69 99 69 67 69 40 34 40 84 56 "
    "50 62 64 55 64 62 36 64 64 28 28 58 28 98 64 62 "
    "64 64 42 53 40 64 60 82 60 60 53 64 34 64 84"
)
_BOLD = _table(
    "35 46 53 84 70 101 88 31 46 46 53 84 38 42 38 37 "
    "70 70 70 70 70 70 70 70 70 70 40 40 84 84 84 62 "
    "100 78 77 74 84 69 69 83 84 38 56 78 64 100 84 86 "
    "74 86 78 73 69 82 78 111 78 73 73 46 37 46 84 56 "
    "50 68 72 60 72 68 44 72 72 35 35 67 35 105 72 69 "
    "72 72 50 60 48 72 66 93 65 66 59 72 37 72 84"
)
_OTHER, _WIDE = 100, 110


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the most pixels that ``text`` takes at ``size`` pixels."""
    table = _BOLD if bold else _REGULAR
    return sum(_character_width(character, table) for character in text) * size / 100


def _character_width(character: str, table: tuple[int, ...]) -> int:
    position = ord(character) - _FIRST
    if 0 <= position < len(table):
        return table[position]
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _OTHER


def fit_text(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """Cut ``text`` with ``…`` to at most ``room`` pixels; empty if no character fits. Reads no further than
    it can show."""
    table, limit = _BOLD if bold else _REGULAR, round(room * 100 / size, 6)
    used, end = 0, 0
    for position, character in enumerate(text, start=1):
        used += _character_width(character, table)
        if used > limit:
            shorter = text[:end].rstrip()
            return shorter + ELLIPSIS if shorter else ""
        if used + _OTHER <= limit:
            end = position
    return text


def fit_words(words: Iterable[str], size: float, room: float, separator: str = " · ") -> str:
    """Join as many words as fit; the first one is cut if necessary."""
    first, *others = [*filter(None, words)] or [""]
    text = fit_text(first, size, room)
    for word in others:
        longer = f"{text}{separator}{word}"
        if text != first or text_width(longer, size) > room:
            break
        text = longer
    return text


def wrap_text(text: str, size: float, room: float) -> list[str]:
    """Break into lines of whole words; a word that is wider than a line is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else ""
        if lines and text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fit_text(word, size, room))
    return lines


GAP = 12


class Text(Struct, frozen=True):
    """One line of text. ``x`` is its start, end or middle, according to ``anchor``; ``y`` its base line;
    ``room`` the width that it must not exceed."""

    x: float
    y: float
    text: str
    size: float
    style: str
    room: float
    anchor: str = "start"
    bold: bool = False


class Rect(Struct, frozen=True):
    """A rounded rectangle with its texts; ``tooltip`` shows when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 10
    texts: tuple[Text, ...] = ()
    tooltip: str = ""


class Line(Struct, frozen=True):
    x1: float
    y1: float
    x2: float
    y2: float
    style: str


Shape = Rect | Line | Text


class Drawing(Struct, frozen=True):
    """All shapes, from back to front, on a canvas."""

    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


class Block(Struct):
    """Shapes around their own origin, to be moved to their place."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def put(self, block: Block, x: float, y: float) -> None:
        self.shapes += [moved(shape, x, y) for shape in block.shapes]


def flow(blocks: Iterable[Block], width: float, gap: float) -> Block:
    """Place from left to right, and continue in the next row when one is full."""
    whole = Block(width, 0)
    x = y = row_height = 0.0
    for block in blocks:
        if x and x + block.width > width:
            x, y, row_height = 0, y + row_height + GAP, 0
        whole.put(block, x, y)
        x += block.width + gap
        row_height = max(row_height, block.height)
    whole.height = y + row_height
    return whole


def pill(x: float, y: float, far: Distance, *, bold: bool) -> Rect:
    width, height = 40.0, 18.0
    text = Text(x, y + 4, far.name, 10.5, "pilltext", width - 6, "middle", bold=True)
    style = "pill" if bold else "pill far"
    return Rect(x - width / 2, y - height / 2, width, height, style, 9, (text,), far.meaning)


def moved(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, x1=shape.x1 + x, y1=shape.y1 + y, x2=shape.x2 + x, y2=shape.y2 + y)
    if isinstance(shape, Text):
        return replace(shape, x=shape.x + x, y=shape.y + y)
    texts = tuple(replace(text, x=text.x + x, y=text.y + y) for text in shape.texts)
    return replace(shape, x=shape.x + x, y=shape.y + y, texts=texts)

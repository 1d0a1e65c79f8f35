"""What a picture is drawn with: rectangles, lines and texts with places, in pixels, and blocks of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from dranet.dataclass import dataclass
from dranet.model.distance import Distance

GAP = 12


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text. ``x`` is where it starts, ends or has its middle, by ``anchor``; ``y`` its base
    line; ``room`` the width that it must not exceed."""

    x: float
    y: float
    text: str
    size: float
    style: str
    room: float
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Rect:
    """A rounded rectangle. What belongs to it is drawn after it, ``texts`` among them; ``tooltip`` shows
    when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 10
    texts: tuple[Text, ...] = ()
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    style: str


Shape = Rect | Line | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """All shapes, from back to front, on a canvas."""

    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


@dataclass(slots=True)
class Block:
    """Shapes around an origin of their own, to be moved to their place."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def put(self, block: Block, x: float, y: float) -> None:
        self.shapes += [moved(shape, x, y) for shape in block.shapes]


def flow(blocks: Iterable[Block], width: float, gap: float) -> Block:
    """From left to right, and on in the next row where there is no more room."""
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

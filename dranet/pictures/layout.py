"""Places everything in the picture: boxes -> shapes (rectangles, lines, texts, blocks of them), in pixels.

Texts are measured without a font: a character is as wide as in Arial (or Arimo and Liberation Sans, with its
metrics) or in DejaVu Sans, the widest that browsers use for ``sans-serif``, whichever is more.

A group is as wide as its columns need: GPUs on the left, everything else on the right, and between them a bus
with the name of their distance. Groups without such pairs are half as wide and share a row.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.model.facts import Distance
from dranet.pictures.boxes import Box, Group, Panel, Picture, Tone, iter_boxes

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
    """The most pixels that ``text`` takes at ``size`` pixels."""
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


def fit_words(words: Iterable[str], size: float, room: float) -> str:
    """Join as many words as fit; the first one is cut if necessary."""
    first, *others = [*filter(None, words)] or [""]
    text = fit_text(first, size, room)
    for word in others:
        longer = f"{text} · {word}"
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
    """Shapes around an origin of their own."""

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


class Measures(Struct, frozen=True):
    """Pixels that depend on the available width."""

    margin: int
    panel_gap: int
    padding: int
    box_width: int
    box_height: int
    inset: int
    """Margin of the texts in a box."""
    bus_width: int
    most_columns: int
    """Panels side by side."""
    has_corners: bool = True
    """Whether a box has room for its name and its speed on one line."""

    @property
    def inner_width(self) -> int:
        """Width of a group with two columns, or of two groups with one column each and a gap."""
        return 2 * self.padding + 2 * self.box_width + self.bus_width


DESK = Measures(
    margin=28, panel_gap=44, padding=14, box_width=224, box_height=66, inset=11, bus_width=60, most_columns=4
)
PAGE = replace(DESK, most_columns=2)
"""For a window of 1,280 pixels."""
PHONE = Measures(
    margin=0,
    panel_gap=24,
    padding=8,
    box_width=123,
    box_height=82,
    inset=7,
    bus_width=44,
    most_columns=1,
    has_corners=False,
)
"""For a screen of 360 pixels: panels one below the other."""


_ROW_HEIGHT, _LINE_HEIGHT = 20, 15


def build_legend(picture: Picture, width: float) -> Block:
    """The legend of colours and words that occur in the picture, in as many rows as needed."""
    boxes = [box for panel in picture.panels for group in panel.groups for box in iter_boxes(group)]
    found_tones = {box.tone for box in boxes}
    swatches = [(f"box {tone}", words) for tone, words in _TONE_WORDS.items() if tone in found_tones]
    if any(box.mark.pod for box in boxes):
        swatches.append(("box group taken", "a pod has it"))
    if any(box.mark.fault for box in boxes):
        swatches.append(("box group faulty", "does not work"))
    entries = (_entry(Rect(0, 3, 22, 14, style, 4), 30, text, width) for style, text in swatches)
    tones = flow(entries, width, gap=GAP)
    numa = [panel for panel in picture.panels if panel.is_numa_node]
    found = {*picture.distances, *([Distance.SYS] if len(numa) > 1 else [])}
    pills = ((pill(20, 10, far, bold=far <= Distance.PXB), far.meaning) for far in sorted(found))
    words = flow((_entry(sign, 48, f"through {text}", width) for sign, text in pills), width, gap=GAP)
    return flow([tones, words], width, gap=GAP)


_TONE_WORDS = {
    Tone.GPU: "GPU",
    Tone.NIC: "NIC",
    Tone.RDMA: "RDMA-only device",
    Tone.NOT_OFFERED: "not offered: the node needs it, or it cannot be moved to a pod",
}


def _entry(sign: Shape, indent: float, text: str, width: float) -> Block:
    """A sign and its meaning, on several lines if the picture is narrow."""
    room = min(text_width(text, 12), width - indent - 4) + 1
    lines = wrap_text(text, 12, room)
    texts = [Text(indent, 14 + _LINE_HEIGHT * n, line, 12, "muted", room) for n, line in enumerate(lines)]
    return Block(indent + 3 + room, _ROW_HEIGHT + _LINE_HEIGHT * (len(lines) - 1), [sign, *texts])


GROUP_HEAD = 26
PANEL_HEAD = 40
TITLE_HEIGHT = 62
SUBTITLE_ROOM = 0.95
"""Share of the width for a line: browsers that round each character to whole pixels draw a long line wider
than it is measured."""
SUBTITLE_LINE = 19
"""Height of each line except the first."""


def lay_out(picture: Picture, m: Measures = DESK) -> Drawing:
    """Place everything; an empty picture states that it is empty."""
    blocks = _panels(m, picture.panels) or [_empty_panel(m)]
    columns = min({1: 1, 2: 2, 3: 3, 4: 2}.get(len(blocks), 4), m.most_columns)
    body = Block(0, 0)
    width = 2 * m.margin + min(columns, len(blocks)) * (blocks[0].width + m.panel_gap) - m.panel_gap
    title = list(_title(m, picture, width - 2 * m.margin))
    y: float = m.margin + TITLE_HEIGHT + SUBTITLE_LINE * max(len(title) - 2, 0)
    for start in range(0, len(blocks), columns):
        y += _place_row(m, body, blocks[start : start + columns], y, picture.panels[start : start + columns])
    legend = build_legend(picture, width - 2 * m.margin)
    body.put(legend, m.margin, y)
    return Drawing(width, y + legend.height + m.margin, picture.title, (*title, *body.shapes))


def _place_row(m: Measures, body: Block, blocks: Sequence[Block], y: float, panels: Sequence[Panel]) -> float:
    """Place panels side by side. NUMA nodes have equal height and are tied by the link between CPUs."""
    height = max(block.height for block in blocks)
    for position, block in enumerate(blocks):
        x = m.margin + position * (block.width + m.panel_gap)
        frame, *rest = block.shapes
        assert isinstance(frame, Rect), "a panel begins with its frame"
        is_numa_node = panels[position].is_numa_node if panels else False
        body.put(Block(0, 0, [replace(frame, height=height) if is_numa_node else frame, *rest]), x, y)
        if position and is_numa_node and panels[position - 1].is_numa_node:
            start, middle = x - m.panel_gap, y + PANEL_HEAD / 2
            body.shapes.append(Line(start, middle, x, middle, "bus far"))
            body.shapes.append(pill((start + x) / 2, middle, Distance.SYS, bold=False))
    return height + m.panel_gap / 2


def _title(m: Measures, picture: Picture, room: float) -> Iterator[Text]:
    title = fit_text(picture.title, 22, room, bold=True)
    yield Text(m.margin, m.margin + 22, title, 22, "title", room, bold=True)
    for number, line in enumerate(wrap_text(picture.subtitle, 14, SUBTITLE_ROOM * room)):
        yield Text(m.margin, m.margin + 46 + SUBTITLE_LINE * number, line, 14, "muted", room)


def _empty_panel(m: Measures) -> Block:
    width, height = m.inner_width + 2 * m.padding, 72
    text = Text(m.padding, 44, "no devices with a place in the hardware", 14, "muted", m.inner_width)
    return Block(width, height, [Rect(0, 0, width, height, "panel", 14, (text,))])


def _panels(m: Measures, panels: Sequence[Panel]) -> list[Block]:
    """All are as wide as the widest."""
    contents = [[_group(m, group) for group in panel.groups] for panel in panels]
    inner = max([m.inner_width, *(group.width for groups in contents for group in groups)])
    return [_panel(m, panel, groups, inner) for panel, groups in zip(panels, contents, strict=True)]


def _panel(m: Measures, panel: Panel, groups: Iterable[Block], inner: float) -> Block:
    content = flow(groups, inner, gap=m.bus_width - 2 * m.padding)
    room = inner - text_width(panel.title, 15, bold=True) - GAP
    texts = (
        Text(m.padding, 26, panel.title, 15, "title", inner, bold=True),
        Text(m.padding + inner, 26, fit_text(panel.subtitle, 12, room), 12, "muted", room, "end"),
    )
    return _frame(m, content, PANEL_HEAD, "panel", 14, texts)


def _frame(
    m: Measures, content: Block, head: float, style: str, radius: float, texts: tuple[Text, ...]
) -> Block:
    width, height = content.width + 2 * m.padding, head + content.height + m.padding
    block = Block(width, height, [Rect(0, 0, width, height, style, radius, texts)])
    block.put(content, m.padding, head)
    return block


def _group(m: Measures, group: Group) -> Block:
    inside = _inside(m, group)
    if not group.label:
        return inside
    label = Text(m.padding, 18, fit_text(group.label, 11, inside.width), 11, "muted", inside.width)
    return _frame(m, inside, GROUP_HEAD, "group", 12, (label,))


def _inside(m: Measures, group: Group) -> Block:
    """The boxes right here, then the groups inside, one below the other."""
    parts = [_boxes(m, group)] if group.gpus or group.others else []
    parts += [_group(m, inner) for inner in group.groups]
    block = Block(max((part.width for part in parts), default=0), 0)
    for part in parts:
        block.put(part, 0, block.height)
        block.height += part.height + GAP
    block.height = max(block.height - GAP, 0)
    return block


def _boxes(m: Measures, group: Group) -> Block:
    if group.gpus and group.others and group.bond is not None:
        return _bonded(m, group.gpus, group.others, group.bond)
    boxes = (*group.gpus, *group.others)
    columns = 2 if len(boxes) > 1 else 1
    width = columns * (m.box_width + m.bus_width) - m.bus_width
    block = Block(width, -(-len(boxes) // columns) * (m.box_height + GAP) - GAP)
    for number, box in enumerate(boxes):
        row, column = divmod(number, columns)
        block.shapes.append(_box(m, box, column * (m.box_width + m.bus_width), row * (m.box_height + GAP)))
    return block


def _bonded(m: Measures, gpus: Sequence[Box], others: Sequence[Box], bond: Distance) -> Block:
    """Two columns, the shorter one centred, and the bus between them."""
    rows = max(len(gpus), len(others))
    block = Block(2 * m.box_width + m.bus_width, rows * (m.box_height + GAP) - GAP)
    left, right = m.box_width, m.box_width + m.bus_width
    bus = (left + right) / 2
    style = "bus" if bond <= Distance.PXB else "bus far"
    middles = []
    for boxes, x, edge in ((gpus, 0.0, left), (others, right, right)):
        top = (rows - len(boxes)) * (m.box_height + GAP) / 2
        for row, box in enumerate(boxes):
            y = top + row * (m.box_height + GAP)
            middles.append(y + m.box_height / 2)
            block.shapes.append(_box(m, box, x, y))
            wire = "bus held" if box.tone is Tone.NOT_OFFERED else style
            block.shapes.append(Line(bus, middles[-1], edge, middles[-1], wire))
    if rows > 1:
        block.shapes.append(Line(bus, min(middles), bus, max(middles), style))
    block.shapes.append(pill(bus, block.height / 2, bond, bold=bond <= Distance.PXB))
    return block


def _box(m: Measures, box: Box, x: float, y: float) -> Rect:
    room = m.box_width - 2 * m.inset
    name = fit_text(box.name, 13, room, bold=True)
    corner_room = room - text_width(name, 13, bold=True) - 8
    corner = fit_text(box.corner, 11, corner_room) if m.has_corners and corner_room > 0 else ""
    lines = box.lines if m.has_corners else ((box.corner,), *box.lines)
    texts = [Text(x + m.inset, y + 21, name, 13, "name", room, bold=True)]
    if corner:
        end = x + m.box_width - m.inset
        texts.append(Text(end, y + 21, corner, 11, "small", corner_room, "end"))
    for number, words in enumerate(line for line in lines if any(line)):
        text = fit_words(words, 11, room)
        style = "small" if number == 0 else "small faint"
        if text:
            texts.append(Text(x + m.inset, y + 39 + 16 * number, text, 11, style, room))
    style = f"box {box.tone}{' taken' if box.mark.pod else ''}{' faulty' if box.mark.fault else ''}"
    return Rect(x, y, m.box_width, m.box_height, style, 9, tuple(texts), box.tooltip)

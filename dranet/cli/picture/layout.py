"""Where everything in the picture goes: boxes -> shapes with places, in pixels.

A group is as wide as its columns need: GPUs on the left, everything else on the right, and between them a bus
with the word for their distance. Groups without such pairs are half as wide and share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dranet.cli.picture.boxes import Box, Group, Panel, Picture, Tone
from dranet.cli.picture.text_width import fit_text, fit_words, text_width
from dranet.model.distance import Distance

MARGIN = 28
PANEL_GAP = 44
PADDING = 14
GAP = 12
BOX_WIDTH, BOX_HEIGHT = 224, 66
BUS_WIDTH = 60
LABEL_HEIGHT = 22
INNER_WIDTH = 2 * PADDING + 2 * BOX_WIDTH + BUS_WIDTH
"""Width of a group with two columns; two groups with one column each and a gap fit in, too."""

PANEL_HEAD = 40
TITLE_HEIGHT = 62
LEGEND_HEIGHT = 20
_TEXT_INSET = 11


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
class _Block:
    """Shapes around an origin of their own, to be moved to their place."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def put(self, block: _Block, x: float, y: float) -> None:
        self.shapes += [_moved(shape, x, y) for shape in block.shapes]


def lay_out(picture: Picture) -> Drawing:
    """Place everything; a picture with nothing in it says so."""
    blocks = _panels(picture.panels) or [_empty_panel()]
    columns = _column_count(len(blocks))
    body = _Block(0, 0)
    y: float = TITLE_HEIGHT + MARGIN
    for start in range(0, len(blocks), columns):
        y += _place_row(body, blocks[start : start + columns], y, picture.panels[start : start + columns])
    width = 2 * MARGIN + min(columns, len(blocks)) * (blocks[0].width + PANEL_GAP) - PANEL_GAP
    legend = _legend(picture, width - 2 * MARGIN)
    body.put(legend, MARGIN, y)
    shapes = (*_title(picture, width - 2 * MARGIN), *body.shapes)
    return Drawing(width, y + legend.height + MARGIN, picture.title, shapes)


def _column_count(panels: int) -> int:
    return {1: 1, 2: 2, 3: 3, 4: 2}.get(panels, 4)


def _place_row(body: _Block, blocks: Sequence[_Block], y: float, panels: Sequence[Panel]) -> float:
    """Panels side by side, NUMA nodes all as high as the highest and tied by the link between CPUs."""
    height = max(block.height for block in blocks)
    for position, block in enumerate(blocks):
        x = MARGIN + position * (block.width + PANEL_GAP)
        frame, *rest = block.shapes
        assert isinstance(frame, Rect), "a panel begins with its frame"
        is_numa_node = panels[position].is_numa_node if panels else False
        body.put(_Block(0, 0, [replace(frame, height=height) if is_numa_node else frame, *rest]), x, y)
        if position and is_numa_node and panels[position - 1].is_numa_node:
            body.shapes += _tie(x - PANEL_GAP, x, y + PANEL_HEAD / 2, Distance.SYS, bold=False)
    return height + PANEL_GAP / 2


def _title(picture: Picture, room: float) -> Iterator[Text]:
    title = fit_text(picture.title, 22, room, bold=True)
    yield Text(MARGIN, MARGIN + 22, title, 22, "title", room, bold=True)
    yield Text(MARGIN, MARGIN + 46, fit_text(picture.subtitle, 14, room), 14, "muted", room)


def _empty_panel() -> _Block:
    width, height = INNER_WIDTH + 2 * PADDING, 72
    text = Text(PADDING, 44, "no devices with a place in the hardware", 14, "muted", INNER_WIDTH)
    return _Block(width, height, [Rect(0, 0, width, height, "panel", 14, (text,))])


def _panels(panels: Sequence[Panel]) -> list[_Block]:
    """All as wide as the widest needs."""
    contents = [[_group(group) for group in panel.groups] for panel in panels]
    inner = max([INNER_WIDTH, *(group.width for groups in contents for group in groups)])
    return [_panel(panel, groups, inner) for panel, groups in zip(panels, contents, strict=True)]


def _panel(panel: Panel, groups: Iterable[_Block], inner: float) -> _Block:
    flow = _flow(groups, inner, gap=BUS_WIDTH - 2 * PADDING)
    width, height = inner + 2 * PADDING, PANEL_HEAD + flow.height + PADDING
    room = inner - text_width(panel.title, 15, bold=True) - GAP
    texts = (
        Text(PADDING, 26, panel.title, 15, "title", inner, bold=True),
        Text(PADDING + inner, 26, fit_text(panel.subtitle, 12, room), 12, "muted", room, "end"),
    )
    block = _Block(width, height, [Rect(0, 0, width, height, "panel", 14, texts)])
    block.put(flow, PADDING, PANEL_HEAD)
    return block


def _flow(blocks: Iterable[_Block], width: float, gap: float) -> _Block:
    """From left to right, and on in the next row where there is no more room."""
    flow = _Block(width, 0)
    x = y = row_height = 0.0
    for block in blocks:
        if x and x + block.width > width:
            x, y, row_height = 0, y + row_height + GAP, 0
        flow.put(block, x, y)
        x += block.width + gap
        row_height = max(row_height, block.height)
    flow.height = y + row_height
    return flow


def _group(group: Group) -> _Block:
    inside = _inside(group)
    if not group.label:
        return inside
    width, height = inside.width + 2 * PADDING, inside.height + LABEL_HEIGHT + 4 + PADDING
    room = width - 2 * PADDING
    label = Text(PADDING, 18, fit_text(group.label, 11, room), 11, "muted", room)
    block = _Block(width, height, [Rect(0, 0, width, height, "group", 12, (label,))])
    block.put(inside, PADDING, LABEL_HEIGHT + 4)
    return block


def _inside(group: Group) -> _Block:
    """The boxes right here, then the groups inside, one below the other."""
    parts = [_boxes(group)] if group.gpus or group.others else []
    parts += [_group(inner) for inner in group.groups]
    block = _Block(max((part.width for part in parts), default=0), 0)
    for part in parts:
        block.put(part, 0, block.height)
        block.height += part.height + GAP
    block.height = max(block.height - GAP, 0)
    return block


def _boxes(group: Group) -> _Block:
    if group.gpus and group.others and group.bond is not None:
        return _bonded(group.gpus, group.others, group.bond)
    boxes = (*group.gpus, *group.others)
    columns = 2 if len(boxes) > 1 else 1
    width = columns * (BOX_WIDTH + BUS_WIDTH) - BUS_WIDTH
    block = _Block(width, -(-len(boxes) // columns) * (BOX_HEIGHT + GAP) - GAP)
    for number, box in enumerate(boxes):
        row, column = divmod(number, columns)
        block.shapes.append(_box(box, column * (BOX_WIDTH + BUS_WIDTH), row * (BOX_HEIGHT + GAP)))
    return block


def _bonded(gpus: Sequence[Box], others: Sequence[Box], bond: Distance) -> _Block:
    """Two columns, the shorter one in the middle of the longer, and the bus that ties them."""
    rows = max(len(gpus), len(others))
    block = _Block(2 * BOX_WIDTH + BUS_WIDTH, rows * (BOX_HEIGHT + GAP) - GAP)
    left, right = BOX_WIDTH, BOX_WIDTH + BUS_WIDTH
    bus = (left + right) / 2
    style = "bus" if bond <= Distance.PXB else "bus far"
    middles = []
    for boxes, x, edge in ((gpus, 0.0, left), (others, right, right)):
        top = (rows - len(boxes)) * (BOX_HEIGHT + GAP) / 2
        for row, box in enumerate(boxes):
            y = top + row * (BOX_HEIGHT + GAP)
            middles.append(y + BOX_HEIGHT / 2)
            block.shapes.append(_box(box, x, y))
            block.shapes.append(Line(bus, middles[-1], edge, middles[-1], _wire(box, style)))
    if rows > 1:
        block.shapes.append(Line(bus, min(middles), bus, max(middles), style))
    block.shapes.append(_pill(bus, block.height / 2, bond, bold=bond <= Distance.PXB))
    return block


def _wire(box: Box, style: str) -> str:
    return "bus held" if box.tone is Tone.HELD_BACK else style


def _box(box: Box, x: float, y: float) -> Rect:
    room = BOX_WIDTH - 2 * _TEXT_INSET
    name = fit_text(box.name, 13, room, bold=True)
    corner_room = room - text_width(name, 13, bold=True) - 8
    corner = fit_text(box.corner, 11, corner_room) if corner_room > 0 else ""
    texts = [Text(x + _TEXT_INSET, y + 21, name, 13, "name", room, bold=True)]
    if corner:
        end = x + BOX_WIDTH - _TEXT_INSET
        texts.append(Text(end, y + 21, corner, 11, "small", corner_room, "end"))
    for number, words in enumerate(box.lines):
        text = fit_words(words, 11, room)
        style = "small" if number == 0 else "small faint"
        if text:
            texts.append(Text(x + _TEXT_INSET, y + 39 + 16 * number, text, 11, style, room))
    return Rect(x, y, BOX_WIDTH, BOX_HEIGHT, f"box {box.tone}", 9, tuple(texts), box.tooltip)


def _tie(x1: float, x2: float, y: float, far: Distance, *, bold: bool) -> list[Shape]:
    return [Line(x1, y, x2, y, "bus far"), _pill((x1 + x2) / 2, y, far, bold=bold)]


def _pill(x: float, y: float, far: Distance, *, bold: bool) -> Rect:
    width, height = 40.0, 18.0
    text = Text(x, y + 4, far.name, 10.5, "pilltext", width - 6, "middle", bold=True)
    style = "pill" if bold else "pill far"
    return Rect(x - width / 2, y - height / 2, width, height, style, 9, (text,), far.meaning)


def _legend(picture: Picture, width: float) -> _Block:
    """Colours and words that occur in the picture, in as many rows as they need."""
    tones = _flow([_swatch(tone) for tone in Tone if tone in _tones(picture.panels)], width, gap=GAP)
    numa = [panel for panel in picture.panels if panel.is_numa_node]
    found = {*picture.distances, *([Distance.SYS] if len(numa) > 1 else [])}
    words = _flow([_word_entry(far, width) for far in sorted(found)], width, gap=GAP)
    legend = _Block(width, tones.height + GAP + words.height)
    legend.put(tones, 0, 0)
    legend.put(words, 0, tones.height + GAP)
    return legend


def _tones(panels: Iterable[Panel]) -> set[Tone]:
    found: set[Tone] = set()
    groups = [group for panel in panels for group in panel.groups]
    while groups:
        group = groups.pop()
        found |= {box.tone for box in (*group.gpus, *group.others)}
        groups += group.groups
    return found


_TONE_WORDS = {
    Tone.GPU: "GPU",
    Tone.NIC: "NIC",
    Tone.RDMA: "RDMA-only device",
    Tone.HELD_BACK: "held back: the node needs it, or it cannot be given away",
}


def _swatch(tone: Tone) -> _Block:
    text = _TONE_WORDS[tone]
    width = text_width(text, 12)
    rect = Rect(0, 3, 22, 14, f"box {tone}", 4)
    return _Block(34 + width, LEGEND_HEIGHT, [rect, Text(30, 14, text, 12, "muted", width + 1)])


def _word_entry(far: Distance, width: float) -> _Block:
    text = f"through {far.meaning}"
    room = min(text_width(text, 12), width - 52)
    pill = _pill(20, 10, far, bold=far <= Distance.PXB)
    shown = fit_text(text, 12, room)
    return _Block(52 + room, LEGEND_HEIGHT, [pill, Text(48, 14, shown, 12, "muted", room + 1)])


def _moved(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, x1=shape.x1 + x, y1=shape.y1 + y, x2=shape.x2 + x, y2=shape.y2 + y)
    if isinstance(shape, Text):
        return replace(shape, x=shape.x + x, y=shape.y + y)
    texts = tuple(replace(text, x=text.x + x, y=text.y + y) for text in shape.texts)
    return replace(shape, x=shape.x + x, y=shape.y + y, texts=texts)

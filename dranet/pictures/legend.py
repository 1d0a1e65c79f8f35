"""What colours and words in the picture mean: those that occur, in as many rows as they need."""

from __future__ import annotations

from collections.abc import Iterable

from dranet.model.distance import Distance
from dranet.pictures.boxes import Box, Panel, Picture, Tone
from dranet.pictures.shapes import GAP, Block, Rect, Shape, Text, flow, pill
from dranet.pictures.text_width import text_width, wrap_text

_ROW_HEIGHT, _LINE_HEIGHT = 20, 15


def build_legend(picture: Picture, width: float) -> Block:
    """Colours and words that occur in the picture, in as many rows as they need."""
    boxes = _boxes_of(picture.panels)
    found_tones, marks = {box.tone for box in boxes}, [box.mark for box in boxes]
    swatches = [_swatch(f"box {tone}", _TONE_WORDS[tone], width) for tone in Tone if tone in found_tones]
    swatches += [_swatch("box group taken", "a pod has it", width)] if any(mark.pod for mark in marks) else []
    swatches += (
        [_swatch("box group faulty", "does not work", width)] if any(mark.fault for mark in marks) else []
    )
    tones = flow(swatches, width, gap=GAP)
    numa = [panel for panel in picture.panels if panel.is_numa_node]
    found = {*picture.distances, *([Distance.SYS] if len(numa) > 1 else [])}
    words = flow([_word_entry(far, width) for far in sorted(found)], width, gap=GAP)
    legend = Block(width, tones.height + GAP + words.height)
    legend.put(tones, 0, 0)
    legend.put(words, 0, tones.height + GAP)
    return legend


def _boxes_of(panels: Iterable[Panel]) -> list[Box]:
    found: list[Box] = []
    groups = [group for panel in panels for group in panel.groups]
    while groups:
        group = groups.pop()
        found += (*group.gpus, *group.others)
        groups += group.groups
    return found


_TONE_WORDS = {
    Tone.GPU: "GPU",
    Tone.NIC: "NIC",
    Tone.RDMA: "RDMA-only device",
    Tone.HELD_BACK: "held back: the node needs it, or it cannot be given away",
}


def _swatch(style: str, text: str, width: float) -> Block:
    return _entry(Rect(0, 3, 22, 14, style, 4), 30, text, width)


def _word_entry(far: Distance, width: float) -> Block:
    return _entry(pill(20, 10, far, bold=far <= Distance.PXB), 48, f"through {far.meaning}", width)


def _entry(sign: Shape, indent: float, text: str, width: float) -> Block:
    """A sign and what it means, beside it, on further lines where the picture is narrow."""
    room = min(text_width(text, 12), width - indent - 4) + 1
    lines = wrap_text(text, 12, room)
    texts = [Text(indent, 14 + _LINE_HEIGHT * n, line, 12, "muted", room) for n, line in enumerate(lines)]
    return Block(indent + 3 + room, _ROW_HEIGHT + _LINE_HEIGHT * (len(lines) - 1), [sign, *texts])

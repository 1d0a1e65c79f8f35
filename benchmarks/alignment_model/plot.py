"""The results as a picture: an SVG without script or fonts of its own, for light and dark pages.

Colours are of the palette of Okabe and Ito, which colour-blind people can distinguish; every part is named
as well. It is narrow, so that a telephone shows it large enough. Widths of texts are those of the widest font
that may draw them, so that none runs into another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from dranet.model.facts import Distance
from dranet.pictures.layout import text_width

WIDTH = 520
_LEFT = 20
_RIGHT = WIDTH - _LEFT
_ROW, _THICK = 48, 20
"""The machine's name above its bar."""
_PLOT, _PLOT_WIDTH = 84, 390
_SIZE_ROW = 44
_FONT = "Arimo, 'Liberation Sans', Arial, Helvetica, 'DejaVu Sans', sans-serif"

_STYLE = """
.page{fill:#ffffff}
.text{fill:#1c232b}
.halo{fill:#1c232b;stroke:#ffffff;stroke-width:5;paint-order:stroke}
.muted{fill:#5d6874}
.axis{stroke:#c3cad3;stroke-width:1}
.l0{fill:#0072b2}.l1{fill:#56b4e9}.l2{fill:#009e73}.l3{fill:#f0c04a}.l4{fill:#d55e00}
.best{fill:#0072b2}
.on0,.on2,.onbest{fill:#ffffff}.on1,.on3,.on4{fill:#101418}
.aligned{fill:#0072b2;stroke:#0072b2}
.random{fill:#d55e00;stroke:#d55e00}
@media (prefers-color-scheme:dark){
  .page{fill:#0f141a}
  .text{fill:#eef2f6}
  .halo{fill:#eef2f6;stroke:#0f141a}
  .muted{fill:#a3aeba}
  .axis{stroke:#3a4653}
  .aligned{fill:#56b4e9;stroke:#56b4e9}
  .random{fill:#f08a3c;stroke:#f08a3c}
}
"""

_MOST_GBPS, _TICK = 50, 10


def draw(results: Mapping[str, Any]) -> str:
    """The document."""
    machines = results["machines"]
    b200 = machines["hgx-b200"]
    levels, end = _levels(machines, 92)
    bandwidth, height = _bandwidth(b200, end + 44)
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">',
        "<title>What alignment is worth: a model, not a measurement</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}"/>',
        *_head(_LEFT + 16, 20, "What alignment is worth", "A model, not a measurement: published bandwidths"),
        *levels,
        *bandwidth,
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def _head(y: float, size: int, title: str, below: str) -> Iterator[str]:
    yield _text(_LEFT, y, title, size, bold=True)
    yield _text(_LEFT, y + 20, below, 13, "muted")


def _levels(machines: Mapping[str, Any], top: float) -> tuple[list[str], float]:
    """One bar for each machine: how far the NICs of jobs are from their GPUs, chosen at random; and where it
    ends."""
    lines = [*_head(top, 16, "Chosen at random", "Share of pairs by how far a job's NICs are from its GPUs")]
    for row, machine in enumerate(machines.values()):
        y = top + 36 + row * _ROW
        lines.append(_text(_LEFT, y + 13, machine["title"], 13))
        lines.append(_text(_RIGHT, y + 13, f"near: {_near(machine):.0%}", 13, anchor="end"))
        x = float(_LEFT)
        for found, share in sorted(machine["random"]["levels"].items(), key=lambda item: int(item[0])):
            width = share * (_RIGHT - _LEFT)
            lines += _segment(x, y + 19, width, int(found), share, _color(machine, int(found)))
            x += width
    legend, end = _legend(machines, top + 36 + len(machines) * _ROW + 20)
    return [*lines, *legend], end


def _near(machine: Mapping[str, Any]) -> float:
    near, shares = Distance[machine["near"]], machine["random"]["levels"]
    return sum(float(share) for found, share in shares.items() if int(found) <= near)


def _color(machine: Mapping[str, Any], found: int) -> str:
    """``best`` for what counts as aligned on the machine, else the class of the distance."""
    return "best" if found <= Distance[machine["near"]] else f"l{found}"


def _segment(x: float, y: float, width: float, found: int, share: float, color: str) -> Iterator[str]:
    name = f"{Distance(found).name} {share:.0%}"
    yield f'<rect class="{color}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_THICK}"/>'
    if text_width(name, 12) + 8 <= width:
        yield _text(x + width / 2, y + 14.5, name, 12, f"on{color.removeprefix('l')}", anchor="middle")


def _legend(machines: Mapping[str, Any], y: float) -> tuple[list[str], float]:
    """What the colours mean. A distance that is the best wherever it occurs has the colour of the best."""
    pairs = (
        (int(found), _color(one, int(found)))
        for one in machines.values()
        for found in one["random"]["levels"]
    )
    colors = dict(sorted(pairs, key=lambda pair: pair[1] != "best"))

    words = {
        0: "same switch",
        1: "several switches",
        2: "same host bridge",
        3: "same NUMA node",
        4: "other NUMA node",
    }
    entries = [("best", "as close as the machine allows")]
    entries += [(color, f"{Distance(found).name}: {words[found]}") for found, color in sorted(colors.items())]
    lines, x = [], float(_LEFT)
    for color, text in entries:
        width = 17 + text_width(text, 12)
        if x + width > _RIGHT:
            x, y = float(_LEFT), y + 22
        lines.append(f'<rect class="{color}" x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12"/>')
        lines.append(_text(x + 17, y, text, 12, "muted"))
        x += width + 16
    return lines, y


def _bandwidth(machine: Mapping[str, Any], top: float) -> tuple[list[str], float]:
    """Two rows for each size of job: aligned, and at random with one standard deviation each way; and where
    it ends."""
    below = "A job's slowest NIC, GB/s; bar: one standard deviation"
    lines = [*_head(top, 16, "Bandwidth on HGX B200", below)]
    rows = list(machine["random"]["by_size"])
    first = top + 36
    bottom = first + len(rows) * _SIZE_ROW + 4
    for tick in range(0, _MOST_GBPS + 1, _TICK):
        ends = f'x1="{_at(tick):.1f}" y1="{first:.1f}" x2="{_at(tick):.1f}" y2="{bottom:.1f}"'
        lines.append(f'<line class="axis" {ends}/>')
        lines.append(_text(_at(tick), bottom + 16, str(tick), 12, "muted", anchor="middle"))
    for row, size in enumerate(rows):
        y = first + row * _SIZE_ROW + 14
        lines.append(_text(_PLOT - 12, y + 14, f"{size} GPU{'s' if size != '1' else ''}", 13, anchor="end"))
        lines += _mark(y, machine["aligned"]["by_size"][size], "aligned")
        lines += _mark(y + 19, machine["random"]["by_size"][size], "random")
    lines += _key(_PLOT, bottom + 42, "aligned", "aligned: a claim with a constraint")
    lines += _key(_PLOT, bottom + 64, "random", "random: two device plugins")
    return lines, bottom + 84


def _mark(y: float, row: Mapping[str, Any], kind: str) -> Iterator[str]:
    value, spread = row["bandwidth"][0], row["bandwidth_sd"]
    left, right = _at(value - spread), _at(value + spread)
    if spread:
        ends = f'x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"'
        yield f'<line class="{kind}" stroke-width="2" {ends}/>'
    yield _shape(kind, _at(value), y)
    yield _text(right + 10, y + 4.5, f"{value:.1f}" + (f" ± {spread:.1f}" if spread else ""), 12, "halo")


def _shape(kind: str, x: float, y: float) -> str:
    if kind == "aligned":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    corners = f"{x:.1f},{y - 6.5:.1f} {x + 6.5:.1f},{y:.1f} {x:.1f},{y + 6.5:.1f} {x - 6.5:.1f},{y:.1f}"
    return f'<polygon class="{kind}" points="{corners}"/>'


def _key(x: float, y: float, kind: str, text: str) -> Iterator[str]:
    yield _shape(kind, x + 6, y - 4)
    yield _text(x + 20, y, text, 12, "muted")


def _at(value: float) -> float:
    return _PLOT + value / _MOST_GBPS * _PLOT_WIDTH


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    style: str = "text",
    *,
    anchor: str = "start",
    bold: bool = False,
) -> str:
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    weight = ' font-weight="700"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"{placed}{weight}'
    return f'<text class="{style}" {place}>{escape(text)}</text>'

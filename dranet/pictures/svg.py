"""Shapes -> a standalone SVG document: one style sheet for light and dark, no script, nothing external; and
SVG -> PNG, with a font that comes along, so that it looks the same on machines without fonts.

All texts are escaped. Characters that XML cannot contain were escaped before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from dranet.errors import SettingsError
from dranet.pictures.boxes import build_picture
from dranet.pictures.layout import Drawing, Line, Rect, Shape, Text, lay_out
from dranet.pictures.summary import Look

FONTS = "Arimo, 'Liberation Sans', Arial, Helvetica, 'DejaVu Sans', sans-serif"

_LIGHT = """
.page{fill:#ffffff}
.panel{fill:#f5f7fa;stroke:#d5dbe3}
.group{fill:#ffffff;stroke:#cfd6df}
.gpu{fill:#e3f4e6;stroke:#4f9d62}
.nic{fill:#e4effd;stroke:#4d86cf}
.rdma{fill:#f0e9fc;stroke:#8a63d2}
.held{fill:#f1f2f4;stroke:#aeb5be;stroke-dasharray:4 3}
.bus{stroke:#0f766e;stroke-width:3;stroke-linecap:round}
.far{stroke:#98a2ae;stroke-width:2}
.bus.held{stroke:#aeb5be;stroke-width:2;stroke-dasharray:4 3}
.taken{stroke-width:3}
.box.taken{stroke:#0b5fc0}
.box.faulty{stroke:#c22f2f;stroke-width:3}
.box.wrong,.cable.wrong{stroke:#c22f2f;stroke-width:3}
.box.loose{stroke-dasharray:4 3}
.nodename{fill:#f5f7fa;stroke:none}
.nodename.wrong{fill:#fbe9e9}
.pill{fill:#0f766e;stroke:none}
.pill.far{fill:#687380;stroke:none}
.pilltext{fill:#ffffff}
.title,.name{fill:#1c232b}
.small{fill:#2f3943}
.muted{fill:#5d6874}
.faint{fill:#5d6874}
.held-text{fill:#5f6974}
"""
_DARK = """
.page{fill:#0f141a}
.panel{fill:#171e26;stroke:#2d3742}
.group{fill:#1d252e;stroke:#364250}
.gpu{fill:#173524;stroke:#4f9d62}
.nic{fill:#15304f;stroke:#4d86cf}
.rdma{fill:#2d2150;stroke:#8a63d2}
.held{fill:#1f262e;stroke:#56616d}
.box.taken{stroke:#7ab8ff}
.box.faulty,.box.wrong,.cable.wrong{stroke:#ff8080}
.nodename{fill:#171e26}
.nodename.wrong{fill:#4a2222}
.bus{stroke:#2dd4bf}
.far{stroke:#5d6874}
.bus.held{stroke:#56616d}
.pill{fill:#0f766e}
.pill.far{fill:#5d6874}
.title,.name{fill:#eef2f6}
.small{fill:#d4dbe3}
.muted,.faint{fill:#a3aeba}
.held-text{fill:#8d98a4}
"""


def draw_svg(look: Look) -> str:
    return render_svg(lay_out(build_picture(look)))


def render_svg(drawing: Drawing) -> str:
    """The document, a shape on each line, with a final newline."""
    return "\n".join(_lines(drawing, f"<style>{_style(_LIGHT, _DARK)}</style>")) + "\n"


def render_inline(drawing: Drawing, name: str) -> str:
    """The same for an HTML page with :data:`INLINE_STYLE` in its style sheet; ``name`` is its class."""
    return "\n".join(_lines(drawing, name=name))


def _style(light: str, dark: str) -> str:
    inner = dark.strip().replace("\n", "\n  ")
    return f"{light}@media (prefers-color-scheme:dark){{\n  {inner}\n}}\n"


def _scoped(rules: str) -> str:
    return re.sub(r"(^|,)(?=\.)", r"\1svg ", rules, flags=re.MULTILINE)


INLINE_STYLE = _style(_scoped(_LIGHT), _scoped(_DARK))


def _lines(drawing: Drawing, style: str = "", name: str = "") -> Iterator[str]:
    width, height = _number(drawing.width), _number(drawing.height)
    named = f' class="{name}"' if name else ""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{FONTS}" role="img"{named}>'
    )
    yield f"<title>{escape(drawing.title)}</title>"
    if style:
        yield style
    yield f'<rect class="page" width="{width}" height="{height}"/>'
    for shape in drawing.shapes:
        yield from _shape(shape)
    yield "</svg>"


def _shape(shape: Shape) -> Iterator[str]:
    match shape:
        case Text():
            yield _text(shape)
        case Line():
            ends = " ".join(f"{end}={_quoted(getattr(shape, end))}" for end in ("x1", "y1", "x2", "y2"))
            yield f'<line class="{shape.style}" {ends}/>'
        case Rect():
            yield "<g>"
            if shape.tooltip:
                yield f"<title>{escape(shape.tooltip)}</title>"
            yield (
                f'<rect class="{shape.style}" x={_quoted(shape.x)} y={_quoted(shape.y)} '
                f"width={_quoted(shape.width)} height={_quoted(shape.height)} rx={_quoted(shape.radius)}/>"
            )
            yield from map(partial(_text, held="held" in shape.style.split()), shape.texts)
            yield "</g>"


def _text(text: Text, held: bool = False) -> str:
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    weight = ' font-weight="700"' if text.bold else ""
    style = f"{text.style} held-text" if held else text.style
    return (
        f'<text class="{style}" x={_quoted(text.x)} y={_quoted(text.y)} '
        f'font-size="{_number(text.size)}"{anchor}{weight}>{escape(text.text)}</text>'
    )


def _quoted(value: float) -> str:
    return quoteattr(_number(value))


def _number(value: float) -> str:
    """The same text on every machine: at most one decimal."""
    return f"{round(value, 1):g}"


ZOOM = 2
"""For screens with small pixels."""

FONT_FAMILY = "Arimo"
"""Has the metrics of Arial."""


def render_png(svg: str) -> bytes:
    """In light colours. Raises SettingsError where the optional packages are not installed."""
    if find_spec("resvg_py") is None or find_spec("fontpkg_arimo") is None:
        raise SettingsError(
            "PNG needs optional packages, which are not installed",
            hint="pip install '.[pictures]' in a checkout, else 'dranet[pictures]'; -o svg needs none",
        )
    resvg: Any = import_module("resvg_py")
    with as_file(files("fontpkg_arimo").joinpath("files")) as fonts:
        png: bytes = resvg.svg_to_bytes(
            svg_string=svg,
            zoom=ZOOM,
            skip_system_fonts=True,
            font_files=sorted(str(path) for path in fonts.glob("*.ttf")),
            font_family=FONT_FAMILY,
            sans_serif_family=FONT_FAMILY,
        )
    return png

"""SVG -> PNG, by resvg with a font of its own, so that it looks the same on machines without fonts."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import Any

from dranet.errors import SettingsError

ZOOM = 2
"""For screens with small pixels."""

FONT_FAMILY = "Arimo"
"""Has the metrics of Arial."""


def render_png(svg: str) -> bytes:
    """Render the picture in light colours, two pixels for each of the SVG.

    Raises:
        SettingsError: the optional packages are not installed.
    """
    if find_spec("resvg_py") is None or find_spec("fontpkg_arimo") is None:
        raise SettingsError(
            "PNG needs the optional packages of dranet[pictures], which are not installed",
            hint="`make setup` in a checkout brings them; or take -o svg, which needs nothing",
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

"""What of a picture depends on the width that there is."""

from __future__ import annotations

from dataclasses import replace

from dranet.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Measures:
    """Pixels."""

    margin: int
    panel_gap: int
    padding: int
    box_width: int
    box_height: int
    inset: int
    """Of the texts in a box."""
    bus_width: int
    most_columns: int
    """Panels side by side."""
    has_corners: bool = True
    """A box has room for its name and its speed on one line."""

    @property
    def inner_width(self) -> int:
        """Width of a group with two columns; two groups with one column each and a gap fit in, too."""
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

"""Is a PCIe link slower or narrower than it should be?

Three traps. A slot may have fewer lanes than the card: so the slot's port counts as much as the card. A
device may lower the speed of its link while it is idle and raise it again under load: one that was seen to
do so is no longer judged by speed. And a sleeping function says nothing.
"""

from __future__ import annotations

from dranet.model.health import PcieLink

_RISES_OF_A_SAVER = 2
"""A link that was made faster twice saves power; once may have been somebody's repair."""


class PcieJudge:
    """Remembers of one device what its PCIe link was seen to do."""

    def __init__(self) -> None:
        self._best_width = 0
        self._best_speed = 0.0
        self._last_speed = 0.0
        self._rises = 0

    def judge(self, link: PcieLink) -> str:
        """What is wrong with it; empty where nothing is, or nothing can be said."""
        if link.asleep or not link.width:
            return ""
        self._remember(link)
        width = _possible(link.most_width, link.port_width, self._best_width)
        speed = _possible(link.most_speed, link.port_speed, self._best_speed)
        problems = []
        if link.width < width:
            problems.append(f"x{link.width} instead of x{width:g}")
        if 0 < link.speed < speed and self._rises < _RISES_OF_A_SAVER:
            problems.append(f"{link.speed:g} GT/s instead of {speed:g} GT/s")
        return f"PCIe link at {' and '.join(problems)}" if problems else ""

    def _remember(self, link: PcieLink) -> None:
        self._rises += 0 < self._last_speed < link.speed
        self._last_speed = link.speed or self._last_speed
        self._best_width = max(self._best_width, link.width)
        self._best_speed = max(self._best_speed, link.speed)


def _possible(card: float, port: float, best_seen: float) -> float:
    """What both ends can; where the port does not tell (a virtual machine hides it), the best seen so far."""
    return min(card, port) if card and port else best_seen

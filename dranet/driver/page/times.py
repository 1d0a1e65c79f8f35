"""Times, for people: when, and how long ago."""

from __future__ import annotations

from datetime import UTC, datetime

from dranet.driver.page.markup import Html, element, join

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def ago(then: float, now: float) -> str:
    """``3 h 20 min``: the two largest units; ``12 s`` below a minute."""
    left = max(int(now - then), 0)
    if left < 60:
        return f"{left} s"
    parts = []
    for seconds, unit in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def show_time(then: float, now: float | None = None) -> Html:
    """The moment, in UTC; with ``now`` how long ago that is, too."""
    moment = datetime.fromtimestamp(then, UTC)
    exact = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    shown = element("time", exact, datetime=moment.isoformat(timespec="seconds"))
    return shown if now is None else join([shown, f" ({ago(then, now)} ago)"])

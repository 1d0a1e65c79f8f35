"""HTML built so that no text can become markup: whatever is not :class:`Html` is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from dranet.terminal import printable


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


EMPTY = Html("")
_VOID = frozenset({"meta", "link", "br"})


def text(words: str) -> Html:
    """Escape text from a machine or a user."""
    return words if isinstance(words, Html) else Html(escape(printable(words)))


def join(parts: Iterable[str], between: str = "") -> Html:
    return Html(text(between).join(map(text, parts)))


def element(name: str, /, *content: str, **attributes: str) -> Html:
    """``element("td", "eth0", class_="name", data_label="Link")``; an empty attribute is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items() if value
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table on a desktop, cards on a phone. Roles are repeated because ``display: block`` removes them from
    the elements; the first cell names the row."""
    heads = (element("th", words, scope="col", role="columnheader") for words in header)
    head = element("thead", element("tr", *heads, role="row"), role="rowgroup")
    body = element("tbody", *(_row(header, row) for row in rows), role="rowgroup")
    return element("table", element("caption", caption), head, body, role="table")


def _row(header: Sequence[str], cells: Sequence[str]) -> Html:
    first, *rest = zip(header, cells, strict=True)
    name = element("th", first[1], scope="row", role="rowheader")
    others = (
        element(
            "td", element("div", cell or "-"), class_="" if cell else "none", role="cell", data_label=label
        )
        for label, cell in rest
    )
    return element("tr", name, *others, role="row")


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
    """Show the time in UTC; with ``now`` also how long ago it was."""
    moment = datetime.fromtimestamp(then, UTC)
    exact = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    shown = element("time", exact, datetime=moment.isoformat(timespec="seconds"))
    return shown if now is None else join([shown, f" ({ago(then, now)} ago)"])

"""The fabric -> shapes. A column for each NIC under the leaf that it should be on, and a row for each node,
so that a cable that fits is a straight line; nodes whose cabling is equal share a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from dranet.desk.fabric.fabric import Fabric, Place
from dranet.desk.fabric.hostlist import compress
from dranet.desk.fabric.levels import Source
from dranet.desk.fabric.links import Link, choose_fabric_links, count_switches, natural_key
from dranet.desk.fabric.misfits import Misfit, MisfitKind, describe_speed, misfits_by_node
from dranet.pictures.layout import Block, Drawing, Line, Rect, Shape, Text, fit_text, text_width, wrap_text
from dranet.terminal import count_of, printable

MOST_COLUMNS = 16
"""NICs of a unit; the number of others is shown."""
MOST_PANELS = 64
MOST_ROWS = 12
"""Nodes with a misfit in a panel; the number of others is shown."""
MOST_MISFITS = 24
FEW_NODES = 4
"""Up to so many nodes have a row each even if their cabling is equal."""

_MARGIN, _GAP, _PADDING = 28, 18, 14
_NAME_WIDTH, _COLUMN, _PIN, _PIN_HEIGHT, _ROW = 190, 96, 84, 26, 40
_HEAD, _LEAF_HEIGHT, _LEAF_GAP = 40, 44, 34
_LINE = 18
_LEAST_WIDTH = 640


class _Column(Struct, frozen=True):
    place: tuple[str, str]
    leaf: str
    links: tuple[Link, ...]


def draw_fabric(fabric: Fabric) -> Drawing:
    """The picture of all units, and what does not fit in words below it."""
    by_node = misfits_by_node(fabric.misfits)
    panels = list(_panels(fabric, by_node))
    hidden = panels[MOST_PANELS:]
    inner = max([_LEAST_WIDTH, *(panel.width for panel in panels[:MOST_PANELS])])
    body = Block(inner, 0)
    for panel in panels[:MOST_PANELS]:
        _put_below(body, _widen(panel, inner))
    if hidden:
        _put_below(body, _lines([f"and {count_of(len(hidden), 'more unit')}"], inner))
    _put_below(body, _misfit_lines(fabric.misfits, inner))
    title = _title(fabric, inner)
    whole = Block(inner + 2 * _MARGIN, 0)
    whole.put(title, _MARGIN, _MARGIN)
    whole.put(body, _MARGIN, _MARGIN + title.height)
    height = 2 * _MARGIN + title.height + body.height
    return Drawing(whole.width, height, "Fabric of the cluster", tuple(whole.shapes))


def _put_below(body: Block, block: Block) -> None:
    body.put(block, 0, body.height)
    body.height += block.height + (_GAP if block.height else 0)


def _widen(panel: Block, width: float) -> Block:
    frame, *rest = panel.shapes
    assert isinstance(frame, Rect), "a panel begins with its frame"
    wide = Rect(frame.x, frame.y, width, frame.height, frame.style, frame.radius, frame.texts, frame.tooltip)
    return Block(width, panel.height, [wide, *rest])


def _title(fabric: Fabric, width: float) -> Block:
    placed = sum(len(place.nodes) for place in fabric.places)
    parts = [
        count_of(placed, "node"),
        count_of(len(fabric.places), "unit"),
        count_switches(fabric.switches) if fabric.switches else "",
        count_of(len(fabric.misfits), "misfit") if fabric.misfits else "no misfits",
        f"place of {count_of(len(fabric.unplaced), 'node')} unknown" if fabric.unplaced else "",
    ]
    subtitle = " · ".join(filter(None, parts))
    texts: list[Shape] = [
        Text(0, 22, "Fabric", 22, "title", width, bold=True),
        Text(0, 46, fit_text(subtitle, 14, width), 14, "muted", width),
    ]
    return Block(width, 62, texts)


def _panels(fabric: Fabric, by_node: Mapping[str, Sequence[Misfit]]) -> Iterator[Block]:
    for source in fabric.sources:
        places = fabric.places_of(source)
        if places[0].unit is not None:
            yield from (_unit_panel(fabric, place, by_node) for place in places)
        else:
            yield from _cloud_panels(source, places)
    if fabric.unplaced:
        yield _frame("Place unknown", count_of(len(fabric.unplaced), "node"), _names(fabric.unplaced))


# --- units --------------------------------------------------------------------------------------------


def _unit_panel(fabric: Fabric, place: Place, by_node: Mapping[str, Sequence[Misfit]]) -> Block:
    columns = _columns(fabric, place)
    shown = columns[:MOST_COLUMNS]
    rows = list(_rows(place, by_node))
    inner = _NAME_WIDTH + _COLUMN * len(shown)
    content = Block(inner, 0)
    top = float(_LEAF_HEIGHT + _LEAF_GAP)
    positions = {column.place: _NAME_WIDTH + _COLUMN * n + _COLUMN / 2 for n, column in enumerate(shown)}
    leaf_positions = {column.leaf: positions[column.place] for column in reversed(shown)}
    bottom = top + _ROW * (len(rows) - 1) + _PIN_HEIGHT / 2
    for x in positions.values():
        content.shapes.append(Line(x, _LEAF_HEIGHT, x, bottom, "bus far"))
    pins: list[Shape] = []
    for number, (label, nodes) in enumerate(rows):
        y = top + _ROW * number
        pins.append(_node_label(label, nodes, y, has_misfit=bool(nodes and by_node.get(nodes[0]))))
        if nodes:
            pins += _pins(fabric, nodes, shown, positions, y, by_node)
            content.shapes += _crossing_cables(fabric, nodes, shown, positions, leaf_positions, y)
    content.shapes += _leaves(fabric, shown)
    content.shapes += pins
    content.height = top + _ROW * len(rows) - (_ROW - _PIN_HEIGHT)
    about = [count_of(len(place.nodes), "node"), count_switches({column.leaf for column in columns}, "leaf ")]
    about += [f"{len(columns) - len(shown)} NICs not shown"] if len(columns) > len(shown) else []
    return _panel(f"Unit {place.name}", " · ".join(about), content)


def _columns(fabric: Fabric, place: Place) -> list[_Column]:
    """The NICs of the unit in the order of their rails, then of their leaves."""
    assert place.unit is not None
    links: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for node in place.nodes:
        for link in choose_fabric_links(fabric.nodes[node].links):
            links[link.place].append(link)
    columns = [
        _Column(key, expected.switch, tuple(links[key])) for key, expected in place.unit.leaves.items()
    ]
    return sorted(columns, key=lambda one: (_rail(one), natural_key(fabric.switches[one.leaf]), one.place))


def _rail(column: _Column) -> int:
    rails = [link.rail for link in column.links if link.rail is not None and link.switch == column.leaf]
    return min(rails, default=1 << 62)


def _rows(place: Place, by_node: Mapping[str, Sequence[Misfit]]) -> Iterator[tuple[str, Sequence[str]]]:
    """Nodes with a misfit first, near the leaves; of these first the ones whose cables are swapped."""
    odd = [node for node in place.nodes if node in by_node]
    odd.sort(key=lambda node: all(one.kind is not MisfitKind.SWAPPED for one in by_node[node]))
    even = [node for node in place.nodes if node not in by_node]
    yield from ((node, (node,)) for node in odd[:MOST_ROWS])
    if len(odd) > MOST_ROWS:
        yield f"{len(odd) - MOST_ROWS} more with a misfit", ()
    if len(even) <= FEW_NODES:
        yield from ((node, (node,)) for node in even)
    else:
        yield count_of(len(even), "node"), even


def _node_label(label: str, nodes: Sequence[str], y: float, *, has_misfit: bool) -> Shape:
    room = _NAME_WIDTH - 16
    lines = [Text(0, y + 17, fit_text(printable(label), 13, room, bold=True), 13, "name", room, bold=True)]
    if len(nodes) > 1:
        names = fit_text(printable(compress(nodes)), 11, room)
        lines = [
            Text(0, y + 10, fit_text(label, 13, room, bold=True), 13, "name", room, bold=True),
            Text(0, y + 25, names, 11, "muted", room),
        ]
    style = "nodename wrong" if has_misfit else "nodename"
    return Rect(-4, y - 4, _NAME_WIDTH - 8, _PIN_HEIGHT + 8, style, 6, tuple(lines), _names(nodes))


def _leaves(fabric: Fabric, columns: Sequence[_Column]) -> Iterator[Shape]:
    """A box over all neighbouring columns of one leaf."""
    start = 0
    for leaf, same in groupby(columns, key=lambda column: column.leaf):
        group = list(same)
        x, width = _NAME_WIDTH + _COLUMN * start + 4, _COLUMN * len(group) - 8
        start += len(group)
        links = [link for column in group for link in column.links if link.switch == leaf]
        rails = sorted({link.rail for link in links if link.rail is not None})
        speeds = sorted({link.speed_mbps for link in links if link.speed_mbps})
        about = [f"rail {', '.join(map(str, rails[:8]))}" if rails else "", *map(describe_speed, speeds[-1:])]
        room, middle = width - 10, x + width / 2
        name = printable(fabric.switches[leaf])
        texts = (
            Text(middle, 19, fit_text(name, 12, room, bold=True), 12, "name", room, "middle", bold=True),
            Text(
                middle, 35, fit_text(" · ".join(filter(None, about)), 11, room), 11, "small", room, "middle"
            ),
        )
        tooltip = f"{name}: {count_of(len(links), 'link')} of this unit"
        yield Rect(x, 0, width, _LEAF_HEIGHT, "box rdma", 8, texts, tooltip)


def _pins(
    fabric: Fabric,
    nodes: Sequence[str],
    columns: Sequence[_Column],
    positions: Mapping[tuple[str, str], float],
    y: float,
    by_node: Mapping[str, Sequence[Misfit]],
) -> Iterator[Shape]:
    node = nodes[0]
    odd = {link.device for one in by_node.get(node, ()) for link in one.links if link.node == node}
    links = {link.place: link for link in choose_fabric_links(fabric.nodes[node].links)}
    for column in columns:
        link = links.get(column.place)
        if link is None:
            continue
        x = positions[column.place] - _PIN / 2
        style = "box nic wrong" if link.device in odd else "box nic"
        style = style if link.is_cabled else f"{style} loose"
        room = _PIN - 8
        words = _pin_text(fabric, link, column, is_odd=link.device in odd)
        text = fit_text(printable(words), 11, room)
        texts = (Text(x + _PIN / 2, y + 17, text, 11, "small", room, "middle"),)
        yield Rect(x, y, _PIN, _PIN_HEIGHT, style, 6, texts, _pin_tooltip(fabric, link, nodes, by_node))


def _pin_text(fabric: Fabric, link: Link, column: _Column, *, is_odd: bool) -> str:
    if not link.is_cabled:
        return f"{link.name}: none"
    if link.switch != column.leaf:
        return f"→ {fabric.switches[link.switch]}"
    return f"{link.name} {describe_speed(link.speed_mbps)}" if is_odd and link.speed_mbps else link.name


def _pin_tooltip(
    fabric: Fabric, link: Link, nodes: Sequence[str], by_node: Mapping[str, Sequence[Misfit]]
) -> str:
    if len(nodes) > 1:
        return printable(f"{link.name} of {count_of(len(nodes), 'node')}")
    where = f"{fabric.switches[link.switch]} {link.port}" if link.is_cabled else "no LLDP neighbor"
    texts = [one.text for one in by_node.get(link.node, ()) if link in one.links]
    return printable(": ".join((f"{link.node} {link.name}", where))) + "".join(
        f"\n{printable(text)}" for text in texts
    )


def _crossing_cables(
    fabric: Fabric,
    nodes: Sequence[str],
    columns: Sequence[_Column],
    positions: Mapping[tuple[str, str], float],
    leaf_positions: Mapping[str, float],
    y: float,
) -> Iterator[Shape]:
    """The cables that lead to another leaf of the unit."""
    links = {link.place: link for link in choose_fabric_links(fabric.nodes[nodes[0]].links)}
    for column in columns:
        link = links.get(column.place)
        if link and link.is_cabled and link.switch != column.leaf and link.switch in leaf_positions:
            yield Line(leaf_positions[link.switch], _LEAF_HEIGHT, positions[column.place], y, "cable wrong")


# --- clouds, lists ------------------------------------------------------------------------------------


def _cloud_panels(source: Source, places: Sequence[Place]) -> Iterator[Block]:
    """A panel for each value of the widest level, and in it a line for each place."""
    for widest, group in groupby(places, key=lambda place: next(filter(None, place.path))):
        same = list(group)
        number = sum(len(place.nodes) for place in same)
        rows = [
            f"{place.name}: {count_of(len(place.nodes), 'node')}  {_names(place.nodes)}" for place in same
        ]
        hidden = rows[MOST_ROWS:]
        if hidden:
            rows = [*rows[:MOST_ROWS], f"and {len(hidden)} more"]
        yield _frame(f"{source.title}: {widest}", count_of(number, "node"), *rows)


def _frame(title: str, about: str, *rows: str) -> Block:
    return _panel(title, about, _lines(rows, _LEAST_WIDTH - 2 * _PADDING))


def _panel(title: str, about: str, content: Block) -> Block:
    inner = max(content.width, _LEAST_WIDTH - 2 * _PADDING)
    width, height = inner + 2 * _PADDING, _HEAD + content.height + _PADDING
    name = fit_text(printable(title), 15, inner * 0.6, bold=True)
    x, room = _PADDING + text_width(name, 15, bold=True) + _GAP, inner * 0.38
    texts = (
        Text(_PADDING, 26, name, 15, "title", inner, bold=True),
        Text(x, 26, fit_text(printable(about), 12, room), 12, "muted", room),
    )
    block = Block(width, height, [Rect(0, 0, width, height, "panel", 14, texts)])
    block.put(content, _PADDING, _HEAD)
    return block


def _lines(rows: Sequence[str], width: float, style: str = "small") -> Block:
    texts: list[Shape] = [
        Text(0, 13 + _LINE * n, fit_text(printable(row), 12, width), 12, style, width)
        for n, row in enumerate(rows)
    ]
    return Block(width, _LINE * len(rows), texts)


def _misfit_lines(misfits: Sequence[Misfit], width: float) -> Block:
    rows: list[str] = []
    for misfit in misfits[:MOST_MISFITS]:
        text = printable(f"{_names(misfit.nodes)}: {misfit.text}; {misfit.fix}")
        first, *others = wrap_text(text, 12, 0.95 * width) or [""]
        rows += [first, *(f"    {line}" for line in others)]
    if len(misfits) > MOST_MISFITS:
        rows.append(f"and {len(misfits) - MOST_MISFITS} more: dranet fabric -o json has all")
    return _lines(rows, width)


def _names(nodes: Sequence[str]) -> str:
    return printable(compress(nodes[:1000]))

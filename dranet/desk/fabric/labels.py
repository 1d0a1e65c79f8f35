"""The place of each node as labels, and the commands that write them."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from dranet.desk.fabric.fabric import Fabric
from dranet.desk.fabric.hostlist import compress
from dranet.desk.fabric.levels import LEVEL_NAMES, Source

MAX_VALUE = 63
_HASH = 8
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")
_ENDS = "-_."


def label_prefix(driver: str) -> str:
    """``fabric.dra.net/``. All labels below it belong to this program; two drivers have two prefixes."""
    return f"fabric.{driver}/"


def label_value(text: str, limit: int = MAX_VALUE) -> str:
    """The text as the value of a label, always the same for the same text. What is cut or replaced makes
    room for a hash of the whole, so that two texts never become one value."""
    value = _NO_LABEL.sub("-", text).strip(_ENDS)
    if value == text and len(value) <= limit:
        return value
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_HASH]
    start = value[: limit - _HASH - 1].rstrip(_ENDS)
    return f"{start}-{digest}" if start else digest


def build_labels(fabric: Fabric, driver: str) -> Mapping[str, Mapping[str, str]]:
    """The labels of every node that has slices of the driver; none where its place is unknown."""
    prefix = label_prefix(driver)
    labels: dict[str, Mapping[str, str]] = {name: {} for name in fabric.nodes}
    for place in fabric.places:
        found = {prefix + level: label_value(value) for level, value in place.levels.items()}
        labels |= dict.fromkeys(place.nodes, found)
    return labels


def plan_patch(
    current: Mapping[str, str], wanted: Mapping[str, str], prefix: str
) -> Mapping[str, str | None]:
    """What to change in a node's labels, as a merge patch. Others' labels are left alone."""
    stale = {key: None for key in current if key.startswith(prefix) and key not in wanted}
    return {**stale, **{key: value for key, value in wanted.items() if current.get(key) != value}}


def levels_in_use(fabric: Fabric, source: Source) -> tuple[str, ...]:
    """The levels of the source that some node has, from wide to close."""
    used = {level for place in fabric.places_of(source) for level in place.levels}
    return tuple(name for name in source.names if name in used)


def render_commands(fabric: Fabric, driver: str) -> Iterator[str]:
    """A line of kubectl for each place, and one that removes all labels again."""
    prefix = label_prefix(driver)
    for place in fabric.places:
        pairs = [f"{prefix}{level}={label_value(value)}" for level, value in place.levels.items()]
        yield f"# {compress(place.nodes)}" if len(place.nodes) > 1 else ""
        yield shlex.join(["kubectl", "label", "--overwrite", "nodes", *place.nodes, *pairs])
    used = dict.fromkeys(name for source in fabric.sources for name in levels_in_use(fabric, source))
    yield "# to remove them:"
    yield f"# {render_removal(driver, used)}"


def render_removal(driver: str, levels: Iterable[str] = LEVEL_NAMES) -> str:
    """The command that removes our labels from every node."""
    keys = [f"{label_prefix(driver)}{name}-" for name in levels]
    return shlex.join(["kubectl", "label", "nodes", "--all", *keys])

"""What a running lldpd knows, as ``lldpcli -f json show neighbors details`` prints it. Pure.

lldpd's control socket speaks the memory layout of one build of lldpd, so no other program can ask it. Its
JSON has two shapes (lldpcli(8), option ``-f``). ``json0`` has a list for everything; ``json`` leaves lists of
one out and puts names in place of some of them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from dranet.errors import ProtocolError
from dranet.kernel.lldp.message import shown_text
from dranet.model.facts import LldpNeighbour

DEFAULT_TTL = 120
"""The standard's, for a neighbour whose TTL is not printed: ``details`` was left out."""
_TTL = re.compile(r"[0-9]{1,5}")
"""16 bits on the wire; Python refuses to read a number of thousands of digits."""


class LldpdNeighbour(Struct, frozen=True):
    neighbour: LldpNeighbour
    ttl: int


def parse_neighbours(text: str) -> tuple[LldpdNeighbour, ...]:
    """Those of LLDP, sorted by link; of a link with several, none. Raises ProtocolError where it is no such
    document. An entry without the ids that LLDP demands is passed over: lldpd also knows other protocols."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"is not JSON: {error}") from error
    top = document.get("lldp") if isinstance(document, dict) else None
    if top is None:
        raise ProtocolError('has no "lldp": write it with lldpcli -f json show neighbors details')
    found: dict[str, list[LldpdNeighbour]] = defaultdict(list)
    for ifname, entry in _interfaces(top):
        if one := _read(ifname, entry):
            found[ifname].append(one)
    return tuple(many[0] for _, many in sorted(found.items()) if len(many) == 1)


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _interfaces(top: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries by link: named by a key (``json``), or in a field (``json0``)."""
    for part in _items(top):
        for entry in _items(part.get("interface")) if isinstance(part, dict) else ():
            if not isinstance(entry, dict):
                continue
            if isinstance(name := entry.get("name"), str):
                yield name, entry
            else:
                yield from ((name, one) for name, many in entry.items() for one in _dicts(many))


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    return (one for one in _items(value) if isinstance(one, dict))


def _read(ifname: str, entry: dict[str, Any]) -> LldpdNeighbour | None:
    if entry.get("via", "LLDP") != "LLDP":
        return None
    chassis = next(_dicts(entry.get("chassis")), {})
    name = _value(chassis.get("name"))
    if not name and len(chassis) == 1:
        ((key, inner),) = chassis.items()
        if isinstance(inner, dict) and "id" in inner:
            name, chassis = key, inner  # `json` has the system's name as key
    port = next(_dicts(entry.get("port")), {})
    chassis_id, port_id = _value(chassis.get("id")), _value(port.get("id"))
    if not chassis_id or not port_id:
        return None
    ttl = _value(port.get("ttl"))
    neighbour = LldpNeighbour(ifname, chassis_id, port_id, shown_text(name), _value(port.get("descr")))
    return LldpdNeighbour(neighbour, int(ttl) if _TTL.fullmatch(ttl) else DEFAULT_TTL)


def _value(field: object) -> str:
    """``"x"``, ``{"value": "x"}`` or ``[{"value": "x"}]``."""
    first = _items(field)[0] if field else None
    text = first.get("value") if isinstance(first, dict) else first
    return shown_text(text) if isinstance(text, str) else ""

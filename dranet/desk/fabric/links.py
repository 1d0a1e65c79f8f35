"""The nouns of the fabric: the link of a NIC to a switch, and how switches are called."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

NaturalKey = tuple[tuple[int, int, str], ...]
_NUMBER = re.compile(r"(\d{1,18})")


class Link(Struct, frozen=True):
    """The link of one NIC, with its neighbour as LLDP names it."""

    node: str
    device: str
    ifname: str = ""
    slot: str = ""
    """The PCI address, which is the same on every node of one hardware; without one the interface's name."""
    model: str = ""
    """NICs of one model are compared with each other."""
    rail: int | None = None
    speed_mbps: int | None = None
    """``None`` while the link is down."""
    switch: str = ""
    """Identity of the switch: its chassis id, else its name. Empty without a neighbour."""
    switch_name: str = ""
    port: str = ""

    @property
    def name(self) -> str:
        return self.ifname or self.device

    @property
    def is_cabled(self) -> bool:
        return bool(self.switch)

    @property
    def place(self) -> tuple[str, str]:
        """What is compared between nodes."""
        return self.model, self.slot or self.name


def natural_key(text: str) -> NaturalKey:
    """Sorts ``leaf-2`` before ``leaf-10``."""
    parts = _NUMBER.split(text)
    return tuple((0, int(part), part) if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part)


def name_switches(links: Iterable[Link]) -> Mapping[str, str]:
    """Names of the switches by identity. Two of one name, as switches have from the factory, get their
    chassis id as well."""
    names: dict[str, str] = {}
    for link in links:
        if link.switch and (link.switch_name or link.switch not in names):
            names[link.switch] = link.switch_name or link.switch
    uses = Counter(names.values())
    return {switch: name if uses[name] == 1 else f"{name} ({switch})" for switch, name in names.items()}


def count_switches(switches: Collection[str], kind: str = "") -> str:
    """``1 switch``, ``8 leaf switches``."""
    return f"{len(switches)} {kind}switch{'' if len(switches) == 1 else 'es'}"


def group_by_node(links: Iterable[Link]) -> Mapping[str, Sequence[Link]]:
    found: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        found[link.node].append(link)
    return found


def choose_fabric_links(links: Sequence[Link]) -> tuple[Link, ...]:
    """The links of a node that carry most: of all models with a cable the one with the highest sum of speeds.
    NICs of the other models (front end, storage, management) have a network of their own."""
    by_model: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        by_model[link.model].append(link)
    cabled = (tuple(same) for same in by_model.values() if any(link.is_cabled for link in same))
    return max(cabled, key=_carries, default=())


def _carries(links: tuple[Link, ...]) -> tuple[int, int, str]:
    """A link that is down counts as fast as the others of its model."""
    fastest = max((link.speed_mbps or 0 for link in links), default=0)
    return fastest * len(links), len(links), links[0].model

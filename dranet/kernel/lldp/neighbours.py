"""Which neighbour each link has now: what frames announced, until their TTL is over. Without I/O; the clock
is the caller's.

A link that is not on the host, because a pod has it, is not heard: its neighbour stays known, and gets its
whole TTL again when the link returns, because switches announce themselves every 30 seconds only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dranet.kernel.lldp.message import NEAREST_BRIDGE, Message
from dranet.model.facts import LldpNeighbour

MAX_NEIGHBOURS_PER_LINK = 4
"""A cable has one; a hub or a relay shows several. More are not remembered."""
MAX_ABSENT_LINKS = 256
"""Links that have left the host and may return; names that come and go must not fill the memory."""


class _Heard(Struct, frozen=True):
    message: Message
    group: bytes
    until: float


class _Link:
    """The neighbours of one link, by chassis and port."""

    def __init__(self) -> None:
        self.is_here = False
        self.is_in_doubt = False
        """The cable may be another one since the last frame: the next frame decides."""
        self.heard: dict[tuple[str, str], _Heard] = {}

    @property
    def chosen(self) -> Message | None:
        """The one that the cable leads to: the nearest bridge, if only one claims to be it. ``None`` where
        several do: a guess would be a wrong switch for half of them."""
        nearest = [one for one in self.heard.values() if one.group == NEAREST_BRIDGE]
        found = nearest or list(self.heard.values())
        return found[0].message if len(found) == 1 else None


class Neighbours:
    """Not safe for threads."""

    def __init__(self, known: Iterable[LldpNeighbour] = ()) -> None:
        """``known``: those of an earlier run of the driver; they count as just heard when their link is first
        followed."""
        self._links: dict[str, _Link] = {}
        self._shown: tuple[LldpNeighbour, ...] | None = None
        for one in known:
            message = Message(one.chassis_id, one.port_id, KNOWN_TTL, one.system_name, one.port_description)
            link = self._links[one.ifname] = _Link()
            link.heard[one.chassis_id, one.port_id] = _Heard(message, NEAREST_BRIDGE, 0.0)

    def follow(self, carriers: Mapping[str, bool], now: float) -> None:
        """These links are on the host, with a carrier or without; others may have left for a pod."""
        for name, carrier in carriers.items():
            link = self._links.setdefault(name, _Link())
            if not link.is_here:
                link.is_here = link.is_in_doubt = True
                link.heard = {
                    key: replace(one, until=now + one.message.ttl) for key, one in link.heard.items()
                }
            link.is_in_doubt |= not carrier
        for name in [name for name, link in self._links.items() if link.is_here and name not in carriers]:
            link = self._links.pop(name)
            link.is_here = False
            if link.heard:
                self._links[name] = link  # in the order in which they left
        absent = [name for name, link in self._links.items() if not link.is_here]
        for name in absent[: max(0, len(absent) - MAX_ABSENT_LINKS)]:
            del self._links[name]
        self._shown = None

    def hear(self, ifname: str, group: bytes, message: Message, now: float) -> None:
        """A frame has come in by this link."""
        link = self._links.get(ifname)
        if link is None or not link.is_here:
            return
        key = (message.chassis_id, message.port_id)
        if link.is_in_doubt:
            link.is_in_doubt = False
            link.heard = {known: one for known, one in link.heard.items() if known == key}
        if message.ttl == 0:
            link.heard.pop(key, None)
        elif key in link.heard or len(link.heard) < MAX_NEIGHBOURS_PER_LINK:
            before = link.heard.get(key)
            # A relay forwards the other groups: one that was the nearest stays it.
            nearest = NEAREST_BRIDGE if before is not None and before.group == NEAREST_BRIDGE else group
            link.heard[key] = _Heard(message, nearest, now + message.ttl)
        self._shown = None

    def replace(self, ifname: str, message: Message, now: float) -> None:
        """Another program has chosen the neighbour of this link."""
        link = self._links.get(ifname)
        if link is not None and link.is_here:
            link.is_in_doubt = True
            self.hear(ifname, NEAREST_BRIDGE, message, now)

    def expire(self, now: float) -> float | None:
        """Forget what has not been renewed in time; returns when the next one would end."""
        deadlines: list[float] = []
        for link in self._links.values():
            if not link.is_here:
                continue
            for key in [key for key, one in link.heard.items() if one.until <= now]:
                del link.heard[key]
                self._shown = None
            deadlines += [one.until for one in link.heard.values()]
        return min(deadlines, default=None)

    @property
    def ambiguous(self) -> Mapping[str, int]:
        """Links with several neighbours of which none is the nearest, and how many."""
        return {name: len(link.heard) for name, link in self._links.items() if link.heard and not link.chosen}

    @property
    def shown(self) -> tuple[LldpNeighbour, ...]:
        """Sorted by link."""
        if self._shown is None:
            self._shown = tuple(
                LldpNeighbour(name, one.chassis_id, one.port_id, one.system_name, one.port_description)
                for name, link in sorted(self._links.items())
                if (one := link.chosen) is not None
            )
        return self._shown


KNOWN_TTL = 120
"""Seconds that a neighbour of an earlier run holds without a frame: the standard's default."""

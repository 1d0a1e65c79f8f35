"""Changes of the node since the last scan: ``watch`` reports them and ``scan`` reads them.

A change carries no content. It names what is worth reading again, so that a notification that is late,
doubled or out of order does no harm.
"""

from __future__ import annotations

from msgspec import Struct

MANY_LINKS = 200
"""From here on one dump of all links costs less than asking for each; their names need not be kept then."""


class Changes(Struct, frozen=True):
    """Merge with ``|``; falsy when there is nothing to read again."""

    links: frozenset[int] = frozenset()
    """ifindexes of links that came, went or changed, in themselves or in their addresses."""
    routes: bool = False
    """A default route, or another route that may lead to a protected address, came or went."""
    hardware: frozenset[str] = frozenset()
    """Names in sysfs of devices that sent a uevent: ``0000:21:00.0``, ``mlx5_0``, ``renderD128``."""
    everything: bool = False
    """The changes are unknown: read everything, cached or not."""
    all_links: bool = False
    """More links changed than is worth naming (``MANY_LINKS``); ``links`` is empty then."""

    def __or__(self, other: Changes) -> Changes:
        links = self.links | other.links
        all_links = self.all_links or other.all_links or len(links) > MANY_LINKS
        return Changes(
            frozenset() if all_links else links,
            self.routes or other.routes,
            self.hardware | other.hardware,
            self.everything or other.everything,
            all_links,
        )

    def __bool__(self) -> bool:
        return bool(self.links or self.routes or self.hardware or self.everything or self.all_links)


EVERYTHING = Changes(everything=True)
"""At start, after lost notifications, and from time to time as a net."""

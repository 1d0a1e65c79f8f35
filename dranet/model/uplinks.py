"""Which links carry the node's traffic: the rules that the inventory and the check at attach have in common.

The inventory judges a whole scan, the check at attach asks the kernel link by link while the runtime waits;
what they hold to be an uplink must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dranet.model.facts import Link, Route

RTN_UNICAST = 1

OPENVSWITCH = "openvswitch"
"""An internal port of Open vSwitch (``br-ex``) has no master, its other ports have ``ovs-system``. Which port
feeds which is known to the switch alone, so all of them are one family."""

TUNNEL_KINDS = frozenset(
    {
        "bareudp", "erspan", "geneve", "gre", "gretap", "ip6erspan", "ip6gre", "ip6gretap", "ip6tnl", "ipip",
        "ovpn", "ppp", "sit", "tun", "vti", "vti6", "vxlan", "wireguard", "xfrm",
    }
)  # fmt: skip
"""What goes in here comes out of another link, which the kernel does not tell."""


def choose_uplinks(default_routes: Iterable[Route], get: Callable[[int], Link | None]) -> frozenset[int]:
    """ifindexes of the links of each family's default routes with the lowest metric, all their next hops.

    If one of those links is down, out of sight or a tunnel, another default route of that family may carry
    the node now, so all of them count.
    """
    routes = [route for route in default_routes if route.type == RTN_UNICAST]
    families = ([route for route in routes if (":" in route.destination) is ipv6] for ipv6 in (False, True))
    return frozenset().union(*(_choose(family, get) for family in families))


def _choose(routes: Sequence[Route], get: Callable[[int], Link | None]) -> frozenset[int]:
    lowest = min((route.metric for route in routes), default=0)
    best = outputs(route for route in routes if route.metric == lowest)
    return best if all(is_certain(get(index)) for index in best) else outputs(routes)


def outputs(routes: Iterable[Route]) -> frozenset[int]:
    """The ifindexes that the routes lead to, every next hop."""
    return frozenset(index for route in routes for index in (route.ifindex, *route.next_hops) if index)


def order_outputs(default_routes: Iterable[Route]) -> tuple[int, ...]:
    """The ifindexes that default routes lead to: IPv4's first, of each family the lowest metric first."""
    routes = sorted(default_routes, key=lambda route: (":" in route.destination, route.metric))
    return tuple(dict.fromkeys(index for route in routes for index in sorted(outputs([route]))))


def is_certain(link: Link | None) -> bool:
    """Whether a link surely carries what is routed to it. Some drivers leave ``operstate`` unknown while they
    work; the carrier decides then."""
    if link is None or not link.is_up or link.kind in TUNNEL_KINDS:
        return False
    return link.carrier or link.operstate in ("up", "unknown")


def is_hardware(link: Link) -> bool:
    """A card, on PCI or another bus: software links have a kind."""
    return bool(link.pci_address) or not (link.kind or link.virtual or link.is_loopback)


def has_local_parent(link: Link) -> bool:
    """With ``link_netnsid`` set, ``lower`` is an index of another namespace and names nothing here."""
    return bool(link.lower) and link.lower != link.ifindex and link.link_netnsid is None

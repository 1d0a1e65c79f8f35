"""The two sides of a move, where a planned link is now, and what it has: addresses, routes, neighbours."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TypeVar

from msgspec import Struct

from dranet.errors import DeviceError, DranetError, KernelError, Reason
from dranet.kernel.namespaces.netns import NetworkNamespace, Visit
from dranet.kernel.netlink import inet
from dranet.kernel.netlink.rtnl import (
    IFLA_INFO_KIND,
    IFLA_LINK,
    OFFLOAD_SIZES,
    RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
    RTPROT_KERNEL,
    RTPROT_RA,
    RTPROT_REDIRECT,
    decode,
    decode_all,
    dump_links_request,
    get_link_request,
    link_header,
    parse_ipv6_token,
    parse_link,
    u32,
)
from dranet.kernel.netlink.socket import (
    NETLINK_GENERIC,
    NetlinkSocket,
    attribute_text,
    attribute_u32,
    iter_attributes,
    parse_attributes,
)
from dranet.kernel.sysfs.files import write_sysctl
from dranet.model.facts import IFA_F_TEMPORARY, Address, Link, Neighbour, Route
from dranet.model.plan import AttachPlan, LinkState, MoveLink

_SHARED_MAC_KINDS = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "bond", "bridge", "team"})
"""Kinds that wear the MAC address of a link below them."""

_NAME_OF_THE_RETURNED = re.compile(r"dev[0-9]+")
"""What the kernel calls a link that it takes out of a dying namespace when its name is not free."""

T = TypeVar("T")


class Side:
    """One end of a move: a namespace, sockets that live in it, and a way to call functions in it."""

    def __init__(self, netns: NetworkNamespace, rtnl: NetlinkSocket, visit: Visit | None = None) -> None:
        """``visit`` is the thread inside; ``None`` where the calling thread is inside by itself."""
        self.netns = netns
        self.rtnl = rtnl
        self._visit = visit
        self._genl: NetlinkSocket | None = None

    @property
    def genl(self) -> NetlinkSocket:
        if self._genl is None:
            self._genl = self.run(lambda: NetlinkSocket.open(NETLINK_GENERIC))
        return self._genl

    def run(self, function: Callable[[], T]) -> T:
        return function() if self._visit is None else self._visit.run(function)

    def close(self) -> None:
        if self._genl is not None:
            self._genl.close()
            self._genl = None


@contextmanager
def open_host_side() -> Iterator[Side]:
    with (
        NetworkNamespace.current() as netns,
        NetlinkSocket.open() as rtnl,
        closing(Side(netns, rtnl)) as side,
    ):
        yield side


@contextmanager
def open_pod_side(netns: NetworkNamespace) -> Iterator[Side]:
    """A pod's namespace, entered once; ``netns`` stays the caller's."""
    with (
        netns.enter() as visit,
        visit.run(NetlinkSocket.open) as rtnl,
        closing(Side(netns, rtnl, visit)) as side,
    ):
        yield side


# --- where a planned link is ----------------------------------------------------------------------------
# A link is known by its device and index, else by its permanent MAC address where it has one, else by a MAC
# address that it had or was given. The permanent address alone is not enough: igbvf takes for it whatever
# address the tenant set. Names are only hints: the kernel returns a NIC under its pod name or as ``dev%d``
# when a namespace dies, and a tenant may rename it.


class Found(Struct, frozen=True):
    side: Side
    link: Link


def steps_of(plan: AttachPlan, kind: type[T]) -> list[T]:
    return [step for step in plan.steps if isinstance(step, kind)]


def find_step(plan: AttachPlan, kind: type[T]) -> T | None:
    return next(iter(steps_of(plan, kind)), None)


def is_same_device(link: Link, plan: AttachPlan, host: LinkState) -> bool:
    """Whether this is the link that was prepared, by the strongest identity that it has."""
    if host.parent_device and (link.parent_device, link.ifindex) == (host.parent_device, host.ifindex):
        return True
    if link.permanent_mac or host.permanent_mac:
        return link.permanent_mac == host.permanent_mac
    move = find_step(plan, MoveLink)
    return link.mac in {host.mac, move.mac if move else None}


def find_link(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Found | None:
    """Find the planned link on either side; ``None`` if it is gone. One that only its place and index
    identify (a tenant changed its MAC address) comes after every link that its address identifies."""
    for candidate in _iter_candidates(plan, host, home, pod):
        if is_same_device(candidate.link, plan, host):
            return candidate
    return _find_by_index(plan, host, home, pod)


def _iter_candidates(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Iterator[Found]:
    yield from _look_up(home, ifindex=host.ifindex)
    if pod is not None:
        yield from _look_up(pod, ifname=plan.pod_ifname)
    yield from _look_up(home, ifname=host.ifname)
    yield from _look_up(home, ifname=plan.pod_ifname)
    if pod is not None:
        yield from (found for found in _walk(pod) if found.link.kind not in _SHARED_MAC_KINDS)
    yield from (found for found in _walk(home) if _may_have_returned(found.link, host))


def _may_have_returned(link: Link, host: LinkState) -> bool:
    """Whether a link of the host that nothing but its MAC address points to may be the planned one. Without a
    permanent address others can wear the same one (an ipvlan shares it with the NIC below), so then the name
    must be one that the kernel gives."""
    return bool(host.permanent_mac) or _NAME_OF_THE_RETURNED.fullmatch(link.ifname) is not None


def _walk(side: Side) -> Iterator[Found]:
    for link in decode_all(parse_link, side.rtnl.dump(dump_links_request()), []):
        yield Found(side, link)


def _look_up(side: Side, ifindex: int = 0, ifname: str = "") -> Iterator[Found]:
    link = read_link(side.rtnl, ifindex, ifname)
    if link is not None:
        yield Found(side, link)


def _find_by_index(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Found | None:
    if host.permanent_mac:
        return None
    in_pod = _look_up(pod, ifname=plan.pod_ifname) if pod is not None else iter(())
    for candidate in (*in_pod, *_look_up(home, ifindex=host.ifindex)):
        if candidate.link.ifindex == host.ifindex and not candidate.link.permanent_mac:
            return candidate
    return None


# --- undo of a failed attach, last step first -----------------------------------------------------------

Undo = Callable[[], Iterable[str] | None]
"""Takes one thing back; returns what could not be taken back, one line each, or nothing."""


class UndoStack:
    """The undo of every step that was taken so far, each with the device that it was taken for."""

    def __init__(self) -> None:
        self._undos: list[tuple[str, Undo]] = []

    def later(self, device: str, undo: Undo) -> None:
        self._undos.append((device, undo))

    def run(self) -> tuple[str, ...]:
        """Take everything back, going on after a refusal; returns the problems, each with its device."""
        problems: list[str] = []
        while self._undos:
            device, undo = self._undos.pop()
            try:
                problems += [f"{device}: {problem}" for problem in undo() or ()]
            except DranetError as error:
                problems.append(f"{device}: {error.message}")
        return tuple(problems)


# --- sysctls of a pod, with undo ------------------------------------------------------------------------


def write_pod_sysctls(pod: Side, device: str, wanted: Iterable[tuple[str, str]], undo: UndoStack) -> None:
    """Write values by path, in order. Where the kernel refuses one, those before it are written."""
    before: list[tuple[str, str]] = []

    def write() -> None:
        for path, value in wanted:
            before.append((path, write_sysctl(path, value)))

    undo.later(device, lambda: pod.run(lambda: list(_write_back(before))))
    pod.run(write)


def _write_back(before: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Write the previous values. An empty one could not be read and cannot be restored."""
    for path, value in reversed(before):
        try:
            if value:
                write_sysctl(path, value)
        except KernelError as error:
            yield error.message


# --- one link, as Prepare records it and release gives it back ------------------------------------------
# What the kernel makes by itself from an address (connected, local and multicast routes, the IPv6 link-local
# address, what a router advertises) is left out: it comes back by itself. A link is refused if a
# ``LinkState`` cannot express its state or if other links depend on it: it could not be restored.

# linux/rtnetlink.h
RTA_FLOW, RTA_PREF, RTA_TTL_PROPAGATE, RTA_NH_ID = 11, 20, 26, 30
_UNSAID_ATTRIBUTES = frozenset({inet.RTA_METRICS, RTA_FLOW, RTA_PREF, RTA_TTL_PROPAGATE, RTA_NH_ID})
_ROUTE_HEADER_BYTES = 12

SELF_MADE_ROUTES = frozenset({RTPROT_KERNEL, RTPROT_RA, RTPROT_REDIRECT})
"""Protocols of routes that the kernel makes by itself."""

STACKED_KINDS = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap")
"""Links that go on to carry the node's traffic over the link below them when that is a pod's."""


def read_link(rtnl: NetlinkSocket, ifindex: int = 0, ifname: str = "") -> Link | None:
    """Return one link by index or name (also an alternative name), or ``None``."""
    payload = read_link_message(rtnl, ifindex, ifname)
    return None if payload is None else decode(parse_link, payload)


def read_link_message(rtnl: NetlinkSocket, ifindex: int = 0, ifname: str = "") -> bytes | None:
    if not (ifindex or ifname):
        return None
    try:
        answers = rtnl.request(get_link_request(ifindex, ifname))
    except KernelError as error:
        if error.errno in (errno.ENODEV, errno.ERANGE):  # the second for an impossible name
            return None
        raise
    return answers[0].payload if answers else None


def check_is_free(rtnl: NetlinkSocket, link: Link) -> None:
    """Refuse a link that is enslaved to a bridge, bond or VRF, or carries VLANs or such (``DeviceBusy``)."""
    if link.master is not None:
        master = read_link(rtnl, link.master)
        name = master.ifname if master else str(link.master)
        raise DeviceError(f"link {link.ifname} is enslaved to {name}", reason=Reason.DEVICE_BUSY)
    upper = next(_iter_stacked(rtnl, link), None)
    if upper is not None:
        raise DeviceError(
            f"link {link.ifname} carries {upper.ifname} ({upper.kind}), which would go on to use it",
            reason=Reason.DEVICE_BUSY,
        )


def _iter_stacked(rtnl: NetlinkSocket, link: Link) -> Iterator[Link]:
    names_it = attribute_u32(IFLA_LINK, link.ifindex)
    for kind in STACKED_KINDS:
        payloads = rtnl.dump(dump_links_request(kind))
        for payload in filter(lambda payload: names_it in payload, payloads):  # to parse all takes long
            other = decode(parse_link, payload)
            if other.kind in STACKED_KINDS and other.lower == link.ifindex and other.link_netnsid is None:
                yield other
        names_kind = attribute_text(IFLA_INFO_KIND, kind)
        if any(names_kind not in payload for payload in payloads):
            return  # a kernel without this kind does not filter: these were all links there are


def read_addresses(rtnl: NetlinkSocket, link: Link) -> tuple[Address, ...]:
    """Addresses in the kernel's order, primary before secondary, without those it makes by itself."""
    parse = partial(inet.parse_address, names={link.ifindex: link.ifname})
    payloads = rtnl.dump(inet.dump_addresses_request(link.ifindex))
    parsed = [decode(parse, payload) for payload in payloads if not inet.is_kernel_link_local(payload)]
    # The index is compared again: kernels before 5.0 ignore the filter.
    found = (address for index, address in filter(None, parsed) if index == link.ifindex)
    return tuple(a for a in found if ":" not in a.cidr or not a.flags & IFA_F_TEMPORARY)


def read_routes(rtnl: NetlinkSocket, link: Link) -> tuple[Route, ...]:
    """Routes through the link in any table but ``local``, without those the kernel makes by itself. One that
    ``Route`` cannot express is a ``DeviceError`` (``DeviceBusy``), unless a program made it from a router
    advertisement: it makes it again when the link is back."""
    found = list(_iter_made_routes(rtnl, link))
    for route, is_sayable in found:
        if not is_sayable and route.protocol != RTPROT_RA:
            raise DeviceError(
                f"link {link.ifname} carries the route {route.destination}, which could not be restored",
                hint="it has several next hops or a nexthop object, an encapsulation, a ToS, a source "
                "prefix, realms or metrics beyond the MTU",
                reason=Reason.DEVICE_BUSY,
            )
    return tuple(route for route, is_sayable in found if is_sayable)


def read_restorable_routes(rtnl: NetlinkSocket, link: Link) -> tuple[Route, ...]:
    """As :func:`read_routes`, skipping those that ``Route`` cannot express."""
    return tuple(route for route, is_sayable in _iter_made_routes(rtnl, link) if is_sayable)


def _iter_made_routes(rtnl: NetlinkSocket, link: Link) -> Iterator[tuple[Route, bool]]:
    """Routes that the kernel did not make itself, each with whether ``Route`` expresses all of it. It puts
    its own into main and local; in another table their protocols are of programs (systemd-networkd's
    ``RouteTable=``)."""
    for route, payload in iter_routes(rtnl, link):
        is_self_made = route.table == RT_TABLE_MAIN and route.protocol in SELF_MADE_ROUTES
        if route.table != RT_TABLE_LOCAL and not is_self_made:
            yield route, inet.is_plain_route(payload) and not _has_more(payload)


def _has_more(payload: bytes) -> bool:
    """Whether a route has what ``Route`` has no word for: a nexthop object, realms, a router preference, or
    metrics beyond the MTU (a window, a lock)."""
    found = parse_attributes(payload, _ROUTE_HEADER_BYTES, _UNSAID_ATTRIBUTES)
    metrics = iter_attributes(found.get(inet.RTA_METRICS, b""))
    return (
        bool({RTA_NH_ID, RTA_FLOW, RTA_TTL_PROPAGATE} & found.keys())
        or any(found.get(RTA_PREF, b""))
        or any(kind != inet.RTAX_MTU and any(value) for kind, value in metrics)
    )


def has_route(rtnl: NetlinkSocket, link: Link, wanted: Route) -> bool:
    """Whether the link already has exactly this route, from any program."""
    return any(
        inet.is_plain_route(payload) and _is_same(route, wanted) for route, payload in iter_routes(rtnl, link)
    )


def _is_same(route: Route, wanted: Route) -> bool:
    # The kernel gives an IPv6 route without a metric 1024 (IP6_RT_PRIO_USER).
    metrics = {wanted.metric} if wanted.metric else {0, 1024 if ":" in wanted.destination else 0}
    return _route_key(route) == _route_key(wanted) and route.metric in metrics


def _route_key(route: Route) -> tuple[object, ...]:
    """The identity of a route of one link, independent of the spelling of its addresses."""
    gateway = ip_address(route.gateway) if route.gateway else None
    source = ip_address(route.source) if route.source else None
    return ip_network(route.destination), gateway, source, route.table, route.type


def iter_routes(rtnl: NetlinkSocket, link: Link) -> Iterator[tuple[Route, bytes]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        for payload in rtnl.dump(inet.dump_routes_request(family, ifindex=link.ifindex)):
            route = decode(inet.parse_route, payload)
            # A kernel without the family answers for all; kernels before 5.0 ignore the filter.
            if payload[0] == family and route and link.ifindex in (route.ifindex, *route.next_hops):
                yield route, payload


def read_neighbours(rtnl: NetlinkSocket, link: Link, *, proxies: bool = True) -> tuple[Neighbour, ...]:
    """The permanent neighbours of the link, and with ``proxies`` the addresses that it answers for."""
    parse = partial(inet.parse_permanent_neighbour, ifindex=link.ifindex)
    payloads = rtnl.dump(inet.dump_neighbours_request(link.ifindex))
    payloads += rtnl.dump(inet.dump_neighbours_request(link.ifindex, proxies=True)) if proxies else []
    found = (decode(parse, payload) for payload in payloads)
    return tuple(neighbour for neighbour in found if neighbour is not None)


# --- details of a link message that a scan does not need (``linux/if_link.h``) --------------------------

# linux/if.h
IFF_DEBUG, IFF_NOTRAILERS, IFF_PORTSEL, IFF_AUTOMEDIA, IFF_DYNAMIC = 0x4, 0x20, 0x2000, 0x4000, 0x8000
ODD_FLAGS = IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA | IFF_DYNAMIC
"""An administrator can set these too, and does not; a tenant might."""

# linux/if_link.h
IFLA_BROADCAST, IFLA_LINKMODE, IFLA_GSO_MAX_SEGS = 2, 17, 40
SIZES = {**OFFLOAD_SIZES, "gso_max_segs": IFLA_GSO_MAX_SEGS}
"""In the order to set them: ``gso_max_size`` of up to 64 KiB also sets that of IPv4."""

LINK_MODE_DEFAULT = 0
"""``IF_LINK_MODE_DEFAULT``: operational with the carrier, not after authentication."""
ETHERNET_BROADCAST = b"\xff" * 6
_ETHERNET = 1

_WANTED = frozenset({IFLA_BROADCAST, IFLA_LINKMODE, *SIZES.values()})
_HEADER_BYTES = len(link_header())


class LinkDetails(Struct, frozen=True):
    """``offload_sizes`` and ``token`` as :class:`~dranet.model.plan.LinkState` has them. The rest has no word
    there: a link of a node has the kernel's default."""

    offload_sizes: Mapping[str, int]
    token: str = ""
    odd_flags: int = 0
    link_mode: int = LINK_MODE_DEFAULT
    broadcast: str = ""
    """Empty where it is that of every Ethernet link, or the link is of another type."""

    @property
    def oddities(self) -> Mapping[str, str]:
        """What is not the kernel's default though nothing can record it, by what it is."""
        found = {
            "flags": f"{self.odd_flags:#x}" if self.odd_flags else "",
            "link mode": str(self.link_mode) if self.link_mode != LINK_MODE_DEFAULT else "",
            "broadcast address": self.broadcast,
        }
        return {what: value for what, value in found.items() if value}


def parse_link_details(payload: bytes, link: Link) -> LinkDetails:
    found = parse_attributes(payload, _HEADER_BYTES, _WANTED)
    token = parse_ipv6_token(payload)
    broadcast = found.get(IFLA_BROADCAST, ETHERNET_BROADCAST)
    has_odd_broadcast = link.arp_type == _ETHERNET and broadcast != ETHERNET_BROADCAST
    return LinkDetails(
        offload_sizes={name: u32(found, kind) for name, kind in SIZES.items() if kind in found},
        token=str(IPv6Address(token)) if token else "",  # as claims write it; the C library has ``::0.5.0.6``
        odd_flags=link.flags & ODD_FLAGS,
        link_mode=found.get(IFLA_LINKMODE, b"\0")[0],
        broadcast=broadcast.hex(":") if has_odd_broadcast else "",
    )

"""Where a pod's packets go, and how fast: routes, policy rules and rate limits."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.links import Side, iter_routes, read_link
from dranet.kernel.netlink import inet, tc
from dranet.kernel.netlink.rtnl import (
    IFF_UP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IFLA_MTU,
    RTM_NEWLINK,
    add_rule_request,
    canonical_rule,
    decode,
    decode_all,
    delete_link_request,
    delete_rule_request,
    dump_links_request,
    dump_rules_request,
    get_link_request,
    link_header,
    parse_link,
    parse_rule,
    set_link_request,
    u32,
)
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    kernel_error,
    nested,
    parse_attributes,
)
from dranet.model.facts import RTNH_F_ONLINK, Link, Route
from dranet.model.plan import AddRoute, AddRule, LimitRate

_IPV6_METRIC = 1024
"""What the kernel gives an IPv6 route without one (``IP6_RT_PRIO_USER``)."""

REPEATED_ROUTE = (errno.EEXIST, errno.EHOSTUNREACH)
"""How the kernel may refuse a route that is there. It looks for the gateway of an IPv6 route first, and by a
rule for the link finds the route itself, which has a gateway (``ip6_route_check_nh``)."""

LinkRoutes = tuple[tuple[Route, tuple[inet.Hop, ...]], ...]
"""Each with where it leads."""

# --- routes ---------------------------------------------------------------------------------------------


def route_request(ifindex: int, route: Route, link: str, hops: Sequence[inet.Hop] = ()) -> Request:
    """Add a route of a plan. An IPv4 route without a gateway reaches its neighbours directly: link scope, or
    the kernel takes no gateway from behind it."""
    return inet.add_route_request(ifindex, _with_scope(route, hops), link, hops)


def _with_scope(route: Route, hops: Sequence[inet.Hop]) -> Route:
    is_direct = (
        not (route.gateway or hops) and route.type == inet.RTN_UNICAST and ":" not in route.destination
    )
    return replace(route, scope=inet.RT_SCOPE_LINK) if is_direct and route.scope == 0 else route


def has_same_route(pod: Side, ifindex: int, route: Route, hops: Sequence[inet.Hop] = ()) -> bool:
    wanted = _with_scope(replace(route, ifindex=ifindex), hops)
    manner = _manner(wanted, _ways(wanted, hops))
    return any(_manner(found, ways) == manner for found, ways in _iter_in_place_of(pod, wanted))


def read_link_routes(pod: Side, link: Link) -> LinkRoutes:
    """Every route through a link of the pod: a dump for each IP version, which the kernel filters."""
    found = ((route, decode(inet.parse_hops, payload)) for route, payload in iter_routes(pod.rtnl, link))
    return tuple((route, _ways(route, hops)) for route, hops in found)


def is_in(routes: LinkRoutes, pod: Side, link: Link, step: AddRoute) -> bool:
    try:
        hops = _find_hops(pod, link.ifindex, step)
    except KernelError:  # a next hop's link is gone, and the route went with it
        return False
    wanted = _with_scope(replace(step.route, ifindex=link.ifindex), hops)
    manner = _manner(wanted, _ways(wanted, hops))
    return any(is_in_place_of(found, wanted) and _manner(found, ways) == manner for found, ways in routes)


def has_rival(pod: Side, step: AddRoute) -> bool:
    """Whether the pod has another route in the place of this one: this one could not be added."""
    return any(True for _ in _iter_in_place_of(pod, step.route))


def _dump_table(pod: Side, family: int, table: int) -> list[bytes]:
    try:
        return pod.rtnl.dump(inet.dump_routes_request(family, table))
    except KernelError as error:
        if error.errno == errno.ENOENT:  # no route was ever in the table
            return []
        raise


def is_in_place_of(found: Route, wanted: Route) -> bool:
    """Whether two routes have destination, table and metric in common: the kernel has one of them."""
    return _place(found) == _place(wanted)


def _ways(route: Route, hops: Sequence[inet.Hop]) -> tuple[inet.Hop, ...]:
    """Where a route leads: the kernel keeps one way as a route without a list, and forgets its weight."""
    if len(hops) > 1:
        return tuple(hops)
    onlink = bool(route.flags & RTNH_F_ONLINK)
    return (replace(hops[0], weight=1) if hops else inet.Hop(route.ifindex, route.gateway, onlink=onlink),)


def describe_rival(pod: Side, route: Route) -> str:
    """How the route leads that has the place of ``route``: ``via 10.244.0.1 dev eth0``; empty without one."""
    for _, (hop, *_) in _iter_in_place_of(pod, route):
        link = read_link(pod.rtnl, hop.ifindex)
        way = [f"via {hop.gateway}"] if hop.gateway else []
        way += [f"dev {link.ifname}"] if link is not None else []
        return " ".join(way)
    return ""


def _iter_in_place_of(pod: Side, route: Route) -> Iterator[tuple[Route, tuple[inet.Hop, ...]]]:
    family = socket.AF_INET6 if ":" in route.destination else socket.AF_INET
    for payload in _dump_table(pod, family, route.table):
        found = decode(inet.parse_route, payload)
        # A kernel without the family answers for all.
        if payload[0] == family and found is not None and is_in_place_of(found, route):
            yield found, _ways(found, decode(inet.parse_hops, payload))


def _place(route: Route) -> tuple[object, ...]:
    network = ip_network(route.destination)
    return network, route.table, route.metric or (_IPV6_METRIC if network.version == 6 else 0)


def _manner(route: Route, ways: Sequence[inet.Hop]) -> tuple[object, ...]:
    scope = 0 if ":" in route.destination else route.scope
    source = ip_address(route.source) if route.source else None
    hops = {replace(hop, gateway=str(ip_address(hop.gateway))) if hop.gateway else hop for hop in ways}
    return frozenset(hops), len(ways), source, scope, route.type, route.mtu


def add_multipath_route(pod: Side, ifindex: int, ifname: str, step: AddRoute) -> bool:
    """Add a route with several ways; ``False`` where it was there already. ENODEV: one of its links is not in
    the pod."""
    hops = _find_hops(pod, ifindex, step)
    try:
        pod.rtnl.request(route_request(0, step.route, ifname, hops))
    except KernelError as refusal:
        if refusal.errno in REPEATED_ROUTE and has_same_route(pod, 0, step.route, hops):
            return False
        raise
    return True


def _find_hops(pod: Side, ifindex: int, step: AddRoute) -> tuple[inet.Hop, ...]:
    return tuple(
        inet.Hop(_find_ifindex(pod, hop.ifname, ifindex), hop.gateway, hop.weight, hop.onlink)
        for hop in step.next_hops
    )


def _find_ifindex(pod: Side, ifname: str, own: int) -> int:
    link = read_link(pod.rtnl, ifname=ifname) if ifname else None
    if ifname and link is None:
        raise KernelError(
            f"next hop through {ifname}: the pod has no link of that name",
            errno=errno.ENODEV,
            operation="add route",
            hint="nextHops[].interface is a name in the pod",
        )
    return own if link is None else link.ifindex


def remove_multipath_route(pod: Side, ifname: str, step: AddRoute) -> None:
    """Remove a route with several ways, known by its place and gateways; its links may have new names."""
    wanted = {ip_address(hop.gateway) for hop in step.next_hops}
    for found, ways in _iter_in_place_of(pod, step.route):
        if {ip_address(hop.gateway) for hop in ways if hop.gateway} == wanted:
            pod.rtnl.request(inet.delete_route_request(0, found, ifname, ways))


# --- rules ----------------------------------------------------------------------------------------------


class PodRules:
    """The policy rules of a pod's namespace, read once for each IP version, however many devices ask. A rule
    of an IP version that the kernel does not have is left out, and not missed."""

    def __init__(self, pod: Side) -> None:
        self._pod = pod
        self._present: dict[int, list[AddRule] | None] = {}

    def add(self, steps: Iterable[AddRule], link: str, added: Callable[[AddRule], None]) -> None:
        """Add the rules that are not there; ``added`` is called with each that now is."""
        missing = self.find_missing(steps)
        refusals: list[KernelError] = []
        outcomes = self._pod.rtnl.batch([add_rule_request(rule, link) for rule in missing])
        for rule, outcome in zip(missing, outcomes, strict=True):
            if not isinstance(outcome, KernelError):
                added(rule)
            elif outcome.errno != errno.EEXIST:
                refusals.append(outcome)
            (self._read(rule.family) or []).append(rule)
        if refusals:
            raise refusals[0]

    def find_missing(self, steps: Iterable[AddRule]) -> list[AddRule]:
        wanted = dict.fromkeys(map(canonical_rule, steps))
        present = {rule: self._read(rule.family) for rule in wanted}
        return [rule for rule, found in present.items() if found is not None and not _find_same(found, rule)]

    def find_present(self, steps: Iterable[AddRule]) -> tuple[AddRule, ...]:
        """Return those of the rules that the pod has, as the kernel reports them."""
        found = (_find_same(self._read(rule.family) or (), rule) for rule in map(canonical_rule, steps))
        return tuple(dict.fromkeys(rule for rule in found if rule is not None))

    def _read(self, family: int) -> list[AddRule] | None:
        if family not in self._present:
            self._present[family] = read_rules(self._pod.rtnl, family)
        return self._present[family]


def remove_rules(pod: Side, rules: Iterable[AddRule], link: str) -> None:
    """Remove rules that :meth:`PodRules.add` added; those that are gone already are passed over. Where the
    kernel refuses one, the others are removed."""
    wanted = tuple(map(canonical_rule, rules))
    present = {family: read_rules(pod.rtnl, family) or [] for family in {rule.family for rule in wanted}}
    doomed = dict.fromkeys(
        found for rule in wanted for found in present[rule.family] if _is_same(found, rule)
    )
    for outcome in pod.rtnl.batch([delete_rule_request(rule, link) for rule in doomed]):
        if isinstance(outcome, KernelError) and outcome.errno != errno.ENOENT:
            raise outcome


def read_rules(rtnl: NetlinkSocket, family: int) -> list[AddRule] | None:
    """Return the policy rules of a namespace, of IP version 4 or 6, that :class:`AddRule` can express;
    ``None`` if the kernel does not have the family."""
    try:
        payloads = rtnl.dump(dump_rules_request(family))
    except KernelError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
            return None
        raise
    return decode_all(parse_rule, payloads, [])


def _find_same(present: Iterable[AddRule], rule: AddRule) -> AddRule | None:
    return next((found for found in present if _is_same(found, rule)), None)


def _is_same(found: AddRule, wanted: AddRule) -> bool:
    """Without a priority any will do: the kernel chose it."""
    return found == (wanted if wanted.priority else replace(wanted, priority=found.priority))


# --- rate limits, by token buckets ----------------------------------------------------------------------
# What the pod sends waits in a token bucket (tbf) at the root of the link, in place of what was there: a
# multi-queue root (mq) is a single queue then. What it receives is redirected, by the first filter of the
# link's ingress hook, into an ``ifb`` link next to it, which has the token bucket and returns the packets to
# the stack. TCX programs of the link see them before that; its other filters no longer see them. A packet
# counts with its link-layer header, as on the wire without preamble and checksum, and a GSO packet as the
# packets that it becomes.
#
# Kernel modules: sch_tbf; for the receive direction also ifb, sch_ingress, cls_u32 and act_mirred. The kernel
# loads them by itself where it can; ifb then makes two idle links on the node, unless it has ``numifbs=0``.

# linux/if_link.h: the largest GSO and GRO packets, for both IP versions and for IPv4 alone
_MERGED_SIZES = frozenset({41, 58, 63, 64})
_USUAL_MERGED_BYTES = 65536
_IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE, _IN6_ADDR_GEN_MODE_NONE = 26, 8, 1

BUCKET_HANDLE = 0xD2A00000
"""``d2a0:`` marks the root qdisc of a rate limit; the kernel itself counts from ``8001:``."""

_PRIORITY = 1
"""The first of the ingress hook, so that no other filter lets packets past the limit."""

_HEADER_BYTES = 64
"""More than any link layer puts before a packet: 14 bytes and two VLAN tags, InfiniBand's 44."""

_MOST_BURST_BYTES = 2**32 - 1

_SLACK_SECONDS = 0.004
"""How late the kernel may hand out tokens without a loss of rate: the timer is exact, but the core that
serves it may be busy."""

_BIG_PACKET_SECONDS = 0.02
"""A GSO packet passes whole where the rate carries it within this time; else the bucket cuts it, so that a
slow link is also exact over short times."""

_QUEUE_SECONDS = 0.05
_QUEUE_PACKETS = 10
"""Below 2.5 Mbit/s, 50 ms are so few packets that TCP waits for its timer after each loss."""

_IFB = "ifb"
_IFNAME_BYTES = 15

_MODULES = {
    "make link": "ifb",
    "add qdisc tbf of": "sch_tbf",
    "add qdisc clsact of": "sch_ingress",
    "redirect what arrives on": "cls_u32, act_mirred",
}
"""By what was refused: the modules that have it."""

_IS_THERE = frozenset({errno.EEXIST})
_NOT_THERE = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV})
"""No such qdisc or filter, another one in its place, or the link has left."""
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EINVAL})

_LimitRequest = tuple[Request, Collection[int]]
"""With the errnos that are fine."""


def limit_rate(pod: Side, ifindex: int, pod_ifname: str, step: LimitRate) -> None:
    """Limit a link that is in the pod; again with other numbers replaces them. A direction that is not asked
    for is left alone. After a failure the link has no limit at all. Quickest on a link that is down: one that
    is up waits for a grace period. ``MissingFeature``: the kernel lacks a module, which the hint names."""
    try:
        _limit(pod.rtnl, ifindex, pod_ifname, step)
    except KernelError as error:
        with suppress(KernelError):  # report the first refusal
            remove_limits(pod, ifindex, pod_ifname)
        raise _explained(error, pod_ifname) from error


def _limit(rtnl: NetlinkSocket, ifindex: int, pod_ifname: str, step: LimitRate) -> None:
    sizes = decode(_parse_sizes, rtnl.request(get_link_request(ifindex))[0].payload)
    requests: list[_LimitRequest] = []
    if step.egress_bits_per_second is not None:
        bucket = choose_bucket(step.egress_bits_per_second, step.egress_burst_bytes, sizes)
        requests.append((tc.set_bucket_request(ifindex, BUCKET_HANDLE, bucket, pod_ifname), ()))
    if step.ingress_bits_per_second is not None:
        bucket = choose_bucket(step.ingress_bits_per_second, step.ingress_burst_bytes, sizes)
        ifb = _make_ifb(rtnl, pod_ifname)
        requests += _iter_ingress_requests(ifindex, pod_ifname, ifb, bucket)
    _apply(rtnl, requests)


def remove_limits(pod: Side, ifindex: int, pod_ifname: str) -> None:
    """Remove what :func:`limit_rate` made, also after the link has left the pod (which took its qdiscs with
    it). Nothing to remove is fine. Traffic hooks with filters of other programs stay."""
    ifbs = _find_ifbs(pod.rtnl, pod_ifname)
    redirection, _ = _apply(
        pod.rtnl,
        [
            (tc.delete_redirect_request(ifindex, _PRIORITY, pod_ifname), _NOT_THERE),
            (tc.delete_qdisc_request(ifindex, BUCKET_HANDLE, tc.TC_H_ROOT, pod_ifname), _NOT_THERE),
        ],
    )
    if ifbs or not isinstance(redirection, KernelError):
        _remove_empty_hooks(pod.rtnl, ifindex, pod_ifname)
    _apply(pod.rtnl, [(delete_link_request(link.ifindex, link.ifname), _NOT_THERE) for link in ifbs])


# --- how large ------------------------------------------------------------------------------------------


class PacketSizes(Struct, frozen=True):
    mtu: int
    merged: int
    """The largest GSO or GRO packet."""

    @property
    def single(self) -> int:
        return self.mtu + _HEADER_BYTES


def choose_bucket(bits_per_second: int, burst_bytes: int | None, sizes: PacketSizes) -> tc.TokenBucket:
    """The token bucket for a rate. Its burst is what the claim asks for, else what the rate carries while the
    kernel may be late, but at least a packet. Before it is a queue of 50 ms, or of ten packets."""
    rate = max(bits_per_second // 8, 1)
    if burst_bytes is None:
        whole = min(sizes.merged, round(rate * _BIG_PACKET_SECONDS))
        slack = round(rate * max(_SLACK_SECONDS, read_timer_seconds()))
        burst_bytes = max(whole, sizes.single) + slack
    burst_bytes = min(max(burst_bytes, sizes.single), _MOST_BURST_BYTES)
    queue = max(round(rate * _QUEUE_SECONDS), _QUEUE_PACKETS * sizes.single)
    return tc.TokenBucket(rate, burst_bytes, burst_bytes + queue)


@cache
def read_timer_seconds() -> float:
    """The resolution of the packet scheduler's timer: a nanosecond, or a tick where there is no better one.
    The last number of ``/proc/net/psched`` is how many there are in a second; 10 ms if it is not reported."""
    try:
        return 1 / int(Path("/proc/net/psched").read_text().split()[3], 16)
    except (OSError, ValueError, LookupError, ZeroDivisionError):
        return 0.01


def _parse_sizes(payload: bytes) -> PacketSizes:
    found = parse_attributes(payload, len(link_header()), _MERGED_SIZES | {IFLA_MTU})
    merged = [u32(found, kind) for kind in _MERGED_SIZES]
    return PacketSizes(u32(found, IFLA_MTU), max(_USUAL_MERGED_BYTES, *merged))


# --- the receive direction ------------------------------------------------------------------------------


def ifb_name(pod_ifname: str) -> str:
    """The name of the link that ``pod_ifname`` receives through. A claim cannot give a link such a name: the
    tilde is not among the characters that it may use."""
    name = f"ifb~{pod_ifname}"
    if len(name) <= _IFNAME_BYTES:
        return name
    return "ifb~~" + hashlib.sha256(pod_ifname.encode()).hexdigest()[: _IFNAME_BYTES - 5]


def _ifb_alias(pod_ifname: str) -> str:
    return f"dranet: what {pod_ifname} receives"


def _make_ifb(rtnl: NetlinkSocket, pod_ifname: str) -> int:
    name = ifb_name(pod_ifname)
    kind = nested(IFLA_LINKINFO, attribute_text(IFLA_INFO_KIND, _IFB))
    body = link_header() + attribute_text(IFLA_IFNAME, name) + kind
    make = Request(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, operation="make link", link=name)
    made, found = _apply(rtnl, [(make, _IS_THERE), (get_link_request(ifname=name), ())])
    assert not isinstance(found, KernelError), "that would have been raised"
    link = decode(parse_link, found[0].payload)
    if isinstance(made, KernelError) and not _is_own_ifb(link, pod_ifname):
        raise kernel_error(errno.EEXIST, "another program has a link of that name", "make link", name)
    return link.ifindex


def _iter_ingress_requests(
    ifindex: int, pod_ifname: str, ifb: int, bucket: tc.TokenBucket
) -> Iterator[_LimitRequest]:
    name = ifb_name(pod_ifname)
    alias = attribute(IFLA_IFALIAS, _ifb_alias(pod_ifname).encode())
    no_address = nested(
        _IFLA_AF_SPEC,
        nested(socket.AF_INET6, attribute_u8(_IFLA_INET6_ADDR_GEN_MODE, _IN6_ADDR_GEN_MODE_NONE)),
    )
    yield set_link_request(ifb, no_address, operation="take addresses from", link=name), _NO_IPV6
    yield tc.set_bucket_request(ifb, BUCKET_HANDLE, bucket, name), ()
    yield set_link_request(ifb, alias, operation="set up", link=name, flags=IFF_UP, change=IFF_UP), ()
    yield tc.add_hooks_request(ifindex, pod_ifname), _IS_THERE
    yield tc.delete_redirect_request(ifindex, _PRIORITY, pod_ifname), _NOT_THERE
    yield tc.redirect_request(ifindex, ifb, _PRIORITY, pod_ifname), ()


def _find_ifbs(rtnl: NetlinkSocket, pod_ifname: str) -> list[Link]:
    """Ours, by alias: a tenant may have renamed it."""
    links = decode_all(parse_link, rtnl.dump(dump_links_request(_IFB)), [])
    return [link for link in links if _is_own_ifb(link, pod_ifname)]


def _is_own_ifb(link: Link, pod_ifname: str) -> bool:
    is_unmarked = link.ifname == ifb_name(pod_ifname) and not link.alias  # we were killed while making it
    return link.kind == _IFB and (link.alias == _ifb_alias(pod_ifname) or is_unmarked)


def _remove_empty_hooks(rtnl: NetlinkSocket, ifindex: int, pod_ifname: str) -> None:
    if any(tc.read_hook_filters(rtnl, ifindex, hook) for hook in (tc.CLSACT_INGRESS, tc.CLSACT_EGRESS)):
        return
    request = tc.delete_qdisc_request(ifindex, tc.CLSACT_HANDLE, tc.TC_H_INGRESS, pod_ifname)
    _apply(rtnl, [(request, _NOT_THERE)])


def _apply(rtnl: NetlinkSocket, requests: Sequence[_LimitRequest]) -> list[Outcome]:
    outcomes = rtnl.batch([request for request, _ in requests])
    for (_, fine), outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, KernelError) and outcome.errno not in fine:
            raise outcome
    return outcomes


def _explained(refusal: KernelError, pod_ifname: str) -> KernelError:
    modules = _MODULES.get(refusal.operation, "")
    is_missing = bool(modules) and refusal.errno in (errno.ENOENT, errno.EOPNOTSUPP)
    return KernelError(
        f"limit rate of {pod_ifname}: {refusal.message}",
        errno=refusal.errno,
        operation="limit-rate",
        link=pod_ifname,
        hint=f"the node's kernel lacks {modules}: load or build it" if is_missing else "",
        reason=Reason.MISSING_FEATURE if is_missing else Reason.ATTACH_FAILED,
        retryable=not is_missing,
    )

"""One scan of the node: links, addresses, default routes, protected links and hardware -> ``NodeFacts``. A
link that reads as before stays the same object. A ``KernelError`` means that netlink itself failed; anything
smaller is a line in ``warnings``."""

from __future__ import annotations

import errno
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from itertools import chain
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.discovery.hardware import RDMA_CLASS, Hardware, HardwareReader
from dranet.kernel.discovery.programs import LinkPrograms, read_link_programs
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.kernel.ethtool.messages import DriverInfo, LinkSettings, read_driver_infos, read_link_settings
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import (
    RTN_UNICAST,
    dump_addresses_request,
    dump_routes_request,
    find_route_request,
    is_beyond_default_routes,
    is_default_route,
    one_for_each_output,
    parse_address,
    parse_routes,
)
from dranet.kernel.netlink.rdma import read_netns_exclusive
from dranet.kernel.netlink.rtnl import (
    FAMILIES,
    RT_TABLE_MAIN,
    Surroundings,
    decode_all,
    dump_links_request,
    dump_rules_request,
    get_link_request,
    is_of_local_or_main,
    parse_link,
    parse_link_name,
    parse_lookup,
    reports_netns_immutable,
    stay_request,
)
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Address, Link, NodeFacts, ProtectedLink, Route, RoutingRule
from dranet.model.uplinks import Routing, is_untold, outputs

UNDETAILED_KINDS = frozenset({"veth"})
"""Kinds that come by the thousand, one for each pod, and are never offered by default: speed, driver and
programs of these are not asked for. So is the loopback's."""

FEW_LINKS = 64
"""Up to here addresses are asked link by link; beyond, one dump of all costs less."""

LOOPBACK = 1
"""Its ifindex, in every namespace (``loopback_net_init``)."""


class LinkTable:
    """The links as last read, by ifindex. Not safe for threads."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._pinned: dict[int, bool] = {}
        """Whether the kernel pins a link to its namespace, if the link message does not show it: asked once
        for each link, and again when it changes."""

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(self._links[ifindex] for ifindex in sorted(self._links))

    def read_all(self, rtnl: NetlinkSocket, sysfs: PseudoFiles) -> None:
        """Read every link of the socket's namespace, which must be the calling thread's. The table stays as
        it was where a dump fails; anything smaller is a line in ``sysfs.warnings``."""
        payloads = rtnl.dump(dump_links_request())
        names = dict(decode_all(parse_link_name, payloads, []))  # what is odd here warns below, once
        shown = set(names.values()).intersection(sysfs.entries("class/net"))
        surroundings = Surroundings(
            addresses=_read_addresses(rtnl, [0], names, sysfs.warnings),
            homes=sysfs.homes("class/net", sorted(shown)),
        )
        links = _parse_and_complete(rtnl, payloads, surroundings, sysfs.warnings)
        self._pinned = {index: is_pinned for index, is_pinned in self._pinned.items() if index in names}
        links = self._with_pins(rtnl, links, payloads)
        self._links = {link.ifindex: self._as_known(link) for link in links}

    def read_again(self, rtnl: NetlinkSocket, ifindexes: Iterable[int], sysfs: PseudoFiles) -> frozenset[str]:
        """Read the named links again and drop those that are gone. Returns the names, old and new, of the
        links that were named."""
        wanted = self._with_followers(ifindexes)
        found: dict[int, bytes] = {}
        asked: set[int] = set()
        while wanted:
            asked |= wanted
            found |= _read_links(rtnl, wanted)
            wanted = self._partners(found.values()) - asked
        names = dict(decode_all(parse_link_name, found.values(), []))
        with_addresses = names if len(names) <= FEW_LINKS else [0]
        surroundings = Surroundings(
            addresses=_read_addresses(rtnl, with_addresses, names, sysfs.warnings),
            homes=sysfs.homes("class/net", tuple(names.values())),
        )
        links = _parse_and_complete(rtnl, found.values(), surroundings, sysfs.warnings)
        for index in asked:
            self._pinned.pop(index, None)
        return self._put(asked, self._with_pins(rtnl, links, found.values()))

    def _with_pins(self, rtnl: NetlinkSocket, links: list[Link], payloads: Collection[bytes]) -> list[Link]:
        """Add which links are pinned, if netlink does not report it: by what the kernel answers, else by what
        is possible."""
        if not payloads or reports_netns_immutable(next(iter(payloads))):
            return links
        news = [link for link in links if _is_worth_details(link) and link.ifindex not in self._pinned]
        pins = read_pins(rtnl, [link.ifindex for link in news])
        self._pinned |= {
            link.ifindex: _may_be_pinned(link) if pins is None else link.ifindex in pins for link in news
        }
        return [
            replace(link, netns_immutable=True) if self._pinned.get(link.ifindex) else link for link in links
        ]

    def _put(self, asked: Collection[int], links: Iterable[Link]) -> frozenset[str]:
        read = {link.ifindex: self._as_known(link) for link in links}
        before = {index: self._links[index] for index in asked if index in self._links}
        self._links = {index: link for index, link in self._links.items() if index not in asked} | read
        return frozenset(link.ifname for link in (*before.values(), *read.values()))

    def _as_known(self, link: Link) -> Link:
        known = self._links.get(link.ifindex)
        return known if known == link else link

    def _with_followers(self, ifindexes: Iterable[int]) -> set[int]:
        """Add the links on top of these. The kernel does not notify a veth that its peer has left the
        namespace, but its parent reads differently from then on."""
        named = set(ifindexes)
        return named | {index for index, link in self._links.items() if link.lower in named}

    def _partners(self, payloads: Iterable[bytes]) -> set[int]:
        """For the same reason: the links that a link depends on or is paired with."""
        links = decode_all(parse_link, payloads, [])
        return {
            link.lower
            for link in links
            if link.lower and link.link_netnsid is None and link.lower in self._links
        }


def _read_links(rtnl: NetlinkSocket, ifindexes: Iterable[int]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    wanted = sorted(ifindexes)
    for ifindex, outcome in zip(wanted, rtnl.batch([get_link_request(i) for i in wanted]), strict=True):
        if isinstance(outcome, KernelError):
            if outcome.errno != errno.ENODEV:
                raise outcome
        elif outcome:
            found[ifindex] = outcome[0].payload
    return found


def read_pins(rtnl: NetlinkSocket, ifindexes: Sequence[int]) -> frozenset[int] | None:
    """Return the links that the kernel pins to the namespace of the socket, which must be the calling
    thread's; ``None`` if it does not report them.

    For kernels before Linux 6.15 (``IFLA_NETNS_IMMUTABLE``); the feature ``netns-local`` of ethtool went with
    6.12. Up to 6.12 the kernel refuses to move a pinned link before it looks where to
    (``__dev_change_net_namespace``), and does nothing with another that is where it is asked to go. Later
    ones look first, and without rights all are refused: the answer for the loopback, which is always
    pinned, shows whether it reports them.
    """
    if not ifindexes:
        return frozenset()
    with NetworkNamespace.current() as here:
        asked = [LOOPBACK, *ifindexes]
        outcomes = rtnl.batch([stay_request(index, here.fileno()) for index in asked])
    pinned = frozenset(
        index
        for index, outcome in zip(asked, outcomes, strict=True)
        if isinstance(outcome, KernelError) and outcome.errno == errno.EINVAL
    )
    return pinned if LOOPBACK in pinned else None


def _may_be_pinned(link: Link) -> bool:
    """Bonds and bridges always are. Drivers pin the card that has an embedded switch below it (mlx5 since
    Linux 6.3, ``mlx5e_fix_uplink_rep_features``)."""
    return link.kind in ("bond", "bridge") or bool(link.phys_switch_id)


def _read_addresses(
    rtnl: NetlinkSocket, ifindexes: Iterable[int], names: Mapping[int, str], warnings: list[str]
) -> Mapping[int, tuple[Address, ...]]:
    """The addresses of these links, each asked for by itself; 0 is all links in one dump."""
    by_link: dict[int, list[Address]] = defaultdict(list)
    for ifindex in ifindexes:
        try:
            payloads = rtnl.dump(dump_addresses_request(ifindex))
        except KernelError as error:
            if error.errno == errno.ENODEV:
                continue  # it went a moment ago; the notification of that is on its way
            raise
        for index, address in decode_all(partial(parse_address, names=names), payloads, warnings):
            if ifindex in (0, index):  # before Linux 5.0 all links' come
                by_link[index].append(address)
    return {index: tuple(addresses) for index, addresses in by_link.items()}


def _parse_and_complete(
    rtnl: NetlinkSocket, payloads: Iterable[bytes], surroundings: Surroundings, warnings: list[str]
) -> list[Link]:
    links = decode_all(partial(parse_link, surroundings=surroundings), payloads, warnings)
    worth = [link for link in links if _is_worth_details(link)]
    if not worth:
        return links
    indexes = [link.ifindex for link in worth]
    settings = read_link_settings(indexes, warnings)
    drivers = read_driver_infos([link.ifname for link in worth], warnings)
    programs = read_link_programs(rtnl, indexes, warnings)
    detailed = {
        link.ifindex: _with_details(
            link,
            settings.get(link.ifindex, LinkSettings()),
            drivers.get(link.ifname, DriverInfo()),
            programs.get(link.ifindex, LinkPrograms(None, None)),
        )
        for link in worth
    }
    return [detailed.get(link.ifindex, link) for link in links]


def _is_worth_details(link: Link) -> bool:
    return link.kind not in UNDETAILED_KINDS and not link.is_loopback


def _with_details(link: Link, settings: LinkSettings, driver: DriverInfo, programs: LinkPrograms) -> Link:
    return replace(
        link,
        driver=driver.driver,
        driver_version=driver.version,
        firmware=driver.firmware,
        speed_mbps=settings.speed_mbps,
        duplex=settings.duplex,
        queues=settings.queues,
        tc_filters=programs.tc_filters,
        tcx_programs=programs.tcx_programs,
    )


class NodeScanner:
    """Scans the node again and again. Not safe for threads, but the thread may be another each time."""

    is_live = True

    def __init__(self, sysfs_root: Path, procfs_root: Path, *, pci_ids: Path | None = None) -> None:
        self._sysfs_root, self._procfs_root = sysfs_root, procfs_root
        self._hardware = HardwareReader(sysfs_root, procfs_root, pci_ids)
        self._links = LinkTable()
        self._targets: tuple[ProtectedAddress, ...] = ()
        self._facts = NodeFacts()
        self._owed = EVERYTHING
        """What the last complete read does not show yet; a read that fails leaves it for the next."""

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        """What the next reads look for; any thread may call this."""
        self._targets = tuple(targets)

    def read(self, changes: Changes = EVERYTHING) -> NodeFacts:
        """Return the facts of the calling thread's network namespace; ``changes`` are read again.

        The result equals what a full read would give, as far as ``changes`` names what happened. Facts that
        read as before are the same objects; warnings stay until the next full read.

        Raises:
            KernelError: netlink itself failed; what was asked for is read again with the next call.
        """
        self._owed |= changes
        facts = self._read_all() if self._owed.everything else self._read_changed(self._owed)
        self._owed = Changes()
        self._facts = facts
        return facts

    def _read_all(self) -> NodeFacts:
        sysfs = PseudoFiles(self._sysfs_root, self._missing_mounts())
        with NetlinkSocket.open() as rtnl:
            self._links.read_all(rtnl, sysfs)
            routing = read_routing(rtnl, sysfs.warnings)
            facts = self._merge(rtnl, routing, self._hardware.read(sysfs.warnings))
        exclusive = sysfs.has(RDMA_CLASS) and read_netns_exclusive(sysfs.warnings)
        return replace(facts, rdma_netns_exclusive=exclusive, warnings=_once(sysfs.warnings))

    def _missing_mounts(self) -> list[str]:
        """Report missing roots: without these files a node looks like one without cards."""
        roots = {"sysfs": self._sysfs_root, "procfs": self._procfs_root}
        return [
            f"no {name} at {root}: its facts about PCI, RDMA, GPUs and NUMA are missing; is it mounted there?"
            for name, root in roots.items()
            if not root.is_dir()
        ]

    def _read_changed(self, changes: Changes) -> NodeFacts:
        """The RDMA mode is not read again: it changes only while there is no other namespace, thus no pod."""
        sysfs = PseudoFiles(self._sysfs_root, [])
        last = self._facts
        with NetlinkSocket.open() as rtnl:
            touched = self._read_links(rtnl, changes, sysfs)
            routing = self._read_routing(rtnl, changes, sysfs.warnings)
            hardware = self._hardware.read(sysfs.warnings, changes.hardware, touched)
            facts = self._merge(rtnl, routing, hardware)
        warnings = _once((*last.warnings, *sysfs.warnings))
        return replace(facts, rdma_netns_exclusive=last.rdma_netns_exclusive, warnings=warnings)

    def _read_links(self, rtnl: NetlinkSocket, changes: Changes, sysfs: PseudoFiles) -> frozenset[str]:
        """Names of the links that were read, as of now and as of the last complete read: one that failed
        since then has changed the table already."""
        if changes.all_links:
            self._links.read_all(rtnl, sysfs)
            return frozenset(link.ifname for link in (*self._facts.links, *self._links.links))
        if not changes.links:
            return frozenset()
        before = [link.ifname for link in self._facts.links if link.ifindex in changes.links]
        return self._links.read_again(rtnl, changes.links, sysfs).union(before)

    def _read_routing(self, rtnl: NetlinkSocket, changes: Changes, warnings: list[str]) -> Routing:
        """Routes go without a notification when their link goes down or loses their source address. IPv4 is
        cheap to ask. IPv6 is asked when its default routes are among those that could have gone."""
        known = self._facts
        if changes.routes or changes.all_links:
            return read_routing(rtnl, warnings)
        if not changes.links:
            return Routing(known.default_routes, known.rules, known.policy_routes)
        ipv6 = [route for route in known.default_routes if ":" in route.destination]
        at_stake = any(route.source for route in ipv6) or outputs(ipv6) & changes.links
        default_routes = (
            *read_default_routes(rtnl, warnings, [4]),
            *(read_default_routes(rtnl, warnings, [6]) if at_stake else ipv6),
        )
        return Routing(default_routes, known.rules, read_policy_routes(rtnl, known.rules, warnings))

    def _merge(self, rtnl: NetlinkSocket, routing: Routing, hardware: Hardware) -> NodeFacts:
        links = self._links.links
        return NodeFacts(
            links=links,
            pci_functions=hardware.pci_functions,
            rdma_devices=hardware.rdma_devices,
            gpus=hardware.gpus,
            default_routes=tuple(routing.default_routes),
            rules=tuple(routing.rules),
            policy_routes=tuple(routing.policy_routes),
            protected_links=find_protected_links(rtnl, self._targets, links),
            numa_nodes=hardware.numa_nodes,
            host=hardware.host,
        )


def _once(warnings: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warnings))


def read_routing(rtnl: NetlinkSocket, warnings: list[str]) -> Routing:
    """Default routes, the rules that look up other tables, and what these tables lead to. For the calling
    thread's namespace, which must be the socket's."""
    rules = read_rules(rtnl, warnings)
    return Routing(read_default_routes(rtnl, warnings), rules, read_policy_routes(rtnl, rules, warnings))


def read_rules(rtnl: NetlinkSocket, warnings: list[str]) -> tuple[RoutingRule, ...]:
    """The rules that look up a table other than local and main, IPv4 first."""
    payloads = (
        payload
        for family in (4, 6)
        for payload in rtnl.dump(dump_rules_request(family))
        # A kernel without the family answers with the rules of all families.
        if payload[:1] == bytes([FAMILIES[family]]) and not is_of_local_or_main(payload)
    )
    return tuple(decode_all(parse_lookup, payloads, warnings))


def read_policy_routes(
    rtnl: NetlinkSocket, rules: Iterable[RoutingRule], warnings: list[str]
) -> tuple[Route, ...]:
    """What the tables that ``rules`` look up lead to: default routes; and, of a table that a rule looks up
    for one source, one other route for each output."""
    tables: dict[tuple[int, int], bool] = {}
    for rule in rules:
        key = rule.family, rule.table
        tables[key] = tables.get(key, False) or rule.is_from_one_address
    return tuple(
        route
        for (family, table), by_source in sorted(tables.items())
        for route in _read_table(rtnl, FAMILIES[family], table, warnings, only_defaults=not by_source)
    )


def read_default_routes(
    rtnl: NetlinkSocket, warnings: list[str], versions: Iterable[int] = (4, 6)
) -> tuple[Route, ...]:
    """Main-table default routes of these IP versions, with every metric and next hop. IPv4 costs the same
    with a whole Internet in the table, IPv6 some 2 microseconds for each route of it."""
    tables = (_read_table(rtnl, FAMILIES[version], RT_TABLE_MAIN, warnings) for version in versions)
    return tuple(chain.from_iterable(tables))


def _read_table(
    rtnl: NetlinkSocket, family: int, table: int, warnings: list[str], *, only_defaults: bool = True
) -> tuple[Route, ...]:
    payloads: Iterable[bytes] = _dump_table(rtnl, dump_routes_request(family, table=table), only_defaults)
    if only_defaults:
        payloads = filter(is_default_route, payloads)
    # A kernel without the family answers with the routes of all families: keep our own only.
    own = (payload for payload in one_for_each_output(payloads) if payload[:1] == bytes([family]))
    routes = parse_routes(rtnl, own, warnings)
    return tuple(route for route in routes if route.table == table and route.type == RTN_UNICAST)


def _dump_table(rtnl: NetlinkSocket, request: Request, only_defaults: bool) -> list[bytes]:
    """Empty where the kernel has not made the table yet: it does so with the first route."""
    try:
        if not only_defaults or request.body[:1] != bytes([socket.AF_INET]):
            return rtnl.dump(request)
        with NetlinkSocket.open() as rest:  # an IPv4 table begins with them; the rest ends with the socket
            return rest.dump_start(request, is_beyond_default_routes)
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return []
        raise


# --- protected addresses -------------------------------------------------------------------------------
# The node's own are searched among the links. For others the kernel returns the route that it would take,
# including policy rules; every next hop of a multipath route counts.


class ProtectedAddress(Struct, frozen=True):
    """One address that the node must keep reaching. A text that is not an IP address has no link."""

    purpose: str
    """Reads after "carries": ``the route to the API server``, ``the node's address``."""
    address: str
    is_own: bool
    """Find the link that has the address; else ask the kernel for the route to it."""

    @property
    def packed(self) -> bytes:
        """4 or 16 bytes; empty for what is no address."""
        try:
            return ip_address(self.address).packed
        except ValueError:
            return b""


def find_protected_links(
    rtnl: NetlinkSocket, targets: Sequence[ProtectedAddress], links: Iterable[Link]
) -> tuple[ProtectedLink, ...]:
    """Return one entry for each link that carries a target. Unreachable addresses have none."""
    addresses = ((link.ifindex, address) for link in links for address in link.addresses)
    return (*_at_own(targets, addresses), *_by_route(rtnl, targets))


def read_protected_links(
    rtnl: NetlinkSocket, targets: Sequence[ProtectedAddress]
) -> tuple[ProtectedLink, ...]:
    """As :func:`find_protected_links` without knowing the links: the kernel is asked for their addresses."""
    own = [target.packed for target in targets if target.is_own and target.packed]
    payloads = rtnl.dump(dump_addresses_request()) if own else []
    worth = (payload for payload in payloads if any(packed in payload for packed in own))
    return (
        *_at_own(targets, decode_all(partial(parse_address, names={}), worth, [])),
        *_by_route(rtnl, targets),
    )


def _at_own(
    targets: Iterable[ProtectedAddress], addresses: Iterable[tuple[int, Address]]
) -> Iterator[ProtectedLink]:
    wanted = {_as_the_kernel_prints(t.packed): t for t in targets if t.is_own and t.packed}
    for ifindex, address in addresses if wanted else ():
        target = wanted.get(address.cidr.partition("/")[0])
        if target is not None:
            yield ProtectedLink(target.purpose, target.address, ifindex)


def _by_route(rtnl: NetlinkSocket, targets: Iterable[ProtectedAddress]) -> Iterator[ProtectedLink]:
    """A refusal means that there is no route now; a notification reports a new one."""
    others = [target for target in targets if target.packed and not target.is_own]
    outcomes = rtnl.batch([find_route_request(target.address) for target in others])
    for target, outcome in zip(others, outcomes, strict=True):
        answers = () if isinstance(outcome, KernelError) else outcome
        routes = parse_routes(rtnl, (message.payload for message in answers), [])
        ways = outputs(routes) | ({0} if any(map(is_untold, routes)) else set())
        yield from (ProtectedLink(target.purpose, target.address, index) for index in sorted(ways))


def _as_the_kernel_prints(packed: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)

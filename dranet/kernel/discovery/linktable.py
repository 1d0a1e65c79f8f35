"""The links of a namespace with their addresses and details: all at once, or only those that changed.

Links and addresses come in one dump each, details in a few; sysfs is read only where netlink does not
name the device behind a link. A link that reads as before stays the same object, so that
readers recognise by identity what did not change.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.discovery.programs import LinkPrograms, read_link_programs
from dranet.kernel.ethtool.messages import DriverInfo, LinkSettings, read_driver_infos, read_link_settings
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import dump_addresses_request, parse_address
from dranet.kernel.netlink.rtnl import (
    Surroundings,
    decode_all,
    dump_links_request,
    get_link_request,
    parse_link,
    parse_link_name,
    reports_netns_immutable,
    stay_request,
)
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Address, Link

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

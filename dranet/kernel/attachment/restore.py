"""Record the whole state of a link at Prepare, and restore it on the host at release.

To restore it the link is read, the differences are requested in the order that the kernel needs, and the link
is read again. What still differs gets a second round, because some settings depend on others (coming up
resets the IPv6 MTU; some drivers accept ring sizes only then). A link without differences is not touched.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.hardware import HARDWARE, read_program_names, remove_programs
from dranet.kernel.attachment.links import (
    LinkDetails,
    Side,
    check_is_free,
    has_route,
    open_host_side,
    parse_link_details,
    read_addresses,
    read_link_message,
    read_neighbours,
    read_restorable_routes,
    read_routes,
)
from dranet.kernel.attachment.properties import (
    Difference,
    RestoreRequest,
    find_differences,
    iter_extra_address_requests,
    iter_link_requests,
    iter_network_requests,
    iter_traffic_requests,
)
from dranet.kernel.namespaces.netns import open_sysfs
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.socket import attribute_text, attribute_u16, nested
from dranet.kernel.netlink.tc import read_filters, read_traffic_control
from dranet.kernel.sysfs.files import (
    PseudoFiles,
    link_sysctl_path,
    nearest_pci_address,
    read_boot_clock,
    read_link_sysctls,
    write_sysctl,
)
from dranet.model.facts import RTNH_F_ONLINK, Address, Link, Route
from dranet.model.plan import RECORD_VERSION, WHOLE_STATE_VERSION, IpoibState, LinkState

# --- the state of a link --------------------------------------------------------------------------------


class Present(Struct, frozen=True):
    link: Link
    details: LinkDetails
    state: LinkState


def read_link_state(ifname: str) -> LinkState:
    """Record a link of the calling thread's network namespace, all of it: some 3 ms. A ``DeviceError`` if it
    does not exist (``DeviceNotFound``), or is enslaved, carries other links or has what could not be restored
    (``DeviceBusy``)."""
    with open_host_side() as side:
        found = _read_link(side, ifname=ifname)
        if found is None:
            raise DeviceError(f"link {ifname} is not on this node")
        link, details = found
        check_is_free(side.rtnl, link)
        _check_restorable(link, details)
        return _read_state(side, link, details, read_routes(side.rtnl, link), None)


def _check_restorable(link: Link, details: LinkDetails) -> None:
    if details.oddities:
        settings = ", ".join(f"{what} {value}" for what, value in details.oddities.items())
        raise DeviceError(
            f"link {link.ifname} has settings that could not be restored: {settings}",
            hint="put them back to the kernel's defaults or choose another device",
            reason=Reason.DEVICE_BUSY,
        )


def _read_link(side: Side, ifindex: int = 0, ifname: str = "") -> tuple[Link, LinkDetails] | None:
    payload = read_link_message(side.rtnl, ifindex, ifname)
    if payload is None:
        return None
    link = rtnl.decode(rtnl.parse_link, payload)
    return link, rtnl.decode(partial(parse_link_details, link=link), payload)


def _read_state(
    side: Side, link: Link, details: LinkDetails, routes: tuple[Route, ...], recorded: LinkState | None
) -> LinkState:
    traffic = read_traffic_control(side.rtnl, link.ifindex)
    # Filters need a qdisc; without one there are no filters.
    filters = read_filters(side.rtnl, link.ifindex) if traffic else ()
    return LinkState(
        ifindex=link.ifindex,
        ifname=link.ifname,
        mac=link.mac,
        mtu=link.mtu,
        up=link.is_up,
        permanent_mac=link.permanent_mac,
        alias=link.alias,
        tx_queue_length=link.tx_queue_length,
        group=link.group,
        addresses=read_addresses(side.rtnl, link),
        routes=routes,
        neighbours=read_neighbours(side.rtnl, link),
        parent_device=link.parent_device,
        version=RECORD_VERSION,
        altnames=link.altnames,
        promiscuous=bool(link.flags & rtnl.IFF_PROMISC),
        all_multicast=bool(link.flags & rtnl.IFF_ALLMULTI),
        arp=not link.flags & rtnl.IFF_NOARP,
        multicast=bool(link.flags & rtnl.IFF_MULTICAST),
        offload_sizes=details.offload_sizes,
        token=details.token,
        traffic_control=traffic,
        programs=(*read_program_names(side, link.ifindex), *filters),
        sysctls=side.run(lambda: read_link_sysctls(link.ifname)),
        read_at=read_boot_clock(),
        **{
            field: part.read(side, link, getattr(recorded, field) if recorded else None)
            for field, part in HARDWARE.items()
        },
    )


# --- expiry of recorded addresses -----------------------------------------------------------------------
# A DHCP server or a router lends an address for a time, which continues while a pod has the link. When it
# has passed, another host may have the address, so it is not restored (RFC 2131, 4.4.5; RFC 4862, 5.5.4).
# The host loses nothing: to the programs that requested the address (systemd-networkd, NetworkManager,
# dhcpcd, the kernel) the returning link is new, and they request one again.


_Interfaces = Collection[IPv4Interface | IPv6Interface]


def age_state(state: LinkState, now: float) -> LinkState:
    """Subtract the elapsed time from the lifetimes, ``now`` seconds after boot. Drops addresses that expired,
    routes that need them, and routes that a program makes from router advertisements."""
    elapsed = 0 if state.read_at is None else max(0, int(now - state.read_at))
    aged = [_age(address, elapsed) for address in state.addresses]
    left = tuple(address for address in aged if address.valid_seconds != 0)
    ended = [address for address in aged if address.valid_seconds == 0]
    routes = [route for route in state.routes if route.protocol != rtnl.RTPROT_RA]
    on_link = {route.destination for route in routes if not route.gateway}
    reached = [*map(_interface, left), *map(ip_interface, on_link)]
    kept = (route for route in routes if not _needs(route, [*map(_interface, ended)], reached))
    return replace(state, addresses=left, routes=tuple(kept))


def _age(address: Address, elapsed: int) -> Address:
    lifetimes = (address.valid_seconds, address.preferred_seconds)
    valid, preferred = (None if seconds is None else max(0, seconds - elapsed) for seconds in lifetimes)
    return replace(address, valid_seconds=valid, preferred_seconds=preferred)


def _needs(route: Route, ended: _Interfaces, reached: _Interfaces) -> bool:
    """Whether a route has an expired address as its source, or reaches its gateway only through one."""
    if route.source and ip_address(route.source) in {interface.ip for interface in ended}:
        return True
    if not route.gateway or route.flags & RTNH_F_ONLINK:
        return False
    gateway = ip_address(route.gateway)
    return _is_in(gateway, ended) and not _is_in(gateway, reached)


def _is_in(gateway: object, interfaces: _Interfaces) -> bool:
    return any(gateway in interface.network for interface in interfaces)


def _interface(address: Address) -> IPv4Interface | IPv6Interface:
    return ip_interface(address.peer or address.cidr)


# --- restoring it ---------------------------------------------------------------------------------------

_ROUNDS = 2

_SECRET, _ADDRESS_MODE = "ipv6/conf/stable_secret", "ipv6/conf/addr_gen_mode"
_FIRST_SYSCTLS = (_SECRET, _ADDRESS_MODE, "ipv6/conf/disable_ipv6")
"""In this order: a secret changes the way of making addresses, which has to be right before IPv6 is up."""
_IPV6_MTU = "ipv6/conf/mtu"

_ROUTER_SYSCTLS = {"ipv6/conf/accept_ra": "2", "ipv6/conf/router_solicitations": "1"}
"""Without listening to routers, and asking them, the kernel takes no token."""


_OPERATIONAL = ("up", "unknown")
"""Operational states in which IPv6 is configured; software links without a carrier report the second."""

_RECORDED_LATER = (
    "altnames", "promiscuous", "all_multicast", "arp", "multicast", "token", "programs"
)  # fmt: skip
"""What an earlier driver did not record and where "nothing" would be a setting: neither a move nor the
restore changes it."""

_STAYING_PROGRAMS = ("xdp ", "tcx ")
"""What the names of those start with that stay on a link when it moves (``hardware.read_program_names``)."""


def restore_link(side: Side, link: Link, state: LinkState) -> list[str]:
    """Bring ``link`` to ``state`` as far as the kernel allows; returns what still differs, one line each,
    with the kernel's error if it refused. Lines also report programs: the node's that the move removed, and a
    tenant's, which are removed."""
    return _Restoring(side, link, state).run()


class _Restoring(Struct):
    side: Side
    link: Link
    """As it was found."""
    state: LinkState
    refusals: dict[str, KernelError] = field(default_factory=dict)
    """The kernel's errors, by what they are about."""
    hardware_refusals: dict[str, list[str]] = field(default_factory=dict)
    """The same, by the part of the card."""

    def run(self) -> list[str]:
        self.state = age_state(self.state, read_boot_clock())
        found = present = self._read()
        if self.state.version < WHOLE_STATE_VERSION:
            found_now = {name: getattr(present.state, name) for name in _RECORDED_LATER}
            self.state = replace(self.state, **found_now)
        leftovers = self._remove_leftovers(present)
        for _ in range(_ROUNDS):
            if not self._lines(present):
                break
            self._apply(present)
            present = self._read()
        has_moved = leftovers or present is not found  # a link that a pod had differs, if only by being down
        late = [*self._late(present), *leftovers, *self._lost(present)] if has_moved else []
        return [*self._lines(present), *late]

    def _read(self) -> Present:
        """The link as it is now, even if other links depend on it, with those settings in the card that the
        driver reported when the link was recorded."""
        found = _read_link(self.side, self.link.ifindex)
        if found is None:
            text = f"restore {self.state.ifname}: the link is gone"
            raise KernelError(text, errno=errno.ENODEV, operation="restore", link=self.state.ifname)
        link, details = found
        routes = read_restorable_routes(self.side.rtnl, link)
        return Present(link, details, _read_state(self.side, link, details, routes, self.state))

    def _lines(self, present: Present) -> list[str]:
        lines = [self._line(d) for d in find_differences(self.state, present.state, present.details)]
        for name in HARDWARE:
            left = self._hardware_difference(name, present.state)
            lines += dict.fromkeys((*left, *self.hardware_refusals.get(name, ())) if left else ())
        return lines

    def _hardware_difference(self, name: str, present: LinkState) -> list[str]:
        return HARDWARE[name].difference(getattr(self.state, name), getattr(present, name))

    def _line(self, difference: Difference) -> str:
        refusal = self.refusals.get(difference.what)
        return f"{refusal.message}; {difference.outcome}" if refusal else str(difference)

    def _late(self, present: Present) -> list[str]:
        """With the carrier, which may take seconds, the kernel sets the IPv6 MTU to that of the link."""
        wanted = self.state.sysctls.get(_IPV6_MTU, "")
        is_waiting = present.link.is_up and present.link.operstate not in _OPERATIONAL
        if not wanted or wanted == str(self.state.mtu) or not is_waiting:
            return []
        return [f"sysctl {_IPV6_MTU}: wanted {wanted}, and the kernel sets {self.state.mtu} with the carrier"]

    def _lost(self, present: Present) -> list[str]:
        lost = [name for name in self.state.programs if name not in present.state.programs]
        return [
            f"{name}: removed by the kernel when the device moved; its owner has to load it again"
            for name in lost
        ]

    # --- one round -------------------------------------------------------------------------------------

    def _apply(self, present: Present) -> None:
        self.refusals.clear()
        self._send(iter_link_requests(present.link, present.details, present.state, self.state))
        reached(Failpoint.RELEASE_LINK_NAMED)
        renamed = "name" not in self.refusals
        link = replace(present.link, ifname=self.state.ifname if renamed else present.link.ifname)
        listens = self._set_token(link, present.state)
        self._write_sysctls(link, present.state.sysctls, listens)  # IPv4 forwarding turns an offload off
        self._set_hardware(link, present.state, needs_up=False)
        self._send(iter_traffic_requests(link, present.state, self.state))
        reached(Failpoint.RELEASE_LINK_TUNED)
        addresses = read_addresses(self.side.rtnl, link)
        if self.link.ifname != self.state.ifname:  # it came back by itself, and others took it for a new one
            self._send(iter_extra_address_requests(link, addresses, self.state))
        self._send(iter_network_requests(link, addresses, self.state))
        self._set_hardware(link, present.state, needs_up=True)

    def _send(self, requests: Iterable[RestoreRequest]) -> None:
        sent = tuple(requests)
        outcomes = self.side.rtnl.batch([item.request for item in sent])
        for item, outcome in zip(sent, outcomes, strict=True):
            if not isinstance(outcome, KernelError):
                continue
            if (
                outcome.errno == errno.EEXIST
                and item.route
                and has_route(self.side.rtnl, self.link, item.route)
            ):
                continue
            self.refusals.setdefault(item.what, outcome)

    def _set_token(self, link: Link, present: LinkState) -> bool:
        """Set the IPv6 token; returns whether the link was made to listen to routers for it."""
        token = self.state.token
        if token == present.token:
            return False
        if token:
            self._write(link, _ROUTER_SYSCTLS)
        encoded = rtnl.ipv6_token_attribute(token)
        request = rtnl.set_link_request(link.ifindex, encoded, operation="set token", link=link.ifname)
        self._send([RestoreRequest("token", request)])
        return bool(token)

    def _write_sysctls(self, link: Link, present: Mapping[str, str], listens: bool) -> None:
        wanted = self.state.sysctls
        changed = set(_ROUTER_SYSCTLS) if listens else set()
        if wanted.get(_SECRET) != present.get(_SECRET):
            changed.add(_ADDRESS_MODE)
        order = dict.fromkeys((*(key for key in _FIRST_SYSCTLS if key in wanted), *wanted))
        differing = [key for key in order if present.get(key) != wanted[key] or key in changed]
        self._write(link, {key: wanted[key] for key in differing})

    def _write(self, link: Link, values: Mapping[str, str]) -> None:
        if values:
            self.refusals |= self.side.run(lambda: _write_link_sysctls(link.ifname, values))

    def _set_hardware(self, link: Link, present: LinkState, *, needs_up: bool) -> None:
        for name, part in HARDWARE.items():
            if part.needs_up != needs_up or not (needs_up or self._hardware_difference(name, present)):
                continue
            wanted, found = getattr(self.state, name), getattr(present, name)
            try:
                self.hardware_refusals[name] = part.restore(self.side, link, wanted, found)
            except KernelError as error:  # some drivers do not answer until the link is up: the second round
                self.hardware_refusals[name] = [error.message]

    # --- programs --------------------------------------------------------------------------------------

    def _remove_leftovers(self, present: Present) -> list[str]:
        """Remove a tenant's programs, which would see the packets of the link's next user. A move removes
        filters: those that are there now were made by a program on the host."""
        leftovers = [
            name
            for name in present.state.programs
            if name not in self.state.programs and name.startswith(_STAYING_PROGRAMS)
        ]
        if not leftovers:
            return []
        outcome = "it was removed"
        try:
            remove_programs(self.side, present.link.ifindex, present.link.ifname)
        except KernelError as error:
            outcome = error.message
        return [f"{leftover}: left on the link by its tenant; {outcome}" for leftover in leftovers]


def _write_link_sysctls(ifname: str, values: Mapping[str, str]) -> dict[str, KernelError]:
    """In the thread whose namespace the link is in; returns the refusals by what they are about."""
    refusals: dict[str, KernelError] = {}
    for key, value in values.items():
        try:
            write_sysctl(link_sysctl_path(ifname, key), value)
        except KernelError as error:
            refusals[f"sysctl {key}"] = error
    return refusals


# --- IPoIB interfaces of an RDMA device that moves to a pod ---------------------------------------------
# They are made by the IPoIB client of the RDMA device, which the kernel removes and adds again with each move
# (``rdma_dev_change_netns``): the interface is destroyed, and another one made, in the first namespace
# (before Linux 6.17) or in that of the RDMA device (since commit f1208b05574f). Either way the host has a
# bare one when the device is back. It is known by the PCI function and the port, which are all that stays.

IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST = 2, 3
"""``linux/if_link.h``."""
_KIND = "ipoib"


class _Found(NamedTuple):
    link: Link
    payload: bytes
    port: int


def read_ipoib_states(pci_address: str) -> tuple[IpoibState, ...]:
    """Record the IPoIB interfaces of a PCI function, in the calling thread's namespace. ``DeviceBusy``: one
    has children (partitions), which would end with it, or could not be restored."""
    with open_host_side() as home:
        links = _find_links(home, pci_address)
    for found in links:
        if found.link.lower:
            raise DeviceError(
                f"IPoIB interface {found.link.ifname} is on another one, and would be lost when the RDMA "
                "device moves",
                hint="delete it, or choose another device",
                reason=Reason.DEVICE_BUSY,
            )
    return tuple(
        IpoibState(read_link_state(found.link.ifname), found.port, *_parse_modes(found.payload))
        for found in links
    )


def restore_ipoib(home: Side, state: IpoibState, pci_address: str) -> list[str]:
    """Bring the interface that the kernel made again to its recorded state; returns what still differs."""
    found = _find(home, state, pci_address)
    if found is None:
        return [f"{state.link.ifname}: the kernel made no IPoIB interface again; is ib_ipoib loaded?"]
    link = found.link
    problems = _restore_modes(home, found, state)
    # The first bytes of the address are the number of the new queue pair, which the kernel chooses.
    wanted = replace(state.link, ifindex=link.ifindex, mac=link.mac, permanent_mac=link.permanent_mac)
    return [*problems, *restore_link(home, link, wanted)]


def find_ipoib(side: Side, state: IpoibState, pci_address: str) -> Link | None:
    """The interface that has the recorded one's place, under whatever name."""
    found = _find(side, state, pci_address)
    return found.link if found is not None else None


def _find(side: Side, state: IpoibState, pci_address: str) -> _Found | None:
    links = _find_links(side, pci_address)
    return next((found for found in links if not found.link.lower and found.port == state.port), None)


def _find_links(side: Side, pci_address: str) -> list[_Found]:
    found: list[_Found] = []
    with open_sysfs(side) as root:
        sysfs = PseudoFiles(root, [])
        for payload in side.rtnl.dump(rtnl.dump_links_request(_KIND)):
            link = rtnl.decode(rtnl.parse_link, payload)
            home = f"class/net/{link.ifname}"
            if link.kind == _KIND and nearest_pci_address(sysfs.home(home)) == pci_address:
                found.append(_Found(link, payload, sysfs.integer(f"{home}/dev_port") or 0))
    return found


def _parse_modes(payload: bytes) -> tuple[int | None, int | None]:
    found = rtnl.parse_link_data(payload, frozenset({IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST}))
    modes = {kind: int.from_bytes(value, sys.byteorder) for kind, value in found.items()}
    return modes.get(IFLA_IPOIB_MODE), modes.get(IFLA_IPOIB_UMCAST)


def _restore_modes(home: Side, found: _Found, state: IpoibState) -> list[str]:
    """Before the MTU, which the mode bounds."""
    present = _parse_modes(found.payload)
    wanted = ((IFLA_IPOIB_MODE, state.mode), (IFLA_IPOIB_UMCAST, state.user_multicast))
    changes = [
        attribute_u16(kind, value)
        for (kind, value), now in zip(wanted, present, strict=True)
        if value is not None and value != now
    ]
    if not changes:
        return []
    data = nested(rtnl.IFLA_INFO_DATA, *changes)
    info = nested(rtnl.IFLA_LINKINFO, attribute_text(rtnl.IFLA_INFO_KIND, _KIND), data)
    index, name = found.link.ifindex, state.link.ifname
    try:
        home.rtnl.request(rtnl.set_link_request(index, info, operation="set IPoIB mode", link=name))
    except KernelError as refusal:
        return [f"{state.link.ifname}: {refusal.message}"]
    return []

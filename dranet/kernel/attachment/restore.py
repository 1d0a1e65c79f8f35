"""Restore the state of a link on the host that Prepare recorded, and return what could not be restored.

The link is read, the differences are requested in the order that the kernel needs, and the link is read
again. What still differs gets a second round, because some settings depend on others (coming up resets the
IPv6 MTU; some drivers accept ring sizes only then). A link without differences is not touched.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.hardware import HARDWARE
from dranet.kernel.attachment.linkstate import has_route, read_addresses
from dranet.kernel.attachment.locate import Side
from dranet.kernel.attachment.programs import remove_programs
from dranet.kernel.attachment.properties import (
    Difference,
    RestoreRequest,
    find_differences,
    iter_extra_address_requests,
    iter_link_requests,
    iter_network_requests,
    iter_traffic_requests,
)
from dranet.kernel.attachment.record import Present, read_present
from dranet.kernel.netlink.inet import RTPROT_RA
from dranet.kernel.netlink.rtnl import ipv6_token_attribute, set_link_request
from dranet.kernel.sysfs.procfs import read_boot_clock
from dranet.kernel.sysfs.sysctl import link_sysctl_path, write_sysctl
from dranet.model.facts import RTNH_F_ONLINK, Address, Link, Route
from dranet.model.plan import WHOLE_STATE_VERSION, LinkState

# --- expiry of recorded addresses -----------------------------------------------------------------------
# A DHCP server or a router lends an address for a time, which continues while a pod has the link. When it
# has passed, another host may have the address, so it is not restored (RFC 2131, 4.4.5; RFC 4862, 5.5.4).
# The host loses nothing: to the programs that requested the address (systemd-networkd, NetworkManager,
# dhcpcd, the kernel) the returning link is new, and they request one again.


def age_state(state: LinkState, now: float) -> LinkState:
    """Subtract the elapsed time from the lifetimes, ``now`` seconds after boot.

    Drops addresses that expired, routes that need them, and routes that a program makes from router
    advertisements.
    """
    elapsed = 0 if state.read_at is None else max(0, int(now - state.read_at))
    aged = [_age(address, elapsed) for address in state.addresses]
    left = tuple(address for address in aged if address.valid_seconds != 0)
    ended = [address for address in aged if address.valid_seconds == 0]
    routes = [route for route in state.routes if route.protocol != RTPROT_RA]
    on_link = {route.destination for route in routes if not route.gateway}
    reached = [*map(_interface, left), *map(ip_interface, on_link)]
    kept = (route for route in routes if not _needs(route, [*map(_interface, ended)], reached))
    return replace(state, addresses=left, routes=tuple(kept))


def _age(address: Address, elapsed: int) -> Address:
    valid, preferred = address.valid_seconds, address.preferred_seconds
    return replace(
        address,
        valid_seconds=None if valid is None else max(0, valid - elapsed),
        preferred_seconds=None if preferred is None else max(0, preferred - elapsed),
    )


def _needs(
    route: Route,
    ended: Collection[IPv4Interface | IPv6Interface],
    reached: Collection[IPv4Interface | IPv6Interface],
) -> bool:
    """Whether a route has an expired address as its source, or reaches its gateway only through one."""
    if route.source and ip_address(route.source) in {interface.ip for interface in ended}:
        return True
    if not route.gateway or route.flags & RTNH_F_ONLINK:
        return False
    gateway = ip_address(route.gateway)
    return _is_in(gateway, ended) and not _is_in(gateway, reached)


def _is_in(gateway: object, interfaces: Collection[IPv4Interface | IPv6Interface]) -> bool:
    return any(gateway in interface.network for interface in interfaces)


def _interface(address: Address) -> IPv4Interface | IPv6Interface:
    return ip_interface(address.peer or address.cidr)


_ROUNDS = 2

_SECRET, _ADDRESS_MODE = "ipv6/conf/stable_secret", "ipv6/conf/addr_gen_mode"
_FIRST_SYSCTLS = (_SECRET, _ADDRESS_MODE, "ipv6/conf/disable_ipv6")
"""In this order: a secret changes the way of making addresses, which has to be right before IPv6 is up."""
_IPV6_MTU = "ipv6/conf/mtu"

_ROUTER_SYSCTLS = {"ipv6/conf/accept_ra": "2", "ipv6/conf/router_solicitations": "1"}
"""Without listening to routers, and asking them, the kernel takes no token."""


_OPERATIONAL = ("up", "unknown")
"""Operational states in which IPv6 is configured; software links without a carrier report the second."""

_STAYING_PROGRAMS = ("xdp ", "tcx ")
"""What the names of those start with that stay on a link when it moves (``programs.read_program_names``)."""


def restore_link(side: Side, link: Link, state: LinkState) -> list[str]:
    """Bring ``link`` to ``state`` as far as the kernel allows; returns what still differs, one line each.

    A line has what was wanted and what was found, after the kernel's error if it refused the request. Lines
    also report programs: those of the node that the move removed, and those that a tenant left on the link,
    which are removed.

    Raises:
        KernelError: netlink itself failed, or the link is gone.
    """
    return _Restoring(side, link, state).run()


class _Restoring(Struct):
    """One call of :func:`restore_link`."""

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
            self.state = _fill_in(self.state, present.state)
        leftovers = self._remove_leftovers(present)
        for _ in range(_ROUNDS):
            if not self._lines(present):
                break
            self._apply(present)
            present = self._read()
        has_moved = (
            bool(leftovers) or present is not found
        )  # a link that a pod had differs, if only by being down
        late = [*self._iter_late(present), *leftovers, *self._iter_lost(present)] if has_moved else []
        return [*self._lines(present), *late]

    def _read(self) -> Present:
        present = read_present(self.side, self.link.ifindex, self.state)
        if present is None:
            text = f"restore {self.state.ifname}: the link is gone"
            raise KernelError(text, errno=errno.ENODEV, operation="restore", link=self.state.ifname)
        return present

    def _lines(self, present: Present) -> list[str]:
        """Return the remaining differences, one line each."""
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

    def _iter_late(self, present: Present) -> list[str]:
        """With the carrier, which may take seconds, the kernel sets the IPv6 MTU to that of the link."""
        wanted = self.state.sysctls.get(_IPV6_MTU, "")
        is_waiting = present.link.is_up and present.link.operstate not in _OPERATIONAL
        if not wanted or wanted == str(self.state.mtu) or not is_waiting:
            return []
        return [f"sysctl {_IPV6_MTU}: wanted {wanted}, and the kernel sets {self.state.mtu} with the carrier"]

    def _iter_lost(self, present: Present) -> list[str]:
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
            if isinstance(outcome, KernelError) and not self._has_route(item.route, outcome):
                self.refusals.setdefault(item.what, outcome)

    def _has_route(self, route: Route | None, refusal: KernelError) -> bool:
        is_route = refusal.errno == errno.EEXIST and route is not None
        return is_route and route is not None and has_route(self.side.rtnl, self.link, route)

    def _set_token(self, link: Link, present: LinkState) -> bool:
        """Set the IPv6 token; returns whether the link was made to listen to routers for it."""
        token = self.state.token
        if token == present.token:
            return False
        if token:
            self._write(link, _ROUTER_SYSCTLS)
        encoded = ipv6_token_attribute(token)
        request = set_link_request(link.ifindex, encoded, operation="set token", link=link.ifname)
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
        """Remove a tenant's programs, which would see the packets of the next user of the link.

        A move removes filters: those that are there now were made by a program on the host.
        """
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


def _fill_in(state: LinkState, present: LinkState) -> LinkState:
    """Fill in what an earlier driver did not record and where "nothing" would be a setting: neither a move
    nor the restore changes it."""
    return replace(
        state,
        altnames=present.altnames,
        promiscuous=present.promiscuous,
        all_multicast=present.all_multicast,
        arp=present.arp,
        multicast=present.multicast,
        token=present.token,
        programs=present.programs,
    )


def _write_link_sysctls(ifname: str, values: Mapping[str, str]) -> dict[str, KernelError]:
    """In the thread whose namespace the link is in; returns the refusals by what they are about."""
    refusals: dict[str, KernelError] = {}
    for key, value in values.items():
        try:
            write_sysctl(link_sysctl_path(ifname, key), value)
        except KernelError as error:
            refusals[f"sysctl {key}"] = error
    return refusals

"""Take, renew and release an IPv4 lease on one link. It is taken at Prepare on the host's link, in the name
of the hardware address that the pod's link will have; renewed in the pod; released from the host."""

from __future__ import annotations

import errno
import math
import secrets
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, islice, repeat

from msgspec.structs import replace

from dranet.errors import KernelError, ProtocolError, Reason
from dranet.kernel.dhcp import message
from dranet.kernel.dhcp.message import Message, MessageType, leased_ip, seconds_left
from dranet.kernel.dhcp.wire import Wire
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import inet
from dranet.kernel.netlink.rtnl import (
    IFF_UP,
    RTNLGRP_LINK,
    decode,
    get_link_request,
    parse_link,
    set_link_request,
)
from dranet.kernel.netlink.socket import NETLINK_ROUTE, NetlinkSocket, Request, open_raw_socket
from dranet.model.facts import Address, Link
from dranet.model.plan import DhcpLease

# --- the exchange with DHCP servers on one link, until a lease or a deadline (RFC 2131, 3.1 and 4.4) ----
# The first usable offer wins. Messages are repeated after 1, 2 and 4 s with jitter, faster than RFC 2131,
# 4.1, because the kubelet waits. Answers that do not fit are skipped, and named if no better one comes.

_FIRST_WAITS_SECONDS = (1.0, 2.0)
_LAST_WAIT_SECONDS = 4.0
_JITTER = 0.25
"""Each wait is up to this part shorter or longer."""
_REQUESTS_PER_OFFER = 3
"""A server that offers and then falls silent is given up after so many."""
_MOST_OFFERS = 5
"""A server that offers and refuses, over and over, is given up after so many."""

_random = secrets.SystemRandom()


class _Refused(Exception):
    """A NAK, with the server's text."""


class _Silence(Exception):
    """No server answered, after all repetitions."""


class Exchange:
    """One client on one link. ``deadline`` is of ``time.monotonic``."""

    def __init__(self, link: Link, deadline: float) -> None:
        self._link = link
        self._deadline = deadline
        self._started = time.monotonic()
        self._sent = 0
        self._oddity = ""

    def acquire(self, mac: str, wanted: str = "") -> DhcpLease:
        """DISCOVER, OFFER, REQUEST, ACK; from the start again after a refusal."""
        for _ in range(_MOST_OFFERS):
            xid = secrets.randbits(32)
            try:
                with Wire(self._link, mac, xid) as wire:
                    return self._take(wire, xid, self._find_offer(wire, mac, xid, wanted))
            except _Refused as refusal:
                self._oddity = f"the server refused: {refusal}"
                wanted = ""
            except _Silence:
                if self._is_over:
                    break
        raise self._failure(f"no DHCP lease on {self._link.ifname}")

    def renew(self, lease: DhcpLease, *, any_server: bool) -> DhcpLease:
        """Only the server that gave a lease may withdraw it (``DHCPLeaseRefused``): a refusal of another
        server is skipped. The address keeps the prefix length that the link has, whatever mask the answer
        contains."""
        what = f"DHCP lease of {lease.address} on {self._link.ifname} is not renewed"
        asked_at = time.time()
        xid = secrets.randbits(32)

        to = () if any_server else (lease.server_mac, lease.server)

        def send() -> None:
            wire.send(message.request_more_time(xid, lease, self._seconds), *to)

        def read(server_mac: str, received: Message) -> DhcpLease | None:
            if received.server != lease.server and not any_server:
                return None
            try:
                return _read_renewal(server_mac, received, asked_at, lease)
            except _Refused as refusal:
                if received.server == lease.server:
                    raise
                self._oddity = f"the server {received.server}, which did not give it, refused: {refusal}"
                return None

        with Wire(self._link, lease.client_mac, xid) as wire:
            try:
                return self._ask(wire, lease.client_mac, send, read, _waits())
            except _Refused as refusal:
                text = f"{what}: its server has taken it back: {refusal}"
                raise self._failure(text, reason=Reason.DHCP_LEASE_REFUSED) from None
            except _Silence:
                raise self._failure(what) from None

    def _find_offer(self, wire: Wire, mac: str, xid: int, wanted: str) -> DhcpLease:
        def send() -> None:
            wire.send(message.discover(xid, mac, wanted, self._seconds))

        def read(server_mac: str, received: Message) -> DhcpLease | None:
            is_offer = received.type is MessageType.OFFER
            return message.read_lease(received, server_mac, time.time()) if is_offer else None

        return self._ask(wire, mac, send, read, _waits())

    def _take(self, wire: Wire, xid: int, offer: DhcpLease) -> DhcpLease:
        asked_at = time.time()

        def send() -> None:
            wire.send(message.request_offered(xid, offer, self._seconds))

        def read(server_mac: str, received: Message) -> DhcpLease | None:
            return _read_answer(server_mac, received, asked_at) if received.server == offer.server else None

        return self._ask(wire, offer.client_mac, send, read, islice(_waits(), _REQUESTS_PER_OFFER))

    def _ask(
        self,
        wire: Wire,
        mac: str,
        send: Callable[[], None],
        read: Callable[[str, Message], DhcpLease | None],
        waits: Iterator[float],
    ) -> DhcpLease:
        for wait in waits:
            if self._is_over:
                break
            send()
            self._sent += 1
            until = min(time.monotonic() + wait, self._deadline)
            while heard := wire.receive(until):
                server_mac, received = heard
                if not received.is_reply or received.client_mac != mac:
                    continue
                try:
                    lease = read(server_mac, received)
                except ProtocolError as error:
                    self._oddity = f"{received.type.name} from {server_mac} cannot be used: {error.message}"
                    continue
                if lease is not None:
                    return lease
            self._oddity = self._oddity or wire.oddity
        raise _Silence

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def _seconds(self) -> int:
        return int(time.monotonic() - self._started)

    def _failure(self, what: str, *, reason: Reason = Reason.DHCP_FAILED) -> KernelError:
        """Describe the failure; the number of attempts matters only if no server answered."""
        is_silence = reason is Reason.DHCP_FAILED
        elapsed = time.monotonic() - self._started
        asked = f": asked {self._sent} times within {elapsed:.1f} s" if is_silence else ""
        odd = f"; {self._oddity}" if is_silence and self._oddity else ""
        return KernelError(
            f"{what}{asked}{odd}",
            operation="speak DHCP",
            link=self._link.ifname,
            hint="is there a server or a relay in this link's network?" if is_silence and not odd else "",
            reason=reason,
        )


def _read_renewal(server_mac: str, received: Message, asked_at: float, lease: DhcpLease) -> DhcpLease | None:
    """As :func:`_read_answer`; another address is a refusal: that is another lease, not the one asked for."""
    renewed = _read_answer(server_mac, received, asked_at)
    if renewed is not None and leased_ip(renewed) != leased_ip(lease):
        raise _Refused(f"it gives {renewed.address} instead")
    return renewed and replace(renewed, address=lease.address)


def _read_answer(server_mac: str, received: Message, asked_at: float) -> DhcpLease | None:
    """Return the lease of an ACK; ``None`` for an answer that is neither ACK nor NAK."""
    if received.type is MessageType.NAK:
        raise _Refused(received.text or "NAK")
    if received.type is not MessageType.ACK:
        return None
    return message.read_lease(received, server_mac, asked_at)


def _waits() -> Iterator[float]:
    for seconds in chain(_FIRST_WAITS_SECONDS, repeat(_LAST_WAIT_SECONDS)):
        yield seconds * _random.uniform(1 - _JITTER, 1 + _JITTER)


# --- the link during the exchange -----------------------------------------------------------------------
# Prepare must leave no trace on a link that another claim may get: the link is set up for the exchange
# and restored afterwards. The recorded host state is read before or after it.

_ARPHRD_ETHER = 1
_NOTIFICATION_BYTES = 64 * 1024


@contextmanager
def raised(ifname: str, deadline: float) -> Iterator[Link]:
    """The link, up and with a carrier before ``deadline`` (monotonic); lowered afterwards if it was down."""
    with NetlinkSocket.open() as rtnl:
        link = read_link(rtnl, ifname)
        if link.is_up:
            yield _wait_for_carrier(rtnl, link, deadline)
            return
        kept = _read_what_a_lowered_link_loses(rtnl, link)
        _set_up(rtnl, link, up=True)
        try:
            yield _wait_for_carrier(rtnl, link, deadline)
        finally:
            _lower(rtnl, link, kept)


def read_link(rtnl: NetlinkSocket, ifname: str) -> Link:
    """An Ethernet link by name; other hardware speaks another DHCP (RFC 4390)."""
    (answer,) = rtnl.request(get_link_request(ifname=ifname))
    link = decode(parse_link, answer.payload)
    if link.arp_type != _ARPHRD_ETHER:
        raise KernelError(
            f"link {ifname} is no Ethernet link: DHCP is not available on it",
            operation="speak DHCP",
            link=ifname,
            hint="give interface.addresses instead",
            reason=Reason.MISSING_FEATURE,
            retryable=False,
        )
    return link


def read_addresses(rtnl: NetlinkSocket, link: Link) -> tuple[Address, ...]:
    """The addresses of the link but those that the kernel makes by itself."""
    parse = partial(inet.parse_address, names={link.ifindex: link.ifname})
    payloads = [
        p for p in rtnl.dump(inet.dump_addresses_request(link.ifindex)) if not inet.is_kernel_link_local(p)
    ]
    parsed = (decode(parse, payload) for payload in payloads)
    return tuple(found[1] for found in parsed if found is not None and found[0] == link.ifindex)


def _wait_for_carrier(rtnl: NetlinkSocket, link: Link, deadline: float) -> Link:
    with closing(open_raw_socket(NETLINK_ROUTE)) as news:
        news.bind((0, 1 << (RTNLGRP_LINK - 1)))
        news.setblocking(False)
        poll = select.poll()
        poll.register(news, select.POLLIN)
        while not (link := read_link(rtnl, link.ifname)).carrier:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise KernelError(
                    f"link {link.ifname} has no carrier: no DHCP server can be asked",
                    operation="speak DHCP",
                    link=link.ifname,
                    hint="is its cable or its other end up?",
                    reason=Reason.DHCP_FAILED,
                )
            with suppress(OSError):  # no more to read; or some were lost (ENOBUFS), also a change
                while news.recv(_NOTIFICATION_BYTES):
                    pass
        return link


def _set_up(rtnl: NetlinkSocket, link: Link, *, up: bool) -> None:
    operation = "raise" if up else "lower"
    flags = IFF_UP if up else 0
    rtnl.request(
        set_link_request(link.ifindex, operation=operation, link=link.ifname, flags=flags, change=IFF_UP)
    )


def _read_what_a_lowered_link_loses(rtnl: NetlinkSocket, link: Link) -> list[Request]:
    """Requests that give a link what the kernel takes from it as it goes down: IPv6 addresses, neighbours."""
    index, name = link.ifindex, link.ifname
    parse = partial(inet.parse_permanent_neighbour, ifindex=index)
    neighbours = (decode(parse, payload) for payload in rtnl.dump(inet.dump_neighbours_request(index)))
    return [
        *(inet.add_address_request(index, a, name) for a in read_addresses(rtnl, link) if ":" in a.cidr),
        *(inet.add_neighbour_request(index, n, name) for n in neighbours if n is not None),
    ]


def _lower(rtnl: NetlinkSocket, link: Link, kept: list[Request]) -> None:
    """Down again, if it is still here: the runtime's hook may have taken it meanwhile, up or not."""
    try:
        _set_up(rtnl, link, up=False)
    except KernelError:
        return
    rtnl.batch(kept)


ACQUIRE_SECONDS = 10.0
"""In all, the wait for a carrier included; the kubelet gives a batch of claims 45 s."""
RENEW_SECONDS = 4.0
"""One attempt; there are several before the lease ends."""
RELEASE_SECONDS = 2.0
"""Time for a carrier on a link that was down. A release has no answer to wait for."""
LAST_SECONDS = 2
"""The kernel counts whole seconds, and takes an address away up to a second late."""


def acquire_lease(
    ifname: str, mac: str, *, timeout_seconds: float = ACQUIRE_SECONDS, wanted: str = ""
) -> DhcpLease:
    """Take a lease on a link of the calling thread's namespace; the link is as it was afterwards. No link
    needs to have ``mac`` yet. ``wanted`` is an address of an earlier lease; the server may give another.
    ``DHCPFailed``: no carrier, server or usable answer in time; ``MissingFeature``: no Ethernet."""
    deadline = time.monotonic() + timeout_seconds
    with raised(ifname, deadline) as link:
        return Exchange(link, deadline).acquire(mac, wanted)


def renew_lease(
    lease: DhcpLease,
    netns: NetworkNamespace,
    pod_ifname: str,
    *,
    rebind: bool = False,
    timeout_seconds: float = RENEW_SECONDS,
) -> DhcpLease:
    """Renew a lease in the pod, and set the new lifetime of its address in the kernel there; with ``rebind``
    from any server. ``DHCPLeaseExpired``: the link no longer has the address; ``DHCPLeaseRefused``: its
    server has withdrawn the lease; ``DHCPFailed``: no answer."""
    deadline = time.monotonic() + timeout_seconds
    return netns.run(lambda: _renew_here(lease, pod_ifname, rebind, deadline))


def end_lease(lease: DhcpLease, netns: NetworkNamespace, pod_ifname: str, *, is_refused: bool) -> float:
    """Remove the address of an expired lease from the pod's link; a missing one is no error. One with time
    left on the kernel's monotonic clock stays, unless ``is_refused``: its server has withdrawn the lease.
    Returns the seconds that the address still has; 0: it is gone."""
    return netns.run(lambda: _end_here(lease, pod_ifname, is_refused))


def release_lease(lease: DhcpLease, ifname: str, *, timeout_seconds: float = RELEASE_SECONDS) -> None:
    """Send one release of the address to the server, from a link of the calling thread's namespace. If it
    cannot be sent, the lease ends by itself at its time."""
    with raised(ifname, time.monotonic() + timeout_seconds) as link:
        xid = secrets.randbits(32)
        with Wire(link, lease.client_mac, xid) as wire:
            wire.send(message.release(xid, lease), lease.server_mac, lease.server)


def _renew_here(lease: DhcpLease, ifname: str, rebind: bool, deadline: float) -> DhcpLease:
    with NetlinkSocket.open() as rtnl:
        link = read_link(rtnl, ifname)
        present = _find_present(rtnl, link, lease)
        if present is None:
            raise KernelError(
                f"the DHCP lease of {lease.address} has ended: {ifname} no longer has that address",
                operation="renew DHCP lease",
                link=ifname,
                reason=Reason.DHCP_LEASE_EXPIRED,
                retryable=False,
            )
        renewed = Exchange(link, deadline).renew(lease, any_server=rebind)
        left = seconds_left(renewed, time.time())
        address = replace(present, valid_seconds=left, preferred_seconds=left)
        rtnl.request(inet.add_address_request(link.ifindex, address, link.ifname))
        return renewed


def _end_here(lease: DhcpLease, ifname: str, is_refused: bool) -> float:
    with NetlinkSocket.open() as rtnl:
        link = read_link(rtnl, ifname)
        present = _find_present(rtnl, link, lease)
        if present is None:
            return 0.0
        left = math.inf if present.valid_seconds is None else present.valid_seconds
        if left > LAST_SECONDS and not is_refused:
            return left
        try:
            rtnl.request(inet.delete_address_request(link.ifindex, present, link.ifname))
        except KernelError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # the kernel was faster
                raise
        return 0.0


def _find_present(rtnl: NetlinkSocket, link: Link, lease: DhcpLease) -> Address | None:
    return next((found for found in read_addresses(rtnl, link) if found.cidr == lease.address), None)

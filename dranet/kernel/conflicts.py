"""Ask a link's network whether an address is in use: ARP probes (RFC 5227) and neighbour solicitations as
duplicate address detection sends them (RFC 4862).

A probe has no sender address, so it changes no neighbour table. A station that answers, or that probes for
the same address at the same time, is a conflict. Frames from the link's own hardware address do not count,
nor do answers of the node's own links for an address that the probed link has itself: the kernel answers for
any of its addresses on each link. One more probe asks for an address of documentation, which no station may
have (RFC 5737, RFC 3849): a router that answers for it answers for everything (proxy ARP), and its answers do
not count.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address

from msgspec import Struct

from dranet.errors import KernelError, Reason
from dranet.kernel.dhcp.client import raised, read_addresses
from dranet.kernel.dhcp.wire import checksum
from dranet.kernel.netlink.rtnl import decode, dump_links_request, mac_bytes, parse_link
from dranet.kernel.netlink.socket import NetlinkSocket, kernel_error
from dranet.model.facts import Link

PROBES = 3
INTERVAL_SECONDS = 0.2
"""RFC 5227 waits one to two seconds between probes; a pod that starts does not."""
LAST_WAIT_SECONDS = 0.4
CARRIER_SECONDS = 2.0
"""For a link that is down."""

_CONTROL_IPV4, _CONTROL_IPV6 = ip_address("192.0.2.1"), ip_address("2001:db8::1")

# linux/if_ether.h, linux/if_packet.h
ETH_P_ARP, ETH_P_IPV6, ETH_P_8021Q = 0x0806, 0x86DD, 0x8100
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_ALLMULTI, _PACKET_OUTGOING = 263, 1, 2, 4
_FRAME_MAX_BYTES = 2048
_MOST_FRAMES = 10_000

_ARP_REQUEST, _ARP_REPLY = 1, 2
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET = struct.Struct("!6s6sH")
_IPV6 = struct.Struct("!IHBB16s16s")
_ICMPV6 = 58
_SOLICITATION, _ADVERTISEMENT = 135, 136
_NEIGHBOUR = struct.Struct("!BBHI16s")
_NONCE_OPTION = 14
_NO_MAC = bytes(6)
_BROADCAST = b"\xff" * 6

IpAddress = IPv4Address | IPv6Address


class Conflict(Struct, frozen=True):
    address: str
    mac: str
    """The hardware address that has it, or wants it at the same time."""
    is_probe: bool = False
    """The other one only probes for it."""
    is_own_node: bool = False
    """The other one is a link of this node."""
    proxy: bool = False
    """The other one answers for every address: it need not have this one."""

    def describe(self) -> str:
        what = "is about to be used by" if self.is_probe else "is in use by"
        where = " (a link of this node)" if self.is_own_node else ""
        return f"{self.address} {what} {self.mac}{where}"


class Unprobed(Struct, frozen=True):
    """Why a link's network was not asked."""

    why: str


def find_conflicts(
    ifname: str, addresses: Sequence[str], is_moved: bool = True
) -> tuple[Conflict, ...] | Unprobed:
    """Probe for addresses (without prefix length) from a link of the calling thread's network namespace; the
    link is as it was afterwards. Takes about a second. ``is_moved``: the link itself will have them, so its
    own addresses are no conflict; a link on top of it must not have these. Raises KernelError."""
    deadline = time.monotonic() + CARRIER_SECONDS
    try:
        with raised(ifname, deadline) as link:
            return _probe(link, [ip_address(address) for address in addresses], is_moved)
    except KernelError as error:
        if error.reason is Reason.MISSING_FEATURE and error.link == ifname:
            return Unprobed(f"{ifname} is no Ethernet link")
        if error.reason is Reason.DHCP_FAILED:
            return Unprobed(f"{ifname} has no carrier")
        raise


def _probe(link: Link, wanted: Sequence[IpAddress], is_moved: bool) -> tuple[Conflict, ...]:
    with NetlinkSocket.open() as rtnl:
        own_macs = {found.mac for found in _read_links(rtnl)} - {""}
        already = {ip_address(found.cidr.partition("/")[0]) for found in read_addresses(rtnl, link)}
    heard: dict[tuple[IpAddress, str], bool] = {}
    with ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in _open(link, wanted)]
        nonce = struct.pack("!Q", time.monotonic_ns())[2:]
        targets = [*wanted, *_controls(wanted)]
        for attempt in range(PROBES):
            _send(sockets, link, targets, nonce)
            wait = INTERVAL_SECONDS if attempt + 1 < PROBES else LAST_WAIT_SECONDS
            _listen(sockets, link, frozenset(targets), nonce, time.monotonic() + wait, heard)
    own = () if is_moved else (address for address in wanted if address in already)
    held = [Conflict(str(address), link.mac, is_own_node=True) for address in own]
    return (*held, *_judge(heard, wanted, own_macs, already))


def _judge(
    heard: dict[tuple[IpAddress, str], bool],
    wanted: Sequence[IpAddress],
    own_macs: Collection[str],
    already: Collection[IpAddress],
) -> Iterator[Conflict]:
    proxies = {mac for (address, mac), _ in heard.items() if address in (_CONTROL_IPV4, _CONTROL_IPV6)}
    places = {address: place for place, address in enumerate(wanted)}
    found = [
        (places[address], mac, is_probe) for (address, mac), is_probe in heard.items() if address in places
    ]
    for place, mac, is_probe in sorted(found):
        address = wanted[place]
        is_own = mac in own_macs
        if not (is_own and address in already):
            yield Conflict(str(address), mac, is_probe, is_own, mac in proxies)


def _controls(wanted: Iterable[IpAddress]) -> Iterator[IpAddress]:
    """One of each IP version that is probed for, unless someone wants it for his own."""
    wanted = list(wanted)
    for control in (_CONTROL_IPV4, _CONTROL_IPV6):
        if control not in wanted and any(address.version == control.version for address in wanted):
            yield control


def _read_links(rtnl: NetlinkSocket) -> Iterator[Link]:
    for payload in rtnl.dump(dump_links_request()):
        yield decode(parse_link, payload)


def _open(link: Link, wanted: Iterable[IpAddress]) -> Iterator[socket.socket]:
    """A packet socket for each IP version; it sees what comes before any firewall."""
    versions = {address.version for address in wanted}
    for version, protocol in ((4, ETH_P_ARP), (6, ETH_P_IPV6)):
        if version not in versions:
            continue
        try:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        except OSError as error:
            raise _refused(error, link) from error
        try:
            if version == 6:
                request = struct.pack("=iHH8s", link.ifindex, _PACKET_MR_ALLMULTI, 0, b"")
                sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, request)
            sock.setblocking(False)
            sock.bind((link.ifname, protocol))
        except OSError as error:
            sock.close()
            raise _refused(error, link) from error
        yield sock


def _send(sockets: Iterable[socket.socket], link: Link, targets: Iterable[IpAddress], nonce: bytes) -> None:
    mac = mac_bytes(link.mac)
    frames = [
        (target.version, _build_arp(mac, target) if target.version == 4 else _build_ns(mac, target, nonce))
        for target in targets
    ]
    for sock in sockets:
        version = 4 if sock.getsockname()[1] == ETH_P_ARP else 6
        for _, frame in (found for found in frames if found[0] == version):
            try:
                sock.send(frame)
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.EAGAIN):  # as good as lost on the way
                    raise _refused(error, link) from error


def _listen(
    sockets: Sequence[socket.socket],
    link: Link,
    targets: Collection[IpAddress],
    nonce: bytes,
    deadline: float,
    heard: dict[tuple[IpAddress, str], bool],
) -> None:
    poll = select.poll()
    by_descriptor = {sock.fileno(): sock for sock in sockets}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    own = mac_bytes(link.mac)
    for _ in range(_MOST_FRAMES):
        left = deadline - time.monotonic()
        ready = poll.poll(left * 1000) if left > 0 else []
        if not ready:
            return
        for descriptor, _event in ready:
            try:
                frame, where = by_descriptor[descriptor].recvfrom(_FRAME_MAX_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _refused(error, link) from error
            if where[2] == _PACKET_OUTGOING:
                continue
            claim = parse_claim(frame, nonce)
            if claim is not None and claim[0] in targets and claim[1] != own:
                key = claim[0], claim[1].hex(":")
                heard[key] = heard.get(key, True) and claim[2]


def _refused(error: OSError, link: Link) -> KernelError:
    return kernel_error(
        error.errno or 0, "", "probe for addresses", link.ifname, needs="NET_RAW", call="socket"
    )


# --- frames ---


def _build_arp(mac: bytes, target: IpAddress) -> bytes:
    """An ARP probe: a request whose sender has no address (RFC 5227, 2.1.1)."""
    body = _ARP.pack(1, 0x0800, 6, 4, _ARP_REQUEST, mac, bytes(4), _NO_MAC, target.packed)
    return _ETHERNET.pack(_BROADCAST, mac, ETH_P_ARP) + body


def _build_ns(mac: bytes, target: IpAddress, nonce: bytes) -> bytes:
    """A solicitation from the unspecified address, with a nonce (RFC 4862, 5.4.2; RFC 7527)."""
    group = b"\xff\x02" + bytes(9) + b"\x01\xff" + target.packed[13:]
    option = struct.pack("!BB6s", _NONCE_OPTION, 1, nonce)
    body = _NEIGHBOUR.pack(_SOLICITATION, 0, 0, 0, target.packed) + option
    pseudo = bytes(16) + group + struct.pack("!II", len(body), _ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    header = _IPV6.pack(6 << 28, len(body), _ICMPV6, 255, bytes(16), group)
    return _ETHERNET.pack(b"\x33\x33" + group[12:], mac, ETH_P_IPV6) + header + body


def parse_claim(frame: bytes, nonce: bytes = b"") -> tuple[IpAddress, bytes, bool] | None:
    """The address that a frame's sender has or wants, its hardware address, and whether it only probes.
    ``None`` for all else, also for what is cut short."""
    try:
        _, source, protocol = _ETHERNET.unpack_from(frame)
        if protocol == ETH_P_ARP:
            return _parse_arp(frame[_ETHERNET.size :])
        return _parse_neighbour(source, frame[_ETHERNET.size :], nonce) if protocol == ETH_P_IPV6 else None
    except struct.error:
        return None


def _parse_arp(packet: bytes) -> tuple[IpAddress, bytes, bool] | None:
    hardware, protocol, hlen, plen, operation, sender, sender_ip, _, target_ip = _ARP.unpack_from(packet)
    is_ours = (hardware, protocol, hlen, plen) == (1, 0x0800, 6, 4)
    if not is_ours or operation not in (_ARP_REQUEST, _ARP_REPLY):
        return None
    if sender_ip != bytes(4):
        return IPv4Address(sender_ip), sender, False
    return (IPv4Address(target_ip), sender, True) if operation == _ARP_REQUEST else None


def _parse_neighbour(source: bytes, packet: bytes, nonce: bytes) -> tuple[IpAddress, bytes, bool] | None:
    first, length, following, hops, sender_ip, _ = _IPV6.unpack_from(packet)
    body = packet[_IPV6.size : _IPV6.size + length]
    kind, _, _, _, target = _NEIGHBOUR.unpack_from(body)
    if first >> 28 != 6 or following != _ICMPV6 or hops != 255:
        return None
    if kind == _ADVERTISEMENT:
        return IPv6Address(target), source, False
    is_dad = kind == _SOLICITATION and sender_ip == bytes(16)
    is_echo = bool(nonce) and body[_NEIGHBOUR.size :].endswith(nonce)
    return (IPv6Address(target), source, True) if is_dad and not is_echo else None

"""DHCPv4 messages between bytes and values (RFC 2131, 2132, 3396, 3442); no I/O. Input may be hostile: what
cannot be parsed, or could not be set on a link, raises ``ProtocolError`` with the reason."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from msgspec import Struct, field

from dranet.errors import ProtocolError
from dranet.kernel.netlink.rtnl import mac_bytes
from dranet.model.plan import DhcpLease

# --- lifetime of a leased address -----------------------------------------------------------------------

FOR_EVER = 0xFFFFFFFF
"""A lease time that never ends (RFC 2131, 3.3)."""


def leased_ip(lease: DhcpLease) -> str:
    return lease.address.partition("/")[0]


def seconds_left(lease: DhcpLease, now: float) -> int | None:
    """Seconds left of the lease at ``now`` (unix time), at least 0; ``None`` without an end."""
    if lease.lease_seconds == FOR_EVER:
        return None
    return max(0, min(lease.lease_seconds, int(lease.obtained_at + lease.lease_seconds - now)))


NO_ADDRESS = str(IPv4Address(0))

SHORTEST_LEASE_SECONDS = 10
"""Less than that cannot be renewed in time."""
MTU_MIN = 68
"""RFC 2132, 5.1."""

_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
_COOKIE = bytes((99, 130, 83, 99))
_BOOTREQUEST, _BOOTREPLY = 1, 2
_ETHERNET = 1
_BROADCAST_FLAG = 0x8000
_MESSAGE_MIN_BYTES = 300
"""BOOTP's fixed size; some relays drop what is shorter."""
_OPTION_MAX_BYTES = 255
_LARGEST_ANSWER_BYTES = 1472
"""What fits an Ethernet frame unfragmented."""
_SPECIAL = (IPv4Network("0.0.0.0/8"), IPv4Network("127.0.0.0/8"), IPv4Network("224.0.0.0/3"))


class MessageType(IntEnum):
    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


class Option(IntEnum):
    PAD = 0
    SUBNET_MASK = 1
    ROUTER = 3
    INTERFACE_MTU = 26
    REQUESTED_ADDRESS = 50
    LEASE_TIME = 51
    OVERLOAD = 52
    MESSAGE_TYPE = 53
    SERVER_ID = 54
    PARAMETER_LIST = 55
    TEXT = 56
    MAX_MESSAGE_SIZE = 57
    RENEWAL_TIME = 58
    REBINDING_TIME = 59
    CLIENT_ID = 61
    CLASSLESS_ROUTES = 121
    END = 255


_REQUESTED_OPTIONS = bytes(
    (
        Option.SUBNET_MASK,
        Option.CLASSLESS_ROUTES,  # before the router (RFC 3442)
        Option.ROUTER,
        Option.INTERFACE_MTU,
        Option.LEASE_TIME,
        Option.SERVER_ID,
        Option.RENEWAL_TIME,
        Option.REBINDING_TIME,
    )
)


class Message(Struct, frozen=True):
    """One message. Addresses are dotted text, ``0.0.0.0`` for none."""

    type: MessageType
    xid: int
    client_mac: str
    client_address: str = NO_ADDRESS
    """``ciaddr``: what the client has and uses."""
    your_address: str = NO_ADDRESS
    """``yiaddr``: what the server gives."""
    seconds: int = 0
    """Since the client began to ask."""
    broadcast: bool = False
    """The answer must not come to the hardware address: perhaps no link has it yet."""
    is_reply: bool = False
    options: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def server(self) -> str:
        return _address(self.options, Option.SERVER_ID) or NO_ADDRESS

    @property
    def text(self) -> str:
        """The server's text, usually the reason of a refusal; safe for a log."""
        return "".join(
            c if c.isprintable() else "?" for c in self.options.get(Option.TEXT, b"").decode("latin-1")
        )


# --- messages of a client ------------------------------------------------------------------------------


def discover(xid: int, mac: str, wanted: str = "", seconds: int = 0) -> Message:
    options = _asking(mac)
    if wanted:
        options[Option.REQUESTED_ADDRESS] = socket.inet_aton(wanted)
    return Message(MessageType.DISCOVER, xid, mac, seconds=seconds, broadcast=True, options=options)


def request_offered(xid: int, offered: DhcpLease, seconds: int = 0) -> Message:
    options = _asking(offered.client_mac)
    options[Option.REQUESTED_ADDRESS] = IPv4Interface(offered.address).ip.packed
    options[Option.SERVER_ID] = socket.inet_aton(offered.server)
    return Message(
        MessageType.REQUEST, xid, offered.client_mac, seconds=seconds, broadcast=True, options=options
    )


def request_more_time(xid: int, lease: DhcpLease, seconds: int = 0) -> Message:
    """May I keep what I have? (RENEWING, REBINDING.)"""
    return Message(
        MessageType.REQUEST,
        xid,
        lease.client_mac,
        client_address=leased_ip(lease),
        seconds=seconds,
        options=_asking(lease.client_mac),
    )


def release(xid: int, lease: DhcpLease) -> Message:
    options: dict[int, bytes] = {
        Option.CLIENT_ID: _client_id(lease.client_mac),
        Option.SERVER_ID: socket.inet_aton(lease.server),
    }
    return Message(
        MessageType.RELEASE, xid, lease.client_mac, client_address=leased_ip(lease), options=options
    )


def _asking(mac: str) -> dict[int, bytes]:
    return {
        Option.CLIENT_ID: _client_id(mac),
        Option.PARAMETER_LIST: _REQUESTED_OPTIONS,
        Option.MAX_MESSAGE_SIZE: struct.pack("!H", _LARGEST_ANSWER_BYTES),
    }


def _client_id(mac: str) -> bytes:
    """Hardware type and address (RFC 2132, 9.14): the same pod NIC gets the same address again."""
    return bytes((_ETHERNET,)) + mac_bytes(mac)


# --- the UDP payload ------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    mac = mac_bytes(message.client_mac)
    header = _HEADER.pack(
        _BOOTREPLY if message.is_reply else _BOOTREQUEST,
        _ETHERNET,
        len(mac),
        0,
        message.xid,
        min(message.seconds, 0xFFFF),
        _BROADCAST_FLAG if message.broadcast else 0,
        socket.inet_aton(message.client_address),
        socket.inet_aton(message.your_address),
        bytes(4),
        bytes(4),
        mac,
        b"",
        b"",
        _COOKIE,
    )
    options = {Option.MESSAGE_TYPE: bytes((message.type,)), **message.options}
    body = b"".join(_encode_option(code, value) for code, value in options.items())
    return (header + body + bytes((Option.END,))).ljust(_MESSAGE_MIN_BYTES, b"\0")


def _encode_option(code: int, value: bytes) -> bytes:
    """One option, in several parts where it is long (RFC 3396)."""
    starts = range(0, max(len(value), 1), _OPTION_MAX_BYTES)
    parts = (value[start : start + _OPTION_MAX_BYTES] for start in starts)
    return b"".join(bytes((code, len(part))) + part for part in parts)


def parse(data: bytes) -> Message:
    if len(data) < _HEADER.size:
        raise ProtocolError(f"DHCP message of {len(data)} bytes, at least {_HEADER.size} are needed")
    (op, hardware, size, _, xid, seconds, flags, client, your, _, _, mac, server_name, file, cookie) = (
        _HEADER.unpack_from(data)
    )
    if cookie != _COOKIE:
        raise ProtocolError("a BOOTP message without DHCP's magic cookie")
    if op not in (_BOOTREQUEST, _BOOTREPLY) or hardware != _ETHERNET or size != 6:
        raise ProtocolError(f"DHCP message with op {op}, hardware type {hardware} and address length {size}")
    options = _parse_all_options(data[_HEADER.size :], file, server_name)
    return Message(
        type=_message_type(options),
        xid=xid,
        client_mac=mac[:size].hex(":"),
        client_address=socket.inet_ntoa(client),
        your_address=socket.inet_ntoa(your),
        seconds=seconds,
        broadcast=bool(flags & _BROADCAST_FLAG),
        is_reply=op == _BOOTREPLY,
        options=options,
    )


def _parse_all_options(data: bytes, file: bytes, server_name: bytes) -> dict[int, bytes]:
    """The options, and those in two fields of the header if the message uses them (RFC 2132, 9.3)."""
    options: dict[int, bytes] = {}
    _parse_options(data, options)
    overload = options.get(Option.OVERLOAD, b"\0")
    if len(overload) != 1 or overload[0] > 3:
        raise ProtocolError(f"DHCP option overload is {overload.hex() or 'empty'}")
    if overload[0] & 1:
        _parse_options(file, options)
    if overload[0] & 2:
        _parse_options(server_name, options)
    return options


def _parse_options(data: bytes, options: dict[int, bytes]) -> None:
    """Add to ``options``; what comes several times is one option in parts (RFC 3396)."""
    offset = 0
    while offset < len(data) and data[offset] != Option.END:
        if data[offset] == Option.PAD:
            offset += 1
            continue
        end = offset + 2 + data[offset + 1] if offset + 1 < len(data) else len(data) + 1
        if end > len(data):
            raise ProtocolError(f"DHCP option {data[offset]} reaches beyond the message")
        options[data[offset]] = options.get(data[offset], b"") + data[offset + 2 : end]
        offset = end


def _message_type(options: Mapping[int, bytes]) -> MessageType:
    value = options.get(Option.MESSAGE_TYPE, b"")
    try:
        return MessageType(int.from_bytes(value))
    except ValueError:
        raise ProtocolError(f"DHCP message type is {value.hex() or 'missing'}") from None


# --- what a server gives -------------------------------------------------------------------------------


def read_lease(message: Message, server_mac: str, obtained_at: float) -> DhcpLease:
    """The lease that an OFFER or an ACK gives, from ``obtained_at`` on: when the client asked (unix time). A
    ``ProtocolError`` names what no link could have."""
    options = message.options
    lease_seconds = _read_seconds(options, Option.LEASE_TIME)
    if lease_seconds is None or lease_seconds < SHORTEST_LEASE_SECONDS:
        raise ProtocolError(
            f"lease time is {lease_seconds}, at least {SHORTEST_LEASE_SECONDS} seconds are needed"
        )
    server = _address(options, Option.SERVER_ID)
    if server is None:
        raise ProtocolError("no server identifier")
    renew, rebind = _times(options, lease_seconds)
    return DhcpLease(
        address=_leased_address(message),
        server=server,
        server_mac=server_mac,
        client_mac=message.client_mac,
        obtained_at=obtained_at,
        lease_seconds=lease_seconds,
        renew_seconds=renew,
        rebind_seconds=rebind,
        routers=_routers(options),
        classless_routes=parse_classless_routes(options.get(Option.CLASSLESS_ROUTES, b"")),
        mtu=_mtu(options),
    )


def parse_classless_routes(data: bytes) -> tuple[tuple[str, str], ...]:
    """(destination, gateway) of option 121; gateway 0.0.0.0 means that the destination is on the link."""
    routes: list[tuple[str, str]] = []
    offset = 0
    while offset < len(data):
        length = data[offset]
        octets = (length + 7) // 8
        gateway_at = offset + 1 + octets
        if length > 32 or gateway_at + 4 > len(data):
            raise ProtocolError(f"classless route {len(routes) + 1} of option 121 is malformed")
        network = IPv4Network((data[offset + 1 : gateway_at].ljust(4, b"\0"), length), strict=False)
        gateway = IPv4Address(data[gateway_at : gateway_at + 4])
        if str(gateway) != NO_ADDRESS and not _is_host_address(gateway):
            raise ProtocolError(f"gateway {gateway} of {network} in option 121 is no host's address")
        routes.append((str(network), str(gateway)))
        offset = gateway_at + 4
    return tuple(routes)


def _leased_address(message: Message) -> str:
    mask = message.options.get(Option.SUBNET_MASK, b"")
    bits = int.from_bytes(mask)
    length = bits.bit_count()
    if len(mask) != 4 or not bits or bits != (0xFFFFFFFF << (32 - length)) & 0xFFFFFFFF:
        raise ProtocolError(f"subnet mask is {mask.hex() or 'missing'}")
    address = IPv4Interface((message.your_address, length))
    ends = (address.network.network_address, address.network.broadcast_address)
    if not _is_host_address(address.ip) or (length < 31 and address.ip in ends):
        raise ProtocolError(f"{address} is no address for a host")
    return str(address)


def _is_host_address(address: IPv4Address) -> bool:
    return not any(address in network for network in _SPECIAL)


def _address(options: Mapping[int, bytes], code: Option) -> str | None:
    value = options.get(code)
    if value is None:
        return None
    if len(value) != 4 or not _is_host_address(IPv4Address(value)):
        raise ProtocolError(f"option {code} is {value.hex() or 'empty'}, which is no host's address")
    return socket.inet_ntoa(value)


def _routers(options: Mapping[int, bytes]) -> tuple[str, ...]:
    data = options.get(Option.ROUTER, b"")
    if len(data) % 4:
        raise ProtocolError(f"router option of {len(data)} bytes")
    routers = (IPv4Address(packed) for (packed,) in struct.iter_unpack("4s", data))
    return tuple(str(router) for router in routers if _is_host_address(router))


def _read_seconds(options: Mapping[int, bytes], code: Option) -> int | None:
    value = options.get(code)
    if value is None:
        return None
    if len(value) != 4:
        raise ProtocolError(f"option {code} of {len(value)} bytes")
    return int.from_bytes(value)


def _times(options: Mapping[int, bytes], lease_seconds: int) -> tuple[int, int]:
    """Return T1 and T2; the usual parts of the lease if the server sends none or implausible ones."""
    renew = _read_seconds(options, Option.RENEWAL_TIME) or lease_seconds // 2
    rebind = _read_seconds(options, Option.REBINDING_TIME) or lease_seconds * 7 // 8
    if 0 < renew < rebind < lease_seconds:
        return renew, rebind
    return lease_seconds // 2, lease_seconds * 7 // 8


def _mtu(options: Mapping[int, bytes]) -> int | None:
    value = options.get(Option.INTERFACE_MTU, b"")
    mtu = int.from_bytes(value)
    return mtu if len(value) == 2 and mtu >= MTU_MIN else None

"""Ethernet, IPv4 and UDP around a DHCP message (RFC 768, 791, 894); no I/O.

A link without an address has no UDP, so the client writes whole frames. That also lets them carry a hardware
address that the link does not have yet.
"""

from __future__ import annotations

import socket
import struct

from dranet.errors import ProtocolError
from dranet.kernel.dhcp.message import NO_ADDRESS

ETH_P_IP = 0x0800
SERVER_PORT, CLIENT_PORT = 67, 68
BROADCAST_MAC = "ff:ff:ff:ff:ff:ff"
BROADCAST = "255.255.255.255"

_ETHERNET = struct.Struct("!6s6sH")
_IP = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_DONT_FRAGMENT = 0x4000
_FRAGMENT_BITS = 0x3FFF
"""More fragments, and the offset."""
_TTL = 64


def build(
    payload: bytes,
    source_mac: str,
    destination_mac: str = BROADCAST_MAC,
    source: str = NO_ADDRESS,
    destination: str = BROADCAST,
) -> bytes:
    """A frame from a client to a server; broadcast and without a source address unless said."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    udp = _UDP.pack(CLIENT_PORT, SERVER_PORT, _UDP.size + len(payload), 0) + payload
    # A sum of zero is sent as its other form: zero says that there is none.
    udp = udp[:6] + struct.pack("!H", checksum(_pseudo_header(addresses, udp) + udp) or 0xFFFF) + udp[8:]
    header = _IP.pack(
        0x45,
        0,
        _IP.size + len(udp),
        0,
        _DONT_FRAGMENT,
        _TTL,
        socket.IPPROTO_UDP,
        0,
        addresses[:4],
        addresses[4:],
    )
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return _ETHERNET.pack(_mac_bytes(destination_mac), _mac_bytes(source_mac), ETH_P_IP) + header + udp


def parse(frame: bytes, *, has_checksum: bool = True) -> tuple[str, bytes]:
    """The sender's hardware address and the UDP payload of a frame to a client.

    Args:
        frame: from the Ethernet header on; may be padded at its end.
        has_checksum: false where the kernel says that the sender left the sum to its hardware and the frame
            never passed through any: from a server on the same machine.

    Raises:
        ProtocolError: no UDP for a client, a fragment, cut short, or with a wrong checksum.
    """
    try:
        return _parse(frame, has_checksum)
    except struct.error as error:
        raise ProtocolError(f"frame of {len(frame)} bytes is cut short") from error


def _parse(frame: bytes, has_checksum: bool) -> tuple[str, bytes]:
    _, source_mac, protocol = _ETHERNET.unpack_from(frame)
    packet = frame[_ETHERNET.size :]
    version, _, size, _, fragment, _, kind, _, source, destination = _IP.unpack_from(packet)
    header_size = (version & 0xF) * 4
    if protocol != ETH_P_IP or version >> 4 != 4 or not _IP.size <= header_size <= size <= len(packet):
        raise ProtocolError("no whole IPv4 packet")
    if checksum(packet[:header_size]):
        raise ProtocolError("IPv4 header with a wrong checksum")
    if kind != socket.IPPROTO_UDP or fragment & _FRAGMENT_BITS:
        raise ProtocolError("no UDP packet, or a part of one")
    udp = packet[header_size:size]
    _, port, udp_size, udp_sum = _UDP.unpack_from(udp)
    if port != CLIENT_PORT or not _UDP.size <= udp_size <= len(udp):
        raise ProtocolError(f"UDP packet of {udp_size} bytes for port {port}")
    udp = udp[:udp_size]
    if udp_sum and has_checksum and checksum(_pseudo_header(source + destination, udp) + udp):
        raise ProtocolError("UDP packet with a wrong checksum")
    return source_mac.hex(":"), udp[_UDP.size :]


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071); 0 over data that carries its own."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _pseudo_header(addresses: bytes, udp: bytes) -> bytes:
    return addresses + struct.pack("!BBH", 0, socket.IPPROTO_UDP, len(udp))


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))

"""LLDP frames as IEEE 802.1AB-2016, clauses 7 and 8, defines them. Pure; a frame is input from outside.

A frame is refused unless chassis id, port id and TTL come first, once each, and every TLV is whole. What else
it has, such as TLVs of organizations, is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from msgspec import Struct

from dranet.errors import ProtocolError

ETH_P_LLDP = 0x88CC
NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
GROUPS = (NEAREST_BRIDGE, bytes.fromhex("0180c2000003"), bytes.fromhex("0180c2000000"))
"""Nearest bridge, nearest bridge that is no two-port relay, nearest customer bridge (table 7-1). The first is
never forwarded; a relay, such as the embedded switch of a DPU, may forward the others."""

_ETHERNET = struct.Struct("!6s6sH")
_END, _CHASSIS_ID, _PORT_ID, _TTL, _PORT_DESCRIPTION, _SYSTEM_NAME = 0, 1, 2, 3, 4, 5
_MANDATORY = (_CHASSIS_ID, _PORT_ID, _TTL)
_MAX_ID_BYTES = 256
"""The subtype, and 255 bytes."""
_CHASSIS_MAC, _CHASSIS_ADDRESS = 4, 5
_PORT_MAC, _PORT_ADDRESS = 3, 4
_ADDRESS_BYTES = {1: 4, 2: 16}
"""By IANA address family number: IPv4, IPv6."""


class Message(Struct, frozen=True):
    """One LLDPDU. Text is printable; other bytes are shown in hex, as a MAC address is."""

    chassis_id: str
    port_id: str
    ttl: int
    """Seconds that it is valid; 0: the neighbour shuts down."""
    system_name: str = ""
    port_description: str = ""


def parse_frame(frame: bytes) -> tuple[bytes, Message]:
    """The group address that it was sent to, and its content. Raises ProtocolError."""
    if len(frame) < _ETHERNET.size:
        raise ProtocolError(f"frame of {len(frame)} bytes is cut short")
    destination, _, kind = _ETHERNET.unpack_from(frame)
    if kind != ETH_P_LLDP or destination not in GROUPS:
        raise ProtocolError("no LLDP frame to one of its group addresses")
    return destination, parse_message(frame[_ETHERNET.size :])


def parse_message(data: bytes) -> Message:
    """Raises ProtocolError."""
    tlvs = list(_read_tlvs(data))
    if tuple(kind for kind, _ in tlvs[:3]) != _MANDATORY:
        raise ProtocolError("does not begin with chassis id, port id and TTL")
    if any(kind in _MANDATORY for kind, _ in tlvs[3:]):
        raise ProtocolError("has chassis id, port id or TTL twice")
    (_, chassis), (_, port), (_, ttl) = tlvs[:3]
    if len(ttl) < 2:
        raise ProtocolError("its TTL is cut short")
    others: Mapping[int, bytes] = dict(reversed(tlvs[3:]))  # of several the first one counts
    return Message(
        _read_id(chassis, _CHASSIS_MAC, _CHASSIS_ADDRESS),
        _read_id(port, _PORT_MAC, _PORT_ADDRESS),
        int.from_bytes(ttl[:2]),
        _read_text(others.get(_SYSTEM_NAME, b"")),
        _read_text(others.get(_PORT_DESCRIPTION, b"")),
    )


def _read_tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Up to the end TLV; what follows pads the frame. Switches are known that leave the end TLV out."""
    position = 0
    while position < len(data):
        header = int.from_bytes(data[position : position + 2])
        kind, length = header >> 9, header & 0x1FF
        value = data[position + 2 : position + 2 + length]
        if len(data) < position + 2 + length:
            raise ProtocolError(f"TLV {kind} is cut short")
        if kind == _END:
            return
        yield kind, value
        position += 2 + length


def _read_id(value: bytes, mac: int, address: int) -> str:
    if not 2 <= len(value) <= _MAX_ID_BYTES:
        raise ProtocolError(f"has an id of {len(value)} bytes, subtype included")
    subtype, content = value[0], value[1:]
    if subtype == mac:
        return content.hex(":")
    if subtype == address and _ADDRESS_BYTES.get(content[0]) == len(content) - 1:
        return str(ip_address(content[1:]))
    return _read_text(content) or content.hex(":")


def _read_text(value: bytes) -> str:
    """Programs in C pad with NUL. Bytes that are no text are shown in hex."""
    try:
        text = value.rstrip(b"\0").strip().decode()
    except UnicodeDecodeError:
        return value.hex(":")
    return text if text.isprintable() else value.hex(":")


def shown_text(text: str) -> str:
    """Text with anything that a terminal or a log might act on is shown in hex."""
    return text if text.isprintable() else text.encode(errors="surrogatepass").hex(":")

"""A switch's side of LLDP: frames by IEEE 802.1AB, sent from the far end of a cable."""

from __future__ import annotations

import socket
import struct

NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
CUSTOMER_BRIDGE = bytes.fromhex("0180c2000000")
SWITCH_MAC = bytes.fromhex("020000005701")
ETHERTYPE = struct.pack("!H", 0x88CC)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def build_message(
    name: str = "leaf-02",
    port: str = "swp7",
    description: str = "",
    ttl: int = 120,
    chassis: bytes = SWITCH_MAC,
) -> bytes:
    """Chassis by its MAC address, port by its interface name: as Cumulus, SONiC and Arista EOS send it."""
    tlvs = [tlv(1, b"\x04" + chassis), tlv(2, b"\x05" + port.encode()), tlv(3, struct.pack("!H", ttl))]
    if description:
        tlvs.append(tlv(4, description.encode()))
    if name:
        tlvs.append(tlv(5, name.encode()))
    return b"".join(tlvs) + tlv(0, b"")


def build_frame(message: bytes, group: bytes = NEAREST_BRIDGE) -> bytes:
    return (group + SWITCH_MAC + ETHERTYPE + message).ljust(60, b"\0")


def send(ifname: str, *frames: bytes) -> None:
    """By a link of the namespace of the calling thread."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((ifname, 0))
        for frame in frames:
            sock.send(frame)

"""The packet socket of one conversation with DHCP servers on one link. It needs neither an address nor a
route, and sees what comes before any firewall. The kernel hands it only answers to its own transaction id."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import socket
import struct
import time
from typing import Self

from dranet.errors import KernelError, ProtocolError
from dranet.kernel.dhcp import message
from dranet.kernel.dhcp.message import NO_ADDRESS, Message
from dranet.kernel.netlink.rtnl import mac_bytes
from dranet.kernel.netlink.socket import kernel_error
from dranet.model.facts import Link

# linux/if_packet.h, linux/socket.h, asm-generic/socket.h
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_AUXDATA = 1, 8
PACKET_MR_UNICAST = 3
TP_STATUS_CSUMNOTREADY = 1 << 3
SO_ATTACH_FILTER = 26

_FRAME_MAX_BYTES = 65536
_ANCILLARY_BYTES = 256

# Classic BPF (linux/filter.h): load byte, half, word (also relative to X), IP header length, compare, return.
_LDB, _LDH, _LDH_X, _LD_X, _LDX_IP_LENGTH = 0x30, 0x28, 0x48, 0x40, 0xB1
_JEQ, _JSET, _RET = 0x15, 0x45, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = struct.Struct("@HP")

ETH_P_IP = 0x0800
SERVER_PORT, CLIENT_PORT = 67, 68
BROADCAST_MAC = "ff:ff:ff:ff:ff:ff"
BROADCAST = "255.255.255.255"

_IP_AT = 14
_FRAGMENT_OFFSET_BITS = 0x1FFF


class Wire:
    """Sends and receives DHCP messages on one link of the calling thread's network namespace."""

    def __init__(self, link: Link, mac: str, xid: int) -> None:
        self._link = link
        self._mac = mac
        self.oddity = ""
        """The last thing that came and was no answer, in words."""
        try:
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        except OSError as error:
            raise self._refused(error) from error
        try:
            self._set_up(xid)
        except BaseException as error:
            self._sock.close()
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise

    def _set_up(self, xid: int) -> None:
        """The filter first: until it is bound, the socket receives nothing."""
        code = b"".join(_INSTRUCTION.pack(*instruction) for instruction in answers_only(xid))
        kept = ctypes.create_string_buffer(code, len(code))
        program = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(kept))
        self._sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        self._sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self._sock.setblocking(False)
        if self._mac != self._link.mac:
            self._hear_other_mac()
        self._sock.bind((self._link.ifname, ETH_P_IP))

    def _hear_other_mac(self) -> None:
        """Let the device also take frames for our hardware address: servers that ignore the broadcast flag
        answer to it. Where the device cannot, broadcasts remain."""
        address = mac_bytes(self._mac)
        membership = struct.pack("=iHH8s", self._link.ifindex, PACKET_MR_UNICAST, len(address), address)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, sent: Message, server_mac: str = BROADCAST_MAC, server: str = BROADCAST) -> None:
        """To every server, or to one, which may be behind the relay with this hardware address."""
        frame = build_frame(message.encode(sent), self._mac, server_mac, sent.client_address, server)
        try:
            self._sock.send(frame)
        except OSError as error:
            if error.errno not in (errno.ENOBUFS, errno.EAGAIN):  # a full queue: as good as lost on the way
                raise self._refused(error) from error

    def receive(self, deadline: float) -> tuple[str, Message] | None:
        """The next message and the hardware address it came from; ``None`` at ``deadline`` (monotonic)."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll(left * 1000):
                return None
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_FRAME_MAX_BYTES, _ANCILLARY_BYTES)
                source_mac, payload = parse_frame(data, has_checksum=not _is_checksum_pending(ancillary))
                return source_mac, message.parse(payload)
            except ProtocolError as error:
                self.oddity = error.message
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._refused(error) from error
        return None

    def _refused(self, error: OSError) -> KernelError:
        what, link = "speak DHCP on", self._link.ifname
        return kernel_error(error.errno or 0, "", what, link, needs="NET_RAW", call="socket")


def _is_checksum_pending(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Whether the sender left the checksum to hardware that the frame never reached (``tpacket_auxdata``)."""
    return any(
        level == SOL_PACKET
        and kind == PACKET_AUXDATA
        and bool(struct.unpack_from("=I", data)[0] & TP_STATUS_CSUMNOTREADY)
        for level, kind, data in ancillary
    )


def answers_only(xid: int) -> list[tuple[int, int, int, int]]:
    """A BPF program for frames that carry UDP for port 68 with this transaction id: (code, jt, jf, k)."""
    udp_port, udp_xid = _IP_AT + 2, _IP_AT + 8 + 4
    return [
        (_LDB, 0, 0, _IP_AT + 9),
        (_JEQ, 0, 8, socket.IPPROTO_UDP),
        (_LDH, 0, 0, _IP_AT + 6),
        (_JSET, 6, 0, _FRAGMENT_OFFSET_BITS),
        (_LDX_IP_LENGTH, 0, 0, _IP_AT),
        (_LDH_X, 0, 0, udp_port),
        (_JEQ, 0, 3, CLIENT_PORT),
        (_LD_X, 0, 0, udp_xid),
        (_JEQ, 0, 1, xid),
        (_RET, 0, 0, _FRAME_MAX_BYTES),
        (_RET, 0, 0, 0),
    ]


# --- frames: Ethernet, IPv4 and UDP around a DHCP message (RFC 768, 791, 894) ---------------------------
# A link without an address has no UDP, so the client writes whole frames. They can carry a hardware
# address that the link does not have yet.

_ETHERNET = struct.Struct("!6s6sH")
_IP = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_DONT_FRAGMENT = 0x4000
_FRAGMENT_BITS = 0x3FFF
"""More fragments, and the offset."""
_TTL = 64


def build_frame(
    payload: bytes,
    source_mac: str,
    destination_mac: str = BROADCAST_MAC,
    source: str = NO_ADDRESS,
    destination: str = BROADCAST,
) -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    udp = _UDP.pack(CLIENT_PORT, SERVER_PORT, _UDP.size + len(payload), 0) + payload
    # A sum of zero is sent in its other form: zero means no checksum.
    udp = udp[:6] + struct.pack("!H", checksum(_pseudo_header(addresses, udp) + udp) or 0xFFFF) + udp[8:]
    size, protocol = _IP.size + len(udp), socket.IPPROTO_UDP
    header = _IP.pack(0x45, 0, size, 0, _DONT_FRAGMENT, _TTL, protocol, 0, addresses[:4], addresses[4:])
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return _ETHERNET.pack(mac_bytes(destination_mac), mac_bytes(source_mac), ETH_P_IP) + header + udp


def parse_frame(frame: bytes, *, has_checksum: bool = True) -> tuple[str, bytes]:
    """The sender's hardware address and the UDP payload of a frame to a client; its end may be padded.
    ``has_checksum`` is false for a sender on the same machine, which left the sum to hardware."""
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
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _pseudo_header(addresses: bytes, udp: bytes) -> bytes:
    return addresses + struct.pack("!BBH", 0, socket.IPPROTO_UDP, len(udp))

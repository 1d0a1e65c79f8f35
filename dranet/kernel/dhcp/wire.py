"""The packet socket of one conversation with DHCP servers on one link.

It needs neither an address nor a route, and sees what comes before any firewall. The kernel hands it only
UDP for port 68 with the conversation's own transaction id, so a busy link costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import socket
import struct
import time
from types import TracebackType
from typing import Self

from dranet.errors import KernelError, ProtocolError
from dranet.kernel.dhcp import frame, message
from dranet.kernel.dhcp.message import Message
from dranet.kernel.netlink import kernel_error
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

_IP_AT = 14
_FRAGMENT_OFFSET_BITS = 0x1FFF


class Wire:
    """Sends and receives DHCP messages on one link of the calling thread's network namespace."""

    def __init__(self, link: Link, mac: str, xid: int) -> None:
        """Open the socket.

        Args:
            link: an Ethernet link.
            mac: the hardware address to speak as; the link may have another one.
            xid: transaction id of the messages to receive.

        Raises:
            KernelError: the link is gone, or the kernel refused.
        """
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
        self._sock.bind((self._link.ifname, frame.ETH_P_IP))

    def _hear_other_mac(self) -> None:
        """Let the device take frames for our hardware address, too, while the socket is open.

        Servers that ignore the broadcast flag answer to it. Where the device cannot, broadcasts remain.
        """
        address = bytes.fromhex(self._mac.replace(":", ""))
        membership = struct.pack("=iHH8s", self._link.ifindex, PACKET_MR_UNICAST, len(address), address)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def broadcast(self, said: Message, source: str = message.NO_ADDRESS) -> None:
        """Say it to every server.

        Raises:
            KernelError: the link is down or gone.
        """
        self._send(frame.build(message.encode(said), self._mac, source=source))

    def send_to(self, server_mac: str, server: str, said: Message) -> None:
        """Say it to one server, which may be behind the relay that has this hardware address.

        Raises:
            KernelError: the link is down or gone.
        """
        payload = message.encode(said)
        self._send(frame.build(payload, self._mac, server_mac, said.client_address, server))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.send(data)
        except OSError as error:
            if error.errno not in (errno.ENOBUFS, errno.EAGAIN):  # a full queue: as good as lost on the way
                raise self._refused(error) from error

    def receive(self, deadline: float) -> tuple[str, Message] | None:
        """The next message and the hardware address it came from; ``None`` at ``deadline`` (monotonic).

        Raises:
            KernelError: the link went down or away.
        """
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll(left * 1000):
                return None
            try:
                source_mac, payload = self._read_frame()
                return source_mac, message.parse(payload)
            except ProtocolError as error:
                self.oddity = error.message
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._refused(error) from error
        return None

    def _read_frame(self) -> tuple[str, bytes]:
        data, ancillary, _, _ = self._sock.recvmsg(_FRAME_MAX_BYTES, _ANCILLARY_BYTES)
        return frame.parse(data, has_checksum=not _is_checksum_pending(ancillary))

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
        (_JEQ, 0, 3, frame.CLIENT_PORT),
        (_LD_X, 0, 0, udp_xid),
        (_JEQ, 0, 1, xid),
        (_RET, 0, 0, _FRAME_MAX_BYTES),
        (_RET, 0, 0, 0),
    ]

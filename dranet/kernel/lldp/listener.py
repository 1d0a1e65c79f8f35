"""The packet socket that hears LLDP on all links at once. It only receives, and only frames of that protocol:
the kernel sorts by EtherType before it looks at a socket. Membership of the group addresses makes a NIC pass
them; the kernel ends it when the link leaves the namespace, so a link in a pod is not heard."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dranet.errors import KernelError, ProtocolError
from dranet.kernel.lldp.message import ETH_P_LLDP, GROUPS, Message, parse_frame
from dranet.kernel.netlink.socket import kernel_error

# linux/if_packet.h
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_MR_MULTICAST = 0
PACKET_OUTGOING = 4

_FRAME_MAX_BYTES = 1600
"""An LLDPDU fits into one frame of 1500 bytes; a longer one is cut, and refused."""
_BUFFER_BYTES = 64 << 10
"""For all links together. A neighbour that floods fills it, and the kernel drops the rest."""
MAX_FRAMES_PER_READ = 64


class Heard(NamedTuple):
    ifname: str
    group: bytes
    message: Message


class Listener:
    """Closed by its owner. ``fileno`` is readable while frames wait."""

    def __init__(self) -> None:
        """In the network namespace of the calling thread. Raises KernelError."""
        self.odd_frames = 0
        """How many were no LLDP that one can read."""
        self.oddity = ""
        """The last of them, in words."""
        try:
            self._sock = socket.socket(
                socket.AF_PACKET,
                socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                socket.htons(ETH_P_LLDP),
            )
        except OSError as error:
            raise _refused(error) from error
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def join(self, links: Mapping[int, str]) -> None:
        """Hear these links, by ifindex. Cheap for one that has been joined already: the kernel counts. So
        one that was away for a moment is heard again. Raises KernelError."""
        for ifindex, ifname in links.items():
            for group in GROUPS:
                request = struct.pack("=iHH8s", ifindex, PACKET_MR_MULTICAST, len(group), group)
                try:
                    self._sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, request)
                except OSError as error:
                    if error.errno != errno.ENODEV:  # it has left since the scan
                        raise _refused(error, ifname) from error

    def read(self, hear: Callable[[Heard], None]) -> int:
        """Hand over what waits; returns how many frames were read, at most :data:`MAX_FRAMES_PER_READ`.
        Raises KernelError."""
        for number in range(MAX_FRAMES_PER_READ):
            try:
                frame, (ifname, _, kind, *_) = self._sock.recvfrom(_FRAME_MAX_BYTES)
            except BlockingIOError:
                return number
            except OSError as error:
                raise _refused(error) from error
            if kind == PACKET_OUTGOING:
                continue
            try:
                hear(Heard(ifname, *parse_frame(frame)))
            except ProtocolError as error:
                self.odd_frames += 1
                self.oddity = f"{ifname}: {error.message}"
        return MAX_FRAMES_PER_READ


def _refused(error: OSError, link: str = "") -> KernelError:
    what = "listen for LLDP on" if link else "listen for LLDP"
    return kernel_error(error.errno or 0, "", what, link, needs="NET_RAW", call="socket")

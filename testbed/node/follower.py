"""Keeps the sysfs tree's interfaces in step with the running kernel's links, as real sysfs is by itself.

A thread in the node's network namespace listens for link notifications. After each it reads all links and
brings the tree in line; the index of a link's veth peer, which never changes, identifies its NIC. Because the
driver may have scanned between the kernel's notification and our update, each link that the tree shows
otherwise from now on is announced again.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import NetlinkSocket, Request, attribute, parse_attributes
from testbed.node.hardware import PlacedNic
from testbed.node.sysfs_tree import ShownLink, SysfsTree

# linux/rtnetlink.h, linux/if_link.h
_RTM_DELLINK, _RTM_GETLINK = 17, 18
_RTMGRP_LINK = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK = 1, 3, 5
_HEADER = struct.Struct("=IHHII")
_INTERFACE = struct.Struct("=BxHiII")
_WANTED = frozenset({_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK})


class LinkFollower:
    """Start it in the node's network namespace; the first sync is done when ``start`` returns."""

    def __init__(self, tree: SysfsTree, nic_by_peer: Mapping[int, PlacedNic]) -> None:
        self._tree = tree
        self._nic_by_peer = nic_by_peer
        self._thread = threading.Thread(target=self._follow, name="sysfs-follower", daemon=True)

    def start(self) -> None:
        """Show the present links and follow their changes from now on."""
        self._requests = NetlinkSocket.open()
        self._events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._events.bind((0, _RTMGRP_LINK))
        self._announcements = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._stop_read, self._stop_write = os.pipe()
        self._tree.show_links(self._read_links())
        self._thread.start()

    def stop(self) -> None:
        """Stop following and close the sockets."""
        os.close(self._stop_write)
        self._thread.join()
        os.close(self._stop_read)
        self._announcements.close()
        self._events.close()
        self._requests.close()

    def _follow(self) -> None:
        while True:
            ready, _, _ = select.select([self._events.fileno(), self._stop_read], [], [])
            if self._stop_read in ready:
                return
            self._drain_events()
            with suppress(KernelError):  # the links kept changing while they were read: an event follows
                for link in self._tree.show_links(self._read_links()):
                    self._announce(link)

    def _drain_events(self) -> None:
        """Events only mean that something changed, and so does a lost one (ENOBUFS)."""
        while True:
            try:
                self._events.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                continue

    def _read_links(self) -> tuple[ShownLink, ...]:
        request = Request(_RTM_GETLINK, _INTERFACE.pack(0, 0, 0, 0, 0), operation="read links")
        return tuple(self._decode(self._requests.dump(request)))

    def _decode(self, payloads: list[bytes]) -> Iterator[ShownLink]:
        for payload in payloads:
            index = _INTERFACE.unpack_from(payload)[2]
            found = parse_attributes(payload, _INTERFACE.size, _WANTED)
            peer = int.from_bytes(found.get(_IFLA_LINK, b""), "little")
            yield ShownLink(
                ifname=found[_IFLA_IFNAME].rstrip(b"\0").decode(),
                ifindex=index,
                mac=found.get(_IFLA_ADDRESS, b"").hex(":"),
                nic=self._nic_by_peer.get(peer),
            )

    def _announce(self, link: ShownLink) -> None:
        """Notify every listener for links: the driver ignores a notification that repeats what it knows, but
        always looks after the end of a link. The kernel ignores the message, which is not a request."""
        body = _INTERFACE.pack(0, 0, link.ifindex, 0, 0)
        body += attribute(_IFLA_IFNAME, link.ifname.encode() + b"\0")
        header = _HEADER.pack(_HEADER.size + len(body), _RTM_DELLINK, 0, 0, 0)
        self._announcements.sendto(header + body, (0, _RTMGRP_LINK))

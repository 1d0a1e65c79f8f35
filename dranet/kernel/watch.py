"""Tells that something changed which a scan would show: links, addresses, default routes, hardware.

It carries no content: a change is a reason to scan again. Bursts are gathered into one, and a notification
that repeats what is known (a router's advertisement, a bridge port's chatter, a pod's route) is none.
An overrun of the socket is a change like any other.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
from functools import partial
from types import TracebackType
from typing import Any, Self

from dranet.errors import KernelError
from dranet.kernel.inet import (
    IFA_F_TENTATIVE,
    RT_TABLE_MAIN,
    is_default_route,
    parse_address,
    parse_route,
)
from dranet.kernel.netlink import (
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_ROUTE,
    SOL_NETLINK,
    open_raw_socket,
    parse_messages,
)
from dranet.kernel.rtnl import (
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_LINK,
    decode,
    parse_link,
)

SETTLE_SECONDS = 0.1
"""A burst has ended when nothing came for this long."""

LONGEST_BURST_SECONDS = 1.0
"""A burst that does not end is reported after this long all the same."""

_GROUPS = (
    RTNLGRP_LINK,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_ROUTE,
)
_RECEIVE_BUFFER_BYTES = 8 << 20
"""Took 2,000 link events with the reader held up; what does not fit is an overrun, which is a change too."""

_NOTIFICATION_BYTES = 32 * 1024
_READS_PER_CALL = 256
"""So that a flood does not keep the loop from its other work."""

_SO_RCVBUFFORCE = 33
"""``asm-generic/socket.h``; needs CAP_NET_ADMIN in the first user namespace."""

_HARDWARE_SUBSYSTEMS = ("pci", "infiniband", "drm")


class ChangeFilter:
    """Decides which notifications change what a scan shows. Holds one hash for each link and address."""

    def __init__(self) -> None:
        self._links: dict[int, int] = {}
        self._addresses: dict[tuple[int, str], int] = {}

    def is_change(self, kind: int, payload: bytes) -> bool:
        """Whether a notification says something new. What cannot be read counts as a change."""
        try:
            return self._is_change(kind, payload)
        except KernelError:
            return True

    def _is_change(self, kind: int, payload: bytes) -> bool:
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            return self._is_link_change(kind == RTM_DELLINK, payload)
        if kind in (RTM_NEWADDR, RTM_DELADDR):
            return self._is_address_change(kind == RTM_DELADDR, payload)
        return kind in (RTM_NEWROUTE, RTM_DELROUTE) and _is_uplink_route(payload)

    def _is_link_change(self, deleted: bool, payload: bytes) -> bool:
        if payload[:1] != bytes([socket.AF_UNSPEC]):
            return False  # bridge ports report in their own family; what we show comes in this one
        link = decode(parse_link, payload)
        if deleted:
            self._links.pop(link.ifindex, None)
            return True
        known, self._links[link.ifindex] = self._links.get(link.ifindex), hash(link)
        return known != self._links[link.ifindex]

    def _is_address_change(self, deleted: bool, payload: bytes) -> bool:
        parsed = decode(partial(parse_address, names={}), payload)
        if parsed is None:
            return False
        ifindex, address = parsed
        if deleted:
            self._addresses.pop((ifindex, address.cidr), None)
            return True
        key, told = (ifindex, address.cidr), hash((address.peer, address.flags & ~IFA_F_TENTATIVE))
        known, self._addresses[key] = self._addresses.get(key), told
        return known != told


def _is_uplink_route(payload: bytes) -> bool:
    if not is_default_route(payload):
        return False
    route = decode(parse_route, payload)
    return route is not None and route.table == RT_TABLE_MAIN


class ChangeWatch:
    """Wait for changes in the network namespace of the thread that enters it.

    ``async with ChangeWatch() as watch: await watch.wait_changed()``. For one waiter at a time.
    """

    def __init__(
        self, settle_seconds: float = SETTLE_SECONDS, longest_burst_seconds: float = LONGEST_BURST_SECONDS
    ) -> None:
        self._settle_seconds = settle_seconds
        self._longest_burst_seconds = longest_burst_seconds
        self._filter = ChangeFilter()
        self._changed = asyncio.Event()
        self._sock: socket.socket | None = None
        self._monitor: Any = None
        self.overruns = 0
        """How often the kernel had more to say than the buffer holds."""
        self.without_hardware_events = ""
        """Why PCI, RDMA and DRM changes are not told (no libudev); empty when they are."""

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            KernelError: the netlink socket could not be made.
        """
        self._sock = _open_notifications()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._sock.fileno(), self._read_notifications)
        self._start_hardware_events(loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._monitor is not None:
            loop.remove_reader(self._monitor.fileno())
            self._monitor = None
        if self._sock is not None:
            loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    async def wait_changed(self) -> None:
        """Return once something changed since the last return and the burst is over.

        A burst is over after 100 ms of silence, and after 1 s in any case.
        """
        await self._changed.wait()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._longest_burst_seconds
        while self._changed.is_set():
            self._changed.clear()
            quiet_seconds = min(self._settle_seconds, deadline - loop.time())
            if quiet_seconds <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), quiet_seconds)
            except TimeoutError:
                return

    def _read_notifications(self) -> None:
        assert self._sock is not None, "the reader is removed before the socket is closed"
        for _ in range(_READS_PER_CALL):
            try:
                chunk = self._sock.recv(_NOTIFICATION_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._note_overrun(error)
            else:
                self._note(chunk)

    def _note_overrun(self, error: OSError) -> None:
        if error.errno != errno.ENOBUFS:
            raise error
        self.overruns += 1
        self._filter = ChangeFilter()  # what it knows may be stale
        self._changed.set()

    def _note(self, chunk: bytes) -> None:
        try:
            changes = [self._filter.is_change(kind, payload) for kind, _, _, payload in parse_messages(chunk)]
        except KernelError:
            changes = [True]
        if any(changes):
            self._changed.set()

    def _start_hardware_events(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to kernel uevents through libudev, where the image has it."""
        try:
            pyudev = importlib.import_module("pyudev")
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        except (ImportError, OSError) as error:
            self.without_hardware_events = str(error)
            return
        for subsystem in _HARDWARE_SUBSYSTEMS:
            monitor.filter_by(subsystem)
        monitor.start()
        self._monitor = monitor
        loop.add_reader(monitor.fileno(), self._read_hardware_events)

    def _read_hardware_events(self) -> None:
        try:
            while self._monitor is not None and self._monitor.poll(timeout=0) is not None:
                self._changed.set()
        except OSError as error:
            self._note_overrun(error)


def _open_notifications() -> socket.socket:
    sock = open_raw_socket(NETLINK_ROUTE)
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    except PermissionError:  # in a user namespace: as much as the system's limit allows
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    sock.bind((0, 0))  # without an address of its own the kernel takes the socket for itself and skips it
    for group in _GROUPS:
        sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return sock

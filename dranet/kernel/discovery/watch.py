"""Watch what a scan shows: links, addresses, routes that matter, hardware. A change has no content: it names
what is worth reading again, so a notification that is late, doubled or out of order does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import math
import os
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.netlink import inet, rtnl
from dranet.kernel.netlink.rdma import RDMA_ATTR_DEV_NAME, RDMA_ATTR_NDEV_INDEX
from dranet.kernel.netlink.socket import (
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_RDMA,
    NETLINK_ROUTE,
    SOL_NETLINK,
    kernel_error,
    open_notifications,
    parse_attributes,
    parse_messages,
)

MANY_LINKS = 200
"""From here on one dump of all links costs less than asking for each; their names need not be kept then."""


class Changes(Struct, frozen=True):
    """Merge with ``|``; falsy when there is nothing to read again."""

    links: frozenset[int] = frozenset()
    """ifindexes of links that came, went or changed, in themselves or in their addresses."""
    routes: bool = False
    """A default route, or another route that may lead to a protected address, came or went."""
    hardware: frozenset[str] = frozenset()
    """Names in sysfs of devices that sent a uevent: ``0000:21:00.0``, ``mlx5_0``, ``renderD128``."""
    everything: bool = False
    """The changes are unknown: read everything, cached or not."""
    all_links: bool = False
    """More links changed than is worth naming (``MANY_LINKS``); ``links`` is empty then."""

    def __or__(self, other: Changes) -> Changes:
        links = self.links | other.links
        all_links = self.all_links or other.all_links or len(links) > MANY_LINKS
        return Changes(
            frozenset() if all_links else links,
            self.routes or other.routes,
            self.hardware | other.hardware,
            self.everything or other.everything,
            all_links,
        )

    def __bool__(self) -> bool:
        return bool(self.links or self.routes or self.hardware or self.everything or self.all_links)


EVERYTHING = Changes(everything=True)
"""At start, after lost notifications, and from time to time as a net."""


class Patience(Struct, frozen=True):
    """When a burst is reported: ``settle_seconds`` after its last change, and where it does not end after
    ``longest_seconds``, or ``storm_seconds`` if it is a storm and this is more."""

    settle_seconds: float
    longest_seconds: float
    storm_seconds: float = 0.0


PATIENCE = (Patience(0.1, 1.0), Patience(0.4, 8.0, 30.0), Patience(1.6, 8.0, 30.0))
"""A change after a calm is reported at once. While the next one follows soon, or a burst does not end, each
report waits longer than the one before."""

CALM_SECONDS = 1.0
"""Seconds without a change after a report after which a burst is over."""

STORM_CHANGES_PER_SECOND = 50
"""A burst with this many is a storm: one of 39 s is reported three times. A trickle waits less, because it
may hide a device that came or went."""

_GROUPS = (
    rtnl.RTNLGRP_LINK, rtnl.RTNLGRP_IPV4_IFADDR, rtnl.RTNLGRP_IPV6_IFADDR,
    rtnl.RTNLGRP_IPV4_ROUTE, rtnl.RTNLGRP_IPV6_ROUTE, rtnl.RTNLGRP_IPV4_RULE, rtnl.RTNLGRP_IPV6_RULE,
)  # fmt: skip
_TABLES = frozenset({rtnl.RT_TABLE_DEFAULT})
"""Those that the kernel's own rules look up, without local and main."""

_RECEIVE_BUFFER_BYTES = 8 << 20
"""Took 2,000 link events with the reader held up; what does not fit is an overrun."""

_NOTIFICATION_BYTES = 32 * 1024
_READS_PER_CALL = 256
"""So that a flood does not keep the loop from its other work."""

_SO_RCVBUFFORCE = 33
"""``asm-generic/socket.h``; needs CAP_NET_ADMIN in the first user namespace."""

_RDMA_NL_GROUP_NOTIFY = 4
"""Multicast group of devices and their network interfaces that come and go (Linux 6.12). Renames are reported
by uevents and by rtnetlink."""

_HARDWARE_SUBSYSTEMS = ("pci", "infiniband", "drm")


class ChangeFilter:
    """Decides which notifications change what a scan shows. Holds one hash for each link and address."""

    def __init__(self, protected_addresses: Collection[bytes] = (), tables: frozenset[int] = _TABLES) -> None:
        """``protected_addresses``: packed addresses. A route that contains one matters as default routes do,
        and so does any route of ``tables``, which rules look up."""
        self.protected_addresses = protected_addresses
        self.tables = tables
        self._links: dict[int, int] = {}
        self._addresses: dict[int, dict[str, int]] = {}

    def judge(self, kind: int, payload: bytes) -> Changes:
        """Return the changes in a notification. One that cannot be parsed may be any change."""
        try:
            if kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK):
                return self._judge_link(kind == rtnl.RTM_DELLINK, payload)
            if kind in (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR):
                return self._judge_address(kind == rtnl.RTM_DELADDR, payload)
            # A rule may lead to an uplink, or to a protected address; routes of a nexthop object lead
            # elsewhere without a word of their own.
            if kind in (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE, rtnl.RTM_NEWNEXTHOP, rtnl.RTM_DELNEXTHOP):
                return Changes(routes=True)
            is_route = kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)
            return Changes(routes=is_route and rtnl.decode(self._is_of_interest, payload))
        except KernelError:
            return EVERYTHING

    def _judge_link(self, deleted: bool, payload: bytes) -> Changes:
        if payload[:1] != bytes([socket.AF_UNSPEC]):
            return Changes()  # bridge ports report in their own family; what we show comes in this one
        link = rtnl.decode(rtnl.parse_link, payload)
        named = Changes(links=frozenset({link.ifindex}))
        if deleted:
            self._links.pop(link.ifindex, None)
            self._addresses.pop(link.ifindex, None)
            return named
        known, self._links[link.ifindex] = self._links.get(link.ifindex), hash(link)
        return named if known != self._links[link.ifindex] else Changes()

    def _judge_address(self, deleted: bool, payload: bytes) -> Changes:
        parsed = rtnl.decode(partial(inet.parse_address, names={}), payload)
        if parsed is None:
            return Changes()
        ifindex, address = parsed
        named = Changes(links=frozenset({ifindex}))
        on_link = self._addresses.setdefault(ifindex, {})
        if deleted:
            on_link.pop(address.cidr, None)
            return named
        steady = replace(address, valid_seconds=None, preferred_seconds=None)
        known, on_link[address.cidr] = on_link.get(address.cidr), hash(steady)
        return named if known != on_link[address.cidr] else Changes()

    def _is_of_interest(self, payload: bytes) -> bool:
        if any(inet.route_contains(payload, address) for address in self.protected_addresses):
            return True  # from any table: rules may lead there
        table = inet.route_table(payload)
        if table in self.tables:
            return True
        is_main = table == rtnl.RT_TABLE_MAIN and inet.is_default_route(payload)
        return is_main and inet.parse_route(payload) is not None


class ChangeWatch:
    """Wait for changes in the network namespace of the thread that enters it: ``async with ChangeWatch() as
    watch: changes = await watch.wait_changed()``. For one waiter at a time."""

    def __init__(self, patience: Sequence[Patience] = PATIENCE) -> None:
        self._patience = patience
        self._level = 0
        self._reported_at = -math.inf
        self._filter = ChangeFilter()
        self._pending = Changes()
        self._noted = 0
        """How many changes are pending."""
        self._is_storm = False
        self._arrived = asyncio.Event()
        self._failure: KernelError | None = None
        self._readers: dict[int, Any] = {}
        """What is listened to, by descriptor."""
        self.overruns = 0
        """How often the socket's buffer overflowed."""
        self.without_hardware_events = ""
        """Why PCI, RDMA and DRM changes are not reported (no libudev); empty if they are."""

    async def __aenter__(self) -> Self:
        sock = _open_notifications()
        self._listen(sock, partial(self._read_socket, sock, self._judge_rtnetlink))
        self._start_hardware_events()
        self._start_rdma_events()
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for descriptor, source in self._readers.items():
            loop.remove_reader(descriptor)
            if isinstance(source, socket.socket):
                source.close()
        self._readers.clear()

    def set_protected_addresses(self, addresses: Collection[bytes]) -> None:
        """Packed addresses whose routes matter from now on."""
        self._filter.protected_addresses = tuple(addresses)

    def set_tables(self, tables: Collection[int]) -> None:
        """Routing tables whose routes matter from now on. What happened in a new one is not known."""
        if not self._filter.tables.issuperset(tables):
            self.note(Changes(routes=True))
        self._filter.tables = _TABLES.union(tables)

    async def wait_changed(self) -> Changes:
        """The changes since the last call: after 100 ms of silence or 1 s in any case; one among others
        within 8 s, or 30 s in a storm. The last change is always reported. Cancelling loses nothing. A
        ``KernelError`` means that notifications cannot be read any more."""
        if self._pending:  # left by a wait that was given up while it gathered
            self._arrived.set()
        await self._wait_arrived(None)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        calm = begin - self._reported_at > CALM_SECONDS
        self._level = 0 if calm else min(self._level + 1, len(self._patience) - 1)
        patience = self._patience[self._level]
        deadline = begin + max(patience.longest_seconds, self._is_storm * patience.storm_seconds)
        while (left := deadline - loop.time()) > 0:
            self._arrived.clear()
            if not await self._wait_arrived(min(patience.settle_seconds, left)):
                break
        return self._report(loop.time(), begin)

    def _report(self, now: float, begin: float) -> Changes:
        self._is_storm = self._noted > STORM_CHANGES_PER_SECOND * max(now - begin, 1.0)
        changes, self._pending = self._pending, Changes()
        self._noted = 0
        self._arrived.clear()
        self._reported_at = now
        return changes

    async def _wait_arrived(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may lose a cancellation
                await self._arrived.wait()
        except TimeoutError:
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def note(self, changes: Changes) -> None:
        if changes:
            self._pending |= changes
            self._noted += 1
            self._arrived.set()

    def _listen(self, source: Any, read: Callable[[], None]) -> None:
        self._readers[source.fileno()] = source
        asyncio.get_running_loop().add_reader(source.fileno(), read)

    def _read_socket(self, sock: socket.socket, judge: Callable[[bytes], Changes]) -> None:
        for _ in range(_READS_PER_CALL):
            try:
                chunk = sock.recv(_NOTIFICATION_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._note_failure(sock, error)
                return
            try:
                self.note(judge(chunk))
            except KernelError:
                self.note(EVERYTHING)

    def _judge_rtnetlink(self, chunk: bytes) -> Changes:
        changes = Changes()
        for kind, _, _, payload in parse_messages(chunk):
            changes |= self._filter.judge(kind, payload)
        return changes

    def _note_failure(self, source: Any, error: OSError) -> None:
        """After an overrun anything may have changed. Other errors are not retried, which would spin."""
        if error.errno == errno.ENOBUFS:
            self.overruns += 1
            # What it knows may be stale.
            self._filter = ChangeFilter(self._filter.protected_addresses, self._filter.tables)
        else:
            asyncio.get_running_loop().remove_reader(source.fileno())
            self._failure = kernel_error(error.errno or 0, "", "receive notifications of changes")
        self.note(EVERYTHING)

    def _start_hardware_events(self) -> None:
        try:
            monitor = _open_hardware_events()
        except (ImportError, OSError) as error:
            self.without_hardware_events = str(error)
            return
        for subsystem in _HARDWARE_SUBSYSTEMS:
            monitor.filter_by(subsystem)
        monitor.start()
        self._listen(monitor, partial(self._read_hardware_events, monitor))

    def _read_hardware_events(self, monitor: Any) -> None:
        try:
            for _ in range(_READS_PER_CALL):
                device = monitor.poll(timeout=0)
                if device is None:
                    return
                self.note(Changes(hardware=frozenset({device.sys_name})))
        except OSError as error:  # pyudev neither reports which nor removes it from the socket
            with socket.socket(fileno=os.dup(monitor.fileno())) as sock:
                number = error.errno or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._note_failure(monitor, OSError(number, os.strerror(number)))

    def _start_rdma_events(self) -> None:
        """A kernel without RDMA has none; one before Linux 6.12 accepts the membership and sends none."""
        with contextlib.suppress(KernelError):
            sock = open_notifications(NETLINK_RDMA, _RDMA_NL_GROUP_NOTIFY)
            self._listen(sock, partial(self._read_socket, sock, parse_rdma_changes))


def _open_hardware_events() -> Any:
    """pyudev's monitor of kernel events. pyudev asks ctypes for the file of libudev, which runs ``ldconfig``
    or a compiler to find it. The image has neither, and need not: the loader finds it by its name."""
    pyudev = importlib.import_module("pyudev")
    loading: Any = importlib.import_module("pyudev._ctypeslib.utils")
    loading.find_library = {"udev": "libudev.so.1"}.get
    return pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")


def _open_notifications() -> socket.socket:
    sock = open_notifications(NETLINK_ROUTE, *_GROUPS)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    except PermissionError:  # in a user namespace: as much as the system's limit allows
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    with contextlib.suppress(OSError):  # before Linux 5.3 there are no nexthop objects
        sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, rtnl.RTNLGRP_NEXTHOP)
    return sock


def parse_rdma_changes(chunk: bytes) -> Changes:
    """What a datagram of RDMA notifications names: devices (``mlx5_0``), and the interfaces on them."""
    changes = Changes()
    for _, _, _, payload in parse_messages(chunk):
        found = parse_attributes(payload, 0, frozenset({RDMA_ATTR_DEV_NAME, RDMA_ATTR_NDEV_INDEX}))
        name = found.get(RDMA_ATTR_DEV_NAME, b"").rstrip(b"\0").decode(errors="replace")
        link = found.get(RDMA_ATTR_NDEV_INDEX, b"")
        links = frozenset({int(struct.unpack("=I", link)[0])} if len(link) == 4 else ())
        changes |= Changes(links, hardware=frozenset({name})) if name else EVERYTHING
    return changes

"""Link details of ethtool: speed, duplex and queues by generic netlink, driver and firmware by the old ioctl.

Numbers are those of ``linux/ethtool_netlink.h`` and ``linux/ethtool.h``; see the kernel's
``Documentation/networking/ethtool-netlink.rst``. For many links the kernel is asked once, for all. What names
a driver has no netlink message, so that is an ioctl for each link.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.ethtool.messages import (
    ETHTOOL_FAMILY,
    ETHTOOL_FLAG_COMPACT_BITSETS,
    ethtool_request,
    parse_ifindex,
)
from dranet.kernel.netlink.socket import (
    GENL_HEADER_BYTES,
    NETLINK_GENERIC,
    NetlinkSocket,
    Request,
    kernel_error,
    open_raw_socket,
    parse_attributes,
    resolve_family,
)

# linux/ethtool_netlink.h
ETHTOOL_MSG_LINKMODES_GET, ETHTOOL_MSG_CHANNELS_GET = 4, 17
ETHTOOL_A_LINKMODES_SPEED, ETHTOOL_A_LINKMODES_DUPLEX = 5, 6
ETHTOOL_A_CHANNELS_RX_COUNT, ETHTOOL_A_CHANNELS_COMBINED_COUNT = 6, 9

# linux/ethtool.h, linux/sockios.h
SIOCETHTOOL = 0x8946
ETHTOOL_GDRVINFO = 3

_U32 = struct.Struct("=I")
_IFREQ = struct.Struct("16sP16x")
_DRVINFO = struct.Struct("=I32s32s32s96x")
"""``struct ethtool_drvinfo``: command, driver, version, firmware, and what is not read."""

_MOST_ASKED_SINGLY = 64
"""Beyond, a dump of all links costs less."""

_NO_FACT = frozenset({errno.EOPNOTSUPP, errno.ENODEV})
"""The driver does not report it, or the link is gone: no warning."""

_DUPLEXES = {0: "half", 1: "full"}
_LARGEST_SPEED = 0x7FFFFFFF
"""The kernel's own bound; ``SPEED_UNKNOWN`` is above it."""

T = TypeVar("T")


class LinkSettings(Struct, frozen=True):
    """What a link runs at. ``speed_mbps`` in Mbit/s, ``duplex`` is ``full``, ``half`` or empty.

    ``queues`` counts the receive queues in use: ethtool's channels of kind rx and combined.
    """

    speed_mbps: int | None = None
    duplex: str = ""
    queues: int | None = None


_NOTHING = LinkSettings()


class DriverInfo(Struct, frozen=True):
    """Name and versions of a driver; empty if it does not report them."""

    driver: str = ""
    version: str = ""
    firmware: str = ""


def read_link_settings(ifindexes: Collection[int], warnings: list[str]) -> dict[int, LinkSettings]:
    """Settings of those of ``ifindexes`` that have any, in the calling thread's network namespace.

    A kernel without the ethtool family (before Linux 5.6) adds one warning and gives nothing.
    """
    if not ifindexes:
        return {}
    try:
        with NetlinkSocket.open(NETLINK_GENERIC) as genl:
            reader = _Reader(genl, resolve_family(genl, ETHTOOL_FAMILY), frozenset(ifindexes), warnings)
            modes = reader.read(ETHTOOL_MSG_LINKMODES_GET, parse_modes, "read link modes")
            queues = reader.read(ETHTOOL_MSG_CHANNELS_GET, parse_queues, "read channels")
    except KernelError as error:
        warnings.append(error.message)
        return {}
    settings = {
        ifindex: LinkSettings(*modes.get(ifindex, (None, "")), queues.get(ifindex))
        for ifindex in modes.keys() | queues.keys()
    }
    return {ifindex: found for ifindex, found in settings.items() if found != _NOTHING}


class _Reader(Struct, frozen=True):
    """One open socket, and the links that are asked for."""

    genl: NetlinkSocket
    family: int
    wanted: frozenset[int]
    warnings: list[str]

    def read(self, command: int, parse: Callable[[bytes], T | None], operation: str) -> dict[int, T]:
        """What ``parse`` finds in the kernel's answer for each wanted link."""
        found: dict[int, T] = {}
        for payload in self._answers(command, operation):
            try:
                ifindex = parse_ifindex(payload)
                fact = parse(payload) if ifindex in self.wanted else None
            except KernelError as error:
                self.warnings.append(f"{operation}: {error.message}")
                continue
            if fact is not None:
                found[ifindex] = fact
        return found

    def _answers(self, command: int, operation: str) -> Iterable[bytes]:
        if len(self.wanted) <= _MOST_ASKED_SINGLY:
            return self._ask_each(command, operation)
        try:
            return self.genl.dump(self._request(command, operation))
        except KernelError as error:
            if error.errno == errno.EOPNOTSUPP:  # an older kernel: no such command for any link
                return ()
            # A link that fails (one that is going, ENODEV) ends the dump and would hide those behind it.
            return self._ask_each(command, operation)

    def _ask_each(self, command: int, operation: str) -> Iterable[bytes]:
        requests = [self._request(command, operation, ifindex) for ifindex in sorted(self.wanted)]
        for outcome in self.genl.batch(requests):
            if not isinstance(outcome, KernelError):
                yield from (message.payload for message in outcome)
            elif outcome.errno not in _NO_FACT:
                self.warnings.append(outcome.message)

    def _request(self, command: int, operation: str, ifindex: int = 0) -> Request:
        link = f"of link {ifindex}" if ifindex else ""
        return ethtool_request(
            self.family, command, ifindex, flags=ETHTOOL_FLAG_COMPACT_BITSETS, operation=operation, link=link
        )


def parse_modes(payload: bytes) -> tuple[int | None, str]:
    """(speed in Mbit/s, duplex) of an answer to LINKMODES_GET; ``None`` and empty where unknown.

    Raises:
        KernelError: the message is malformed.
    """
    found = parse_attributes(
        payload, GENL_HEADER_BYTES, frozenset({ETHTOOL_A_LINKMODES_SPEED, ETHTOOL_A_LINKMODES_DUPLEX})
    )
    speed = _u32(found.get(ETHTOOL_A_LINKMODES_SPEED))
    duplex = found.get(ETHTOOL_A_LINKMODES_DUPLEX, b"")
    known = speed if speed and speed <= _LARGEST_SPEED else None
    return known, _DUPLEXES.get(duplex[0], "") if duplex else ""


def parse_queues(payload: bytes) -> int | None:
    """Receive queues in an answer to CHANNELS_GET; ``None`` where the driver has no such channels.

    Raises:
        KernelError: the message is malformed.
    """
    kinds = (ETHTOOL_A_CHANNELS_RX_COUNT, ETHTOOL_A_CHANNELS_COMBINED_COUNT)
    found = parse_attributes(payload, GENL_HEADER_BYTES, frozenset(kinds))
    counts = [count for kind in kinds if (count := _u32(found.get(kind))) is not None]
    return sum(counts) if counts else None


def _u32(payload: bytes | None) -> int | None:
    return int(_U32.unpack(payload)[0]) if payload is not None and len(payload) == 4 else None


def read_driver_infos(ifnames: Collection[str], warnings: list[str]) -> dict[str, DriverInfo]:
    """How the drivers of ``ifnames`` name themselves, in the calling thread's network namespace.

    A link without a driver, or that is gone, is left out. Microseconds for each link, but some drivers ask
    their firmware: pass the links worth it.
    """
    if not ifnames:
        return {}
    found: dict[str, DriverInfo] = {}
    try:
        with open_raw_socket(NETLINK_GENERIC) as sock:
            for ifname in ifnames:
                info = _read_driver_info(sock.fileno(), ifname, warnings)
                if info is not None:
                    found[ifname] = info
    except KernelError as error:
        warnings.append(error.message)
    return found


def _read_driver_info(fd: int, ifname: str, warnings: list[str]) -> DriverInfo | None:
    name = ifname.encode(errors="surrogateescape")
    if len(name) > 15 or b"\0" in name:  # no link's name; cut short it could be another's
        return None
    info = ctypes.create_string_buffer(_DRVINFO.pack(ETHTOOL_GDRVINFO, b"", b"", b""), _DRVINFO.size)
    try:
        fcntl.ioctl(fd, SIOCETHTOOL, _IFREQ.pack(name, ctypes.addressof(info)))
    except OSError as error:
        if error.errno not in _NO_FACT:
            warnings.append(kernel_error(error.errno or 0, "", "read driver of", ifname).message)
        return None
    return parse_driver_info(info.raw)


def parse_driver_info(info: bytes) -> DriverInfo:
    """Parse ``struct ethtool_drvinfo``; what a driver calls ``N/A`` is no fact."""
    _, driver, version, firmware = _DRVINFO.unpack(info)
    return DriverInfo(_known_text(driver), _known_text(version), _known_text(firmware))


def _known_text(field: bytes) -> str:
    text = field.partition(b"\0")[0].decode(errors="replace").strip()
    return "" if text.upper() == "N/A" else text

"""The messages of the ethtool family (``Documentation/networking/ethtool-netlink.rst``), and what links
report in them. Bit sets travel by name, the verbose form, so that no bit numbers are needed here."""

from __future__ import annotations

import errno
import fcntl
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct, field

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import (
    GENL_HEADER_BYTES,
    NETLINK_GENERIC,
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    genl_body,
    iter_attributes,
    kernel_error,
    nested,
    open_raw_socket,
    parse_attributes,
    resolve_family,
)

ETHTOOL_FAMILY = "ethtool"

# linux/ethtool_netlink.h
ETHTOOL_A_HEADER = 1
ETHTOOL_A_HEADER_DEV_INDEX, ETHTOOL_A_HEADER_FLAGS = 1, 3
ETHTOOL_FLAG_COMPACT_BITSETS, ETHTOOL_FLAG_OMIT_REPLY = 1, 2
ETHTOOL_A_BITSET_NOMASK, ETHTOOL_A_BITSET_BITS = 1, 3
ETHTOOL_A_BITSET_BITS_BIT = 1
ETHTOOL_A_BITSET_BIT_NAME, ETHTOOL_A_BITSET_BIT_VALUE = 2, 3
ETHTOOL_A_FEATURES_WANTED = 3
_FEATURES = (2, ETHTOOL_A_FEATURES_WANTED, 4, 5)
"""``ETHTOOL_A_FEATURES_HW``, ``_WANTED``, ``_ACTIVE``, ``_NOCHANGE``."""

SIOCETHTOOL = 0x8946
"""``linux/sockios.h``."""

_U32 = struct.Struct("=I")
_IFREQ = struct.Struct("16sP16x")

_BITSET = frozenset({ETHTOOL_A_BITSET_NOMASK, ETHTOOL_A_BITSET_BITS})
_BIT = frozenset({ETHTOOL_A_BITSET_BIT_NAME, ETHTOOL_A_BITSET_BIT_VALUE})


def ethtool_request(
    family: int,
    command: int,
    ifindex: int,
    *attributes: bytes,
    flags: int = 0,
    operation: str = "",
    link: str = "",
) -> Request:
    """Index 0 asks for all links."""
    device = attribute_u32(ETHTOOL_A_HEADER_DEV_INDEX, ifindex) if ifindex else b""
    header = nested(ETHTOOL_A_HEADER, device, attribute_u32(ETHTOOL_A_HEADER_FLAGS, flags))
    return Request(family, genl_body(command, header, *attributes), operation=operation, link=link)


def parse_ifindex(payload: bytes) -> int:
    """The link that an ethtool message speaks of: its header comes first, so this is cheap."""
    for kind, header in iter_attributes(payload, GENL_HEADER_BYTES):
        if kind == ETHTOOL_A_HEADER:
            for inner, value in iter_attributes(header):
                if inner == ETHTOOL_A_HEADER_DEV_INDEX and len(value) == 4:
                    return int(_U32.unpack(value)[0])
    raise KernelError("an ethtool message names no link")


def ask_by_ioctl(fd: int, ifname: str, data: bytes) -> bytes:
    """Send one command of ``linux/ethtool.h`` by any socket; returns what the kernel made of ``data``. An
    ``OSError`` means that the driver refused, or does not know the command (EOPNOTSUPP)."""
    buffer = array("B", data)
    name = ifname.encode(errors="surrogateescape")
    fcntl.ioctl(fd, SIOCETHTOOL, _IFREQ.pack(name, buffer.buffer_info()[0]))
    return buffer.tobytes()


# --- bit sets ------------------------------------------------------------------------------------------


def bitset_attribute(kind: int, bits: Mapping[str, bool]) -> bytes:
    flags = {True: attribute(ETHTOOL_A_BITSET_BIT_VALUE, b""), False: b""}
    encoded = (
        nested(ETHTOOL_A_BITSET_BITS_BIT, attribute_text(ETHTOOL_A_BITSET_BIT_NAME, name), flags[value])
        for name, value in bits.items()
    )
    return nested(kind, nested(ETHTOOL_A_BITSET_BITS, *encoded))


@lru_cache(maxsize=32)
def parse_bitset(payload: bytes) -> Mapping[str, bool]:
    """The bits that a set names. Where it is a plain list (no mask), those listed are set. The NICs of a node
    mostly send equal sets of sixty features, so the last ones are kept."""
    parts = parse_attributes(payload, 0, _BITSET)
    is_list = ETHTOOL_A_BITSET_NOMASK in parts
    bits: dict[str, bool] = {}
    for kind, bit in iter_attributes(parts.get(ETHTOOL_A_BITSET_BITS, b"")):
        if kind == ETHTOOL_A_BITSET_BITS_BIT:
            found = parse_attributes(bit, 0, _BIT)
            name = found.get(ETHTOOL_A_BITSET_BIT_NAME, b"").partition(b"\0")[0].decode(errors="replace")
            if name:
                bits[name] = is_list or ETHTOOL_A_BITSET_BIT_VALUE in found
    return MappingProxyType(bits)


class Features(Struct, frozen=True):
    wanted: Mapping[str, bool] = field(default_factory=dict)
    """What is asked for, of those that can be changed."""
    active: frozenset[str] = frozenset()
    """What is on, also of those that cannot be changed."""
    known: frozenset[str] = frozenset()
    """Every feature that this kernel has a name for."""

    @property
    def fixed(self) -> dict[str, bool]:
        return {name: name in self.active for name in self.known if name not in self.wanted}


def parse_features(payload: bytes) -> Features:
    found = dict(iter_attributes(payload, GENL_HEADER_BYTES))
    hardware, wanted, active, fixed = (parse_bitset(found.get(kind, b"")) for kind in _FEATURES)
    changeable = [name for name, is_offered in hardware.items() if is_offered and not fixed.get(name)]
    return Features(
        wanted={name: wanted.get(name, False) for name in changeable},
        active=frozenset(name for name, is_on in active.items() if is_on),
        known=frozenset(hardware),
    )


# --- settings ------------------------------------------------------------------------------------------


class Number(Struct, frozen=True):
    """One setting: its attribute, its size in bytes, and the attribute with its maximum (0: none)."""

    kind: int
    size: int = 4
    most: int = 0


class EthtoolPart(Struct, frozen=True):
    """One field of ``EthtoolState``: its requests, and the numbers and bits in them."""

    name: str
    word: str
    """In messages."""
    option: str
    """That of ``ethtool`` which shows it."""
    what: str
    """With ``limits``, its row in ``docs/reference/restored.md``."""
    get: int
    set: int
    limits: str = ""
    settings: Mapping[str, Number] = field(default_factory=dict)
    modes: int = 0
    """The attribute of a bit set (0: none), whose bits are values of 0 or 1 next to the numbers."""
    known_modes: tuple[str, ...] = ()
    """Names that a plain list leaves out where they are off."""

    def attributes(self, values: Mapping[str, int]) -> list[bytes]:
        numbers = [
            attribute_u8(self.settings[name].kind, value)
            if self.settings[name].size == 1
            else attribute_u32(self.settings[name].kind, value)
            for name, value in values.items()
            if name in self.settings
        ]
        modes = {name: bool(value) for name, value in values.items() if name not in self.settings}
        return [*numbers, *([bitset_attribute(self.modes, modes)] if modes else [])]

    def parse(self, payload: bytes) -> tuple[dict[str, int], dict[str, int]]:
        """Return the values in an answer to GET, and their maxima where the kernel reports them."""
        found = dict(iter_attributes(payload, GENL_HEADER_BYTES))
        values: dict[str, int] = {}
        maxima: dict[str, int] = {}
        for name, number in self.settings.items():
            value, most = found.get(number.kind, b""), found.get(number.most, b"")
            if len(value) == number.size:
                values[name] = value[0] if number.size == 1 else int(_U32.unpack(value)[0])
                if number.most and len(most) == _U32.size:
                    maxima[name] = int(_U32.unpack(most)[0])
        if self.modes and self.modes in found:
            modes = dict.fromkeys(self.known_modes, 0)
            values |= modes | {name: int(value) for name, value in parse_bitset(found[self.modes]).items()}
        return values, maxima


PRIVATE_FLAGS = EthtoolPart(
    "private_flags", "private flag", "--show-priv-flags", "private flags", get=13, set=14, modes=2
)

RINGS = EthtoolPart(
    "rings",
    "rings",
    "-g",
    "ring sizes",
    get=15,
    set=16,
    settings={
        "rx": Number(6, most=2), "rx_mini": Number(7, most=3), "rx_jumbo": Number(8, most=4),
        "tx": Number(9, most=5),
        "rx_buf_len": Number(10), "tcp_data_split": Number(11, size=1), "cqe_size": Number(12),
        "tx_push": Number(13, size=1), "rx_push": Number(14, size=1), "tx_push_buf_len": Number(15, most=16),
        "hds_thresh": Number(17, most=18),
    },
)  # fmt: skip

CHANNELS = EthtoolPart(
    "channels",
    "channels",
    "-l",
    "channels",
    get=17,
    set=18,
    settings={
        "rx": Number(6, most=2),
        "tx": Number(7, most=3),
        "other": Number(8, most=4),
        "combined": Number(9, most=5),
    },
)

COALESCE = EthtoolPart(
    "coalesce",
    "coalesce",
    "-c",
    "interrupt coalescing",
    limits="values that the driver adapts by itself are not",
    get=19,
    set=20,
    settings={
        "rx_usecs": Number(2), "rx_max_frames": Number(3),
        "rx_usecs_irq": Number(4), "rx_max_frames_irq": Number(5),
        "tx_usecs": Number(6), "tx_max_frames": Number(7),
        "tx_usecs_irq": Number(8), "tx_max_frames_irq": Number(9),
        "stats_block_usecs": Number(10),
        "adaptive_rx": Number(11, size=1), "adaptive_tx": Number(12, size=1),
        "pkt_rate_low": Number(13),
        "rx_usecs_low": Number(14), "rx_max_frames_low": Number(15),
        "tx_usecs_low": Number(16), "tx_max_frames_low": Number(17),
        "pkt_rate_high": Number(18),
        "rx_usecs_high": Number(19), "rx_max_frames_high": Number(20),
        "tx_usecs_high": Number(21), "tx_max_frames_high": Number(22),
        "rate_sample_interval": Number(23),
        "cqe_mode_tx": Number(24, size=1), "cqe_mode_rx": Number(25, size=1),
        "tx_aggr_max_bytes": Number(26), "tx_aggr_max_frames": Number(27), "tx_aggr_time_usecs": Number(28),
    },
)  # fmt: skip

PAUSE = EthtoolPart(
    "pause",
    "pause",
    "-a",
    "pause frames",
    limits="with `autoneg` on only that",
    get=21,
    set=22,
    settings={"autoneg": Number(2, size=1), "rx": Number(3, size=1), "tx": Number(4, size=1)},
)
"""Flow control by 802.3x pause frames."""

EEE = EthtoolPart(
    "eee",
    "eee",
    "--show-eee",
    "Energy-Efficient Ethernet",
    get=23,
    set=24,
    settings={"enabled": Number(5, size=1), "tx_lpi_enabled": Number(6, size=1), "tx_lpi_timer": Number(7)},
    modes=2,
)
"""The modes are the speeds for which the link offers it."""

FEC = EthtoolPart(
    "fec",
    "fec",
    "--show-fec",
    "forward error correction",
    limits="Linux 5.13",
    get=29,
    set=30,
    settings={"auto": Number(3, size=1)},
    modes=2,
    known_modes=("None", "RS", "BASER", "LLRS"),
)
"""The kernel lists the encodings that are configured, without the others."""

FEATURES = EthtoolPart(
    "features", "feature", "-k", "offloads", get=11, set=12, modes=ETHTOOL_A_FEATURES_WANTED
)
"""An answer has more than its modes: :func:`parse_features`."""

PARTS = {part.name: part for part in (PRIVATE_FLAGS, CHANNELS, RINGS, COALESCE, PAUSE, EEE, FEC, FEATURES)}
"""In the order in which they are set. Private flags decide what else a driver takes (mlx5's striding receive
queues bound rings and offloads); a new number of channels makes many drivers put rings and coalescing back to
their defaults."""


# --- what links report: speed, duplex and queues by netlink, driver and firmware by ioctl -------------
# For many links the kernel is asked once, for all. What names a driver has no netlink message, so that is an
# ioctl for each link.

# linux/ethtool_netlink.h
ETHTOOL_MSG_LINKMODES_GET, ETHTOOL_MSG_CHANNELS_GET = 4, 17
ETHTOOL_A_LINKMODES_SPEED, ETHTOOL_A_LINKMODES_DUPLEX = 5, 6
ETHTOOL_A_CHANNELS_RX_COUNT, ETHTOOL_A_CHANNELS_COMBINED_COUNT = 6, 9

# linux/ethtool.h
ETHTOOL_GDRVINFO = 3

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
    """What a link runs at. ``duplex`` is ``full``, ``half`` or empty; ``queues`` counts the receive queues in
    use: ethtool's channels of kind rx and combined."""

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
    """Settings of those of ``ifindexes`` that have any, in the calling thread's network namespace. A kernel
    without the ethtool family (before Linux 5.6) adds one warning and gives nothing."""
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
    found = parse_attributes(
        payload, GENL_HEADER_BYTES, frozenset({ETHTOOL_A_LINKMODES_SPEED, ETHTOOL_A_LINKMODES_DUPLEX})
    )
    speed = _u32(found.get(ETHTOOL_A_LINKMODES_SPEED))
    duplex = found.get(ETHTOOL_A_LINKMODES_DUPLEX, b"")
    known = speed if speed and speed <= _LARGEST_SPEED else None
    return known, _DUPLEXES.get(duplex[0], "") if duplex else ""


def parse_queues(payload: bytes) -> int | None:
    kinds = (ETHTOOL_A_CHANNELS_RX_COUNT, ETHTOOL_A_CHANNELS_COMBINED_COUNT)
    found = parse_attributes(payload, GENL_HEADER_BYTES, frozenset(kinds))
    counts = [count for kind in kinds if (count := _u32(found.get(kind))) is not None]
    return sum(counts) if counts else None


def _u32(payload: bytes | None) -> int | None:
    return int(_U32.unpack(payload)[0]) if payload is not None and len(payload) == 4 else None


def read_driver_infos(ifnames: Collection[str], warnings: list[str]) -> dict[str, DriverInfo]:
    """How the drivers of ``ifnames`` name themselves, in the calling thread's namespace; a link without a
    driver is left out. Some drivers ask their firmware: pass the links worth it."""
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
    try:
        info = ask_by_ioctl(fd, ifname, _DRVINFO.pack(ETHTOOL_GDRVINFO, b"", b"", b""))
    except OSError as error:
        if error.errno not in _NO_FACT:
            warnings.append(kernel_error(error.errno or 0, "", "read driver of", ifname).message)
        return None
    return parse_driver_info(info)


def parse_driver_info(info: bytes) -> DriverInfo:
    """Parse ``struct ethtool_drvinfo``; what a driver calls ``N/A`` is no fact."""
    _, driver, version, firmware = _DRVINFO.unpack(info)
    return DriverInfo(_known_text(driver), _known_text(version), _known_text(firmware))


def _known_text(field: bytes) -> str:
    text = field.partition(b"\0")[0].decode(errors="replace").strip()
    return "" if text.upper() == "N/A" else text

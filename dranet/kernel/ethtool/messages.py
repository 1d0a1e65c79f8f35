"""The messages of the ethtool family: requests, bit sets, and numbers (rings, channels, coalescing ...).

Numbers are those of ``linux/ethtool_netlink.h``, their meaning in the kernel's
``Documentation/networking/ethtool-netlink.rst``. Bit sets travel by name (the verbose form, which the kernel
uses unless it is asked for the compact one), so that no bit numbers are needed here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct, field

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import (
    GENL_HEADER_BYTES,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    genl_body,
    iter_attributes,
    nested,
    parse_attributes,
)

ETHTOOL_FAMILY = "ethtool"

# linux/ethtool_netlink.h
ETHTOOL_MSG_FEATURES_GET, ETHTOOL_MSG_FEATURES_SET = 11, 12
ETHTOOL_MSG_PRIVFLAGS_GET, ETHTOOL_MSG_PRIVFLAGS_SET = 13, 14
ETHTOOL_A_HEADER = 1
ETHTOOL_A_HEADER_DEV_INDEX, ETHTOOL_A_HEADER_FLAGS = 1, 3
ETHTOOL_FLAG_COMPACT_BITSETS, ETHTOOL_FLAG_OMIT_REPLY = 1, 2
ETHTOOL_A_BITSET_NOMASK, ETHTOOL_A_BITSET_BITS = 1, 3
ETHTOOL_A_BITSET_BITS_BIT = 1
ETHTOOL_A_BITSET_BIT_NAME, ETHTOOL_A_BITSET_BIT_VALUE = 2, 3
ETHTOOL_A_FEATURES_HW, ETHTOOL_A_FEATURES_WANTED = 2, 3
ETHTOOL_A_FEATURES_ACTIVE, ETHTOOL_A_FEATURES_NOCHANGE = 4, 5
ETHTOOL_A_PRIVFLAGS_FLAGS = 2

_U32 = struct.Struct("=I")

_BITSET = frozenset({ETHTOOL_A_BITSET_NOMASK, ETHTOOL_A_BITSET_BITS})
_BIT = frozenset({ETHTOOL_A_BITSET_BIT_NAME, ETHTOOL_A_BITSET_BIT_VALUE})
_FEATURES = frozenset(
    {
        ETHTOOL_A_FEATURES_HW,
        ETHTOOL_A_FEATURES_WANTED,
        ETHTOOL_A_FEATURES_ACTIVE,
        ETHTOOL_A_FEATURES_NOCHANGE,
    }
)


def ethtool_request(
    family: int,
    command: int,
    ifindex: int,
    *attributes: bytes,
    flags: int = 0,
    operation: str = "",
    link: str = "",
) -> Request:
    """One request of the family; index 0 asks for all links."""
    device = attribute_u32(ETHTOOL_A_HEADER_DEV_INDEX, ifindex) if ifindex else b""
    header = nested(ETHTOOL_A_HEADER, device, attribute_u32(ETHTOOL_A_HEADER_FLAGS, flags))
    return Request(family, genl_body(command, header, *attributes), operation=operation, link=link)


def parse_ifindex(payload: bytes) -> int:
    """The link that an ethtool message speaks of: its header comes first, so this is cheap.

    Raises:
        KernelError: the message is malformed or names no link.
    """
    for kind, header in iter_attributes(payload, GENL_HEADER_BYTES):
        if kind == ETHTOOL_A_HEADER:
            for inner, value in iter_attributes(header):
                if inner == ETHTOOL_A_HEADER_DEV_INDEX and len(value) == 4:
                    return int(_U32.unpack(value)[0])
    raise KernelError("an ethtool message names no link")


# --- bit sets ------------------------------------------------------------------------------------------


def bitset_attribute(kind: int, bits: Mapping[str, bool]) -> bytes:
    """Encode a bit set that touches the named bits only."""
    flags = {True: attribute(ETHTOOL_A_BITSET_BIT_VALUE, b""), False: b""}
    encoded = (
        nested(ETHTOOL_A_BITSET_BITS_BIT, attribute_text(ETHTOOL_A_BITSET_BIT_NAME, name), flags[value])
        for name, value in bits.items()
    )
    return nested(kind, nested(ETHTOOL_A_BITSET_BITS, *encoded))


@lru_cache(maxsize=32)
def parse_bitset(payload: bytes) -> Mapping[str, bool]:
    """The bits that a set names. Where it is a plain list (no mask), those listed are set.

    The NICs of a node mostly send equal sets of sixty features, so the last ones are kept.

    Raises:
        KernelError: the message is malformed.
    """
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
    """The offloads of a link, by the kernel's names."""

    wanted: Mapping[str, bool] = field(default_factory=dict)
    """What is asked for, of those that can be changed."""
    active: frozenset[str] = frozenset()
    """What is on, also of those that cannot be changed."""
    known: frozenset[str] = frozenset()
    """Every feature that this kernel has a name for."""

    @property
    def fixed(self) -> dict[str, bool]:
        """What cannot be changed, as it is."""
        return {name: name in self.active for name in self.known if name not in self.wanted}


def parse_features(payload: bytes) -> Features:
    """An answer to FEATURES_GET.

    Raises:
        KernelError: the message is malformed.
    """
    found = parse_attributes(payload, GENL_HEADER_BYTES, _FEATURES)
    hardware, wanted, active, fixed = (parse_bitset(found.get(kind, b"")) for kind in sorted(_FEATURES))
    changeable = [name for name, is_offered in hardware.items() if is_offered and not fixed.get(name)]
    return Features(
        wanted={name: wanted.get(name, False) for name in changeable},
        active=frozenset(name for name, is_on in active.items() if is_on),
        known=frozenset(hardware),
    )


def parse_private_flags(payload: bytes) -> dict[str, bool]:
    """An answer to PRIVFLAGS_GET.

    Raises:
        KernelError: the message is malformed.
    """
    found = parse_attributes(payload, GENL_HEADER_BYTES, frozenset({ETHTOOL_A_PRIVFLAGS_FLAGS}))
    return dict(parse_bitset(found.get(ETHTOOL_A_PRIVFLAGS_FLAGS, b"")))


# --- numbers -------------------------------------------------------------------------------------------


class Number(Struct, frozen=True):
    """One setting: its attribute, its size in bytes, and the attribute with its maximum (0: none)."""

    kind: int
    size: int = 4
    most: int = 0


class Numbers(Struct, frozen=True):
    """A message of numbers; ``name`` is the field of ``EthtoolState``.

    ``modes`` is the attribute of a bit set in the same message (0: it has none), whose bits are values of 0
    or 1 next to the numbers. ``known_modes`` are names that a plain list leaves out where they are off.
    """

    name: str
    get: int
    set: int
    settings: Mapping[str, Number]
    modes: int = 0
    known_modes: tuple[str, ...] = ()

    def attributes(self, values: Mapping[str, int]) -> list[bytes]:
        """Encode the values that go into a SET request."""
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
        """Return the values in an answer to GET, and their maxima where the kernel reports them.

        Raises:
            KernelError: the message is malformed.
        """
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


RINGS = Numbers(
    "rings",
    get=15,
    set=16,
    settings={
        "rx": Number(6, most=2),
        "rx_mini": Number(7, most=3),
        "rx_jumbo": Number(8, most=4),
        "tx": Number(9, most=5),
        "rx_buf_len": Number(10),
        "tcp_data_split": Number(11, size=1),
        "cqe_size": Number(12),
        "tx_push": Number(13, size=1),
        "rx_push": Number(14, size=1),
        "tx_push_buf_len": Number(15, most=16),
        "hds_thresh": Number(17, most=18),
    },
)

CHANNELS = Numbers(
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

COALESCE = Numbers(
    "coalesce",
    get=19,
    set=20,
    settings={
        "rx_usecs": Number(2),
        "rx_max_frames": Number(3),
        "rx_usecs_irq": Number(4),
        "rx_max_frames_irq": Number(5),
        "tx_usecs": Number(6),
        "tx_max_frames": Number(7),
        "tx_usecs_irq": Number(8),
        "tx_max_frames_irq": Number(9),
        "stats_block_usecs": Number(10),
        "adaptive_rx": Number(11, size=1),
        "adaptive_tx": Number(12, size=1),
        "pkt_rate_low": Number(13),
        "rx_usecs_low": Number(14),
        "rx_max_frames_low": Number(15),
        "tx_usecs_low": Number(16),
        "tx_max_frames_low": Number(17),
        "pkt_rate_high": Number(18),
        "rx_usecs_high": Number(19),
        "rx_max_frames_high": Number(20),
        "tx_usecs_high": Number(21),
        "tx_max_frames_high": Number(22),
        "rate_sample_interval": Number(23),
        "cqe_mode_tx": Number(24, size=1),
        "cqe_mode_rx": Number(25, size=1),
        "tx_aggr_max_bytes": Number(26),
        "tx_aggr_max_frames": Number(27),
        "tx_aggr_time_usecs": Number(28),
    },
)

PAUSE = Numbers(
    "pause",
    get=21,
    set=22,
    settings={"autoneg": Number(2, size=1), "rx": Number(3, size=1), "tx": Number(4, size=1)},
)
"""Flow control by 802.3x pause frames."""

EEE = Numbers(
    "eee",
    get=23,
    set=24,
    settings={"enabled": Number(5, size=1), "tx_lpi_enabled": Number(6, size=1), "tx_lpi_timer": Number(7)},
    modes=2,
)
"""Energy-Efficient Ethernet; the modes are the speeds for which the link offers it."""

FEC = Numbers(
    "fec",
    get=29,
    set=30,
    settings={"auto": Number(3, size=1)},
    modes=2,
    known_modes=("None", "RS", "BASER", "LLRS"),
)
"""Forward error correction. The kernel lists the encodings that are configured, without the others."""

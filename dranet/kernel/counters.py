"""Counters of links and RDMA ports, for metrics and for the health watch. ``RTM_GETSTATS``
(``linux/if_link.h``, Linux 4.7) takes a tenth of the time that the whole message of a link takes."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from dranet.errors import KernelError
from dranet.kernel.attachment.traffic import BUCKET_HANDLE
from dranet.kernel.discovery.hardware import RDMA_CLASS, read_named
from dranet.kernel.discovery.pci import PCI_DEVICES
from dranet.kernel.netlink.rtnl import RTM_GETLINK, decode, link_header, parse_link
from dranet.kernel.netlink.socket import NetlinkSocket, Request, parse_attributes
from dranet.kernel.netlink.tc import TCMSG, dump_qdiscs_request
from dranet.kernel.sysfs.files import PseudoFiles, is_pci_address
from dranet.model.facts import Link, RdmaPort
from dranet.model.health import CARRIER_LOSSES, HealthCounters, PcieLink

RTM_GETSTATS = 94
IFLA_STATS_LINK_64 = 1

_STATS_HEADER = struct.Struct("=BBHII")
"""``struct if_stats_msg``: family, padding, ifindex, which statistics."""
_WORDS = struct.Struct("=16Q")
"""The first of ``struct rtnl_link_stats64``."""
_DROPPED, _MISSED = 6, 15

_REQUEST = Request(
    RTM_GETSTATS,
    _STATS_HEADER.pack(0, 0, 0, 0, 1 << (IFLA_STATS_LINK_64 - 1)),
    operation="read statistics of links",
)


class Traffic(NamedTuple):
    """Counters of one link since its driver was loaded, in bytes and packets."""

    receive_packets: int
    transmit_packets: int
    receive_bytes: int
    transmit_bytes: int
    receive_errors: int
    transmit_errors: int
    receive_dropped: int
    """With what the hardware had no room for (``rx_missed_errors``), as in ``/proc/net/dev``."""
    transmit_dropped: int


def read_traffic() -> dict[int, Traffic]:
    with NetlinkSocket.open() as rtnl:
        return dict(decode(_parse_traffic, payload) for payload in rtnl.dump(_REQUEST))


def _parse_traffic(payload: bytes) -> tuple[int, Traffic]:
    words = parse_attributes(payload, _STATS_HEADER.size, frozenset({IFLA_STATS_LINK_64}))[IFLA_STATS_LINK_64]
    counted = _WORDS.unpack_from(words)
    ifindex = _STATS_HEADER.unpack_from(payload)[3]
    return ifindex, Traffic._make((*counted[:6], counted[_DROPPED] + counted[_MISSED], counted[7]))


# --- errors and carrier losses from link messages (``linux/if_link.h``) ---------------------------------
# The kernel adds its counters to notifications and to answers alike. Counters of what the receiver was
# too slow for (dropped, missed, overrun) are left out: they indicate load or foreign protocols, not a
# fault.

IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT = 23, 48

_LINK_HEADER_BYTES = 16
"""``struct ifinfomsg``."""

_WANTED_COUNTERS = frozenset({IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT})

_POSITIONS = {
    "rx_errors": 4, "tx_errors": 5, "rx_crc_errors": 12, "rx_frame_errors": 13, "tx_carrier_errors": 17,
}  # fmt: skip
"""Positions of 64-bit words in ``struct rtnl_link_stats64``."""


class CountedLink(Struct, frozen=True):
    link: Link
    counters: Mapping[str, int] = field(default_factory=dict)
    times_off: int = 0
    """How often it was seen administratively down, for however short a time. Polling would only show the lost
    carrier."""


def parse_counted_link(payload: bytes) -> CountedLink:
    return CountedLink(parse_link(payload), parse_link_counters(payload))


def parse_link_counters(payload: bytes) -> dict[str, int]:
    found = parse_attributes(payload, _LINK_HEADER_BYTES, _WANTED_COUNTERS)
    counters: dict[str, int] = {}
    words = found.get(IFLA_STATS64, b"")
    for name, position in _POSITIONS.items():
        if len(words) >= (position + 1) * 8:
            counters[name] = int(struct.unpack_from("=Q", words, position * 8)[0])
    if len(losses := found.get(IFLA_CARRIER_DOWN_COUNT, b"")) == 4:
        counters[CARRIER_LOSSES] = int(struct.unpack("=I", losses)[0])
    return counters


# --- packets dropped by rate limits, which a link itself does not count ---------------------------------

_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_QUEUE = struct.Struct("=5I")
"""``struct gnet_stats_queue``: waiting packets and bytes, drops, requeues, overlimits."""


def read_limit_drops() -> dict[int, int]:
    """Packets that our token buckets have dropped, by the ifindex of the link (or of its ``ifb``)
    in the calling thread's network namespace."""
    with NetlinkSocket.open() as rtnl:
        found = (decode(_parse_drops, payload) for payload in rtnl.dump(dump_qdiscs_request()))
        return {ifindex: drops for ifindex, drops in found if drops is not None}


def _parse_drops(payload: bytes) -> tuple[int, int | None]:
    _, ifindex, handle, _, _ = TCMSG.unpack_from(payload)
    if handle != BUCKET_HANDLE:
        return ifindex, None
    stats = parse_attributes(payload, TCMSG.size, frozenset({_TCA_STATS2})).get(_TCA_STATS2, b"")
    queue = parse_attributes(stats, 0, frozenset({_TCA_STATS_QUEUE})).get(_TCA_STATS_QUEUE, b"")
    return ifindex, int(_QUEUE.unpack_from(queue)[2]) if len(queue) >= _QUEUE.size else None


# --- counters of RDMA ports, in words that are the same for all vendors --------------------------------
# ``counters`` are those of the InfiniBand specification (``Documentation/ABI/stable/sysfs-class-infiniband``,
# where ``port_xmit_data`` and ``port_rcv_data`` are octets divided by 4). ``hw_counters`` have names of the
# drivers' own (``mlx5/counters.c``, ``bnxt_re/hw_counters.c``, ``irdma/verbs.c``, ``efa_verbs.c``,
# ``rxe_hw_counters.c`` in ``drivers/infiniband``). What a driver does not count is absent.

_OCTETS_PER_WORD = 4
_MOST_PORTS = 8

_DATA = frozenset({"port_rcv_data", "port_xmit_data"})

PORT_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "receive_bytes": ("port_rcv_data", "rx_bytes"),
    "transmit_bytes": ("port_xmit_data", "tx_bytes"),
    "receive_packets": ("port_rcv_packets", "rx_pkts", "rcvd_pkts"),
    "transmit_packets": ("port_xmit_packets", "tx_pkts", "sent_pkts"),
    "receive_errors": ("port_rcv_errors", "rx_roce_errors"),
    "receive_discards": ("rx_roce_discards", "rx_drops"),
    "transmit_discards": ("port_xmit_discards",),
    "transmit_wait_ticks": ("port_xmit_wait",),
    "symbol_errors": ("symbol_error",),
    "link_error_recoveries": ("link_error_recovery",),
    "link_downed": ("link_downed",),
    "out_of_buffer": ("out_of_buffer", "rx_out_of_buffer"),
    "out_of_sequence": ("out_of_sequence", "out_of_seq_request", "oos_drop_count"),
    "retransmits": ("roce_adp_retrans", "to_retransmits", "retrans_pkts", "RetransSegs", "tcpRetransSegs"),
    "ack_timeouts": ("local_ack_timeout_err", "retrans_timeout_events"),
    "sequence_naks": ("packet_seq_err", "seq_err_naks_rcvd", "rcvd_seq_err"),
    "rnr_naks": ("rnr_nak_retry_err", "rnr_naks_rcvd", "rcvd_rnr_err"),
    "duplicate_requests": ("duplicate_request", "dup_req"),
    "retries_exceeded": ("req_transport_retries_exceeded", "max_retry_exceeded", "retry_exceeded_err"),
    "cnp_transmitted": ("np_cnp_sent", "cnpSent", "tx_cnp_pkts"),
    "cnp_received": ("rp_cnp_handled", "cnpHandled", "rx_cnp_pkts"),
    "ecn_marked": ("np_ecn_marked_roce_packets", "RxECNMrkd", "rx_ecn_marked_pkts"),
}
"""Our word -> the kernel's names, of which the first that a port has counts."""

_FOLDERS = ("counters", "hw_counters")


class PortReading(Struct, frozen=True):
    number: int
    state: str = ""
    """``ACTIVE``, ``DOWN`` ...; empty where it cannot be read."""
    rate: str = ""
    """As the kernel prints it: ``400 Gb/sec (4X NDR)``."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """By the words of :data:`PORT_COUNTERS`; bytes are bytes."""


def read_port_counters(sysfs_root: Path, rdma_device: str) -> tuple[PortReading, ...]:
    """Every port of a device that this sysfs shows; none for another one. Some 25 small files for each."""
    sysfs = PseudoFiles(sysfs_root, [])
    home = f"{RDMA_CLASS}/{rdma_device}"
    numbers = _port_numbers(sysfs, rdma_device)
    # With one port the counters of the device are its own.
    own = [f"{home}/hw_counters"] if len(numbers) == 1 else []
    return tuple(_read_port(sysfs, sysfs_root, f"{home}/ports/{number}", number, own) for number in numbers)


def _read_port(sysfs: PseudoFiles, root: Path, port: str, number: int, more: list[str]) -> PortReading:
    files: dict[str, str] = {}
    for folder in (*more, *(f"{port}/{name}" for name in _FOLDERS)):
        files |= {name: f"{folder}/{name}" for name in _list_files(root, folder)}
    counted = ((word, _read_counter(sysfs, files, names)) for word, names in PORT_COUNTERS.items())
    return PortReading(
        number,
        state=sysfs.text(f"{port}/state").partition(": ")[2],
        rate=sysfs.text(f"{port}/rate"),
        counters={word: value for word, value in counted if value is not None},
    )


def _list_files(root: Path, folder: str) -> list[str]:
    try:
        return os.listdir(root / folder)  # noqa: PTH208 - half the time of iterdir, and names are all we need
    except OSError:
        return []


def _read_counter(sysfs: PseudoFiles, files: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        counted = _parse_counter(sysfs.text(files[name])) if name in files else None
        if counted is not None:
            return counted * (_OCTETS_PER_WORD if name in _DATA else 1)
    return None


def _parse_counter(text: str) -> int | None:
    """``None`` for ``N/A (no PMA)``, which virtual functions report."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def parse_rate(text: str) -> int | None:
    """Bytes a second of ``400 Gb/sec (4X NDR)``; ``None`` if the text has none."""
    number, _, unit = text.partition(" ")
    if not unit.startswith("Gb/sec"):
        return None
    try:
        return int(float(number) * 1_000_000_000 / 8)
    except (ValueError, OverflowError):
        return None


# --- counter folders that a container may mount ---------------------------------------------------------
# Below a PCI function the kernel keeps one folder for its network interfaces and one for its RDMA
# devices. A device that moves to another namespace disappears from its folder and returns to it; the
# folder stays while the function has any device (``get_device_parent`` in ``drivers/base/core.c``; seen
# on Linux 6.12 with igb and an RDMA device). A mount of the folder therefore always has its source,
# unlike a mount of ``net/eth1/statistics``.

_KINDS = ("net", "infiniband")
_PCI_DEVICES = "bus/pci/devices"
_BUS_BELOW = "virtio*"
"""A virtio device is between its PCI function and the interface."""


def find_counter_folders(sysfs_root: Path, pci_address: str) -> dict[str, Path]:
    """Return the folders of one PCI function, by ``net`` and ``infiniband``; empty for other devices.
    Software links share one folder with those of all other programs, so they have no entry."""
    if not is_pci_address(pci_address):
        return {}
    home = Path(sysfs_root, _PCI_DEVICES, pci_address)
    try:
        homes = [home, *sorted(home.glob(_BUS_BELOW))]
        found = {kind: each / kind for each in reversed(homes) for kind in _KINDS if (each / kind).is_dir()}
        return {kind: found[kind].resolve() for kind in _KINDS if kind in found}
    except OSError:  # unplugged meanwhile
        return {}


# --- health data that no notification reports: error counters, PCIe links, port states -----------------
# Counters of an RDMA port are those that mean a bad cable or a bad port; those of congestion, of a remote end
# or of an application's mistake are left out.

_PORT_COUNTERS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/rx_icrc_encapsulated",
)

_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) GT/s")
_WIDEST_LINK = 32
_ASLEEP = frozenset({"D3hot", "D3cold"})


class CounterTarget(Struct, frozen=True):
    """One device to look at. What is empty or 0 is not read."""

    device: str
    ifindex: int = 0
    """Index of its link, while that is in this namespace."""
    rdma_device: str = ""
    pci_address: str = ""
    """Address of a function that has its own PCIe link."""
    port_address: str = ""
    """The port above it."""


def read_health_counters(sysfs_root: Path, targets: Sequence[CounterTarget]) -> dict[str, HealthCounters]:
    """HealthCounters by device, for links of the calling thread's namespace. What cannot be read is left out.
    Some 25 small files for each card and one message for each link."""
    sysfs = PseudoFiles(sysfs_root, [])
    links = _read_link_counters([target.ifindex for target in targets if target.ifindex])
    return {
        target.device: HealthCounters(
            {**links.get(target.ifindex, {}), **_read_port_counters(sysfs, target.rdma_device)},
            _read_pcie(sysfs, target.pci_address, target.port_address) if target.pci_address else None,
        )
        for target in targets
    }


def read_rdma_ports(sysfs_root: Path, rdma_device: str) -> tuple[RdmaPort, ...] | None:
    """The ports with their states, of a device that sysfs shows; ``None`` of another one."""
    sysfs = PseudoFiles(sysfs_root, [])
    folder = f"{RDMA_CLASS}/{rdma_device}/ports"
    if not sysfs.has(folder):
        return None
    return tuple(
        RdmaPort(
            number=number,
            state=read_named(sysfs, f"{folder}/{number}/state"),
            phys_state=read_named(sysfs, f"{folder}/{number}/phys_state"),
            link_layer=sysfs.text(f"{folder}/{number}/link_layer"),
        )
        for number in _port_numbers(sysfs, rdma_device)
    )


def _read_link_counters(ifindexes: Iterable[int]) -> dict[int, dict[str, int]]:
    wanted = sorted(set(ifindexes))
    if not wanted:
        return {}
    # Without a filter of what to leave out a link comes with its counters.
    requests = [Request(RTM_GETLINK, link_header(index), 0, "get link", str(index)) for index in wanted]
    with NetlinkSocket.open() as rtnl:
        outcomes = rtnl.batch(requests)
    return {
        ifindex: decode(parse_link_counters, outcome[0].payload)
        for ifindex, outcome in zip(wanted, outcomes, strict=True)
        if outcome and not isinstance(outcome, KernelError)
    }


def _port_numbers(sysfs: PseudoFiles, rdma_device: str) -> list[int]:
    return sysfs.numbered(f"{RDMA_CLASS}/{rdma_device}/ports")[:_MOST_PORTS]


def _read_port_counters(sysfs: PseudoFiles, rdma_device: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for number in _port_numbers(sysfs, rdma_device) if rdma_device else ():
        for path in _PORT_COUNTERS:
            value = _parse_counter(sysfs.text(f"{RDMA_CLASS}/{rdma_device}/ports/{number}/{path}"))
            if value is not None:
                name = path.rpartition("/")[2]
                sums[name] = sums.get(name, 0) + value
    return sums


def _read_pcie(sysfs: PseudoFiles, address: str, port_address: str) -> PcieLink:
    folder, port = f"{PCI_DEVICES}/{address}", f"{PCI_DEVICES}/{port_address}"
    is_asleep = (
        sysfs.text(f"{folder}/power/runtime_status") == "suspended"
        or sysfs.text(f"{folder}/power_state") in _ASLEEP
    )
    return PcieLink(
        speed=_read_speed(sysfs, f"{folder}/current_link_speed"),
        width=_read_width(sysfs, f"{folder}/current_link_width"),
        most_speed=_read_speed(sysfs, f"{folder}/max_link_speed"),
        most_width=_read_width(sysfs, f"{folder}/max_link_width"),
        port_speed=_read_speed(sysfs, f"{port}/max_link_speed") if port_address else 0.0,
        port_width=_read_width(sysfs, f"{port}/max_link_width") if port_address else 0,
        asleep=is_asleep,
    )


def _read_speed(sysfs: PseudoFiles, path: str) -> float:
    found = _SPEED.match(sysfs.text(path))
    return float(found[1]) if found else 0.0


def _read_width(sysfs: PseudoFiles, path: str) -> int:
    """0 for functions without a link of their own, which report 0, 63 or 255."""
    value = sysfs.text(path)
    width = int(value) if value.isdecimal() and len(value) <= 3 else 0
    return width if width <= _WIDEST_LINK else 0

"""What an RDMA port counts: traffic, errors, congestion, in words that are the same for all vendors.

``counters`` are those of the InfiniBand specification (``Documentation/ABI/stable/sysfs-class-infiniband``,
where ``port_xmit_data`` and ``port_rcv_data`` are octets divided by 4). ``hw_counters`` have names of the
drivers' own (``mlx5/counters.c``, ``bnxt_re/hw_counters.c``, ``irdma/verbs.c``, ``efa_verbs.c``,
``rxe_hw_counters.c`` in ``drivers/infiniband``). What a driver does not count is absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from dranet.kernel.discovery.rdma import RDMA_CLASS
from dranet.kernel.sysfs.files import PseudoFiles, is_pci_address

OCTETS_PER_WORD = 4

MOST_PORTS = 8

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
    """One port at one moment."""

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
    numbers = sysfs.numbered(f"{home}/ports")[:MOST_PORTS]
    own = (
        [f"{home}/hw_counters"] if len(numbers) == 1 else []
    )  # one port: the counters of the device are its own
    return tuple(_read_port(sysfs, sysfs_root, f"{home}/ports/{number}", number, own) for number in numbers)


def _read_port(sysfs: PseudoFiles, root: Path, port: str, number: int, more: list[str]) -> PortReading:
    files: dict[str, str] = {}
    for folder in (*more, *(f"{port}/{name}" for name in _FOLDERS)):
        files |= {name: f"{folder}/{name}" for name in _list(root, folder)}
    counted = ((word, _read_counter(sysfs, files, names)) for word, names in PORT_COUNTERS.items())
    return PortReading(
        number,
        state=sysfs.text(f"{port}/state").partition(": ")[2],
        rate=sysfs.text(f"{port}/rate"),
        counters={word: value for word, value in counted if value is not None},
    )


def _list(root: Path, folder: str) -> list[str]:
    try:
        return os.listdir(root / folder)  # noqa: PTH208 - half the time of iterdir, and names are all we need
    except OSError:
        return []


def _read_counter(sysfs: PseudoFiles, files: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in files:
            text = sysfs.text(files[name])
            if text.isascii() and text.isdecimal() and len(text) <= 20:  # "N/A (no PMA)" on virtual functions
                return int(text) * (OCTETS_PER_WORD if name in _DATA else 1)
    return None


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

    Software links share one folder with those of all other programs, so they have no entry.
    """
    if not is_pci_address(pci_address):
        return {}
    home = Path(sysfs_root, _PCI_DEVICES, pci_address)
    try:
        homes = [home, *sorted(home.glob(_BUS_BELOW))]
        found = {kind: each / kind for each in reversed(homes) for kind in _KINDS if (each / kind).is_dir()}
        return {kind: found[kind].resolve() for kind in _KINDS if kind in found}
    except OSError:  # unplugged meanwhile
        return {}

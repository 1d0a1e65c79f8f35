"""Health data that no notification reports: error counters, PCIe links, port states.

Polled for the given devices. Counters of an RDMA port are those that mean a bad
cable or a bad port (``Documentation/ABI/stable/sysfs-class-infiniband``, the vendors' ``hw_counters``);
those of congestion, of a remote end or of an application's mistake are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.counters.links import get_counted_link_request, parse_link_counters
from dranet.kernel.discovery.pci import PCI_DEVICES
from dranet.kernel.discovery.rdma import RDMA_CLASS
from dranet.kernel.netlink.rtnl import decode
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import RdmaPort
from dranet.model.health import HealthCounters, PcieLink

_PORT_COUNTERS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/rx_icrc_encapsulated",
)

_MOST_PORTS = 8
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

    Some 25 small files for each card and one message for each link.

    Raises:
        KernelError: netlink itself failed.
    """
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
        _read_port(sysfs, f"{folder}/{number}", number) for number in _port_numbers(sysfs, rdma_device)
    )


def _read_port(sysfs: PseudoFiles, port: str, number: int) -> RdmaPort:
    return RdmaPort(
        number=number,
        state=_after_number(sysfs.text(f"{port}/state")),
        phys_state=_after_number(sysfs.text(f"{port}/phys_state")),
        link_layer=sysfs.text(f"{port}/link_layer"),
    )


def _read_link_counters(ifindexes: Iterable[int]) -> dict[int, dict[str, int]]:
    wanted = sorted(set(ifindexes))
    if not wanted:
        return {}
    found: dict[int, dict[str, int]] = {}
    with NetlinkSocket.open() as rtnl:
        outcomes = rtnl.batch([get_counted_link_request(ifindex) for ifindex in wanted])
    for ifindex, outcome in zip(wanted, outcomes, strict=True):
        if outcome and not isinstance(outcome, KernelError):
            found[ifindex] = decode(parse_link_counters, outcome[0].payload)
    return found


def _port_numbers(sysfs: PseudoFiles, rdma_device: str) -> list[int]:
    return sysfs.numbered(f"{RDMA_CLASS}/{rdma_device}/ports")[:_MOST_PORTS]


def _read_port_counters(sysfs: PseudoFiles, rdma_device: str) -> dict[str, int]:
    """The sum over all ports: what rises on one of them rises in the sum."""
    sums: dict[str, int] = {}
    for number in _port_numbers(sysfs, rdma_device) if rdma_device else ():
        for path in _PORT_COUNTERS:
            value = sysfs.text(f"{RDMA_CLASS}/{rdma_device}/ports/{number}/{path}")
            if value.isdecimal() and len(value) <= 20:  # "N/A (no PMA)" on virtual functions
                name = path.rpartition("/")[2]
                sums[name] = sums.get(name, 0) + int(value)
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


def _after_number(text: str) -> str:
    """``ACTIVE`` of ``4: ACTIVE``."""
    return text.partition(": ")[2] or text

"""What can be wrong with a device: the faults, how grave each is, and the signs that tell of them.

Pure, and without a memory: :func:`find_present` judges what one look shows. What shows only in the course of
time (counters that rise, a link that flaps, a version that changed) is judged in ``health_tracker``, which
also waits (``health_damping``) before a fault counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from dranet.dataclass import dataclass
from dranet.model.facts import Link, RdmaPort


class Severity(StrEnum):
    """What a fault means for who uses the device."""

    HARD = "hard"
    """It carries nothing."""
    SOFT = "soft"
    """It works, and badly."""
    NOTICE = "notice"
    """It works; somebody should know. The device stays healthy."""


class FaultKind(StrEnum):
    """Names of faults, for messages, settings, taints and metrics; they never change their meaning."""

    LINK_DOWN = "link-down"
    """The link is administratively up and has no carrier."""
    RDMA_PORT_DOWN = "rdma-port-down"
    """No port of the RDMA device is ACTIVE, and no link without a carrier explains it."""
    LINK_FLAPPING = "link-flapping"
    """The carrier was lost several times within some minutes."""
    LINK_ERRORS = "link-errors"
    """Error counters of the link or of an RDMA port keep rising."""
    PCIE_DEGRADED = "pcie-degraded"
    """The PCIe link runs at less than both of its ends can."""
    FIRMWARE_CHANGED = "firmware-changed"
    """Since the device was first seen after the node booted."""
    DRIVER_CHANGED = "driver-changed"

    @property
    def severity(self) -> Severity:
        return _SEVERITIES[self]


_SEVERITIES: Mapping[FaultKind, Severity] = {
    FaultKind.LINK_DOWN: Severity.HARD,
    FaultKind.RDMA_PORT_DOWN: Severity.HARD,
    FaultKind.LINK_FLAPPING: Severity.SOFT,
    FaultKind.LINK_ERRORS: Severity.SOFT,
    FaultKind.PCIE_DEGRADED: Severity.SOFT,
    FaultKind.FIRMWARE_CHANGED: Severity.NOTICE,
    FaultKind.DRIVER_CHANGED: Severity.NOTICE,
}


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The PCIe link of one function (``Documentation/ABI/testing/sysfs-bus-pci``); 0 where not told."""

    speed: float = 0.0
    """GT/s for each lane, now."""
    width: int = 0
    """Lanes in use."""
    most_speed: float = 0.0
    """What the card can."""
    most_width: int = 0
    port_speed: float = 0.0
    """What the port above it can: the slot. A card in a narrower slot is as it should be."""
    port_width: int = 0
    asleep: bool = False
    """Runtime power management has put the function to sleep; what its link does then means nothing."""


CARRIER_LOSSES = "carrier_down_count"
"""Among the counters of a link: how often the carrier was lost (``IFLA_CARRIER_DOWN_COUNT``, Linux 4.16)."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What has to be read to be known, now and then: no notification tells of it."""

    counters: Mapping[str, int] = field(default_factory=dict)
    """Error counters since the driver was loaded, by the kernel's name, and :data:`CARRIER_LOSSES`."""
    pcie: PcieLink | None = None
    ports: tuple[RdmaPort, ...] | None = None
    """Ports as just read, where that is newer than the scan; ``None``: not read."""


@dataclass(frozen=True, slots=True)
class Signs:
    """All that is known of one device at one moment."""

    link: Link | None = None
    """Of the node or in the pod; ``None`` where it is out of sight."""
    has_link: bool = False
    """It has one, in sight or not."""
    holder: str = ""
    """UID of the pod that has the link; empty while the node has it."""
    rdma_device: str = ""
    ports: tuple[RdmaPort, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    """Empty where they were not read."""
    pcie: PcieLink | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of firmware and drivers, by what they are versions of (:data:`FIRMWARE_SOURCES` and others)."""
    times_off: int = 0
    """How often the holder has switched the link off, as far as that was told."""


FIRMWARE_SOURCES = ("firmware", "RDMA firmware")
"""Keys of ``Signs.versions`` that are firmware. The other ones are drivers."""

Present = Mapping[FaultKind, str]
"""Faults that show now, each with what was seen."""


def find_present(signs: Signs) -> dict[FaultKind, str]:
    """The faults that a single look shows."""
    present: dict[FaultKind, str] = {}
    link = signs.link
    if link is not None and link.is_up and not link.carrier and not is_on_infiniband(signs):
        present[FaultKind.LINK_DOWN] = f"{link.ifname} has no carrier"
        return present  # a RoCE port goes down with its link: one cause, one fault
    ports = _own_ports(signs)
    down = [text for port in ports if (text := _why_down(port, signs))]
    if down and not any(port.state == "ACTIVE" for port in ports):
        present[FaultKind.RDMA_PORT_DOWN] = "; ".join(down)
    return present


def is_on_infiniband(signs: Signs) -> bool:
    """Whether a port that nobody disabled tells how the device is, whatever its IPoIB interface does.

    That one has no carrier when its partition or multicast group is refused, and is switched off on most
    nodes; RDMA works all the same.
    """
    return any(
        port.link_layer == "InfiniBand" and port.phys_state != "Disabled" for port in _own_ports(signs)
    )


def _own_ports(signs: Signs) -> tuple[RdmaPort, ...]:
    """Those that name the device's link, where any does: a card may have another one without a cable."""
    ifname = signs.link.ifname if signs.link is not None else ""
    return tuple(port for port in signs.ports if ifname in port.netdevs) or signs.ports


def _why_down(port: RdmaPort, signs: Signs) -> str:
    """Empty for a port that works, or that somebody has switched off."""
    if port.state == "ACTIVE" or _is_switched_off(port, signs):
        return ""
    physical = f" ({port.phys_state})" if port.phys_state else ""
    return f"{signs.rdma_device} port {port.number} is {port.state or 'in an unknown state'}{physical}"


def _is_switched_off(port: RdmaPort, signs: Signs) -> bool:
    """A RoCE port is as its link is told to be: nothing can be said while that is down or out of sight."""
    if port.phys_state == "Disabled":
        return True
    return port.link_layer == "Ethernet" and signs.has_link and (signs.link is None or not signs.link.is_up)


def find_unknown(signs: Signs) -> str:
    """Why nothing can be said of the device; empty where something works or shows a fault."""
    link = signs.link
    if any(port.state == "ACTIVE" for port in _own_ports(signs)) or (link is not None and link.is_up):
        return ""
    if is_on_infiniband(signs):
        return ""
    if link is not None:
        return f"{link.ifname} is administratively down" + (" in the pod" if signs.holder else "")
    if signs.has_link:
        return "its link is in a pod's network namespace, and not in sight" if signs.holder else "no link"
    if signs.ports and all(port.phys_state == "Disabled" for port in signs.ports):
        return f"{signs.rdma_device} is switched off"
    return "" if signs.ports else "nothing of it is watched"

"""What can be wrong with a device: the faults, how grave each is, and the observation that tell of them.

Pure, and without a memory: :func:`find_present` judges what one look shows. What shows only in the course of
time (counters that rise, a link that flaps, a version that changed) is judged in ``health_tracker``, which
also waits (``health_damping``) before a fault counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from dranet.model.facts import Link, RdmaPort


class FaultSeverity(StrEnum):
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
    def severity(self) -> FaultSeverity:
        return _SEVERITIES[self]


_SEVERITIES: Mapping[FaultKind, FaultSeverity] = {
    FaultKind.LINK_DOWN: FaultSeverity.HARD,
    FaultKind.RDMA_PORT_DOWN: FaultSeverity.HARD,
    FaultKind.LINK_FLAPPING: FaultSeverity.SOFT,
    FaultKind.LINK_ERRORS: FaultSeverity.SOFT,
    FaultKind.PCIE_DEGRADED: FaultSeverity.SOFT,
    FaultKind.FIRMWARE_CHANGED: FaultSeverity.NOTICE,
    FaultKind.DRIVER_CHANGED: FaultSeverity.NOTICE,
}


class PcieLink(Struct, frozen=True):
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


class HealthCounters(Struct, frozen=True):
    """What has to be read to be known, now and then: no notification tells of it."""

    counters: Mapping[str, int] = field(default_factory=dict)
    """Error counters since the driver was loaded, by the kernel's name, and :data:`CARRIER_LOSSES`."""
    pcie: PcieLink | None = None
    ports: tuple[RdmaPort, ...] | None = None
    """Ports as just read, where that is newer than the scan; ``None``: not read."""


class HealthObservation(Struct, frozen=True):
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
"""Keys of ``HealthObservation.versions`` that are firmware. The other ones are drivers."""

"""Nouns of health: kinds of faults, how severe each is, and what is observed of a device."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from dranet.model.facts import Link, RdmaPort


class FaultSeverity(StrEnum):
    """What a fault means for the user of the device."""

    HARD = "hard"
    """The device carries nothing."""
    SOFT = "soft"
    """The device works badly."""
    NOTICE = "notice"
    """The device works and stays healthy; the operator should know."""


class FaultKind(StrEnum):
    """Names of faults in messages, settings, taints and metrics. Their meaning never changes."""

    LINK_DOWN = "link-down"
    """The link is administratively up and has no carrier."""
    RDMA_PORT_DOWN = "rdma-port-down"
    """No port of the RDMA device is ACTIVE, and no link without a carrier explains it."""
    LINK_FLAPPING = "link-flapping"
    """The carrier was lost several times within some minutes."""
    LINK_ERRORS = "link-errors"
    """Error counters of the link or of an RDMA port keep rising."""
    PCIE_DEGRADED = "pcie-degraded"
    """The PCIe link runs below what both of its ends support."""
    FIRMWARE_CHANGED = "firmware-changed"
    """Since the device was first seen after the node booted."""
    DRIVER_CHANGED = "driver-changed"

    @property
    def severity(self) -> FaultSeverity:
        match self:
            case FaultKind.LINK_DOWN | FaultKind.RDMA_PORT_DOWN:
                return FaultSeverity.HARD
            case FaultKind.LINK_FLAPPING | FaultKind.LINK_ERRORS | FaultKind.PCIE_DEGRADED:
                return FaultSeverity.SOFT
            case FaultKind.FIRMWARE_CHANGED | FaultKind.DRIVER_CHANGED:
                return FaultSeverity.NOTICE


class PcieLink(Struct, frozen=True):
    """The PCIe link of one function (``Documentation/ABI/testing/sysfs-bus-pci``); 0: not reported."""

    speed: float = 0.0
    """Current speed in GT/s per lane."""
    width: int = 0
    """Lanes in use."""
    most_speed: float = 0.0
    """What the card supports."""
    most_width: int = 0
    port_speed: float = 0.0
    """What the port above the card supports. A card in a slower slot is not a fault."""
    port_width: int = 0
    asleep: bool = False
    """Whether runtime power management suspended the function; the link's values mean nothing then."""


CARRIER_LOSSES = "carrier_down_count"
"""The counter of carrier losses of a link (``IFLA_CARRIER_DOWN_COUNT``, Linux 4.16)."""


class HealthCounters(Struct, frozen=True):
    """Values that must be read periodically, because no notification reports them."""

    counters: Mapping[str, int] = field(default_factory=dict)
    """Error counters since the driver was loaded, by the kernel's name, and :data:`CARRIER_LOSSES`."""
    pcie: PcieLink | None = None
    ports: tuple[RdmaPort, ...] | None = None
    """Ports as just read, if that is newer than the scan; ``None``: not read."""


class HealthObservation(Struct, frozen=True):
    """All that is known of one device at one moment."""

    link: Link | None = None
    """On the node or in the pod; ``None``: out of sight."""
    has_link: bool = False
    """Whether the device has a link, in sight or not."""
    holder: str = ""
    """UID of the pod that has the link; empty while the node has it."""
    rdma_device: str = ""
    ports: tuple[RdmaPort, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    """Empty if they were not read."""
    pcie: PcieLink | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of firmware and drivers by component (:data:`FIRMWARE_SOURCES` and others)."""
    times_off: int = 0
    """How often the holder has switched the link off, as far as is known."""


FIRMWARE_SOURCES = ("firmware", "RDMA firmware")
"""Keys of ``HealthObservation.versions`` that are firmware. The others are drivers."""

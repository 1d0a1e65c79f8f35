"""PCI functions and the bridges above them, from their config space (``sysfs-bus-pci``: ``config``).

Root reads all 4096 bytes, other users the first 64. Layout and bits are those of ``linux/pci_regs.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import PciFacts

_DEVICES = "bus/pci/devices"
_CONFIG_BYTES = 4096
_PLAIN_BYTES = 64
"""Bytes that every user may read."""

_STATUS, _HAS_LIST, _FIRST = 0x06, 0x10, 0x34
_PCIE_ID, _ACS_ID = 0x10, 0x000D
_EXTENDED = 0x100
_PORTS = {0: "endpoint", 1: "endpoint", 4: "root port", 5: "upstream port", 6: "downstream port"}
_RELAXED_ORDERING = 0x0010
_MOST_CAPABILITIES = 64
"""A list that is longer goes in a circle."""


def read_pci(sysfs: PseudoFiles, address: str) -> PciFacts:
    """One function or bridge."""
    base = f"{_DEVICES}/{address}"
    config = sysfs.content(f"{base}/config", _CONFIG_BYTES)
    express = _find_express(config)
    control = _word(config, express + 8) if express else None
    return PciFacts(
        address=address,
        port=_PORTS.get((_word(config, express + 2) or 0) >> 4 & 0xF, "") if express else "",
        is_readable=len(config) > _PLAIN_BYTES,
        acs_control=_read_acs(config),
        max_read_request=None if control is None else 128 << (control >> 12 & 7),
        relaxed_ordering=None if control is None else bool(control & _RELAXED_ORDERING),
        iommu=sysfs.text(f"{base}/iommu_group/type"),
        speed=sysfs.text(f"{base}/current_link_speed"),
        width=sysfs.integer(f"{base}/current_link_width") or 0,
        max_speed=sysfs.text(f"{base}/max_link_speed"),
        max_width=sysfs.integer(f"{base}/max_link_width") or 0,
    )


def _word(config: bytes, offset: int) -> int | None:
    if offset + 2 > len(config):
        return None
    value: int = struct.unpack_from("<H", config, offset)[0]
    return value


def _find_express(config: bytes) -> int:
    """Where the PCI Express capability begins; 0 without one."""
    if not (_word(config, _STATUS) or 0) & _HAS_LIST:
        return 0
    offset = (_word(config, _FIRST) or 0) & 0xFC
    for _ in range(_MOST_CAPABILITIES):
        header = _word(config, offset)
        if offset < _PLAIN_BYTES or header is None:
            return 0
        if header & 0xFF == _PCIE_ID:
            return offset
        offset = header >> 8 & 0xFC
    return 0


def _read_acs(config: bytes) -> int | None:
    return next((_word(config, at + 6) for kind, at in _iter_extended(config) if kind == _ACS_ID), None)


def _iter_extended(config: bytes) -> Iterator[tuple[int, int]]:
    """Identifier and offset of each extended capability."""
    offset = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if offset < _EXTENDED or offset + 4 > len(config):
            return
        header: int = struct.unpack_from("<I", config, offset)[0]
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, offset
        offset = header >> 20 & 0xFFC

"""Devices -> pages of ResourceSlices within the API's limit.

The order is kept: consumers try devices in slice order, so it is the order of preference. Where the
pages fall depends on the devices alone, so that nothing is rewritten while nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dranet.model.device import Device

MAX_DEVICES_PER_SLICE = 128
"""``resource.k8s.io/v1``; it would be 64 with taints, counters or list attributes, which we do not use."""


def build_slices(
    devices: Sequence[Device], limit: int = MAX_DEVICES_PER_SLICE
) -> tuple[tuple[Device, ...], ...]:
    """Pages of at most ``limit`` devices; for none one empty page, which tells that the pool is complete."""
    starts = range(0, len(devices), limit)
    return tuple(tuple(devices[start : start + limit]) for start in starts) or ((),)

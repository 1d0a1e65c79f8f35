"""Pages of slices: within the limit, in order, and one even for nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.slices import MAX_DEVICES_PER_SLICE, build_slices
from dranet.model.device import Device, DeviceKind


@given(count=st.integers(0, 600))
def test_pages_keep_every_device_in_order_and_within_the_limit(count: int) -> None:
    devices = [Device(f"d{i}", DeviceKind.NIC) for i in range(count)]
    pages = build_slices(devices)

    assert [device for page in pages for device in page] == devices
    assert max(map(len, pages)) <= MAX_DEVICES_PER_SLICE
    assert len(pages) == max(1, -(-count // MAX_DEVICES_PER_SLICE))

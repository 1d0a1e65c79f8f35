"""What changes again and again is not written again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import pytest

from dranet.driver.publish import SliceRateLimiter
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect

Pages = Sequence[Sequence[Device]]

NO_TAINTS: Mapping[str, Sequence[Taint]] = {}
TAINTS = {"eth1": (Taint("dra.net/link-down", TaintEffect.NO_SCHEDULE),)}


def pages(state: str) -> Pages:
    """A new object each time, as of a new scan."""
    return [[Device("eth1", DeviceKind.NIC, {"dra.net/state": state})]]


class Slices:
    def __init__(self) -> None:
        self.told: list[tuple[Pages, Mapping[str, Sequence[Taint]]]] = []
        self.changed = asyncio.Event()

    def set_desired(self, pages: Pages, taints: Mapping[str, Sequence[Taint]] = NO_TAINTS, /) -> None:
        self.told.append((pages, taints))
        self.changed.set()


@pytest.fixture
def slices() -> Slices:
    return Slices()


async def test_what_changes_now_and_then_is_told_at_once(slices: Slices) -> None:
    paced = SliceRateLimiter(slices, burst=3, refill_seconds=3600)
    for state in ("up", "up", "down", "up"):
        paced.set_desired(pages(state), {})
    assert [told for told, _ in slices.told] == [pages("up"), pages("down"), pages("up")]


async def test_a_device_that_goes_to_a_pod_is_the_same_in_slices(slices: Slices) -> None:
    paced = SliceRateLimiter(slices, burst=1, refill_seconds=3600)
    for ifname in ("eth1", "", "eth1"):
        paced.set_desired([[Device("eth1", DeviceKind.NIC, {"dra.net/state": "up"}, ifname=ifname)]], {})
    assert len(slices.told) == 1


async def test_a_link_that_flaps_for_ever_is_told_a_few_times_a_minute(
    slices: Slices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    paced = SliceRateLimiter(slices, burst=3, refill_seconds=20, clock=clock)
    for second in range(600):
        clock.now = float(second)
        paced.set_desired(pages("down" if second % 2 else "up"), {})
        paced.look()
    assert 600 / 20 <= len(slices.told) <= 3 + 600 / 20
    assert len(caplog.messages) == 1
    assert "20 s" in caplog.messages[0]


async def test_the_end_of_it_is_told_although_nothing_more_comes(slices: Slices) -> None:
    clock = Clock()
    paced = SliceRateLimiter(slices, burst=1, refill_seconds=0.05, clock=clock)
    paced.set_desired(pages("up"), {})
    for state in ("down", "up", "down"):
        paced.set_desired(pages(state), {})
    assert len(slices.told) == 1
    slices.changed.clear()
    clock.now = 1.0
    async with asyncio.timeout(10):
        await slices.changed.wait()
    assert slices.told[1:] == [(pages("down"), {})]


async def test_what_is_as_it_was_when_its_turn_comes_is_not_told(slices: Slices) -> None:
    clock = Clock()
    paced = SliceRateLimiter(slices, burst=1, refill_seconds=20, clock=clock)
    paced.set_desired(pages("up"), {})
    paced.set_desired(pages("up"), TAINTS)
    paced.set_desired(pages("up"), {})
    clock.now = 100.0
    paced.look()
    assert slices.told == [(pages("up"), {})]
    paced.set_desired(pages("up"), TAINTS)
    assert slices.told[1:] == [(pages("up"), TAINTS)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

"""What the kubelet hears of a device while its link moves between node and pod."""

from __future__ import annotations

from dranet.driver.health import UNKNOWN_SECONDS, SteadyHealth
from dranet.kubelet.plugin import DeviceHealthFact

WELL = DeviceHealthFact("node", "eth1", True)
OFF = DeviceHealthFact("node", "eth1", None, "eth1 is administratively down")
BROKEN = DeviceHealthFact("node", "eth1", False, "link-down: eth1 has no carrier")


def test_a_device_that_was_well_is_told_as_well_while_it_is_off_on_the_node() -> None:
    told = SteadyHealth()
    assert told.settle([WELL], {"eth1"}, 0) == (WELL,)
    assert told.settle([OFF], (), 1) == (WELL,)
    assert told.settle([OFF], (), 1 + 10 * UNKNOWN_SECONDS) == (WELL,)


def test_a_link_that_stays_off_in_a_pod_is_told_so() -> None:
    told = SteadyHealth()
    told.settle([WELL], {"eth1"}, 0)
    assert told.settle([OFF], {"eth1"}, 1) == (WELL,)
    assert told.settle([OFF], {"eth1"}, 1 + UNKNOWN_SECONDS) == (OFF,)


def test_time_on_the_node_does_not_count_as_time_in_a_pod() -> None:
    told = SteadyHealth()
    told.settle([WELL], (), 0)
    told.settle([OFF], (), 1)
    assert told.settle([OFF], {"eth1"}, 100) == (WELL,)


def test_a_fault_is_told_at_once_and_forgets_that_the_device_was_well() -> None:
    told = SteadyHealth()
    told.settle([WELL], {"eth1"}, 0)
    assert told.settle([BROKEN], {"eth1"}, 1) == (BROKEN,)
    assert told.settle([OFF], {"eth1"}, 2) == (OFF,)


def test_nothing_is_made_up_of_a_device_that_was_never_well_or_is_gone() -> None:
    told = SteadyHealth()
    assert told.settle([OFF], (), 0) == (OFF,)
    told.settle([WELL], (), 1)
    assert told.settle([], (), 2) == ()
    assert told.settle([OFF], (), 3) == (OFF,)

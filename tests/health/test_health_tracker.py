"""One device over time: observation in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.health import (
    TAINT_KEYS,
    Damping,
    DeviceHealth,
    DeviceMemory,
    DeviceTracker,
    Patience,
    build_taints,
)
from dranet.model.device import Taint, TaintEffect
from dranet.model.facts import Link, RdmaPort
from dranet.model.health import CARRIER_LOSSES, FaultKind, FaultSeverity, HealthObservation, PcieLink

UP = Link(3, "eth1", flags=1, carrier=True)
NO_CARRIER = replace(UP, carrier=False)
SWITCHED_OFF = replace(UP, flags=0, carrier=False)
ACTIVE = RdmaPort(1, "ACTIVE", "Ethernet", phys_state="LinkUp")
WALL = 1_800_000_000.0
NO_COUNTERS: Mapping[str, int] = {}
NO_VERSIONS: Mapping[str, str] = {}


def nic(
    link: Link | None = UP,
    *,
    holder: str = "",
    rdma_device: str = "",
    ports: tuple[RdmaPort, ...] = (),
    counters: Mapping[str, int] = NO_COUNTERS,
    pcie: PcieLink | None = None,
    versions: Mapping[str, str] = NO_VERSIONS,
) -> HealthObservation:
    return HealthObservation(link, True, holder, rdma_device, ports, counters, pcie, versions)


def infiniband(state: str, phys_state: str = "LinkUp") -> HealthObservation:
    return HealthObservation(
        rdma_device="mlx5_0", ports=(RdmaPort(1, state, "InfiniBand", phys_state=phys_state),)
    )


class Watched:
    """A device and its clock."""

    def __init__(self, patience: Patience | None = None, memory: DeviceMemory | None = None) -> None:
        self.now = 500.0
        self.tracker = DeviceTracker(patience or Patience(), memory or DeviceMemory())
        self.losses = 0

    def see(self, observation: HealthObservation, after: float = 0.0) -> DeviceHealth:
        self.now += after
        self.losses += self.tracker.observe(observation, self.now, WALL + self.now)
        return self.tracker.health

    def last(self, observation: HealthObservation, seconds: float, every: float = 5.0) -> DeviceHealth:
        """The same observation for a while, looked at again and again."""
        for _ in range(int(seconds / every)):
            self.see(observation, every)
        return self.tracker.health


@pytest.fixture
def device() -> Watched:
    return Watched()


def test_a_link_without_a_carrier_is_unhealthy_after_ten_seconds_and_says_since_when(device: Watched) -> None:
    assert device.see(nic()) == DeviceHealth(True)
    assert device.see(nic(NO_CARRIER), 1).healthy is True
    assert device.tracker.due == 511.0
    health = device.see(nic(NO_CARRIER), 10)
    assert health.healthy is False
    assert health.faults == (FaultKind.LINK_DOWN,)
    assert health.message == "link-down: eth1 has no carrier, since 2027-01-15T08:08:21Z"
    assert device.tracker.due is None, "nothing to wake up for"


def test_it_is_healthy_again_a_minute_after_the_carrier_came_back(device: Watched) -> None:
    device.see(nic())
    device.last(nic(NO_CARRIER), 20)
    broken = device.tracker.health
    assert device.see(nic(), 100) == broken, "it may come back at once"
    health = device.see(nic(), 30)
    assert health.healthy is False
    assert health.message.endswith("it has gone, and is watched for a while")
    assert device.see(nic(), 29).healthy is False
    assert device.see(nic(), 1) == DeviceHealth(True)


def test_a_link_that_is_administratively_down_is_unknown_and_has_no_fault(device: Watched) -> None:
    device.see(nic())
    health = device.last(nic(SWITCHED_OFF), 3600, every=60)
    assert health == DeviceHealth(None, "eth1 is administratively down")
    assert (
        device.last(nic(SWITCHED_OFF, holder="pod"), 600).message
        == "eth1 is administratively down in the pod"
    )


def test_switching_a_broken_link_off_clears_its_fault(device: Watched) -> None:
    device.see(nic())
    device.last(nic(NO_CARRIER), 30)
    assert device.last(nic(SWITCHED_OFF), 70) == DeviceHealth(None, "eth1 is administratively down")


@pytest.mark.parametrize("holder", ["", "pod"])
def test_a_link_that_was_just_switched_on_or_moved_has_a_minute_until_it_must_work(
    device: Watched, holder: str
) -> None:
    """Long cables and fast links train for many seconds; each attach makes them do it again."""
    device.see(nic())
    device.see(nic(SWITCHED_OFF))
    health = device.see(nic(NO_CARRIER, holder=holder), 1)
    assert health == DeviceHealth(None, "eth1 has no carrier yet")
    assert device.last(nic(NO_CARRIER, holder=holder), 55) == health
    health = device.last(nic(NO_CARRIER, holder=holder), 20)
    assert health.faults == (FaultKind.LINK_DOWN,)


def test_one_that_has_worked_since_is_judged_as_any_other(device: Watched) -> None:
    device.see(nic(SWITCHED_OFF))
    device.see(nic(NO_CARRIER), 1)
    device.see(nic(), 5)
    assert device.last(nic(NO_CARRIER), 15).healthy is False


def test_a_broken_link_stays_broken_when_it_is_moved(device: Watched) -> None:
    device.see(nic())
    first = device.last(nic(NO_CARRIER), 20)
    device.see(nic(None, holder="pod"))
    device.see(nic(SWITCHED_OFF, holder="pod"))
    assert device.last(nic(NO_CARRIER, holder="pod"), 600) == first


@pytest.mark.parametrize("seconds_down", [1, 11, 20, 30])
def test_a_link_that_flaps_while_its_fault_counts_is_told_once(device: Watched, seconds_down: int) -> None:
    """The kubelet writes each new text into the pod's status."""
    device.see(nic())
    told = {device.last(nic(NO_CARRIER), 20).message}
    for second in range(3600):
        told.add(device.see(nic(NO_CARRIER if second % 31 < seconds_down else UP), 1).message)
    assert len(told) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 130), st.floats(0.5, 1000)), min_size=40, max_size=40))
@example([(1.0, 1.0)] * 36 + [(1.0, 68.0), (1.0, 230.0), (10.0, 48.0), (1.0, 9.0)])
def test_however_a_link_flaps_each_fault_changes_twice_a_minute_at_most_and_its_words_three_times(
    flaps: list[tuple[float, float]],
) -> None:
    """A flapping link has two faults, so a device writes its taints four times a minute at the very most."""
    device = Watched()
    device.see(nic(counters={CARRIER_LOSSES: 0}))
    faults: dict[FaultKind, list[tuple[float, object]]] = {kind: [] for kind in FLAPPING}
    words: list[tuple[float, object]] = []
    for losses, seconds in enumerate(flaps, start=1):
        for link, lasting in zip((NO_CARRIER, UP), seconds, strict=True):
            observation, end = nic(link, counters={CARRIER_LOSSES: losses}), device.now + lasting
            due: float | None = device.now
            while due is not None and due <= end:
                health = device.see(observation, max(due - device.now, 0))
                assert set(health.faults) <= set(FLAPPING)
                for kind, told in faults.items():
                    told.append((device.now, kind in health.faults))
                words.append((device.now, health.message))
                due = device.tracker.due
                due = max(due, device.now + 0.05) if due is not None else None
            device.now = end
    assert all(most_changes_in_a_minute(told) <= 2 for told in faults.values())
    assert most_changes_in_a_minute(words) <= 3 * len(FLAPPING)


FLAPPING = (FaultKind.LINK_DOWN, FaultKind.LINK_FLAPPING)


def most_changes_in_a_minute(told: list[tuple[float, object]]) -> int:
    changes = [now for (_, before), (now, after) in pairwise(told) if before != after]
    return max((sum(begin <= now < begin + 60 for now in changes) for begin in changes), default=0)


def test_what_a_link_does_while_it_may_train_is_no_fault(device: Watched) -> None:
    """Each change of rings, channels or MTU takes the carrier, and so may training; errors come with it."""
    device.see(nic(SWITCHED_OFF, holder="pod"))
    for count in range(1, 11):
        counters = {CARRIER_LOSSES: count, "rx_crc_errors": 100 * count}
        device.see(nic(NO_CARRIER, holder="pod", counters=counters), 1)
        device.see(nic(holder="pod", counters=counters), 4)
    assert device.last(nic(holder="pod", counters=counters), 600) == DeviceHealth(True)


def test_a_fault_goes_on_while_nobody_sees_the_link_but_not_for_ever(device: Watched) -> None:
    device.see(nic())
    first = device.last(nic(NO_CARRIER, holder="pod"), 100)
    assert first.healthy is False
    after_restart = Watched(memory=device.tracker.memory)
    after_restart.now = device.now
    unseen = nic(None, holder="pod", ports=(ACTIVE,))
    assert after_restart.see(unseen, 1) == first
    assert after_restart.last(unseen, 55) == first
    assert after_restart.last(unseen, 40).message.endswith("it has gone, and is watched for a while")
    assert after_restart.last(unseen, 60) == DeviceHealth(True), "its RDMA port says that it works"


def test_a_device_without_a_carrier_from_the_beginning_is_unknown_first_and_then_unhealthy(
    device: Watched,
) -> None:
    assert device.see(nic(NO_CARRIER)) == DeviceHealth(None, "eth1 has no carrier yet")
    assert device.last(nic(NO_CARRIER), 80).healthy is False


def test_what_is_out_of_sight_is_unknown_and_says_so(device: Watched) -> None:
    health = device.see(nic(None, holder="pod"))
    assert health == DeviceHealth(None, "its link is in a pod's network namespace, and not in sight")
    assert device.see(nic(None, holder="pod", ports=(ACTIVE,))).healthy is True, "its RDMA port tells"


@pytest.mark.parametrize("state", ["DOWN", "INIT", "ARMED", ""])
def test_an_infiniband_port_that_is_not_active_is_a_hard_fault(device: Watched, state: str) -> None:
    device.see(infiniband("ACTIVE"))
    health = device.last(infiniband(state, "Polling"), 20)
    assert health.faults == (FaultKind.RDMA_PORT_DOWN,)
    assert health.faults[0].severity is FaultSeverity.HARD
    assert f"mlx5_0 port 1 is {state or 'in an unknown state'} (Polling)" in health.message


@pytest.mark.parametrize("link", [UP, NO_CARRIER, SWITCHED_OFF, None])
def test_on_infiniband_the_port_tells_and_not_the_ipoib_interface(device: Watched, link: Link | None) -> None:
    """It is down on most nodes, and has no carrier where the fabric refuses its multicast group."""
    ipoib = replace(link, arp_type=32) if link is not None else None
    active, down = (
        nic(ipoib, rdma_device="mlx5_0", ports=infiniband(state, "LinkUp").ports)
        for state in ("ACTIVE", "INIT")
    )
    assert device.last(active, 600) == DeviceHealth(True)
    assert device.last(down, 20).faults == (FaultKind.RDMA_PORT_DOWN,)
    assert device.last(active, 80) == DeviceHealth(True)


def test_a_port_without_a_cable_beside_one_that_works_is_no_fault(device: Watched) -> None:
    """Dual-port cards are one function; the other port is not ours, or not in use."""
    works, empty = (
        RdmaPort(1, "ACTIVE", "InfiniBand"),
        RdmaPort(2, "DOWN", "InfiniBand", phys_state="Polling"),
    )
    both = HealthObservation(rdma_device="mlx4_0", ports=(works, empty))
    assert device.last(both, 600) == DeviceHealth(True)
    health = device.last(replace(both, ports=(replace(works, state="DOWN"), empty)), 20)
    assert health.faults == (FaultKind.RDMA_PORT_DOWN,)


def test_a_roce_port_of_another_link_tells_nothing_of_ours(device: Watched) -> None:
    mine = RdmaPort(1, "DOWN", "Ethernet", netdevs=("eth1",), phys_state="Polling")
    other = RdmaPort(2, "ACTIVE", "Ethernet", netdevs=("eth2",))
    observation = nic(rdma_device="mlx4_0", ports=(mine, other))
    assert device.last(observation, 100).faults == (FaultKind.RDMA_PORT_DOWN,)
    swapped = replace(observation, ports=(replace(mine, state="ACTIVE"), replace(other, state="DOWN")))
    assert device.last(swapped, 200) == DeviceHealth(True)


def test_on_a_card_with_a_port_of_each_kind_an_ethernet_link_is_judged_by_its_carrier(
    device: Watched,
) -> None:
    mine = RdmaPort(2, "DOWN", "Ethernet", netdevs=("eth1",), phys_state="Disabled")
    observation = nic(NO_CARRIER, rdma_device="mlx4_0", ports=(*infiniband("ACTIVE").ports, mine))
    assert device.last(observation, 100).faults == (FaultKind.LINK_DOWN,)
    switched_off = replace(observation, link=SWITCHED_OFF)
    assert device.last(switched_off, 100) == DeviceHealth(None, "eth1 is administratively down")


def test_a_port_that_is_down_while_the_link_is_out_of_sight_asks_for_no_look(device: Watched) -> None:
    observation = nic(None, holder="pod", rdma_device="mlx5_0", ports=infiniband("DOWN", "Polling").ports)
    assert device.last(observation, 600).faults == (FaultKind.RDMA_PORT_DOWN,)
    assert device.tracker.due is None


def test_a_port_that_somebody_disabled_is_unknown(device: Watched) -> None:
    assert device.last(infiniband("DOWN", "Disabled"), 60) == DeviceHealth(None, "mlx5_0 is switched off")


def test_a_roce_port_whose_link_is_down_adds_no_second_fault(device: Watched) -> None:
    down = RdmaPort(1, "DOWN", "Ethernet", phys_state="Disabled")
    device.see(nic(rdma_device="mlx5_0", ports=(ACTIVE,)))
    health = device.last(nic(NO_CARRIER, rdma_device="mlx5_0", ports=(down,)), 60)
    assert health.faults == (FaultKind.LINK_DOWN,)
    down = replace(down, phys_state="Polling")
    fresh = Watched()
    assert fresh.last(nic(SWITCHED_OFF, rdma_device="mlx5_0", ports=(down,)), 200).healthy is None
    assert fresh.last(nic(None, rdma_device="mlx5_0", ports=(down,), holder="pod"), 200).healthy is None
    health = fresh.last(nic(UP, rdma_device="mlx5_0", ports=(down,), holder="pod"), 100)
    assert health.faults == (FaultKind.RDMA_PORT_DOWN,)
    off = nic(SWITCHED_OFF, rdma_device="mlx5_0", ports=(down,), holder="pod")
    assert fresh.last(off, 100).healthy is None, "switching it off ends its fault"


def test_a_carrier_lost_three_times_in_five_minutes_is_one_fault_until_it_holds(device: Watched) -> None:
    device.see(nic(counters={CARRIER_LOSSES: 6}))
    device.see(nic(counters={CARRIER_LOSSES: 7}), 60)
    device.losses = 0
    for losses in (8, 9, 10):
        device.see(nic(NO_CARRIER, counters={CARRIER_LOSSES: losses}), 20)
        device.see(nic(counters={CARRIER_LOSSES: losses}), 2)
    assert device.losses == 3
    health = device.see(nic(counters={CARRIER_LOSSES: 10}), 20)
    assert health.faults == (FaultKind.LINK_FLAPPING,)
    assert "link-flapping: the carrier was lost 3 times within 5 min" in health.message
    while (due := device.tracker.due) is not None:
        health = device.see(nic(counters={CARRIER_LOSSES: 10}), due - device.now + 0.001)
    assert health == DeviceHealth(True)
    assert 560 + 300 < device.now < 560 + 500


def test_moving_a_link_or_switching_it_off_and_on_is_no_flapping(device: Watched) -> None:
    for losses in range(1, 31):
        holder = f"pod-{losses}" if losses % 2 else ""
        device.see(nic(SWITCHED_OFF, holder=holder, counters={CARRIER_LOSSES: losses}), 1)
        device.see(nic(NO_CARRIER, holder=holder, counters={CARRIER_LOSSES: losses}), 1)
        assert device.see(nic(holder=holder, counters={CARRIER_LOSSES: losses}), 8) == DeviceHealth(True)
    assert device.losses == 0


def test_errors_that_keep_rising_are_a_soft_fault_and_one_burst_is_none(device: Watched) -> None:
    device.see(nic(counters={"rx_crc_errors": 100}))
    device.see(nic(counters={"rx_crc_errors": 100}), 60)
    assert device.last(nic(counters={"rx_crc_errors": 9000}), 250, every=50).faults == (), "one burst"
    health = device.see(nic(counters={"rx_crc_errors": 9011}), 40)
    health = device.last(nic(counters={"rx_crc_errors": 9011}), 20)
    assert health.faults == (FaultKind.LINK_ERRORS,)
    assert health.faults[0].severity is FaultSeverity.SOFT
    assert "link-errors: rose within 5 min: rx_crc_errors by 8911" in health.message


def test_a_counter_that_begins_anew_or_comes_late_is_no_error(device: Watched) -> None:
    device.see(nic(counters={"rx_errors": 5000}))
    device.see(nic(counters={"rx_errors": 12}), 60)
    device.see(nic(counters={"rx_errors": 15, "symbol_error": 800}), 60)
    device.see(nic(counters={"rx_errors": 18, "symbol_error": 801}), 60)
    assert device.last(nic(counters={"rx_errors": 18, "symbol_error": 801}), 60) == DeviceHealth(True)


def test_errors_after_a_counter_began_anew_count_from_there(device: Watched) -> None:
    device.see(nic(counters={"rx_errors": 5000}))
    for errors in (5, 100, 200):
        device.see(nic(counters={"rx_errors": errors}), 60)
    health = device.last(nic(counters={"rx_errors": 200}), 20)
    assert "rx_errors by 195" in health.message


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (PcieLink(16, 16, 32, 16, 32, 16), "PCIe link at 16 GT/s instead of 32 GT/s"),
        (PcieLink(32, 8, 32, 16, 32, 16), "PCIe link at x8 instead of x16"),
        (PcieLink(2.5, 1, 32, 16, 32, 16), "PCIe link at x1 instead of x16 and 2.5 GT/s instead of 32 GT/s"),
    ],
)
def test_a_pcie_link_below_what_card_and_slot_can_is_degraded(
    device: Watched, now: PcieLink, told: str
) -> None:
    health = device.last(nic(pcie=now), 60)
    assert health.faults == (FaultKind.PCIE_DEGRADED,)
    assert told in health.message


@pytest.mark.parametrize(
    "now",
    [
        PcieLink(32, 16, 32, 16, 32, 16),
        PcieLink(16, 8, 32, 16, 16, 8),  # the slot is narrower and slower than the card
        PcieLink(16, 8, 32, 16, 0, 0),  # a virtual machine hides the slot
        PcieLink(2.5, 1, 32, 16, 32, 16, asleep=True),
        PcieLink(),  # a virtual function has no link of its own
    ],
)
def test_a_pcie_link_that_does_what_it_can_is_fine(device: Watched, now: PcieLink) -> None:
    assert device.last(nic(pcie=now), 60) == DeviceHealth(True)


def test_without_a_slot_to_ask_the_best_seen_counts(device: Watched) -> None:
    hidden = PcieLink(32, 16, 32, 16)
    device.see(nic(pcie=hidden))
    assert device.last(nic(pcie=replace(hidden, width=4)), 60).faults == (FaultKind.PCIE_DEGRADED,)


def test_a_link_that_saves_power_by_its_speed_is_judged_by_it_no_longer(device: Watched) -> None:
    busy = PcieLink(32, 16, 32, 16, 32, 16)
    idle = replace(busy, speed=2.5)
    for _ in range(2):
        device.last(nic(pcie=idle), 60)
        device.last(nic(pcie=busy), 1200, every=60)
    assert device.last(nic(pcie=idle), 3600, every=60) == DeviceHealth(True)
    assert device.last(nic(pcie=replace(idle, width=8)), 60).faults == (FaultKind.PCIE_DEGRADED,)


def test_a_changed_firmware_is_told_and_the_device_stays_healthy(device: Watched) -> None:
    device.see(nic(versions={"firmware": "28.39", "driver": "mlx5_core"}))
    device.last(nic(versions={}), 60)
    health = device.last(nic(versions={"firmware": "28.40", "driver": "mlx5_core"}), 60)
    assert health.healthy is True
    assert health.faults == (FaultKind.FIRMWARE_CHANGED,)
    assert "firmware was 28.39 and is 28.40" in health.message


def test_an_ignored_fault_is_not_there() -> None:
    device = Watched(Patience(ignored=frozenset({FaultKind.LINK_DOWN})))
    assert device.last(nic(NO_CARRIER), 600).faults == ()


def test_a_fault_is_known_at_once_to_who_remembers_it(device: Watched) -> None:
    first = device.last(nic(NO_CARRIER), 100)
    after_restart = Watched(memory=device.tracker.memory)
    after_restart.now = device.now
    assert after_restart.see(nic(NO_CARRIER), 1) == first
    assert after_restart.see(nic(), 1).healthy is False
    assert after_restart.see(nic(), 60) == DeviceHealth(True)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 400), st.sampled_from([UP, NO_CARRIER, SWITCHED_OFF, None])), max_size=30
    )
)
def test_a_step_of_the_wall_clock_changes_no_verdict(story: list[tuple[float, Link | None]]) -> None:
    steady, stepped = DeviceTracker(), DeviceTracker()
    now = 0.0
    for number, (gap, link) in enumerate(story):
        now += gap
        steady.observe(nic(link), now, WALL + now)
        stepped.observe(nic(link), now, WALL * (number % 2) + 12345)
        assert steady.health.healthy == stepped.health.healthy
        assert steady.health.faults == stepped.health.faults
        assert steady.due == stepped.due


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100),
            st.sampled_from([UP, NO_CARRIER, SWITCHED_OFF, None]),
            st.integers(0, 40),
            st.sampled_from(["", "pod"]),
        ),
        max_size=40,
    ),
    st.sampled_from([UP, NO_CARRIER]),
)
def test_whatever_happened_a_device_ends_up_as_it_is(
    story: list[tuple[float, Link | None, int, str]], end: Link
) -> None:
    device = Watched(Patience(Damping(10, 60)))
    for gap, link, count, holder in story:
        counters = {CARRIER_LOSSES: count, "rx_errors": count}
        device.see(nic(link, counters=counters, holder=holder), gap)
        assert len(device.tracker.health.message) < 1024
    final = nic(end, counters={CARRIER_LOSSES: 50, "rx_errors": 50})
    device.see(final, 1)
    looks = 0
    while (due := device.tracker.due) is not None:
        assert due > device.now, "no hot loop"
        device.see(final, due - device.now + 0.001)
        looks += 1
        assert looks < 20
    assert device.tracker.health.healthy is end.carrier
    assert device.tracker.health.faults == (() if end.carrier else (FaultKind.LINK_DOWN,))


def test_a_steady_device_keeps_one_reading(device: Watched) -> None:
    for _ in range(1000):
        device.see(nic(counters={"rx_errors": 3, CARRIER_LOSSES: 2}), 60)
    assert len(device.tracker._counters._kept) == 1
    for count in range(1000):
        device.see(nic(counters={"rx_errors": count + 4, CARRIER_LOSSES: 2}), 0.5)
    assert len(device.tracker._counters._kept) <= 33


# --- taints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hardest", list(TaintEffect))
def test_only_hard_faults_get_the_effect_that_the_operator_chose(hardest: TaintEffect) -> None:
    taints = {taint.key: taint for taint in build_taints(FaultKind, hardest)}
    assert set(taints) == set(TAINT_KEYS)
    assert len(taints) == 4
    assert taints["dra.net/link-down"] == Taint("dra.net/link-down", hardest, "link-down")
    assert taints["dra.net/rdma-port-down"].effect is hardest
    assert taints["dra.net/degraded"] == Taint("dra.net/degraded", TaintEffect.NONE, "link-flapping")
    assert taints["dra.net/changed"].effect is TaintEffect.NONE


def test_no_taints_where_they_are_off_or_nothing_is_wrong() -> None:
    assert build_taints(FaultKind, None) == ()
    assert build_taints((), TaintEffect.NO_EXECUTE) == ()


def test_a_holder_who_switches_the_link_off_and_on_again_and_again_has_no_flapping_link() -> None:
    """Faster than anybody looks: seen is a link that is up and has lost its carrier, and that it was off."""
    watched = Watched()
    watched.last(nic(counters={CARRIER_LOSSES: 0}), 70)
    for times in range(1, 8):
        observation = replace(nic(counters={CARRIER_LOSSES: times}), times_off=times)
        assert watched.see(observation, 20).healthy is not False
    assert watched.last(observation, 60).healthy is True
    assert watched.losses == 0


def test_a_link_that_loses_its_carrier_flaps_although_it_was_once_switched_off() -> None:
    watched = Watched()
    watched.last(replace(nic(counters={CARRIER_LOSSES: 1}), times_off=1), 70)
    for losses in range(2, 6):
        observation = replace(nic(counters={CARRIER_LOSSES: losses}), times_off=1)
        watched.see(observation, 20)
    assert FaultKind.LINK_FLAPPING in watched.last(observation, 15).faults

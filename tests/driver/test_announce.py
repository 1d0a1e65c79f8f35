"""What users are told, by the real announcer into a reporter that keeps what it gets."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.driver.announce import HOST_STATE_NOT_RESTORED, Announcer
from dranet.driver.attachments import ReleaseReport
from dranet.driver.report import EventNote, Reporter
from dranet.errors import KernelError, Reason
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink, ConditionType, DeviceStatus
from dranet.telemetry import Metrics

CLAIM = ClaimRef("default", "claim", "uid")


class Kept(Reporter):
    """Keeps instead of writing."""

    def __init__(self) -> None:
        self.events: list[EventNote] = []
        self.statuses: list[Sequence[DeviceStatus]] = []

    def set_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        assert claim == CLAIM
        self.statuses.append(statuses)

    def add_event(self, event: EventNote) -> None:
        self.events.append(event)


def told_of(report: ReleaseReport) -> list[EventNote]:
    kept = Kept()
    Announcer("dra.net", "node-1", kept, Metrics()).released(report)
    assert kept.statuses == []
    return kept.events


def test_a_device_that_was_destroyed_in_the_pod_is_told_on_the_node() -> None:
    (event,) = told_of(ReleaseReport(CLAIM, missing=("dev-eth1",)))
    assert (event.regarding.kind, event.regarding.name) == ("Node", "node-1")
    assert (event.type, event.reason) == ("Warning", HOST_STATE_NOT_RESTORED)
    assert "dev-eth1" in event.note


def test_what_could_not_be_restored_is_told_in_the_same_breath() -> None:
    (event,) = told_of(ReleaseReport(CLAIM, ("dev-eth1",), ("dev-eth2: set mtu: refused",)))
    assert "dev-eth1" in event.note
    assert "dev-eth2: set mtu: refused" in event.note


def test_a_device_that_came_back_whole_is_no_news() -> None:
    assert told_of(ReleaseReport(CLAIM)) == []


def test_what_could_not_be_restored_is_counted() -> None:
    metrics = Metrics()
    report = ReleaseReport(
        CLAIM, ("dev-eth1",), ("dev-eth2: mtu: wanted 1500, found 9000", "dev-eth2: alias")
    )
    Announcer("dra.net", "node-1", Kept(), metrics).released(report)
    assert b"dranet_host_state_not_restored_total 3.0" in metrics.render()


# --- leases --------------------------------------------------------------------------------------------


def _prepared(number: int) -> PreparedDevice:
    name = f"nic-{number}"
    plan = AttachPlan(name, pod_ifname=f"net{number}")
    return PreparedDevice("nic", "pool", Device(name, DeviceKind.NIC), plan=plan)


RECORD = PreparedClaim(CLAIM, PodRef("default", "pod", "pod-uid"), (_prepared(1), _prepared(2)), "boot")
LINKS = [AttachedLink(f"nic-{n}", f"net{n}", f"02:00:00:00:00:0{n}", 1500) for n in (1, 2)]
ENDED = KernelError("the lease of 10.77.0.50 has ended", reason=Reason.DHCP_LEASE_EXPIRED)


def network_ready(kept: Kept) -> list[tuple[str, bool | None, str]]:
    """Of each device, as last told: interface, status, reason."""
    return [
        (status.interface_name, condition.status, condition.reason)
        for status in kept.statuses[-1]
        for condition in status.conditions
        if condition.type is ConditionType.NETWORK_READY
    ]


def test_a_lease_that_has_ended_is_told_on_the_pod_and_on_its_device_alone() -> None:
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics())
    announcer.attached([RECORD], LINKS)
    announcer.lease_lost(RECORD, 1, ENDED)
    assert network_ready(kept) == [
        ("net1", True, "NetworkDeviceReady"),
        ("net2", False, "DHCPLeaseExpired"),
    ]
    (event,) = kept.events
    assert (event.regarding.kind, event.regarding.name, event.type) == ("Pod", "pod", "Warning")
    assert event.reason == "DHCPLeaseExpired"
    assert "10.77.0.50" in event.note


def test_a_lease_that_is_back_makes_its_device_ready_again() -> None:
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics())
    announcer.attached([RECORD], LINKS)
    announcer.lease_lost(RECORD, 0, ENDED)
    announcer.lease_back(RECORD, 0)
    assert [ready for _, ready, _ in network_ready(kept)] == [True, True]


def test_a_restart_that_adopts_the_pod_does_not_call_an_ended_lease_ready() -> None:
    """The lease is found to have ended before the runtime tells which pods run."""
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics())
    announcer.lease_lost(RECORD, 0, ENDED)
    assert kept.statuses == []
    announcer.attached([RECORD], LINKS)
    assert [ready for _, ready, _ in network_ready(kept)] == [False, True]
    announcer.lease_forgotten(CLAIM.uid)
    announcer.attached([RECORD], LINKS)
    assert [ready for _, ready, _ in network_ready(kept)] == [True, True]


def test_a_lease_that_ends_after_the_pod_is_told_by_an_event_alone() -> None:
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics())
    announcer.attached([RECORD], LINKS)
    announcer.released(ReleaseReport(CLAIM))
    announcer.lease_lost(RECORD, 0, ENDED)
    assert len(kept.statuses) == 1
    assert len(kept.events) == 1


def test_shares_of_one_device_keep_their_own_links() -> None:
    kept = Kept()
    shares = tuple(
        PreparedDevice(
            "nic", "pool", Device("nic", DeviceKind.NIC), plan=AttachPlan("nic", pod_ifname=ifname)
        )
        for ifname in ("net1", "net2")
    )
    record = PreparedClaim(CLAIM, RECORD.pod, shares, "boot")
    links = [AttachedLink("nic", ifname, "02:00:00:00:00:01", 1500) for ifname in ("net1", "net2")]
    Announcer("dra.net", "node-1", kept, Metrics()).attached([record], links)
    assert [ifname for ifname, _, _ in network_ready(kept)] == ["net1", "net2"]

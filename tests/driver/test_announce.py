"""What users are told, by the real announcer into a reporter that keeps what it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from dranet.cluster.events import EventNote, ObjectRef
from dranet.driver.attachments import ReleaseReport
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.errors import ClaimError, KernelError, Reason
from dranet.model.claim import ClaimRef, PodRef, PodSandbox
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, DhcpLease, PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink, Condition, ConditionType, DeviceStatus
from dranet.telemetry import Metrics

CLAIM = ClaimRef("default", "claim", "uid")


class Kept(Reporter):
    """Keeps instead of writing."""

    def __init__(self) -> None:
        self.events: list[EventNote] = []
        self.statuses: list[Sequence[DeviceStatus]] = []
        self.superseding: list[Sequence[DeviceStatus]] = []

    def set_statuses(
        self, claim: ClaimRef, statuses: Sequence[DeviceStatus], *, rest_seconds: float = 0.0
    ) -> None:
        del rest_seconds
        assert claim == CLAIM
        self.statuses.append(statuses)

    def supersede_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        assert claim == CLAIM
        self.superseding.append(statuses)

    def add_event(self, event: EventNote) -> None:
        self.events.append(event)

    def add_normal(self, word: str, about: ObjectRef, sentence: str) -> None:
        pass


def told_of(report: ReleaseReport) -> list[EventNote]:
    kept = Kept()
    Announcer("dra.net", "node-1", kept, Metrics()).released(report)
    assert kept.statuses == []
    return kept.events


def test_a_device_that_was_destroyed_in_the_pod_is_told_on_the_node() -> None:
    (event,) = told_of(ReleaseReport(CLAIM, missing=("dev-eth1",)))
    assert (event.regarding.kind, event.regarding.name) == ("Node", "node-1")
    assert (event.type, event.reason) == ("Warning", "HostStateNotRestored")
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


MAC = "02:00:00:00:00:99"


def _prepared(number: int) -> PreparedDevice:
    name = f"nic-{number}"
    lease = DhcpLease("10.77.0.50/24", "10.77.0.1", MAC, MAC, 1.7e9, 600, 300, 525)
    plan = AttachPlan(name, pod_ifname=f"net{number}", lease=lease)
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


def conditions(kept: Kept, kind: ConditionType) -> list[Condition]:
    """Of each device that has it, as last told."""
    return [c for status in kept.statuses[-1] for c in status.conditions if c.type is kind]


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


# --- the other instance, and the pod's other claims ----------------------------------------------------


def test_what_another_instance_has_told_is_remembered_and_not_told_again() -> None:
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics())
    announcer.found_attached([RECORD], LINKS)
    assert (kept.statuses, kept.events) == ([], [])
    assert len(kept.superseding) == 1, "an older word of ours would come after that of the other one"
    announcer.lease_lost(RECORD, 0, ENDED)
    assert [ready for _, ready, _ in network_ready(kept)] == [False, True]


def test_what_another_instance_may_have_died_over_before_it_told_is_told_when_it_is_gone() -> None:
    in_pod = replace(RECORD, netns_path="/run/netns/pod")
    of_pod = {RECORD.pod.uid: (in_pod,)}
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics(), of_pod.__getitem__)
    announcer.found_attached([RECORD], LINKS)
    announcer.others_are_gone()
    assert [ready for _, ready, _ in network_ready(kept)] == [True, True]
    announcer.others_are_gone()
    assert len(kept.statuses) == 1, "once"


def test_nothing_is_told_of_what_its_pod_has_no_more() -> None:
    of_pod = {RECORD.pod.uid: (RECORD,)}
    kept = Kept()
    announcer = Announcer("dra.net", "node-1", kept, Metrics(), of_pod.__getitem__)
    announcer.found_attached([RECORD], LINKS)
    announcer.others_are_gone()
    assert kept.statuses == []


def test_who_has_its_devices_is_told_on_and_may_be_told_of_again() -> None:
    placed = replace(RECORD, netns_path="/run/netns/p")
    of_pod = {RECORD.pod.uid: (placed,)}
    kept, seen = Kept(), list[str]()
    announcer = Announcer("dra.net", "node-1", kept, Metrics(), of_pod.__getitem__, seen.append)
    announcer.write_again(RECORD.pod.uid)
    assert kept.statuses == [], "nothing was told yet"

    announcer.attached([placed], LINKS)
    announcer.write_again(RECORD.pod.uid)
    assert seen == [RECORD.pod.uid]
    assert len(kept.statuses) == 2
    assert kept.statuses[0] == kept.statuses[1]


def test_what_has_ended_or_failed_is_not_told_of_again() -> None:
    placed = replace(RECORD, netns_path="/run/netns/p")
    of_pod = {RECORD.pod.uid: (placed,)}
    error = KernelError("no", reason=Reason.ATTACH_FAILED)
    endings: list[Callable[[Announcer], None]] = [
        lambda announcer: announcer.released(ReleaseReport(CLAIM, devices=RECORD.devices)),
        lambda announcer: announcer.release_failed(CLAIM, error, RECORD.devices),
        lambda announcer: announcer.attach_failed([placed], error),
        lambda announcer: announcer.prepared(placed),
    ]
    for ending in endings:
        kept = Kept()
        announcer = Announcer("dra.net", "node-1", kept, Metrics(), of_pod.__getitem__)
        announcer.attached([placed], LINKS)
        ending(announcer)
        told = len(kept.statuses)
        announcer.write_again(RECORD.pod.uid)
        assert len(kept.statuses) == told


# --- the end of a pod ----------------------------------------------------------------------------------


def test_each_device_is_told_what_it_was_not_given_back_with() -> None:
    kept = Kept()
    report = ReleaseReport(
        CLAIM, ("nic-2",), ("nic-1: mtu: wanted 1500, found 9000", "the RDMA device"), devices=RECORD.devices
    )
    Announcer("dra.net", "node-1", kept, Metrics()).released(report)
    assert [(c.status, c.message) for c in conditions(kept, ConditionType.RELEASED)] == [
        (False, "nic-1: mtu: wanted 1500, found 9000; the RDMA device"),
        (False, "nic-2: gone, destroyed with the pod or unplugged; the RDMA device"),
    ]
    assert len(kept.events) == 1


def test_devices_that_came_back_whole_are_released_without_an_event() -> None:
    kept = Kept()
    Announcer("dra.net", "node-1", kept, Metrics()).released(ReleaseReport(CLAIM, devices=RECORD.devices))
    assert [c.status for c in conditions(kept, ConditionType.RELEASED)] == [True, True]
    assert kept.events == []


def test_a_device_that_is_stuck_is_told_on_its_claim() -> None:
    kept = Kept()
    stuck = KernelError("nic-1 is busy", reason=Reason.DETACH_FAILED)
    Announcer("dra.net", "node-1", kept, Metrics()).release_failed(CLAIM, stuck, RECORD.devices)
    assert [(c.status, c.reason) for c in conditions(kept, ConditionType.RELEASED)] == [
        (False, "DetachFailed"),
        (False, "DetachFailed"),
    ]
    assert [(event.regarding.kind, event.reason) for event in kept.events] == [
        ("ResourceClaim", "DetachFailed")
    ]


# --- which Event ---------------------------------------------------------------------------------------

HCA = replace(RECORD.devices[0], device=Device("hca", DeviceKind.RDMA))
GPU = PreparedDevice("gpu", "pool", Device("gpu", DeviceKind.GPU))


@pytest.mark.parametrize(
    ("devices", "operation", "reason"),
    [
        (RECORD.devices, "move-link", "NetworkDeviceAttachFailed"),
        (RECORD.devices, "move RDMA device", "RDMADeviceAttachFailed"),
        ((HCA, GPU), "deadline", "RDMADeviceAttachFailed"),
        ((HCA, *RECORD.devices), "deadline", "NetworkDeviceAttachFailed"),
    ],
)
def test_a_failed_attach_is_told_on_the_pod_under_dranets_names(
    devices: tuple[PreparedDevice, ...], operation: str, reason: str
) -> None:
    kept = Kept()
    error = KernelError("no such luck", operation=operation, reason=Reason.ATTACH_FAILED)
    Announcer("dra.net", "node-1", kept, Metrics()).attach_failed([replace(RECORD, devices=devices)], error)
    assert [(event.regarding.kind, event.reason, event.note) for event in kept.events] == [
        ("Pod", reason, "AttachFailed: no such luck")
    ]


# --- who may not have it, and health -------------------------------------------------------------------


def test_a_container_with_another_pods_claim_is_told_on_its_pod_and_leaves_the_claims_status_alone() -> None:
    kept, metrics = Kept(), Metrics()
    error = ClaimError("pod default/second has no devices of it", reason=Reason.UNSUPPORTED_CLAIM)
    Announcer("dra.net", "node-1", kept, metrics).container_refused(
        PodSandbox("s", "second", "default", "uid-2"), error
    )
    (event,) = kept.events
    assert (event.regarding.kind, event.regarding.name, event.regarding.uid) == ("Pod", "second", "uid-2")
    assert (event.type, event.reason) == ("Warning", "UnsupportedClaim")
    assert kept.statuses == []
    assert b'dranet_claim_errors_total{phase="container",reason="UnsupportedClaim"} 1.0' in metrics.render()


@pytest.mark.parametrize(
    ("healthy", "told"),
    [(False, ("Warning", "NetworkDeviceUnhealthy")), (True, ("Normal", "NetworkDeviceHealthy"))],
)
def test_health_is_told_on_the_node_and_on_the_pods_that_have_the_device(
    healthy: bool, told: tuple[str, str]
) -> None:
    kept = Kept()
    Announcer("dra.net", "node-1", kept, Metrics()).health_changed(
        "nic-1", [RECORD.pod], healthy=healthy, message="no carrier for 30 s"
    )
    assert [(event.regarding.kind, event.type, event.reason) for event in kept.events] == [
        ("Node", *told),
        ("Pod", *told),
    ]
    assert all("device nic-1: no carrier for 30 s" in event.note for event in kept.events)

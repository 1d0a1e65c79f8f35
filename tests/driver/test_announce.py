"""What users are told, by the real announcer into a reporter that keeps what it gets."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.driver.announce import HOST_STATE_NOT_RESTORED, Announcer
from dranet.driver.attachments import ReleaseReport
from dranet.driver.report import EventNote, Reporter
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus
from dranet.telemetry import Metrics

CLAIM = ClaimRef("default", "claim", "uid")


class Kept(Reporter):
    """Keeps instead of writing."""

    def __init__(self) -> None:
        self.events: list[EventNote] = []

    def set_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        raise AssertionError(f"nothing to say of {claim}: {statuses}")

    def add_event(self, event: EventNote) -> None:
        self.events.append(event)


def told_of(report: ReleaseReport) -> list[EventNote]:
    kept = Kept()
    Announcer("dra.net", "node-1", kept, Metrics()).released(report)
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

"""Writes what the reporter has to say to the API server. Implements ``driver.reports.reporter.Writer``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dranet import marks
from dranet.cluster.claims import apply_device_statuses, build_field_manager
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.events import EventNote, EventRecorder
from dranet.driver.reports.misalignment import FindPod, Misalignments
from dranet.model.claim import Claim, ClaimRef
from dranet.model.status import DeviceStatus

log = logging.getLogger(__name__)

Complete = Callable[[Claim, Sequence[DeviceStatus], Sequence[JsonObject]], Sequence[DeviceStatus]]


def as_they_are(
    _: Claim, statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject]
) -> Sequence[DeviceStatus]:
    """Nothing more is known."""
    del existing
    return statuses


def do_nothing(_: EventNote) -> None:
    """Nobody listens."""


class ApiWriter:
    """In the name of this driver on this node, whichever instance of it."""

    def __init__(
        self,
        client: ApiClient,
        driver_name: str,
        node_name: str,
        complete: Complete = as_they_are,
        find_pod: FindPod = lambda _: None,
    ) -> None:
        """``complete`` adds to the statuses of a claim what is known when they are written; ``find_pod``
        tells by its UID which pod has its devices."""
        self._client = client
        self._field_manager = build_field_manager(driver_name, node_name)
        self._events = EventRecorder(client, component=driver_name, host=node_name)
        self._complete = complete
        self._misalignments = Misalignments(find_pod)
        self._has_told = False
        self.add_event: Callable[[EventNote], None] = do_nothing
        """Told what a write gives cause to say; it must not write it at once."""

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        await apply_device_statuses(
            self._client,
            claim,
            self._field_manager,
            statuses,
            complete=self._complete,
            on_dropped=self._tell_dropped,
            on_written=self._note_written,
        )
        marks.reached(marks.Step.ATTACH_STATUS_WRITTEN)

    def _note_written(
        self, claim: Claim, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> None:
        for event in self._misalignments.find(claim.ref, before, written):
            self.add_event(event)

    def _tell_dropped(self) -> None:
        if not self._has_told:
            self._has_told = True
            log.warning(
                "claims get no status of their devices: the API server drops it; its feature gate "
                "DRAResourceClaimDeviceStatus is off"
            )

    async def write_event(self, event: EventNote) -> None:
        await self._events.record(event)

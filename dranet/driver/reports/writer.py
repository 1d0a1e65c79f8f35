"""Writes what the reporter has to say to the API server. Implements ``driver.reports.reporter.Writer``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dranet import marks
from dranet.claims.alignment import judge_by_claim
from dranet.cluster.claims import apply_device_statuses, build_field_manager
from dranet.cluster.client import ApiClient
from dranet.cluster.events import EventNote, EventRecorder
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus

log = logging.getLogger(__name__)


class ApiWriter:
    """In the name of this driver on this node, whichever instance of it."""

    def __init__(self, client: ApiClient, driver_name: str, node_name: str) -> None:
        self._client = client
        self._field_manager = build_field_manager(driver_name, node_name)
        self._events = EventRecorder(client, component=driver_name, host=node_name)
        self._has_told = False

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        await apply_device_statuses(
            self._client,
            claim,
            self._field_manager,
            statuses,
            complete=judge_by_claim,
            on_dropped=self._tell_dropped,
        )
        marks.reached(marks.Step.ATTACH_STATUS_WRITTEN)

    def _tell_dropped(self) -> None:
        if not self._has_told:
            self._has_told = True
            log.warning(
                "claims get no status of their devices: the API server drops it; its feature gate "
                "DRAResourceClaimDeviceStatus is off"
            )

    async def write_event(self, event: EventNote) -> None:
        await self._events.record(event)

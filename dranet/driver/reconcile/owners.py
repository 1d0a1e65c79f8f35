"""Records that no pod sandbox goes with: does anybody still want their devices?

The kubelet unprepares each claim that it has had prepared. It may have forgotten (its checkpoint is lost, the
node was cleaned by hand); then the devices would be taken for ever. So the API server is asked, of those
claims alone that have been without a pod sandbox for some time. Where it has no such claim, or one that is
allocated other devices, the claim is unprepared, as the kubelet would have done. As long as the claim has the
devices it stays, because the kubelet may count on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from dranet.driver.reconcile.actions import Action, ActionLog, Why
from dranet.errors import ClaimError, DranetError, Reason
from dranet.model.claim import Claim, ClaimRef
from dranet.model.plan import PreparedClaim

log = logging.getLogger(__name__)

_GONE = {
    Reason.CLAIM_NOT_FOUND: Why.CLAIM_DELETED,
    Reason.CLAIM_REPLACED: Why.CLAIM_DELETED,
    Reason.CLAIM_NOT_ALLOCATED: Why.CLAIM_MOVED,
}


class OwnerReconciler:
    """Claims against the API server."""

    def __init__(
        self,
        driver_name: str,
        fetch: Callable[[ClaimRef], Awaitable[Claim]],
        forget: Callable[[ClaimRef], Awaitable[str]],
        actions: ActionLog,
        patience_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``fetch`` is that of ``cluster.claims``; ``forget`` unprepares, and returns why it could not. Only
        after ``patience_seconds`` without a sandbox anybody is asked."""
        self._driver_name = driver_name
        self._fetch = fetch
        self._forget = forget
        self._actions = actions
        self._patience_seconds = patience_seconds
        self._now = now
        self._waiting_since: dict[str, float] = {}
        """By claim UID, as of the look that first found it without a sandbox."""
        self._doubted: set[str] = set()

    def doubt(self, claim_uid: str) -> None:
        """Ask about this claim at the next look, however short it has been without a sandbox.

        The scheduler allocated one of its devices to another claim, so it has probably lost them. A kubelet
        that has lost its checkpoint never asks to unprepare it.
        """
        self._doubted.add(claim_uid)

    async def reconcile(self, records: Iterable[PreparedClaim], living_pods: Collection[str]) -> None:
        """Look at each claim that has been without a sandbox for long. ``living_pods`` are the UIDs of pods
        that have one."""
        idle = {r.claim.uid: r for r in records if not r.netns_path and r.pod.uid not in living_pods}
        now = self._now()
        self._waiting_since = {uid: self._waiting_since.get(uid, now) for uid in idle}
        doubted, self._doubted = self._doubted, set()
        for claim_uid, since in self._waiting_since.items():
            if now - since >= self._patience_seconds or claim_uid in doubted:
                await self._look(idle[claim_uid])

    async def _look(self, record: PreparedClaim) -> None:
        try:
            why = await self._find_why_unowned(record)
        except DranetError as error:
            log.debug("cannot ask who owns claim %s: %s", record.claim, error)
            return
        if why is None:
            return
        failure = await self._forget(record.claim)
        if failure:
            self._actions.note_failure(why, record, failure)
        else:
            self._actions.note(Action.FORGOTTEN, why, record)

    async def _find_why_unowned(self, record: PreparedClaim) -> Why | None:
        """``None`` where the claim has the devices still.

        Raises:
            ClusterError: no answer, or a refusal: nobody knows.
        """
        try:
            claim = await self._fetch(record.claim)
        except ClaimError as error:
            if error.reason not in _GONE:
                raise
            return _GONE[error.reason]
        allocated = {(r.pool, r.device, r.share_id) for r in claim.results if r.driver == self._driver_name}
        prepared = {(device.pool, device.device.name, device.share_id) for device in record.devices}
        return None if prepared <= allocated else Why.CLAIM_MOVED

"""Profiles of claims: asked for at Prepare, released after the claim.

The journal has a request before the provider hears of it, and until the provider has it back. While the
claim has a record its profiles are in use; without one they are released: after a Prepare that failed, after
an Unprepare, and in each reconcile. So a driver that is killed at any point leaves no profile behind, and
none is released while a pod may have it.

A provider that is away delays no Unprepare: its entry stays, and the release is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dranet.claims.config import merge_provided
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.rounds import Rounds
from dranet.errors import DranetError, ProviderError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import ClaimRef
from dranet.model.provider import ProfileRequest, ProvidedConfig
from dranet.providers.webhook import describe_profile
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal, JournalEntry
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

KIND: Final = "profile"

LOOK_SECONDS = 10.0
"""After this a look begins no further release: the rest of reconcile waits for it."""


class ProfileProvider(Protocol):
    """``providers.webhook.WebhookClient``; each method raises ProviderError."""

    @property
    def url(self) -> str: ...

    async def get_profile(self, document: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def release_profile(self, document: Mapping[str, Any]) -> None: ...


class Profiles:
    """The callers of :meth:`get` and :meth:`release_unused` hold the claim (``Work.CLAIM``)."""

    def __init__(self, provider: ProfileProvider, store: ClaimStore, metrics: Metrics) -> None:
        self._provider = provider
        self._store = store
        self._journal = Journal(store.folder)
        self._releases = Rounds(LOOK_SECONDS)
        self._unreleased: set[str] = set()
        """UIDs of claims."""
        metrics.webhook.unreleased.set_function(lambda: len(self._unreleased))

    async def get(self, claim: ClaimRef, requests: Sequence[ProfileRequest]) -> dict[str, ProvidedConfig]:
        """The config of each profile, by ``key``; all or none. What was asked for stays in the journal, also
        after an error: a provider that has just failed is asked again by the next Prepare, or by reconcile.

        Raises:
            ProviderError: of the first that failed, with device and profile.
            StoreError: the disk does not take what has to be known after a kill.
        """
        asked = {request.key: _enter(request, claim) for request in requests}
        await self._release_others(claim.uid, asked)
        await asyncio.to_thread(self._journal.add, claim, asked.values())
        reached(Failpoint.PREPARE_PROFILE_NOTED)
        calls = (self._get_one(request, asked[request.key]) for request in requests)
        # All are waited for: a release must not come before a grant.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            raise errors[0]
        found = zip(asked, answers, strict=True)
        configs = {key: answer for key, answer in found if isinstance(answer, ProvidedConfig)}
        final = [_with_answer(entry, configs[key].parameters) for key, entry in asked.items()]
        await asyncio.to_thread(self._journal.add, claim, final)
        reached(Failpoint.PREPARE_PROFILE_OBTAINED)
        return configs

    async def _get_one(self, request: ProfileRequest, entry: JournalEntry) -> ProvidedConfig:
        try:
            config = await self._provider.get_profile(entry.request)
        except ProviderError as error:
            raise ProviderError(
                f"device {request.device.name}: profile {request.profile}: {error.message}",
                hint=error.hint,
                reason=error.reason,
                retryable=error.retryable,
            ) from error
        owner = f"profile {request.profile} (from the webhook provider {self._provider.url})"
        return ProvidedConfig(owner, config)

    async def _release_others(self, claim_uid: str, asked: Mapping[str, JournalEntry]) -> None:
        """A claim that was allocated again, or whose class names another profile, has no use for the rest."""
        for key, entries in (await self._read(claim_uid)).items():
            if key not in asked or _identity(entries[-1]) != _identity(asked[key]):
                await self._release(claim_uid, entries)

    async def release_unused(self, claim_uid: str) -> None:
        """Release the profiles of a claim without a record. Raises nothing: it is tried again later."""
        if self._store.get(claim_uid) is not None or not self._journal.has(claim_uid):
            self._unreleased.discard(claim_uid)
            return
        try:
            for entries in (await self._read(claim_uid)).values():
                await self._release(claim_uid, entries)
        except DranetError as error:
            if claim_uid not in self._unreleased:
                context = {"claim": claim_uid, "reason": error.reason}
                log.warning("profiles are not released yet: %s", error, extra={"context": context})
            self._unreleased.add(claim_uid)
        else:
            self._unreleased.discard(claim_uid)

    async def _read(self, claim_uid: str) -> Mapping[str, Sequence[JournalEntry]]:
        """By device; the last entry of each knows most."""
        record = await asyncio.to_thread(self._journal.read, claim_uid)
        found: dict[str, list[JournalEntry]] = {}
        for entry in record.entries if record is not None else ():
            if entry.kind == KIND:
                found.setdefault(entry.device, []).append(entry)
        return found

    async def _release(self, claim_uid: str, entries: Sequence[JournalEntry]) -> None:
        await self._provider.release_profile(entries[-1].request)
        reached(Failpoint.RELEASE_PROFILE_RETURNED)
        await asyncio.to_thread(self._journal.remove, claim_uid, entries)
        log.info("profile released", extra={"context": {"claim": claim_uid, "device": entries[-1].device}})

    async def look(self, work: WorkLocks) -> None:
        """Reconcile: release what no claim uses. Raises DranetError where the disk or another instance
        keeps it from looking; the rest is looked at first. What there is no time for waits for the next
        look."""
        failure: DranetError | None = None
        for claim_uid in self._releases.take(await asyncio.to_thread(self._journal.list_claims)):
            if self._store.get(claim_uid) is not None or self._store.has_set_aside(claim_uid):
                continue  # a claim whose record is damaged may be in its pod
            try:
                async with work.hold(Work.CLAIM, [claim_uid]):
                    self._store.check_version()
                    await self.release_unused(claim_uid)
            except DranetError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _enter(request: ProfileRequest, claim: ClaimRef) -> JournalEntry:
    return JournalEntry(KIND, request.key, describe_profile(request.device, claim.uid, request.config))


def _with_answer(entry: JournalEntry, config: Mapping[str, Any]) -> JournalEntry:
    """With a release DraNet sends what the device had in the end."""
    request = dict(entry.request)
    request["config"] = merge_provided(config, request["config"])
    return JournalEntry(entry.kind, entry.device, request)


def _identity(entry: JournalEntry) -> object:
    """By what the provider chooses its answer."""
    return entry.request["device"]["name"], entry.request["config"].get("profile")

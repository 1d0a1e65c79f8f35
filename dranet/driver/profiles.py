"""Profiles of claims: asked for at Prepare, given back after the devices are.

What is asked for is in the journal before the provider hears of it, and leaves it after the release, so a
driver that is killed anywhere between releases it later. A provider that is away delays no Unprepare: the
journal keeps what it has to take back, and reconcile repeats the release.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dranet.claims.config import ProvidedConfig, merge_provided
from dranet.errors import DranetError, ProviderError, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import ClaimRef
from dranet.model.provider import ProfileWish
from dranet.providers.webhook import describe_profile
from dranet.store.journal import Journal, JournalEntry

log = logging.getLogger(__name__)

KIND: Final = "profile"


class ProfileProvider(Protocol):
    """``providers.webhook.WebhookClient``; each method raises ProviderError."""

    @property
    def url(self) -> str: ...

    async def get_profile(self, document: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def release_profile(self, document: Mapping[str, Any]) -> None: ...


class Profiles:
    """The caller holds the claim (``Work.CLAIM``)."""

    def __init__(self, provider: ProfileProvider, journal: Journal) -> None:
        self._provider = provider
        self._journal = journal

    async def get(self, claim: ClaimRef, wishes: Sequence[ProfileWish]) -> dict[str, ProvidedConfig]:
        """The config of each profile, by ``key``. What was asked for stays in the journal, also after an
        error: a repeated Prepare asks for it again, and reconcile releases it if there is none.

        Raises:
            ProviderError: of the first that failed, with device and profile.
            StoreError: the disk does not take what has to be known after a kill.
        """
        asked = {wish.key: _enter(wish, claim) for wish in wishes}
        await self._release_others(claim, asked)
        await asyncio.to_thread(self._journal.add, claim, asked.values())
        reached(Failpoint.PREPARE_PROFILE_NOTED)
        answers = await asyncio.gather(*(self._get_one(wish, asked[wish.key]) for wish in wishes))
        given = dict(zip(asked, answers, strict=True))
        final = [_with_answer(entry, given[key].parameters) for key, entry in asked.items()]
        await asyncio.to_thread(self._journal.add, claim, final)
        reached(Failpoint.PREPARE_PROFILE_GIVEN)
        return given

    async def _get_one(self, wish: ProfileWish, entry: JournalEntry) -> ProvidedConfig:
        try:
            config = await self._provider.get_profile(entry.request)
        except ProviderError as error:
            raise ProviderError(
                f"device {wish.device.name}: profile {wish.profile}: {error.message}",
                hint=error.hint,
                reason=error.reason,
                retryable=error.retryable,
            ) from error
        owner = f"profile {wish.profile} (from the webhook provider {self._provider.url})"
        return ProvidedConfig(owner, config)

    async def _release_others(self, claim: ClaimRef, asked: Mapping[str, JournalEntry]) -> None:
        """A claim that was allocated or written again has no use for what it had before."""
        for key, entries in (await self._read(claim.uid)).items():
            if key not in asked or not all(_is_same(entry, asked[key]) for entry in entries):
                await self._release_one(claim.uid, entries)

    async def release_unused(self, claim_uid: str, error: Exception) -> None:
        """Release what a claim got that is not prepared after all. A provider that has failed is not asked
        once more, for the kubelet waits: the next Prepare asks it, or reconcile. Raises nothing."""
        if not isinstance(error, ProviderError):
            await self.release(claim_uid)

    async def release(self, claim_uid: str) -> bool:
        """Release what the claim has. Returns whether nothing is left; what is stays in the journal. Raises
        nothing."""
        try:
            by_device = await self._read(claim_uid)
            released = [await self._release_one(claim_uid, entries) for entries in by_device.values()]
        except StoreError as error:
            log.warning("profiles are not released: %s", error, extra={"context": {"claim": claim_uid}})
            return False
        return all(released)

    async def _read(self, claim_uid: str) -> Mapping[str, Sequence[JournalEntry]]:
        """By device; the last entry of each knows most."""
        record = await asyncio.to_thread(self._journal.read, claim_uid)
        found: dict[str, list[JournalEntry]] = {}
        for entry in record.entries if record is not None else ():
            if entry.kind == KIND:
                found.setdefault(entry.device, []).append(entry)
        return found

    async def _release_one(self, claim_uid: str, entries: Sequence[JournalEntry]) -> bool:
        context = {"claim": claim_uid, "device": entries[-1].device}
        try:
            await self._provider.release_profile(entries[-1].request)
        except DranetError as error:
            log.warning("a profile is not released yet: %s", error, extra={"context": context})
            return False
        reached(Failpoint.RELEASE_PROFILE_TAKEN_BACK)
        await asyncio.to_thread(self._journal.remove, claim_uid, entries)
        log.info("profile released", extra={"context": context})
        return True


def _enter(wish: ProfileWish, claim: ClaimRef) -> JournalEntry:
    return JournalEntry(KIND, wish.key, describe_profile(wish.device, claim.uid, wish.config))


def _with_answer(entry: JournalEntry, config: Mapping[str, Any]) -> JournalEntry:
    """DraNet tells a provider at the release what the device had in the end."""
    request = dict(entry.request)
    request["config"] = merge_provided(config, request["config"])
    return JournalEntry(entry.kind, entry.device, request)


def _is_same(one: JournalEntry, other: JournalEntry) -> bool:
    """The provider gives the same for both: it looks at device and profile."""
    ours, theirs = one.request, other.request
    return (ours["device"]["name"], ours["config"]["profile"]) == (
        theirs["device"]["name"],
        theirs["config"]["profile"],
    )

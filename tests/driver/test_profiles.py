"""Profiles of claims, with a provider whose answers come one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dranet.driver import profiles as module
from dranet.driver.instances.members import WorkLocks
from dranet.driver.profiles import Profiles
from dranet.errors import ProviderError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.provider import DeviceIdentity, ProfileRequest
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal, JournalEntry
from dranet.telemetry import Metrics

CLAIM = ClaimRef("default", "claim", "uid")
A, B = (ProfileRequest(name, DeviceIdentity(name), {"profile": "rail"}) for name in ("a", "b"))


class SlowProvider:
    """Refuses device ``a``; gives device ``b`` its profile once ``may_grant`` is set."""

    url = "http://provider"

    def __init__(self) -> None:
        self.may_grant = asyncio.Event()
        self.refused = asyncio.Event()
        self.granted: set[str] = set()

    async def get_profile(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        name = document["device"]["name"]
        if name == A.key:
            self.refused.set()
            raise ProviderError("status 409", reason=Reason.PROVIDER_REFUSED, retryable=False)
        await self.may_grant.wait()
        self.granted.add(name)
        return {}

    async def release_profile(self, document: Mapping[str, Any]) -> None:
        self.granted.discard(document["device"]["name"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClaimStore]:
    opened = ClaimStore(tmp_path / "claims")
    opened.open()
    yield opened
    opened.close()


async def test_when_one_of_several_is_refused_nothing_is_granted_after_the_release(store: ClaimStore) -> None:
    provider = SlowProvider()
    profiles = Profiles(provider, store, Metrics())
    getting = asyncio.create_task(profiles.get(CLAIM, [A, B]))
    await provider.refused.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not getting.done(), "the other device may still get its profile"
    provider.may_grant.set()
    with pytest.raises(ProviderError, match="device a: profile rail: status 409"):
        await getting
    await profiles.release_unused(CLAIM.uid)
    assert provider.granted == set()
    assert Journal(store.folder).list_claims() == []


class HangingProvider:
    """Releases nothing of ``hanging`` before its time limit."""

    url = "http://provider"

    def __init__(self, *hanging: str) -> None:
        self.hanging = set(hanging)
        self.asked: list[str] = []

    async def get_profile(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError

    async def release_profile(self, document: Mapping[str, Any]) -> None:
        uid = document["claim_uid"]
        self.asked.append(uid)
        if uid in self.hanging:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.Event().wait()
            raise ProviderError("no whole answer within 0.02 s")


def leave_over(store: ClaimStore, uids: Sequence[str]) -> Journal:
    """What claims without a record had."""
    journal = Journal(store.folder)
    for uid in uids:
        entry = JournalEntry("profile", "a", {"device": {"name": "a"}, "claim_uid": uid, "config": {}})
        journal.add(ClaimRef("default", uid, uid), [entry])
    return journal


LEFT = [f"claim-{number:02}" for number in range(40)]


async def test_a_provider_that_hangs_holds_a_look_up_for_a_bounded_time(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.03)
    journal, provider = leave_over(store, LEFT), HangingProvider(*LEFT)
    await Profiles(provider, store, Metrics()).look(WorkLocks(store.folder))
    assert 1 <= len(provider.asked) <= 2
    assert journal.list_claims() == LEFT


async def test_some_that_hang_do_not_keep_the_others_from_their_release(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.03)
    hanging = LEFT[:3]
    journal, provider = leave_over(store, LEFT), HangingProvider(*hanging)
    profiles, work = Profiles(provider, store, Metrics()), WorkLocks(store.folder)
    while journal.list_claims() != hanging:  # the time limit of the test ends it
        await profiles.look(work)
    provider.hanging.clear()
    while journal.list_claims():
        await profiles.look(work)

"""Profiles of claims, with a provider whose answers come one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dranet.driver.profiles import Profiles
from dranet.errors import ProviderError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.provider import DeviceIdentity, ProfileRequest
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal
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

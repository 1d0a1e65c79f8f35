"""Where the protected_addresses come from, and that asking for them in vain harms nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from dranet.driver import protected_addresses as module
from dranet.driver.protected_addresses import API_ROUTE, OWN_ADDRESS, ProtectedAddresses
from dranet.errors import ClusterError
from dranet.kernel.discovery.scan import ProtectedAddress


class Cluster:
    """Answers with ``addresses``, or fails with ``failure``; keeps what it told."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.failure: Exception | None = None
        self.asked = 0
        self.asked_thrice, self.has_told = asyncio.Event(), asyncio.Event()
        self.told: list[Sequence[ProtectedAddress]] = []

    def tell(self, targets: Sequence[ProtectedAddress]) -> None:
        self.told.append(targets)
        self.has_told.set()

    async def fetch(self) -> Sequence[str]:
        self.asked += 1
        if self.asked == 3:
            self.asked_thrice.set()
        if self.failure is not None:
            raise self.failure
        return self.addresses

    def protected_addresses(
        self, url: str = "https://10.96.0.1:443", own: Sequence[str] = ()
    ) -> ProtectedAddresses:
        return ProtectedAddresses(own, url, self.fetch, self.tell, retry_seconds=0.01)


def own(address: str) -> ProtectedAddress:
    return ProtectedAddress(OWN_ADDRESS, address, is_own=True)


def api(address: str) -> ProtectedAddress:
    return ProtectedAddress(API_ROUTE, address, is_own=False)


def test_what_the_settings_say_and_an_api_server_given_by_address_are_known_at_once() -> None:
    cluster = Cluster()
    targets = cluster.protected_addresses("https://[2001:db8::1]:6443", ("192.0.2.2",)).targets
    assert targets == (own("192.0.2.2"), api("2001:db8::1"))
    assert cluster.asked == 0


async def test_the_node_object_adds_its_addresses_and_only_news_is_told() -> None:
    cluster = Cluster("192.0.2.2", "203.0.113.9")
    protected_addresses = cluster.protected_addresses(own=("192.0.2.2",))
    expected = (own("192.0.2.2"), own("203.0.113.9"), api("10.96.0.1"))
    assert await protected_addresses.refresh()
    assert await protected_addresses.refresh()
    assert protected_addresses.targets == expected
    assert cluster.told == [expected]


async def test_a_failure_keeps_the_last_answer_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("203.0.113.9")
    protected_addresses = cluster.protected_addresses()
    await protected_addresses.refresh()
    known = protected_addresses.targets
    cluster.failure = ClusterError("nodes is forbidden")
    with caplog.at_level(logging.WARNING):
        assert not await protected_addresses.refresh()
        assert not await protected_addresses.refresh()
    assert protected_addresses.targets == known
    assert caplog.messages == ["the node's addresses cannot be read from its Node object: nodes is forbidden"]


async def test_what_failed_is_asked_again_soon() -> None:
    cluster = Cluster("203.0.113.9")
    cluster.failure = ClusterError("no answer")
    protected_addresses = cluster.protected_addresses()
    running = asyncio.create_task(protected_addresses.run())
    async with asyncio.timeout(20):
        await cluster.asked_thrice.wait()
        cluster.failure = None
        await cluster.has_told.wait()
    running.cancel()
    assert cluster.told == [(own("203.0.113.9"), api("10.96.0.1"))]


async def test_the_host_name_of_the_api_server_is_resolved_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(host: str) -> tuple[str, ...]:
        assert host == "api.example.com"
        return ("192.0.2.7", "2001:db8::7")

    monkeypatch.setattr(module, "resolve", answer)
    protected_addresses = Cluster().protected_addresses("https://api.example.com:6443")
    assert not protected_addresses.targets
    assert await protected_addresses.refresh()
    assert protected_addresses.targets == (api("192.0.2.7"), api("2001:db8::7"))


async def test_a_name_that_does_not_resolve_is_said_once_and_kept_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: str) -> tuple[str, ...]:
        raise TimeoutError

    monkeypatch.setattr(module, "resolve", fail)
    protected_addresses = Cluster("203.0.113.9").protected_addresses("https://api.example.com")
    with caplog.at_level(logging.WARNING):
        assert not await protected_addresses.refresh()
        assert not await protected_addresses.refresh()
    assert caplog.messages == ["the API server's host api.example.com does not resolve: no answer in time"]
    assert protected_addresses.targets == (own("203.0.113.9"),)


@pytest.mark.socket
async def test_localhost_resolves_to_addresses() -> None:
    found = await module.resolve("localhost")
    assert set(found) & {"127.0.0.1", "::1"}
    assert all(module.is_address(address) for address in found)

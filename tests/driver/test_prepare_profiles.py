"""Prepare and Unprepare of claims with a profile: who is asked when, and what goes back when something fails.

With a provider stand-in on a UNIX socket, which is the same in every network namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import Leases
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.profiles import Profiles
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import DeviceError, DranetError, Reason
from dranet.http1 import Tls
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, PreparedClaim
from dranet.model.provider import ProvidedConfig
from dranet.providers.webhook import WebhookClient, parse_url
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal
from dranet.telemetry import Metrics
from testbed.provider import HEALTH, PROFILE, RELEASE, Provider, ProviderServer, Trouble
from tests.support.namespaces import Namespace
from tests.support.records import refuse_writes

pytestmark = pytest.mark.kernel

NICS = {
    name: Device(name, DeviceKind.NIC, {"dra.net/mac": mac}, ifname=ifname)
    for name, ifname, mac in (
        ("nic-1", "eth1", "02:00:00:00:00:01"),
        ("nic-2", "eth1", "02:00:00:00:00:02"),
    )
}
POD = Consumer(resource="pods", name="pod", uid="pod-uid")


class Told(Announcer):
    def __init__(self) -> None:
        self.failures: list[DranetError] = []

    def prepared(self, record: PreparedClaim) -> None:
        assert record.devices

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        assert claim is None or claim.ref == ref
        self.failures.append(error)


def get_offered(name: str) -> Device:
    if name not in NICS:
        raise DeviceError(f"device {name} does not exist on this node")
    return NICS[name]


class Bench:
    """The parts of the driver between the kubelet, the provider and the store."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        provided: ProvidedConfig | None = None,
        ready: bool = True,
        on: bool = True,
    ) -> None:
        self.claims: dict[str, Claim] = {}
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.told = Told()
        self.journal = Journal(self.store.folder)
        gate, metrics = StartGate(folder), Metrics()
        self.work = WorkLocks(self.store.folder)
        self.profiles = Profiles(WebhookClient(parse_url(url, Tls()), 0.6), self.store, metrics)
        self.attachments = Attachments(self.store, gate)
        self.preparer = Preparer(
            driver_name="dra.net",
            boot_id="boot",
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=get_offered,
                is_runtime_ready=lambda: ready,
                find_provided=lambda _: provided,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                Leases(self.store, self.attachments, self.told, metrics),
                ContainerFiles(gate, CdiSpecs(folder / "cdi", "dra.net")),
                self.work,
                Ipam(self.store, "boot", self.told, metrics),
                self.profiles if on else None,
            ),
            announcer=self.told,
            metrics=metrics,
        )

    async def _fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def prepare(self, claim: Claim) -> str:
        """The error; empty for success."""
        self.claims[claim.ref.uid] = claim
        return (await self.preparer.prepare([claim.ref]))[claim.ref.uid].error

    async def unprepare(self, claim: Claim) -> str:
        return (await self.preparer.unprepare([claim.ref]))[claim.ref.uid]

    def plan(self, claim: Claim) -> AttachPlan:
        record = self.store.get(claim.ref.uid)
        assert record is not None
        return record.plans[0]

    def addresses(self, claim: Claim) -> list[str]:
        return [step.address.cidr for step in self.plan(claim).steps if isinstance(step, AddAddress)]

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


@pytest.fixture
def provider() -> Provider:
    interface = {"mtu": 1400, "forwarding": True}
    return Provider(profiles={"rail": {"pool": "10.200.0.0/24", "interface": interface}})


@pytest.fixture
def server(provider: Provider, tmp_path: Path) -> Iterator[ProviderServer]:
    with ProviderServer(provider, socket_path=tmp_path / "provider.sock") as running:
        yield running


@pytest.fixture
def make_bench(tmp_path: Path, server: ProviderServer) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**how: Any) -> Bench:
        made.append(Bench(tmp_path / "state", server.url, **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


def a_claim(uid: str = "uid", *devices: str, **parameters: Any) -> Claim:
    results = tuple(AllocationResult("req", "dra.net", "node", name) for name in devices or ("nic-1",))
    return Claim(
        ref=ClaimRef("default", f"claim-{uid}", uid),
        allocated=True,
        results=results,
        configs=(OpaqueConfig(ConfigSource.CLAIM, "dra.net", {"profile": "rail", **parameters}),),
        reserved_for=(POD,),
    )


def in_node(node: Namespace, walk: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await walk()

    node.run(lambda: asyncio.run(run()))


def test_a_profile_is_below_what_the_claim_sets_also_where_that_is_false(
    node: Namespace, bench: Bench, provider: Provider
) -> None:
    routes = [{"destination": "10.9.0.0/16", "gateway": "10.200.0.254"}]
    claim = a_claim(interface={"name": "net1", "forwarding": False}, routes=routes)

    async def walk() -> None:
        assert await bench.prepare(claim) == ""
        assert await bench.prepare(claim) == ""

    in_node(node, walk)
    assert bench.addresses(claim) == ["10.200.0.1/24"]
    plan = repr(bench.plan(claim).steps)
    assert "mtu=1400" in plan
    assert "forwarding" not in plan or "value='0'" in plan
    assert [step.route.destination for step in bench.plan(claim).steps if isinstance(step, AddRoute)]
    device = {"mac_address": "02:00:00:00:00:01", "name": "nic-1"}
    config = {"profile": "rail", "interface": {"name": "net1", "forwarding": False}, "routes": routes}
    assert provider.asked(PROFILE) == [{"device": device, "claim_uid": "uid", "config": config}]


def test_addresses_of_the_claim_come_in_addition_and_an_empty_list_replaces(
    node: Namespace, bench: Bench
) -> None:
    more = a_claim("more", interface={"addresses": ["10.9.0.1/24"]})
    none = a_claim("none", interface={"addresses": []})

    async def walk() -> None:
        assert await bench.prepare(more) == ""
        assert bench.addresses(more) == ["10.200.0.1/24", "10.9.0.1/24"]
        assert await bench.unprepare(more) == ""
        assert await bench.prepare(none) == ""
        assert bench.addresses(none) == []

    in_node(node, walk)


def test_the_config_of_a_device_is_between_the_profile_and_the_claim(
    node: Namespace, make_bench: Callable[..., Bench], provider: Provider
) -> None:
    bench = make_bench(provided=ProvidedConfig("cloud", {"interface": {"mtu": 1450, "arpIgnore": 1}}))
    claim = a_claim(interface={"arpIgnore": 0})

    async def walk() -> None:
        assert await bench.prepare(claim) == ""

    in_node(node, walk)
    assert "mtu=1450" in repr(bench.plan(claim).steps)
    assert provider.asked(PROFILE)[0]["config"]["interface"] == {"mtu": 1450, "arpIgnore": 0}


def test_a_release_names_what_the_device_had(node: Namespace, bench: Bench, provider: Provider) -> None:
    claim = a_claim()

    async def walk() -> None:
        assert await bench.prepare(claim) == ""
        assert await bench.unprepare(claim) == ""
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    (release,) = provider.asked(RELEASE)
    assert release["config"]["interface"]["addresses"] == ["10.200.0.1/24"]
    assert release["config"]["profile"] == "rail"
    assert provider.releases == [("nic-1", "uid")]
    assert bench.journal.list_claims() == []


@pytest.mark.parametrize("how", ["plan", "store", "config"])
def test_a_claim_that_cannot_be_prepared_gives_its_profile_back_once(
    node: Namespace, bench: Bench, provider: Provider, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    match how:
        case "plan":
            node.ip_lines("link add br0 type bridge\nlink set eth1 master br0\n")
        case "store":
            refuse_writes(bench.store, monkeypatch)
        case "config":
            provider.profiles["rail"]["interface"] = {"mtu": "big", "speed": 9}
    claim = a_claim()

    async def walk() -> None:
        error = await bench.prepare(claim)
        assert error
        if how == "config":
            owner = "profile rail (from the webhook provider unix://"
            assert error.startswith(owner)
            assert ").config.interface.mtu: must be a whole number" in error
            assert ".config.interface.speed: unknown field" in error

    in_node(node, walk)
    assert provider.releases == [("nic-1", "uid")]
    assert provider.grants == {}
    assert bench.journal.list_claims() == []


def test_without_the_runtime_no_provider_is_asked(
    node: Namespace, make_bench: Callable[..., Bench], provider: Provider
) -> None:
    bench = make_bench(ready=False)

    async def walk() -> None:
        assert "NRI" in await bench.prepare(a_claim())

    in_node(node, walk)
    assert provider.calls == []


def test_without_a_provider_a_profile_is_refused(node: Namespace, make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(on=False)

    async def walk() -> None:
        error = await bench.prepare(a_claim())
        assert error == "config[0].parameters.profile: must not be set: no profile provider is configured"

    in_node(node, walk)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (Trouble(status=503, does_work=True), Reason.PROVIDER_UNAVAILABLE),
        (Trouble(body=b"[]", does_work=True), Reason.PROVIDER_ANSWER_INVALID),
        (Trouble(status=404, body=b"no such profile"), Reason.PROVIDER_REFUSED),
    ],
)
def test_a_provider_that_fails_is_named_with_device_and_profile_and_the_next_try_succeeds(
    node: Namespace, bench: Bench, provider: Provider, trouble: Trouble, reason: Reason
) -> None:
    provider.trouble[PROFILE] = trouble
    claim = a_claim()

    async def walk() -> None:
        error = await bench.prepare(claim)
        assert error.startswith("device nic-1: profile rail: webhook provider unix://")
        assert bench.store.get_all() == ()
        provider.trouble.clear()
        assert await bench.prepare(claim) == ""
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert [error.reason for error in bench.told.failures] == [reason]
    assert provider.grants == {}
    assert provider.releases == [("nic-1", "uid")]


def test_a_claim_that_never_became_prepared_is_released_by_unprepare(
    node: Namespace, bench: Bench, provider: Provider
) -> None:
    provider.trouble[PROFILE] = Trouble(status=503, does_work=True)
    claim = a_claim()

    async def walk() -> None:
        assert await bench.prepare(claim)
        assert provider.grants
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert provider.grants == {}


def test_a_provider_that_is_away_delays_no_unprepare_and_gets_it_back_later(
    node: Namespace, bench: Bench, provider: Provider, server: ProviderServer
) -> None:
    claim = a_claim()

    async def walk() -> None:
        assert await bench.prepare(claim) == ""
        server.stop()
        assert await bench.unprepare(claim) == ""
        assert bench.store.get_all() == ()
        assert bench.journal.list_claims() == ["uid"]
        await bench.profiles.look(bench.work)
        assert bench.journal.list_claims() == ["uid"]
        server.start()
        await bench.profiles.look(bench.work)
        await bench.profiles.look(bench.work)
        assert bench.journal.list_claims() == []

    in_node(node, walk)
    assert provider.releases == [("nic-1", "uid")]
    assert len(provider.asked(RELEASE)) == 1


def test_a_claim_that_was_allocated_again_gives_back_what_the_other_device_had(
    node: Namespace, bench: Bench, provider: Provider
) -> None:
    provider.trouble[PROFILE] = Trouble(status=503, does_work=True)
    claim = a_claim()
    moved = replace(claim, results=(AllocationResult("req", "dra.net", "node", "nic-2"),))

    async def walk() -> None:
        assert await bench.prepare(claim)
        provider.trouble.clear()
        assert await bench.prepare(moved) == ""

    in_node(node, walk)
    assert list(provider.grants) == [("nic-2", "uid")]
    assert provider.releases == [("nic-1", "uid")]


def test_two_shares_of_one_device_with_a_profile_are_refused(node: Namespace, bench: Bench) -> None:
    results = tuple(AllocationResult("r", "dra.net", "node", "nic-1", share_id=share) for share in ("a", "b"))
    claim = replace(a_claim(interface={"type": "macvlan"}), results=results)

    async def walk() -> None:
        assert "profile: must be set for one share of the device" in await bench.prepare(claim)

    in_node(node, walk)


def test_a_claim_without_a_profile_asks_no_one(node: Namespace, bench: Bench, provider: Provider) -> None:
    claim = a_claim(profile="")

    async def walk() -> None:
        assert await bench.prepare(claim) == ""
        assert await bench.unprepare(claim) == ""

    in_node(node, walk)
    assert provider.calls == []
    assert not provider.asked(HEALTH)
    assert not (bench.store.folder.parent / "journal").exists()

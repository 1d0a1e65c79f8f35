"""Claims with addresses from a pool, and what Prepare does where an address is in use elsewhere."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import Attachments
from dranet.driver.conflicts import ConflictCheck
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import Leases
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError
from dranet.kernel.conflicts import Conflict, Unprobed, find_conflicts
from dranet.model.claim import (
    AllocationResult,
    Claim,
    ClaimRef,
    ConfigSource,
    Consumer,
    OpaqueConfig,
    PodRef,
    PodSandbox,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.ipam import PoolNode
from dranet.model.plan import PreparedClaim
from dranet.runtime.containers import CdiSpecs
from dranet.settings import AddressConflicts
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import FOLDER
from dranet.telemetry import Metrics
from dranet.view.ipam_file import IpamFile
from tests.support.namespaces import Namespace
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

NIC = Device("nic-1", DeviceKind.NIC, {"dra.net/rail": 3}, ifname="eth1", shared=True)
SECOND = replace(NIC, name="nic-2")
"""Of the same rail."""
OWNER = "02:77:00:00:00:05"
POOL = {
    "rails": 8,
    "subnets": ["10.{rail}.0.0/16", "fd00:{rail}::/64"],
    "nodes": {"pattern": r"gpu-node-(\d+)"},
    "addressesPerNode": 2,
    "gateway": "last",
    "routes": ["10.255.0.0/16"],
}


class Told(Announcer):
    def __init__(self) -> None:
        self.conflicts: list[str] = []
        self.failed: list[str] = []

    def prepared(self, record: PreparedClaim) -> None:
        pass

    def released(self, report: Any) -> None:
        pass

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:  # noqa: ARG002
        self.failed.append(str(error.reason))

    def addresses_in_conflict(self, pod: PodRef, error: DranetError) -> None:
        self.conflicts.append(f"{pod.name}: {error.message}")


class Bench:
    def __init__(self, folder: Path, mode: AddressConflicts, probe: Any = find_conflicts) -> None:
        self.claims: dict[str, Claim] = {}
        self.offered = {device.name: device for device in (NIC, SECOND)}
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.told, self.metrics = Told(), Metrics()
        gate = StartGate(folder)
        self.attachments = Attachments(self.store, gate)
        off = mode is AddressConflicts.OFF
        check = ConflictCheck(mode, self.store, "boot", self.told, self.metrics, probe).check
        self.preparer = Preparer(
            driver_name="dra.net",
            boot_id="boot",
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=lambda name: self.offered[name],
                is_runtime_ready=lambda: True,
                find_ipam=IpamFile(folder / "ipam.json").find,
                find_node=lambda: PoolNode("gpu-node-20"),
                check_addresses=None if off else check,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                Leases(self.store, self.attachments, self.told, self.metrics),
                ContainerFiles(gate, CdiSpecs(folder / "cdi", "dra.net")),
                WorkLocks(self.store.folder),
                Ipam(self.store, "boot", self.told, self.metrics),
            ),
            announcer=self.told,
            metrics=self.metrics,
        )

    async def _fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def prepare(self, claim: Claim) -> str:
        self.claims[claim.ref.uid] = claim
        return (await self.preparer.prepare([claim.ref]))[claim.ref.uid].error

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        return [plan.ipam.addresses for r in self.store.get_all() for plan in r.plans if plan.ipam]

    def count(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []
    (tmp_path / "ipam.json").write_text(json.dumps({"compute": {"pool": POOL}}))

    def make(mode: AddressConflicts = AddressConflicts.OFF, probe: Any = find_conflicts) -> Bench:
        made.append(Bench(tmp_path, mode, probe))
        return made[-1]

    yield make
    for bench in made:
        bench.attachments.close()
        bench.store.close()


def a_claim(number: int = 1, **interface: Any) -> Claim:
    parameters = {"interface": {"name": "net1", "type": "macvlan", "ipam": "compute", **interface}}
    return Claim(
        ref=ClaimRef(namespace="team", name=f"claim-{number}", uid=f"uid-{number}"),
        allocated=True,
        results=(AllocationResult("req", "dra.net", "node", NIC.name, share_id=f"share-{number}"),),
        configs=(OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters, requests=("req",)),),
        reserved_for=(Consumer(resource="pods", name=f"pod-{number}", uid=f"pod-{number}"),),
    )


def with_addresses(claim: Claim, *addresses: str) -> Claim:
    (config,) = claim.configs
    interface = {"name": "net1", "type": "macvlan", "addresses": list(addresses)}
    return replace(claim, configs=(replace(config, parameters={"interface": interface}),))


def in_node(node: Namespace, walk: Callable[[], Any]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await walk()

    node.run(lambda: asyncio.run(run()))


def test_the_pod_gets_the_addresses_and_routes_of_its_rail_and_node(
    node: Namespace, pod: Namespace, make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench()
    sandbox = PodSandbox("s", "pod-1", "team", "pod-1", f"/run/netns/{pod.name}")

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        report = await asyncio.to_thread(bench.attachments.attach_pod, sandbox, deadline=1e9)
        assert report is not None
        assert list(report.links[0].addresses) == ["10.3.0.40/16", "fd00:3::28/64"]

    in_node(node, walk)
    routes = {route["dst"]: route for route in pod.read("route")}
    assert (routes["10.255.0.0/16"]["gateway"], routes["10.255.0.0/16"]["metric"]) == ("10.3.255.254", 1027)
    assert not (tmp_path / "claims" / FOLDER).exists()


def test_claims_of_one_device_get_its_slots_until_none_is_left(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        one, two, three = map(a_claim, (1, 2, 3))
        assert set(await asyncio.gather(bench.prepare(one), bench.prepare(two))) == {""}
        assert sorted(addresses[0] for addresses in bench.addresses) == ["10.3.0.40/16", "10.3.0.41/16"]
        assert "has no free address for one more share" in await bench.prepare(three)
        assert await bench.prepare(one) == ""
        await bench.preparer.unprepare([one.ref])
        assert await bench.prepare(three) == ""
        assert len({addresses[0] for addresses in bench.addresses}) == 2

    in_node(node, walk)


@pytest.mark.parametrize("are_shares", [True, False])
def test_claims_of_two_devices_of_a_rail_that_are_prepared_at_once_get_different_addresses(
    node: Namespace, make_bench: Callable[..., Bench], are_shares: bool
) -> None:
    both_decoded = threading.Barrier(2)
    first_rounds = iter([both_decoded, both_decoded])

    def probe(*_: object) -> tuple[Conflict, ...]:
        barrier = next(first_rounds, None)
        if barrier is not None:
            barrier.wait(30)
        return ()

    bench = make_bench(AddressConflicts.WARN, probe)
    share = a_claim(2)
    claims = [a_claim(1), replace(share, results=(replace(share.results[0], device=SECOND.name),))]
    if not are_shares:
        claims = [replace(c, results=(replace(c.results[0], share_id=None),)) for c in claims]
        bench.offered = {name: replace(one, shared=False) for name, one in bench.offered.items()}

    async def walk() -> None:
        errors = await asyncio.gather(*map(bench.prepare, claims))
        if are_shares:
            assert errors == ["", ""]
            assert sorted(one[0] for one in bench.addresses) == ["10.3.0.40/16", "10.3.0.41/16"]
        else:
            assert sorted(map(bool, errors)) == [False, True]
            assert "10.3.0.40 is already that of device nic-" in max(errors)
            assert len(bench.addresses) == 1

    in_node(node, walk)


@pytest.mark.parametrize("from_pool", [True, False])
@pytest.mark.parametrize("mode", [AddressConflicts.WARN, AddressConflicts.REFUSE])
def test_an_address_in_use_elsewhere_is_reported_or_refused_until_it_is_free(
    node: Namespace,
    fabric: Namespace,
    make_bench: Callable[..., Bench],
    mode: AddressConflicts,
    from_pool: bool,
) -> None:
    bench = make_bench(mode)
    claim = a_claim() if from_pool else with_addresses(a_claim(), "10.3.0.40/16")
    fabric.ip_lines(f"link set p-eth1 address {OWNER}\naddr add 10.3.0.40/16 dev p-eth1\n")
    text = f"device nic-1: 10.3.0.40 is in use by {OWNER}"

    async def walk() -> None:
        error = await bench.prepare(claim)
        assert bench.count("dranet_address_conflicts_total") == 1
        if mode is AddressConflicts.WARN:
            assert (error, bench.told.conflicts) == ("", [f"pod-1: {text}"])
            return
        assert text in error
        assert bench.told.failed == ["AddressConflict"]
        assert not bench.store.get_all()
        fabric.ip("addr", "flush", "dev", "p-eth1")
        assert await bench.prepare(claim) == ""

    in_node(node, walk)


def test_probes_keep_no_thread_from_scans_and_other_claims(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def probe(*_: object) -> tuple[Conflict, ...]:
        is_asked.set()
        assert may_answer.wait(20)
        return ()

    bench = make_bench(AddressConflicts.REFUSE, probe)

    async def walk() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        preparing = asyncio.create_task(bench.prepare(a_claim()))
        await until(is_asked.is_set)
        await asyncio.to_thread(may_answer.set)
        assert await preparing == ""

    in_node(node, walk)


@pytest.mark.parametrize("is_attached", [True, False])
def test_the_address_of_another_link_on_the_same_device_is_a_conflict(
    node: Namespace, pod: Namespace, make_bench: Callable[..., Bench], is_attached: bool
) -> None:
    bench = make_bench(AddressConflicts.REFUSE)
    sandbox = PodSandbox("s", "pod-1", "team", "pod-1", f"/run/netns/{pod.name}")

    async def walk() -> None:
        assert await bench.prepare(with_addresses(a_claim(1), "10.9.0.1/24")) == ""
        if is_attached:
            await asyncio.to_thread(bench.attachments.attach_pod, sandbox, deadline=1e9)
        error = await bench.prepare(with_addresses(a_claim(2), "10.9.0.1/16"))
        assert "10.9.0.1 is in use by claim team/claim-1 (pod team/pod-1)" in error

    in_node(node, walk)


@pytest.mark.parametrize(
    "found", [Unprobed("eth1 has no carrier"), (Conflict("10.3.0.40", OWNER, proxy=True),)]
)
def test_what_cannot_be_asked_and_what_a_proxy_says_refuses_nothing(
    node: Namespace, make_bench: Callable[..., Bench], found: object
) -> None:
    asked: list[tuple[str, Sequence[str], bool]] = []

    def probe(ifname: str, addresses: Sequence[str], is_moved: bool) -> object:
        asked.append((ifname, tuple(addresses), is_moved))
        return found

    bench = make_bench(AddressConflicts.REFUSE, probe)

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        assert asked == [("eth1", ("10.3.0.40", "fd00:3::28"), False)]
        assert bench.count("dranet_address_unprobed_total") == isinstance(found, Unprobed)

    in_node(node, walk)


def test_a_claim_without_addresses_of_its_own_asks_nothing(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    def probe(*_: object) -> object:
        raise AssertionError("asked")

    bench = make_bench(AddressConflicts.REFUSE, probe)

    async def walk() -> None:
        assert await bench.prepare(with_addresses(a_claim())) == ""

    in_node(node, walk)

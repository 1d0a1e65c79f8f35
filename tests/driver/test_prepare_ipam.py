"""Addresses of claims from IPAM plugins: no address is lost, and none is given twice.

The plugin is the reference one, host-local, whose files show who has which address. Drivers die for real:
each step runs in a child process, which ends at a failpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam, IpamClient
from dranet.driver.leases import Leases
from dranet.driver.planner import Planner
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError
from dranet.failpoints import Failpoint, listen
from dranet.model.claim import (
    AllocationResult,
    Claim,
    ClaimRef,
    ConfigSource,
    Consumer,
    OpaqueConfig,
    PodSandbox,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import PreparedClaim
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.store.journal import Journal
from dranet.telemetry import Metrics
from dranet.view.ipam_file import IpamFile
from tests.support.cni_plugins import find_plugins, read_host_local, write_plugin
from tests.support.namespaces import Namespace
from tests.support.records import refuse_writes

pytestmark = pytest.mark.kernel

assert Planner.__name__
"""Loaded before the children are made."""
NIC = Device("nic-1", DeviceKind.NIC, ifname="eth1", shared=True)
NETWORK = "storage"
KILLED = 9


class Told(Announcer):
    def __init__(self) -> None:
        self.unreleased: list[str] = []
        self.doubted: list[str] = []

    def prepared(self, record: PreparedClaim) -> None:
        pass

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        pass

    def released(self, report: ReleaseReport) -> None:
        pass

    def addresses_not_released(self, ref: ClaimRef, error: DranetError) -> None:
        self.unreleased.append(f"{ref.name}: {error.message}")

    def address_check_failed(self, record: PreparedClaim, error: DranetError) -> None:
        self.doubted.append(f"{record.claim.name}: {error.message}")


class Bench:
    """What is between kubelet, plugins and store; the file of sources is in the same folder."""

    def __init__(
        self, folder: Path, *claims: Claim, plugins: Path | None = None, boot_id: str = "boot"
    ) -> None:
        self.claims = {claim.ref.uid: claim for claim in claims}
        self.folder = folder
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.told = Told()
        self.now = 0.0
        gate, self.metrics = StartGate(folder), Metrics()
        self.work = WorkLocks(self.store.folder)
        self.attachments = Attachments(self.store, gate)
        self.client = IpamClient([plugins or find_plugins("host-local")])
        sources = IpamFile(folder / "ipam.json")
        self.ipam = Ipam(self.store, boot_id, self.told, self.metrics, self.client, sources, lambda: self.now)
        self.preparer = Preparer(
            driver_name="dra.net",
            boot_id=boot_id,
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=lambda _: NIC,
                is_runtime_ready=lambda: True,
                find_ipam=self.ipam.find,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                Leases(self.store, self.attachments, self.told, self.metrics),
                ContainerFiles(gate, CdiSpecs(folder / "cdi", "dra.net")),
                self.work,
                self.ipam,
            ),
            announcer=self.told,
            metrics=self.metrics,
        )

    async def _fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def prepare(self, claim: Claim) -> str:
        """The error, empty for success."""
        self.claims[claim.ref.uid] = claim
        return (await self.preparer.prepare([claim.ref]))[claim.ref.uid].error

    async def unprepare(self, claim: Claim) -> str:
        return (await self.preparer.unprepare([claim.ref]))[claim.ref.uid]

    async def look(self) -> None:
        await self.ipam.look(self.work)

    def count(self, name: str) -> float:
        found = [line for line in self.metrics.render().decode().splitlines() if line.startswith(f"{name} ")]
        return float(found[0].split()[-1])

    @property
    def used(self) -> dict[str, tuple[str, str]]:
        """As the records have it, by address."""
        return read_used(self.store)

    @property
    def given(self) -> dict[str, tuple[str, str]]:
        """As the plugin has it, by address."""
        return read_host_local(self.folder / "networks", NETWORK)

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


def read_used(store: ClaimStore) -> dict[str, tuple[str, str]]:
    plans = [plan for record in store.get_all() for plan in record.plans]
    return {
        address.partition("/")[0]: (plan.ipam.container_id, plan.pod_ifname)
        for plan in plans
        if plan.ipam
        for address in plan.ipam.addresses
    }


def write_sources(folder: Path, **ipam: Any) -> None:
    ipam = {
        "type": "host-local",
        "dataDir": str(folder / "networks"),
        "ranges": [[{"subnet": "10.99.0.0/24"}]],
        "routes": [{"dst": "10.98.0.0/16"}, {"dst": "0.0.0.0/0"}],
        **ipam,
    }
    (folder / "ipam.json").write_text(json.dumps({NETWORK: {"cni": {"ipam": ipam}}}))


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []
    write_sources(tmp_path)

    def make(*claims: Claim, **how: Any) -> Bench:
        made.append(Bench(tmp_path, *claims, **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def a_claim(number: int = 1, pod: int = 1, devices: int = 1, **interface: Any) -> Claim:
    """Each claim has shares of one NIC."""
    configs = tuple(
        OpaqueConfig(
            ConfigSource.CLAIM,
            "dra.net",
            {"interface": {"name": f"net{position}", "type": "macvlan", "ipam": NETWORK, **interface}},
            requests=(f"req{position}",),
        )
        for position in range(devices)
    )
    return Claim(
        ref=ClaimRef(namespace="team", name=f"claim-{number}", uid=f"uid-{number}"),
        allocated=True,
        results=tuple(
            AllocationResult(
                f"req{position}", "dra.net", "node", NIC.name, share_id=f"share-{number}-{position}"
            )
            for position in range(devices)
        ),
        configs=configs,
        reserved_for=(Consumer(resource="pods", name=f"pod-{number}-{pod}", uid=f"pod-{number}-{pod}"),),
    )


def in_node(node: Namespace, walk: Callable[[], Awaitable[None]]) -> None:
    """Run a walk of the driver with all of its threads in the node's namespace."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await walk()

    node.run(lambda: asyncio.run(run()))


# --- the way of an address -----------------------------------------------------------------------------


def test_the_pod_gets_addresses_routes_and_gateway_of_the_plugin(
    node: Namespace, pod: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()
    claim = a_claim()
    sandbox = PodSandbox("s", "pod-1-1", "team", "pod-1-1", f"/run/netns/{pod.name}")

    async def walk() -> None:
        assert await bench.prepare(claim) == ""
        assert bench.given == {"10.99.0.2": ("uid-1.pod-1-1", "net0")} == bench.used
        assert await bench.prepare(claim) == ""
        assert len(bench.given) == 1
        report = await asyncio.to_thread(bench.attachments.attach_pod, sandbox, deadline=1e9)
        assert report is not None
        assert [link.addresses for link in report.links] == [("10.99.0.2/24",)]

    in_node(node, walk)
    assert read_routes(pod) >= {
        ("default", "10.244.0.1", None),
        ("default", "10.99.0.1", 1024),
        ("10.98.0.0/16", "10.99.0.1", None),
        ("10.99.0.0/24", None, None),
    }

    async def end() -> None:
        assert await bench.unprepare(claim) == ""
        assert bench.given == {}
        assert Journal(bench.folder).list_claims() == []

    in_node(node, end)


def read_routes(pod: Namespace) -> set[tuple[str, str | None, int | None]]:
    show = ["ip", "-n", pod.name, "-json", "route", "show"]
    routes = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    return {(route["dst"], route.get("gateway"), route.get("metric")) for route in routes}


def test_claims_and_devices_have_distinct_addresses(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        errors = await asyncio.gather(*(bench.prepare(a_claim(number, devices=2)) for number in range(4)))
        assert errors == [""] * 4
        assert len(bench.given) == 8
        assert bench.given == bench.used

    in_node(node, walk)


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (
            a_claim(ipam="other"),
            "interface.ipam: other is not in the driver's ipam_file; known there: storage",
        ),
        (a_claim(devices=2, name="net1"), "interface.name: nic-1, nic-1 would all be net1"),
        (a_claim(vrf={"name": "net0"}), "interface.vrf.name: net0 is the name of the interface itself"),
        (a_claim(addresses=["10.1.0.1/24"]), "interface.ipam: must be absent with addresses"),
        (a_claim(dhcp=True), "interface.ipam: must be absent with dhcp: true"),
    ],
)
def test_a_claim_that_is_refused_keeps_no_address(
    node: Namespace, make_bench: Callable[..., Bench], claim: Claim, expected: str
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert expected in await bench.prepare(claim)
        assert (bench.given, Journal(bench.folder).list_claims()) == ({}, [])

    in_node(node, walk)


def test_without_a_file_the_claim_is_told_so() -> None:
    from dranet.driver.ipam import no_ipam_file

    with pytest.raises(DranetError, match="this driver has no ipam_file"):
        no_ipam_file("storage")


def test_of_two_devices_one_without_an_address_means_none_for_the_claim(
    node: Namespace, make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    write_sources(tmp_path, ranges=[[{"subnet": "10.99.0.0/30"}]])
    bench = make_bench()

    async def walk() -> None:
        assert "no IP addresses available" in await bench.prepare(a_claim(devices=2))
        assert (bench.given, Journal(bench.folder).list_claims()) == ({}, [])
        assert await bench.prepare(a_claim()) == ""

    in_node(node, walk)


def test_a_disk_that_refuses_the_record_keeps_no_address(
    node: Namespace, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    refuse_writes(bench.store, monkeypatch)

    async def walk() -> None:
        assert await bench.prepare(a_claim())
        assert bench.given == {}

    in_node(node, walk)


def test_an_address_that_is_not_taken_back_keeps_no_pod_and_is_tried_again(
    node: Namespace, make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    real = find_plugins("host-local") / "host-local"
    plugins = write_plugin(tmp_path / "bin", "host-local", f"exec {real}")
    bench = make_bench(plugins=plugins)

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        write_plugin(plugins, "host-local", "exit 1")
        assert await bench.unprepare(a_claim()) == ""
        assert (bench.used, len(bench.given)) == ({}, 1)
        bench.now = 90.0
        await bench.look()
        assert bench.told.unreleased == [
            "claim-1: interface.ipam storage: host-local DEL: it ended with status 1 and no message"
        ]
        assert bench.count("dranet_ipam_unreleased_claims") == 1
        assert bench.count("dranet_ipam_unreleased_seconds") == 90
        assert "host-local DEL" in await bench.prepare(a_claim())
        (plugins / "host-local").unlink()
        (plugins / "host-local").symlink_to(real)
        await bench.look()
        assert bench.given == {}
        assert bench.count("dranet_ipam_unreleased_seconds") == 0

    in_node(node, walk)


def test_the_next_pod_of_a_claim_gets_its_own_address_and_the_last_ones_goes(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        bench.claims["uid-1"] = a_claim(pod=2)
        await bench.preparer.reassign(a_claim().ref)
        assert bench.given == {"10.99.0.3": ("uid-1.pod-1-2", "net0")} == bench.used

    in_node(node, walk)


def test_an_address_of_an_earlier_boot_is_given_back_before_another_is_asked_for(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        bench.close()
        rebooted = make_bench(boot_id="next")
        assert await rebooted.prepare(a_claim()) == ""
        assert rebooted.given == rebooted.used
        assert len(rebooted.given) == 1

    in_node(node, walk)


def test_a_damaged_record_keeps_its_address_until_the_kubelet_unprepares(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        bench.close()
        (bench.folder / "claims" / "uid-1.json").write_text('{"version": 4}')
        again = make_bench()
        await again.look()
        assert len(again.given) == 1
        assert await again.unprepare(a_claim()) == ""
        assert again.given == {}

    in_node(node, walk)


# --- CHECK ---------------------------------------------------------------------------------------------


def test_a_lost_address_is_reported_once_and_the_pod_keeps_it(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        await bench.look()
        assert bench.told.doubted == []
        (bench.folder / "networks" / NETWORK / "10.99.0.2").unlink()
        for _ in range(2):
            await bench.look()
        assert len(bench.told.doubted) == 1
        assert "host-local CHECK" in bench.told.doubted[0]
        assert bench.count("dranet_ipam_failed_checks") == 1
        assert len(bench.store.get_all()) == 1
        assert await bench.unprepare(a_claim()) == ""
        await bench.look()
        assert bench.count("dranet_ipam_failed_checks") == 0

    in_node(node, walk)


# --- drivers that die ----------------------------------------------------------------------------------

STEPS = (
    Failpoint.PREPARE_CLAIM_FETCHED,
    Failpoint.PREPARE_ADDRESS_NOTED,
    Failpoint.PREPARE_ADDRESS_TAKEN,
    Failpoint.PREPARE_STATE_READ,
    Failpoint.PREPARE_RECORD_COMMITTED,
    Failpoint.PREPARE_BEFORE_ANSWER,
    Failpoint.RELEASE_RECORD_DELETED,
    Failpoint.RELEASE_ADDRESS_RETURNED,
    Failpoint.RELEASE_BEFORE_ANSWER,
)
CLAIMS, PODS = 3, 2


async def run_step(bench: Bench, deed: str, number: int, pod: int) -> None:
    claim = a_claim(number, pod)
    if deed == "prepare":
        assert await bench.prepare(claim) == ""
    elif deed == "unprepare":
        assert await bench.unprepare(claim) == ""
    elif deed == "reassign":
        bench.claims[claim.ref.uid] = claim
        await bench.preparer.reassign(claim.ref)
    else:
        await bench.look()


def do(node: Namespace, folder: Path, deed: str, number: int, pod: int, dies_at: Failpoint | None) -> None:
    """A driver that does one thing and ends, or dies at a step."""
    child = os.fork()
    if not child:
        status = 1
        try:
            listen(lambda step: os._exit(KILLED) if step is dies_at else None)
            in_node(node, lambda: run_step(Bench(folder), deed, number, pod))
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) in ((0, KILLED) if dies_at else (0,)), (deed, dies_at)


DEEDS = st.tuples(
    st.sampled_from(["prepare", "unprepare", "reassign", "look"]),
    st.integers(1, CLAIMS),
    st.integers(1, PODS),
    st.none() | st.sampled_from(STEPS),
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("prepare", 1, 1, step) for step in STEPS] + [("unprepare", 1, 1, step) for step in STEPS])
@example([("prepare", 1, 1, None)] + [("reassign", 1, pod % 2, step) for pod, step in enumerate(STEPS)])
@given(st.lists(DEEDS, max_size=6))
def test_whatever_happens_the_plugin_has_what_prepared_claims_have(
    node: Namespace, deeds: list[tuple[str, int, int, Failpoint | None]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(folder)
        for deed in deeds:
            do(node, folder, *deed)
            given_now, used = read_host_local(folder / "networks", NETWORK), read_records(folder)
            assert used.items() <= given_now.items(), deed
        do(node, folder, "look", 0, 0, None)
        assert read_host_local(folder / "networks", NETWORK) == read_records(folder)


def read_records(folder: Path) -> dict[str, tuple[str, str]]:
    store = ClaimStore(folder / "claims")
    store.open()
    try:
        return read_used(store)
    finally:
        store.close()


def test_a_plugin_that_outlives_its_driver_is_waited_for(
    node: Namespace, make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would get an address after the next driver has released what there was."""
    monkeypatch.setattr("dranet.driver.ipam.ORPHAN_SECONDS", 0.0)
    do(node, tmp_path_with_sources(tmp_path), "prepare", 1, 1, Failpoint.PREPARE_ADDRESS_NOTED)
    with Journal(tmp_path).running("uid-1") as descriptor:
        plugin = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True, pass_fds=[descriptor]
        )
    bench = make_bench()

    async def walk() -> None:
        assert "that was started earlier for claim uid-1 still runs" in await bench.prepare(a_claim())
        await asyncio.to_thread(plugin.communicate, "\n")
        assert await bench.prepare(a_claim()) == ""
        assert bench.given == bench.used

    in_node(node, walk)


def tmp_path_with_sources(folder: Path) -> Path:
    write_sources(folder)
    return folder

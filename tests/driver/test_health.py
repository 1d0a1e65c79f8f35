"""From observation to the kubelet, taints, Events and metrics: with a clock of ours, and with real links."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cluster.events import EventNote
from dranet.driver.health import (
    Clocks,
    HealthCallbacks,
    HealthFile,
    HealthMonitor,
    HealthObserver,
    HealthRules,
    build_rules,
)
from dranet.driver.publish import Inventory, PublishLoop
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.errors import SettingsError
from dranet.health import Damping, DeviceMemory, FaultState, KnownFault, Patience
from dranet.inventory.policy import Policy
from dranet.kernel.counters import CountedLink
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect
from dranet.model.facts import CharDevice, Gpu, Link, NodeFacts, PciFunction, RdmaDevice, RdmaPort, Route
from dranet.model.health import CARRIER_LOSSES, FaultKind
from dranet.model.plan import AttachPlan, MoveLink, PreparedClaim, PreparedDevice
from dranet.settings import Settings, load_settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.namespaces import Namespace

T = TypeVar("T")

DEADLINE = 30.0
UPLINK = Link(2, "eth0", flags=1, carrier=True)
NIC = Link(3, "eth1", flags=1, carrier=True, parent_bus="pci", pci_address="0000:18:00.0")
CARD = PciFunction(
    "0000:18:00.0", 0x020000, 0x15B3, 0x1021, driver="mlx5_core", path=("0000:17:01.0", "0000:18:00.0")
)
PORT = RdmaPort(1, "ACTIVE", "Ethernet", netdevs=("eth1",), phys_state="LinkUp")
HCA = RdmaDevice("mlx5_0", pci_address=CARD.address, firmware="28.39", ports=(PORT,))
GPU_NODES = CharDevice("/dev/nvidia0", 195, 0), CharDevice("/dev/nvidia-uvm", 508, 0)
GPU = Gpu("0000:19:00.0", "nvidia", char_devices=GPU_NODES)
FACTS = NodeFacts(
    links=(UPLINK, NIC),
    pci_functions=(
        CARD,
        replace(CARD, address=GPU.pci_address, class_code=0x030200, path=(GPU.pci_address,)),
    ),
    rdma_devices=(HCA,),
    gpus=(GPU,),
    default_routes=(Route("0.0.0.0/0", ifindex=2),),
)
NAME = "pci-0000-18-00-0"
NO_CARRIER = replace(NIC, carrier=False)
POD = PodRef("default", "worker", "pod-uid")
LINK_DOWN = Taint("dra.net/link-down", TaintEffect.NO_SCHEDULE, "link-down")


class Reader:
    is_live = True

    def __init__(self) -> None:
        self.facts = FACTS

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        pass

    def read(self, _: Changes = EVERYTHING, /) -> NodeFacts:
        return self.facts


class Pods(PodLinks):
    """The links of pods as a test sets them."""

    def __init__(self) -> None:
        self.links: dict[str, list[CountedLink]] = {}
        self.asked = 0

    def get_links(self, pod_uid: str) -> Sequence[CountedLink]:
        return self.links.get(pod_uid, ())

    def ask_again(self) -> None:
        self.asked += 1

    async def visit(self, pod_uid: str, function: Callable[[], T]) -> T | None:
        return function() if pod_uid in self.links else None


class Events(Reporter):
    """Keeps Events instead of writing them."""

    def __init__(self) -> None:
        self.notes: list[EventNote] = []

    def add_event(self, event: EventNote) -> None:
        self.notes.append(event)


@dataclass
class Bench:
    """A monitor and everything around it."""

    folder: Path
    store: ClaimStore
    reader: Reader = field(default_factory=Reader)
    pods: Pods = field(default_factory=Pods)
    metrics: Metrics = field(default_factory=Metrics)
    events: Events = field(default_factory=Events)
    now: float = 1000.0
    on_duty: bool = True
    told: int = 0

    def __post_init__(self) -> None:
        self.inventory = Inventory(self.reader, Policy, self.store, self.metrics)
        self.sysfs = self.folder / "sys"
        self.file = HealthFile(self.folder / "health.json", "boot")
        self.monitor = self.start()

    def start(self, hardest: TaintEffect | None = TaintEffect.NO_SCHEDULE) -> HealthMonitor:
        """Another one is the driver restarted."""
        self.source = HealthObserver(self.inventory, self.store, self.pods, self.sysfs)
        self.monitor = HealthMonitor(
            self.source,
            HealthRules("node-1", Patience(), hardest),
            self.file,
            Announcer("dra.net", "node-1", self.events, self.metrics),
            self.metrics.health,
            HealthCallbacks(self._note, lambda: None, lambda: self.on_duty),
            Clocks(lambda: self.now, lambda: 1_800_000_000.0 + self.now),
        )
        self.monitor.recall()
        return self.monitor

    def _note(self) -> None:
        self.told += 1

    def show(self, link: Link | None, *ports: RdmaPort) -> None:
        links = (UPLINK, link) if link is not None else (UPLINK,)
        rdma = (replace(HCA, ports=ports),) if ports else (HCA,)
        self.reader.facts = replace(FACTS, links=links, rdma_devices=rdma)

    async def scan(self, after: float = 0.0, *, is_full: bool = False) -> None:
        self.now += after
        self.inventory.scan()
        await self.monitor.scanned(is_full=is_full)

    async def lose_the_carrier(self) -> None:
        """For long enough to count."""
        await self.scan()
        self.show(NO_CARRIER)
        await self.scan()
        await self.scan(11)

    def health(self, name: str = NAME) -> tuple[bool | None, str]:
        (fact,) = [fact for fact in self.monitor.snapshot() if fact.device == name]
        assert fact.pool == "node-1"
        return fact.healthy, fact.message

    def give_to_pod(self) -> None:
        """As attach leaves it: committed, and the link out of the host's sight."""
        plan = AttachPlan(NAME, (MoveLink("net1"),), "net1")
        device = PreparedDevice("nic", "node-1", self.inventory.view.offered[NAME], plan=plan)
        claim = ClaimRef("default", "nic", "claim-uid")
        self.store.put(PreparedClaim(claim, POD, (device,), "boot", "sandbox", "/run/netns/pod", "cookie 1"))
        self.show(None)

    def metric(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = ClaimStore(tmp_path / "claims")
    store.open()
    yield Bench(tmp_path, store)
    store.close()


def in_pod(carrier: bool = True, name: str = "net1", losses: int = 0, up: bool = True) -> CountedLink:
    link = replace(NIC, ifname=name, carrier=carrier, flags=int(up))
    return CountedLink(link, {CARRIER_LOSSES: losses})


# --- on the node ---------------------------------------------------------------------------------------


async def test_every_published_device_is_in_the_snapshot_and_a_gpu_is_unknown(bench: Bench) -> None:
    await bench.scan(is_full=True)
    assert {fact.device for fact in bench.monitor.snapshot()} == set(bench.inventory.view.offered)
    assert bench.health() == (True, "")
    assert bench.health("gpu-0000-19-00-0") == (None, "GPU health is not monitored by this driver")


async def test_a_lasting_fault_reaches_kubelet_slices_events_and_metrics_and_goes_again(bench: Bench) -> None:
    await bench.scan()
    bench.show(NO_CARRIER)
    await bench.scan(1)
    assert bench.health() == (True, "")
    assert not bench.monitor.taints
    told = bench.told
    await bench.scan(10)
    healthy, message = bench.health()
    assert healthy is False
    assert message.startswith("link-down: eth1 has no carrier, since ")
    assert bench.monitor.taints == {NAME: (LINK_DOWN,)}
    assert bench.told == told + 1
    (event,) = bench.events.notes
    assert (event.regarding.kind, event.type, event.reason) == ("Node", "Warning", "NetworkDeviceUnhealthy")
    assert event.note == f"device {NAME}: {message}"
    assert bench.metric('dranet_health_devices{health="unhealthy"}') == 1
    assert bench.metric('dranet_health_faults{fault="link-down"}') == 1
    bench.show(NIC)
    await bench.scan(1)
    await bench.scan(60)
    assert bench.health() == (True, "")
    assert not bench.monitor.taints
    assert [note.reason for note in bench.events.notes] == ["NetworkDeviceUnhealthy", "NetworkDeviceHealthy"]
    assert bench.metric('dranet_health_faults{fault="link-down"}') == 0


async def test_nothing_is_told_while_nothing_changes(bench: Bench) -> None:
    await bench.scan(is_full=True)
    told, taints = bench.told, bench.monitor.taints
    stamp = (bench.folder / "health.json").stat().st_mtime_ns
    for _ in range(20):
        await bench.scan(60, is_full=True)
    assert bench.told == told
    assert bench.monitor.taints == taints
    assert (bench.folder / "health.json").stat().st_mtime_ns == stamp
    assert bench.pods.asked == 21, "one question to each pod at each full scan"


@pytest.mark.parametrize(
    ("hardest", "taints"),
    [
        (None, {}),
        (TaintEffect.NONE, {NAME: (replace(LINK_DOWN, effect=TaintEffect.NONE),)}),
        (TaintEffect.NO_EXECUTE, {NAME: (replace(LINK_DOWN, effect=TaintEffect.NO_EXECUTE),)}),
    ],
)
async def test_the_operator_chooses_the_effect(
    bench: Bench, hardest: TaintEffect | None, taints: dict[str, tuple[Taint, ...]]
) -> None:
    bench.start(hardest)
    await bench.lose_the_carrier()
    assert bench.health()[0] is False, "the kubelet hears of it in any case"
    assert bench.monitor.taints == taints


async def test_a_pcie_link_and_error_counters_are_read_at_full_scans(bench: Bench) -> None:
    card = bench.sysfs / "bus/pci/devices" / CARD.address
    port = bench.sysfs / "bus/pci/devices" / CARD.path[0]
    ports = bench.sysfs / "class/infiniband/mlx5_0/ports/1/counters"
    for folder in (card, port, ports):
        folder.mkdir(parents=True)
    for folder in (card, port):
        (folder / "max_link_speed").write_text("32.0 GT/s PCIe\n")
        (folder / "max_link_width").write_text("16\n")
    (card / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    (card / "current_link_width").write_text("16\n")
    (ports / "symbol_error").write_text("0\n")
    await bench.scan(is_full=True)
    for errors in (20, 40):
        (ports / "symbol_error").write_text(f"{errors}\n")
        (card / "current_link_width").write_text("4\n")
        await bench.scan(60, is_full=True)
    await bench.scan(20)
    healthy, message = bench.health()
    assert healthy is False
    assert "link-errors: rose within 5 min: symbol_error by 40" in message
    assert "pcie-degraded: PCIe link at x4 instead of x16" in message
    assert bench.monitor.taints == {NAME: (Taint("dra.net/degraded", TaintEffect.NONE, "link-errors"),)}


# --- in a pod ------------------------------------------------------------------------------------------


async def test_a_fault_in_a_pod_is_told_to_that_pod(bench: Bench) -> None:
    await bench.scan()
    bench.give_to_pod()
    bench.pods.links[POD.uid] = [in_pod()]
    await bench.scan(1)
    assert bench.health() == (True, "")
    bench.pods.links[POD.uid] = [in_pod(carrier=False)]
    await bench.scan(1)
    await bench.scan(10)
    healthy, message = bench.health()
    assert healthy is False
    assert "net1 has no carrier" in message
    assert [(note.regarding.kind, note.regarding.uid) for note in bench.events.notes] == [
        ("Node", "node-1"),
        ("Pod", "pod-uid"),
    ]


async def test_a_link_that_the_pod_renamed_is_still_found(bench: Bench) -> None:
    await bench.scan()
    bench.give_to_pod()
    bench.pods.links[POD.uid] = [
        CountedLink(Link(9, "net1", flags=1, carrier=True)),
        in_pod(carrier=False, name="renamed"),
    ]
    await bench.scan(1)
    await bench.scan(60)
    await bench.scan(10)
    assert "renamed has no carrier" in bench.health()[1]


async def test_a_device_that_changes_hands_does_not_flap(bench: Bench) -> None:
    """Each move takes the carrier away once, and the counter goes with the link."""
    await bench.scan(is_full=True)
    for number in range(1, 12):
        bench.give_to_pod()
        bench.pods.links[POD.uid] = [in_pod(losses=2 * number)]
        await bench.scan(2, is_full=True)
        bench.store.delete("claim-uid")
        bench.pods.links.clear()
        bench.show(NIC)
        await bench.scan(2, is_full=True)
        assert bench.health() == (True, "")
    await bench.scan(15)
    assert bench.health() == (True, "")
    assert bench.metric("dranet_health_carrier_losses_total") == 0


async def test_counters_read_in_other_hands_are_forgotten(bench: Bench) -> None:
    ports = bench.sysfs / "class/infiniband/mlx5_0/ports/1/counters"
    ports.mkdir(parents=True)
    (ports / "symbol_error").write_text("7\n")
    await bench.scan(is_full=True)

    def symbol_errors() -> list[int | None]:
        source = bench.source
        return [
            observation.counters.get("symbol_error")
            for _, observation in source.collect(source.find_holders())
        ]

    assert symbol_errors() == [7]
    bench.give_to_pod()
    await bench.scan()
    assert symbol_errors() == [None]
    await bench.scan(is_full=True)
    assert symbol_errors() == [7]


async def test_what_was_counted_in_a_pod_is_no_fault_of_a_device_that_came_back(bench: Bench) -> None:
    """The next full scan comes a minute after the give-back; what was read before is older than the pod."""
    ports = bench.sysfs / "class/infiniband/mlx5_0/ports/1/counters"
    ports.mkdir(parents=True)
    (ports / "link_downed").write_text("0\n")
    await bench.scan(is_full=True)
    await bench.scan(100, is_full=True)
    bench.give_to_pod()
    bench.pods.links[POD.uid] = [in_pod()]
    await bench.scan(1)
    (ports / "link_downed").write_text("4\n")
    bench.store.delete("claim-uid")
    bench.pods.links.clear()
    bench.show(NIC)
    await bench.scan(1)
    await bench.scan(61, is_full=True)
    await bench.scan(11)
    assert bench.health() == (True, "")


async def test_a_partial_scan_does_not_bring_back_what_a_port_was_a_minute_ago(bench: Bench) -> None:
    """It reads few RDMA devices again; of the others it repeats what the last full scan said."""
    down = replace(PORT, state="DOWN", phys_state="Polling")
    state = bench.sysfs / "class/infiniband/mlx5_0/ports/1/state"
    state.parent.mkdir(parents=True)

    def states() -> list[str]:
        return [port.state for _, observation in bench.source.collect({}) for port in observation.ports]

    bench.show(NIC, down)
    await bench.scan(is_full=True)
    state.write_text("4: ACTIVE\n")
    await bench.source.read_ports({NAME})
    assert states() == ["ACTIVE"]
    await bench.scan(1)
    assert states() == ["ACTIVE"]
    bench.show(NIC, replace(down, state="INIT"))
    await bench.scan(1)
    assert states() == ["INIT"], "this one has read it"
    await bench.source.read_ports({NAME})
    await bench.scan(1, is_full=True)
    assert states() == ["INIT"], "a full one reads all"


async def test_a_flapping_link_in_a_pod_is_one_soft_fault(bench: Bench) -> None:
    await bench.scan()
    bench.give_to_pod()
    for losses in range(5):
        bench.pods.links[POD.uid] = [in_pod(carrier=losses % 2 == 0, losses=losses)]
        await bench.scan(5 if losses else 0)
        await bench.scan(0 if losses else 60)
    await bench.scan(11)
    healthy, message = bench.health()
    assert healthy is False
    assert "link-flapping" in message
    assert bench.monitor.taints[NAME][0].effect is TaintEffect.NONE
    assert bench.metric("dranet_health_carrier_losses_total") == 4
    assert len(bench.events.notes) == 2


async def test_a_device_that_is_gone_while_a_pod_has_it_is_unhealthy(bench: Bench) -> None:
    await bench.scan()
    bench.give_to_pod()
    await bench.scan()
    bench.reader.facts = replace(bench.reader.facts, pci_functions=(), rdma_devices=())
    await bench.scan()
    healthy, message = bench.health()
    assert healthy is False
    assert "is gone while a pod has it" in message


# --- restarts and overlap ------------------------------------------------------------------------------


async def test_a_restart_keeps_taints_and_tells_nothing_twice(bench: Bench) -> None:
    await bench.lose_the_carrier()
    before, taints = bench.health(), bench.monitor.taints
    bench.events.notes.clear()
    bench.start()
    await bench.scan(1)
    assert bench.health() == before
    assert bench.monitor.taints == taints
    assert not bench.events.notes
    bench.show(NIC)
    await bench.scan(1)
    await bench.scan(61)
    assert bench.health() == (True, "")
    assert [note.reason for note in bench.events.notes] == ["NetworkDeviceHealthy"]


async def test_after_a_reboot_nothing_is_remembered(bench: Bench) -> None:
    await bench.lose_the_carrier()
    assert bench.file.read()
    assert HealthFile(bench.folder / "health.json", "another boot").read() == {}


async def test_who_is_not_on_duty_judges_and_tells_nobody(bench: Bench) -> None:
    """The other instance speaks; two would contradict each other in every detail."""
    bench.on_duty = False
    await bench.lose_the_carrier()
    assert bench.monitor.snapshot() == ()
    assert not bench.events.notes
    assert not (bench.folder / "health.json").exists()
    bench.on_duty = True
    assert bench.health()[0] is False, "what it has seen counts as soon as it is"


async def test_new_firmware_is_noticed_although_the_card_went_away_for_it(bench: Bench) -> None:
    """A reset for new firmware takes the function off the bus for seconds."""
    await bench.scan()
    there = bench.reader.facts
    bench.reader.facts = replace(there, links=(UPLINK,), pci_functions=(), rdma_devices=())
    await bench.scan(5)
    assert NAME not in {fact.device for fact in bench.monitor.snapshot()}
    bench.start()  # also when the driver is restarted meanwhile
    await bench.scan(5)
    bench.reader.facts = replace(there, rdma_devices=(replace(HCA, firmware="28.40"),))
    await bench.scan(5)
    await bench.scan(11)
    assert "firmware-changed: RDMA firmware was 28.39 and is 28.40" in bench.health()[1]


async def test_a_broken_device_that_comes_back_broken_was_never_thought_well(bench: Bench) -> None:
    await bench.lose_the_carrier()
    broken, there = bench.health(), bench.reader.facts
    bench.reader.facts = replace(there, links=(UPLINK,), pci_functions=(), rdma_devices=())
    await bench.scan(5)
    bench.reader.facts = there
    await bench.scan(5)
    assert bench.health() == broken
    assert len(bench.events.notes) == 1


async def test_devices_that_are_gone_for_good_do_not_fill_the_memory(bench: Bench) -> None:
    for number in range(600):
        link = replace(
            NIC, ifname=f"mv{number}", pci_address="", parent_bus="", kind="macvlan", driver_version="1"
        )
        bench.show(link)
        await bench.scan(1)
    assert len(bench.monitor._memories) == 512
    assert f"mv{599 - 512}" in bench.monitor._memories, "the latest are kept"


@pytest.mark.parametrize("key", ["since", "changed_at", "relapses", "cleared_at"])
@pytest.mark.parametrize("value", ["1" + "0" * 400, "Infinity", "-Infinity", "NaN", "1e300", "-1", "1e10"])
async def test_odd_numbers_in_the_file_neither_end_the_driver_nor_taint_for_ever(
    bench: Bench, key: str, value: str
) -> None:
    await bench.lose_the_carrier()
    document = json.loads(bench.file._path.read_text())
    document["devices"][NAME]["faults"]["link-down"][key] = "odd"
    bench.file._path.write_text(json.dumps(document).replace('"odd"', value))
    bench.start()
    bench.show(NIC)
    for _ in range(40):
        await bench.scan(60)
    assert bench.health() == (True, "")


faults = st.builds(
    KnownFault,
    st.builds(
        FaultState,
        st.booleans(),
        st.floats(0, 1e9),
        st.booleans(),
        st.integers(0, 100),
        st.none() | st.floats(0, 1e9),
    ),
    st.text(max_size=5),
    st.floats(0, 2e9),
)
memories = st.dictionaries(
    st.text(max_size=5),
    st.builds(
        DeviceMemory,
        st.dictionaries(st.sampled_from(FaultKind), faults, max_size=2),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    ),
    max_size=2,
)


@settings(max_examples=40)
@given(memories)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, known: dict[str, DeviceMemory]
) -> None:
    file = HealthFile(tmp_path_factory.mktemp("state") / "health.json", "boot")
    file.write(known)
    assert file.read() == known


@settings(max_examples=60)
@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["format", "boot", "devices", "versions", "faults", "link-down"]), inner
            )
        ),
    ).map(json.dumps)
)
def test_a_file_that_makes_no_sense_is_no_memory(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("state") / "health.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert HealthFile(path, "boot").read() == {}


# --- settings ------------------------------------------------------------------------------------------


def test_settings_become_rules() -> None:
    rules = build_rules(
        load_settings(
            {"health_taints": "NoExecute", "health_ignore": "pcie-degraded", "rescan_seconds": "120"}, {}
        )
    )
    assert rules.hardest is TaintEffect.NO_EXECUTE
    assert rules.patience.ignored == {FaultKind.PCIE_DEGRADED}
    assert rules.patience.window_seconds == 600
    assert build_rules(Settings()) == HealthRules(
        Settings().node_name, Patience(Damping(10, 60)), TaintEffect.NO_SCHEDULE
    )
    assert build_rules(load_settings({"health_taints": "off"}, {})).hardest is None
    with pytest.raises(SettingsError, match="link-dawn: no such fault; known are link-down"):
        build_rules(load_settings({"health_ignore": "link-dawn"}, {}))


# --- against the kernel --------------------------------------------------------------------------------


class Slices:
    """What is published; a test waits for what it expects."""

    def __init__(self) -> None:
        self.taints: dict[str, tuple[Taint, ...]] = {}
        self.changed = asyncio.Event()

    def set_desired(self, _: Sequence[Sequence[Device]], taints: object = None, /) -> None:
        assert isinstance(taints, dict)
        self.taints = dict(taints)
        self.changed.set()

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def publishing(
    node: Namespace, folder: Path, store: ClaimStore, training_seconds: float = 60.0
) -> AsyncIterator[tuple[Slices, HealthMonitor, PodLinks]]:
    """Scan loop, pods' links and monitor as the driver wires them, with little patience."""
    slices, metrics = Slices(), Metrics()
    scanner = NodeScanner(folder, folder)
    policy = Policy(offer_link_kinds=frozenset({"veth"}))
    inventory = Inventory(InNamespace(scanner, node), lambda: policy, store, metrics)

    def changed(pod_uid: str) -> None:
        monitor.pod_changed(pod_uid)
        slices.changed.set()

    links = PodLinks(changed)

    def publish() -> None:
        loop.publish()

    monitor = HealthMonitor(
        HealthObserver(inventory, store, links, folder),
        HealthRules("node-1", Patience(Damping(0.3, 0.5), training_seconds), TaintEffect.NO_SCHEDULE),
        HealthFile(folder / "health.json", "boot"),
        Announcer("dra.net", "node-1", Events(), metrics),
        metrics.health,
        HealthCallbacks(slices.changed.set, publish, lambda: True),
    )
    loop = PublishLoop(inventory, slices, metrics, 60.0, lambda: None, monitor)
    tasks = [asyncio.create_task(work) for work in (follow(loop), monitor.run())]
    try:
        yield slices, monitor, links
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        links.close()


class InNamespace:
    """Facts of a namespace, whichever thread asks."""

    is_live = True

    def __init__(self, scanner: NodeScanner, node: Namespace) -> None:
        self._scanner, self._node = scanner, node

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self._scanner.set_protected_addresses(targets)

    def read(self, changes: Changes = EVERYTHING, /) -> NodeFacts:
        return self._node.run(lambda: self._scanner.read(changes))


async def follow(loop: PublishLoop) -> None:
    """Scan again and again: the loop's own watch would listen in the namespace of the tests."""
    await loop.scan_and_publish()
    while True:
        await asyncio.sleep(0.1)
        await loop.scan_and_publish(Changes(all_links=True))


@pytest.mark.kernel
async def test_a_pulled_cable_on_the_node_becomes_a_taint_and_goes_again(
    node: Namespace, tmp_path: Path
) -> None:
    node.ip_lines("link add nic type veth peer name far\nlink set nic up\nlink set far up\n")
    store = ClaimStore(tmp_path / "claims")
    store.open()
    async with publishing(node, tmp_path, store) as (slices, _, _):
        await slices.wait(slices.changed.is_set)
        assert not slices.taints
        await asyncio.to_thread(node.ip, "link", "set", "far", "down")
        await slices.wait(lambda: slices.taints == {"nic": (LINK_DOWN,)})
        await asyncio.to_thread(node.ip, "link", "set", "far", "up")
        await slices.wait(lambda: not slices.taints)
    store.close()


@pytest.mark.kernel
async def test_a_pulled_cable_of_a_pod_becomes_a_taint_and_goes_again(
    node: Namespace, fabric: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    store = ClaimStore(tmp_path / "claims")
    store.open()
    async with publishing(node, tmp_path, store) as (slices, monitor, links):
        await slices.wait(slices.changed.is_set)
        device = Device("eth1", DeviceKind.NIC, ifname="eth1")
        prepared = PreparedDevice(
            "nic", "node-1", device, plan=AttachPlan("eth1", (MoveLink("net1"),), "net1")
        )
        claim = ClaimRef("default", "nic", "claim-uid")
        store.put(PreparedClaim(claim, POD, (prepared,), "boot", "sandbox", str(pod.path), "cookie 1"))
        await asyncio.to_thread(node.ip, "link", "set", "eth1", "netns", pod.name, "name", "net1")
        await asyncio.to_thread(pod.ip, "link", "set", "net1", "up")
        links.follow(POD.uid, pod.netns)
        await slices.wait(lambda: [fact.healthy for fact in monitor.snapshot()] == [True])
        await asyncio.to_thread(fabric.ip, "link", "set", "p-eth1", "down")
        await slices.wait(lambda: slices.taints == {"eth1": (LINK_DOWN,)})
        (fact,) = [fact for fact in monitor.snapshot() if fact.device == "eth1"]
        assert "net1 has no carrier" in fact.message
        await asyncio.to_thread(fabric.ip, "link", "set", "p-eth1", "up")
        await slices.wait(lambda: not slices.taints)
    store.close()


@pytest.mark.kernel
async def test_a_tenant_who_switches_his_nic_off_and_on_makes_no_fault(
    node: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    """In a loop, as the start script of a container that crashes does; the driver looks now and then."""
    store = ClaimStore(tmp_path / "claims")
    store.open()
    async with publishing(node, tmp_path, store, training_seconds=0.0) as (slices, monitor, links):
        await slices.wait(slices.changed.is_set)
        device = Device("eth1", DeviceKind.NIC, ifname="eth1")
        plan = AttachPlan("eth1", (MoveLink("net1"),), "net1")
        prepared = PreparedDevice("nic", "node-1", device, plan=plan)
        claim = ClaimRef("default", "nic", "claim-uid")
        store.put(PreparedClaim(claim, POD, (prepared,), "boot", "sandbox", str(pod.path), "cookie 1"))
        await asyncio.to_thread(node.ip, "link", "set", "eth1", "netns", pod.name, "name", "net1")
        await asyncio.to_thread(pod.ip, "link", "set", "net1", "up")
        links.follow(POD.uid, pod.netns)
        await slices.wait(lambda: [fact.healthy for fact in monitor.snapshot()] == [True])

        def net1() -> CountedLink:
            return next(seen for seen in links.get_links(POD.uid) if seen.link.ifname == "net1")

        for times in range(1, 7):
            await asyncio.to_thread(pod.ip_lines, "link set net1 down\nlink set net1 up\n")
            await slices.wait(partial(lambda times: net1().times_off == times, times))
        assert net1().counters[CARRIER_LOSSES] >= 6
        monitor.look()
        assert not monitor._trackers["eth1"].is_pending(FaultKind.LINK_FLAPPING)
        assert [fact.healthy for fact in monitor.snapshot()] == [True]
        assert not slices.taints
    store.close()

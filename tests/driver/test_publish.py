"""From a change to the slices: what is scanned, decided, counted and published."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver import publish
from dranet.driver.publish import BURST, Inventory, PublishLoop, View
from dranet.errors import DeviceError, KernelError, Reason, SettingsError
from dranet.inventory.policy import Decision, Policy
from dranet.kernel.discovery.scan import ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.model.capture import Capture, encode_capture
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind, Taint
from dranet.model.facts import Address, Link, NodeFacts, PciFunction, Route
from dranet.model.plan import AttachPlan, LinkState, PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.view.options import CapturedFacts
from tests.data.layouts import capture_file
from tests.support.namespaces import Namespace

UPLINK = Link(2, "eth0", flags=1, carrier=True, addresses=(Address("192.0.2.2/24"),))
NIC = Link(3, "eth1", flags=1, carrier=True)
FACTS = NodeFacts(links=(UPLINK, NIC), default_routes=(Route("0.0.0.0/0", ifindex=2),))


NO_TAINTS: Mapping[str, Sequence[Taint]] = {}


def do_nothing() -> None:
    pass


class Reader:
    """Facts that a test sets; keeps what it was asked."""

    is_live = True

    def __init__(self, facts: NodeFacts = FACTS) -> None:
        self.facts = facts
        self.failure: KernelError | None = None
        self.asked: list[Changes] = []
        self.targets: Sequence[ProtectedAddress] = ()
        self.while_reading: Callable[[], object] = do_nothing

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self.targets = targets

    def read(self, changes: Changes = EVERYTHING, /) -> NodeFacts:
        self.asked.append(changes)
        self.while_reading()
        if self.failure is not None:
            raise self.failure
        return self.facts


class Slices:
    def __init__(self) -> None:
        self.pages: list[list[list[str]]] = []
        self.taints: Mapping[str, Sequence[Taint]] = {}

    def set_desired(
        self, pages: Sequence[Sequence[Device]], taints: Mapping[str, Sequence[Taint]] = NO_TAINTS
    ) -> None:
        self.taints = taints
        self.pages.append([[device.name for device in page] for page in pages])


class FailingFilter:
    def matches(self, _: object) -> bool:
        raise DeviceError("no such key: speed")


Make = Callable[..., Inventory]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    store = ClaimStore(tmp_path / "claims")
    store.open()

    def build(reader: Reader | CapturedFacts, policy: Policy | None = None) -> Inventory:
        return Inventory(reader, policy=lambda: policy or Policy(), store=store, metrics=Metrics())

    yield build
    store.close()


def metric(inventory: Inventory, name: str) -> float:
    lines = inventory._metrics.render().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_a_scan_reads_what_changed_and_counts_by_kind(make: Make) -> None:
    reader = Reader()
    inventory = make(reader)
    inventory.scan()
    change = Changes(links=frozenset({3}))
    inventory.scan(change)
    inventory.scan(change)
    assert reader.asked == [EVERYTHING, change, change]
    assert metric(inventory, 'dranet_inventory_scans_total{kind="full"}') == 1
    assert metric(inventory, 'dranet_inventory_scans_total{kind="partial"}') == 2


def test_a_held_back_device_is_refused_with_the_whole_reason(make: Make) -> None:
    inventory = make(Reader())
    inventory.scan()
    assert list(inventory.view.offered) == ["eth1"]
    with pytest.raises(
        DeviceError, match=r"eth0 is not offered: is the node's uplink: eth0 carries"
    ) as caught:
        inventory.get_offered("eth0")
    assert caught.value.reason is Reason.DEVICE_IS_UPLINK
    assert not caught.value.retryable


def test_what_was_held_back_at_the_last_scan_is_looked_at_again_before_it_is_refused(make: Make) -> None:
    """Of two instances one hears of the NIC that the other has brought home a moment later."""
    links = (replace(link, master=1) if link.ifname == "eth1" else link for link in FACTS.links)
    reader = Reader(replace(FACTS, links=tuple(links)))
    inventory = make(reader)
    inventory.scan()
    assert "eth1" in inventory.view.not_offered
    reader.facts = FACTS
    assert inventory.get_offered("eth1").ifname == "eth1"


def test_another_reason_to_hold_back_is_no_uplink() -> None:
    decision = Decision(Device("br0", DeviceKind.NIC, ifname="br0"), False, "is part of the node's network")
    refusal = View.of(FACTS, [decision]).refusal("br0")
    assert refusal.reason is Reason.DEVICE_EXCLUDED
    assert refusal.message == "device br0 is not offered: is part of the node's network"


def test_devices_on_which_the_filter_fails_are_counted(make: Make) -> None:
    inventory = make(Reader(), Policy(filter=FailingFilter()))
    inventory.scan()
    assert metric(inventory, "dranet_inventory_filter_failed_devices") == 1
    assert not inventory.view.offered


def test_a_warning_is_said_once_for_as_long_as_it_stays(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    odd = NodeFacts(warnings=("odd value", "odd value"))
    reader = Reader(odd)
    inventory = make(reader)
    with caplog.at_level(logging.WARNING):
        for facts in (odd, odd, FACTS, odd):
            reader.facts = facts
            inventory.scan()
    assert caplog.messages == ["scan: odd value"] * 2
    assert metric(inventory, "dranet_inventory_warnings") == 2


def test_a_capture_stands_for_the_node(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(encode_capture(Capture(FACTS, "a test")))
    inventory = make(CapturedFacts(str(file)))
    inventory.set_protected_addresses([ProtectedAddress("the node's address", "192.0.2.2", is_own=True)])
    inventory.scan()
    file.unlink()
    inventory.scan(Changes(routes=True))
    assert inventory.view.facts == FACTS
    assert list(inventory.view.offered) == ["eth1"]


def test_a_device_of_a_capture_is_offered_and_never_given(make: Make, tmp_path: Path) -> None:
    """This node may have another device of that name, and would lose it."""
    file = tmp_path / "node.json"
    file.write_text(encode_capture(Capture(FACTS, "a test")))
    inventory = make(CapturedFacts(str(file)))
    inventory.scan()
    assert list(inventory.view.offered) == ["eth1"]
    with pytest.raises(DeviceError, match="eth1 is of a captured machine, not of this node") as caught:
        inventory.get_offered("eth1")
    assert not caught.value.retryable


@pytest.mark.parametrize("content", [None, b"\xff", b"{}"])
def test_a_capture_that_cannot_be_used_refuses_the_start(
    make: Make, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "node.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"facts file|capture"):
        make(CapturedFacts(str(file))).scan()


async def test_a_link_that_flaps_for_long_is_not_published_each_time(make: Make) -> None:
    reader, slices = Reader(), Slices()
    inventory = make(reader)
    loop = PublishLoop(inventory, slices, inventory._metrics, 60.0, on_scan=do_nothing)
    for number in range(100):
        reader.facts = NodeFacts(links=(replace(NIC, operstate="down" if number % 2 else "up"),))
        assert await loop.scan_and_publish()
    assert BURST <= len(slices.pages) <= BURST + 1


async def test_to_know_more_than_a_slice_takes_is_no_fault_and_said_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As every RDMA NIC makes it: one line for a whole GPU server, whatever the number of scans."""
    inventory = make(CapturedFacts(str(capture_file("dgx-h100"))))
    loop = PublishLoop(inventory, Slices(), inventory._metrics, 60.0, on_scan=do_nothing)
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert await loop.scan_and_publish()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.messages[0].startswith(
        "more is known of 12 devices than the 32 attributes that a slice takes"
    )
    assert "dra.net/adminUp" in caplog.messages[0]
    assert metric(inventory, "dranet_inventory_warnings") == 0


# --- the loop -------------------------------------------------------------------------------------------


class Bench:
    """A loop over a reader, in a namespace of its own."""

    def __init__(self, inventory: Inventory, rescan_seconds: float = 60.0) -> None:
        self.slices = Slices()
        self.scanned = asyncio.Event()
        self.loop = PublishLoop(
            inventory, self.slices, inventory._metrics, rescan_seconds, on_scan=self.scanned.set
        )

    async def wait_scan(self) -> None:
        async with asyncio.timeout(30):
            await self.scanned.wait()
        self.scanned.clear()


def run_loop(
    node: Namespace, inventory: Inventory, steps: Callable[[Bench], Awaitable[None]], **loop: float
) -> None:
    async def scenario() -> None:
        bench = Bench(inventory, **loop)
        running = asyncio.create_task(bench.loop.run())
        try:
            await bench.wait_scan()
            await steps(bench)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    node.run(lambda: asyncio.run(scenario()))


@pytest.fixture
def quiet(make_namespace: Callable[..., Namespace]) -> Namespace:
    """A namespace where nothing changes by itself."""
    namespace = make_namespace()
    namespace.ip("link", "add", "a1", "type", "veth", "peer", "name", "b1")
    return namespace


@pytest.mark.kernel
def test_a_change_is_passed_on_to_the_scan_and_published(quiet: Namespace, make: Make) -> None:
    reader = Reader()

    async def steps(bench: Bench) -> None:
        assert bench.slices.pages == [[["eth1"]]]
        reader.facts = NodeFacts(links=(NIC, Link(4, "eth2")))
        await asyncio.to_thread(quiet.ip, "link", "set", "a1", "mtu", "1400")
        await bench.wait_scan()
        assert reader.asked[0] == EVERYTHING
        assert len(reader.asked[1].links) >= 1
        assert not reader.asked[1].everything
        assert bench.slices.pages[1] == [["eth1", "eth2"]]

    run_loop(quiet, make(reader), steps)


@pytest.mark.kernel
def test_changes_do_not_put_off_the_full_scan(quiet: Namespace, make: Make) -> None:
    reader = Reader()

    async def steps(bench: Bench) -> None:
        for _ in range(20):
            bench.loop._watch.note(Changes(routes=True))
            await bench.wait_scan()
            if EVERYTHING in reader.asked[1:]:
                return
        pytest.fail(f"only {reader.asked}")

    run_loop(quiet, make(reader), steps, rescan_seconds=1.0)


@pytest.mark.kernel
def test_news_of_the_protected_links_lead_to_a_scan_that_looks_for_them(quiet: Namespace, make: Make) -> None:
    reader = Reader()
    targets = (ProtectedAddress("the route to the API server", "10.9.0.1", is_own=False),)

    async def steps(bench: Bench) -> None:
        bench.loop.set_protected_addresses(targets)
        await bench.wait_scan()
        assert (reader.asked[1], reader.targets) == (Changes(routes=True), targets)
        await asyncio.to_thread(quiet.ip_lines, "route add 10.9.0.0/16 dev lo\n")
        await bench.wait_scan()
        assert reader.asked[2] == Changes(routes=True)

    run_loop(quiet, make(reader), steps)


@pytest.mark.kernel
def test_a_scan_that_fails_keeps_what_is_published(
    quiet: Namespace, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader()

    async def steps(bench: Bench) -> None:
        reader.failure = KernelError("read links: no buffer")
        await bench.loop.scan_and_publish()
        assert bench.slices.pages == [[["eth1"]]]

    run_loop(quiet, make(reader), steps)
    assert "scan failed, the last inventory stays published: read links: no buffer" in caplog.messages


@pytest.mark.kernel
def test_a_scan_that_fails_is_done_again_although_nothing_more_happens(
    quiet: Namespace, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "RETRY_SECONDS", 0.1)
    reader = Reader()

    def heal() -> None:
        reader.failure = None if len(reader.asked) > 2 else KernelError("read links: no buffer")

    async def steps(bench: Bench) -> None:
        reader.while_reading = heal
        bench.loop._watch.note(Changes(routes=True))
        await bench.wait_scan()
        assert reader.asked[1:] == [Changes(routes=True), EVERYTHING]

    run_loop(quiet, make(reader), steps)


@pytest.mark.kernel
def test_lost_notifications_are_counted_and_end_in_a_full_scan(quiet: Namespace, make: Make) -> None:
    reader = Reader()
    inventory = make(reader)

    async def steps(bench: Bench) -> None:
        watch = bench.loop._watch
        source = next(iter(watch._readers.values()))
        watch._note_failure(source, OSError(105, "No buffer space available"))
        await bench.wait_scan()
        assert reader.asked[1] == EVERYTHING
        assert metric(inventory, "dranet_inventory_notification_overruns_total") == 1

    run_loop(quiet, inventory, steps)


@pytest.mark.kernel
def test_notifications_that_are_lost_during_a_scan_are_counted_too(quiet: Namespace, make: Make) -> None:
    reader = Reader()
    inventory = make(reader)

    async def steps(bench: Bench) -> None:
        watch = bench.loop._watch
        source = next(iter(watch._readers.values()))
        lose = partial(watch._note_failure, source, OSError(errno.ENOBUFS, "No buffer space available"))
        reader.while_reading = lambda: asyncio.run_coroutine_threadsafe(as_coroutine(lose), loop).result(30)
        loop = asyncio.get_running_loop()
        watch.note(Changes(routes=True))
        await bench.wait_scan()
        reader.while_reading = do_nothing
        await bench.wait_scan()
        assert reader.asked[1:] == [Changes(routes=True), EVERYTHING]
        assert metric(inventory, "dranet_inventory_notification_overruns_total") == 1

    run_loop(quiet, inventory, steps)


async def as_coroutine(function: Callable[[], object]) -> None:
    function()


def test_a_nic_that_is_set_down_for_its_pod_stays_published_as_it_was(make: Make) -> None:
    """Between Prepare and the attach; as soon as its link is up again, the scan is believed."""
    address = "0000:17:00.0"
    function = PciFunction(address, 0x020000, 0x15B3, 0x1021, driver="mlx5_core")
    nic = replace(NIC, pci_address=address, operstate="up")
    up = replace(FACTS, links=(UPLINK, nic), pci_functions=(function,))
    down = replace(up, links=(UPLINK, replace(nic, flags=0, carrier=False, operstate="down")))
    reader = Reader(up)
    inventory = make(reader)
    inventory.scan()
    (name, device) = next((name, d) for name, d in inventory.view.offered.items() if d.pci_address)
    host = LinkState(3, "eth1", "02:00:00:00:00:01", 1500, up=True)
    prepared = PreparedDevice("nic", "node", device, plan=AttachPlan(name, host=host))
    claim, pod = ClaimRef("default", "c", "uid"), PodRef("default", "pod", "pod-uid")
    inventory._store.put(PreparedClaim(claim, pod, (prepared,), "boot"))
    reader.facts = down
    inventory.scan()
    assert inventory.view.offered[name].attributes == device.attributes
    reader.facts = up
    inventory.scan()
    assert inventory.view.offered[name] == device

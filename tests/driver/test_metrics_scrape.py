"""Scrapes: in time whatever the kernel does, one reading for all who ask, nothing at idle."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from dranet.driver.metrics.reading import CounterReader, Place, Readings, Snapshot
from dranet.driver.metrics.scrape import MOST_STUCK, Scraper
from dranet.errors import KernelError
from dranet.kernel.counters import Traffic, read_traffic
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.settings import DeviceMetrics
from dranet.telemetry import Metrics
from tests.driver.metrics_node import Node, nic
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

PATIENCE = 30.0
READ_TRAFFIC = "dranet.driver.metrics.reading.read_traffic"


class CountingReader(CounterReader):
    """Counts readings, and may be held up in one."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.readings = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def read(self, snapshot: Snapshot, into: Readings, avoid: Collection[Place] = ()) -> None:
        self.readings += 1
        super().read(snapshot, into, avoid)
        assert self.may_end.wait(PATIENCE)


def scraper(
    node: Node,
    reader: CounterReader | None = None,
    shown: DeviceMetrics = DeviceMetrics.PODS,
    metrics: Metrics | None = None,
    **seconds: float,
) -> Scraper:
    return Scraper(metrics or Metrics(), node.take, reader or CountingReader(), shown, **seconds)


def read_values(text: bytes, name: str) -> list[float]:
    families = text_string_to_metric_families(text.decode())
    return [s.value for family in families for s in family.samples if s.name == name]


@pytest.fixture
def node(pod: Namespace) -> Node:
    """With one pod, in a real namespace that has a link ``net0``."""
    pod.ip("link", "add", "net0", "type", "veth", "peer", "name", "peer0")
    for link in ("net0", "peer0"):
        pod.ip("link", "set", link, "up")
    ifindex = pod.read("link", "show", "dev", "net0")[0]["ifindex"]
    node = Node([nic(0), nic(1)])
    record = node.add_pod("worker", [nic(0)], ifindex=ifindex)
    node.namespaces[record.pod.uid] = pod.netns
    return node


async def test_counters_are_read_in_the_pods_namespace_and_descriptors_closed(
    node: Node, pod: Namespace
) -> None:
    before = list_descriptors()
    text = await scraper(node, keep_seconds=0).render()
    (sent,) = read_values(text, "dranet_pod_network_transmit_bytes_total")
    said = pod.run(lambda: Path("/proc/thread-self/net/dev").read_text())
    line = next(line for line in said.splitlines() if "net0:" in line)
    assert 0 <= sent <= int(line.split()[9])
    assert read_values(text, "dranet_device_speed_bytes_per_second") == [1_250_000_000, 12_500_000_000]
    assert read_values(text, "dranet_scrape_unread_pods") == [0]
    assert list_descriptors() == before


async def test_those_who_ask_together_or_within_a_second_get_one_reading(node: Node) -> None:
    reader = CountingReader()
    scrapes = scraper(node, reader, keep_seconds=PATIENCE)
    await asyncio.gather(*(scrapes.render() for _ in range(5)))
    await scrapes.render()
    assert reader.readings == 1


async def test_what_was_read_is_forgotten_after_that(node: Node) -> None:
    reader = CountingReader()
    scrapes = scraper(node, reader, keep_seconds=0.01)
    await scrapes.render()
    await until(lambda: scrapes._work is None, "nothing is kept at idle")
    await scrapes.render()
    assert reader.readings == 2


async def test_the_drivers_own_series_are_never_those_of_an_earlier_scrape(node: Node) -> None:
    metrics = Metrics()
    scrapes = scraper(node, metrics=metrics, keep_seconds=PATIENCE)
    await scrapes.render()
    metrics.attach.rollbacks.inc()
    assert read_values(await scrapes.render(), "dranet_attach_rollbacks_total") == [1]


def count_threads() -> int:
    """Of scrapes; one that has answered is still there for a moment."""
    return sum(thread.name == "scrape" for thread in threading.enumerate())


def hang_in_pods(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The kernel answers for the node, and not in a pod until the event is set."""
    go_on = threading.Event()
    calls: list[None] = []

    def read() -> dict[int, Traffic]:
        calls.append(None)
        if len(calls) > 1:
            assert go_on.wait(PATIENCE)
        return read_traffic()

    monkeypatch.setattr(READ_TRAFFIC, read)
    return go_on


async def test_a_namespace_that_hangs_costs_its_own_series_alone_and_an_answer_comes_in_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hang_in_pods(monkeypatch)
    scrapes = scraper(node, keep_seconds=0, read_seconds=0.2)
    begin = time.monotonic()
    text = await scrapes.render()
    assert time.monotonic() - begin < PATIENCE / 2
    assert read_values(text, "dranet_scrape_unread_pods") == [1]
    assert read_values(text, "dranet_pod_device_info") == [1]
    assert read_values(text, "dranet_device_mtu_bytes") == [9000, 1500]
    assert read_values(text, "dranet_pod_network_transmit_bytes_total") == []
    go_on.set()
    await until(lambda: not count_threads(), "the thread ends")
    monkeypatch.undo()
    assert len(read_values(await scrapes.render(), "dranet_pod_network_transmit_bytes_total")) == 1


class Hanging:
    """The kernel does not answer in one pod's namespace, or on the node, until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, netns: NetworkNamespace | None) -> None:
        self.go_on = threading.Event()
        self._netns = netns
        monkeypatch.setattr(READ_TRAFFIC, self._read)

    def _read(self) -> dict[int, Traffic]:
        with NetworkNamespace.current() as here:
            hangs = here == self._netns
        if hangs:
            assert self.go_on.wait(PATIENCE)
        return read_traffic()


@pytest.fixture
def crowded(make_namespace: Callable[..., Namespace]) -> tuple[Node, Sequence[NetworkNamespace]]:
    """A node with three pods in real namespaces."""
    node, opened = Node([nic(number) for number in range(3)]), []
    for number in range(3):
        pod = make_namespace()
        pod.ip("link", "add", "net0", "type", "veth", "peer", "name", "peer0")
        ifindex = pod.read("link", "show", "dev", "net0")[0]["ifindex"]
        record = node.add_pod(f"worker-{number}", [nic(number)], ifindex=ifindex)
        node.namespaces[record.pod.uid] = pod.netns
        opened.append(pod.netns)
    return node, opened


def pods_read(text: bytes) -> set[str]:
    families = text_string_to_metric_families(text.decode())
    wanted = "dranet_pod_network_transmit_bytes_total"
    return {s.labels["pod"] for family in families for s in family.samples if s.name == wanted}


@pytest.mark.parametrize("hanging", [0, 1, 2])
async def test_a_pod_that_hangs_for_good_silences_no_other_one_and_is_told_of(
    hanging: int,
    crowded: tuple[Node, Sequence[NetworkNamespace]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, opened = crowded
    kernel = Hanging(monkeypatch, opened[hanging])
    scrapes = scraper(node, keep_seconds=0, read_seconds=1.0)
    everybody = {f"worker-{number}" for number in range(3)}
    before = list_descriptors()
    try:
        await scrapes.render()
        for _ in range(3):
            text = await scrapes.render()
            assert pods_read(text) == everybody - {f"worker-{hanging}"}
            assert read_values(text, "dranet_scrape_unread_pods") == [1]
            assert read_values(text, "dranet_scrape_stuck_reads") == [1]
        await until(lambda: count_threads() == 1, "the last thread that has answered ends, too")
        assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
            f"counters of pod uid-worker-{hanging} were not read in 1 s: left out until the kernel answers"
        ]
        assert len(list_descriptors() - before) <= 2, "namespaces that nobody will read are let go"
    finally:
        kernel.go_on.set()
    await until(lambda: not count_threads(), "the thread ends")
    text = await scrapes.render()
    assert pods_read(text) == everybody
    assert read_values(text, "dranet_scrape_stuck_reads") == [0]
    assert list_descriptors() == before


async def test_where_the_node_hangs_pods_are_read_all_the_same(
    crowded: tuple[Node, Sequence[NetworkNamespace]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with NetworkNamespace.current() as home:
        kernel = Hanging(monkeypatch, home)
        scrapes = scraper(crowded[0], keep_seconds=0, read_seconds=1.0)
        try:
            await scrapes.render()
            text = await scrapes.render()
        finally:
            kernel.go_on.set()
    assert len(pods_read(text)) == 3
    assert read_values(text, "dranet_scrape_unread_pods") == [0]
    assert read_values(text, "dranet_scrape_stuck_reads") == [1]
    await until(lambda: not count_threads(), "the thread ends")


async def test_where_all_hangs_there_are_few_threads_and_answers_come_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(READ_TRAFFIC, lambda: go_on.wait(PATIENCE) and {})
    for number in range(2 * MOST_STUCK):
        record = node.add_pod(f"other-{number}", [])
        node.namespaces[record.pod.uid] = node.namespaces["uid-worker"]
        node.seen[record.pod.uid] = node.seen["uid-worker"]
        node.records[-1] = replace(record, devices=node.records[0].devices)
    scrapes = scraper(node, keep_seconds=0, read_seconds=0.2)
    for _ in range(MOST_STUCK + 3):
        text = await scrapes.render()
    assert read_values(text, "dranet_scrape_stuck_reads") == [MOST_STUCK]
    assert count_threads() == MOST_STUCK
    go_on.set()
    await until(lambda: not count_threads(), "they end")


async def test_the_event_loop_is_free_while_the_kernel_is_busy(node: Node) -> None:
    reader = CountingReader()
    reader.may_end.clear()
    scrape = asyncio.create_task(scraper(node, reader, read_seconds=PATIENCE).render())
    await until(lambda: reader.readings == 1)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not scrape.done()
    reader.may_end.set()
    assert read_values(await scrape, "dranet_pod_device_info") == [1]


async def test_a_caller_who_goes_away_takes_nothing_from_the_others(node: Node) -> None:
    reader = CountingReader()
    reader.may_end.clear()
    scrapes = scraper(node, reader, read_seconds=PATIENCE)
    impatient, patient = asyncio.create_task(scrapes.render()), asyncio.create_task(scrapes.render())
    await until(lambda: reader.readings == 1)
    impatient.cancel()
    reader.may_end.set()
    assert read_values(await patient, "dranet_pod_device_info") == [1]
    assert impatient.cancelled()


async def test_a_pod_whose_namespace_is_gone_is_told_without_counters(node: Node) -> None:
    node.namespaces.clear()
    text = await scraper(node).render()
    assert read_values(text, "dranet_scrape_unread_pods") == [1]
    assert read_values(text, "dranet_pod_device_info") == [1]
    assert read_values(text, "dranet_pod_network_transmit_bytes_total") == []


async def test_a_kernel_that_refuses_costs_counters_and_no_scrape(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> dict[int, Traffic]:
        raise KernelError("no memory left")

    monkeypatch.setattr(READ_TRAFFIC, refuse)
    text = await scraper(node).render()
    assert read_values(text, "dranet_scrape_unread_pods") == [1]
    assert read_values(text, "dranet_device_mtu_bytes") == [9000, 1500]


async def test_a_bug_in_the_reading_leaves_the_drivers_own_series(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CounterReader):
        def read(self, snapshot: Snapshot, into: Readings, avoid: Collection[Place] = ()) -> None:
            raise ZeroDivisionError(f"{snapshot} {into} {avoid}")

    scrapes = scraper(node, Broken(Path("/nowhere")), keep_seconds=0)
    text = await scrapes.render()
    assert b"dranet_build_info" in text
    assert b"dranet_device_" not in text
    assert "bug in the metrics of devices" in caplog.text


async def test_a_bug_in_the_snapshot_leaves_them_too(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Snapshot:
        raise ZeroDivisionError

    monkeypatch.setattr(node, "take", fail)
    assert b"dranet_build_info" in await scraper(node, keep_seconds=0).render()
    assert "bug in the metrics of devices" in caplog.text


async def test_without_a_thread_to_read_in_nothing_stays_open(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = list_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert b"dranet_build_info" in await scraper(node, keep_seconds=0).render()
    assert list_descriptors() == before


@pytest.mark.parametrize(
    ("shown", "families"),
    [
        (DeviceMetrics.OFF, set()),
        (DeviceMetrics.DEVICES, {"dranet_device"}),
        (DeviceMetrics.PODS, {"dranet_device", "dranet_pod"}),
    ],
)
async def test_the_operator_decides_how_much_is_told(
    node: Node, shown: DeviceMetrics, families: set[str]
) -> None:
    text = (await scraper(node, shown=shown).render()).decode()
    names = (line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    groups = {"_".join(name.split("_")[:2]) for name in names}
    assert groups & {"dranet_device", "dranet_pod"} == families
    if shown is not DeviceMetrics.PODS:
        assert "worker" not in text


async def test_links_that_are_followed_are_the_links_that_are_read(
    make_namespace: Callable[..., Namespace],
) -> None:
    """With the real follower of links, and a link on top of a shared one."""
    home, pod = make_namespace(), make_namespace()
    home.ip("link", "add", "eth0", "type", "veth", "peer", "name", "peer")
    home.ip("link", "add", "link", "eth0", "name", "net0", "netns", pod.name, "type", "macvlan")
    pod.ip("link", "set", "net0", "up")
    told = asyncio.Event()
    links = PodLinks(lambda _: told.set())
    node = Node([nic(0)])
    record = node.add_pod("worker", [nic(0)], shared=True)
    try:
        links.follow(record.pod.uid, pod.netns)
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        node.seen[record.pod.uid] = list(links.get_links(record.pod.uid))
        node.namespaces.update(links.open_namespaces())
        text = await scraper(node, keep_seconds=0).render()
        assert len(read_values(text, "dranet_pod_network_transmit_bytes_total")) == 1
        links.forget(record.pod.uid)
        await until(lambda: not links.pods)
        assert links.open_namespaces() == {}
    finally:
        links.close()
        for netns in node.namespaces.values():
            netns.close()

"""The inventory against releases: real links in throw-away namespaces, the real store, an empty sysfs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.publish import Inventory
from dranet.inventory.policy import Policy
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

NIC = "spare0"


class ReleasingReader(NodeScanner):
    """Reads the node; what is to happen in the middle of a scan happens right after it has read."""

    def __init__(self, empty: Path) -> None:
        super().__init__(empty, empty)
        self.after_reading: Callable[[], None] = lambda: None

    def read(self, changes: Changes = EVERYTHING) -> NodeFacts:
        facts = super().read(changes)
        self.after_reading()
        return facts


@dataclass
class Bench:
    """A node whose one spare NIC a pod has got."""

    node: Namespace
    pod: Namespace
    store: ClaimStore
    inventory: Inventory
    name: str
    reader: ReleasingReader

    def scan(self) -> None:
        self.node.run(self.inventory.scan)

    def give_back(self) -> None:
        """As a release does: first the kernel, then the store."""
        self.pod.ip("link", "set", NIC, "netns", self.node.name)
        (record,) = self.store.get_all()
        self.store.put(replace(record, sandbox_id="", netns_path=""))


@pytest.fixture
def bench(tmp_path: Path, make_namespace: Callable[..., Namespace]) -> Iterator[Bench]:
    node, pod = make_namespace(), make_namespace()
    node.ip("link", "add", "below", "type", "veth", "peer", "name", "far")
    node.ip("link", "add", "link", "below", "name", NIC, "type", "macvlan", "mode", "bridge")
    store = ClaimStore(tmp_path / "claims")
    store.open()
    reader = ReleasingReader(tmp_path)
    inventory = Inventory(reader, policy=Policy, store=store, metrics=Metrics())
    node.run(inventory.scan)
    (device,) = inventory.view.offered.values()
    store.put(a_record_of(device, pod))
    node.ip("link", "set", NIC, "netns", pod.name)
    yield Bench(node, pod, store, inventory, device.name, reader)
    store.close()


def a_record_of(device: Device, pod: Namespace) -> PreparedClaim:
    prepared = PreparedDevice("nic", "node", device, plan=AttachPlan(device.name))
    claim, owner = ClaimRef("default", "c", "uid"), PodRef("default", "pod", "pod-uid")
    return PreparedClaim(claim, owner, (prepared,), "boot", sandbox_id="s", netns_path=str(pod.path))


def test_a_nic_that_just_came_back_can_be_prepared_before_the_next_scan(bench: Bench) -> None:
    bench.scan()
    bench.give_back()
    device = bench.node.run(lambda: bench.inventory.get_offered(bench.name))
    assert device.ifname == NIC


def test_a_nic_that_comes_back_in_the_middle_of_a_scan_stays_published(bench: Bench) -> None:
    bench.scan()
    before = bench.inventory.view.offered
    bench.reader.after_reading = bench.give_back
    bench.scan()
    assert bench.inventory.view.offered == before


def test_a_nic_that_is_back_before_its_notification_stays_published(bench: Bench) -> None:
    """The scan was asked for by another link's change, and waited while the pod's NIC came home."""
    bench.scan()
    offered = list(bench.inventory.view.offered)
    bench.give_back()
    bench.node.run(lambda: bench.inventory.scan(Changes(links=frozenset({1}))))
    assert list(bench.inventory.view.offered) == offered
    assert bench.inventory.view.offered[bench.name].ifname == NIC


def test_the_ipv6_router_of_a_link_is_that_of_its_own_default_route(
    tmp_path: Path, make_namespace: Callable[..., Namespace]
) -> None:
    """As on a machine with two NICs whose networks both announce a router."""
    node = make_namespace()
    for uplink, peer in (("up0", "p0"), ("below", "p1")):
        node.ip("link", "add", uplink, "type", "veth", "peer", "name", peer)
    node.ip("link", "add", "link", "below", "name", NIC, "type", "macvlan", "mode", "bridge")
    for name in ("p0", "p1", "up0", "below", NIC):
        node.ip("link", "set", name, "up")
    node.ip("-6", "route", "add", "default", "via", "fe80::1", "dev", "up0", "metric", "100")
    node.ip("-6", "route", "add", "default", "via", "fe80::2", "dev", NIC, "metric", "200")
    inventory = Inventory(NodeScanner(tmp_path, tmp_path), Policy, ClaimStore(tmp_path / "claims"), Metrics())
    node.run(inventory.scan)
    assert NIC in inventory.view.links
    assert inventory.view.find_ipv6_router(NIC) == "fe80::2"
    assert inventory.view.find_ipv6_router("up0") == ""
    node.ip("-6", "route", "replace", "default", "via", "2001:db8::1", "dev", NIC, "metric", "200", "onlink")
    node.run(inventory.scan)
    assert inventory.view.find_ipv6_router(NIC) == ""

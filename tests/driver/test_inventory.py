"""The inventory against releases: real links in throw-away namespaces, the real store, an empty sysfs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dranet.driver import publish
from dranet.driver.publish import Inventory
from dranet.kernel.scan import read_node_facts
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.store import ClaimStore
from dranet.telemetry import Metrics
from tests.namespaces import Namespace

pytestmark = pytest.mark.kernel

NIC = "spare0"


@dataclass
class Bench:
    """A node whose one spare NIC a pod has got."""

    node: Namespace
    pod: Namespace
    store: ClaimStore
    inventory: Inventory
    name: str

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
    store = ClaimStore(tmp_path / "claims.db")
    store.open()
    inventory = Inventory(
        sysfs_root=tmp_path, procfs_root=tmp_path, publish_gpus=True, store=store, metrics=Metrics()
    )
    node.run(inventory.scan)
    (device,) = inventory.view.offered.values()
    store.put(a_record_of(device, pod))
    node.ip("link", "set", NIC, "netns", pod.name)
    yield Bench(node, pod, store, inventory, device.name)
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


def test_a_nic_that_comes_back_in_the_middle_of_a_scan_stays_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.scan()
    before = bench.inventory.view.offered

    def read_just_before_the_release(sysfs_root: Path, procfs_root: Path) -> NodeFacts:
        facts = read_node_facts(sysfs_root, procfs_root)
        bench.give_back()
        return facts

    monkeypatch.setattr(publish, "read_node_facts", read_just_before_the_release)
    bench.scan()
    assert bench.inventory.view.offered == before

"""Several claims, or several results of one, on one device: everything that goes by the device's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cel import DeviceExpression
from dranet.driver.health import find_holders
from dranet.driver.publish import Inventory
from dranet.errors import KernelError, Reason
from dranet.inventory.policy import Policy
from dranet.kernel.attachment import detach as detach_module
from dranet.kernel.attachment.links import Side
from dranet.kernel.attachment.steps import delete_sublink
from dranet.kernel.discovery.scan import NodeScanner
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address
from dranet.model.plan import (
    AddAddress,
    AttachPlan,
    CreateLink,
    MoveLink,
    PreparedClaim,
    PreparedDevice,
    SetUp,
)
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.driver.bench import Bench, names, sandbox
from tests.kernel.plans import macvlan_on
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

NIC = DeviceKind.NIC


# --- giving back ---------------------------------------------------------------------------------------


def two_shares(bench: Bench, ifname: str) -> PreparedClaim:
    """A claim with two results of one device."""
    record = bench.put(_share(bench, ifname, 1))
    record = replace(record, devices=(*record.devices, _share(bench, ifname, 2)))
    bench.store.put(record)
    return record


def _share(bench: Bench, ifname: str, number: int) -> PreparedDevice:
    creation = macvlan_on(bench.node, ifname, f"net{number}")
    steps = (creation, AddAddress(Address(f"172.16.{number}.5/24")), SetUp())
    device = Device(f"dev-{ifname}", NIC, ifname=ifname, shared=True)
    plan = AttachPlan(device.name, steps, creation.pod_ifname)
    return PreparedDevice(f"nic{number}", "node", device, plan=plan, share_id=f"share-{number}")


def test_two_shares_of_a_claim_are_attached_and_given_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before, inside = node.picture(), pod.picture()
    two_shares(bench, "eth1")
    bench.run_sandbox(sandbox(pod))
    assert {"net1", "net2"} <= names(pod)
    assert [link.pod_ifname for link in bench.told.attached_links] == ["net1", "net2"]
    assert bench.stop_sandbox(sandbox(pod))
    assert (node.picture(), pod.picture()) == (before, inside)


def test_a_share_that_is_stuck_is_not_hidden_by_the_other_one(
    start: Callable[..., Bench], pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()
    two_shares(bench, "eth1")
    bench.run_sandbox(sandbox(pod))
    real = delete_sublink

    def delete(side: Side, step: CreateLink) -> None:
        if step.pod_ifname == "net2":
            raise KernelError("net2 is busy")
        real(side, step)

    with monkeypatch.context() as stuck:
        stuck.setattr(detach_module, "delete_sublink", delete)
        with pytest.raises(KernelError, match="net2 is busy") as caught:
            bench.stop_sandbox(sandbox(pod))
        assert caught.value.reason is Reason.DETACH_FAILED
    record = bench.store.get("claim-uid")
    assert record is not None
    assert record.netns_path, "it has to be found again"
    assert bench.stop_sandbox(sandbox(pod))
    assert names(pod).isdisjoint({"net1", "net2"})


# --- publishing ----------------------------------------------------------------------------------------


@dataclass
class Publishing:
    """A node with one NIC that is shared, and its inventory."""

    node: Namespace
    pod: Namespace
    store: ClaimStore
    inventory: Inventory

    def device(self) -> Device:
        self.node.run(self.inventory.scan)
        return self.inventory.view.offered["nic1"]

    def give(self, *steps: CreateLink | MoveLink) -> None:
        """A pod has it now, by a claim that was prepared with these steps."""
        device = self.device()
        plan = AttachPlan(device.name, steps, "net1")
        claim, owner = ClaimRef("default", "c", "uid"), PodRef("default", "pod", "pod-uid")
        prepared = PreparedDevice("nic", "node", device, plan=plan, share_id="share-1")
        self.store.put(PreparedClaim(claim, owner, (prepared,), "boot", "s", str(self.pod.path)))


@pytest.fixture
def publishing(tmp_path: Path, make_namespace: Callable[..., Namespace]) -> Iterator[Publishing]:
    node, pod = make_namespace(), make_namespace()
    node.ip_lines("link add nic1 type ifb\nlink set nic1 up\n")
    store = ClaimStore(tmp_path / "claims")
    store.open()
    shared = DeviceExpression('device.attributes["dra.net"].ifName == "nic1"', "dra.net")
    policy = Policy(offer_link_kinds=frozenset({"ifb"}), shared=shared)
    inventory = Inventory(NodeScanner(tmp_path, tmp_path), lambda: policy, store, Metrics())
    yield Publishing(node, pod, store, inventory)
    store.close()


def test_a_device_below_a_link_of_a_pod_is_published_as_it_is_now(publishing: Publishing) -> None:
    step = CreateLink("net1", "macvlan", 2, "nic1", "02:00:00:00:00:01")
    publishing.give(step)
    publishing.node.ip("link", "set", "nic1", "mtu", "1400")
    device = publishing.device()
    assert device.ifname == "nic1"
    assert device.shared
    assert device.attributes["dra.net/mtu"] == 1400
    assert publishing.inventory.get_offered("nic1").ifname == "nic1", "the next share has a parent"
    holder = find_holders(publishing.store.get_all())["nic1"]
    assert not holder.mover, "its health is that of the link on the node"
    assert len(holder.pods) == 1


def test_a_device_that_a_pod_has_whole_is_published_as_it_was(publishing: Publishing) -> None:
    publishing.give(MoveLink("net1"))
    publishing.node.ip("link", "del", "nic1")
    assert publishing.device().ifname == ""


def test_a_shared_device_is_offered_whatever_rides_on_it(publishing: Publishing) -> None:
    """It stays on the node, so nothing is lost; a macvlan for the node itself is the usual companion."""
    publishing.node.ip("link", "add", "link", "nic1", "name", "shim", "type", "macvlan", "mode", "bridge")
    assert publishing.device().shared

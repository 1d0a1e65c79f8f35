"""What may happen to a device, a namespace or the driver at the worst moment; seen with ``ip``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.namespaces.netns import NetworkNamespace, read_netns_id
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address
from dranet.model.plan import AddAddress, AttachPlan, CreateLink, PreparedClaim, PreparedDevice, SetUp
from tests.driver.bench import UVERBS, Bench, names, sandbox
from tests.kernel.test_netns_id import put_another_at_the_path
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


# --- the device -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["eth1", "eth2"])
def test_a_device_that_went_away_after_prepare_fails_the_pod_and_the_other_one_is_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, gone: str
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", "claim-a")
    bench.prepare("eth2", "net2", "claim-b")
    node.ip("link", "del", gone)
    before, inside = node.picture(), pod.picture()
    with pytest.raises(DeviceError) as caught:
        bench.run_sandbox(sandbox(pod))
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND
    assert gone in str(caught.value)
    assert (node.picture(), pod.picture()) == (before, inside)
    assert not bench.gate.list_claims()


def test_a_device_that_was_replaced_by_another_of_its_name_is_not_taken_for_it(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    node.ip_lines("link del eth1\nlink add eth1 type veth peer name far1")
    before = node.picture()
    with pytest.raises(DeviceError):
        bench.run_sandbox(sandbox(pod))
    assert node.picture() == before


def test_a_peer_that_moved_away_keeps_nothing_from_moving(
    start: Callable[..., Bench], node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    """A veth names its peer by an index of the namespace that the peer was in."""
    bench = start()
    fabric.ip("link", "set", "p-eth1", "netns", node.name)
    node.ip("link", "set", "p-eth1", "up")
    before = node.picture()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    assert "net1" in names(pod)
    bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


# --- the pod's namespace --------------------------------------------------------------------------------


def test_a_name_that_the_pod_has_already_fails_and_both_sides_are_as_before(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before, inside = node.picture(), pod.picture()
    bench.prepare("eth1", "eth0")
    with pytest.raises(KernelError, match="eth0") as caught:
        bench.run_sandbox(sandbox(pod))
    assert caught.value.reason is Reason.ATTACH_FAILED
    assert (node.picture(), pod.picture()) == (before, inside)


DEFAULT = {"destination": "0.0.0.0/0", "gateway": "172.16.0.1"}


def test_a_default_route_beside_the_pods_own_fails_and_both_sides_are_as_before(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before, inside = node.picture(), pod.picture()
    bench.prepare("eth1", "net1", config={"addresses": ["172.16.0.5/24"], "routes": [DEFAULT]})
    with pytest.raises(KernelError, match="File exists") as caught:
        bench.run_sandbox(sandbox(pod))
    assert caught.value.reason is Reason.ATTACH_FAILED
    assert (node.picture(), pod.picture()) == (before, inside)


def test_a_default_route_of_another_metric_is_added(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    routes = [{**DEFAULT, "metric": 200}]
    bench.prepare("eth1", "net1", config={"addresses": ["172.16.0.5/24"], "routes": routes})
    bench.run_sandbox(sandbox(pod))
    ways = [(route["dev"], route.get("metric", 0)) for route in pod.read("route", "show", "default")]
    assert sorted(ways) == [("eth0", 0), ("net1", 200)]


def test_an_address_that_the_pod_has_on_another_link_is_added(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", config={"addresses": ["10.244.0.5/24"]})
    bench.run_sandbox(sandbox(pod))
    owners = [a["ifname"] for a in pod.read("addr") for i in a["addr_info"] if i["local"] == "10.244.0.5"]
    assert sorted(owners) == ["eth0", "net1"]


def test_a_namespace_that_is_deleted_under_us_still_gives_its_nic_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    """Some runtimes remove it before they tell us."""
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    pod.delete()
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


def test_a_virtual_link_that_died_with_its_namespace_is_told_to_be_lost(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    first = start()
    record = first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    bench = start()
    pod.delete()
    bench.reconcile()
    assert [report.missing for report in bench.told.reports] == [("dev-eth1",)]
    assert bench.store.get("claim-uid") == record


# --- the record and the kernel --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["release", "stop", "reconcile"])
def test_another_namespace_at_the_path_of_a_dead_one_is_left_alone(
    start: Callable[..., Bench], pod: Namespace, ending: str
) -> None:
    """What it has looks like ours to the last byte: a link of that name with that MAC address."""
    first = start()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    (link,) = pod.read("link", "show", "dev", "net1")
    bench = start()
    put_another_at_the_path(pod)
    pod.ip("link", "add", "net1", "address", link["address"], "type", "veth", "peer", "name", "far1")
    pod.ip("addr", "add", "172.16.9.9/24", "dev", "net1")
    theirs = pod.picture()
    if ending == "release":
        pod_report = bench.node.run(lambda: bench.attachments.release_claim("claim-uid"))
        assert pod_report is not None
        assert pod_report.missing == ("dev-eth1",)
    elif ending == "stop":
        assert bench.stop_sandbox(sandbox(pod))
    else:
        bench.reconcile()
    assert pod.picture() == theirs
    record = bench.store.get("claim-uid")
    assert record is not None
    assert (record.sandbox_id, record.netns_path, record.netns_id) == ("", "", "")


def test_a_record_of_an_earlier_version_is_found_by_its_path(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    first = start()
    before = node.picture()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    record = first.store.get("claim-uid")
    assert record is not None
    assert record.netns_id == read_netns_id(pod.netns)
    first.store.put(replace(record, netns_id=""))
    bench = start()
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


@pytest.mark.parametrize("pod_runs", [True, False])
def test_a_kill_in_the_middle_of_an_attach_is_finished_or_undone(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, pod_runs: bool
) -> None:
    """The link has moved and has nothing yet of what the plan says; the record says where it went."""
    first = start()
    before = node.picture()
    record = first.prepare("eth1", "net1", config={"addresses": ["172.16.0.5/24"]})
    first.store.put(placed_in(record, pod))
    node.ip("link", "set", "eth1", "netns", pod.name, "name", "net1")
    bench = start()
    bench.reconcile(*([sandbox(pod)] if pod_runs else []))
    assert bench.gate.is_open("claim-uid") is pod_runs
    if not pod_runs:
        assert node.picture() == before
        return
    (link,) = pod.read("addr", "show", "dev", "net1")
    assert (link["mtu"], [info["local"] for info in link["addr_info"]]) == (1400, ["172.16.0.5"])
    assert "UP" in link["flags"]


def placed_in(record: PreparedClaim, pod: Namespace) -> PreparedClaim:
    """As the driver commits before the first step."""
    with NetworkNamespace.open(pod.path) as netns:
        where = read_netns_id(netns)
    return replace(record, sandbox_id="sandbox-1", netns_path=str(pod.path), netns_id=where)


def test_the_second_claim_of_a_pod_that_fails_takes_the_first_one_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before, inside = node.picture(), pod.picture()
    bench.prepare("eth1", "net1", "claim-a", config={"addresses": ["172.16.0.5/24"]})
    taken = {"addresses": ["172.17.0.5/24"], "routes": [{**DEFAULT, "gateway": "172.17.0.1"}]}
    bench.prepare("eth2", "net2", "claim-b", config=taken)
    with pytest.raises(KernelError, match="net2"):
        bench.run_sandbox(sandbox(pod))
    assert (node.picture(), pod.picture()) == (before, inside)
    assert not bench.gate.list_claims()
    ((records, _),) = bench.told.failures
    assert [record.claim.uid for record in records] == ["claim-a", "claim-b"]


# --- a link on top of a device that stays ---------------------------------------------------------------


def a_macvlan_on(bench: Bench, ifname: str, pod_ifname: str) -> PreparedDevice:
    host = bench.node.run(lambda: read_link_state(ifname))
    creation = CreateLink(pod_ifname, "macvlan", host.ifindex, host.ifname, host.mac, mode="bridge")
    steps = (creation, AddAddress(Address("172.16.0.5/24")), SetUp())
    device = Device(f"dev-{ifname}", DeviceKind.NIC, ifname=ifname, char_devices=(UVERBS,))
    return PreparedDevice("nic", "node", device, plan=AttachPlan(device.name, steps, pod_ifname))


def test_a_link_on_top_of_a_device_goes_the_same_ways(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before, inside = node.picture(), pod.picture()
    bench.put(a_macvlan_on(bench, "eth1", "net1"))
    bench.run_sandbox(sandbox(pod))
    (link,) = pod.read("addr", "show", "dev", "net1")
    assert (link["linkinfo"]["info_kind"], link["addr_info"][0]["local"]) == ("macvlan", "172.16.0.5")
    pod.ip("addr", "flush", "dev", "net1")
    assert bench.create_container(sandbox(pod)).devices == (), "its verbs device is the host's"
    assert pod.read("addr", "show", "dev", "net1") == [link]
    again = start()
    again.reconcile(sandbox(pod))
    assert [told.pod_ifname for told in again.told.attached_links] == ["net1"]
    assert again.stop_sandbox(sandbox(pod))
    assert (node.picture(), pod.picture()) == (before, inside)
    record = again.store.get("claim-uid")
    assert record is not None
    assert record.netns_path == ""


def test_a_link_of_a_later_pod_at_the_same_path_and_name_is_left_alone(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    """On the same parent, so that nothing but the namespace tells it from the one that is gone."""
    first = start()
    first.put(a_macvlan_on(first, "eth1", "net1"))
    first.run_sandbox(sandbox(pod))
    bench = start()
    put_another_at_the_path(pod)
    link = ("link", "add", "net1", "link", "eth1", "netns", pod.name, "type", "macvlan", "mode", "bridge")
    node.ip(*link)
    bench.reconcile()
    assert "net1" in names(pod)
    assert bench.told.stuck == []


def test_the_second_claim_of_a_pod_that_fails_takes_the_link_on_top_of_a_device_away(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.put(a_macvlan_on(bench, "eth1", "net1"), "claim-a")
    bench.prepare("eth2", "net2", "claim-b")
    node.ip("link", "del", "eth2")
    before, inside = node.picture(), pod.picture()
    with pytest.raises(DeviceError):
        bench.run_sandbox(sandbox(pod))
    assert (node.picture(), pod.picture()) == (before, inside)

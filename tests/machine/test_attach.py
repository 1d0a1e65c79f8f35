"""Steps that need what a stock kernel has: ipvlan, VLAN, VRF, real NICs with their offloads and rings."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dranet.claims.plan.device import plan_device
from dranet.errors import KernelError
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.checks import verify
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, Route
from dranet.model.plan import (
    AddAddress,
    AddRoute,
    AttachPlan,
    CreateLink,
    JoinVrf,
    MoveLink,
    SetLink,
    SetSysctl,
    SetUp,
)
from testbed.machine.hardware import MACHINE, Function
from tests.claims.configs import valid_configs
from tests.kernel.plans import (
    attach_from,
    detach_to,
    macvlan_on,
    make_plan,
    move_plan,
    shell,
    steady_picture,
    sublink_plan,
    sysctl,
    unchanged,
)
from tests.kernel.test_attach_failures import Fault, attempt, injected
from tests.machine import kernel_view
from tests.support.namespaces import Namespace, wait_unchanged

pytestmark = pytest.mark.machine

IMPOSSIBLE = AddRoute(Route("10.7.0.0/16", gateway="198.51.100.1"))


def link_of(namespace: Namespace, ifname: str) -> dict[str, Any]:
    (link,) = namespace.read("link", "show", "dev", ifname)
    return link


def names_of(namespace: Namespace) -> set[str]:
    return {link["ifname"] for link in namespace.read("link")}


# --- links on top of a parent ---------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "flag"), [("l2", "bridge"), ("l3", "private"), ("l3s", "vepa")])
def test_an_ipvlan_in_the_pod(node: Namespace, pod: Namespace, mode: str, flag: str) -> None:
    plan = sublink_plan(macvlan_on(node, "eth1", "net1", kind="ipvlan", mode=mode, flag=flag, mtu=1400))
    with unchanged(node, pod):
        (attached,) = attach_from(node, pod, plan)
        assert (attached.mac, attached.mtu) == ("02:00:00:00:00:01", 1400)
        info = link_of(pod, "net1")["linkinfo"]
        assert (info["info_kind"], info["info_data"]["mode"]) == ("ipvlan", mode)
        assert f"mode {mode} {flag}" in shell(pod, "ip", "-d", "link", "show", "net1")
        before = steady_picture(pod)
        assert attach_from(node, pod, plan) == (attached,)
        wait_unchanged(before, pod)
        assert node.run(lambda: verify([plan], pod.netns)) == ()
        assert detach_to(node, pod, plan) == DetachReport(restored=("sub-eth1",))


def test_an_ipvlan_beside_a_macvlan_names_the_cause(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "add", "mv1", "link", "eth1", "type", "macvlan")
    with pytest.raises(KernelError) as caught:
        attach_from(node, pod, sublink_plan(macvlan_on(node, "eth1", "net1", kind="ipvlan", mode="l2")))
    assert (caught.value.errno, caught.value.operation) == (errno.EBUSY, "create ipvlan")
    assert "eth1 carries links of a kind that excludes ipvlan" in caught.value.hint


@pytest.mark.parametrize("protocol", ["802.1Q", "802.1ad"])
def test_a_vlan_in_the_pod(node: Namespace, pod: Namespace, protocol: str) -> None:
    plan = sublink_plan(vlan_on(node, 100, protocol))
    with unchanged(node, pod):
        attach_from(node, pod, plan)
        info = link_of(pod, "net1")["linkinfo"]
        assert info["info_kind"] == "vlan"
        assert (info["info_data"]["id"], info["info_data"]["protocol"]) == (100, protocol)
        attach_from(node, pod, plan)
        assert node.run(lambda: verify([plan], pod.netns)) == ()
        pod.ip_lines("link set net1 down\nlink set net1 name mine\n")
        assert detach_to(node, pod, plan) == DetachReport(restored=("sub-eth1",))


def vlan_on(node: Namespace, vlan_id: int, protocol: str = "802.1Q") -> Any:
    return macvlan_on(node, "eth1", "net1", kind="vlan", mode="", vlan_id=vlan_id, vlan_protocol=protocol)


def test_a_vlan_id_that_is_taken_is_named(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "add", "vl1", "link", "eth1", "type", "vlan", "id", "100")
    with unchanged(node, pod), pytest.raises(KernelError, match="eth1 has a VLAN 100 already") as caught:
        attach_from(node, pod, sublink_plan(vlan_on(node, 100)))
    assert caught.value.errno == errno.EEXIST


def test_a_vlan_on_a_parent_that_is_down_names_the_mend(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "set", "eth1", "down")
    with unchanged(node, pod), pytest.raises(KernelError) as caught:
        attach_from(node, pod, sublink_plan(vlan_on(node, 100)))
    assert (caught.value.operation, caught.value.errno) == ("set-up", errno.ENETDOWN)
    assert "parent is down" in caught.value.hint


# --- VRF ------------------------------------------------------------------------------------------------

VRF = JoinVrf("vrf-rail0", 1100)
ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")


def vrf_plan(node: Namespace, ifname: str, pod_ifname: str, *more: Any) -> AttachPlan:
    number = ifname[-1]
    return move_plan(
        node, ifname, pod_ifname,
        VRF,
        AddAddress(Address(f"172.16.{number}.5/24")),
        AddAddress(Address(f"2001:db8:{number}00::5/64", flags=0x02)),
        SetUp(),
        AddRoute(Route(f"172.30.{number}.0/24", gateway=f"172.16.{number}.1", table=1100)),
        *more,
    )  # fmt: skip


def test_two_nics_share_a_vrf_that_goes_with_the_last(node: Namespace, pod: Namespace) -> None:
    plans = [vrf_plan(node, "eth1", "net1"), vrf_plan(node, "eth2", "net2")]
    with unchanged(node):
        attach_from(node, pod, *plans)
        vrf = link_of(pod, "vrf-rail0")
        assert (vrf["linkinfo"]["info_kind"], vrf["linkinfo"]["info_data"]["table"]) == ("vrf", 1100)
        assert "UP" in vrf["flags"]
        assert {link_of(pod, name)["master"] for name in ("net1", "net2")} == {"vrf-rail0"}
        assert [sysctl(pod, path) for path in ACCEPT] == ["1", "1"]
        routes = {route["dst"] for route in pod.read("route", "show", "table", "1100")}
        assert {"172.30.1.0/24", "172.30.2.0/24", "172.16.1.0/24"} <= routes
        links, _, rules = look(pod)
        attach_from(node, pod, *plans)
        assert (look(pod)[0], look(pod)[2]) == (links, rules), "nothing was joined again"
        assert node.run(lambda: verify(plans, pod.netns)) == ()
        assert detach_to(node, pod, plans[0]).problems == ()
        assert "vrf-rail0" in names_of(pod)
        assert detach_to(node, pod, plans[1]).problems == ()
        assert "vrf-rail0" not in names_of(pod)


def test_a_vrf_of_the_pod_itself_is_joined_and_stays(node: Namespace, pod: Namespace) -> None:
    pod.ip_lines("link add vrf-rail0 type vrf table 1100\n")
    plan = vrf_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    assert link_of(pod, "net1")["master"] == "vrf-rail0"
    assert "UP" in link_of(pod, "vrf-rail0")["flags"]
    assert detach_to(node, pod, plan).problems == ()
    assert "vrf-rail0" in names_of(pod)


def test_a_vrf_with_another_table_is_refused(node: Namespace, pod: Namespace) -> None:
    pod.ip_lines("link add vrf-rail0 type vrf table 1200\n")
    with unchanged(node, pod), pytest.raises(KernelError, match="is a VRF with table 1200 in the pod"):
        attach_from(node, pod, vrf_plan(node, "eth1", "net1"))


def test_a_link_that_left_its_vrf_is_named_and_put_back(node: Namespace, pod: Namespace) -> None:
    plan = vrf_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    pod.ip("link", "set", "net1", "nomaster")
    assert node.run(lambda: verify([plan], pod.netns)) == ("dev-eth1",)
    attach_from(node, pod, plan)
    assert node.run(lambda: verify([plan], pod.netns)) == ()


def test_a_failure_at_any_request_of_a_vrf_and_a_vlan(
    node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own rule of the first VRF stays, so a first attach comes before the picture."""
    plans = (vrf_plan(node, "eth1", "net1"), sublink_plan(vlan_of_eth2(node), JoinVrf("blue", 1200)))
    counter = Fault(at=-1)
    with injected(monkeypatch, counter):
        attach_from(node, pod, *plans)
    assert detach_to(node, pod, *plans).problems == ()
    before = [look(namespace) for namespace in (node, pod)]
    for number in range(0, counter.seen, 2):
        fault = Fault(number)
        assert attempt(node, pod, monkeypatch, fault, *plans) == [], fault.what
        assert [look(namespace) for namespace in (node, pod)] == before, fault.what


def look(namespace: Namespace) -> list[object]:
    """Names, addresses and masters of links, routes and rules: a whole picture takes seconds here."""
    links = [
        (x["ifname"], x["mtu"], x.get("master"), [info["local"] for info in x["addr_info"]])
        for x in namespace.read("addr")
    ]
    routes = [r for r in namespace.read("route", "show", "table", "all") if r["dst"] != "ff00::/8"]
    return [sorted(links, key=str), sorted(routes, key=str), namespace.read("rule")]


def vlan_of_eth2(node: Namespace) -> Any:
    return macvlan_on(node, "eth2", "net2", kind="vlan", mode="", vlan_id=7)


# --- any config -----------------------------------------------------------------------------------------


@settings(
    max_examples=4,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_what_is_attached_comes_back_whatever_the_config(
    node: Namespace, pod: Namespace, data: st.DataObject
) -> None:
    if any(route["dst"] == "default" for route in pod.read("route")):
        pod.ip("route", "del", "default")
        node.ip_lines("addr add 10.1.0.2/24 brd + dev eth1\naddr add 2001:db8:1::2/64 dev eth1 nodad\n")
    before = look(node)
    host = node.run(lambda: read_link_state("eth1"))
    config = data.draw(valid_configs(host))
    device = Device(name="dev-eth1", kind=DeviceKind.NIC, ifname="eth1")
    plan = plan_device(device, host, config, rdma_exclusive=False)
    (attached,) = attach_from(node, pod, plan)
    assert attach_from(node, pod, plan) == (attached,)
    report = detach_to(node, pod, plan)
    assert (report.restored, report.problems) == (("dev-eth1",), ())
    assert look(node) == before


# --- real NICs ------------------------------------------------------------------------------------------

IGB = MACHINE.function("igb0")
VF = MACHINE.function("igb0/1")


@pytest.fixture(params=[IGB, VF], ids=lambda function: function.name)
def nic(request: pytest.FixtureRequest) -> Function:
    function: Function = request.param
    return function


def test_a_real_nic_with_every_property_comes_back_as_it_was(nic: Function, pod: Namespace) -> None:
    kernel_view.raise_links()
    ifname = kernel_view.ifname(nic.address)
    kernel_view.run("ip", "link", "set", ifname, "mtu", "1400", "txqueuelen", "500", "alias", "rack-7")
    before = picture_of(ifname)
    host = read_link_state(ifname)
    steps = (
        MoveLink("net1", mtu=1300, mac="06:dd:00:00:00:07"),
        SetLink(tx_queue_length=77, offload_sizes={"gso_max_size": 32768}),
        SetSysctl("ipv4/conf/net1/arp_ignore", "1"),
        AddAddress(Address("172.16.1.5/24")),
        SetUp(),
        AddRoute(Route("172.30.1.0/24", gateway="172.16.1.1")),
    )
    plan = AttachPlan("nic", steps, "net1", host)
    attach([plan], pod.netns)
    link = link_of(pod, "net1")
    assert (link["mtu"], link["address"], link["txqlen"]) == (1300, "06:dd:00:00:00:07", 77)
    assert verify([plan], pod.netns) == ()
    assert detach([plan], pod.netns) == DetachReport(restored=("nic",))
    assert picture_of(ifname) == before
    with pytest.raises(KernelError):
        attach([AttachPlan("nic", (*steps, IMPOSSIBLE), "net1", host)], pod.netns)
    assert picture_of(ifname) == before


def picture_of(ifname: str) -> dict[str, Any]:
    """What ``ip`` and ``ethtool`` say of a link of this namespace, without what follows the carrier."""
    (entry,) = kernel_view.ip("addr", "show", "dev", ifname)
    kept = ("ifindex", "ifname", "mtu", "address", "txqlen", "group", "ifalias", "gso_max_size")
    addresses = [info["local"] for info in entry["addr_info"] if info["family"] == "inet"]
    shown = {option: kernel_view.run("ethtool", option, ifname) for option in ("-k", "-g")}
    return {**{key: entry.get(key) for key in kept}, "up": "UP" in entry["flags"], "addr": addresses, **shown}


def test_a_dummy_moves_and_comes_back(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "add", "dummy1", "type", "dummy")
    plan = make_plan(node, "dummy1", "net1")
    with unchanged(pod):
        attach_from(node, pod, plan)
        assert link_of(pod, "net1")["linkinfo"]["info_kind"] == "dummy"
        assert detach_to(node, pod, plan) == DetachReport(restored=("dev-dummy1",))


def test_a_vlan_on_a_real_nic(pod: Namespace) -> None:
    kernel_view.raise_links()
    ifname = kernel_view.ifname(IGB.address)
    before = picture_of(ifname)
    host = read_link_state(ifname)
    plan = sublink_plan(CreateLink("net1", "vlan", host.ifindex, ifname, host.mac, vlan_id=42))
    attach([plan], pod.netns)
    assert link_of(pod, "net1")["linkinfo"]["info_data"]["id"] == 42
    assert detach([plan], pod.netns).problems == ()
    assert picture_of(ifname) == before

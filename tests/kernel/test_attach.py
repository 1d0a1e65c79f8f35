"""Attach and detach on the running kernel, with iproute2 as the judge of what they leave behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment import detach as detach_module
from dranet.kernel.attachment.checks import verify
from dranet.kernel.attachment.detach import DetachReport
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.rtnl import set_link_request
from dranet.kernel.netlink.socket import NETLINK_RDMA, NetlinkSocket, Request
from dranet.model.facts import Address, Link, Route
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, MoveLink, MoveRdma, SetVf, Step
from dranet.model.status import AttachedLink, AttachedRoute
from dranet.model.virtual_functions import VfSettings
from tests.kernel.plans import attach_from, detach_to, make_checks_last, make_plan, with_move
from tests.support.namespaces import Namespace, add_nic, wait_settled, wait_unchanged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

NODE_STATE = """
link set eth1 alias rack-7-port-3
link set eth1 mtu 1400
link set eth1 txqueuelen 333
link set eth1 group 7
addr add 10.1.0.2/24 brd + dev eth1
addr add 10.1.0.3/24 dev eth1 label eth1:web
addr add 10.9.0.1/32 peer 10.9.0.2/32 dev eth1
addr add 10.1.9.9/24 dev eth1 valid_lft 7200 preferred_lft 3600
route add 10.50.0.0/16 via 10.1.0.1 src 10.1.0.3 metric 50 mtu 1300
route add 10.51.0.0/16 dev eth1 scope link
route add 10.99.0.1/32 dev eth1
route add 10.40.0.0/16 via 10.99.0.1
route add 10.52.0.0/16 via 10.77.0.1 dev eth1 onlink table 1000
route add default via 10.1.0.1 dev eth1 table 77
neigh add 10.1.0.9 lladdr 02:00:00:00:99:99 dev eth1 nud permanent
addr add 2001:db8:1::2/64 dev eth1 nodad
addr add 2001:db8:1::3/64 dev eth1 nodad
addr add 2001:db8:2::2/64 dev eth1 nodad noprefixroute
route add 2001:db8:51::/48 dev eth1 metric 77 table 99
neigh add 2001:db8:1::9 lladdr 02:00:00:00:99:98 dev eth1 nud permanent
"""


SOURCED = "route add 2001:db8:50::/48 via 2001:db8:1::1 src 2001:db8:1::3\n"
"""Possible only once the source address has passed its check."""

NEW_INDEX = frozenset({"ifindex", "link_index"})
"""A link that others moved gets whatever index is free."""


def addresses_of(namespace: Namespace, ifname: str) -> dict[str, dict[str, Any]]:
    (link,) = namespace.read("addr", "show", "dev", ifname)
    return {info["local"]: info for info in link["addr_info"]}


# --- the round trip ------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_round_trip_gives_the_host_back_exactly_what_it_had(node: Namespace, pod: Namespace) -> None:
    node.ip_lines(NODE_STATE + SOURCED)
    before, pod_before = wait_settled(node), wait_settled(pod)
    plan = with_move(make_plan(node, "eth1", "net1"), mtu=1280, mac="02:00:00:00:77:77")
    attach_from(node, pod, plan)
    pod.ip_lines("link set net1 promisc on\nlink set net1 alias tenant\nlink set net1 txqueuelen 5\n")
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)


def test_round_trip_where_ipv6_makes_addresses_and_checks_them(
    lively_node: Namespace, pod: Namespace
) -> None:
    lively_node.ip_lines(NODE_STATE.replace(" nodad", ""))
    wait_settled(lively_node)
    lively_node.ip_lines(SOURCED)
    before = wait_settled(lively_node)
    plan = make_plan(lively_node, "eth1", "net1")
    attach_from(lively_node, pod, plan)
    assert detach_to(lively_node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, lively_node)


def test_a_link_that_was_down_comes_back_down(node: Namespace, pod: Namespace) -> None:
    node.ip("addr", "add", "10.1.0.2/24", "dev", "eth1")
    node.ip("link", "set", "eth1", "down")
    before = node.picture()
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    assert detach_to(node, pod, plan).restored == ("dev-eth1",)
    wait_unchanged(before, node, but={"qdisc"})  # "noop" until it is first up


def test_the_pod_gets_name_mtu_mac_addresses_and_routes_at_once(node: Namespace, pod: Namespace) -> None:
    plan = with_move(make_plan(node, "eth1", "net1"), mtu=9000, mac="02:00:00:00:77:77")
    (attached,) = attach_from(node, pod, plan)
    assert attached == AttachedLink(
        "dev-eth1",
        "net1",
        "02:00:00:00:77:77",
        9000,
        ("172.16.1.5/24", "2001:db8:100::5/64"),
        routes=(AttachedRoute("172.30.1.0/24", ("172.16.1.1",)),),
    )
    (link,) = pod.read("link", "show", "dev", "net1")
    assert (link["address"], link["mtu"], "UP" in link["flags"]) == ("02:00:00:00:77:77", 9000, True)
    (route,) = pod.read("route", "show", "172.30.1.0/24")
    assert (route["gateway"], route["dev"]) == ("172.16.1.1", "net1")
    assert not [x for x in node.read("link") if x["ifname"] == "eth1"]


def test_an_ipv6_address_is_checked_for_duplicates_unless_its_flags_say_not(
    node: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    pod = make_namespace(lively=True)
    make_checks_last(pod)
    attach_from(node, pod, make_plan(node, "eth1", "net1", AddAddress(Address("2001:db8:100::6/64"))))
    found = addresses_of(pod, "net1")
    assert "tentative" not in found["2001:db8:100::5"]
    assert found["2001:db8:100::6"]["tentative"] is True


def test_several_devices_arrive_in_the_order_of_the_plans(node: Namespace, pod: Namespace) -> None:
    plans = [make_plan(node, f"eth{n}", f"net{n}") for n in (3, 1, 2)]
    before = wait_settled(node)
    attached = attach_from(node, pod, *plans)
    assert [link.pod_ifname for link in attached] == ["net3", "net1", "net2"]
    assert pod.run(lambda: verify(plans, pod.netns)) == ()
    assert detach_to(node, pod, *plans).restored == ("dev-eth3", "dev-eth1", "dev-eth2")
    wait_unchanged(before, node)


def test_a_direct_route_lets_the_next_route_use_a_gateway_behind_it(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(
        node, "eth1", "net1",
        AddRoute(Route("10.99.0.1/32")),
        AddRoute(Route("10.98.0.0/16", gateway="10.99.0.1")),
        AddRoute(Route("2001:db8:98::/48", gateway="2001:db8:100::1", table=300, metric=5)),
        AddRoute(Route("10.97.0.0/16", gateway="2001:db8:100::1", mtu=1300)),
    )  # fmt: skip
    attach_from(node, pod, plan)
    (via_v6,) = pod.read("route", "show", "10.97.0.0/16")
    assert via_v6["via"] == {"family": "inet6", "host": "2001:db8:100::1"}
    (other_table,) = pod.read("-6", "route", "show", "table", "300")
    assert (other_table["dst"], other_table["metric"]) == ("2001:db8:98::/48", 5)


# --- repeating -----------------------------------------------------------------------------------------


def test_attaching_twice_changes_nothing(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1")
    first = attach_from(node, pod, plan)
    before = wait_settled(pod)
    assert attach_from(node, pod, plan) == first
    wait_unchanged(before, pod)


def test_attaching_again_repairs_what_a_half_done_attach_left(node: Namespace, pod: Namespace) -> None:
    plan = with_move(make_plan(node, "eth1", "net1"), mtu=1400)
    attach_from(node, pod, plan)
    before = wait_settled(pod)
    pod.ip_lines("link set net1 down\naddr flush dev net1\nlink set net1 mtu 1280\nlink set net1 name old\n")
    attach_from(node, pod, plan)
    wait_unchanged(before, pod)


def test_detaching_twice_changes_nothing(node: Namespace, pod: Namespace) -> None:
    node.ip_lines(NODE_STATE + SOURCED)
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    assert detach_to(node, pod, plan).problems == ()
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    assert detach_to(node, None, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node)


def test_releasing_what_was_never_attached_keeps_what_the_operator_added_since(
    node: Namespace, pod: Namespace
) -> None:
    plan = make_plan(node, "eth1", "net1")
    node.ip("addr", "add", "10.3.0.1/24", "dev", "eth1")
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    assert "10.3.0.1" in addresses_of(node, "eth1")


def test_a_detach_that_was_cut_off_after_the_move_is_finished_by_the_next(
    node: Namespace, pod: Namespace
) -> None:
    node.ip_lines(NODE_STATE + SOURCED)
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    pod.ip("link", "set", "net1", "netns", node.name, "name", "eth1")
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node, but=NEW_INDEX)


# --- all or nothing ------------------------------------------------------------------------------------

REFUSED_STEPS: dict[str, tuple[Step | MoveLink, int, str]] = {
    "mtu the driver cannot do": (MoveLink("net2", mtu=40), errno.EINVAL, "move-link"),
    "multicast mac": (MoveLink("net2", mac="01:00:5e:00:00:01"), errno.EADDRNOTAVAIL, "move-link"),
    "multicast address": (AddAddress(Address("ff02::5/64")), errno.EADDRNOTAVAIL, "add address ff02::5/64"),
    "gateway out of reach": (
        AddRoute(Route("10.7.0.0/16", gateway="198.51.100.1")), errno.ENETUNREACH, "add route 10.7.0.0/16"
    ),
    "default route of the pod": (
        AddRoute(Route("0.0.0.0/0", gateway="172.16.2.1")), errno.EEXIST, "add route 0.0.0.0/0"
    ),
    "rdma device on a kernel without rdma": (MoveRdma("mlx5_9"), errno.EPROTONOSUPPORT, "netlink socket 20"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_STEPS)
def test_a_refused_step_leaves_node_and_pod_as_they_were(node: Namespace, pod: Namespace, case: str) -> None:
    step, number, operation = REFUSED_STEPS[case]
    if isinstance(step, MoveRdma) and has_rdma_netlink():
        pytest.skip("this kernel has RDMA netlink")
    node.ip_lines(NODE_STATE + SOURCED)
    before, pod_before = wait_settled(node), wait_settled(pod)
    second = make_plan(node, "eth2", "net2")
    bad = replace(
        second, steps=(step, *second.steps[1:]) if isinstance(step, MoveLink) else (*second.steps, step)
    )
    plans = [make_plan(node, "eth1", "net1"), bad, make_plan(node, "eth3", "net3")]
    with pytest.raises(KernelError) as caught:
        attach_from(node, pod, *plans)
    assert caught.value.reason is Reason.ATTACH_FAILED
    assert (caught.value.errno, caught.value.link) == (number, "net2")
    assert operation in caught.value.operation
    assert "dev-eth2" in caught.value.message
    assert "dev-" not in caught.value.hint, "the undo had nothing to complain of"
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)


@pytest.mark.parametrize("name", ["eth0", "cni0", "net1", "a-name-too-long-for-a-link", "with/slash"])
def test_a_name_that_is_taken_or_impossible_leaves_node_and_pod_as_they_were(
    node: Namespace, pod: Namespace, name: str
) -> None:
    node.ip_lines(NODE_STATE + SOURCED)
    before, pod_before = wait_settled(node), wait_settled(pod)
    plans = [make_plan(node, "eth1", "net1"), make_plan(node, "eth2", name)]
    with pytest.raises(KernelError) as caught:
        attach_from(node, pod, *plans)
    assert (caught.value.reason, caught.value.operation) == (Reason.ATTACH_FAILED, "move-link")
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)


def test_the_kernels_own_words_reach_the_error(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1", AddRoute(Route("10.7.0.0/16", gateway="198.51.100.1")))
    with pytest.raises(KernelError, match="Nexthop has invalid gateway"):
        attach_from(node, pod, plan)


def test_a_device_that_vanished_after_prepare_takes_the_others_home(node: Namespace, pod: Namespace) -> None:
    plans = [make_plan(node, "eth1", "net1"), make_plan(node, "eth2", "net2")]
    node.ip("link", "del", "eth2")
    before = wait_settled(node)
    with pytest.raises(DeviceError) as caught:
        attach_from(node, pod, *plans)
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND
    wait_unchanged(before, node)


def test_another_device_under_the_prepared_name_is_refused(
    node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    plan = make_plan(node, "eth1", "net1")
    node.ip("link", "del", "eth1")
    add_nic(node, fabric, "eth1", "02:00:00:00:aa:aa")
    with pytest.raises(DeviceError, match="not on this node"):
        attach_from(node, pod, plan)
    assert "eth1" in {link["ifname"] for link in node.read("link")}


def test_a_namespace_that_is_gone_is_named(tmp_path: Path, make_namespace: Callable[[], Namespace]) -> None:
    pod = make_namespace()
    pod.delete()
    left_behind = tmp_path / "netns"
    left_behind.touch()  # what stays of a bind mount that was undone
    for path in (pod.path, left_behind):
        with pytest.raises(KernelError) as caught:
            NetworkNamespace.open(path)
        assert caught.value.reason is Reason.NETNS_GONE


def test_the_nodes_own_namespace_is_no_pod(node: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1")
    with pytest.raises(KernelError, match="node's own"):
        attach_from(node, node, plan)


# --- the node comes first ------------------------------------------------------------------------------

NO_UPLINK = "route del default\nroute del ::/0 via 2001:db8:ffff::1\n"

BECOMES_UPLINK = {
    "default route": "addr add 10.1.0.2/24 dev eth1\nroute add default via 10.1.0.1 metric 500\n",
    "ipv6 default route": (
        "addr add 2001:db8:1::2/64 dev eth1 nodad\nroute add ::/0 via 2001:db8:1::1 metric 9000\n"
    ),
    "next hop of a default route": (
        "addr add 10.1.0.2/24 dev eth1\n"
        "route add default metric 7 nexthop via 192.0.2.1 nexthop via 10.1.0.1\n"
    ),
    "gatewayless default route": "route add default dev eth1 metric 600\n",
    "parent of the uplink": (
        "link add up1 link eth1 type macvlan\nlink set up1 up\naddr add 10.4.0.2/24 dev up1\n"
        "route add default via 10.4.0.1 metric 9\n"
    ),
    "port of the uplink's bridge": (
        "link add br0 type bridge\nlink set eth1 master br0\nlink set br0 up\naddr add 10.4.0.2/24 dev br0\n"
        "route add default via 10.4.0.1 metric 9\n"
    ),
    "below a port of the uplink's bridge": (
        "link add up1 link eth1 type macvlan\nlink set up1 up\nlink add br0 type bridge\n"
        "link set up1 master br0\nlink set br0 up\naddr add 10.4.0.2/24 dev br0\n"
        "route add default via 10.4.0.1 metric 9\n"
    ),
}


@pytest.mark.parametrize("change", BECOMES_UPLINK)
def test_a_link_that_became_the_uplink_after_prepare_stays(
    node: Namespace, pod: Namespace, change: str
) -> None:
    plans = [make_plan(node, "eth2", "net2"), make_plan(node, "eth1", "net1")]
    node.ip_lines(NO_UPLINK + BECOMES_UPLINK[change])
    before = node.picture()
    with pytest.raises(DeviceError) as caught:
        attach_from(node, pod, *plans)
    assert caught.value.reason is Reason.DEVICE_IS_UPLINK
    assert {x["ifname"] for x in node.read("link")} == {x["ifname"] for x in before["links"]}


def test_a_macvlan_on_the_uplink_stays(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "add", "mv1", "link", "uplink", "type", "macvlan")
    with pytest.raises(DeviceError, match="uplink"):
        attach_from(node, pod, make_plan(node, "mv1", "net1"))


def test_a_default_route_of_another_table_makes_no_uplink(node: Namespace, pod: Namespace) -> None:
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nroute add default via 10.1.0.1 table 100\n")
    assert attach_from(node, pod, make_plan(node, "eth1", "net1"))


def test_a_worse_default_route_makes_no_uplink_while_the_best_one_is_in_use(
    node: Namespace, pod: Namespace
) -> None:
    """As in the inventory, which offers such a link: a cloud's second NIC often has one."""
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nroute add default via 10.1.0.1 metric 500\n")
    assert attach_from(node, pod, make_plan(node, "eth1", "net1"))


@pytest.mark.parametrize("doubt", ["link set uplink down\n", "TUNNEL"])
def test_a_worse_default_route_makes_an_uplink_where_the_best_one_may_not_carry(
    node: Namespace, pod: Namespace, doubt: str
) -> None:
    worse = "addr add 10.1.0.2/24 dev eth1\nroute add default via 10.1.0.1 metric 500\n"
    if doubt == "TUNNEL":
        node.ip("tuntap", "add", "tun0", "mode", "tun")
        doubt = "link set tun0 up\nroute add default dev tun0 metric 1\nroute del default via 192.0.2.1\n"
    node.ip_lines(worse + doubt)
    with pytest.raises(DeviceError) as caught:
        attach_from(node, pod, make_plan(node, "eth1", "net1"))
    assert caught.value.reason is Reason.DEVICE_IS_UPLINK


def test_a_link_that_was_enslaved_after_prepare_stays(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1")
    node.ip_lines("link add br1 type bridge\nlink set eth1 master br1\n")
    with pytest.raises(DeviceError) as caught:
        attach_from(node, pod, plan)
    assert caught.value.reason is Reason.DEVICE_BUSY


# --- coming home by other ways -------------------------------------------------------------------------


def test_a_link_that_came_back_up_goes_down_again_if_it_was_down(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "set", "eth1", "down")
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    pod.ip("link", "set", "net1", "netns", node.name, "name", "net1")
    node.ip("link", "set", "net1", "up")
    assert detach_to(node, None, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node, but=NEW_INDEX)


@pytest.mark.parametrize("name", ["net1", "dev3"])
def test_a_link_that_came_back_under_another_name_is_found_and_restored(
    node: Namespace, pod: Namespace, name: str
) -> None:
    node.ip_lines(NODE_STATE + SOURCED)
    before = wait_settled(node)
    plan = with_move(make_plan(node, "eth1", "net1"), mtu=1280)
    attach_from(node, pod, plan)
    pod.ip("link", "set", "net1", "netns", node.name, "name", name)
    node.ip("addr", "add", "10.66.0.1/24", "dev", name)
    assert detach_to(node, None, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node, but=NEW_INDEX)


def test_a_virtual_link_that_died_with_its_namespace_is_missing(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    pod.delete()
    missing = DetachReport(missing=("dev-eth1",))
    wait_until(lambda: detach_to(node, None, plan) == missing, "the link is gone")


def test_a_host_name_that_is_taken_is_reported_and_the_link_still_comes_back(
    node: Namespace, pod: Namespace
) -> None:
    node.ip("addr", "add", "10.1.0.2/24", "dev", "eth1")
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    node.ip_lines("link add eth1 type bridge\nlink add net1 type bridge\n")
    report = detach_to(node, pod, plan)
    assert (report.restored, report.missing) == (("dev-eth1",), ()), "it is home, if not in every respect"
    (problem,) = report.problems
    assert problem.startswith("dev-eth1: rename eth1: ")
    (link,) = [x for x in node.read("addr") if x.get("address") == "02:00:00:00:00:01"]
    assert link["ifname"].startswith("dev")
    assert [info["local"] for info in link["addr_info"] if info["family"] == "inet"] == ["10.1.0.2"]


def test_a_tenant_who_renames_the_link_and_changes_its_mac_cannot_keep_it(
    node: Namespace, pod: Namespace
) -> None:
    before = wait_settled(node)
    plans = [make_plan(node, "eth3", "net1"), make_plan(node, "eth2", "net2")]
    attach_from(node, pod, *plans)
    pod.ip_lines(
        "link set net1 down\nlink set net1 name mine\nlink set mine up\n"
        "link set net2 address 02:00:00:00:66:66\n"
    )
    report = detach_to(node, pod, *plans)
    assert report.restored == ("dev-eth3", "dev-eth2")
    wait_unchanged(before, node)


def test_links_that_a_tenant_put_on_the_nic_do_not_go_on_using_it(node: Namespace, pod: Namespace) -> None:
    before = wait_settled(node)
    plan = make_plan(node, "eth3", "net1")
    attach_from(node, pod, plan)
    pod.ip_lines("link add mine link net1 type macvlan mode bridge\nlink set mine up\n")
    assert detach_to(node, pod, plan).restored == ("dev-eth3",)
    assert "mine" not in {link["ifname"] for link in pod.read("link")}
    wait_unchanged(before, node)


LONG_NAME = "enp180s0f0v10np1-of-the-second-rail"
"""No interface may have a name of more than 15 characters, an alternative name may: udev gives such names."""


@pytest.mark.parametrize("name", ["eth2", LONG_NAME], ids=len)
def test_a_tenant_cannot_keep_the_link_by_giving_it_a_name_that_the_node_uses(
    node: Namespace, pod: Namespace, name: str
) -> None:
    node.ip("link", "property", "add", "dev", "eth2", "altname", LONG_NAME)
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    pod.ip("link", "property", "add", "dev", "net1", "altname", "uplink", "altname", name)
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node)


def test_the_nodes_own_alternative_names_come_back(node: Namespace, pod: Namespace) -> None:
    node.ip("link", "property", "add", "dev", "eth1", "altname", "enp33s0f0np0")
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node)


def test_the_pods_own_links_are_never_taken_for_ours(node: Namespace, pod: Namespace) -> None:
    """The pod's eth0 has the index that the node's link had; a plan that never came true must not take it."""
    (index,) = [link["ifindex"] for link in pod.read("link") if link["ifname"] == "eth0"]
    (ifname,) = [link["ifname"] for link in node.read("link") if link["ifindex"] == index]
    plan = make_plan(node, "eth1", "eth0")
    assert plan.host is not None
    stale = replace(plan, host=replace(plan.host, ifname=ifname, ifindex=index, mac="02:00:00:00:00:fe"))
    before = wait_settled(pod)
    with pytest.raises(DeviceError):
        attach_from(node, pod, stale)
    wait_unchanged(before, pod)


def test_a_device_that_cannot_come_back_is_neither_restored_nor_missing(
    node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wait_settled(node)
    plans = [make_plan(node, "eth1", "net1"), make_plan(node, "eth2", "net2")]
    attach_from(node, pod, *plans)
    refused = set_link_request(
        0, operation="move back", link="eth1"
    )  # what the kernel says to no link at all
    real = detach_module._moves

    def moves(link: Link, *rest: Any) -> tuple[Request, ...]:
        return (refused,) if link.ifname == "net1" else real(link, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(detach_module, "_moves", moves)
        report = detach_to(node, pod, *plans)
    assert (report.restored, report.missing) == (("dev-eth2",), ())
    (problem,) = report.problems
    assert problem.startswith("dev-eth1: move back eth1: ")
    assert detach_to(node, pod, *plans) == DetachReport(restored=("dev-eth1", "dev-eth2"))
    wait_unchanged(before, node)


def test_settings_of_a_missing_function_that_cannot_be_restored_are_told(
    node: Namespace, pod: Namespace
) -> None:
    """Its link is gone, as its driver was unbound; the function has them still, for its next user."""
    plan = make_plan(node, "eth1", "net1")
    step = SetVf("0000:ff:00.0", 0, VfSettings(vlan=7))
    plan = replace(plan, steps=(*plan.steps, step), vf=VfSettings(vlan=0))
    node.ip_lines("link del eth1\n")
    report = detach_to(node, pod, plan)
    assert (report.restored, report.missing) == ((), ("dev-eth1",))
    (problem,) = report.problems
    assert problem.startswith("dev-eth1: virtual function 0 cannot be administered")


def test_a_route_that_cannot_be_given_back_is_a_problem_of_a_restored_device(
    node: Namespace, pod: Namespace
) -> None:
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nroute add 10.50.0.0/16 via 10.1.0.1\n")
    plan = make_plan(node, "eth1", "net1")
    attach_from(node, pod, plan)
    node.ip("route", "add", "10.50.0.0/16", "via", "192.0.2.9")
    report = detach_to(node, pod, plan)
    assert report == DetachReport(("dev-eth1",), (), report.problems)
    (problem,) = report.problems
    assert problem.startswith("dev-eth1: add route 10.50.0.0/16 eth1: ")


# --- verify --------------------------------------------------------------------------------------------

SPOILED = {
    "absent": "link del net1",
    "down": "link set net1 down",
    "without its IPv4 address": "addr del 172.16.1.5/24 dev net1",
    "without its IPv6 address": "addr del 2001:db8:100::5/64 dev net1",
    "under another name": "link set net1 name other",
}


@pytest.mark.parametrize("case", SPOILED)
def test_verify_names_a_device_that_is(node: Namespace, pod: Namespace, case: str) -> None:
    plans = [make_plan(node, "eth1", "net1"), make_plan(node, "eth2", "net2")]
    attach_from(node, pod, *plans)
    assert node.run(lambda: verify(plans, pod.netns)) == ()
    pod.ip(*SPOILED[case].split())
    assert node.run(lambda: verify(plans, pod.netns)) == ("dev-eth1",)


def test_verify_names_a_device_whose_place_another_link_took(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "eth0")
    assert node.run(lambda: verify([plan], pod.netns)) == ("dev-eth1",)


def test_a_device_without_a_link_attaches_to_nothing(node: Namespace, pod: Namespace) -> None:
    plan = AttachPlan(device="rdma-only")
    assert attach_from(node, pod, plan) == ()
    assert node.run(lambda: verify([plan], pod.netns)) == ()
    assert detach_to(node, pod, plan) == DetachReport(restored=("rdma-only",))


def has_rdma_netlink() -> bool:
    try:
        NetlinkSocket.open(NETLINK_RDMA).close()
    except KernelError:
        return False
    return True


def test_an_ipvlan_that_died_is_never_mistaken_for_the_nic_it_stood_on(
    node: Namespace, pod: Namespace
) -> None:
    """Both wear the same MAC address; here a plan stands for the ipvlan, which this kernel may lack."""
    before = wait_settled(node)
    plan = make_plan(node, "eth1", "net1")
    assert plan.host is not None
    child = replace(plan, device="ipvlan", host=replace(plan.host, ifindex=4711, ifname="ipvl0"))
    assert detach_to(node, pod, child) == DetachReport(missing=("ipvlan",))
    wait_unchanged(before, node)

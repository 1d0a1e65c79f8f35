"""Each step of a plan on the running kernel: what ``ip``, ``tc`` and /proc say of it, and after its undo."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.checks import verify
from dranet.kernel.attachment.detach import DetachReport
from dranet.kernel.attachment.hardware import read_program_names
from dranet.kernel.attachment.links import open_pod_side
from dranet.kernel.discovery.programs import BPF_TCX_INGRESS
from dranet.model.facts import Address, Neighbour, Route
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    EthtoolState,
    JoinVrf,
    LimitRate,
    NextHop,
    RemovePrograms,
    SetEthtool,
    SetLink,
    SetSysctl,
    SetToken,
    SetUp,
    Step,
)
from tests.kernel.loaded import ifindex_of, loader
from tests.kernel.plans import (
    attach_from,
    detach_to,
    macvlan_on,
    make_checks_last,
    make_plan,
    move_plan,
    rules_of,
    shell,
    steady_picture,
    sublink_plan,
    sysctl,
    unchanged,
    with_move,
)
from tests.support.namespaces import Namespace, wait_unchanged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

IMPOSSIBLE = AddRoute(Route("10.7.0.0/16", gateway="198.51.100.1"))
"""The kernel refuses it: nothing reaches its gateway."""


def link_of(namespace: Namespace, ifname: str) -> dict[str, Any]:
    (link,) = namespace.read("link", "show", "dev", ifname)
    return link


def names_of(namespace: Namespace) -> set[str]:
    return {link["ifname"] for link in namespace.read("link")}


def fails(node: Namespace, pod: Namespace, *plans: Any) -> KernelError:
    """The error of an attach that must fail, after which node and pod are as before."""
    with unchanged(node, pod), pytest.raises(KernelError) as caught:
        attach_from(node, pod, *plans)
    assert "dev-" not in caught.value.hint, "the undo had nothing to complain of"
    return caught.value


# --- properties of the link ----------------------------------------------------------------------------


def test_queue_length_and_offload_sizes(node: Namespace, pod: Namespace) -> None:
    sizes = {"gso_max_size": 40000, "gro_max_size": 50000, "gso_ipv4_max_size": 41000}
    plan = make_plan(node, "eth1", "net1", SetLink(tx_queue_length=4321, offload_sizes=sizes))
    with unchanged(node, pod):
        attach_from(node, pod, plan)
        link = link_of(pod, "net1")
        assert (link["gso_max_size"], link["gro_max_size"], link["txqlen"]) == (40000, 50000, 4321)
        assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))


def test_ethtool_settings_are_applied_and_the_host_gets_its_own_back(node: Namespace, pod: Namespace) -> None:
    settings = EthtoolState(features={"tx-scatter-gather": False})
    plan = make_plan(node, "eth1", "net1", SetEthtool(settings))
    before = shell(node, "ethtool", "-k", "eth1")
    assert "\ttx-scatter-gather: on" in before
    attach_from(node, pod, plan)
    assert "\ttx-scatter-gather: off" in shell(pod, "ethtool", "-k", "net1")
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    assert shell(node, "ethtool", "-k", "eth1") == before


def test_an_ethtool_setting_that_the_device_lacks_leaves_nothing_behind(
    node: Namespace, pod: Namespace
) -> None:
    settings = SetEthtool(EthtoolState(features={"tx-scatter-gather": False}, rings={"rx": 64}))
    before = shell(node, "ethtool", "-k", "eth1")
    error = fails(node, pod, make_plan(node, "eth1", "net1", settings))
    assert (error.reason, error.operation, error.link) == (Reason.ATTACH_FAILED, "set-ethtool", "net1")
    assert shell(node, "ethtool", "-k", "eth1") == before


# --- sysctls and token ----------------------------------------------------------------------------------

OF_THE_LINK = "ipv4/conf/net1/arp_ignore"
OF_THE_NAMESPACE = "ipv4/ip_local_port_range"


def test_sysctls_of_the_link_and_of_the_namespace(node: Namespace, pod: Namespace) -> None:
    early, late = SetSysctl(OF_THE_LINK, "2"), SetSysctl("ipv6/conf/net1/accept_ra", "0", early=False)
    plan = move_plan(node, "eth1", "net1", early, SetSysctl(OF_THE_NAMESPACE, "2000 3000"), SetUp(), late)
    attach_from(node, pod, plan)
    assert (sysctl(pod, OF_THE_LINK), sysctl(pod, "ipv6/conf/net1/accept_ra")) == ("2", "0")
    assert sysctl(pod, OF_THE_NAMESPACE).split() == ["2000", "3000"]
    assert sysctl(node, "ipv4/conf/all/arp_ignore") == "0"


@pytest.mark.parametrize("bad", ["ipv4/conf/net1/no_such_file", "ipv4/conf/nobody/forwarding"])
def test_a_refused_sysctl_puts_those_before_it_back(node: Namespace, pod: Namespace, bad: str) -> None:
    before = sysctl(pod, OF_THE_NAMESPACE)
    steps = (SetSysctl(OF_THE_NAMESPACE, "2000 3000"), SetSysctl(OF_THE_LINK, "2"), SetSysctl(bad, "1"))
    error = fails(node, pod, make_plan(node, "eth1", "net1", *steps))
    assert (error.operation, error.errno) == ("set-sysctl", errno.ENOENT)
    assert bad in error.message
    assert sysctl(pod, OF_THE_NAMESPACE) == before


def test_a_later_failure_puts_the_namespaces_sysctls_back(node: Namespace, pod: Namespace) -> None:
    before = sysctl(pod, OF_THE_NAMESPACE)
    fails(node, pod, make_plan(node, "eth1", "net1", SetSysctl(OF_THE_NAMESPACE, "2000 3000"), IMPOSSIBLE))
    assert sysctl(pod, OF_THE_NAMESPACE) == before


def test_the_ipv6_token(node: Namespace, pod: Namespace) -> None:
    plan = move_plan(node, "eth1", "net1", SetUp(), SetToken("::5"))
    attach_from(node, pod, plan)
    assert "token ::5 dev net1" in shell(pod, "ip", "token", "list")
    attach_from(node, pod, plan)
    assert "token ::5 dev net1" in shell(pod, "ip", "token", "list")
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    assert "dev eth1" not in shell(node, "ip", "token", "list").replace("token :: dev eth1", "")


def test_addresses_made_with_the_token_survive_a_second_attach(
    node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    plan = move_plan(node, "eth1", "net1", SetUp(), SetToken("::5"))
    attach_from(node, pod, plan)
    fabric.ip("addr", "add", "fe80::1/64", "dev", "p-eth1", "nodad")

    def tokenized() -> list[dict[str, Any]]:
        (link,) = pod.read_raw("addr", "show", "dev", "net1")
        return [info for info in link["addr_info"] if info.get("local") == "2001:db8:77::5"]

    def advertised() -> bool:
        fabric.run(lambda: advertise("p-eth1", "2001:db8:77::"))
        return bool(tokenized())

    wait_until(advertised, "a router's prefix becomes an address")
    attach_from(node, pod, plan)
    (address,) = tokenized()
    assert "deprecated" not in address
    assert address["preferred_life_time"] > 3000


def advertise(ifname: str, prefix: str) -> None:
    """Send one router advertisement (RFC 4861) of a /64 prefix, for an hour."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as router:
        router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        router.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, ifname.encode())
        head = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0)
        option = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0) + socket.inet_pton(
            socket.AF_INET6, prefix
        )
        router.sendto(head + option, ("ff02::1", 0, 0, socket.if_nametoindex(ifname)))


def test_a_token_without_router_advertisements_is_refused_with_the_mend(
    node: Namespace, pod: Namespace
) -> None:
    steps = (SetSysctl("ipv6/conf/net1/accept_ra", "0"), SetUp(), SetToken("::5"))
    error = fails(node, pod, move_plan(node, "eth1", "net1", *steps))
    assert (error.operation, error.errno) == ("set-token", errno.EINVAL)
    assert "acceptRA" in error.hint


# --- addresses and neighbours ---------------------------------------------------------------------------


def test_an_ipv6_address_where_the_pod_has_ipv6_off_names_the_mend(node: Namespace, pod: Namespace) -> None:
    off = SetSysctl("ipv6/conf/net1/disable_ipv6", "1")
    plan = move_plan(node, "eth1", "net1", off, AddAddress(Address("2001:db8:100::5/64")), SetUp())
    error = fails(node, pod, plan)
    assert (error.operation, error.errno) == ("add address 2001:db8:100::5/64", errno.EACCES)
    assert "ipv6.enabled" in error.hint


def test_an_address_that_somebody_on_the_network_has_is_named(
    node: Namespace, fabric: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    pod = make_namespace(lively=True)
    make_checks_last(pod)
    plan = move_plan(node, "eth1", "net1", AddAddress(Address("2001:db8:100::6/64")), SetUp())
    attach_from(node, pod, plan)
    fabric.ip("addr", "add", "2001:db8:100::6/64", "dev", "p-eth1", "nodad")
    wait_until(lambda: "dadfailed" in str(pod.read("addr", "show", "dev", "net1")), "the check has failed")
    assert node.run(lambda: verify([plan], pod.netns)) == ("dev-eth1",)
    with pytest.raises(KernelError, match="another host on the network has 2001:db8:100::6/64"):
        attach_from(node, pod, plan)


def test_neighbours(node: Namespace, pod: Namespace) -> None:
    entries = [
        Neighbour("172.16.1.9", "02:00:00:00:99:01"),
        Neighbour("2001:db8:100::9", "02:00:00:00:99:02"),
    ]
    plan = make_plan(node, "eth1", "net1", *map(AddNeighbour, entries))
    with unchanged(node, pod):
        attach_from(node, pod, plan)
        attach_from(node, pod, plan)
        found = pod.read("neigh", "show", "dev", "net1", "nud", "permanent")
        assert {(n["dst"], n["lladdr"]) for n in found} == {(e.address, e.mac) for e in entries}
        detach_to(node, pod, plan)


# --- routes ---------------------------------------------------------------------------------------------


def test_routes_with_all_that_a_claim_can_say(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(
        node, "eth1", "net1",
        AddRoute(Route("10.1.0.0/16", gateway="172.16.1.1", source="172.16.1.5", metric=50, mtu=1300)),
        AddRoute(Route("10.2.0.0/16", scope=253, table=1000)),
        AddRoute(Route("10.3.0.0/16", gateway="198.51.100.1", flags=4)),
        AddRoute(Route("0.0.0.0/0", gateway="172.16.1.1", metric=9)),
        AddRoute(Route("2001:db8:1::/48", gateway="2001:db8:100::1", source="2001:db8:100::5", metric=70)),
    )  # fmt: skip
    attach_from(node, pod, plan)
    before = steady_picture(pod)
    attach_from(node, pod, plan)
    wait_unchanged(before, pod)
    shown = {r["dst"]: r for r in pod.read("route", "show", "dev", "net1", "table", "all")}
    first = shown["10.1.0.0/16"]
    assert (first["gateway"], first["prefsrc"], first["metric"]) == ("172.16.1.1", "172.16.1.5", 50)
    assert first["metrics"] == [{"mtu": 1300}]
    assert (shown["10.2.0.0/16"]["scope"], shown["10.2.0.0/16"]["table"]) == ("link", "1000")
    assert "onlink" in shown["10.3.0.0/16"]["flags"]
    assert shown["default"]["metric"] == 9
    (ipv6,) = pod.read("-6", "route", "show", "2001:db8:1::/48")
    assert (ipv6["prefsrc"], ipv6["metric"]) == ("2001:db8:100::5", 70)


@pytest.mark.parametrize(
    "route",
    [
        Route("0.0.0.0/0", gateway="172.16.1.1"),
        Route("0.0.0.0/0", gateway="172.16.1.1", metric=0, mtu=1400),
    ],
)
def test_a_default_route_beside_the_pods_own_needs_a_metric(
    node: Namespace, pod: Namespace, route: Route
) -> None:
    error = fails(node, pod, make_plan(node, "eth1", "net1", AddRoute(route)))
    assert (error.operation, error.errno) == ("add route 0.0.0.0/0", errno.EEXIST)
    assert "via 10.244.0.1 dev eth0" in error.message
    assert "metric" in error.hint


def test_a_route_that_is_nearly_the_same_is_not_taken_for_it(node: Namespace, pod: Namespace) -> None:
    wanted = Route("10.1.0.0/16", gateway="172.16.1.1", metric=50, mtu=1300)
    plan = make_plan(node, "eth1", "net1", AddRoute(wanted))
    attach_from(node, pod, plan)
    pod.ip_lines("route del 10.1.0.0/16\nroute add 10.1.0.0/16 via 172.16.1.1 metric 50 mtu 1200\n")
    with pytest.raises(KernelError, match="another route"):
        attach_from(node, pod, plan)


MULTIPATH = {
    "IPv4": AddRoute(
        Route("10.9.0.0/16"),
        (NextHop("172.16.1.1", weight=3), NextHop("172.16.2.1", "net2"), NextHop("10.244.0.9", "eth0")),
    ),
    "IPv4 onlink, other table": AddRoute(
        Route("10.9.0.0/16", table=1000, metric=7),
        (NextHop("198.51.100.1", onlink=True), NextHop("172.16.2.1", "net2")),
    ),
    "IPv6": AddRoute(
        Route("2001:db8:9::/48"), (NextHop("2001:db8:100::1", weight=3), NextHop("2001:db8:200::1", "net2"))
    ),
}


@pytest.mark.parametrize("case", MULTIPATH)
def test_a_route_with_several_ways_through_links_that_come_later(
    node: Namespace, pod: Namespace, case: str
) -> None:
    step = MULTIPATH[case]
    plans = [make_plan(node, "eth1", "net1", step), make_plan(node, "eth2", "net2")]
    with unchanged(node, pod):
        attach_from(node, pod, *plans)
        before = steady_picture(pod)
        attach_from(node, pod, *plans)
        wait_unchanged(before, pod)
        family = "-6" if ":" in step.route.destination else "-4"
        (route,) = pod.read(family, "route", "show", step.route.destination, "table", str(step.route.table))
        found = {(hop["gateway"], hop["dev"], hop["weight"]) for hop in route["nexthops"]}
        assert found == {(hop.gateway, hop.ifname or "net1", hop.weight) for hop in step.next_hops}
        assert detach_to(node, pod, *plans).problems == ()


@pytest.mark.parametrize("case", MULTIPATH)
def test_a_route_with_several_ways_goes_with_a_failure(node: Namespace, pod: Namespace, case: str) -> None:
    taken = AddRoute(Route("0.0.0.0/0"), (NextHop("172.16.2.1"), NextHop("10.244.0.9", "eth0")))
    plans = [make_plan(node, "eth1", "net1", MULTIPATH[case]), make_plan(node, "eth2", "net2", taken)]
    error = fails(node, pod, *plans)
    assert (error.errno, error.link) == (errno.EEXIST, "net2")


def test_a_way_through_a_link_that_the_pod_does_not_have(node: Namespace, pod: Namespace) -> None:
    step = AddRoute(Route("10.9.0.0/16"), (NextHop("172.16.1.1"), NextHop("172.16.2.1", "net9")))
    error = fails(node, pod, make_plan(node, "eth1", "net1", step))
    assert "net9" in error.message


# --- rules ----------------------------------------------------------------------------------------------

RULES = (
    AddRule(4, 100, 50, source="172.16.1.5/32"),
    AddRule(4, 100, 51, destination="10.1.0.0/16", mark=0x10),
    AddRule(4, 70000, 52, mark=0x10, mask=0xFF, input_interface="net1"),
    AddRule(4, 100, source="172.16.1.0/24"),
    AddRule(4, 254, output_interface="net1"),
    AddRule(6, 100, 50, source="2001:db8:100::5/128"),
    AddRule(6, 0, 60, source="::/0", mark=0, mask=0xF0),
)


def test_rules_are_added_once_and_taken_away(node: Namespace, pod: Namespace) -> None:
    pod.ip_lines(
        "rule add from 10.5.0.0/16 lookup 100 priority 50\nrule add iif net1 lookup 100 priority 52\n"
    )
    plan = make_plan(node, "eth1", "net1", *RULES)
    with unchanged(node, pod):
        attach_from(node, pod, plan)
        after = rules_of(pod)
        attach_from(node, pod, plan)
        assert rules_of(pod) == after, "once is enough"
        new = [rule for rule in after if rule["protocol"] == "static"]
        assert len(new) == len(RULES)
        found = {(r["priority"], r["family"]): r for r in new}
        assert (found[50, "-4"]["src"], found[50, "-4"]["table"]) == ("172.16.1.5", "100")
        assert (found[51, "-4"]["dst"], found[51, "-4"]["fwmark"]) == ("10.1.0.0", "0x10")
        assert "fwmask" not in found[51, "-4"] or found[51, "-4"]["fwmask"] == "0xffffffff"
        third = found[52, "-4"]
        assert (third["fwmark"], third["fwmask"], third["iif"], third["table"]) == (
            "0x10", "0xff", "net1", "70000",
        )  # fmt: skip
        assert found[50, "-6"]["src"] == "2001:db8:100::5"
        assert found[60, "-6"]["fwmask"] == "0xf0"
        assert any(rule.get("oif") == "net1" for rule in new)
        assert detach_to(node, pod, plan).problems == ()


def test_rules_go_with_a_failure_and_those_of_others_stay(node: Namespace, pod: Namespace) -> None:
    pod.ip("rule", "add", "from", "172.16.1.5/32", "lookup", "100", "priority", "50", "protocol", "static")
    fails(node, pod, make_plan(node, "eth1", "net1", *RULES, IMPOSSIBLE))


def test_two_devices_may_ask_for_the_same_rule(node: Namespace, pod: Namespace) -> None:
    rule = AddRule(4, 100, source="172.16.0.0/16")
    plans = [make_plan(node, "eth1", "net1", rule, rule), make_plan(node, "eth2", "net2", rule)]
    with unchanged(node, pod):
        before = rules_of(pod)
        attach_from(node, pod, *plans)
        assert len(rules_of(pod)) == len(before) + 1
        assert detach_to(node, pod, *plans).problems == ()


def test_an_impossible_rule_is_refused_and_the_others_go(node: Namespace, pod: Namespace) -> None:
    bad = AddRule(4, 100, 70, input_interface="a-name-that-is-far-too-long")
    error = fails(node, pod, make_plan(node, "eth1", "net1", *RULES, bad))
    assert "add rule" in error.operation


# --- rate limits, programs, VRF -------------------------------------------------------------------------

LIMIT = LimitRate(egress_bits_per_second=10**9, ingress_bits_per_second=10**9)


def test_limits_are_set_once_and_nothing_of_them_stays(node: Namespace, pod: Namespace) -> None:
    plan = make_plan(node, "eth1", "net1", LIMIT)
    with unchanged(node, pod):
        attach_from(node, pod, plan)
        links, qdiscs = names_of(pod), shell(pod, "tc", "qdisc", "show")
        assert "tbf" in qdiscs
        attach_from(node, pod, plan)
        assert (names_of(pod), shell(pod, "tc", "qdisc", "show")) == (links, qdiscs)
        assert detach_to(node, pod, plan).problems == ()


def test_a_queue_length_of_zero_stays_zero_below_a_limit(node: Namespace, pod: Namespace) -> None:
    attach_from(node, pod, make_plan(node, "eth1", "net1", SetLink(tx_queue_length=0), LIMIT))
    assert link_of(pod, "net1").get("txqlen", 0) == 0


def test_limits_go_with_a_failure(node: Namespace, pod: Namespace) -> None:
    fails(node, pod, make_plan(node, "eth1", "net1", LIMIT, IMPOSSIBLE))


def test_programs_of_the_node_go_and_those_of_the_pod_survive_a_second_attach(
    node: Namespace, pod: Namespace
) -> None:
    plan = make_plan(node, "eth1", "net1")
    plan = replace(plan, steps=(plan.steps[0], RemovePrograms(), *plan.steps[1:]))
    with loader() as programs:
        index = ifindex_of(node, "eth1")
        programs.attach_by_link(node, programs.load("from_node"), index, BPF_TCX_INGRESS)
        attach_from(node, pod, plan)
        assert programs_on(pod, "net1") == ()
        programs.attach_by_link(pod, programs.load("of_pod"), ifindex_of(pod, "net1"), BPF_TCX_INGRESS)
        attach_from(node, pod, plan)
        assert programs_on(pod, "net1") == ("tcx ingress of_pod",)


def programs_on(pod: Namespace, ifname: str) -> tuple[str, ...]:
    with open_pod_side(pod.netns) as side:
        return read_program_names(side, ifindex_of(pod, ifname))


def test_a_vrf_where_the_kernel_has_none_names_the_module(node: Namespace, pod: Namespace) -> None:
    if has_kind(pod, "vrf", "table", "10"):
        pytest.skip("this kernel has VRFs: see tests/machine/test_attach.py")
    error = fails(node, pod, make_plan(node, "eth1", "net1", JoinVrf("vrf-rail0", 1100)))
    assert (error.operation, error.errno) == ("create vrf", errno.EOPNOTSUPP)
    assert "module vrf" in error.hint


def has_kind(namespace: Namespace, *kind: str) -> bool:
    try:
        namespace.ip("link", "add", "probe", "type", *kind)
    except AssertionError:
        return False
    namespace.ip("link", "del", "probe")
    return True


def test_a_name_that_is_no_vrf_is_refused(node: Namespace, pod: Namespace) -> None:
    pod.ip("link", "add", "vrf-rail0", "type", "bridge")
    error = fails(node, pod, make_plan(node, "eth1", "net1", JoinVrf("vrf-rail0", 1100)))
    assert "vrf-rail0 is a bridge link in the pod, not a VRF with table 1100" in error.message


# --- links on top of a parent ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bridge", "private", "vepa"])
def test_a_macvlan_in_the_pod_on_a_parent_that_stays(node: Namespace, pod: Namespace, mode: str) -> None:
    step = macvlan_on(node, "eth1", "net1", mode=mode, mtu=1400, mac="02:00:00:00:77:77")
    plan = sublink_plan(step, AddRoute(Route("10.1.0.0/16", gateway="172.20.0.1")))
    with unchanged(node, pod):
        (attached,) = attach_from(node, pod, plan)
        assert (attached.pod_ifname, attached.mac, attached.mtu) == ("net1", "02:00:00:00:77:77", 1400)
        assert attached.addresses == ("172.20.0.5/24",)
        link = link_of(pod, "net1")
        assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["mode"]) == ("macvlan", mode)
        assert (link["link_index"], "UP" in link["flags"]) == (step.parent_ifindex, True)
        assert node.run(lambda: verify([plan], pod.netns)) == ()
        before = steady_picture(pod)
        assert attach_from(node, pod, plan) == (attached,)
        wait_unchanged(before, pod)
        assert detach_to(node, pod, plan) == DetachReport(restored=("sub-eth1",))
        assert detach_to(node, pod, plan) == DetachReport(restored=("sub-eth1",))


def test_a_sub_link_may_have_the_name_of_its_parent_or_of_another_link_of_the_node(
    node: Namespace, pod: Namespace
) -> None:
    plans = [
        sublink_plan(macvlan_on(node, "eth1", "eth1")),
        sublink_plan(macvlan_on(node, "eth1", "eth2")),
        make_plan(node, "eth3", "eth3"),
    ]
    with unchanged(node, pod):
        attach_from(node, pod, *plans)
        assert names_of(pod) >= {"eth1", "eth2", "eth3"}
        assert names_of(node) >= {"eth1", "eth2"}
        detach_to(node, pod, *plans)


def test_two_pods_share_a_parent(
    node: Namespace, pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    other = make_namespace()
    plan = sublink_plan(macvlan_on(node, "eth1", "net1"))
    with unchanged(node, pod, other):
        attach_from(node, pod, plan)
        attach_from(node, other, plan)
        assert detach_to(node, pod, plan).restored == ("sub-eth1",)
        assert node.run(lambda: verify([plan], other.netns)) == ()
        detach_to(node, other, plan)


def test_a_sub_link_that_died_with_its_namespace_is_given_back(node: Namespace, pod: Namespace) -> None:
    plan = sublink_plan(macvlan_on(node, "eth1", "net1"))
    attach_from(node, pod, plan)
    pod.delete()
    assert detach_to(node, None, plan) == DetachReport(restored=("sub-eth1",))


def test_a_sub_link_of_a_failed_attach_is_gone(node: Namespace, pod: Namespace) -> None:
    plans = [make_plan(node, "eth2", "net2"), sublink_plan(macvlan_on(node, "eth1", "net1"), IMPOSSIBLE)]
    error = fails(node, pod, *plans)
    assert "sub-eth1" in error.message


def test_a_name_that_the_pod_has_is_told_with_who_has_it(node: Namespace, pod: Namespace) -> None:
    for plan in (make_plan(node, "eth1", "eth0"), sublink_plan(macvlan_on(node, "eth1", "eth0"))):
        error = fails(node, pod, plan)
        assert error.errno == errno.EEXIST
        assert f"attach {plan.device} as eth0: " in error.message
        assert "the pod has a veth link eth0 (" in error.message
        assert "interface.name" in error.hint


def test_a_link_that_is_in_the_way_is_never_taken_for_the_sub_link(node: Namespace, pod: Namespace) -> None:
    """A macvlan of the same name, on another parent."""
    attach_from(node, pod, sublink_plan(macvlan_on(node, "eth2", "net1")))
    error = fails(node, pod, sublink_plan(macvlan_on(node, "eth1", "net1")))
    assert "the pod has a macvlan link net1 (" in error.message
    assert detach_to(node, pod, sublink_plan(macvlan_on(node, "eth1", "net1"))).restored == ("sub-eth1",)
    assert "net1" in names_of(pod), "it is not ours to delete"


@pytest.mark.parametrize("change", ["link set eth1 address 02:00:00:00:aa:aa", "link del eth1"])
def test_a_parent_that_is_gone_or_another_device_is_refused(
    node: Namespace, pod: Namespace, change: str
) -> None:
    plan = sublink_plan(macvlan_on(node, "eth1", "net1"))
    node.ip(*change.split())
    with unchanged(node, pod), pytest.raises(DeviceError) as caught:
        attach_from(node, pod, plan)
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND


def test_a_parent_that_was_enslaved_meanwhile_is_refused(node: Namespace, pod: Namespace) -> None:
    plan = sublink_plan(macvlan_on(node, "eth1", "net1"))
    node.ip_lines("link add br1 type bridge\nlink set eth1 master br1\n")
    with pytest.raises(DeviceError) as caught:
        attach_from(node, pod, plan)
    assert caught.value.reason is Reason.DEVICE_BUSY
    assert "net1" not in names_of(pod)


def test_an_mtu_above_that_of_the_parent_names_the_parent(node: Namespace, pod: Namespace) -> None:
    error = fails(node, pod, sublink_plan(macvlan_on(node, "eth1", "net1", mtu=9000)))
    assert (error.operation, error.errno) == ("create macvlan", errno.EINVAL)
    assert "that of eth1" in error.hint


SPOILED = {
    "absent": "link del net1",
    "down": "link set net1 down",
    "without its address": "addr del 172.20.0.5/24 dev net1",
    "with another MTU": "link set net1 mtu 1300",
    "with another MAC": "link set net1 address 02:00:00:00:66:66",
    "under another name": "link set net1 name other",
    "only an alternative name": "link property add dev eth0 altname net1",
}


@pytest.mark.parametrize("case", SPOILED)
def test_verify_names_a_sub_link_that_is(node: Namespace, pod: Namespace, case: str) -> None:
    step = macvlan_on(node, "eth1", "net1", mtu=1400, mac="02:00:00:00:77:77")
    plan = sublink_plan(step)
    attach_from(node, pod, plan)
    assert node.run(lambda: verify([plan], pod.netns)) == ()
    if "alternative" in case:
        pod.ip("link", "set", "net1", "name", "other")
    pod.ip(*SPOILED[case].split())
    assert node.run(lambda: verify([plan], pod.netns)) == ("sub-eth1",)


@pytest.mark.parametrize("spoil", ["link set net1 mtu 1300", "link set net1 address 02:00:00:00:66:66"])
def test_verify_names_a_link_with_another_mtu_or_mac(node: Namespace, pod: Namespace, spoil: str) -> None:
    plan = with_move(make_plan(node, "eth1", "net1"), mtu=1400, mac="02:00:00:00:77:77")
    attach_from(node, pod, plan)
    assert node.run(lambda: verify([plan], pod.netns)) == ()
    pod.ip(*spoil.split())
    assert node.run(lambda: verify([plan], pod.netns)) == ("dev-eth1",)


# --- interrupted ----------------------------------------------------------------------------------------


def test_an_attach_that_is_stopped_at_once_begins_nothing(node: Namespace, pod: Namespace) -> None:
    with unchanged(node, pod), pytest.raises(KernelError, match="stopped, before move-link") as caught:
        attach_from(node, pod, make_plan(node, "eth1", "net1"), why_stop=lambda: "stopped")
    assert caught.value.reason is Reason.ATTACH_FAILED


def test_an_attach_that_is_stopped_midway_takes_everything_back(node: Namespace, pod: Namespace) -> None:
    plans = [make_plan(node, "eth1", "net1", *RULES), make_plan(node, "eth2", "net2")]

    def why_stop() -> str:
        return "stopped" if "net2" in pod_names(pod) else ""

    with unchanged(node, pod), pytest.raises(KernelError, match="attach dev-eth2 as net2: stopped"):
        attach_from(node, pod, *plans, why_stop=why_stop)


def pod_names(pod: Namespace) -> set[str]:
    return {link["ifname"] for link in pod.read("link")}


# --- late and odd ---------------------------------------------------------------------------------------


def test_a_link_that_somebody_moved_away_is_not_found(
    node: Namespace, pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    plans = [make_plan(node, "eth1", "net1"), make_plan(node, "eth2", "net2")]
    node.ip("link", "set", "eth2", "netns", make_namespace().name)
    with unchanged(node, pod), pytest.raises(DeviceError) as caught:
        attach_from(node, pod, *plans)
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND


def test_a_link_whose_far_end_was_moved_attaches_and_comes_back(
    node: Namespace, fabric: Namespace, pod: Namespace
) -> None:
    fabric.ip("link", "set", "p-eth1", "netns", pod.name)
    plan = make_plan(node, "eth1", "net1")
    with unchanged(pod):
        attach_from(node, pod, plan)
        assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))


def test_undoing_the_second_device_gives_both_back(node: Namespace, pod: Namespace) -> None:
    full: tuple[Step, ...] = (*RULES, LIMIT, SetSysctl(OF_THE_NAMESPACE, "2000 3000"), MULTIPATH["IPv4"])
    fails(node, pod, make_plan(node, "eth1", "net1", *full), make_plan(node, "eth2", "net2", IMPOSSIBLE))


def test_a_second_call_that_fails_leaves_the_devices_of_the_first(node: Namespace, pod: Namespace) -> None:
    first, second = make_plan(node, "eth1", "net1", *RULES), make_plan(node, "eth2", "net2", IMPOSSIBLE)
    attach_from(node, pod, first)
    fails(node, pod, first, second)
    assert node.run(lambda: verify([first], pod.netns)) == ()

"""What a pod gets of its NIC's host state, on the running kernel: traffic, lifetimes, what is read back."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.driver.node_reader import NodeReader
from dranet.errors import KernelError
from dranet.kernel.attachment.checks import read_attached, verify
from dranet.kernel.attachment.detach import DetachReport
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AddRoute, AddRule, AttachPlan
from dranet.model.status import AttachedLink, AttachedRoute
from tests.kernel.plans import attach_from, detach_to, rules_of
from tests.support.namespaces import Namespace, wait_settled, wait_unchanged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

FOR_EVER = 2**32 - 1

NODE_STATE = """
addr add 10.9.0.5/24 dev eth1
addr add fd09::5/64 dev eth1 nodad
route add default via 10.9.0.1 dev eth1 table 100
route add default via fd09::1 dev eth1 table 100
neigh add 10.9.0.7 lladdr 02:00:00:00:99:07 dev eth1 nud permanent
rule add from 10.9.0.0/24 lookup 100 priority 500
rule add from 10.9.0.0/24 fwmark 0x80/0xff lookup 100 priority 400
"""
NODE_RULES_6 = "rule add from fd09::/64 lookup 100 priority 500\n"


def plan_of(node: Namespace, ifname: str = "eth1", name: str = "net1", **fields: Any) -> AttachPlan:
    """As Prepare makes it."""
    reader = NodeReader(Path("/sys"))
    fields["interface"] = {"name": name, **fields.get("interface", {})}
    config = NetworkConfig.model_validate(fields)
    host, rules = node.run(lambda: (reader.read_link(ifname), reader.read_rules()))
    device = Device(f"dev-{ifname}", DeviceKind.NIC, ifname=ifname)
    return plan_device(device, host, config, rdma_exclusive=False, host_rules=rules)


def set_up_policy_routing(node: Namespace) -> None:
    node.ip_lines(NODE_STATE)
    node.ip("-6", *NODE_RULES_6.split())


def addresses_of(namespace: Namespace, ifname: str) -> dict[str, dict[str, Any]]:
    (link,) = namespace.read_raw("addr", "show", "dev", ifname)
    return {info["local"]: info for info in link["addr_info"]}


# --- a rail with its own table --------------------------------------------------------------------------


@pytest.fixture
def far(fabric: Namespace, make_namespace: Callable[..., Namespace]) -> Namespace:
    """A host in another subnet; the fabric routes between it and the NIC."""
    host = make_namespace()
    host.ip("link", "add", "eth0", "type", "veth", "peer", "name", "to-far", "netns", fabric.name)
    for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        fabric.run(partial(Path("/proc/sys/net", name).write_text, "1"))
    fabric.ip_lines(
        "link set to-far up\naddr add 10.20.0.1/24 dev to-far\naddr add fd20::1/64 dev to-far nodad\n"
        "addr add 10.9.0.1/24 dev p-eth1\naddr add fd09::1/64 dev p-eth1 nodad\n"
        # For packets of others a router asks for neighbours from its link-local address alone.
        "addr add fe80::1/64 dev to-far nodad\naddr add fe80::1/64 dev p-eth1 nodad\n"
    )
    host.ip_lines(
        "link set eth0 up\naddr add 10.20.0.9/24 dev eth0\naddr add fd20::9/64 dev eth0 nodad\n"
        "route add default via 10.20.0.1\nroute add default via fd20::1\n"
    )
    return host


def talk(near: Namespace, source: str, far: Namespace, destination: str) -> bytes:
    """What a host answers over TCP, asked from an address of another one."""
    version = socket.AF_INET6 if ":" in source else socket.AF_INET
    with (
        far.run(lambda: socket.create_server((destination, 0), family=version)) as server,
        near.run(lambda: socket.socket(version)) as client,
    ):
        server.settimeout(10)
        client.settimeout(10)
        client.bind((source, 0))
        client.connect(server.getsockname()[:2])
        answering, _ = server.accept()
        with answering:
            answering.sendall(b"here")
        return client.recv(4)


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({}, ("10.9.0.5", "fd09::5")),
        ({"interface": {"addresses": ["10.9.0.77/24", "fd09::77/64"]}}, ("10.9.0.77", "fd09::77")),
    ],
    ids=["host-addresses", "own-addresses"],
)
def test_a_rail_with_its_own_table_reaches_another_subnet_through_its_gateway(
    node: Namespace, pod: Namespace, far: Namespace, fields: dict[str, Any], sources: tuple[str, str]
) -> None:
    set_up_policy_routing(node)
    before, pod_before = wait_settled(node), wait_settled(pod)
    plan = plan_of(node, **fields)
    (attached,) = attach_from(node, pod, plan)
    assert talk(pod, sources[0], far, "10.20.0.9") == b"here"
    assert talk(pod, sources[1], far, "fd20::9") == b"here"
    assert attached.routes == (
        AttachedRoute("0.0.0.0/0", ("10.9.0.1",), 100),
        AttachedRoute("::/0", ("fd09::1",), 100),
    )
    assert attached.rules == (
        AddRule(4, table=100, priority=500, source="10.9.0.0/24"),
        AddRule(6, table=100, priority=500, source="fd09::/64"),
    )
    assert [n["dst"] for n in pod.read("neigh", "show", "nud", "permanent", "dev", "net1")] == ["10.9.0.7"]
    assert detach_to(node, pod, plan) == DetachReport(restored=("dev-eth1",))
    wait_unchanged(before, node)
    wait_unchanged(pod_before, pod)


def test_several_links_bring_the_same_rule_once_and_the_hook_reads_rules_once(
    node: Namespace, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        node.ip("addr", "add", f"10.9.{number}.5/24", "dev", f"eth{number}")
        node.ip("route", "add", f"10.8.{number}.0/24", "via", f"10.9.{number}.1", "table", "100")
    node.ip("rule", "add", "from", "10.9.0.0/16", "lookup", "100", "priority", "500")
    pod_rules = rules_of(pod)
    plans = [plan_of(node, f"eth{number}", f"net{number}") for number in (1, 2, 3)]
    dumps: Counter[str] = Counter()
    dump = NetlinkSocket.dump

    def counting(self: NetlinkSocket, request: Request) -> list[bytes]:
        dumps[request.operation] += 1
        return dump(self, request)

    monkeypatch.setattr(NetlinkSocket, "dump", counting)
    attached = attach_from(node, pod, *plans)
    monkeypatch.undo()
    assert {link.rules for link in attached} == {(AddRule(4, table=100, priority=500, source="10.9.0.0/16"),)}
    assert len(rules_of(pod)) == len(pod_rules) + 1
    assert dumps["read rules"] == 4, "of the pod to add and to read back, of the node in two families"
    assert detach_to(node, pod, *plans).problems == ()
    assert rules_of(pod) == pod_rules


def test_a_route_whose_place_is_taken_in_the_pod_names_the_field_that_leaves_it_on_the_node(
    node: Namespace, pod: Namespace
) -> None:
    node.ip_lines("addr add 10.9.0.5/24 dev eth1\nroute add 10.8.0.0/16 via 10.9.0.1\n")
    pod.ip("route", "add", "10.8.0.0/16", "via", "10.244.0.1")
    with pytest.raises(KernelError, match=r"another route .*via 10\.244\.0\.1 dev eth0") as caught:
        attach_from(node, pod, plan_of(node))
    assert "interface.inheritRouting: false" in caught.value.hint
    attach_from(node, pod, plan_of(node, interface={"inheritRouting": False}))


# --- what is read back, and what is missed --------------------------------------------------------------


@pytest.fixture
def attached_plan(node: Namespace, pod: Namespace) -> AttachPlan:
    set_up_policy_routing(node)
    plan = plan_of(node)
    attach_from(node, pod, plan)
    return plan


@pytest.mark.parametrize(
    "taken",
    [
        "-4 route del default table 100",
        "-6 route del default table 100",
        "-4 rule del priority 500",
        "-6 rule del priority 500",
        "neigh del 10.9.0.7 dev net1",
    ],
)
def test_what_a_process_of_the_pod_took_away_is_missed_and_added_again(
    node: Namespace, pod: Namespace, attached_plan: AttachPlan, taken: str
) -> None:
    (whole,) = read_attached([attached_plan], pod.netns)
    before = pod.picture()
    pod.ip(*taken.split())
    assert verify([attached_plan], pod.netns) == ("dev-eth1",)
    (link,) = read_attached([attached_plan], pod.netns)
    if "neigh" not in taken:
        assert len(link.routes) + len(link.rules) == len(whole.routes) + len(whole.rules) - 1
    assert attach_from(node, pod, attached_plan) == (whole,)
    assert verify([attached_plan], pod.netns) == ()
    wait_unchanged(before, pod)


def test_a_route_that_the_pod_replaced_is_its_own_choice_and_the_status_says_it(
    pod: Namespace, attached_plan: AttachPlan
) -> None:
    pod.ip("route", "replace", "default", "via", "10.9.0.2", "dev", "net1", "table", "100")
    pod.ip("-6", "route", "del", "default", "table", "100")
    pod.ip("-6", "route", "add", "default", "dev", "cni0", "table", "100")
    assert verify([attached_plan], pod.netns) == ()
    (link,) = read_attached([attached_plan], pod.netns)
    assert link.routes == (AttachedRoute("0.0.0.0/0", ("10.9.0.2",), 100),)


def test_a_default_route_is_there_already_where_a_rule_about_the_link_leads_to_itself(
    node: Namespace, pod: Namespace
) -> None:
    set_up_policy_routing(node)
    node.ip("-6", "rule", "add", "oif", "eth1", "lookup", "100", "priority", "501")
    plan = plan_of(node)
    whole = attach_from(node, pod, plan)
    pod.ip("neigh", "del", "10.9.0.7", "dev", "net1")
    assert attach_from(node, pod, plan) == whole


def test_a_route_of_a_table_that_never_was_is_missed(pod: Namespace, attached_plan: AttachPlan) -> None:
    more = AddRoute(Route("10.8.0.0/16", gateway="10.9.0.1", table=4242))
    planned = replace(attached_plan, steps=(*attached_plan.steps, more))
    assert verify([planned], pod.netns) == ("dev-eth1",)


@pytest.mark.parametrize(
    ("destination", "gateways"),
    [("10.8.0.0/16", ("10.9.0.1", "10.9.0.2")), ("fd08::/48", ("fd09::1", "fd09::2"))],
)
def test_a_route_with_several_ways_is_missed_too(
    node: Namespace, pod: Namespace, destination: str, gateways: tuple[str, str]
) -> None:
    hops = [{"gateway": gateways[0]}, {"gateway": gateways[1], "weight": 3}]
    plan = plan_of(
        node,
        interface={"addresses": ["10.9.0.5/24", "fd09::5/64"]},
        routes=[{"destination": destination, "nextHops": hops}],
    )
    (link,) = attach_from(node, pod, plan)
    assert link.routes == (AttachedRoute(destination, gateways),)
    assert verify([plan], pod.netns) == ()
    assert attach_from(node, pod, plan) == (link,)
    pod.ip("route", "del", destination)
    assert verify([plan], pod.netns) == ("dev-eth1",)


def test_all_addresses_of_the_pod_are_told_but_the_kernels_own_link_local_ones(
    node: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    pod = make_namespace(lively=True)
    own = {"addresses": ["169.254.169.13/24", "10.9.0.5/24", "fe80::77/64"]}
    plan = plan_of(node, interface=own)
    (attached,) = attach_from(node, pod, plan)
    assert set(attached.addresses) == set(own["addresses"])
    wait_until(lambda: "fe80::ff:fe00:1" in addresses_of(pod, "net1"), "the kernel's own address")
    (again,) = read_attached([plan], pod.netns)
    assert set(again.addresses) == set(own["addresses"])


def test_a_link_local_address_of_the_host_is_told_too(node: Namespace, pod: Namespace) -> None:
    node.ip("addr", "add", "169.254.169.13/24", "dev", "eth1")
    assert attach_from(node, pod, plan_of(node)) == (
        AttachedLink("dev-eth1", "net1", "02:00:00:00:00:01", 1500, ("169.254.169.13/24",)),
    )


# --- lifetimes ------------------------------------------------------------------------------------------


def test_an_address_with_a_lease_is_still_in_the_pod_when_the_lease_is_over(
    node: Namespace, pod: Namespace
) -> None:
    node.ip("addr", "add", "10.9.0.5/24", "dev", "eth1", "valid_lft", "2", "preferred_lft", "2")
    node.ip("addr", "add", "fd09::5/64", "dev", "eth1", "valid_lft", "2", "preferred_lft", "2", "nodad")
    plan = plan_of(node)
    attach_from(node, pod, plan)
    for control in ("10.5.0.5/24", "fd05::5/64"):  # younger, so it goes later
        pod.ip("addr", "add", control, "dev", "eth0", "valid_lft", "2", "preferred_lft", "2", "nodad")
    wait_until(lambda: not {"10.5.0.5", "fd05::5"} & addresses_of(pod, "eth0").keys(), "the end of a lease")
    assert addresses_of(pod, "net1").keys() == {"10.9.0.5", "fd09::5"}
    assert verify([plan], pod.netns) == ()


def test_the_host_gets_back_what_is_left_of_its_lifetimes(node: Namespace, pod: Namespace) -> None:
    """Two hours in the pod: of one lease nothing is left, and of what needs it neither."""
    node.ip_lines(
        "addr add 10.9.0.5/24 dev eth1 valid_lft 3600 preferred_lft 1800\n"
        "addr add 10.9.1.5/24 dev eth1 valid_lft 86400 preferred_lft 3600\n"
        "addr add 10.9.2.5/24 dev eth1\n"
        "addr add fd09::5/64 dev eth1 nodad valid_lft 3600 preferred_lft 1800\n"
        "addr add fd09:2::5/64 dev eth1 nodad\n"
        "route add default via 10.9.0.1 dev eth1 table 100\n"
        "route add 10.8.0.0/16 via 10.9.2.1 src 10.9.0.5\n"
        "route add default via 10.9.2.1 dev eth1 table 200\n"
        "route add default via fd09::1 dev eth1 table 100\n"
        "route add default via fd09:2::1 dev eth1 table 200\n"
    )
    plan = plan_of(node)
    assert plan.host is not None
    assert plan.host.read_at is not None
    attach_from(node, pod, plan)
    aged = replace(plan, host=replace(plan.host, read_at=plan.host.read_at - 7200))
    assert detach_to(node, pod, aged) == DetachReport(restored=("dev-eth1",))
    found = addresses_of(node, "eth1")
    assert found.keys() == {"10.9.1.5", "10.9.2.5", "fd09:2::5"}
    assert 79000 < found["10.9.1.5"]["valid_life_time"] <= 79200
    assert found["10.9.1.5"]["preferred_life_time"] == 0
    assert found["10.9.2.5"]["valid_life_time"] == FOR_EVER
    for family, gateway in (("-4", "10.9.2.1"), ("-6", "fd09:2::1")):
        (route,) = node.read(family, "route", "show", "table", "200")
        assert route["gateway"] == gateway
        assert node.read(family, "route", "show", "table", "100") == []
    assert node.read("route", "show", "10.8.0.0/16") == []


def test_a_record_without_the_time_of_its_reading_is_restored_as_it_is(
    node: Namespace, pod: Namespace
) -> None:
    node.ip("addr", "add", "10.9.0.5/24", "dev", "eth1", "valid_lft", "3600", "preferred_lft", "1800")
    plan = plan_of(node)
    assert plan.host is not None
    attach_from(node, pod, plan)
    old = replace(plan, host=replace(plan.host, read_at=None))
    assert detach_to(node, pod, old) == DetachReport(restored=("dev-eth1",))
    assert 3500 < addresses_of(node, "eth1")["10.9.0.5"]["valid_life_time"] <= 3600


SLAAC = "2001:db8:9::ff:fe00:1"
"""What the kernel makes of the prefix and the link's hardware address."""


def advertise(fabric: Namespace, ifname: str, seconds: int) -> None:
    """One router advertisement (RFC 4861, 4.2) with a prefix that is valid for so long."""
    prefix = struct.pack(
        "!BBBBIII16s", 3, 4, 64, 0xC0, seconds, seconds, 0, IPv6Address("2001:db8:9::").packed
    )
    message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0) + prefix

    def send() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as router:
            router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
            router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(ifname))
            router.sendto(message, ("ff02::1", 0, 0, socket.if_nametoindex(ifname)))

    fabric.run(send)


def has_heard(namespace: Namespace, ifname: str, fabric: Namespace, seconds: int) -> bool:
    """After another advertisement: whether the address has that lifetime."""
    advertise(fabric, "p-eth1", seconds)
    found = addresses_of(namespace, ifname).get(SLAAC, {})
    return not found.get("tentative") and seconds - 60 < found.get("valid_life_time", 0) <= seconds


@pytest.mark.parametrize("listens", [True, False], ids=["listens", "deaf"])
def test_an_advertised_address_is_renewed_in_a_pod_that_listens_and_permanent_in_another(
    lively_node: Namespace, fabric: Namespace, make_namespace: Callable[..., Namespace], listens: bool
) -> None:
    fabric.ip("addr", "add", "fe80::1/64", "dev", "p-eth1", "nodad")
    wait_until(lambda: has_heard(lively_node, "eth1", fabric, 3600), "an advertised address")
    pod = make_namespace(lively=True)
    default = Path("/proc/sys/net/ipv6/conf/default/accept_ra")
    pod.run(lambda: default.write_text("1" if listens else "0"))
    attach_from(lively_node, pod, plan_of(lively_node))
    lifetime = addresses_of(pod, "net1")[SLAAC]["valid_life_time"]
    if listens:
        assert 3500 < lifetime <= 3600
        wait_until(lambda: has_heard(pod, "net1", fabric, 9000), "a renewal in the pod")
    else:
        assert lifetime == FOR_EVER

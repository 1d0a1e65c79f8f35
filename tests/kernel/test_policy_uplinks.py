"""Policy routing and nexthop objects of this kernel: what carries the traffic of others stays on the node."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import DeviceError
from dranet.inventory.topology import find_link_dependencies
from dranet.kernel.attachment.checks import UplinkGuard, UplinkRules
from dranet.kernel.attachment.links import read_link
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.discovery.watch import Changes
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Link, NodeFacts, RoutingRule
from tests.support.executed_lines import count_steps
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

API = ProtectedAddress("the route to the API server", "10.9.0.1", is_own=False)
NAMES = ("uplink", "eth1", "eth2", "eth3")


def as_hardware(link: Link) -> Link:
    """The test's links are veths with their other end elsewhere; here they pass for cards."""
    return replace(link, kind="", virtual=False) if link.kind == "veth" else link


class HardwareGuard(UplinkGuard):
    def check(self, link: Link) -> None:
        super().check(as_hardware(link))

    def _read(self, ifindex: int) -> Link | None:
        link = super()._read(ifindex)
        return as_hardware(link) if link else None


def scan(node: Namespace, *targets: ProtectedAddress) -> NodeFacts:
    scanner = NodeScanner(Path("/nonexistent"), Path("/nonexistent"))
    scanner.set_protected_addresses(targets)
    facts = node.run(scanner.read)
    return replace(facts, links=tuple(map(as_hardware, facts.links)))


def refused(node: Namespace, *targets: ProtectedAddress) -> dict[str, str]:
    """The links that the guard refuses, each with the reason."""

    def check() -> dict[str, str]:
        found: dict[str, str] = {}
        with NetlinkSocket.open() as rtnl:
            for name in NAMES:
                link = read_link(rtnl, ifname=name)
                assert link is not None
                try:
                    HardwareGuard(rtnl, UplinkRules(targets, Path("/nonexistent"))).check(link)
                except DeviceError as error:
                    found[name] = error.message
        return found

    return node.run(check)


def stay(node: Namespace, *targets: ProtectedAddress) -> dict[str, str]:
    """The NICs that stay on the node, each with the inventory's reason; the guard must agree."""
    ties = find_link_dependencies(scan(node, *targets)).links
    assert ties.keys() & set(NAMES) == refused(node, *targets).keys()
    return {name: ties[name].reason_for(name) for name in NAMES if name in ties}


OTHERS = {
    "EKS, Cilium ENI, Terway: from a pod's address": (
        "route add 10.1.0.1/32 dev eth1 table 2\nroute add default via 10.1.0.1 dev eth1 table 2\n"
        "rule add pref 512 to 10.1.0.30 lookup main\nrule add pref 1536 from 10.1.0.30 lookup 2\n"
    ),
    "from a pod's address to the VPC, as without masquerading": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 2\n"
        "rule add from 10.1.0.30 to 10.0.0.0/8 lookup 2\n"
    ),
    "from a pod's address, to a table without default route": (
        "addr add 10.1.0.7/24 dev eth1\nroute add 10.0.0.0/8 via 10.1.0.1 dev eth1 table 2\n"
        "rule add from 10.1.0.30 lookup 2\n"
    ),
    "a mark": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 11\n"
        "rule add fwmark 0x1/0xf lookup 11\n"
    ),
    "all but a mark, as of WireGuard": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 51820\n"
        "rule add not fwmark 0xca6c lookup 51820\n"
        "rule add lookup main suppress_prefixlength 0\n"
    ),
    "no selector": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 52\n"
        "rule add lookup 52\n"
    ),
    "what came in by another link": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add iif eth2 lookup 101\n"
    ),
    "what the node sends": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add iif lo lookup 101\n"
    ),
    "from the node's address on another link": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add from 192.0.2.2 lookup 101\n"
    ),
    "from a subnet in which another link has an address": (
        "addr add 10.1.0.7/24 dev eth1\naddr add 10.1.0.8/24 dev eth3\n"
        "route add default via 10.1.0.1 dev eth1 table 101\nrule add from 10.1.0.0/24 lookup 101\n"
    ),
    "from more than its own subnet": (
        "addr add 10.1.0.7/24 dev eth1\n"
        "route add default via 10.1.0.1 dev eth1 table 101\nrule add from 10.0.0.0/8 lookup 101\n"
    ),
    "not from its own address": (
        "addr add 10.1.0.7/24 dev eth1\n"
        "route add default via 10.1.0.1 dev eth1 table 101\nrule add not from 10.1.0.7 lookup 101\n"
    ),
    "the table called default": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table default\n"
    ),
    "next hop of a multipath route": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default table 2 "
        "nexthop via 192.0.2.9 dev uplink nexthop via 10.1.0.1 dev eth1\nrule add from 10.1.0.30 lookup 2\n"
    ),
    "IPv6": (
        "addr add 2001:db8:1::7/64 dev eth1 nodad\nroute add ::/0 via 2001:db8:1::1 dev eth1 table 2\n"
        "-6 rule add from 2001:db8:1::30 lookup 2\n"
    ),
    "a large table number": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 10001\n"
        "rule add from 10.1.0.30 lookup 10001\n"
    ),
}


def apply(node: Namespace, lines: str) -> None:
    for line in lines.splitlines():  # a batch takes no family
        node.ip(*line.split())


@pytest.mark.parametrize("layout", OTHERS)
def test_a_link_that_rules_send_the_traffic_of_others_by_stays(node: Namespace, layout: str) -> None:
    apply(node, OTHERS[layout])
    told = stay(node)
    assert told.keys() == {"uplink", "eth1"}
    assert "is the node's uplink: eth1 carries traffic of others by routing table " in told["eth1"]


OWN = {
    "from its own address": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add from 10.1.0.7 lookup 101\n"
    ),
    "from its own subnet": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add from 10.1.0.0/24 lookup 101\n"
    ),
    "rails in one subnet, each with the connected routes of all in its table": (
        "addr add 10.1.0.7/24 dev eth1\naddr add 10.1.0.8/24 dev eth2\n"
        "route add default via 10.1.0.1 dev eth1 table 101\n"
        "route add default via 10.1.0.1 dev eth2 table 102\nroute add 10.1.0.0/24 dev eth1 table 102\n"
        "route add 10.1.0.0/24 dev eth2 table 101\n"
        "rule add from 10.1.0.7 lookup 101\nrule add from 10.1.0.8 lookup 102\n"
    ),
    "what came in by it": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add iif eth1 lookup 101\n"
    ),
    "what is bound to it": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add oif eth1 lookup 101\n"
    ),
    "one destination": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n"
        "rule add to 10.1.0.7 lookup 101\n"
    ),
    "a mark, and a table without default route": (
        "addr add 10.1.0.7/24 dev eth1\nroute add 10.2.0.0/16 via 10.1.0.1 dev eth1 table 52\n"
        "rule add fwmark 1 lookup 52\n"
    ),
    "default routes that do not count": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 52\n"
        "rule add lookup 52 suppress_prefixlength 0\n"
    ),
    "an empty table": "addr add 10.1.0.7/24 dev eth1\nrule add from 10.1.0.30 lookup 77\n",
    "no rule": "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n",
    "a route to the node itself, as of Cilium": (
        "route add local 0.0.0.0/0 dev lo table 2004\nrule add pref 9 fwmark 0x200/0xf00 lookup 2004\n"
    ),
    "IPv6": (
        "addr add 2001:db8:1::7/64 dev eth1 nodad\nroute add ::/0 via 2001:db8:1::1 dev eth1 table 101\n"
        "-6 rule add from 2001:db8:1::7 lookup 101\n"
    ),
}


@pytest.mark.parametrize("layout", OWN)
def test_a_link_with_policy_routing_of_its_own_is_free(node: Namespace, layout: str) -> None:
    apply(node, OWN[layout])
    assert stay(node).keys() == {"uplink"}


def test_a_rule_with_host_bits_is_read_as_the_kernel_applies_it(node: Namespace) -> None:
    apply(node, "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 dev eth1 table 101\n")
    node.ip("rule", "add", "from", "10.200.3.4/16", "lookup", "101")
    assert stay(node).keys() == {"uplink", "eth1"}


def test_rules_and_what_they_lead_to_are_facts(node: Namespace) -> None:
    apply(node, OTHERS["EKS, Cilium ENI, Terway: from a pod's address"])
    facts = scan(node)
    assert facts.rules == (RoutingRule(4, 2, "10.1.0.30/32"), RoutingRule(4, 253))
    eth1 = next(link.ifindex for link in facts.links if link.ifname == "eth1")
    assert {(route.destination, route.table, route.ifindex) for route in facts.policy_routes} == {
        ("0.0.0.0/0", 2, eth1),
        ("10.1.0.1/32", 2, eth1),
    }
    assert [route.table for route in facts.default_routes] == [254, 254]


def test_a_partial_scan_sees_the_route_that_went_with_its_link(node: Namespace) -> None:
    apply(node, OTHERS["from a pod's address to the VPC, as without masquerading"])
    scanner = NodeScanner(Path("/nonexistent"), Path("/nonexistent"))
    before = node.run(scanner.read)
    eth1 = next(link.ifindex for link in before.links if link.ifname == "eth1")
    node.ip("link", "set", "eth1", "down")
    after = node.run(lambda: scanner.read(Changes(links=frozenset({eth1}))))
    assert before.policy_routes
    assert not after.policy_routes
    assert after.rules == before.rules


# --- nexthop objects ------------------------------------------------------------------------------------

NEXTHOPS = {
    "IPv4": (
        {"eth1"},
        (
            "route del default\nroute del ::/0 via 2001:db8:ffff::1\naddr add 10.1.0.7/24 dev eth1\n"
            "nexthop add id 1 via 10.1.0.1 dev eth1\nroute add default nhid 1\n"
        ),
    ),
    "IPv4, a group": (
        {"eth1", "eth2"},
        (
            "route del default\nroute del ::/0 via 2001:db8:ffff::1\naddr add 10.1.0.7/24 dev eth1\n"
            "addr add 10.2.0.7/24 dev eth2\nnexthop add id 1 via 10.1.0.1 dev eth1\n"
            "nexthop add id 2 via 10.2.0.1 dev eth2\nnexthop add id 12 group 1/2\nroute add default nhid 12\n"
        ),
    ),
    "IPv6": (
        {"eth1"},
        (
            "route del default\nroute del ::/0 via 2001:db8:ffff::1\n"
            "addr add 2001:db8:1::7/64 dev eth1 nodad\nnexthop add id 1 via 2001:db8:1::1 dev eth1\n"
            "-6 route add default nhid 1\n"
        ),
    ),
    "IPv6, a group": (
        {"eth1", "eth2"},
        (
            "route del default\nroute del ::/0 via 2001:db8:ffff::1\n"
            "addr add 2001:db8:1::7/64 dev eth1 nodad\naddr add 2001:db8:2::7/64 dev eth2 nodad\n"
            "nexthop add id 1 via 2001:db8:1::1 dev eth1\nnexthop add id 2 via 2001:db8:2::1 dev eth2\n"
            "nexthop add id 12 group 1/2\n-6 route add default nhid 12\n"
        ),
    ),
    "a table of policy routing": (
        {"uplink", "eth1"},
        (
            "addr add 10.1.0.7/24 dev eth1\nnexthop add id 1 via 10.1.0.1 dev eth1\n"
            "route add default table 2 nhid 1\nrule add from 10.1.0.30 lookup 2\n"
        ),
    ),
    "the route to the API server": (
        {"uplink", "eth1"},
        (
            "addr add 10.1.0.7/24 dev eth1\nnexthop add id 1 via 10.1.0.1 dev eth1\n"
            "route add 10.9.0.0/16 nhid 1\n"
        ),
    ),
}


@pytest.mark.parametrize("compat", ["0", "1"])
@pytest.mark.parametrize("layout", NEXTHOPS)
def test_the_outputs_of_nexthop_objects_are_uplinks(node: Namespace, layout: str, compat: str) -> None:
    expected, lines = NEXTHOPS[layout]
    apply(node, lines)
    node.run(lambda: Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(compat))
    assert stay(node, API).keys() == expected


def test_while_the_output_of_a_default_route_is_not_told_every_card_that_is_up_stays(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(node, NEXTHOPS["IPv4"][1])
    node.ip("link", "set", "eth3", "down")
    node.run(lambda: Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0"))
    monkeypatch.setattr("dranet.kernel.netlink.inet._read_objects", lambda *_: {})  # gone since the dump
    told = stay(node)
    assert told.keys() == {"uplink", "eth1", "eth2"}
    assert told["eth2"] == (
        "is the node's uplink: eth2 may carry a default route, whose output the kernel does not report"
    )


def test_while_the_output_of_the_way_to_the_api_server_is_not_told_every_card_that_is_up_stays(
    node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(node, NEXTHOPS["the route to the API server"][1])
    node.ip("link", "set", "eth3", "down")
    node.run(lambda: Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0"))
    monkeypatch.setattr("dranet.kernel.netlink.inet._read_objects", lambda *_: {})
    told = stay(node, API)
    assert told.keys() == {"uplink", "eth1", "eth2"}
    assert told["eth2"] == (
        "may carry the route to the API server 10.9.0.1, whose output the kernel does not report"
    )


# --- cost -----------------------------------------------------------------------------------------------


def test_the_check_costs_little_with_a_rule_for_each_of_a_thousand_pods(node: Namespace) -> None:
    apply(node, "route add 10.1.0.1/32 dev eth1 table 2\nroute add default via 10.1.0.1 dev eth1 table 2\n")
    pods = [f"10.1.{n // 250}.{n % 250}" for n in range(1000)]
    node.ip_lines(
        "".join(
            f"rule add pref 512 to {pod} lookup main\nrule add pref 1536 from {pod} lookup 2\n"
            for pod in pods
        )
    )
    assert refused(node).keys() == {"uplink", "eth1"}
    for_each_rule = count_steps(lambda: refused(node)) / (2 * len(pods) * len(NAMES))
    assert for_each_rule < 200

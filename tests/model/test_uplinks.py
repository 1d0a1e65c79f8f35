"""What is an uplink by policy routing, against a packet that is routed by hand."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, ip_interface, ip_network

from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.offer import take_inventory
from dranet.model.facts import Address, Link, NodeFacts, Route, RoutingRule

UP = 0x1
COUNT = 4
SOURCES = ["", "10.1.0.5/32", "10.2.0.5/32", "10.1.0.0/24", "10.2.0.0/24", "10.0.0.0/8", "10.1.0.77/32"]
CIDRS = ["10.1.0.5/24", "10.2.0.5/24", "10.1.0.9/24", "10.3.0.5/32"]

LINKS = st.lists(st.lists(st.sampled_from(CIDRS), max_size=2, unique=True), min_size=COUNT, max_size=COUNT)
RULES = st.lists(
    st.builds(
        RoutingRule,
        st.just(4),
        st.sampled_from([2, 3]),
        source=st.sampled_from(SOURCES),
        input_interface=st.sampled_from(["", "", "x1", "x2", "lo", "veth1"]),
        output_interface=st.sampled_from(["", "", "", "x1"]),
        inverted=st.sampled_from([False, False, True]),
        suppresses_default=st.sampled_from([False, False, False, True]),
    ),
    max_size=4,
)
ROUTES = st.lists(
    st.builds(
        Route,
        st.sampled_from(["0.0.0.0/0", "0.0.0.0/0", "10.9.0.0/16"]),
        ifindex=st.integers(1, COUNT),
        next_hops=st.lists(st.integers(1, COUNT), max_size=1).map(tuple),
        table=st.sampled_from([2, 3]),
    ),
    max_size=5,
)


def links_of(cidrs: list[list[str]]) -> tuple[Link, ...]:
    return tuple(
        Link(
            index,
            f"x{index}",
            flags=UP,
            operstate="up",
            carrier=True,
            mac=f"02:00:00:00:00:{index:02x}",
            addresses=tuple(map(Address, own)),
        )
        for index, own in enumerate(cidrs, start=1)
    )


def matches(rule: RoutingRule, source: IPv4Address, came_by: str, bound_to: str) -> bool:
    does = not rule.source or source in ip_network(rule.source)
    does = does and rule.input_interface in ("", came_by) and rule.output_interface in ("", bound_to)
    return does is not rule.inverted


def packets(link: Link, links: tuple[Link, ...]) -> list[tuple[IPv4Address, str, str]]:
    """Packets of others: neither from an address in the link's own subnets, unless another link has that
    address, nor come by the link, nor of a socket bound to it."""
    everybody = [IPv4Address(text) for text in ("10.1.0.77", "10.77.0.1")]
    everybody += [IPv4Address(cidr.partition("/")[0]) for cidr in CIDRS]
    elsewhere = {ip_interface(a.cidr).ip for other in links if other is not link for a in other.addresses}
    mine: list[IPv4Network] = [ip_interface(a.cidr).network for a in link.addresses]  # type: ignore[misc]
    own = {ip_interface(a.cidr).ip for a in link.addresses}
    sources = [
        s for s in everybody if (s in elsewhere and s not in own) or not any(s in network for network in mine)
    ]
    return [
        (source, came_by, bound_to)
        for source in sources
        for came_by in ("lo", "x1", "x2", "veth1")
        for bound_to in ("", "x1")
        if link.ifname not in (came_by, bound_to)
    ]


@given(cidrs=LINKS, rules=RULES, routes=ROUTES)
def test_a_link_that_a_default_route_sends_a_packet_of_others_by_is_never_offered(
    cidrs: list[list[str]], rules: list[RoutingRule], routes: list[Route]
) -> None:
    links = links_of(cidrs)
    facts = NodeFacts(links=links, rules=tuple(rules), policy_routes=tuple(routes))
    offered = {d.device.ifname for d in take_inventory(facts, {}) if d.published}
    for link in links:
        for packet in packets(link, links):
            for rule in (r for r in rules if matches(r, *packet) and not r.suppresses_default):
                tables = [r for r in routes if r.table == rule.table and r.destination == "0.0.0.0/0"]
                outputs = {index for r in tables for index in (r.ifindex, *r.next_hops)}
                assert link.ifindex not in outputs or link.ifname not in offered, (packet, rule)


@given(cidrs=LINKS, rules=RULES, routes=ROUTES)
def test_a_link_that_no_table_of_others_leads_to_is_offered(
    cidrs: list[list[str]], rules: list[RoutingRule], routes: list[Route]
) -> None:
    """The other way round: what stays is an output of a table that some rule looks up."""
    links = links_of(cidrs)
    facts = NodeFacts(links=links, rules=tuple(rules), policy_routes=tuple(routes))
    tables = {rule.table for rule in rules}
    outputs = {index for r in routes if r.table in tables for index in (r.ifindex, *r.next_hops)}
    offered = {d.device.ifname for d in take_inventory(facts, {}) if d.published}
    assert offered >= {link.ifname for link in links if link.ifindex not in outputs}


def test_a_default_route_without_an_output_keeps_every_card_that_may_carry_it() -> None:
    links = (*links_of([[], [], []]), Link(4, "x4"), Link(5, "dummy0", kind="dummy", flags=UP, virtual=True))
    facts = NodeFacts(links=links, default_routes=(Route("0.0.0.0/0"),))
    decisions = {d.device.ifname: d for d in take_inventory(facts, {})}
    assert {name for name, decision in decisions.items() if decision.published} == {"x4", "dummy0"}
    why = "is the node's uplink: x1 may carry a default route, whose output the kernel does not report"
    assert decisions["x1"].reason == why

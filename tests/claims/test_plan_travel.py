"""What the host has for a link travels with it: policy routing, permanent neighbours, lasting addresses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import IFA_F_NODAD, Address, Neighbour, Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    AttachPlan,
    LinkState,
    Step,
)

NIC = Device("pci-0000-1a-00-0", DeviceKind.NIC, ifname="eth1")
MANAGED = 0x100
"""``IFA_F_MANAGETEMPADDR``."""
SLAAC = Address("2001:db8:9::ff:fe00:1/64", flags=MANAGED, valid_seconds=600, preferred_seconds=300)
"""Of the hardware address of ``HOST``."""

GATEWAY_4 = Route("0.0.0.0/0", gateway="10.9.0.1", table=100, protocol=4)
GATEWAY_6 = Route("::/0", gateway="fd09::1", table=100, protocol=4, metric=1024)
HOST = LinkState(
    5,
    "eth1",
    "02:00:00:00:00:01",
    1500,
    up=True,
    addresses=(Address("10.9.0.5/16"), Address("fd09::5/64")),
    routes=(Route("10.8.0.0/16", gateway="10.9.0.1", protocol=4), GATEWAY_4, GATEWAY_6),
    neighbours=(
        Neighbour("10.9.0.9", "02:00:00:00:00:09"),
        Neighbour("fd09::9", "02:00:00:00:00:09"),
        Neighbour("10.9.0.77", "", proxy=True),
    ),
)
FROM_4 = AddRule(4, table=100, priority=500, source="10.9.0.5/32")
FROM_6 = AddRule(6, table=100, priority=500, source="fd09::5/128")
KERNEL_RULES = (
    AddRule(4, table=255),
    AddRule(4, table=254, priority=32766),
    AddRule(4, table=253, priority=32767),
    AddRule(6, table=255),
    AddRule(6, table=254, priority=32766),
)
RULES = (*KERNEL_RULES, FROM_4, FROM_6)


def plan(host: LinkState = HOST, host_rules: tuple[AddRule, ...] = RULES, **fields: Any) -> AttachPlan:
    config = NetworkConfig.model_validate(fields)
    return plan_device(NIC, host, config, rdma_exclusive=False, host_rules=host_rules)


def routes(made: AttachPlan) -> list[Route]:
    return [step.route for step in made.steps if isinstance(step, AddRoute)]


def of(kind: type[Step], made: AttachPlan) -> list[Step]:
    return [step for step in made.steps if isinstance(step, kind)]


# --- policy routing -------------------------------------------------------------------------------------


def test_the_gateway_of_a_table_and_the_rules_that_look_it_up_come_along_in_both_families() -> None:
    made = plan()
    assert GATEWAY_4 in routes(made)
    assert GATEWAY_6 in routes(made)
    assert of(AddRule, made) == [FROM_4, FROM_6]


def test_so_they_do_with_addresses_in_the_claim_but_routes_of_the_main_table_stay() -> None:
    made = plan(interface={"addresses": ["10.9.0.77/16", "fd09::77/64"]})
    assert routes(made) == [GATEWAY_4, GATEWAY_6]
    assert of(AddRule, made) == [FROM_4, FROM_6]


def test_an_address_of_the_claim_is_enough_to_reach_a_gateway_that_the_host_does_not() -> None:
    """The manifest of DraNet's end-to-end test."""
    route = Route("10.10.10.0/24", gateway="169.254.169.1", table=100, protocol=3)
    rule = AddRule(4, table=100, priority=500, source="10.20.30.0/24")
    host = replace(HOST, addresses=(), routes=(route,))
    made = plan(host, (rule,), interface={"addresses": ["169.254.169.13/24"]})
    assert (routes(made), of(AddRule, made)) == ([route], [rule])


def test_what_the_pod_could_not_use_with_the_claims_addresses_is_no_obstacle() -> None:
    host = replace(
        HOST,
        routes=(GATEWAY_4, GATEWAY_6, Route("10.7.0.0/16", scope=253, table=100, source="10.9.0.5")),
    )
    made = plan(host, interface={"addresses": ["192.168.7.5/24"]})
    assert routes(made) == [Route("10.7.0.0/16", scope=253, table=100)]
    assert plan(host, interface={"addresses": []}).steps == (
        plan(replace(HOST, routes=()), interface={"addresses": []}).steps
    )


def test_a_source_that_is_still_checked_for_duplicates_is_left_out() -> None:
    host = replace(HOST, routes=(replace(GATEWAY_6, source="fd09::77"),))
    checked = {"addresses": ["fd09::77/64"], "ipv6": {"duplicateAddressDetection": True}}
    assert routes(plan(host, interface=checked)) == [GATEWAY_6]
    assert routes(plan(host, interface={"addresses": ["fd09::77/64"]})) == list(host.routes)


def test_routes_of_another_table_come_along_whichever_program_made_them() -> None:
    """systemd-networkd puts router advertisements into ``RouteTable=``, scripts copy connected routes."""
    copied = Route("10.9.0.0/16", scope=253, table=100, protocol=2, source="10.9.0.5")
    advertised = Route("::/0", gateway="fe80::1", table=100, protocol=9, metric=512)
    assert routes(plan(replace(HOST, routes=(copied, advertised)))) == [copied, advertised]


@pytest.mark.parametrize(
    ("rule", "travels"),
    [
        (AddRule(4, table=100, priority=7, destination="10.8.0.0/16"), True),
        (AddRule(4, table=100, priority=7, source="10.20.30.0/24"), True),
        (AddRule(4, table=254, priority=7, source="10.9.0.5/32"), True),
        (AddRule(4, table=254, priority=7, source="10.9.0.0/16"), False),
        (AddRule(4, table=200, priority=7, source="10.20.30.0/24"), False),
        (AddRule(4, table=100, priority=7, source="10.9.0.5/32", mark=1, mask=255), False),
        (AddRule(4, table=100, priority=7, source="10.9.0.5/32", input_interface="eth0"), False),
        (AddRule(4, table=100, priority=7, source="10.9.0.5/32", input_interface="lo"), True),
        (AddRule(4, table=100, priority=7), False),
    ],
    ids=["to", "from", "own-address", "own-subnet", "other-table", "mark", "other-link", "sent-here", "all"],
)
def test_which_rules_of_the_host_come_along(rule: AddRule, travels: bool) -> None:
    assert of(AddRule, plan(host_rules=(*KERNEL_RULES, rule))) == [rule] * travels


def test_a_rule_for_every_packet_comes_along_where_its_table_has_no_default_route() -> None:
    host = replace(HOST, routes=(Route("10.8.0.0/16", gateway="10.9.0.1", table=100),))
    rule = AddRule(4, table=100, priority=7)
    assert of(AddRule, plan(host, (rule,))) == [rule]


def test_a_rule_about_the_link_gets_its_name_in_the_pod() -> None:
    rules = (
        AddRule(4, table=254, priority=7, input_interface="eth1"),
        AddRule(6, table=9, priority=8, output_interface="eth1"),
    )
    assert of(AddRule, plan(host_rules=rules, interface={"name": "net1"})) == [
        AddRule(4, table=254, priority=7, input_interface="net1"),
        AddRule(6, table=9, priority=8, output_interface="net1"),
    ]


def test_a_rule_of_the_claim_and_of_the_host_is_one() -> None:
    made = plan(
        interface={"addresses": ["10.9.0.5/16"]},
        rules=[{"source": "10.9.0.5/32", "table": 100, "priority": 500}],
    )
    assert of(AddRule, made) == [FROM_4]


def test_with_a_vrf_neither_rules_nor_default_routes_come_along() -> None:
    made = plan(interface={"vrf": {"name": "blue", "table": 1100}})
    assert routes(made) == [Route("10.8.0.0/16", gateway="10.9.0.1", protocol=4, table=1100)]
    assert of(AddRule, made) == []


def test_without_ipv6_only_the_rest_comes_along() -> None:
    made = plan(interface={"ipv6": {"enabled": False}})
    assert GATEWAY_6 not in routes(made)
    assert of(AddRule, made) == [FROM_4]
    assert of(AddNeighbour, made) == [AddNeighbour(HOST.neighbours[0])]


@pytest.mark.parametrize("own", [{}, {"addresses": ["10.9.0.77/16", "fd09::77/64"]}], ids=["host", "own"])
def test_one_field_leaves_routes_rules_and_neighbours_on_the_host(own: dict[str, Any]) -> None:
    made = plan(interface={**own, "inheritRouting": False})
    assert (routes(made), of(AddRule, made), of(AddNeighbour, made)) == ([], [], [])
    assert len(of(AddAddress, made)) == 2
    assert plan(interface={**own, "inheritRouting": True}) == plan(interface=own)


def test_a_link_on_top_of_the_device_gets_nothing() -> None:
    made = plan(interface={"type": "macvlan"})
    assert (routes(made), of(AddRule, made), of(AddNeighbour, made)) == ([], [], [])


# --- neighbours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [{}, {"addresses": ["10.9.0.77/16"]}], ids=["host", "own"])
def test_permanent_neighbours_come_along_but_not_what_the_host_answers_for(own: dict[str, Any]) -> None:
    assert of(AddNeighbour, plan(interface=own)) == list(map(AddNeighbour, HOST.neighbours[:2]))


def test_a_neighbour_of_the_claim_replaces_the_hosts() -> None:
    made = plan(neighbors=[{"destination": "10.9.0.9", "hardwareAddr": "02:00:00:00:00:aa"}])
    assert of(AddNeighbour, made) == [
        AddNeighbour(Neighbour("10.9.0.9", "02:00:00:00:00:aa")),
        AddNeighbour(HOST.neighbours[1]),
    ]


# --- lifetimes ------------------------------------------------------------------------------------------


def lifetime(address: Address, **interface: Any) -> int | None:
    (step,) = of(AddAddress, plan(replace(HOST, addresses=(address,), routes=()), (), interface=interface))
    assert isinstance(step, AddAddress)
    assert step.address.flags & IFA_F_NODAD
    return step.address.valid_seconds


def test_an_address_that_the_pods_kernel_renews_itself_keeps_its_lifetime() -> None:
    assert lifetime(SLAAC) == 600


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        (replace(SLAAC, flags=0), {}),
        (replace(SLAAC, cidr="2001:db8:9::1234/64"), {}),
        (replace(SLAAC, cidr="2001:db8:9::ff:fe00:1/80"), {}),
        (SLAAC, {"hardwareAddr": "02:00:00:00:00:77"}),
        (SLAAC, {"ipv6": {"acceptRA": 0}}),
        (SLAAC, {"ipv6": {"token": "::5"}}),
    ],
    ids=["by-a-program", "other-identifier", "other-prefix", "other-mac", "deaf", "token"],
)
def test_any_other_ipv6_address_is_permanent(address: Address, interface: dict[str, Any]) -> None:
    assert lifetime(address, **interface) is None

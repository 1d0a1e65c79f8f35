"""What a DHCP server gave, in the plan."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.claims.plan.link import make_mac
from dranet.claims.plan.routing import DHCP_METRIC
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import (
    AddAddress,
    AddRoute,
    AttachPlan,
    CreateLink,
    DhcpLease,
    JoinVrf,
    LinkState,
    MoveLink,
)

NIC = Device("nic", DeviceKind.NIC, ifname="eth1")
HOST = LinkState(
    5,
    "eth1",
    "02:00:00:00:00:01",
    1500,
    up=True,
    addresses=(Address("10.0.0.5/24"), Address("fd00::5/64")),
    routes=(Route("10.9.0.0/16", gateway="10.0.0.1"),),
)
LEASE = DhcpLease(
    address="172.16.4.9/20",
    server="172.16.0.2",
    server_mac="02:00:00:00:00:aa",
    client_mac="02:00:00:00:00:01",
    obtained_at=1.7e9,
    lease_seconds=3600,
    renew_seconds=1800,
    rebind_seconds=3150,
    routers=("172.16.0.1", "172.16.0.3"),
)


def plan(lease: DhcpLease = LEASE, interface: dict[str, Any] | None = None, **fields: Any) -> AttachPlan:
    config = NetworkConfig.model_validate({"interface": {"dhcp": True, **(interface or {})}, **fields})
    return plan_device(NIC, HOST, config, rdma_exclusive=False, lease=lease, mac_seed="uid/nic")


def routes(made: AttachPlan) -> list[Route]:
    return [step.route for step in made.steps if isinstance(step, AddRoute)]


def leased_route(destination: str, gateway: str = "", **fields: Any) -> Route:
    return Route(destination, gateway=gateway, protocol=16, metric=DHCP_METRIC, **fields)


def test_the_address_is_valid_as_long_as_the_lease() -> None:
    made = plan()

    assert [step.address for step in made.steps if isinstance(step, AddAddress)] == [
        Address("172.16.4.9/20", valid_seconds=3600, preferred_seconds=3600)
    ]
    assert made.lease == LEASE


def test_a_lease_for_ever() -> None:
    made = plan(replace(LEASE, lease_seconds=0xFFFFFFFF))
    assert AddAddress(Address("172.16.4.9/20")) in made.steps


def test_the_first_router_gives_a_default_route_behind_that_of_the_pod_network() -> None:
    assert routes(plan()) == [leased_route("0.0.0.0/0", "172.16.0.1")]


def test_with_classless_routes_the_routers_do_not_count() -> None:
    pairs = (("10.8.0.0/16", "172.16.0.7"), ("10.9.0.0/16", "0.0.0.0"), ("0.0.0.0/0", "10.9.9.9"))
    made = plan(replace(LEASE, classless_routes=(*pairs, ("10.8.0.0/16", "172.16.0.8"))))

    assert routes(made) == [
        leased_route("10.9.0.0/16", scope=253),
        leased_route("10.8.0.0/16", "172.16.0.7"),
        leased_route("0.0.0.0/0", "10.9.9.9"),
    ]


def test_a_router_outside_the_subnet_is_taken_to_be_on_the_link() -> None:
    made = plan(replace(LEASE, address="172.16.4.9/32"))
    assert routes(made) == [leased_route("0.0.0.0/0", "172.16.0.1", flags=4)]


def test_the_claims_route_replaces_the_servers() -> None:
    made = plan(routes=[{"destination": "0.0.0.0/0", "gateway": "172.16.0.3", "metric": 5}])
    assert [(route.gateway, route.metric) for route in routes(made)] == [("172.16.0.3", 5)]


def test_in_a_vrf_the_servers_routes_are_in_its_table() -> None:
    made = plan(interface={"vrf": {"name": "blue", "table": 77}})

    assert JoinVrf("blue", 77) in made.steps
    assert [route.table for route in routes(made)] == [77]


@pytest.mark.parametrize(
    ("offered", "asked", "expected"),
    [
        (1400, None, 1400),
        (1280, None, 1280),
        (1279, None, None),
        (68, None, None),
        (9000, None, None),
        (None, None, None),
        (1400, 1450, 1450),
    ],
)
def test_a_servers_mtu_counts_where_it_is_sane_and_the_claim_has_none(
    offered: int | None, asked: int | None, expected: int | None
) -> None:
    made = plan(replace(LEASE, mtu=offered), interface={} if asked is None else {"mtu": asked})
    step = made.steps[0]
    assert isinstance(step, MoveLink)
    assert step.mtu == expected


def test_a_macvlan_has_the_address_that_the_server_knows() -> None:
    step = plan(interface={"type": "macvlan"}).steps[0]
    assert isinstance(step, CreateLink)
    assert step.mac == make_mac("uid/nic")

    own = plan(interface={"type": "macvlan", "hardwareAddr": "02:00:00:00:00:09"}).steps[0]
    assert isinstance(own, CreateLink)
    assert own.mac == "02:00:00:00:00:09"


def test_without_a_lease_there_is_no_plan() -> None:
    config = NetworkConfig.model_validate({"interface": {"dhcp": True}})
    with pytest.raises(ValueError, match="no lease"):
        plan_device(NIC, HOST, config, rdma_exclusive=False)

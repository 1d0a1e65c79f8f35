"""Pools of addresses: no two nodes or devices get one address, whatever the pool; bad pools are refused."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dranet.driver.pools import take_addresses
from dranet.errors import ClaimError
from dranet.model.address_pool import AddressPool
from dranet.model.attributes import SRIOV_VF_INDEX
from dranet.model.device import Device, DeviceKind
from dranet.model.ipam import IpamProblem, IpamRoute, PoolNode, parse_entry
from dranet.model.plan import AttachPlan

RAIL = "dra.net/rail"
BASE = {"rails": 8, "subnets": ["10.{rail}.0.0/16"], "nodes": {"pattern": r"gpu-node-(\d+)"}}


def pool(**fields: Any) -> AddressPool:
    found = parse_entry("compute", {"pool": {**BASE, **fields}})
    assert isinstance(found, AddressPool)
    return found


def nic(rail: object, name: str = "nic", **fields: Any) -> Device:
    attributes = {RAIL: rail, **fields.pop("attributes", {})}
    return Device(name, DeviceKind.NIC, attributes, **fields)


def addresses(found: AddressPool, node: str, *devices: Device, is_share: bool = False) -> list[list[str]]:
    wanted = [(str(i), device, is_share, "compute") for i, device in enumerate(devices)]
    answers = take_addresses({"compute": found}, PoolNode(node), wanted, [])
    return [list(answers[str(i)].addresses) for i, _ in enumerate(devices)]


def test_eight_rails_of_500_nodes_are_4000_different_addresses() -> None:
    found = pool(nodes={"names": ["gpu-node-[001-500]"]}, gateway="last")
    seen: set[str] = set()
    for number in range(1, 501):
        given_ = addresses(found, f"gpu-node-{number:03}", *(nic(rail, f"nic{rail}") for rail in range(8)))
        for rail, (address,) in enumerate(given_):
            assert ip_interface(address).network == ip_network(f"10.{rail}.0.0/16")
            seen.add(address)
    assert len(seen) == 4000


def test_the_number_is_that_of_the_name_of_the_list_or_of_the_nodes_address() -> None:
    assert addresses(pool(), "gpu-node-17", nic(3)) == [["10.3.0.17/16"]]
    named = pool(nodes={"names": ["a", "b-[08-10]", "c"]})
    assert addresses(named, "b-09", nic(0)) == [["10.0.0.3/16"]]
    found = pool(nodes={"addressIn": "192.168.4.0/22"})
    node = PoolNode("any", ("10.9.9.9", "192.168.5.7", "fd00::1"))
    answers = take_addresses({"p": found}, node, [("k", nic(1), False, "p")], [])
    assert answers["k"].addresses == ("10.1.1.7/16",)


@pytest.mark.parametrize(
    ("subnets", "expected"),
    [
        ([{"from": "10.64.0.0/13", "prefixLength": 16}], ["10.67.0.5/16"]),
        (["10.{rail}.0.0/16", "fd00:{rail}::/64"], ["10.3.0.5/16", "fd00:3::5/64"]),
        ([{"from": "fd00::/48", "prefixLength": 64}], ["fd00:0:0:3::5/64"]),
    ],
)
def test_a_rail_has_its_subnet_of_each_version(subnets: Any, expected: list[str]) -> None:
    assert addresses(pool(subnets=subnets), "gpu-node-5", nic(3)) == [expected]


def test_rails_are_chosen_by_attribute_expression_or_pci_address() -> None:
    of_attribute = pool(rails={"count": 2, "first": 7, "attribute": "example.com/plane"})
    plane = nic(None, attributes={"example.com/plane": 8})
    assert addresses(of_attribute, "gpu-node-1", plane) == [["10.8.0.1/16"]]
    by_cel = pool(
        rails=[
            {"match": 'device.attributes["dra.net"].ifName == "r0"', "subnets": "172.16.0.0/24"},
            {"match": 'device.attributes["dra.net"].ifName == "r1"'},
        ]
    )
    second = Device("n", DeviceKind.NIC, {"dra.net/ifName": "r1"})
    first = Device("m", DeviceKind.NIC, {"dra.net/ifName": "r0"})
    assert addresses(by_cel, "gpu-node-9", first, second) == [["172.16.0.9/24"], ["10.1.0.9/16"]]
    by_pci = pool(rails=["0000:1a:00.0", "0000:2a:00.0"], addressesPerNode=4)
    function = Device(
        "vf",
        DeviceKind.NIC,
        {SRIOV_VF_INDEX.qualified: 2},
        pci_address="0000:2a:01.0",
        physical_function="0000:2a:00.0",
    )
    whole = Device("pf", DeviceKind.NIC, pci_address="0000:2a:00.0")
    assert addresses(by_pci, "gpu-node-10", whole, function) == [["10.1.0.40/16"], ["10.1.0.43/16"]]


@pytest.mark.parametrize(("gateway", "own", "other"), [("first", 35, 34), ("last", 34, 35)])
def test_a_point_to_point_rail_has_two_addresses_for_each_node(gateway: str, own: int, other: int) -> None:
    found = pool(pointToPoint=True, gateway=gateway, subnets=["10.{rail}.0.0/16", "fd00:{rail}::/64"])
    answer = found.build_answer("p", found.rails[2], 17, 0)
    assert answer.addresses == (f"10.2.0.{own}/31", f"fd00:2::{own:x}/127")
    assert answer.gateways == (f"10.2.0.{other}", f"fd00:2::{other:x}")


def test_routes_lead_to_the_other_rails_with_a_metric_of_their_own() -> None:
    found = pool(rails=3, gateway="10.{rail}.255.1", routes=["rails", "0.0.0.0/0"])
    answer = found.build_answer("p", found.rails[1], 17, 0)
    assert [(r.destination, r.gateway, r.metric) for r in answer.routes] == [
        ("10.0.0.0/16", "10.1.255.1", 1025),
        ("10.2.0.0/16", "10.1.255.1", 1025),
        ("0.0.0.0/0", "10.1.255.1", 1025),
    ]
    assert isinstance(answer.routes[0], IpamRoute)


def test_a_point_to_point_node_has_a_route_to_the_peers_of_its_own_rail() -> None:
    found = pool(rails=2, pointToPoint=True, gateway="first", routes=["rails"])
    answer = found.build_answer("p", found.rails[1], 17, 0)
    assert [(r.destination, r.gateway) for r in answer.routes] == [
        ("10.0.0.0/16", "10.1.0.34"),
        ("10.1.0.0/16", "10.1.0.34"),
    ]


def test_shares_of_a_device_get_the_first_free_slot_and_the_last_one_is_refused() -> None:
    found = pool(addressesPerNode=2)
    parent = nic(0)

    def take(held: list[AttachPlan]) -> AttachPlan:
        answers = take_addresses({"p": found}, PoolNode("gpu-node-3"), [("k", parent, True, "p")], held)
        return AttachPlan("nic", ipam=answers["k"])

    one = take([])
    two = take([one])
    assert one.ipam
    assert two.ipam
    assert (one.ipam.addresses, two.ipam.addresses) == (("10.0.0.6/16",), ("10.0.0.7/16",))
    assert take([two]) == one
    with pytest.raises(ClaimError, match=r"no free address for one more share.*addressesPerNode is 2"):
        take([one, two])


def test_two_devices_of_a_node_in_one_rail_are_refused() -> None:
    with pytest.raises(ClaimError, match=r"10\.0\.0\.3 is already that of device a on this node"):
        addresses(pool(), "gpu-node-3", nic(0, "a"), nic(0, "b"))


@pytest.mark.parametrize(
    ("fields", "node", "device", "expected"),
    [
        ({}, "web-1", nic(0), "node web-1 does not match nodes.pattern"),
        ({}, "gpu-node-1", nic(8), "has to be of one rail, and is of none: dra.net/rail is 8"),
        ({}, "gpu-node-1", Device("x", DeviceKind.NIC), "it has no dra.net/rail"),
        ({}, "gpu-node-0", nic(0), "gets 10.0.0.0, which no host of 10.0.0.0/16 may have; set offset"),
        ({}, "gpu-node-65535", nic(0), "gets 10.0.255.255, which no host"),
        ({}, "gpu-node-65536", nic(0), "needs host 65536 of 10.0.0.0/16"),
        ({"gateway": "first"}, "gpu-node-1", nic(0), "gets 10.0.0.1, which is the gateway"),
        ({"pointToPoint": True}, "gpu-node-32768", nic(0), "needs pair 32768 of 10.0.0.0/16"),
        ({"nodes": {"pattern": r"n-(\d+)", "max": 9}}, "n-10", nic(0), "nodes.max is 9"),
        ({"nodes": {"pattern": "n-(.*)"}}, "n-x", nic(0), "is 'x', not a number"),
        ({"nodes": {"names": ["a"]}}, "b", nic(0), "node b is not among nodes.names"),
        ({"nodes": {"addressIn": "10.9.0.0/24"}}, "b", nic(0), "has 0 addresses within nodes.addressIn"),
        (
            {},
            "gpu-node-1",
            nic(0, attributes={SRIOV_VF_INDEX.qualified: 3}),
            "has slot 4, and addressesPerNode is 1",
        ),
    ],
)
def test_what_a_node_shows_to_be_wrong_is_refused_with_the_cause(
    fields: dict[str, Any], node: str, device: Device, expected: str
) -> None:
    with pytest.raises(ClaimError) as caught:
        addresses(pool(**fields), node, device)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"subnets": ["10.0.0.0/16"]}, "subnets: rail 0 has 10.0.0.0/16 and rail 1 has 10.0.0.0/16"),
        ({"subnets": []}, "subnets: rail 0 needs one subnet"),
        ({"subnets": ["10.{rail}.0.0/16", "11.{rail}.0.0/16"]}, "it has 2"),
        ({"subnets": ["10.{rail}.0.1/16"]}, "must be a subnet such as 10.0.0.0/16"),
        ({"subnets": ["300.{rail}.0.0/16"]}, "must be a subnet"),
        ({"subnets": ["fe80:{rail}::/64"]}, "is not for addresses of NICs"),
        ({"subnets": [{"from": "10.0.0.0/14", "prefixLength": 16}]}, "has no 5 subnets of /16"),
        ({"rails": 0}, "rails.count: must be a number from 1 to 256"),
        ({"rails": True}, "rails.count: must be a number"),
        ({"rails": [{"match": "device."}]}, "rails.0.match"),
        ({"rails": ["1a:00.0"]}, "must be a PCI address such as"),
        ({"rails": ["0000:1a:00.0", "0000:1a:00.0"]}, "is rail 0 and 1"),
        ({"rails": [{}]}, "must have match (CEL) or pciAddress"),
        ({"nodes": {}}, "nodes: must have one of pattern, addressIn and names"),
        ({"nodes": {"pattern": "gpu"}}, "must have one group"),
        ({"nodes": {"pattern": "("}}, "must be a regular expression"),
        ({"nodes": {"names": ["a", "a"]}}, "nodes.names: has a twice"),
        ({"nodes": {"names": ["a-[5-1]"]}}, "must count upwards"),
        ({"nodes": {"names": ["n-[1-70000]"]}}, "has more than 65536 names"),
        (
            {"nodes": {"names": ["n-[1-300]"]}, "subnets": ["10.0.{rail}.0/24"]},
            "nodes: rail 0: node number 300 needs host 300 of 10.0.0.0/24",
        ),
        ({"nodes": {"addressIn": "10.0.0.0/8"}}, "which has 65536 addresses"),
        (
            {"nodes": {"names": ["a"]}, "gateway": "first"},
            "node number 1 gets 10.0.0.1, which is the gateway",
        ),
        (
            {"nodes": {"names": ["n-[1-9]"]}, "gateway": "10.{rail}.0.5"},
            "node number 5 gets 10.0.0.5, which is the gateway",
        ),
        ({"gateway": "192.0.2.1"}, "gateway: rail 0: must be one address inside 10.0.0.0/16"),
        ({"gateway": "middle"}, "gateway: must be first, last, or an address"),
        ({"gateway": "first", "subnets": ["10.0.0.{rail}/32"]}, "has no room for a gateway"),
        ({"routes": ["rails"]}, "gateway: is required for routes"),
        ({"routes": ["x"], "gateway": "first"}, "routes: must be rails or a destination"),
        ({"pointToPoint": True, "gateway": "10.0.0.1"}, "must be first or last with pointToPoint"),
        ({"pointToPoint": True, "addressesPerNode": 2}, "addressesPerNode: must be absent"),
        ({"addressesPerNode": 0}, "must be a number from 1"),
        ({"offset": -1}, "offset: must be a number from 0"),
        ({"gatewya": "first"}, "gatewya: unknown key"),
    ],
)
def test_a_bad_pool_is_refused_when_it_is_read(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(IpamProblem) as caught:
        pool(**fields)
    assert expected in f"{'.'.join(caught.value.path[1:])}: {caught.value}"


POOLS = st.fixed_dictionaries(
    {
        "rails": st.integers(1, 4),
        "subnets": st.sampled_from(
            [
                ["10.{rail}.0.0/16"],
                ["10.0.{rail}.0/24", "fd00:{rail}::/64"],
                [{"from": "10.0.0.0/16", "prefixLength": 28}],
                [{"from": "fd00::/56", "prefixLength": 120}],
            ]
        ),
        "nodes": st.one_of(
            st.just({"pattern": r"n(\d+)"}),
            st.integers(1, 40).map(lambda n: {"names": [f"n[0-{n}]"]}),
        ),
        "offset": st.integers(0, 300),
    },
    optional={
        "addressesPerNode": st.integers(1, 9),
        "pointToPoint": st.booleans(),
        "gateway": st.sampled_from(["first", "last"]),
    },
)


@given(POOLS, st.sets(st.integers(0, 300), min_size=1, max_size=8))
def test_no_two_nodes_devices_or_slots_have_one_address(fields: dict[str, Any], nodes: set[int]) -> None:
    try:
        found = pool(**fields)
    except IpamProblem:
        assume(False)
        raise
    seen: dict[str, object] = {}
    for node in nodes:
        with suppress(ValueError):
            number = found.nodes.find(PoolNode(f"n{node}"))
            for rail in found.rails:
                for slot in range(found.addresses_per_node):
                    with suppress(ClaimError):
                        answer = found.build_answer("p", rail, number, slot)
                        taken = [*answer.addresses, *(answer.gateways if found.point_to_point else ())]
                        for address in filter(None, taken):
                            owner = (node, rail.number, slot)
                            ip = address.partition("/")[0]
                            assert seen.setdefault(ip, owner) == owner
                        for cidr, subnet in zip(answer.addresses, rail.subnets, strict=True):
                            assert ip_interface(cidr).ip in subnet


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["first", "10.0.0.0/8", "10.{rail}.0.0/16", "fd00::/64", r"n(\d+)", "n[1-3]"])
    | st.integers(1, 9).map(lambda digit: f"n[{digit}-{str(digit) * 5000}]"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["match", "from", "prefixLength", "count", "pattern", "names", "addressIn", "max"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["rails", "subnets", "nodes", "gateway", "routes", "offset", "pointToPoint"]), JSON
    )
)
def test_any_value_is_a_pool_or_a_problem(value: Any) -> None:
    with suppress(IpamProblem):
        parse_entry("a", {"pool": value})
    with suppress(IpamProblem):
        pool(**value)

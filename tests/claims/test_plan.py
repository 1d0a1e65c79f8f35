"""A plan moves the link, then gives it addresses and routes, in an order the kernel accepts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import IFA_F_NODAD, Address, Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, LinkState, MoveLink, MoveRdma, SetUp
from dranet.store.record_folder import decode_record, encode_record

NIC = Device("pci-0000-1a-00-0", DeviceKind.NIC, ifname="eth1", rdma_device="mlx5_0")
RDMA = Device("pci-0000-2a-00-0", DeviceKind.RDMA, rdma_device="mlx5_1")
GPU = Device("gpu-0000-3a-00-0", DeviceKind.GPU)
HOST = LinkState(5, "eth1", "02:00:00:00:00:01", 1500, up=True)


def config(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate(fields)


def plan(
    host: LinkState = HOST, device: Device = NIC, rdma_exclusive: bool = False, **fields: Any
) -> AttachPlan:
    return plan_device(device, host, config(**fields), rdma_exclusive=rdma_exclusive)


def addresses(made: AttachPlan) -> list[Address]:
    return [step.address for step in made.steps if isinstance(step, AddAddress)]


def routes(made: AttachPlan) -> list[Route]:
    return [step.route for step in made.steps if isinstance(step, AddRoute)]


def test_without_config_the_link_moves_as_it_is() -> None:
    made = plan()

    assert made.steps == (MoveLink("eth1"), SetUp())
    assert (made.device, made.pod_ifname, made.host) == (NIC.name, "eth1", HOST)


def test_name_mtu_and_mac_travel_with_the_move() -> None:
    made = plan(interface={"name": "net0", "mtu": 9000, "hardwareAddr": "02:00:00:00:00:09"})

    assert made.steps[0] == MoveLink("net0", mtu=9000, mac="02:00:00:00:00:09")
    assert made.pod_ifname == "net0"


def test_an_empty_name_keeps_the_hosts() -> None:
    assert plan(interface={"name": ""}).pod_ifname == "eth1"


def test_configured_addresses_replace_the_hosts_and_its_routes() -> None:
    host = replace(
        HOST, addresses=(Address("10.0.0.5/24"),), routes=(Route("10.9.0.0/16", gateway="10.0.0.1"),)
    )
    made = plan(host, interface={"addresses": ["10.1.0.5/24"]})

    assert [a.cidr for a in addresses(made)] == ["10.1.0.5/24"]
    assert routes(made) == []


def test_an_empty_list_of_addresses_leaves_the_link_bare() -> None:
    assert plan(replace(HOST, addresses=(Address("10.0.0.5/24"),)), interface={"addresses": []}).steps == (
        MoveLink("eth1"),
        SetUp(),
    )


def test_global_addresses_are_inherited_for_ever_and_without_host_state() -> None:
    """Who renewed them on the host cannot do so in the pod."""
    host = replace(
        HOST,
        addresses=(
            Address("10.0.0.5/24", label="eth1", flags=0x80, broadcast="10.0.0.255"),
            Address("10.0.0.6/24", flags=0x81),
            Address("10.0.0.7/24", valid_seconds=3600, preferred_seconds=1800),
            Address("fe80::1/64", scope=253),
            Address("fd00::5/64", flags=0x80 | 0x200, valid_seconds=60, preferred_seconds=30),
            Address("fd00::6/64", flags=0x01),
            Address("fd00::7/64", flags=0x08),
        ),
    )

    assert addresses(plan(host)) == [
        Address("10.0.0.5/24", broadcast="10.0.0.255"),
        Address("10.0.0.6/24"),
        Address("10.0.0.7/24"),
        Address("fd00::5/64", flags=0x200 | IFA_F_NODAD),
    ]


def test_routes_are_inherited_with_their_metric_but_not_what_others_make() -> None:
    host = replace(
        HOST,
        addresses=(Address("10.0.0.5/24"),),
        routes=(
            Route(
                "10.9.0.0/16",
                gateway="10.0.0.1",
                ifindex=5,
                metric=77,
                protocol=3,
                source="10.0.0.5",
                flags=0x14,
            ),
            Route("10.8.0.0/16", scope=253, protocol=4, ifindex=5, source="192.168.0.1"),
            Route("0.0.0.0/0", gateway="10.0.0.1", protocol=16),
            Route("::/0", gateway="fe80::1", protocol=9),
            Route("10.0.0.0/24", protocol=2, scope=253),
            Route("fd00:1::/64", protocol=9),
            Route("10.7.0.0/16", next_hops=(5, 6)),
            Route("10.6.0.0/16", type=7),
        ),
    )

    assert routes(plan(host)) == [
        Route("10.8.0.0/16", scope=253, protocol=4),
        Route("10.9.0.0/16", gateway="10.0.0.1", metric=77, protocol=3, source="10.0.0.5", flags=4),
    ]


def test_a_configured_route_replaces_the_inherited_one_to_the_same_place() -> None:
    host = replace(
        HOST,
        addresses=(Address("10.0.0.5/24"),),
        routes=(Route("10.9.0.0/16", gateway="10.0.0.1"), Route("10.8.0.0/16", gateway="10.0.0.1")),
    )
    made = plan(host, routes=[{"destination": "10.9.0.0/16", "gateway": "10.0.0.2"}])

    assert [(r.destination, r.gateway) for r in routes(made)] == [
        ("10.9.0.0/16", "10.0.0.2"),
        ("10.8.0.0/16", "10.0.0.1"),
    ]


def test_on_link_routes_come_before_those_through_a_gateway() -> None:
    made = plan(
        interface={"addresses": ["10.0.0.5/32"]},
        routes=[
            {"destination": "0.0.0.0/0", "gateway": "10.0.0.1", "table": 100},
            {"destination": "10.0.0.1/32", "scope": 253, "table": 0},
        ],
    )

    assert [(r.destination, r.scope, r.table, r.protocol) for r in routes(made)] == [
        ("10.0.0.1/32", 253, 254, 4),
        ("0.0.0.0/0", 0, 100, 4),
    ]
    kinds = [type(step) for step in made.steps]
    assert kinds == [MoveLink, AddAddress, SetUp, AddRoute, AddRoute]


def test_configured_ipv6_addresses_skip_duplicate_detection() -> None:
    made = plan(interface={"addresses": ["fd00::5/64", "10.0.0.5/24"]})

    assert [a.flags for a in addresses(made)] == [IFA_F_NODAD, 0]


def test_the_rdma_device_moves_last_and_in_exclusive_mode_only() -> None:
    assert not any(isinstance(step, MoveRdma) for step in plan().steps)
    assert plan(rdma_exclusive=True).steps[-1] == MoveRdma("mlx5_0")
    assert plan_device(RDMA, None, config(), rdma_exclusive=True).steps == (MoveRdma("mlx5_1"),)
    assert plan_device(RDMA, None, config(), rdma_exclusive=False).steps == ()


@pytest.mark.parametrize("device", [RDMA, GPU], ids=lambda device: device.kind)
@pytest.mark.parametrize(
    "fields",
    [
        {"interface": {"mtu": 9000}},
        {"interface": {"addresses": []}},
        {"routes": [{"destination": "10.0.0.0/8", "scope": 253}]},
    ],
)
def test_a_device_without_interface_cannot_be_configured(device: Device, fields: dict[str, Any]) -> None:
    with pytest.raises(ClaimError) as caught:
        plan_device(device, None, config(**fields), rdma_exclusive=False)
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    assert device.name in caught.value.message


def test_nothing_moves_for_a_gpu() -> None:
    assert plan_device(GPU, None, config(), rdma_exclusive=True) == AttachPlan(GPU.name)


def test_a_nic_without_link_on_the_host_is_not_there() -> None:
    with pytest.raises(DeviceError) as caught:
        plan_device(NIC, None, config(), rdma_exclusive=False)
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND


def test_a_mac_of_another_link_layer_is_refused() -> None:
    with pytest.raises(ClaimError, match=r"interface\.hardwareAddr"):
        plan(interface={"hardwareAddr": ":".join(["80"] * 20)})


def test_the_problems_of_a_device_are_one_error() -> None:
    with pytest.raises(ClaimError) as caught:
        plan(
            interface={"hardwareAddr": ":".join(["80"] * 20), "gsoMaxSize": 2**20},
            routes=[{"destination": "10.1.0.0/16", "gateway": "10.9.9.9"}],
            neighbors=[{"destination": "10.0.0.9", "hardwareAddr": ":".join(["80"] * 20)}],
            sysctls={"net.ipv4.ip_forward": 1},
        )
    for path in (
        "interface.hardwareAddr",
        "interface.gsoMaxSize",
        "routes[0].gateway",
        "neighbors[0]",
        "sysctls[",
    ):
        assert path in caught.value.message
    assert caught.value.reason is Reason.INVALID_CONFIG


def test_a_route_of_the_host_that_the_pod_could_not_have_stays_there() -> None:
    """Its gateway is reached by an address that does not come along."""
    host = replace(
        HOST,
        addresses=(Address("10.0.0.5/24"), Address("169.254.1.5/16", scope=253)),
        routes=(
            Route("10.9.0.0/16", gateway="169.254.1.1"),
            Route("10.8.0.0/16", gateway="10.7.7.7"),
            Route("10.7.0.0/16", scope=253),
            Route("10.6.0.0/16", gateway="192.0.2.1", flags=4),
        ),
    )
    assert [r.destination for r in routes(plan(host))] == ["10.7.0.0/16", "10.8.0.0/16", "10.6.0.0/16"]


def test_an_mtu_too_small_for_an_inherited_ipv6_address_is_refused() -> None:
    with pytest.raises(ClaimError, match="1280"):
        plan(replace(HOST, addresses=(Address("fd00::5/64"),)), interface={"mtu": 1000})


def test_a_plan_survives_the_store() -> None:
    made = plan(rdma_exclusive=True, interface={"name": "net0", "addresses": ["10.0.0.5/24"]})
    assert decode_record(AttachPlan, encode_record(made)) == made

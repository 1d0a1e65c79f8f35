"""Links on top of a device that stays on the node: macvlan, ipvlan and VLAN."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.claims.plan.link import check_parents, make_mac, plan_rdma_access
from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, CharDevice, Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import (
    AddAddress,
    AttachPlan,
    CreateLink,
    EthtoolState,
    LinkState,
    MoveRdma,
    RdmaAccess,
    SetEthtool,
    SetUp,
)

NIC = Device("nic", DeviceKind.NIC, ifname="eth1", rdma_device="mlx5_0")
PARENT = LinkState(
    5,
    "eth1",
    "02:00:00:00:00:01",
    1500,
    up=True,
    addresses=(Address("10.0.0.5/24"),),
    routes=(Route("10.9.0.0/16", gateway="10.0.0.1"),),
    ethtool=EthtoolState(features={"rx-gro": True}, rings={"rx": 256}),
)


def plan(
    parent: LinkState = PARENT,
    device: Device = NIC,
    exclusive: bool = False,
    seed: str = "",
    interface: dict[str, Any] | None = None,
    **fields: Any,
) -> AttachPlan:
    config = NetworkConfig.model_validate({"interface": interface or {}, **fields})
    return plan_device(device, parent, config, rdma_exclusive=exclusive, mac_seed=seed)


def created(made: AttachPlan) -> CreateLink:
    step = made.steps[0]
    assert isinstance(step, CreateLink)
    return step


def macvlan(**interface: Any) -> AttachPlan:
    return plan(interface={"type": "macvlan", **interface})


def ipvlan(mode: str = "l2", flag: str = "bridge", **interface: Any) -> AttachPlan:
    return plan(interface={"type": "ipvlan", "ipvlan": {"mode": mode, "flag": flag}, **interface})


def vlan(number: int, protocol: str = "802.1Q") -> AttachPlan:
    return plan(interface={"type": "vlan", "vlan": {"id": number, "protocol": protocol}})


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        ({"type": "macvlan"}, {"kind": "macvlan", "mode": "bridge"}),
        ({"type": "macvlan", "macvlan": {"mode": "vepa"}}, {"kind": "macvlan", "mode": "vepa"}),
        ({"type": "ipvlan"}, {"kind": "ipvlan", "mode": "l2", "flag": "bridge"}),
        (
            {"type": "ipvlan", "ipvlan": {"mode": "l3s", "flag": "private"}},
            {"kind": "ipvlan", "mode": "l3s", "flag": "private"},
        ),
        ({"type": "vlan", "vlan": {"id": 100}}, {"kind": "vlan", "vlan_id": 100}),
        (
            {"type": "vlan", "vlan": {"id": 4094, "protocol": "802.1ad"}},
            {"kind": "vlan", "vlan_id": 4094, "vlan_protocol": "802.1ad"},
        ),
        (
            {"type": "macvlan", "name": "net1", "mtu": 1400, "hardwareAddr": "02:00:00:00:00:09"},
            {
                "kind": "macvlan",
                "mode": "bridge",
                "pod_ifname": "net1",
                "mtu": 1400,
                "mac": "02:00:00:00:00:09",
            },
        ),
    ],
)
def test_the_link_is_made_on_its_parent(interface: dict[str, Any], expected: dict[str, Any]) -> None:
    parent = {"parent_ifindex": 5, "parent_ifname": "eth1", "parent_mac": "02:00:00:00:00:01"}
    assert created(plan(interface=interface)) == CreateLink(**{"pod_ifname": "eth1", **parent, **expected})


def test_nothing_of_the_parent_goes_to_the_pod_nor_has_to_come_back() -> None:
    made = macvlan()

    assert made.steps[1:] == (SetUp(),)
    assert made.host is None
    assert made.pod_ifname == "eth1"


def test_addresses_of_its_own() -> None:
    made = macvlan(addresses=["10.0.0.9/24"])
    assert [step.address.cidr for step in made.steps if isinstance(step, AddAddress)] == ["10.0.0.9/24"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"interface": {"mtu": 1501}}, "interface.mtu: must be at most the 1500 of eth1"),
        ({"interface": {"hardwareAddr": "02:00:00:00:00:01"}}, "interface.hardwareAddr: "),
        ({"interface": {"disableEbpfPrograms": True}}, "interface.disableEbpfPrograms: "),
        ({"ethtool": {"privateFlags": {"a": True}}}, "ethtool.privateFlags: belongs to eth1"),
        ({"ethtool": {"rings": {"rx": 128}}}, "ethtool.rings: "),
        ({"ethtool": {"channels": {"rx": 1}}}, "ethtool.channels: "),
        ({"ethtool": {"coalesce": {"rxUsecs": 1}}}, "ethtool.coalesce: "),
        ({"ethtool": {"features": {"warp": True}}}, 'ethtool.features["warp"]: '),
        ({"rdma": {"managementDevices": True}}, "rdma.managementDevices: "),
    ],
)
def test_what_a_link_on_top_of_the_device_cannot_have(fields: dict[str, Any], path: str) -> None:
    interface = {"type": "macvlan", **fields.pop("interface", {})}
    with pytest.raises(ClaimError) as caught:
        plan(interface=interface, **fields)
    assert caught.value.message.startswith(f"device nic: {path}")
    assert caught.value.reason is Reason.INVALID_CONFIG


def test_what_it_can_have() -> None:
    made = plan(
        interface={"type": "macvlan", "mtu": 1500, "disableEbpfPrograms": False},
        ethtool={"features": {"gro": False}},
    )
    assert SetEthtool(EthtoolState(features={"rx-gro": False})) in made.steps


def test_only_ethernet_carries_other_links() -> None:
    with pytest.raises(ClaimError, match=r"interface\.type: macvlan needs an Ethernet device; eth1 is not"):
        plan(replace(PARENT, mac=":".join(["80"] * 20)), interface={"type": "macvlan"})


def test_an_ipvlan_that_only_routes_takes_no_token() -> None:
    assert ipvlan("l2", ipv6={"token": "::5"}).steps
    with pytest.raises(ClaimError, match=r"interface\.ipv6\.token: in mode l3 "):
        ipvlan("l3", ipv6={"token": "::5"})


def test_the_rdma_device_stays_with_the_parent() -> None:
    """In shared mode the pod may use it; in exclusive mode the kernel would refuse it there."""
    node = CharDevice("/dev/infiniband/uverbs0", 231, 192)
    device = replace(NIC, char_devices=(node,))
    config = NetworkConfig.model_validate({"interface": {"type": "macvlan"}})

    assert not any(
        isinstance(step, MoveRdma) for step in plan(exclusive=True, interface={"type": "macvlan"}).steps
    )
    assert plan_rdma_access(device, config, exclusive=False) == RdmaAccess((node,))
    assert plan_rdma_access(device, config, exclusive=True) == RdmaAccess()
    with pytest.raises(ClaimError, match=r"rdma\.memlock: in exclusive mode mlx5_0 stays on the node"):
        plan(exclusive=True, interface={"type": "macvlan"}, rdma={"memlock": 1})


def test_a_made_up_address_is_local_unicast_and_always_the_same() -> None:
    macs = {make_mac(f"uid/{number}") for number in range(100)}

    assert len(macs) == 100
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)
    assert make_mac("uid/nic") == make_mac("uid/nic") != make_mac("uid/nic/share-1")


# --- beside other links of the same parent -------------------------------------------------------------

COMPATIBLE = [
    (macvlan(), macvlan()),
    (macvlan(hardwareAddr="02:00:00:00:00:08"), macvlan(hardwareAddr="02:00:00:00:00:09")),
    (ipvlan("l3"), ipvlan("l3")),
    (ipvlan(addresses=["10.0.0.8/24"]), ipvlan(addresses=["10.0.0.9/24"])),
    (vlan(100), vlan(101)),
    (vlan(100), vlan(100, "802.1ad")),
    (vlan(100), macvlan()),
    (vlan(100), ipvlan()),
    (macvlan(), plan()),
]
RIVALS = [
    (macvlan(), ipvlan(), "interface.type: eth1 has a link of type ipvlan, which excludes type macvlan"),
    (ipvlan(), macvlan(), "interface.type: eth1 has a link of type macvlan, which excludes type ipvlan"),
    (ipvlan("l2"), ipvlan("l3"), "interface.ipvlan.mode: must be l3 "),
    (ipvlan(flag="private"), ipvlan(), "interface.ipvlan.flag: must be bridge "),
    (
        ipvlan(addresses=["10.0.0.9/24"]),
        ipvlan(addresses=["10.0.0.9/32"]),
        "interface.addresses: 10.0.0.9 is that of another ipvlan",
    ),
    (vlan(100), vlan(100), "interface.vlan.id: eth1 has a link for VLAN 100 (802.1Q) already"),
    (
        macvlan(hardwareAddr="02:00:00:00:00:09"),
        macvlan(hardwareAddr="02:00:00:00:00:09"),
        "interface.hardwareAddr: 02:00:00:00:00:09 is that of another macvlan",
    ),
]


@pytest.mark.parametrize(("mine", "other"), COMPATIBLE)
def test_links_that_a_parent_carries_together(mine: AttachPlan, other: AttachPlan) -> None:
    check_parents([mine, other], [])
    check_parents([mine], [("claim ns/other", other)])


@pytest.mark.parametrize(("mine", "other", "complaint"), RIVALS)
def test_links_that_exclude_each_other(mine: AttachPlan, other: AttachPlan, complaint: str) -> None:
    with pytest.raises(ClaimError) as own:
        check_parents([mine, other], [])
    assert own.value.reason is Reason.INVALID_CONFIG
    with pytest.raises(DeviceError) as busy:
        check_parents([mine], [("claim ns/other", other)])
    assert busy.value.reason is Reason.DEVICE_BUSY
    assert busy.value.retryable
    assert "ns/other" in busy.value.hint
    for caught in (own.value, busy.value):
        assert caught.message.startswith(f"device nic: {complaint}")


@pytest.mark.parametrize(("mine", "other", "_complaint"), RIVALS)
def test_links_of_different_parents_do_not_meet(mine: AttachPlan, other: AttachPlan, _complaint: str) -> None:
    (first, *rest) = other.steps
    assert isinstance(first, CreateLink)
    check_parents([mine, replace(other, steps=(replace(first, parent_ifindex=6), *rest))], [])

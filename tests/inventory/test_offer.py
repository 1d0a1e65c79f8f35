"""Publish or hold back: the node keeps its uplink and its own network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cel import DeviceExpression
from dranet.inventory import offer as filter_module
from dranet.inventory.build import build_devices
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN, ServedGpus, decide, take_inventory, uplink_names
from dranet.inventory.policy import DEFAULT_POLICY, Decision, Policy
from dranet.inventory.rules import OwnAttributes, parse_rules
from dranet.model.device import AttributeValue
from dranet.model.facts import (
    CharDevice,
    Gpu,
    Link,
    NodeFacts,
    PciFunction,
    ProtectedLink,
    RdmaDevice,
    RdmaPort,
    Route,
)
from dranet.settings import PublishGpus
from tests.support.processor_time import measure


def link(ifname: str, ifindex: int, **changes: Any) -> Link:
    made = Link(ifindex=ifindex, ifname=ifname, flags=1, operstate="up", carrier=True, mtu=1500)
    return replace(made, **changes)


def pci_link(ifname: str, ifindex: int, address: str, **changes: Any) -> Link:
    return link(ifname, ifindex, parent_bus="pci", parent_device=address, pci_address=address, **changes)


def nic(address: str) -> PciFunction:
    return PciFunction(address, 0x020000, 0x8086, 0x1572, driver="i40e", root="pci0000:00", path=(address,))


def default(ifindex: int = 0, *, metric: int = 0, v6: bool = False, next_hops: tuple[int, ...] = ()) -> Route:
    destination, gateway = ("::/0", "fe80::1") if v6 else ("0.0.0.0/0", "10.0.0.1")
    return Route(destination, gateway=gateway, ifindex=ifindex, metric=metric, next_hops=next_hops)


def vf(address: str, physical_function: str) -> PciFunction:
    return replace(nic(address), physical_function=physical_function, virtual_function_index=0)


def compiled(expression: str) -> DeviceExpression:
    return DeviceExpression(expression, "dra.net")


def rules(*entries: object) -> OwnAttributes:
    own, problems = parse_rules({"attributes": [*entries]}, "dra.net")
    assert problems == ()
    return own


UVM = CharDevice("/dev/nvidia-uvm", 508, 0)
MISSING = "is a GPU, and there is no"
NO_UVM = f"{MISSING} /dev/nvidia-uvm to compute through: the kernel module nvidia-uvm makes it"
A_GPU = Gpu("0000:3a:00.0", "nvidia", char_devices=(CharDevice("/dev/nvidia0", 195, 0), UVM))


def facts(*links: Link, routes: tuple[Route, ...] = (), functions: tuple[PciFunction, ...] = ()) -> NodeFacts:
    return NodeFacts(links=links, default_routes=routes, pci_functions=functions)


def decisions(node: NodeFacts, policy: Policy = DEFAULT_POLICY) -> dict[str, Decision]:
    return {d.device.name: d for d in take_inventory(node, {}, policy)}


def published(node: NodeFacts, policy: Policy = DEFAULT_POLICY) -> set[str]:
    return {name for name, decision in decisions(node, policy).items() if decision.published}


def reason(node: NodeFacts, name: str, policy: Policy = DEFAULT_POLICY) -> str:
    """Why ``name`` is held back."""
    decision = decisions(node, policy)[name]
    assert not decision.published
    return decision.reason


def test_the_link_of_the_default_route_stays_home_and_a_spare_one_is_offered() -> None:
    node = facts(link("eth0", 2), link("eth1", 3), routes=(default(2),))

    assert published(node) == {"eth1"}
    assert "uplink" in decisions(node)["eth0"].reason


def test_only_the_lowest_metric_of_each_family_counts() -> None:
    links = [link(f"eth{i}", i + 2) for i in range(4)]
    routes = (default(2, metric=100), default(3, metric=200), default(4, metric=1024, v6=True))

    assert uplink_names(facts(*links, routes=routes)) == {"eth0", "eth2"}


def test_every_next_hop_of_a_multipath_route_and_every_tie_is_an_uplink() -> None:
    links = [link(f"eth{i}", i + 2) for i in range(4)]
    routes = (default(next_hops=(2, 3)), default(4))

    assert uplink_names(facts(*links, routes=routes)) == {"eth0", "eth1", "eth2"}


@pytest.mark.parametrize(
    "broken", [link("eth0", 2, flags=0), link("eth0", 2, operstate="down", carrier=False), link("other", 9)]
)
def test_when_the_best_uplink_is_down_or_out_of_sight_all_default_routes_are_protected(broken: Link) -> None:
    node = facts(broken, link("eth1", 3), link("eth2", 4), routes=(default(2), default(3, metric=500)))

    assert "eth1" in uplink_names(node)
    assert "eth2" not in uplink_names(node)


def test_an_unreachable_default_route_makes_no_uplink() -> None:
    assert (
        uplink_names(facts(link("eth0", 2), routes=(Route("0.0.0.0/0", ifindex=2, type=7),))) == frozenset()
    )


def test_a_vlan_on_a_bond_protects_bond_and_slaves_and_their_other_relatives() -> None:
    node = facts(
        link("eth0", 2, master=4),
        link("eth1", 3, master=4),
        link("bond0", 4, kind="bond"),
        link("bond0.10", 5, kind="vlan", lower=4),
        link("bond0.20", 6, kind="vlan", lower=4),
        link("mac0", 7, kind="macvlan", lower=5),
        link("eth9", 8),
        routes=(default(5),),
    )

    assert uplink_names(node) == {"eth0", "eth1", "bond0", "bond0.10", "bond0.20", "mac0"}
    assert published(node) == {"eth9"}


def test_a_port_of_the_uplink_bridge_takes_its_parent_along() -> None:
    node = facts(
        link("br0", 2, kind="bridge"),
        link("eth0", 3, master=2),
        link("eth1.5", 4, kind="vlan", lower=5, master=2),
        link("eth1", 5),
        routes=(default(2),),
    )

    assert published(node) == set()


def test_an_index_of_another_namespace_ties_nothing() -> None:
    node = facts(
        link("eth0", 2),
        link("eth1", 3),
        link("mac0", 4, kind="macvlan", lower=2, link_netnsid=0),
        routes=(default(2),),
    )

    assert published(node) == {"eth1", "mac0"}


@pytest.mark.parametrize(
    "kind",
    [
        "veth",
        "bridge",
        "bond",
        "vrf",
        "vxlan",
        "geneve",
        "tun",
        "ipip",
        "sit",
        "gre",
        "wireguard",
        "ifb",
        "brand-new",
    ],
)
def test_pieces_of_the_nodes_own_network_and_unknown_kinds_are_held_back(kind: str) -> None:
    decision = decisions(facts(link("x0", 2, kind=kind, virtual=True)))["x0"]

    assert not decision.published
    assert kind in decision.reason


@pytest.mark.parametrize("kind", ["", "dummy", "vlan", "macvlan", "ipvlan", "ipoib"])
def test_links_that_can_be_given_away_are_offered(kind: str) -> None:
    assert published(facts(link("x0", 2, kind=kind))) == {"x0"}


@pytest.mark.parametrize(
    "ifname", ["docker0", "cni0", "flannel.1", "kube-ipvs0", "nodelocaldns", "cilium_host"]
)
def test_links_made_by_container_networks_are_held_back_by_name(ifname: str) -> None:
    assert published(facts(link(ifname, 2, kind="dummy"))) == set()


def test_hardware_is_offered_whatever_its_kind_and_name() -> None:
    address = "0000:1a:00.0"
    node = facts(pci_link("cni0", 2, address, kind="veth"), functions=(nic(address),))

    assert published(node) == {"pci-0000-1a-00-0"}


def test_the_loopback_and_ports_and_parents_stay_home_with_their_reason() -> None:
    node = facts(
        link("lo", 1, flags=9, kind=""),
        link("br1", 2, kind="bridge"),
        link("eth1", 3, master=2),
        link("eth2", 4),
        link("eth2.7", 5, kind="vlan", lower=4),
    )
    found = decisions(node)

    assert published(node) == {name for name in found if found[name].device.ifname == "eth2.7"}
    assert "loopback" in found["lo"].reason
    assert "port of br1 (bridge)" in found["eth1"].reason
    assert "eth2.7 on eth2 would be lost" in found["eth2"].reason


def test_a_function_stays_home_for_any_of_its_links_not_only_for_the_one_that_stands_for_it() -> None:
    address = "0000:1a:00.0"
    node = facts(
        pci_link("eth1", 2, address),
        pci_link("eth2", 3, address),
        routes=(default(3),),
        functions=(nic(address),),
    )

    assert published(node) == set()


def test_a_nic_without_link_is_held_back_and_one_in_a_pod_keeps_its_place() -> None:
    address = "0000:1a:00.0"
    before = facts(pci_link("eth1", 2, address), functions=(nic(address),))
    after = facts(functions=(nic(address),))
    recorded = {d.name: d for d in build_devices(before, {})}
    (kept,) = recorded.values()

    assert reason(after, kept.name) == "has no network interface in the host's network namespace"
    assert take_inventory(after, recorded) == (
        Decision(replace(kept, ifname=""), True, "belongs to a pod now and keeps its place"),
    )


def test_a_device_that_was_unplugged_while_a_pod_has_it_is_not_offered() -> None:
    address = "0000:1a:00.0"
    before = facts(pci_link("eth1", 2, address), functions=(nic(address),))
    recorded = {d.name: d for d in build_devices(before, {})}
    (decision,) = take_inventory(facts(), recorded)

    assert not decision.published
    assert decision.reason == "is gone while a pod has it: there is no 0000:1a:00.0 any more"


def test_a_device_in_a_pod_passes_by_uplinks_filter_and_rules() -> None:
    eth1 = link("eth1", 3)
    recorded = {d.name: d for d in build_devices(facts(eth1), {})}
    policy = Policy(filter=compiled("false"), rules=rules({"set": {"rail": 1}}))
    node = facts(link("eth0", 2), routes=(default(2),))
    found = {d.device.name: d for d in take_inventory(node, recorded, policy)}

    assert found["eth1"].published
    assert "dra.net/rail" not in found["eth1"].device.attributes


def test_a_roce_nic_whose_link_somebody_else_has_is_not_offered() -> None:
    address = "0000:1a:00.0"
    rdma = RdmaDevice("mlx5_0", address, ports=(RdmaPort(1, link_layer="Ethernet"),))
    node = replace(facts(functions=(nic(address),)), rdma_devices=(rdma,))

    assert published(node) == set()


def test_gpus_and_rdma_only_devices_are_offered() -> None:
    rdma = RdmaDevice("ib0", "0000:2a:00.0", ports=(RdmaPort(1, link_layer="InfiniBand"),))
    node = replace(NodeFacts(), gpus=(A_GPU,), rdma_devices=(rdma,))

    assert published(node) == {"gpu-0000-3a-00-0", "pci-0000-2a-00-0"}


def test_a_device_that_the_scan_does_not_know_is_held_back() -> None:
    devices = build_devices(facts(link("eth1", 3)), {})

    assert [d.published for d in decide(devices, facts())] == [False]


def test_each_uplink_and_each_relative_says_which_uplink_it_is() -> None:
    node = facts(link("eth0", 2, master=3), link("bond0", 3, kind="bond"), routes=(default(3),))

    assert reason(node, "bond0") == "is the node's uplink: bond0 carries a default route"
    assert reason(node, "eth0") == "is tied to bond0, the node's uplink"


def protected_links(*found: tuple[str, str, int], links: tuple[Link, ...]) -> NodeFacts:
    return replace(facts(*links), protected_links=tuple(ProtectedLink(*line) for line in found))


def test_links_of_the_nodes_address_and_of_the_way_to_the_api_server_stay_home() -> None:
    node = protected_links(
        ("the node's address", "10.0.0.5", 2),
        ("the route to the API server", "10.9.0.1", 3),
        links=(link("eth0", 2), link("eth1.5", 3, kind="vlan", lower=4), link("eth1", 4), link("eth2", 5)),
    )

    assert published(node) == {"eth2"}
    assert reason(node, "eth0") == "carries the node's address 10.0.0.5"
    assert reason(node, encoded("eth1.5")) == "carries the route to the API server 10.9.0.1"
    assert reason(node, "eth1") == "is tied to eth1.5, which carries the route to the API server 10.9.0.1"
    assert uplink_names(node) == {"eth0", "eth1", "eth1.5"}


def encoded(ifname: str) -> str:
    return next(d.name for d in build_devices(facts(link(ifname, 9)), {}))


def test_an_uplink_that_carries_the_nodes_address_too_is_called_the_uplink() -> None:
    node = replace(
        protected_links(("the node's address", "10.0.0.5", 2), links=(link("eth0", 2),)),
        default_routes=(default(2),),
    )

    assert reason(node, "eth0") == "is the node's uplink: eth0 carries a default route"


def test_of_several_protected_links_on_one_link_the_first_is_told() -> None:
    node = protected_links(
        ("the node's address", "10.0.0.5", 2), ("the node's address", "fd00::5", 2), links=(link("eth0", 2),)
    )

    assert reason(node, "eth0") == "carries the node's address 10.0.0.5"


def test_a_protected_link_on_the_loopback_or_on_a_link_out_of_sight_ties_nothing_else() -> None:
    node = protected_links(
        ("the node's address", "10.0.0.5", 1),
        ("the node's address", "10.0.0.6", 77),
        links=(link("lo", 1, flags=9), link("eth0", 2)),
    )

    assert published(node) == {"eth0"}


def test_all_open_vswitch_ports_are_one_family() -> None:
    """As with OVN-Kubernetes: br-ex has the default route and no master, the NIC is a port of ovs-system."""
    node = facts(
        link("ovs-system", 2, kind="openvswitch", flags=0),
        link("eth0", 3, master=2),
        link("br-ex", 4, kind="openvswitch"),
        link("br-int", 5, kind="openvswitch"),
        link("eth1", 6),
        routes=(default(4),),
    )

    assert published(node) == {"eth1"}
    assert reason(node, "eth0") == "is tied to br-ex, the node's uplink"
    assert reason(node, "br-int") == "is tied to br-ex, the node's uplink"


def test_a_synthetic_nic_and_the_virtual_function_under_it_stay_together() -> None:
    """As on Azure: the VF is enslaved to the VMBus NIC (no kind) that has the addresses."""
    address = "0001:00:02.0"
    links = (
        link("eth0", 2, parent_bus="vmbus"),
        pci_link("enP1s1", 3, address, master=2),
        link("eth1", 4, parent_bus="vmbus"),
    )
    node = facts(*links, routes=(default(2),), functions=(nic(address),))
    spare = facts(*links, routes=(default(4),), functions=(nic(address),))

    assert published(node) == {"eth1"}
    assert reason(node, "pci-0001-00-02-0") == "is tied to eth0, the node's uplink"
    assert reason(spare, "pci-0001-00-02-0") == "is enslaved: enP1s1 is a port of eth0"
    assert published(spare) == {"eth0"}


PF, VF0, VF1 = "0000:1a:00.0", "0000:1a:01.0", "0000:1a:01.1"


def sriov_node(*links: Link, uplink: int) -> NodeFacts:
    functions = (nic(PF), vf(VF0, PF), vf(VF1, PF))
    return facts(*links, routes=(default(uplink),), functions=functions)


def test_virtual_functions_of_an_uplink_that_nobody_uses_are_offered() -> None:
    node = sriov_node(pci_link("pf", 2, PF), pci_link("vf0", 3, VF0), pci_link("vf1", 4, VF1), uplink=2)

    assert published(node) == {"pci-0000-1a-01-0", "pci-0000-1a-01-1"}


@pytest.mark.parametrize("bonded", [False, True])
def test_the_physical_function_of_an_uplink_stays_home_too(bonded: bool) -> None:
    node = sriov_node(
        pci_link("pf", 2, PF),
        pci_link("vf0", 3, VF0, master=5 if bonded else None),
        pci_link("vf1", 4, VF1),
        link("bond0", 5, kind="bond"),
        uplink=5 if bonded else 3,
    )

    assert published(node) == {"pci-0000-1a-01-1"}
    assert reason(node, "pci-0000-1a-00-0") == f"is tied to {'bond0' if bonded else 'vf0'}, the node's uplink"


def test_a_physical_function_whose_link_is_elsewhere_is_not_offered_either() -> None:
    node = sriov_node(pci_link("vf0", 3, VF0), uplink=3)

    assert published(node) == set()


def test_representors_never_become_devices() -> None:
    """In switchdev mode; older kernels do not tie a representor to its PCI function."""
    node = facts(
        pci_link("p0", 2, PF, phys_switch_id="0c42", phys_port_name="p0"),
        pci_link("pf0vf0", 3, PF, phys_switch_id="0c42", phys_port_name="pf0vf0"),
        link("eth7", 4, phys_switch_id="0c42", phys_port_name="c1pf0sf88"),
        routes=(default(2),),
        functions=(nic(PF),),
    )

    assert published(node) == set()
    assert reason(node, "eth7") == "is a representor: c1pf0sf88 of an embedded switch"


def test_a_function_stays_home_while_one_of_its_representors_is_in_use() -> None:
    node = facts(
        pci_link("p0", 2, PF, phys_switch_id="0c42", phys_port_name="p0"),
        pci_link("rep0", 3, PF, phys_switch_id="0c42", phys_port_name="pf0vf0", master=4),
        link("br0", 4, kind="bridge"),
        functions=(nic(PF),),
    )

    assert reason(node, "pci-0000-1a-00-0") == "is enslaved: rep0 is a port of br0 (bridge)"


def test_the_way_of_a_tunnel_is_not_known_so_all_default_routes_count() -> None:
    node = facts(
        link("wg0", 2, kind="wireguard"),
        link("eth0", 3),
        link("eth1", 4),
        routes=(default(2), default(3, metric=100)),
    )

    assert published(node) == {"eth1"}


@pytest.mark.parametrize("kind", ["ppp", "tun", "vxlan", "wireguard"])
def test_where_the_only_way_out_is_a_tunnel_every_card_that_is_up_may_be_below_it(kind: str) -> None:
    """PPPoE: the card has no address and no route, and nothing tells that ppp0 runs over it."""
    links = (
        link("way0", 2, kind=kind),
        pci_link("eth0", 3, "0000:01:00.0"),
        pci_link("eth1", 4, "0000:02:00.0", flags=0, operstate="down", carrier=False),
        link("eth2", 5, parent_bus="usb"),
        link("vlan7", 6, kind="vlan", lower=5, virtual=True),
        link("dummy0", 7, kind="dummy", virtual=True),
    )
    functions = (nic("0000:01:00.0"), nic("0000:02:00.0"))
    answers = ProtectedLink("the node's address", "192.0.2.7", 7)
    node = replace(facts(*links, routes=(default(2),), functions=functions), protected_links=(answers,))

    assert published(node) == {"pci-0000-02-00-0"}
    assert reason(node, "pci-0000-01-00-0") == "is tied to way0, the node's uplink"
    assert reason(node, "vlan7") == "is tied to way0, the node's uplink"


def test_a_protected_link_through_a_tunnel_keeps_every_card_only_where_no_uplink_is_known() -> None:
    links = (link("wg0", 2, kind="wireguard"), link("eth0", 3), link("eth1", 4))
    node = replace(
        facts(*links), protected_links=(ProtectedLink("the route to the API server", "192.0.2.1", 2),)
    )

    assert published(node) == set()
    assert published(replace(node, default_routes=(default(3),))) == {"eth1"}


def test_a_card_with_the_hardware_address_of_the_uplink_is_the_function_under_it() -> None:
    """Azure: the function comes, and some time later it is enslaved to the synthetic card."""
    address, mac = "0001:00:02.0", "00:22:48:00:00:01"
    late = pci_link("enP1s1", 3, address, mac=mac)
    others = (link("eth1", 4, mac="00:22:48:00:00:02"), link("d0", 5, kind="dummy", mac=mac, virtual=True))
    uplink = link("eth0", 2, parent_bus="vmbus", mac=mac)
    node = facts(uplink, late, *others, routes=(default(2),), functions=(nic(address),))

    assert published(node) == {"eth1", "d0"}
    assert reason(node, "pci-0001-00-02-0") == "is tied to eth0, the node's uplink"


def test_cards_without_hardware_address_are_no_relatives() -> None:
    zeros = "00:00:00:00:00:00"
    links = [link(f"eth{i}", i + 2, mac=mac) for i, mac in enumerate(("", "", zeros, zeros))]

    assert published(facts(*links, routes=(default(2), default(4)))) == {"eth1", "eth3"}


def test_ten_thousand_default_routes_are_looked_at_once_each() -> None:
    routes = tuple(default(i % 3 + 2, metric=i % 3) for i in range(10_000))
    node = facts(*(link(f"eth{i}", i + 2) for i in range(3)), routes=routes)

    def find_uplinks() -> None:
        assert uplink_names(node) == {"eth0"}

    assert measure(find_uplinks) < 200


def test_what_the_store_cannot_write_down_is_not_offered() -> None:
    odd = facts(
        link("eth\udcff", 2, kind="dummy"),
        link("eth1", 3, alias="\udcff"),
        link("eth2", 4, tc_filters=("\udcff",), tcx_programs=()),
    )
    rdma = RdmaDevice("mlx\udcff", PF, ports=(RdmaPort(1, link_layer="InfiniBand"),))
    node = replace(odd, pci_functions=(nic(PF),), rdma_devices=(rdma,))
    held_back = {name: d.reason for name, d in decisions(node).items() if not d.published}

    assert published(node) == {"eth2"}
    assert set(held_back.values()) == {
        f"cannot be recorded: its {what} is no text (bytes that are not UTF-8)"
        for what in ("name", "alias", "RDMA device's name")
    }


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ("vfio-pci", "is bound to vfio-pci, for a virtual machine or a program in user space"),
        ("mlx5_vfio_pci", "is bound to mlx5_vfio_pci, for a virtual machine or a program in user space"),
        ("", "has no driver"),
        ("i40e", "has no network interface in the host's network namespace"),
    ],
)
def test_a_function_without_interface_says_why_it_has_none(driver: str, why: str) -> None:
    function = replace(nic(PF), driver=driver)
    (device,) = build_devices(facts(functions=(nic(PF),)), {})
    (decision,) = decide((device,), facts(functions=(function,)))

    assert (decision.published, decision.reason) == (False, why)


def test_an_rdma_only_device_stays_home_if_it_would_take_the_uplink_along() -> None:
    """IPoIB that stays on the node: moving its adapter to another namespace destroys it."""
    rdma = RdmaDevice("mlx5_0", PF, ports=(RdmaPort(1, link_layer="InfiniBand"),))
    node = replace(
        facts(pci_link("ib0", 2, PF, kind="ipoib", arp_type=32), routes=(default(2),), functions=(nic(PF),)),
        rdma_devices=(rdma,),
    )
    policy = Policy(move_ib_interfaces=False)

    assert published(node, policy) == {"pci-0000-1a-00-0"}
    exclusive = replace(node, rdma_netns_exclusive=True)
    assert (
        reason(exclusive, "pci-0000-1a-00-0", policy) == "is the node's uplink: ib0 carries a default route"
    )


@pytest.mark.parametrize(
    ("ifname", "kind"),
    [
        ("kube-ipvs0", "dummy"),
        ("kube-dummy-if", "dummy"),
        ("nodelocaldns", "dummy"),
        ("pod-id-link0", "dummy"),
        ("antrea-egress0", "dummy"),
        ("antrea-ingress0", "dummy"),
        ("antrea-ext.181", "vlan"),
        ("vlan.eth.1", "vlan"),
        ("ipvl_3", "ipvlan"),
        ("docker0", "bridge"),
        ("cni0", "bridge"),
        ("virbr0", "bridge"),
        ("nerdctl0", "bridge"),
        ("cni-podman0", "bridge"),
        ("kube-bridge", "bridge"),
        ("weave", "bridge"),
        ("flannel.1", "vxlan"),
        ("vxlan.calico", "vxlan"),
        ("vxlan-v6.calico", "vxlan"),
        ("cilium_vxlan", "vxlan"),
        ("vxlan_sys_4789", "vxlan"),
        ("genev_sys_6081", "geneve"),
        ("tunl0", "ipip"),
        ("wireguard.cali", "wireguard"),
        ("antrea-gw0", "openvswitch"),
        ("ovn-k8s-mp0", "openvswitch"),
        ("ovn0", "openvswitch"),
        ("cilium_host", "veth"),
        ("cali1234567890a", "veth"),
        ("lxc_health", "veth"),
    ],
)
def test_what_a_container_network_made_stays_home_by_name_even_where_its_kind_is_offered(
    ifname: str, kind: str
) -> None:
    node = facts(link(ifname, 2, kind=kind, virtual=True))
    (name,) = decisions(node)

    assert "is part of the node's own network" in reason(node, name)
    why = reason(node, name, Policy(offer_link_kinds=frozenset({kind})))
    assert why == f"is part of the node's own network: {ifname} is made by its container network"


def test_a_software_link_of_no_kind_is_held_back() -> None:
    node = facts(link("odd0", 2, virtual=True))

    assert reason(node, "odd0").endswith("made by software, of no kind that the kernel names")


def test_the_operator_may_offer_a_kind_that_is_infrastructure_by_default() -> None:
    node = facts(link("vx0", 2, kind="vxlan"), link("br0", 3, kind="bridge"))

    assert published(node, Policy(offer_link_kinds=frozenset({"vxlan"}))) == {"vx0"}
    assert reason(node, "vx0") == "is part of the node's own network: of kind vxlan"


def test_an_offered_kind_changes_nothing_for_the_uplink_its_relatives_and_the_loopback() -> None:
    node = facts(
        link("lo", 1, flags=9),
        link("br0", 2, kind="bridge"),
        link("veth0", 3, kind="veth", lower=4),
        link("veth1", 4, kind="veth", lower=3, master=2),
        link("br1", 5, kind="bridge"),
        link("eth1", 6, master=5),
        routes=(default(2),),
    )

    assert published(node, Policy(offer_link_kinds=frozenset({"veth", "bridge"}))) == {"br1"}


def test_an_offered_pair_on_the_node_is_two_devices_and_a_pods_end_is_none() -> None:
    node = facts(
        link("a", 2, kind="veth", lower=3),
        link("b", 3, kind="veth", lower=2),
        link("c", 4, kind="veth", lower=2, link_netnsid=0),
        link("d", 5, kind="netkit", lower=2, link_netnsid=0),
    )
    policy = Policy(offer_link_kinds=frozenset({"veth", "netkit"}))

    assert published(node, policy) == {"a", "b"}
    assert reason(node, "c", policy).endswith("of kind veth, its other end is in another namespace")


def test_gpus_that_are_not_published_say_so() -> None:
    node = replace(NodeFacts(), gpus=(A_GPU,))

    why = reason(node, "gpu-0000-3a-00-0", Policy(publish_gpus=PublishGpus.NEVER))
    assert why == "is a GPU, and the setting publish_gpus is never"


def test_gpus_of_a_vendor_that_somebody_serves_are_left_to_them_unless_the_operator_says_always() -> None:
    nodes = CharDevice("/dev/kfd", 510, 0), CharDevice("/dev/dri/renderD128", 226, 128)
    node = replace(NodeFacts(), gpus=(A_GPU, Gpu("0000:3b:00.0", "amd", char_devices=nodes)))
    served = ServedGpus(by_vendor={"nvidia": "the DRA driver gpu.nvidia.com"})

    def offers(policy: Policy, who: ServedGpus) -> dict[str, str]:
        found = take_inventory(node, {}, policy, who)
        return {decision.device.name: decision.reason for decision in found if not decision.published}

    left = "is a GPU, left to the DRA driver gpu.nvidia.com (publish_gpus is auto)"
    assert offers(Policy(), served) == {"gpu-0000-3a-00-0": left}
    assert offers(Policy(publish_gpus=PublishGpus.ALWAYS), served) == {}
    assert offers(Policy(publish_gpus=PublishGpus.ALWAYS), UNKNOWN) == {}
    asked = "is a GPU, and the API server has not answered yet whether another driver serves it"
    assert set(offers(Policy(), UNKNOWN).values()) == {asked}
    assert offers(Policy(), NO_OTHER_SERVER) == {}


def test_a_gpu_that_a_pod_has_keeps_its_place_when_a_vendors_driver_comes() -> None:
    node = replace(NodeFacts(), gpus=(A_GPU,))
    mine = next(d for d in build_devices(node, {}) if d.name == "gpu-0000-3a-00-0")
    served = ServedGpus(by_vendor={"nvidia": "the DRA driver gpu.nvidia.com"})

    (decision,) = take_inventory(
        replace(node, pci_functions=(a_gpu_function("nvidia"),)), {mine.name: mine}, Policy(), served
    )

    assert (decision.published, decision.reason) == (True, "belongs to a pod now and keeps its place")
    assert decision.device.char_devices == A_GPU.char_devices


@pytest.mark.parametrize(
    ("driver", "nodes", "why"),
    [
        ("vfio-pci", (), "is bound to vfio-pci, for a virtual machine or a program in user space"),
        ("", (), "has no driver"),
        ("nvidia", (), "is a GPU without a device node that a container could be given"),
        ("nvidia", A_GPU.char_devices[:1], NO_UVM),
    ],
)
def test_a_gpu_that_no_container_could_use_is_held_back_whatever_the_operator_says(
    driver: str, nodes: tuple[CharDevice, ...], why: str
) -> None:
    gpu = replace(A_GPU, char_devices=nodes)
    node = replace(NodeFacts(), gpus=(gpu,), pci_functions=(a_gpu_function(driver),))

    assert reason(node, "gpu-0000-3a-00-0", Policy(publish_gpus=PublishGpus.ALWAYS)) == why


def test_a_gpu_that_is_cut_into_parts_is_held_back_since_its_nodes_are_not_the_whole() -> None:
    node = replace(
        NodeFacts(), gpus=(replace(A_GPU, parts="MIG"),), pci_functions=(a_gpu_function("nvidia"),)
    )
    why = reason(node, "gpu-0000-3a-00-0", Policy(publish_gpus=PublishGpus.ALWAYS))
    assert why == "is a GPU that is cut into parts (MIG)"


def test_a_gpu_with_virtual_functions_is_in_parts_and_each_of_these_is_a_gpu() -> None:
    whole, part = "0000:3a:00.0", "0000:3a:00.1"
    render = Gpu(whole, "intel", char_devices=(CharDevice("/dev/dri/renderD128", 226, 128),))
    functions = (
        replace(a_gpu_function("xe"), sriov_total_vfs=7, sriov_num_vfs=1),
        replace(a_gpu_function("xe"), address=part, physical_function=whole),
    )
    node = replace(NodeFacts(), gpus=(render, replace(render, pci_address=part)), pci_functions=functions)
    assert published(node) == {"gpu-0000-3a-00-1"}
    assert reason(node, "gpu-0000-3a-00-0") == "is a GPU that is cut into parts (1 virtual functions)"


@pytest.mark.parametrize(
    ("vendor", "why"),
    [
        ("1af4", "is a display adapter of a virtual machine"),
        ("1234", "is a display adapter of a virtual machine"),
        ("amd", f"{MISSING} /dev/kfd to compute through: amdgpu makes it where it is built with HSA_AMD"),
        ("17cb", "is a GPU"),
    ],
)
def test_a_render_node_alone_is_not_enough_where_nothing_computes_through_it(vendor: str, why: str) -> None:
    gpu = Gpu("0000:3a:00.0", vendor, char_devices=(CharDevice("/dev/dri/renderD128", 226, 128),))
    node = replace(NodeFacts(), gpus=(gpu,), pci_functions=(a_gpu_function("some"),))
    assert decisions(node)["gpu-0000-3a-00-0"].reason == why


def test_a_nic_says_which_gpu_is_near_also_where_gpus_are_not_published() -> None:
    path = ("0000:21:00.0",)
    card = PciFunction(
        "0000:3c:00.0", 0x020000, 1, 2, driver="x", root="pci0000:20", path=(*path, "0000:3c:00.0")
    )
    node = replace(
        facts(link("eth1", 2, pci_address=card.address), functions=(card, a_gpu_function("nvidia"))),
        gpus=(A_GPU,),
    )
    found = take_inventory(node, {}, Policy(publish_gpus=PublishGpus.NEVER))

    (nic,) = (decision.device for decision in found if decision.published)
    assert nic.attributes["dra.net/nearestGpus"] == A_GPU.pci_address


def a_gpu_function(driver: str) -> PciFunction:
    address = A_GPU.pci_address
    return PciFunction(
        address, 0x030200, 0x10DE, 1, driver=driver, root="pci0000:20", path=("0000:21:00.0", address)
    )


def test_the_filter_holds_back_what_does_not_match_and_what_it_fails_on() -> None:
    node = facts(link("eth1", 2, mtu=9000), link("eth2", 3))
    policy = Policy(filter=compiled('device.attributes["dra.net"].mtu == 9000'))
    failing = Policy(filter=compiled('device.attributes["dra.net"].rail == 1'))

    assert published(node, policy) == {"eth1"}
    decision = decisions(node, policy)["eth2"]
    assert (decision.reason, decision.filter_failed) == ("does not match the operator's filter", False)
    decision = decisions(node, failing)["eth1"]
    assert decision.filter_failed
    assert not decision.published
    assert decision.reason == "fails the operator's filter: the device has no attribute or capacity 'rail'"


def test_the_filter_is_not_asked_about_what_stays_home_anyway() -> None:
    node = facts(link("eth0", 2), routes=(default(2),))
    decision = decisions(node, Policy(filter=compiled("1/0 == 1")))["eth0"]

    assert not decision.filter_failed
    assert "uplink" in decision.reason


def test_the_operator_says_which_interfaces_are_shared_and_one_that_it_fails_on_is_not() -> None:
    node = facts(link("eth0", 2), link("eth1", 3, mac="02:00:00:00:00:01"), routes=(default(2),))
    asked = {
        expression: decisions(node, Policy(shared=compiled(expression)))["eth1"]
        for expression in (
            'device.attributes["dra.net"].ifName == "eth1"',
            "false",
            'device.attributes["x"].y',
        )
    }
    assert [decision.device.shared for decision in asked.values()] == [True, False, False]
    assert all(decision.published for decision in asked.values())
    assert [len(decision.warnings) for decision in asked.values()] == [0, 0, 1]
    assert "eth1 is not shared" in [*asked.values()][2].warnings[0]


def test_a_shared_interface_is_offered_whatever_rides_on_it_and_no_other_one() -> None:
    node = facts(
        link("eth1", 3, mac="02:00:00:00:00:01"),
        link("eth2", 4, mac="02:00:00:00:00:02"),
        link("shim1", 5, kind="macvlan", lower=3, virtual=True),
        link("shim2", 6, kind="macvlan", lower=4, virtual=True),
    )
    policy = Policy(shared=compiled('device.attributes["dra.net"].ifName == "eth1"'))
    assert decisions(node, policy)["eth1"].device.shared
    assert "eth1" in published(node, policy)
    assert "shim2 on eth2" in reason(node, "eth2", policy)
    assert "shim1 on eth1" in reason(node, "eth1")
    enslaved = replace(node, links=(*node.links[1:], replace(node.links[0], master=9)))
    assert "is enslaved" in reason(enslaved, "eth1", policy)


def test_an_interface_stays_home_while_a_pod_has_what_rides_on_it() -> None:
    """It would take the link in the pod down, and see its traffic."""
    below = link("eth1", 3, mac="02:00:00:00:00:01")
    vlan = link("eth1.7", 4, kind="vlan", lower=3, virtual=True)
    given_away = decisions(facts(below, vlan))["net-mv2gqmjog4"].device
    after = facts(below)
    found = {d.device.name: d for d in take_inventory(after, {given_away.name: given_away})}
    assert found[given_away.name].published
    assert not found["eth1"].published
    assert f"{given_away.name}, which a pod has, on eth1" in found["eth1"].reason
    policy = Policy(shared=compiled("true"))
    shared = {d.device.name: d for d in take_inventory(after, {given_away.name: given_away}, policy)}
    assert shared["eth1"].published


def test_the_operators_attributes_are_published_and_the_filter_sees_them() -> None:
    node = facts(link("eth1", 2), link("eth2", 3))
    own = rules(
        {"match": 'device.attributes["dra.net"].ifName == "eth1"', "set": {"rail": 1}},
        {"match": 'device.attributes["dra.net"].nothing == "eth1"', "set": {"rail": 2}},
    )
    policy = Policy(rules=own, filter=compiled('device.attributes["dra.net"].?rail.hasValue()'))

    assert published(node, policy) == {"eth1"}
    decision = decisions(node, policy)["eth1"]
    assert decision.device.attributes["dra.net/rail"] == 1
    assert decision.warnings == (
        "device eth1: attributes[1] adds nothing to it: the device has no attribute or capacity 'nothing'",
    )


class Counting:
    """A filter that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        self.asked += 1
        return attributes["dra.net/mtu"] == 9000


def test_a_device_that_has_not_changed_is_not_judged_again() -> None:
    counting = Counting()
    policy = Policy(filter=counting)
    before, after = (facts(link("eth1", 2, mtu=mtu), link("eth2", 3, mtu=9000)) for mtu in (9000, 1500))

    assert [published(before, policy) for _ in range(3)] == [{"eth1", "eth2"}] * 3
    assert counting.asked == 2
    assert published(after, policy) == {"eth2"}
    assert published(before, replace(policy)) == {"eth1", "eth2"}
    assert counting.asked == 5


def test_what_is_remembered_of_devices_that_came_and_went_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filter_module, "_MAX_JUDGED", 40)
    policy = Policy(filter=compiled("true"))
    for start in range(0, 90, 30):
        names = {f"d{start + number}" for number in range(30)}
        assert published(facts(*(link(name, n) for n, name in enumerate(sorted(names)))), policy) == names

    assert len(policy.judged) <= 40


KINDS = st.sampled_from(["", "dummy", "vlan", "bond", "veth", "ipoib", "openvswitch", "wireguard"])
INDEX = st.integers(1, 8)
ADDRESSES = [f"0000:1a:00.{n}" for n in range(4)]
LINKS = st.lists(
    st.tuples(
        KINDS, st.none() | INDEX, st.none() | INDEX, st.none() | st.just(0), st.sampled_from(["", *ADDRESSES])
    ),
    max_size=8,
)
Shape = tuple[str, int | None, int | None, int | None, str]


def shaped(number: int, shape: Shape) -> Link:
    kind, master, lower, netnsid, address = shape
    return link(
        f"x{number}",
        number,
        kind=kind,
        master=master,
        lower=lower,
        link_netnsid=netnsid,
        pci_address=address,
        parent_bus="pci" if address else "",
        parent_device=address,
    )


def connected_to(roots: set[int], links: list[Link]) -> set[int]:
    """The closure, by brute force: masters, parents of this namespace and one Open vSwitch."""
    groups = [{k.ifindex, k.master} - {None} for k in links]
    groups += [{k.ifindex, k.lower} - {None} for k in links if k.link_netnsid is None]
    groups += [{k.ifindex for k in links if k.kind == "openvswitch"}]
    found: set[int | None] = {*roots}
    for _ in range(2 * len(links)):  # links, and those out of sight between them
        found = found.union(*(group for group in groups if group & found))
    return {index for index in found if index}


@given(
    shapes=LINKS,
    uplinks=st.lists(st.tuples(INDEX, st.booleans(), st.lists(INDEX, max_size=2)), max_size=2),
    living=st.lists(INDEX, max_size=2),
    parents=st.dictionaries(st.sampled_from(ADDRESSES), st.sampled_from(ADDRESSES), max_size=2),
    offered=st.frozensets(KINDS),
    exclusive=st.booleans(),
)
def test_nothing_that_the_node_lives_by_or_that_is_connected_to_it_is_ever_offered(
    shapes: list[Shape],
    uplinks: list[tuple[int, bool, list[int]]],
    living: list[int],
    parents: dict[str, str],
    offered: frozenset[str],
    exclusive: bool,
) -> None:
    links = [shaped(number, shape) for number, shape in enumerate(shapes, start=1)]
    node = NodeFacts(
        links=tuple(links),
        pci_functions=tuple(replace(nic(a), physical_function=parents.get(a, "")) for a in ADDRESSES),
        default_routes=tuple(default(index, v6=v6, next_hops=tuple(hops)) for index, v6, hops in uplinks),
        protected_links=tuple(ProtectedLink("the node's address", "10.0.0.5", index) for index in living),
        rdma_netns_exclusive=exclusive,
    )
    roots = {*living, *(index for index, _, _ in uplinks), *(hop for _, _, hops in uplinks for hop in hops)}
    connected = connected_to(roots, links)
    functions = {k.pci_address for k in links if k.ifindex in connected} - {""}
    physical = {parents[address] for address in functions if address in parents}

    chosen = [d.device for d in take_inventory(node, {}, Policy(offer_link_kinds=offered)) if d.published]
    assert {d.ifname for d in chosen}.isdisjoint(f"x{index}" for index in connected)
    assert {d.pci_address for d in chosen}.isdisjoint(functions | physical)
    kept = {k.ifname for k in links if k.ifindex in connected}
    assert uplink_names(node) >= kept
    if not any(k.kind == "wireguard" for k in links if k.ifindex in connected):
        assert uplink_names(node) == kept

"""Publish or hold back: the node keeps its uplink and its own network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.build import build_devices
from dranet.inventory.filter import Decision, decide, uplink_names
from dranet.model.facts import Gpu, Link, NodeFacts, PciFunction, RdmaDevice, RdmaPort, Route


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


def facts(*links: Link, routes: tuple[Route, ...] = (), functions: tuple[PciFunction, ...] = ()) -> NodeFacts:
    return NodeFacts(links=links, default_routes=routes, pci_functions=functions)


def decisions(node: NodeFacts) -> dict[str, Decision]:
    return {d.device.name: d for d in decide(build_devices(node, {}), node)}


def published(node: NodeFacts) -> set[str]:
    return {name for name, decision in decisions(node).items() if decision.published}


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


def test_a_nic_without_link_is_held_back_and_a_held_one_keeps_its_place() -> None:
    address = "0000:1a:00.0"
    before = facts(pci_link("eth1", 2, address), functions=(nic(address),))
    after = facts(functions=(nic(address),))
    recorded = {d.name: d for d in build_devices(before, {})}

    assert published(after) == set()
    (decision,) = decide(build_devices(after, recorded), after)
    assert decision.published
    assert "pod" in decision.reason


def test_a_roce_nic_whose_link_somebody_else_has_is_not_offered() -> None:
    address = "0000:1a:00.0"
    rdma = RdmaDevice("mlx5_0", address, ports=(RdmaPort(1, link_layer="Ethernet"),))
    node = replace(facts(functions=(nic(address),)), rdma_devices=(rdma,))

    assert published(node) == set()


def test_gpus_and_rdma_only_devices_are_offered() -> None:
    rdma = RdmaDevice("ib0", "0000:2a:00.0", ports=(RdmaPort(1, link_layer="InfiniBand"),))
    node = replace(NodeFacts(), gpus=(Gpu("0000:3a:00.0", "nvidia"),), rdma_devices=(rdma,))

    assert published(node) == {"gpu-0000-3a-00-0", "pci-0000-2a-00-0"}


def test_a_device_that_the_scan_does_not_know_is_held_back() -> None:
    devices = build_devices(facts(link("eth1", 3)), {})

    assert [d.published for d in decide(devices, facts())] == [False]


LINKS = st.lists(
    st.tuples(
        st.sampled_from(["", "dummy", "vlan", "bond", "veth"]),
        st.none() | st.integers(1, 8),
        st.none() | st.integers(1, 8),
    ),
    max_size=8,
)


@given(shapes=LINKS, uplink=st.integers(1, 8))
def test_nothing_that_is_connected_to_an_uplink_is_ever_offered(
    shapes: list[tuple[str, int | None, int | None]], uplink: int
) -> None:
    links = [
        link(f"x{i}", i, kind=kind, master=master, lower=lower)
        for i, (kind, master, lower) in enumerate(shapes, start=1)
    ]
    node = facts(*links, routes=(default(uplink),))
    groups = [{index for index in (k.ifindex, k.master, k.lower) if index} for k in links]
    connected = {uplink}
    for _ in links:
        connected = connected.union(*(group for group in groups if group & connected))

    assert published(node).isdisjoint(f"x{index}" for index in connected)
    assert uplink_names(node) == {k.ifname for k in links if k.ifindex in connected}

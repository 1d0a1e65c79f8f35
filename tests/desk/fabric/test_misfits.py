"""Cablings -> what does not fit in them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.desk.fabric.links import Link
from dranet.desk.fabric.misfits import Misfit, MisfitKind, find_misfits
from dranet.desk.fabric.units import find_units
from tests.desk.fabric.fabrics import RAILS, Cabling, cable, change, swap, unplug


def judge(cabling: Cabling) -> tuple[Misfit, ...]:
    return find_misfits(cabling.values())


def only(cabling: Cabling) -> Misfit:
    (misfit,) = judge(cabling)
    return misfit


def kinds(misfits: Iterable[Misfit]) -> list[MisfitKind]:
    return [misfit.kind for misfit in misfits]


def test_a_rail_optimised_fabric_of_two_units_has_no_misfit() -> None:
    cabling = cable(units=2, nodes=4)
    assert judge(cabling) == ()
    assert [unit.nodes for unit in find_units(cabling.values())] == [
        ("gpu-0", "gpu-1", "gpu-2", "gpu-3"),
        ("gpu-4", "gpu-5", "gpu-6", "gpu-7"),
    ]


def test_nodes_with_all_nics_on_one_leaf_have_no_misfit() -> None:
    cabling = cable(nodes=4)
    for place in cabling:
        change(cabling, place, switch="02:aa", switch_name="tor-1")
    assert judge(cabling) == ()


def test_two_rails_on_each_leaf_are_no_misfit() -> None:
    cabling = cable(nodes=4)
    for (node, rail), link in list(cabling.items()):
        change(cabling, (node, rail), switch=f"02:{rail // 2}", switch_name=f"leaf-{rail // 2}")
        assert link.rail == rail
    assert judge(cabling) == ()


def test_swapped_cables_of_a_node_name_both_ports_and_the_exchange() -> None:
    cabling = cable(nodes=4)
    swap(cabling, ("gpu-2", 3), ("gpu-2", 5))
    misfit = only(cabling)
    assert (misfit.kind, misfit.nodes) == (MisfitKind.SWAPPED, ("gpu-2",))
    assert misfit.text == (
        "the cables of eth3 (leaf-0-5 Ethernet1/3) and eth5 (leaf-0-3 Ethernet1/3) are swapped"
    )
    assert misfit.fix == (
        "exchange the two cables at the node, or at leaf-0-5 Ethernet1/3 and leaf-0-3 Ethernet1/3"
    )


def test_swapped_cables_of_two_units_are_one_misfit_of_both_nodes() -> None:
    cabling = cable(units=2, nodes=4)
    swap(cabling, ("gpu-1", 2), ("gpu-6", 2))
    misfit = only(cabling)
    assert (misfit.kind, misfit.nodes) == (MisfitKind.SWAPPED, ("gpu-1", "gpu-6"))
    assert "gpu-1 eth2 (leaf-1-2 Ethernet1/3) and gpu-6 eth2 (leaf-0-2 Ethernet1/2)" in misfit.text


def test_two_nodes_that_differ_leave_open_which_one_is_wrong() -> None:
    cabling = cable(nodes=2)
    swap(cabling, ("gpu-1", 0), ("gpu-1", 1))
    misfit = only(cabling)
    assert misfit.kind is MisfitKind.SWAPPED
    assert "or those of the other nodes are: as many have it either way" in misfit.text


def test_a_nic_on_the_leaf_of_another_unit_is_told_where_it_belongs() -> None:
    cabling = cable(units=2, nodes=4)
    change(cabling, ("gpu-3", 6), switch="02:00:00:00:01:06", switch_name="leaf-1-6", port="Ethernet1/40")
    misfit = only(cabling)
    assert misfit.kind is MisfitKind.OTHER_LEAF
    assert misfit.text == ("eth6 is on leaf-1-6 Ethernet1/40; on 3 of 4 nodes of its unit it is on leaf-0-6")
    assert misfit.fix == "move its cable from leaf-1-6 Ethernet1/40 to leaf-0-6"


def test_two_rails_of_all_nodes_on_one_leaf_are_one_misfit() -> None:
    cabling = cable(nodes=4)
    for node in range(4):
        change(cabling, (f"gpu-{node}", 7), switch="02:00:00:00:00:06", switch_name="leaf-0-6", rail=None)
    misfit = only(cabling)
    assert (misfit.kind, len(misfit.nodes)) == (MisfitKind.SHARED_LEAF, 4)
    assert misfit.text.startswith("eth6 and eth7 are both on leaf-0-6 on 4 nodes of the unit")


def test_a_nic_without_neighbour_is_compared_with_the_other_nodes() -> None:
    cabling = cable(nodes=4)
    unplug(cabling, ("gpu-1", 4))
    misfit = only(cabling)
    assert misfit.kind is MisfitKind.NOT_CABLED
    assert misfit.text == (
        "eth4 has no LLDP neighbor and its link is down; 3 other nodes of its unit have it on leaf-0-4"
    )


def test_a_nic_without_neighbour_on_a_single_node_is_compared_with_the_other_nics() -> None:
    cabling = cable(nodes=1)
    unplug(cabling, ("gpu-0", 4))
    assert "7 other NICs of this model have one" in only(cabling).text


def test_a_node_without_any_neighbour_has_no_lldp_and_no_misfit() -> None:
    cabling = cable(nodes=4)
    for rail in range(RAILS):
        unplug(cabling, ("gpu-2", rail))
    assert judge(cabling) == ()


def test_a_slower_link_is_compared_with_the_same_nic_elsewhere() -> None:
    cabling = cable(nodes=4)
    change(cabling, ("gpu-0", 1), speed_mbps=200_000)
    misfit = only(cabling)
    assert misfit.kind is MisfitKind.SPEED
    assert misfit.text == "eth1 runs at 200G; 3 nodes of its unit have it at 400G"
    assert "leaf-0-1 Ethernet1/1" in misfit.fix


def test_a_slower_link_of_a_single_node_is_compared_with_its_other_nics() -> None:
    cabling = cable(nodes=1)
    change(cabling, ("gpu-0", 1), speed_mbps=100_000)
    assert only(cabling).text == "eth1 runs at 100G; 7 other NICs run at 400G"


def test_a_rail_that_contradicts_the_leaf_is_named() -> None:
    cabling = cable(nodes=4)
    change(cabling, ("gpu-3", 2), rail=5)
    misfit = only(cabling)
    assert misfit.kind is MisfitKind.RAIL
    assert misfit.text == "eth2 has rail 5, but leaf-0-2 has rail 2 on 3 other links"


def test_front_end_nics_on_switches_of_their_own_are_no_misfit() -> None:
    cabling = cable(units=1, nodes=4)
    front = [
        replace(
            cabling[f"gpu-{node}", 0],
            device="front",
            ifname="front0",
            slot="0000:90:00.0",
            model="E810",
            rail=None,
            speed_mbps=25_000,
            switch=f"02:bb:{node // 2}",
            switch_name=f"tor-{node // 2}",
        )
        for node in range(4)
    ]
    links: list[Link] = [*cabling.values(), *front]
    assert find_misfits(links) == ()
    assert len(find_units(links)) == 1


def test_two_switches_of_one_name_are_told_apart() -> None:
    cabling = cable(units=2, nodes=4)
    for place in cabling:
        change(cabling, place, switch_name="switch")
    change(cabling, ("gpu-3", 6), switch="02:00:00:00:01:06")
    assert "on switch (02:00:00:00:01:06) Ethernet1/4" in only(cabling).text


@given(st.permutations(list(cable(units=2, nodes=4).items())))
def test_the_order_of_the_links_changes_nothing(items: list[tuple[tuple[str, int], Link]]) -> None:
    cabling = dict(items)
    swap(cabling, ("gpu-2", 3), ("gpu-2", 5))
    unplug(cabling, ("gpu-6", 1))
    assert sorted(kinds(judge(cabling))) == [MisfitKind.NOT_CABLED, MisfitKind.SWAPPED]


@given(st.integers(3, 8), st.booleans(), st.data())
def test_one_pair_of_swapped_cables_is_found_and_no_other(
    nodes: int, has_rails: bool, data: st.DataObject
) -> None:
    cabling = cable(nodes=nodes)
    if not has_rails:
        for place in cabling:
            change(cabling, place, rail=None)
    node = f"gpu-{data.draw(st.integers(0, nodes - 1))}"
    first, second = data.draw(st.permutations(range(RAILS)))[:2]
    swap(cabling, (node, first), (node, second))
    misfit = only(cabling)
    assert (misfit.kind, misfit.nodes) == (MisfitKind.SWAPPED, (node,))
    assert {link.ifname for link in misfit.links} == {f"eth{first}", f"eth{second}"}


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, RAILS - 1))))
def test_without_rails_no_cable_is_wrong_however_many_are_known(unknown: set[tuple[int, int]]) -> None:
    cabling = cable(nodes=8)
    for node, rail in cabling:
        unit = int(node.removeprefix("gpu-")) // 4
        change(cabling, (node, rail), switch=f"02:{unit}", switch_name=f"tor-{unit}", rail=None)
    for node_number, rail in unknown:
        unplug(cabling, (f"gpu-{node_number}", rail))
    assert set(kinds(judge(cabling))) <= {MisfitKind.NOT_CABLED}


_NAMES = st.sampled_from(["", "a", "b", "c"])
_LINKS = st.builds(
    Link,
    node=st.sampled_from(["n1", "n2", "n3"]),
    device=st.sampled_from(["d1", "d2", "d3"]),
    ifname=_NAMES,
    slot=_NAMES,
    model=_NAMES,
    rail=st.none() | st.integers(-1, 3),
    speed_mbps=st.none() | st.integers(-1, 3),
    switch=_NAMES,
    switch_name=st.text(max_size=3),
    port=_NAMES,
)


@given(st.lists(_LINKS, max_size=12))
def test_any_links_are_judged(links: list[Link]) -> None:
    for misfit in find_misfits(links):
        assert misfit.links
        assert misfit.text
        assert misfit.fix
        assert {link.node for link in misfit.links} <= set(misfit.nodes)
    nodes = [node for unit in find_units(links) for node in unit.nodes]
    assert len(nodes) == len(set(nodes))

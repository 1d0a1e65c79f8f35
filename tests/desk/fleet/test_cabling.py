"""Cables compared over the nodes: rails, units with switches of their own, fabrics without rails."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dranet.desk.fleet.cabling import Cable, find_miscabled, read_cables

NICS = 4


def cable(node: str, nic: int, switch: str, rail: int | None = None) -> Cable:
    return Cable(node, f"nic-{nic}", f"0000:{nic:02x}:00.0", switch, switch, "swp1", rail)


def fleet(nodes: int, unit: str = "u", *, has_rails: bool = False) -> list[Cable]:
    """NIC n of each node at leaf n of the unit."""
    return [
        cable(f"{unit}-{node}", nic, f"{unit}-leaf-{nic}", nic if has_rails else None)
        for node in range(nodes)
        for nic in range(NICS)
    ]


def with_swapped(cables: Iterable[Cable], node: str, a: int, b: int) -> list[Cable]:
    found = list(cables)
    at = {one.device: index for index, one in enumerate(found) if one.node == node}
    first, second = found[at[f"nic-{a}"]], found[at[f"nic-{b}"]]
    found[at[first.device]] = cable(node, a, second.switch, second.rail)
    found[at[second.device]] = cable(node, b, first.switch, first.rail)
    return found


def test_swapped_cables_are_found_by_the_rail_of_most_nodes_across_units() -> None:
    cables = with_swapped([*fleet(2, "u", has_rails=True), *fleet(2, "v", has_rails=True)], "v-1", 0, 2)
    assert find_miscabled(cables) == {
        "v-1": (
            "nic-0 is cabled to rail 2, v-leaf-2 swp1; this NIC is on rail 0 on 3 of 4 like nodes",
            "nic-2 is cabled to rail 0, v-leaf-0 swp1; this NIC is on rail 2 on 3 of 4 like nodes",
        )
    }


def test_swapped_cables_are_found_by_switches_alone_in_units_with_leaves_of_their_own() -> None:
    found = find_miscabled(with_swapped([*fleet(4, "u"), *fleet(4, "v")], "u-3", 1, 2))
    assert list(found) == ["u-3"]
    assert found["u-3"] == (
        "nic-1 is cabled to u-leaf-2 swp1; that switch has another NIC of 3 like nodes: 0000:02:00.0",
        "nic-2 is cabled to u-leaf-1 swp1; that switch has another NIC of 3 like nodes: 0000:01:00.0",
    )


def test_of_two_nodes_that_differ_neither_is_right() -> None:
    assert find_miscabled(with_swapped(fleet(2), "u-1", 0, 1)) == {}
    assert find_miscabled(with_swapped(fleet(2, has_rails=True), "u-1", 0, 1)) == {}


def test_nodes_of_another_make_are_compared_with_their_like() -> None:
    others = [cable(f"o-{node}", nic + 1, f"u-leaf-{nic}", nic) for node in range(3) for nic in range(NICS)]
    assert find_miscabled([*fleet(5, has_rails=True), *others]) == {}


@given(st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_a_fabric_as_planned_has_no_wrong_cable(nodes: int, units: int, has_rails: bool) -> None:
    cables = [one for unit in range(units) for one in fleet(nodes, f"u{unit}", has_rails=has_rails)]
    assert find_miscabled(cables) == {}


@given(st.data())
def test_a_fabric_without_rails_has_no_wrong_cable_however_many_nics_are_known(data: st.DataObject) -> None:
    nodes = [cable(f"n-{node}", nic, f"tor-{node // 4}") for node in range(8) for nic in range(NICS)]
    known = data.draw(st.lists(st.sampled_from(nodes), unique_by=lambda one: (one.node, one.place)))
    others = [cable(one.node, int(one.device[4:]), "") for one in nodes if one not in known]
    assert find_miscabled([*known, *others]) == {}


@given(st.integers(3, 8), st.data())
def test_one_pair_of_swapped_cables_is_found_and_no_other(nodes: int, data: st.DataObject) -> None:
    a, b = data.draw(st.permutations(range(NICS)))[:2]
    node, has_rails = f"u-{data.draw(st.integers(0, nodes - 1))}", data.draw(st.booleans())
    found = find_miscabled(with_swapped(fleet(nodes, has_rails=has_rails), node, a, b))
    assert {name: len(lines) for name, lines in found.items()} == {node: 2}


def test_cables_are_read_from_slices_whichever_way_the_names_are_written() -> None:
    devices = [
        {
            "name": "nic-0",
            "attributes": {
                "dra.net/pciAddress": {"string": "0000:01:00.0"},
                "switchName": {"string": "leaf-1"},
                "dra.net/switchPortId": {"string": "swp7"},
                "dra.net/rail": {"int": 0},
            },
        },
        {
            "name": "eth5",
            "attributes": {"dra.net/ifName": {"string": "eth5"}, "dra.net/rail": {"string": "x"}},
        },
        {
            "name": "vf",
            "attributes": {"dra.net/isSriovVf": {"bool": True}, "dra.net/ifName": {"string": "v"}},
        },
        {"name": "gpu-0", "attributes": {"dra.net/type": {"string": "gpu"}, "pciAddress": {"string": "x"}}},
        {"name": "bare"},
    ]
    assert list(read_cables("n", [{"spec": {"devices": devices}}])) == [
        Cable("n", "nic-0", "0000:01:00.0", "", "leaf-1", "swp7", 0),
        Cable("n", "eth5", "eth5", ""),
    ]

"""Fabrics -> labels, Slurm's files, Kueue's objects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.desk.fabric.fabric import Fabric, read_fabric
from dranet.desk.fabric.hostlist import compress, expand
from dranet.desk.fabric.kueue import build_topologies
from dranet.desk.fabric.labels import build_labels, label_value, plan_patch, render_commands
from dranet.desk.fabric.slurm import build_document, build_tree, render_blocks, render_tree
from tests.desk.fabric.fabrics import cable
from tests.desk.fabric.slices import make_slice, make_slices, placed

DRIVER = "dra.net"


def of_units(units: int = 2, nodes: int = 4) -> Fabric:
    return read_fabric(make_slices(cable(units, nodes).values()), DRIVER)


def in_cloud() -> Fabric:
    """Two blocks; of one node only the block is known."""
    slices = [
        placed("vm-1", gce_block="b1", gce_subBlock="s1"),
        placed("vm-2", gce_block="b1", gce_subBlock="s1"),
        placed("vm-3", gce_block="b2", gce_subBlock="s1"),
        placed("vm-4", gce_block="b2"),
    ]
    return read_fabric(slices, DRIVER)


HOSTLISTS = {
    ("gpu-1", "gpu-2", "gpu-3"): "gpu-[1-3]",
    ("gpu-9", "gpu-10", "gpu-12"): "gpu-[9-10,12]",
    ("n08", "n09", "n10"): "n[08-10]",
    ("n009", "n010", "n011"): "n[009-011]",
    ("login", "gpu-1"): "gpu-1,login",
    ("a1", "b1", "a2"): "a[1-2],b1",
    ("rack1-gpu3", "rack1-gpu4", "rack2-gpu3"): "rack1-gpu[3-4],rack2-gpu3",
    ("a1.example.com", "a2.example.com"): "a1.example.com,a2.example.com",
    (): "",
}


@pytest.mark.parametrize(("names", "text"), HOSTLISTS.items(), ids=str)
def test_names_are_compressed_as_slurm_does(names: tuple[str, ...], text: str) -> None:
    assert compress(reversed(names)) == text


NODE_NAMES = st.from_regex(r"[a-z]([a-z0-9.-]{0,4}[a-z0-9])?[0-9]{0,3}", fullmatch=True)


@given(st.sets(NODE_NAMES | st.builds("n{:0{}d}".format, st.integers(0, 1200), st.integers(1, 4))))
def test_a_compressed_list_names_the_same_nodes(names: set[str]) -> None:
    found = expand(compress(names))
    assert sorted(found) == sorted(names)


def test_the_tree_has_a_leaf_for_each_unit() -> None:
    assert [line for line in render_tree(of_units()) if not line.startswith("#")] == [
        "SwitchName=leaf-0-0 Nodes=gpu-[0-3]",
        "SwitchName=leaf-1-0 Nodes=gpu-[4-7]",
        "SwitchName=fabric Switches=leaf-0-0,leaf-1-0",
    ]


def test_the_rails_of_a_unit_are_named_in_a_comment() -> None:
    assert "# leaf-0-0: leaf switches leaf-0-[0-7]" in list(render_tree(of_units()))


def test_one_unit_needs_no_root() -> None:
    assert [line for line in render_tree(of_units(1)) if not line.startswith("#")] == [
        "SwitchName=leaf-0-0 Nodes=gpu-[0-3]"
    ]


def test_the_levels_of_a_cloud_are_switches_above_each_other() -> None:
    """Equal names in two blocks are two switches, and what is known less closely has a leaf of its own."""
    assert [line for line in render_tree(in_cloud()) if not line.startswith("#")] == [
        "SwitchName=gce-b1-s1-" + hash_of("gce/b1/s1") + " Nodes=vm-[1-2]",
        "SwitchName=gce-b2-s1-" + hash_of("gce/b2/s1") + " Nodes=vm-3",
        "SwitchName=b1 Switches=gce-b1-s1-" + hash_of("gce/b1/s1"),
        "SwitchName=b2-others Nodes=vm-4",
        "SwitchName=b2 Switches=b2-others,gce-b2-s1-" + hash_of("gce/b2/s1"),
        "SwitchName=fabric Switches=b[1-2]",
    ]


def hash_of(text: str) -> str:
    return label_value(text).rpartition("-")[2]


def test_the_switch_of_nodes_that_are_known_less_closely_has_a_name_of_its_own_within_the_limit() -> None:
    island = "x" * 64
    slices = [
        placed("vm-1", oke_hpcIslandId=island),
        placed("vm-2", oke_hpcIslandId=island, oke_networkBlockId="b1"),
        placed("vm-3", oke_hpcIslandId="i"),
        placed("vm-4", oke_hpcIslandId="i", oke_networkBlockId="i-others"),
    ]
    switches = build_tree(read_fabric(slices, DRIVER))
    names = [switch.name for switch in switches]
    assert max(map(len, names)) <= 64
    assert len(set(names)) == len(names) == 7
    assert {name for switch in switches for name in switch.switches} < set(names)


def test_blocks_have_the_size_of_the_smallest() -> None:
    cabling = cable(2, 4)
    del cabling["gpu-7", 0]
    slices = [body for body in make_slices(cabling.values()) if body["spec"]["nodeName"] != "gpu-7"]
    assert [line for line in render_blocks(read_fabric(slices, DRIVER)) if not line.startswith("#")] == [
        "BlockName=leaf-0-0 Nodes=gpu-[0-3]",
        "BlockName=leaf-1-0 Nodes=gpu-[4-6]",
        "BlockSizes=3",
    ]


def test_topology_yaml_has_a_tree_and_blocks() -> None:
    tree, block = build_document(of_units())
    assert next(iter(tree)) == next(iter(block)) == "topology"
    assert tree["cluster_default"] is True
    assert tree["tree"]["switches"][-1] == {"switch": "fabric", "children": "leaf-0-0,leaf-1-0"}
    assert block["block"]["block_sizes"] == [4]


def test_nodes_without_a_place_are_named() -> None:
    slices = [*make_slices(cable(1, 2).values()), make_slice("cpu-1", {})]
    fabric = read_fabric(slices, DRIVER)
    assert fabric.unplaced == ("cpu-1",)
    assert "# not here, because their place is unknown: cpu-1" in list(render_tree(fabric))
    assert build_labels(fabric, DRIVER)["cpu-1"] == {}


def test_kueue_gets_the_levels_from_wide_to_close() -> None:
    (topology,) = build_topologies(in_cloud(), DRIVER)
    assert topology["metadata"] == {"name": "dranet-gce"}
    assert [level["nodeLabel"] for level in topology["spec"]["levels"]] == [
        "fabric.dra.net/block",
        "fabric.dra.net/subBlock",
        "kubernetes.io/hostname",
    ]


def test_each_source_of_levels_is_a_topology_of_its_own() -> None:
    slices = [*make_slices(cable(1, 2).values()), placed("vm-1", oke_networkBlockId="n", oke_rackId="r")]
    names = [one["metadata"]["name"] for one in build_topologies(read_fabric(slices, DRIVER), DRIVER)]
    assert names == ["dranet-lldp", "dranet-oke"]


def test_the_commands_label_the_nodes_and_remove_the_labels() -> None:
    *lines, removal = render_commands(of_units(2, 1), DRIVER)
    assert "kubectl label --overwrite nodes gpu-1 fabric.dra.net/unit=leaf-1-0" in lines
    assert removal == "# kubectl label nodes --all fabric.dra.net/unit-"


def test_devices_of_one_node_that_contradict_each_other_leave_the_level_out() -> None:
    devices = {
        "eth0": {"gce.dra.net/block": {"string": "b1"}, "gce.dra.net/subBlock": {"string": "s1"}},
        "eth1": {"gce.dra.net/block": {"string": "b1"}, "gce.dra.net/subBlock": {"string": "s2"}},
    }
    fabric = read_fabric([make_slice("vm-1", devices)], DRIVER)
    assert fabric.conflicts == ("vm-1",)
    assert fabric.places[0].levels == {"block": "b1"}


def test_old_slices_other_drivers_and_virtual_functions_do_not_count() -> None:
    cabling = cable(1, 1)
    (new,) = make_slices(cabling.values())
    old = make_slice("gpu-0", {"gone": {"dra.net/switchName": {"string": "old"}}})
    new["spec"]["pool"]["generation"] = 2
    new["spec"]["devices"].append(
        {
            "name": "vf",
            "attributes": {"dra.net/ifName": {"string": "v0"}, "dra.net/isSriovVf": {"bool": True}},
        }
    )
    foreign = make_slice("gpu-0", {"x": {"dra.net/switchName": {"string": "other"}}})
    foreign["spec"]["driver"] = "nic.example.com"
    fabric = read_fabric([old, new, foreign], DRIVER)
    assert len(fabric.nodes["gpu-0"].links) == 8
    assert len(fabric.switches) == 8


def test_attributes_may_leave_out_the_drivers_own_domain() -> None:
    device = {"switchName": {"string": "leaf-1"}, "ifName": {"string": "eth0"}}
    fabric = read_fabric([make_slice("a", {"eth0": device})], DRIVER)
    assert [place.name for place in fabric.places] == ["leaf-1"]


@given(st.text(max_size=80))
def test_any_text_becomes_a_value_that_kubernetes_takes(text: str) -> None:
    value = label_value(text)
    assert len(value) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) or value == text == ""


@given(st.sets(st.text("aB1-_./ é", max_size=70), min_size=2, max_size=4))
def test_two_texts_are_never_one_value(texts: set[str]) -> None:
    assert len({label_value(text) for text in texts}) == len(texts)


def test_a_patch_leaves_others_labels_alone() -> None:
    prefix = "fabric.dra.net/"
    current = {"pool": "a", f"{prefix}unit": "old", f"{prefix}block": "b"}
    assert plan_patch(current, {f"{prefix}unit": "new"}, prefix) == {
        f"{prefix}unit": "new",
        f"{prefix}block": None,
    }
    assert plan_patch(current, {f"{prefix}unit": "old", f"{prefix}block": "b"}, prefix) == {}

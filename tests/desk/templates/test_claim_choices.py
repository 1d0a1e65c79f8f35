"""What is written for which hardware, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from dranet.model.facts import Distance, distance
from tests.data.gpu_drivers import Driver
from tests.data.layouts import CLAIMED_LAYOUTS
from tests.desk.templates.distances import allocate_choice, distances_of, good_nics
from tests.desk.templates.layout_clusters import Gpus, World, world

WITH_GPUS = [layout for layout in CLAIMED_LAYOUTS if layout != "plain-server"]


def choice(*machines: World, not_offered: dict[str, list[str]] | None = None, **asked: Any) -> Choice:
    slices = [entry for machine in machines for entry in machine.slices]
    return choose_claim(ClaimRequest(**asked), read_hardware(slices), not_offered=not_offered)


def devices_of(found: Choice, number: int = 0) -> dict[str, Any]:
    spec: dict[str, Any] = found.templates[number]["spec"]["spec"]["devices"]
    return spec


def constraints(found: Choice) -> list[str]:
    return [entry["matchAttribute"] for entry in devices_of(found).get("constraints", ())]


def expressions(found: Choice) -> str:
    return str(devices_of(found)["requests"])


# --- the simplest that is enough ---------------------------------------------------------------------


def test_below_a_root_of_their_own_one_gpu_and_one_nic_meet_on_pcie_root_alone() -> None:
    found = devices_of(choice(world("dgx-h100")))

    assert [request["name"] for request in found["requests"]] == ["nic", "gpu"]
    assert all("exactly" in request for request in found["requests"])
    assert found["constraints"] == [
        {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["nic", "gpu"]}
    ]


def test_where_roots_never_match_there_is_a_ladder_and_no_root_in_it() -> None:
    for layout in ("azure-nd-h100-v5", "azure-gb300", "oci-gb200"):
        found = choice(world(layout))
        nic, gpu = devices_of(found)["requests"]

        assert [one["name"] for one in nic["firstAvailable"]] == ["same-numa", "any"]
        assert "exactly" in gpu
        assert devices_of(found)["constraints"] == [
            {"matchAttribute": "resource.kubernetes.io/numaNode", "requests": ["nic/same-numa", "gpu"]}
        ]


def test_a_switch_that_is_finer_than_the_root_is_the_first_rung() -> None:
    found = choice(world("virtual-node"), rdma=False)
    nic, _ = devices_of(found)["requests"]

    assert [one["name"] for one in nic["firstAvailable"]][:2] == ["same-switch", "same-root"]
    assert constraints(found)[:2] == ["dra.net/pcieSwitch", "resource.kubernetes.io/pcieRoot"]
    assert distances_of(allocate_choice(found, world("virtual-node")), world("virtual-node")) == (
        Distance.PIX,
    )


def test_all_gpus_of_a_node_need_only_a_choice_of_nics() -> None:
    found = devices_of(choice(world("dgx-h100"), gpus=8, nics=8))

    assert "constraints" not in found
    assert [request["exactly"]["count"] for request in found["requests"]] == [8, 8]
    assert 'nearestGpuDistance.orValue("") in ["PIX"]' in str(found["requests"][0])


def test_of_nics_at_several_distances_so_many_are_asked_for_at_each() -> None:
    machine = world("dgx-h100")
    given = allocate_choice(choice(machine, gpus=8, nics=9), machine)

    assert distances_of(given, machine) == (*[Distance.PIX] * 8, Distance.NODE)


def test_one_claim_for_unlike_machines_has_the_rungs_of_both() -> None:
    dgx, azure = world("dgx-h100", node="dgx"), world("azure-nd-h100-v5", node="azure")
    found = choice(dgx, azure)

    assert constraints(found) == ["resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"]
    for machine, wanted in ((dgx, Distance.PIX), (azure, Distance.NODE)):
        assert distances_of(allocate_choice(found, machine), machine) == (wanted,)


def test_nodes_that_differ_only_in_what_their_gpus_publish_are_two_kinds() -> None:
    """A constraint refuses a GPU that does not say its root, wherever it is."""
    new, old = world("dgx-h100", Gpus.VENDOR, "new"), world("dgx-h100", Gpus.VENDOR_NO_ROOT, "old")
    found = choice(new, old, gpus=2, nics=2)

    for machine in (new, old):
        assert distances_of(allocate_choice(found, machine), machine) == (Distance.PIX,) * 2
    assert [names for _, names in found.makes] == [("new",), ("old",)]


@pytest.mark.parametrize("layout", CLAIMED_LAYOUTS)
def test_nodes_of_one_machine_type_are_tried_once(layout: str) -> None:
    found = choice(*(world(layout, node=f"node-{number}") for number in range(3)), gpus=0)

    assert [names for _, names in found.makes] == [("node-0", "node-1", "node-2")]


def test_of_many_kinds_of_nodes_one_line_says_what_is_the_same_on_all() -> None:
    text = json.dumps(world("azure-nd-h100-v5").slices)
    machines = [text.replace("node-1", f"node-{n}").replace('"010', f'"0{n}0') for n in range(2, 9)]
    hardware = read_hardware([entry for one in machines for entry in json.loads(one)])
    notes = describe(choose_claim(ClaimRequest(), hardware))

    seen = "node-2, node-3, node-4 and 4 more nodes like it: 8 GPUs (dra.net) and 8 RDMA NICs (dra.net)"
    assert notes[1] == f"Seen: {seen}."
    assert [note.partition(" on ")[0] for note in notes if note.startswith("Expect")] == ["Expect: NODE"]


def test_a_node_that_has_too_little_is_named_and_does_not_shape_the_claim() -> None:
    found = choice(world("dgx-h100", node="dgx"), world("plain-server", node="plain"))

    assert constraints(found) == ["resource.kubernetes.io/pcieRoot"]
    assert "not enough on plain." in describe(found)[1]


def test_a_port_without_a_link_is_passed_over_while_there_are_enough_others() -> None:
    machine = world("dgx-h100")
    ten = allocate_choice(choice(machine, gpus=0, nics=10), machine)
    every = choice(machine, gpus=0, nics=12)

    assert {nic.attributes["dra.net/rdmaPortState"] for nic in ten} == {"ACTIVE"}
    assert len(allocate_choice(every, machine)) == 12
    assert "too few of these NICs have a link now" in describe(every)[1]


# --- GPUs of a vendor's driver -----------------------------------------------------------------------


def test_a_vendors_gpus_are_asked_for_by_its_class_and_its_class_is_not_written() -> None:
    found = choice(world("dgx-h100", Gpus.VENDOR))

    assert [entry["metadata"]["name"] for entry in found.classes] == ["dranet-rdma"]
    assert devices_of(found)["requests"][1]["exactly"]["deviceClassName"] == Driver.NVIDIA
    assert constraints(found) == ["resource.kubernetes.io/pcieRoot"]


def test_a_vendors_class_may_have_another_name() -> None:
    found = choice(world("dgx-h100", Gpus.VENDOR), gpu_class="h100")

    assert devices_of(found)["requests"][1]["exactly"]["deviceClassName"] == "h100"


def test_a_vendor_that_does_not_say_the_numa_node_gets_groups_that_cannot_be_mixed() -> None:
    machine = world("azure-nd-h100-v5", Gpus.VENDOR)
    nic, gpu = devices_of(choice(machine))["requests"]
    excluded = {tuple(c["requests"]) for c in devices_of(choice(machine))["constraints"]}

    assert [one["name"] for one in nic["firstAvailable"]] == ["numa-0", "numa-1", "any"]
    assert [one["name"] for one in gpu["firstAvailable"]] == ["numa-1", "numa-0"], "the pairs weigh the same"
    assert set(constraints(choice(machine))) == {"resource.kubernetes.io/pciBusID"}
    assert excluded == {("nic/numa-0", "gpu/numa-1"), ("nic/numa-1", "gpu/numa-0")}


@pytest.mark.parametrize("layout", ["azure-nd-h100-v5", "azure-gb300", "infiniband-only"])
def test_every_pair_of_one_group_weighs_the_same_and_more_than_any_other(layout: str) -> None:
    """A scheduler adds up the places of the alternatives, and prefers the node with the least sum."""
    nic, gpu = devices_of(choice(world(layout, Gpus.VENDOR)))["requests"]
    nics, gpus = ({one["name"]: i for i, one in enumerate(r["firstAvailable"])} for r in (nic, gpu))
    pairs = {nics[group] + gpus[group] for group in nics.keys() & gpus.keys()}
    others = {nics["any"] + place for place in gpus.values()}

    assert len(pairs) == 1
    assert max(pairs) < min(others)


def test_a_rung_is_by_an_attribute_of_one_type_and_never_by_a_list() -> None:
    listed = [with_lists(entry) for entry in world("azure-nd-h100-v5").slices]
    found = choose_claim(ClaimRequest(), read_hardware(listed))

    assert constraints(found) == ["dra.net/numaNode"]


def with_lists(entry: dict[str, Any]) -> dict[str, Any]:
    devices = [
        {**d, "attributes": {k: as_list(k, v) for k, v in d["attributes"].items()}}
        for d in entry["spec"]["devices"]
    ]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}


def as_list(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"ints": [value["int"]]} if name == "resource.kubernetes.io/numaNode" else value


def test_nics_that_say_no_more_than_dranets_are_aligned_by_root() -> None:
    """A driver that publishes no distances, switches and port states."""
    machine = world("dgx-h100", Gpus.VENDOR)
    said = ("rdma", "virtual", "type", "ifName", "pcieRoot", "numaNode", "pciAddress")
    slices = [only_attributes(entry, said) for entry in machine.slices]
    found = choose_claim(ClaimRequest(gpus=2, nics=2), read_hardware(slices))
    given = allocate_choice(found, World(machine.node, tuple(slices), machine.gpus, machine.nics))

    assert set(constraints(found)) == {"resource.kubernetes.io/pcieRoot"}
    assert distances_of(given, machine) == (Distance.PIX, Distance.PIX)


def only_attributes(entry: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    if entry["spec"]["driver"] == Driver.NVIDIA:
        return entry
    devices = [
        {**d, "attributes": {k: v for k, v in d["attributes"].items() if k.partition("/")[2] in names}}
        for d in entry["spec"]["devices"]
    ]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}


# --- rails and whole nodes ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", WITH_GPUS)
def test_a_rail_is_the_same_nic_in_each_pod_and_net_n_is_its_name(layout: str) -> None:
    two = [world(layout, node="a"), world(layout, node="b")]
    found = choice(*two, per_node=True, rails=True, gpus=1)
    rails = [r["name"] for r in devices_of(found)["requests"] if r["name"].startswith("rail-")]
    given = [[d.pci_address for d in allocate_choice(found, m) if d.kind != "gpu"] for m in two]
    links = {nic.pci_address: nic.ifname for nic in two[0].nics.values()}

    assert given[0] == given[1]
    assert rails == [f"rail-{number}" for number in range(len(given[0]))]
    names = [
        (c["requests"], c["opaque"]["parameters"]["interface"]["name"])
        for c in devices_of(found).get("config", ())
    ]
    wanted = [([rail], f"net{number}") for number, rail in enumerate(rails)]
    assert names == (wanted if all(links[address] for address in given[0]) else [])


def test_the_nic_of_a_rail_is_said_to_be_one_nic_and_not_any_of_several() -> None:
    assert describe(choice(world("dgx-h100"), rails=True))[2] == (
        "Chosen: a request for each NIC, by its PCI address; each NIC with a GPU below the same PCIe root "
        "complex. By resource.kubernetes.io/pcieRoot. A node can have one such pod."
    )


def test_a_whole_node_is_described_with_its_claims_and_distances() -> None:
    assert describe(choice(world("aws-p5"), per_node=True))[2] == (
        "Chosen: all GPUs and NICs of the node. It takes two claims, because a claim has at most 32 devices."
    )
    assert describe(choice(world("infiniband-only"), per_node=True))[3].startswith(
        "Expect: 5 x PIX, 1 x NODE and 2 x SYS on"
    )


def test_rails_follow_the_order_of_the_gpus() -> None:
    machine = world("mi300x")
    given = allocate_choice(choice(machine, per_node=True, rails=True), machine)
    nics = [device for device in given if device.kind != "gpu"]

    for nic, gpu in zip(nics, machine.gpus.values(), strict=True):
        assert distance(nic, gpu) is Distance.PXB


def test_rails_for_a_part_of_the_node_take_the_gpus_beside_them() -> None:
    machine = world("dgx-h100")
    given = allocate_choice(choice(machine, gpus=3, nics=3, rails=True), machine)

    assert distances_of(given, machine) == (Distance.PIX,) * 3


def test_rails_on_nodes_whose_nics_are_elsewhere_are_refused() -> None:
    machines = [world("dgx-h100", node="a"), world("hgx-b200", node="b")]
    much_like_a = without(world("dgx-h100", node="c"), "pci-0000-29-00-0")

    with pytest.raises(NotAvailable, match="every node, and a and b differ") as refused:
        choice(*machines, much_like_a, gpus=8, nics=8, rails=True)
    assert "one claim for each kind of node" in refused.value.hint


def test_a_rail_that_one_node_lacks_is_no_rail_of_any() -> None:
    whole, lacking = world("hgx-b200", node="a"), without(world("hgx-b200", node="b"), "pci-0000-4b-00-0")
    found = choice(whole, lacking, gpus=7, nics=7, rails=True)

    for machine in (whole, lacking):
        given = allocate_choice(found, machine)
        assert "pci-0000-4b-00-0" not in {device.name for device in given}
        assert distances_of(given, machine) == (Distance.PIX,) * 7
    assert "not enough on b." in describe(choice(whole, lacking, gpus=8, nics=8, rails=True))[1]


def without(machine: World, name: str) -> World:
    slices = deepcopy(list(machine.slices))
    for entry in slices:
        entry["spec"]["devices"] = [device for device in entry["spec"]["devices"] if device["name"] != name]
    return machine.only(slices)


def test_rails_without_gpus_are_the_nics_beside_the_gpus_all_the_same() -> None:
    machine = world("dgx-h100")
    given = allocate_choice(choice(machine, gpus=0, per_node=True, rails=True), machine)

    assert [device.attributes["dra.net/nearestGpuDistance"] for device in given] == ["PIX"] * 8
    assert [device.pci_address for device in given] == sorted(device.pci_address for device in given)


@pytest.mark.parametrize("layout", WITH_GPUS)
def test_per_node_takes_every_gpu_and_every_nic_of_one_fabric_with_a_link(layout: str) -> None:
    machine = world(layout)
    found = choice(machine, per_node=True)
    given = {device.name for device in allocate_choice(found, machine)}

    assert given == {nic.name for nic in good_nics(machine, 1, rdma=True)} | set(machine.gpus)


def test_more_devices_than_a_claim_takes_become_two_claims_of_one_pod() -> None:
    found = choice(world("aws-p5"), per_node=True)
    spec = found.pods[0]["spec"]

    assert [t["metadata"]["name"] for t in found.templates] == ["whole-node", "whole-node-gpus"]
    assert [c["name"] for c in spec["containers"][0]["resources"]["claims"]] == ["nics", "gpus"]
    assert [c["resourceClaimTemplateName"] for c in spec["resourceClaims"]] == [
        "whole-node",
        "whole-node-gpus",
    ]


@pytest.mark.parametrize(
    ("ask", "shares"),
    [({"gpus": 1}, False), ({"gpus": 2, "nics": 2}, True), ({"per_node": True}, True), ({"gpus": 0}, False)],
)
def test_several_gpus_share_more_memory_than_a_container_has_by_itself(
    ask: dict[str, Any], shares: bool
) -> None:
    found = choice(world("dgx-h100"), **ask)
    spec = found.pods[0]["spec"]
    (container,) = spec["containers"]

    assert [mount["mountPath"] for mount in container.get("volumeMounts", ())] == ["/dev/shm"] * shares
    assert [volume["emptyDir"] for volume in spec.get("volumes", ())] == [{"medium": "Memory"}] * shares
    assert any(part.startswith("Mounted: ") for part in describe(found)) is shares


def test_per_node_without_gpus_takes_the_nics_alone() -> None:
    machine = world("dgx-h100")
    found = choice(machine, per_node=True, gpus=0)

    assert {device.kind for device in allocate_choice(found, machine)} == {"nic"}
    assert [entry["metadata"]["name"] for entry in found.classes] == ["dranet-rdma"]


def test_a_nic_that_is_shared_is_no_answer_to_who_asks_for_a_whole_one() -> None:
    machine = world("dgx-h100")
    slices = [with_shared(entry, "pci-0000-18-00-0") for entry in machine.slices]
    shared = World(machine.node, tuple(slices), machine.gpus, machine.nics)
    found = choose_claim(ClaimRequest(), read_hardware(slices))

    assert "!device.allowMultipleAllocations" in expressions(found)
    assert "pci-0000-18-00-0" not in {device.name for device in allocate_choice(found, shared)}


def with_shared(entry: dict[str, Any], name: str) -> dict[str, Any]:
    devices = [
        {**d, "allowMultipleAllocations": True} if d["name"] == name else d for d in entry["spec"]["devices"]
    ]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}


# --- refusals ----------------------------------------------------------------------------------------


def refusal(machines: Iterable[World], **asked: Any) -> str:
    with pytest.raises(NotAvailable) as refused:
        choice(*machines, **asked)
    return f"{refused.value.message} / {refused.value.hint}"


def test_more_gpus_than_a_node_has_are_refused_with_the_largest_node() -> None:
    machines = [world("dgx-h100", node="big"), world("azure-gb300", node="small")]

    assert refusal(machines, gpus=9) == ("--gpus 9: the largest node, big, has 8 / --gpus 8 --nics 1 works")


@pytest.mark.parametrize("layout", [layout for layout in CLAIMED_LAYOUTS if layout != "h20-roce-lag"])
def test_the_request_that_a_refusal_names_works(layout: str) -> None:
    machine = world(layout)
    for gpus, nics in ((9, 1), (9, 9), (10, 5), (9, 99), (2, 99), (99, 2), (0, 99)):
        closest = re.search(r"--gpus (\d+) --nics (\d+) works", refusal([machine], gpus=gpus, nics=nics))

        assert closest
        choice(machine, gpus=int(closest[1]), nics=int(closest[2]))  # does not refuse


def test_the_closest_request_has_as_many_nics_for_each_gpu() -> None:
    def closest(gpus: int, nics: int) -> str:
        return refusal([world("dgx-h100")], gpus=gpus, nics=nics).partition(" / ")[2]

    assert closest(9, 9) == "--gpus 8 --nics 8 works"
    assert closest(10, 5) == "--gpus 8 --nics 4 works"
    assert closest(9, 99) == "--gpus 8 --nics 12 works"


def test_more_nics_than_a_node_offers_are_refused_with_those_that_it_keeps() -> None:
    held = {"node-1": ["mlx5_8 is the node's uplink: enp39s0f0np0 carries a default route"]}

    assert refusal([world("hgx-b200")], nics=9, not_offered=held) == (
        "--nics 9 --rdma: the only node, node-1, offers 8 RDMA NICs (mlx5_8 is the node's uplink: "
        "enp39s0f0np0 carries a default route) / --gpus 1 --nics 8 works"
    )


def test_a_node_without_gpus_gives_nics_alone() -> None:
    plain = world("plain-server")

    assert len(allocate_choice(choice(plain, gpus=0, nics=3), plain)) == 3
    assert refusal([plain]).startswith("--gpus 1: the only node, node-1, has none / ")
    assert (
        refusal([plain], gpus=0, rdma=True)
        == "no node offers an RDMA NIC / --no-rdma takes NICs without RDMA"
    )


def test_nics_without_an_interface_are_no_answer_to_no_rdma() -> None:
    assert refusal([world("aws-p5")], rdma=False) == (
        "no NIC here has a network interface / --rdma also takes RDMA devices without one"
    )


def test_numbers_that_are_on_two_nodes_only_are_refused_with_the_nearest() -> None:
    machines = [world("azure-gb300", node="few-nics"), world("aws-p5", node="many-nics")]

    assert refusal(machines, gpus=8, nics=40).startswith("--nics 40 --rdma: the largest node, many-nics,")
    assert "in a claim" in refusal([world("aws-p5")], gpus=7, nics=28)


def test_no_devices_at_all_is_said() -> None:
    assert refusal([]).startswith("no node offers a ")

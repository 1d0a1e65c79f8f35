"""Devices that no claim of ours should name: of another driver, of another fabric, of nobody."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from tests.data.gpu_drivers import Driver
from tests.desk.templates.distances import allocate_choice
from tests.desk.templates.layout_clusters import Gpus, JsonObject, World, world


def choice(slices: list[JsonObject], **asked: Any) -> Choice:
    return choose_claim(ClaimRequest(**asked), read_hardware(slices))


def changed(machine: World, change: Callable[[JsonObject], bool | None]) -> list[JsonObject]:
    """Each device changed, or left out where ``change`` says False."""
    slices = deepcopy(list(machine.slices))
    for entry in slices:
        entry["spec"]["devices"] = [d for d in entry["spec"]["devices"] if change(d) is not False]
    return slices


# --- other drivers -----------------------------------------------------------------------------------


def peers_slices(machine: World, driver: str) -> list[JsonObject]:
    """The same NICs as DraNet would publish them: the same words, and fewer."""
    more_than_dranet = ("carrier", "rdmaPortState", "nearestGpus", "nearestGpuDistance", "pcieSwitch")

    def strip(device: JsonObject) -> bool:
        kept = {k: v for k, v in device["attributes"].items() if k.rpartition("/")[2] not in more_than_dranet}
        device["attributes"] = kept
        return not device["name"].startswith("gpu-")

    slices = changed(machine, strip)
    for entry in slices:
        entry["spec"]["driver"] = driver
        entry["metadata"]["name"] += driver
    return slices


@pytest.mark.parametrize("peer", ["a.example.com", "z.example.com"])
def test_nics_of_a_peer_that_publishes_them_in_the_same_words_are_not_counted(peer: str) -> None:
    machine = world("hgx-b200")
    found = choice([*peers_slices(machine, peer), *machine.slices], gpus=2, nics=2)

    assert found.hardware.nic_driver == "dra.net"
    assert "8 GPUs (dra.net) and 8 RDMA NICs (dra.net); " in describe(found)[1]
    assert f"NICs of {peer} left out" in describe(found)[1]
    assert [trial.possible for trial in found.attempt.trials] == [4]
    with pytest.raises(NotAvailable, match="offers 8 RDMA NICs"):
        choice([*peers_slices(machine, peer), *machine.slices], nics=9)


def test_a_driver_of_accelerators_need_not_be_called_gpu() -> None:
    machine = world("aws-p5", Gpus.VENDOR)
    slices = deepcopy(list(machine.slices))
    for entry in slices:
        if entry["spec"]["driver"] == Driver.NVIDIA:
            entry["spec"]["driver"] = "neuron.aws.com"
            for device in entry["spec"]["devices"]:
                device["attributes"]["type"] = {"string": "chip"}
    found = choice(slices, gpus=2, nics=2)

    assert found.hardware.gpu_driver == "neuron.aws.com"
    assert found.attempt.is_perfect


def test_gpus_that_a_device_plugin_gives_are_not_said_to_be_missing() -> None:
    slices = changed(world("dgx-h100"), lambda device: not device["name"].startswith("gpu-"))

    with pytest.raises(NotAvailable, match="no claim can ask for the GPUs of node-1") as refused:
        choice(slices)
    assert "a device plugin gives them" in refused.value.hint
    assert (
        "their GPUs left out, because no DRA driver publishes them"
        in describe(choice(slices, per_node=True))[1]
    )


def test_a_pool_that_is_not_complete_is_named_where_no_nic_is_found_and_where_some_are() -> None:
    half = deepcopy(list(world("hgx-b200", node="half").slices))
    for entry in half:
        entry["spec"]["pool"]["resourceSliceCount"] = 2

    with pytest.raises(NotAvailable, match="no node offers a NIC") as refused:
        choice(half)
    assert "the pool dra.net/half is incomplete: 1 of 2 slices" in refused.value.hint
    found = choice([*half, *world("hgx-b200", node="whole").slices])
    assert "the pool dra.net/half is incomplete: 1 of 2 slices" in describe(found)[1]


def test_a_device_that_is_tainted_now_is_named() -> None:
    def taint(device: JsonObject) -> None:
        if device["name"] == "pci-0000-4b-00-0":
            device["taints"] = [{"key": "dra.net/link", "effect": "NoSchedule"}]

    slices = changed(world("hgx-b200"), taint)
    why = "pci-0000-4b-00-0 is tainted dra.net/link:NoSchedule"

    assert f"7 RDMA NICs (dra.net), 1 device left out for now ({why})" in describe(choice(slices))[1]
    with pytest.raises(NotAvailable, match=f"offers 7 RDMA NICs .{why}"):
        choice(slices, nics=8)


def test_of_many_reasons_a_few_are_said() -> None:
    def taint(device: JsonObject) -> None:
        device["taints"] = [{"key": "dra.net/broken", "effect": "NoExecute"}]

    with pytest.raises(NotAvailable, match="no node offers a NIC") as refused:
        choice(changed(world("hgx-b200"), taint))
    assert refused.value.hint.count("is tainted dra.net/broken:NoExecute") == 4
    assert refused.value.hint.endswith("; 12 more such")


# --- fabrics -----------------------------------------------------------------------------------------


def with_infiniband_beside_gpus(machine: World) -> list[JsonObject]:
    """A DGX as most are: InfiniBand beside the GPUs, and Ethernet for storage."""

    def set_fabric(device: JsonObject) -> None:
        near = device["attributes"].get("nearestGpuDistance") or device["attributes"].get(
            "dra.net/nearestGpuDistance", {}
        )
        for name in [one for one in device["attributes"] if one.rpartition("/")[2] == "rdmaLinkLayer"]:
            is_near = near.get("string") in ("PIX", "PXB")
            device["attributes"][name] = {"string": "InfiniBand" if is_near else "Ethernet"}

    return changed(machine, set_fabric)


@pytest.mark.parametrize("layout", ["dgx-h100", "dgx-a100"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"nics": 2},
        {"gpus": 2, "nics": 3},
        {"gpus": 0, "nics": 8},
        {"per_node": True},
        {"per_node": True, "rails": True},
    ],
    ids=str,
)
def test_a_pod_gets_nics_of_one_fabric_the_one_beside_the_gpus(layout: str, asked: dict[str, Any]) -> None:
    machine = world(layout)
    slices = with_infiniband_beside_gpus(machine)
    found = choice(slices, **asked)
    beside = {
        device["name"]
        for entry in slices
        for device in entry["spec"]["devices"]
        if "InfiniBand" in str(device["attributes"])
    }
    given = allocate_choice(found, machine.only(slices))

    assert {device.name for device in given if device.kind != "gpu"} <= beside
    assert "8 InfiniBand RDMA NICs (dra.net)" in describe(found)[1]
    assert "more of another fabric and left out" in describe(found)[1]


def test_of_two_fabrics_together_is_said_where_one_has_too_few() -> None:
    found = choice(with_infiniband_beside_gpus(world("dgx-a100")), gpus=0, nics=12)

    assert "NICs of Ethernet and InfiniBand together, because there are too few of each" in describe(found)[1]


def test_nodes_of_different_fabrics_do_not_keep_each_other_out() -> None:
    machines = [world("dgx-h100", node="ethernet"), world("azure-nd-h100-v5", node="infiniband")]
    found = choice([entry for machine in machines for entry in machine.slices])

    assert found.candidates.others == ()
    assert "rdmaLinkLayer" not in str(found.templates)

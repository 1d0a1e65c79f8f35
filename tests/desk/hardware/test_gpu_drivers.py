"""GPUs of each release of the vendors' drivers: whole ones are found by their address, parts do not count."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest
from msgspec.structs import replace

from dranet.desk.hardware.nodes import NodeHardware, read_hardware
from dranet.desk.kubeapi.kinds import DEVICE_CLASSES, RESOURCE_SLICES
from dranet.desk.kubeapi.validation import validate
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.inventory.topology import near_numa_nodes
from dranet.model.facts import Distance, distance
from tests.data import gpu_drivers
from tests.data.gpu_drivers import Driver, JsonObject
from tests.data.layouts import CLAIMED_LAYOUTS, read_gpus, read_layout
from tests.desk.templates.distances import allocate_choice, best_rank, good_nics, has_rdma, rank_of
from tests.desk.templates.layout_clusters import Gpus, world

VENDORS = [gpus for gpus in Gpus if gpus is not Gpus.OURS]
WITH_GPUS = [layout for layout in CLAIMED_LAYOUTS if world(layout).gpus]


def node_with(driver: Driver, *devices: JsonObject) -> NodeHardware:
    (node,) = read_hardware([gpu_drivers.build_slice(driver, "node-1", devices)]).nodes
    return node


@pytest.mark.parametrize("gpus", VENDORS)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_an_api_server_takes_the_slices(layout: str, gpus: Gpus) -> None:
    for entry in world(layout, gpus).slices:
        assert validate(RESOURCE_SLICES, entry, None) == []


def test_an_api_server_takes_the_slices_of_parts_and_channels_and_the_classes() -> None:
    nvidia, amd = read_gpus("dgx-h100"), read_gpus("mi300x")
    mig = [gpu_drivers.nvidia_mig_0_4(nvidia[0], gpu_drivers.MIG_3G, start) for start in (0, 4)]
    slices = [
        *gpu_drivers.publish_dynamic_mig(nvidia, "node-1"),
        gpu_drivers.build_slice(Driver.NVIDIA, "node-1", mig),
        gpu_drivers.build_slice(Driver.AMD, "node-1", gpu_drivers.amd_partitions(amd[0])),
        gpu_drivers.compute_domain_slice("node-1"),
    ]
    assert [faults for entry in slices if (faults := validate(RESOURCE_SLICES, entry, None))] == []
    classes = gpu_drivers.device_classes()
    assert [faults for entry in classes if (faults := validate(DEVICE_CLASSES, entry, None))] == []


@pytest.mark.parametrize("gpus", VENDORS)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_each_whole_gpu_is_found_by_the_address_that_its_driver_publishes(layout: str, gpus: Gpus) -> None:
    machine = world(layout, gpus)
    hardware = read_hardware(machine.slices)
    (node,) = hardware.nodes

    assert hardware.gpu_driver == machine.gpu_driver
    assert {gpu.name: gpu.address for gpu in node.gpus} == {
        name: device.pci_address for name, device in machine.gpus.items()
    }


def test_mig_devices_are_not_whole_gpus() -> None:
    whole, parted = read_gpus("dgx-h100")[:2]
    parts = [gpu_drivers.nvidia_mig_0_5(parted, gpu_drivers.MIG_1G, start) for start in range(7)]
    node = node_with(Driver.NVIDIA, gpu_drivers.nvidia_0_5(whole), *parts)

    assert [gpu.name for gpu in node.gpus] == ["gpu-0"]


def test_with_dynamic_mig_each_gpu_is_whole_as_long_as_nothing_is_made_of_it() -> None:
    slices = gpu_drivers.publish_dynamic_mig(read_gpus("dgx-h100"), "node-1")
    (node,) = read_hardware(slices).nodes

    assert [gpu.name for gpu in node.gpus] == [f"gpu-{number}" for number in range(8)]


def test_partitions_of_an_amd_gpu_are_not_whole_gpus() -> None:
    whole, parted = read_gpus("mi300x")[:2]
    node = node_with(Driver.AMD, gpu_drivers.amd_1_0(whole), *gpu_drivers.amd_partitions(parted))

    assert [gpu.address for gpu in node.gpus] == [whole.pci_address]


def test_minus_one_is_no_numa_node() -> None:
    """AMD's driver publishes what the kernel has in ``numa_node``."""
    gpu = replace(read_gpus("mi300x")[0], numa_node=None)
    device = gpu_drivers.amd_1_0(gpu)
    assert device["attributes"]["numaNode"] == {"int": -1}

    assert [gpu.numa_node for gpu in node_with(Driver.AMD, device).gpus] == [None]


@pytest.mark.parametrize("layout", ["azure-gb300", "oci-gb200"])
def test_what_our_nics_name_counts_before_a_numa_node_of_the_gpus_memory(layout: str) -> None:
    """As on GB200, by kubernetes-sigs/dra-driver-nvidia-gpu#1242."""
    machine = world(layout, Gpus.VENDOR_NUMA)
    slices = deepcopy(machine.slices)
    devices = (device for entry in slices for device in entry["spec"]["devices"])
    gpus = [device for device in devices if device["name"] in machine.gpus]
    for number, gpu in enumerate(gpus):
        gpu["attributes"]["resource.kubernetes.io/numaNode"] = {"int": 2 + 8 * number}
    (node,) = read_hardware(slices).nodes
    choice = choose_claim(ClaimRequest(), read_hardware(slices))

    assert all(
        distance(nic, gpu) is distance(machine.nics[nic.name], machine.gpus[gpu.name])
        for nic in node.nics
        for gpu in node.gpus
    )
    assert [pod.distances for trial in choice.attempt.trials for pod in trial.pods] == [(Distance.NODE,)] * 4


@pytest.mark.parametrize("has_lists", [False, True])
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_a_list_of_numa_nodes_is_no_less_than_a_number(layout: str, has_lists: bool) -> None:
    """NVIDIA's feature gate is on; ours publishes lists as well, or numbers."""
    machine = world(layout, Gpus.VENDOR_NUMA, has_lists=has_lists)
    near = near_numa_nodes(read_layout(layout).facts.numa_nodes)
    slices = list(machine.slices)
    for number, entry in enumerate(slices):
        if entry["spec"]["driver"] == machine.gpu_driver:
            devices = [gpu_drivers.list_numa_nodes(device, near) for device in entry["spec"]["devices"]]
            slices[number] = {**entry, "spec": {**entry["spec"], "devices": devices}}
    listed = machine.only(slices)
    choice = choose_claim(ClaimRequest(2, 2, rdma=has_rdma(machine)), read_hardware(slices))
    nics = good_nics(machine, 2, has_rdma(machine))

    assert rank_of(allocate_choice(choice, listed), machine) == best_rank(machine, nics, 2, 2)


def test_a_gpu_below_hyper_vs_vmbus_has_no_root_and_one_below_bridges_has() -> None:
    (alone,) = read_hardware(world("azure-nd-h100-v5", Gpus.VENDOR).slices).nodes
    (below,) = read_hardware(world("azure-gb300", Gpus.VENDOR).slices).nodes

    assert {gpu.device.find_attribute("resource.kubernetes.io/pcieRoot") for gpu in alone.gpus} == {None}
    assert all(gpu.device.find_attribute("resource.kubernetes.io/pcieRoot") for gpu in below.gpus)


def test_nodes_that_list_their_gpus_in_another_order_are_alike() -> None:
    """NVIDIA's driver lists them in the order of a Go map, which is another one after each start."""
    hardware = read_hardware([*shuffled("node-1", 1), *shuffled("node-2", 2)])
    one, other = hardware.nodes

    assert [gpu.name for gpu in one.gpus] != [gpu.name for gpu in other.gpus]
    assert one.makeup == other.makeup


def shuffled(node: str, seed: int) -> list[JsonObject]:
    slices = deepcopy(world("dgx-h100", Gpus.VENDOR, node).slices)
    for entry in slices:
        if entry["spec"]["driver"] == Driver.NVIDIA:
            Random(seed).shuffle(entry["spec"]["devices"])
    return list(slices)

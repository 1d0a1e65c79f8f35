"""Whose GPUs are left to whom."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dranet.inventory.offer import find_servers
from dranet.model.facts import Gpu

NVIDIA = Gpu("0000:1b:00.0", "nvidia", uuid="GPU-1")
SECOND = Gpu("0000:1c:00.0", "nvidia", uuid="GPU-2")
AMD = Gpu("0000:0c:00.0", "amd")
ODD = Gpu("0000:5e:00.0", "1e52")


@dataclass(frozen=True)
class Offered:
    driver: str
    pci_address: str = ""
    uuids: tuple[str, ...] = ()


def test_one_gpu_that_another_driver_offers_means_all_of_its_vendor() -> None:
    found = find_servers([NVIDIA, SECOND, AMD], [Offered("some.driver", NVIDIA.pci_address)], [])
    assert found == {"nvidia": "the DRA driver some.driver"}


def test_a_gpu_is_known_by_its_uuid_too_and_a_vendors_driver_by_its_name() -> None:
    assert find_servers([SECOND], [Offered("some.driver", uuids=("MIG-7", "GPU-2"))], []) == {
        "nvidia": "the DRA driver some.driver"
    }
    assert find_servers([AMD], [Offered("gpu.amd.com")], []) == {"amd": "the DRA driver gpu.amd.com"}
    assert find_servers([NVIDIA], [Offered("gpu.amd.com")], []) == {}, "it has no GPU here"


def test_a_gpu_of_a_vendor_without_a_name_is_told_by_its_address() -> None:
    offered = [Offered("accelerator.example.com", ODD.pci_address)]
    assert find_servers([ODD], offered, []) == {"1e52": "the DRA driver accelerator.example.com"}


@pytest.mark.parametrize(
    "offered",
    [
        Offered("compute-domain.nvidia.com"),
        Offered("dranet.example.com", "0000:18:00.0"),
        Offered("cpu.example.com", uuids=("", "x")),
    ],
)
def test_drivers_of_other_things_serve_no_gpu(offered: Offered) -> None:
    assert find_servers([NVIDIA, AMD, Gpu("0000:9d:00.0", "intel")], [offered], []) == {}


@pytest.mark.parametrize(
    ("vendor", "resource"),
    [
        ("nvidia", "nvidia.com/gpu"),
        ("nvidia", "nvidia.com/gpu.shared"),
        ("nvidia", "nvidia.com/mig-1g.10gb"),
        ("amd", "amd.com/gpu"),
        ("amd", "amd.com/cpx_nps4"),
        ("intel", "gpu.intel.com/i915"),
        ("habana", "habana.ai/gaudi"),
        ("aws", "aws.amazon.com/neuroncore"),
        ("google", "google.com/tpu"),
        ("huawei", "huawei.com/Ascend910"),
    ],
)
def test_a_device_plugin_is_known_by_its_resource(vendor: str, resource: str) -> None:
    gpus = [Gpu("0000:1b:00.0", vendor), Gpu("0000:1c:00.0", "another")]
    assert find_servers(gpus, [], [resource, "example.com/foo"]) == {
        vendor: f"the device plugin of {resource}"
    }


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/hostdev", "nvidia.com/mlnxnics", "rdma/hca", "intel.com/sgx", "nvidia.com/pgpus", "a/gpus"],
)
def test_resources_that_are_no_gpus_change_nothing(resource: str) -> None:
    assert find_servers([NVIDIA, AMD, Gpu("0000:9d:00.0", "intel")], [], [resource]) == {}


def test_whoever_there_is_is_named_and_three_are_enough() -> None:
    offered = [Offered("gpu.nvidia.com"), Offered("b.example", NVIDIA.pci_address)]
    (both,) = find_servers([NVIDIA], offered, ["nvidia.com/gpu"]).values()
    drivers = "the DRA driver b.example and the DRA driver gpu.nvidia.com"
    assert both == f"{drivers} and the device plugin of nvidia.com/gpu"


def test_a_vendors_driver_with_nothing_to_offer_serves_its_gpus_still() -> None:
    assert find_servers([NVIDIA], [], [], ["gpu.nvidia.com", "cpu.example.com"]) == {
        "nvidia": "the DRA driver gpu.nvidia.com"
    }


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "nvidia.com/gpu"])
def test_what_pods_have_counts_where_nobody_serves_it_any_more(name: str) -> None:
    found = find_servers([NVIDIA, AMD], [], [], used=[name, "rdma/hca", "dra.net"])
    assert found == {"nvidia": f"the pods that have devices of {name}"}
    assert find_servers([NVIDIA], [], ["nvidia.com/gpu"], used=[name]) == {
        "nvidia": "the device plugin of nvidia.com/gpu"
    }


@pytest.mark.parametrize("resource", ["volcano.sh/vgpu-number", "aliyun.com/gpu-mem", "example.com/gpu"])
def test_who_shares_out_any_vendors_gpus_serves_all_of_them(resource: str) -> None:
    who = f"the device plugin of {resource}"
    assert find_servers([NVIDIA, AMD], [], [resource]) == {"nvidia": who, "amd": who}


def test_a_uuid_is_the_same_in_capital_letters() -> None:
    gpu = Gpu("0000:1b:00.0", "nvidia", uuid="GPU-aB")
    assert find_servers([gpu], [Offered("some.driver", uuids=("gpu-Ab",))], []) != {}

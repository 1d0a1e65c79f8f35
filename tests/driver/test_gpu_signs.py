"""What a container shows of its GPUs, against the GPUs of a node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.driver.alignment.pod_gpus import (
    MAX_NAME,
    GpuMatch,
    GpuName,
    match_container,
    match_ids,
    observe_container,
)
from dranet.model.claim import Container, Mount
from dranet.model.device import GpuSource, find_resource_vendor
from dranet.model.facts import CharDevice, Gpu, NodeFacts

UUIDS = [f"GPU-8f2c1a00-0000-0000-0000-00000000000{n}" for n in range(4)]


def nvidia(number: int) -> Gpu:
    """Of which the device minor is not the order of the PCI addresses."""
    minor = 3 - number
    nodes = (CharDevice(f"/dev/nvidia{minor}", 195, minor), CharDevice("/dev/nvidiactl", 195, 255))
    return Gpu(f"0000:{number + 1}b:00.0", "nvidia", uuid=UUIDS[number], char_devices=nodes)


def amd(number: int) -> Gpu:
    nodes = (CharDevice("/dev/kfd", 240, 0), CharDevice(f"/dev/dri/renderD{128 + number}", 226, 128 + number))
    return Gpu(f"0000:{number + 1}c:00.0", "amd", uuid=f"ef2c1799a1f3e2e{number}", char_devices=nodes)


def habana(number: int) -> Gpu:
    address = f"0000:{9 - number}d:00.0"
    return Gpu(address, "habana", char_devices=(CharDevice(f"/dev/accel/accel{number}", 261, number),))


NVIDIA = NodeFacts(gpus=tuple(nvidia(n) for n in range(4)))
AMD = NodeFacts(gpus=tuple(amd(n) for n in range(4)))
HABANA = NodeFacts(gpus=tuple(habana(n) for n in range(4)))


def container(
    env: Mapping[str, str] | None = None, *, nodes: tuple[CharDevice, ...] = (), **more: object
) -> Container:
    return Container("c", "main", "sandbox", env=env or {}, devices=nodes, **more)  # type: ignore[arg-type]


def read(shown: Container, facts: NodeFacts) -> GpuMatch:
    return match_container(observe_container(shown), facts)


def found(shown: Container, facts: NodeFacts) -> dict[str, str]:
    reading = read(shown, facts)
    assert reading.unclear == ()
    return {gpu.pci_address: str(gpu.source) for gpu in reading.found}


def nodes_of(facts: NodeFacts, *numbers: int) -> tuple[CharDevice, ...]:
    return tuple(node for number in numbers for node in facts.gpus[number].char_devices)


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        (UUIDS[2], ["0000:3b:00.0"]),
        (f"{UUIDS[0]},{UUIDS[3]}", ["0000:1b:00.0", "0000:4b:00.0"]),
        (UUIDS[1].upper().replace("GPU-", "GPU-"), ["0000:2b:00.0"]),
        ("0,2", ["0000:1b:00.0", "0000:3b:00.0"]),
        ("1:0", ["0000:2b:00.0"]),
        (f"MIG-{UUIDS[2]}/3/0", ["0000:3b:00.0"]),
        (f"{UUIDS[2]}::3", ["0000:3b:00.0"]),
        ("void", []),
        ("none", []),
        ("", []),
    ],
)
def test_the_variable_of_nvidia_names_gpus_by_uuid_or_in_the_order_of_their_addresses(
    value: str, addresses: list[str]
) -> None:
    assert found(container({"NVIDIA_VISIBLE_DEVICES": value}), NVIDIA) == dict.fromkeys(
        addresses, "Environment"
    )


@pytest.mark.parametrize(
    "value", ["all", "MIG-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-of-another-node", "7"]
)
def test_what_the_variable_does_not_make_clear_is_said_and_not_guessed(value: str) -> None:
    reading = read(container({"NVIDIA_VISIBLE_DEVICES": value}), NVIDIA)
    assert reading.found == ()
    assert reading.unclear[0].startswith("container main: ")
    assert value in reading.unclear[0]


def test_device_nodes_tell_what_an_opaque_name_does_not() -> None:
    shown = container({"NVIDIA_VISIBLE_DEVICES": "MIG-5d5ba0d6"}, nodes=nodes_of(NVIDIA, 1))
    assert found(shown, NVIDIA) == {"0000:2b:00.0": "DeviceNodes"}


def test_device_nodes_come_before_an_index_because_who_counts_may_count_otherwise() -> None:
    shown = container({"NVIDIA_VISIBLE_DEVICES": "0"}, nodes=nodes_of(NVIDIA, 1))
    assert found(shown, NVIDIA) == {"0000:2b:00.0": "DeviceNodes"}


def test_a_privileged_container_has_every_node_and_that_says_nothing() -> None:
    everything = nodes_of(NVIDIA, 0, 1, 2, 3)
    named = container({"NVIDIA_VISIBLE_DEVICES": UUIDS[2]}, nodes=everything)
    assert found(named, NVIDIA) == {"0000:3b:00.0": "Environment"}
    reading = read(container(nodes=everything), NVIDIA)
    assert (reading.found, len(reading.unclear)) == ((), 1)
    assert "all 4 GPUs" in reading.unclear[0]


def test_a_privileged_container_of_a_node_with_one_gpu_was_not_given_it_for_that() -> None:
    alone = NodeFacts(gpus=(nvidia(0),))
    reading = read(container(nodes=nodes_of(alone, 0)), alone)
    assert (reading.found, len(reading.unclear)) == ((), 1)
    assert "the only GPU of the node" in reading.unclear[0]
    named = container({"NVIDIA_VISIBLE_DEVICES": "0"}, nodes=nodes_of(alone, 0))
    assert found(named, alone) == {"0000:1b:00.0": "Environment"}


def test_a_gpu_that_its_driver_has_not_got_has_no_node_and_no_number() -> None:
    """One of four is given to a virtual machine: nobody has its node, and the vendor's tools count three."""
    passed_on = Gpu("0000:1b:00.0", "nvidia")
    facts = NodeFacts(gpus=(passed_on, *NVIDIA.gpus[1:]))
    reading = read(container(nodes=nodes_of(facts, 1, 2, 3)), facts)
    assert (reading.found, len(reading.unclear)) == ((), 1)
    assert "all 3 GPUs" in reading.unclear[0]
    assert found(container({"NVIDIA_VISIBLE_DEVICES": "0"}), facts) == {"0000:2b:00.0": "Environment"}
    assert read(container({"NVIDIA_VISIBLE_DEVICES": "3"}), facts).found == ()


def test_nodes_that_all_gpus_share_are_nobodys() -> None:
    shared = (CharDevice("/dev/nvidiactl", 195, 255), CharDevice("/dev/kfd", 240, 0))
    assert found(container(nodes=shared), NVIDIA) == {}
    assert found(container(nodes=shared), AMD) == {}


def test_the_node_of_a_gpu_is_known_by_its_numbers_wherever_it_is_in_the_container() -> None:
    moved = CharDevice("/dev/dri/renderD128", 226, 130)
    assert found(container(nodes=(moved,)), AMD) == {"0000:3c:00.0": "DeviceNodes"}


def test_what_chooses_among_the_gpus_of_the_container_counts_for_nothing() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}
    assert found(container(env), AMD) == found(container(env), NVIDIA) == {}


def test_cdi_devices_and_mounts_name_gpus_and_a_gpu_counts_once() -> None:
    shown = container(
        {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]},
        cdi_devices=(
            f"nvidia.com/gpu={UUIDS[0]}",
            f"k8s.device-plugin.nvidia.com/gpu={UUIDS[1]}",
            "k8s.gpu.nvidia.com/claim=uid-gpu-3",
            "dra.net/device=uid-gpu",
        ),
        mounts=(
            Mount("/dev/null", f"/var/run/nvidia-container-devices/{UUIDS[2]}"),
            Mount("/dev/null", f"/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/{UUIDS[3]}"),
            Mount("/data", "/data"),
        ),
    )
    assert found(shown, NVIDIA) == {
        "0000:1b:00.0": "CDI",
        "0000:2b:00.0": "CDI",
        "0000:3b:00.0": "Mounts",
        "0000:4b:00.0": "Mounts",
    }


def test_amd_and_habana_have_names_of_their_own() -> None:
    assert found(container({"AMD_VISIBLE_DEVICES": "0xEF2C1799A1F3E2E1"}), AMD) == {
        "0000:2c:00.0": "Environment"
    }
    assert found(container({"HABANA_VISIBLE_DEVICES": "2"}), HABANA) == {"0000:7d:00.0": "Environment"}


@pytest.mark.parametrize(
    ("resource", "device", "address"),
    [
        ("nvidia.com/gpu", UUIDS[1], "0000:2b:00.0"),
        ("nvidia.com/gpu.shared", f"{UUIDS[1]}::7", "0000:2b:00.0"),
        ("nvidia.com/mig-1g.10gb", f"MIG-{UUIDS[1]}/1/0", "0000:2b:00.0"),
        ("amd.com/gpu", "0000:3c:00.0", "0000:3c:00.0"),
        ("amd.com/spx_nps1", "0000:3c:00.0", "0000:3c:00.0"),
        ("habana.ai/gaudi", "accel1", "0000:8d:00.0"),
    ],
)
def test_ids_of_device_plugins_name_gpus(resource: str, device: str, address: str) -> None:
    facts = NodeFacts(gpus=(*NVIDIA.gpus, *AMD.gpus, *HABANA.gpus))
    name = GpuName(GpuSource.POD_RESOURCES, find_resource_vendor(resource), device)
    assert [gpu.pci_address for gpu in match_ids([name], facts).found] == [address]


@pytest.mark.parametrize("resource", ["cpu", "rdma/hca", "nvidia.com/hostdev", "example.com/gpu", ""])
def test_other_resources_are_no_gpus(resource: str) -> None:
    assert find_resource_vendor(resource) == ""


TEXTS = st.text(max_size=40) | st.sampled_from([*UUIDS, "all", "0", "0,1", "::", ",,,", "MIG-GPU-/"])


@given(
    st.dictionaries(st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "PATH"]), TEXTS),
    st.lists(TEXTS, max_size=4),
    st.lists(TEXTS, max_size=4),
)
def test_whatever_a_container_shows_the_answer_is_of_gpus_of_the_node(
    env: dict[str, str], cdi: list[str], destinations: list[str]
) -> None:
    folder = "/var/run/nvidia-container-devices/"
    mounts = tuple(Mount("/dev/null", folder + destination) for destination in destinations)
    cdi_devices = (*cdi, *(f"nvidia.com/gpu={name}" for name in cdi))
    reading = read(container(env, cdi_devices=cdi_devices, mounts=mounts), NVIDIA)
    addresses = [gpu.pci_address for gpu in reading.found]
    assert len(addresses) == len(set(addresses))
    assert set(addresses) <= {gpu.pci_address for gpu in NVIDIA.gpus}


def test_a_name_of_a_megabyte_is_kept_as_one_of_a_line() -> None:
    """Each of many containers may show one, and what they show is remembered as long as the pod lives."""
    text = "GPU-" + "a" * 1_000_000
    mount = Mount("/dev/null", f"/var/run/nvidia-container-devices/{text}")
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join([text] * 64)}
    shown = Container("id", "main", "s", env=env, mounts=(mount,), cdi_devices=(f"nvidia.com/gpu={text}",))
    signs = observe_container(shown)
    assert len(signs.names) == 3
    assert sum(len(name.name) for name in signs.names) <= 3 * MAX_NAME


def test_what_is_kept_of_a_container_is_bounded() -> None:
    nodes = tuple(CharDevice(f"/dev/nvidia{n}", 195, n) for n in range(5000))
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(f"GPU-{n}" for n in range(100_000))}
    signs = observe_container(container(env, nodes=nodes))
    assert (len(signs.names) <= 256, len(signs.nodes) <= 256) == (True, True)

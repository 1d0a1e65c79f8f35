"""Claims for parts of GPUs (MIG, AMD's partitions): the NIC is beside the GPU that the part is of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from dranet.model.device import Device
from dranet.model.facts import Distance
from tests.data import gpu_drivers
from tests.data.gpu_drivers import MIG_1G, MIG_3G, Driver, JsonObject
from tests.data.layouts import read_gpus
from tests.desk.templates.layout_clusters import world

NODE = "node-1"


def nic_slices(layout: str) -> list[JsonObject]:
    machine = world(layout)
    gpus = set(machine.gpus)
    return [
        {**entry, "spec": {**spec, "devices": [one for one in spec["devices"] if one["name"] not in gpus]}}
        for entry in machine.slices
        for spec in [entry["spec"]]
    ]


def with_parts(layout: str, driver: Driver, parts: list[JsonObject]) -> list[JsonObject]:
    return [*nic_slices(layout), gpu_drivers.build_slice(driver, NODE, parts)]


def ask(slices: list[JsonObject], part: str, gpus: int = 1, nics: int = 1) -> Choice:
    classes = {entry["metadata"]["name"]: entry for entry in gpu_drivers.device_classes()}
    return choose_claim(
        ClaimRequest(gpus, nics, gpu_part=part), read_hardware(slices, gpu_part=part), classes
    )


def gpu_requests(choice: Choice) -> set[tuple[str, str]]:
    """Class and first selector of each alternative."""
    (request,) = (one for one in choice.attempt.shape.requests if one["name"] == "gpu")
    options = request.get("firstAvailable") or [request["exactly"]]
    return {(one["deviceClassName"], one["selectors"][0]["cel"]["expression"]) for one in options}


def mig_parts(layout: str) -> list[JsonObject]:
    """Each GPU is cut into seven parts, the first into two larger ones."""
    first, *others = read_gpus(layout)
    large = [gpu_drivers.nvidia_mig_0_4(first, MIG_3G, start) for start in MIG_3G.starts]
    return [
        *large,
        *(gpu_drivers.nvidia_mig_0_4(gpu, MIG_1G, start) for gpu in others for start in MIG_1G.starts),
    ]


def test_a_mig_device_gets_the_nic_beside_the_gpu_that_it_is_a_part_of() -> None:
    choice = ask(with_parts("dgx-h100", Driver.NVIDIA, mig_parts("dgx-h100")), "1g.10gb")
    (trial,) = choice.attempt.trials
    profile = 'device.attributes["gpu.nvidia.com"].?profile.orValue("")'

    assert gpu_requests(choice) == {("mig.nvidia.com", f'{profile} == "1g.10gb"')}
    assert {pod.distances for pod in trial.pods[:7]} == {(Distance.PIX,)}
    assert len({pod.gpus[0].address for pod in trial.pods[:7]}) == 7


def test_of_dynamic_mig_the_parts_that_may_be_made_are_asked_for() -> None:
    slices = [*nic_slices("dgx-h100"), *gpu_drivers.publish_dynamic_mig(read_gpus("dgx-h100"), NODE)]
    (trial,) = ask(slices, "3g.40gb", nics=1).attempt.trials

    assert [pod.distances for pod in trial.pods[:8]] == [(Distance.PIX,)] * 8


def test_a_partition_of_an_amd_gpu_has_the_class_of_all_its_devices() -> None:
    parts = [part for gpu in read_gpus("mi300x") for part in gpu_drivers.amd_partitions(gpu)]
    choice = ask(with_parts("mi300x", Driver.AMD, parts), "cpx_nps1")
    (trial,) = choice.attempt.trials
    profile = 'device.attributes["gpu.amd.com"].?partitionProfile.orValue("")'

    assert gpu_requests(choice) == {("gpu.amd.com", f'{profile} == "cpx_nps1"')}
    assert [pod.distances for pod in trial.pods] == [(Distance.PXB,)] * 8


def test_without_a_common_root_parts_are_grouped_by_the_address_of_their_gpu() -> None:
    """MIG devices of one GPU have one address, which the constraints compare with those of NICs alone."""
    parts = [
        gpu_drivers.nvidia_mig_0_4(gpu, MIG_1G, start) for gpu in read_gpus("azure-gb300") for start in (0, 1)
    ]
    (trial,) = ask(with_parts("azure-gb300", Driver.NVIDIA, parts), "1g.10gb").attempt.trials

    assert [pod.distances for pod in trial.pods] == [(Distance.NODE,)] * 4


@pytest.mark.parametrize("layout", ["dgx-h100", "mi300x"])
def test_whole_gpus_beside_parts_are_selected_where_the_class_does_not_tell_them_apart(layout: str) -> None:
    """AMD's class selects every device of its driver, and so may a class of the cluster's own."""
    gpus = read_gpus(layout)
    driver = gpu_drivers.driver_of(gpus[0])
    whole = [gpu_drivers.publish_gpu(gpu, gpu_drivers.NO_NUMA) for gpu in gpus[4:]]
    slices = with_parts(layout, driver, [*parts_of(gpus[:4]), *whole])
    everything = {"any-gpu": device_class("any-gpu", f'device.driver == "{driver}"')}
    choice = choose_claim(ClaimRequest(gpu_class="any-gpu"), read_hardware(slices), everything)
    (trial,) = choice.attempt.trials
    kind = f'device.attributes["{driver}"].?type.orValue("gpu")'

    assert gpu_requests(choice) == {("any-gpu", f'{kind} in ["gpu", "amdgpu"]')}
    assert len(trial.pods) == 4
    assert all(pod.is_best for pod in trial.pods)


def parts_of(gpus: Sequence[Device]) -> list[JsonObject]:
    if gpu_drivers.driver_of(gpus[0]) is Driver.AMD:
        return [part for gpu in gpus for part in gpu_drivers.amd_partitions(gpu)]
    return [gpu_drivers.nvidia_mig_0_4(gpu, MIG_1G, start) for gpu in gpus for start in MIG_1G.starts]


def device_class(name: str, expression: str) -> JsonObject:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def test_nvidias_own_class_needs_no_selector_beside_parts() -> None:
    first, *others = read_gpus("dgx-h100")
    whole = [gpu_drivers.nvidia_0_4(gpu) for gpu in others]
    choice = ask(with_parts("dgx-h100", Driver.NVIDIA, [*parts_of([first]), *whole]), "")
    (request,) = (one for one in choice.attempt.shape.requests if one["name"] == "gpu")

    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com"}


def test_a_profile_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(NotAvailable, match="with the profile 2g") as refused:
        ask(with_parts("dgx-h100", Driver.NVIDIA, mig_parts("dgx-h100")), "2g.20gb")

    assert refused.value.hint == "these are offered: 1g.10gb; 3g.40gb"


def test_the_notes_call_a_part_a_part() -> None:
    choice = ask(with_parts("dgx-h100", Driver.NVIDIA, mig_parts("dgx-h100")), "3g.40gb", gpus=2)
    title, seen = describe(choice)[:2]

    assert title == "2 GPU parts (3g.40gb) and 1 RDMA NIC for each pod."
    assert "2 3g.40gb GPU parts (gpu.nvidia.com)" in seen

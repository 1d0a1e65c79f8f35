"""DeviceClasses that are there already: used as they are, and only what they select counts."""

from __future__ import annotations

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

TWO_NICS = 'device.driver == "dra.net" && device.attributes["dra.net"].rdmaDevice in ["mlx5_0", "mlx5_1"]'
NO_NICS = 'device.driver == "another.example.com"'


def device_class(name: str, expression: str) -> dict[str, JsonObject]:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {name: {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}}


def choice(machine: World, classes: dict[str, JsonObject] | None, **asked: Any) -> Choice:
    return choose_claim(ClaimRequest(**asked), read_hardware(machine.slices), classes)


def written(found: Choice) -> list[str]:
    return [entry["metadata"]["name"] for entry in found.classes]


def test_a_class_of_the_default_name_is_not_written_over() -> None:
    found = choice(world("dgx-h100"), device_class("dranet-rdma", TWO_NICS))

    assert written(found) == ["dranet-gpu"]
    assert "because the cluster has it: DeviceClass dranet-rdma." in describe(found)[2]


@pytest.mark.parametrize("named", ["", "mine"])
def test_of_nics_that_the_class_does_not_select_none_is_counted_on(named: str) -> None:
    machine = world("dgx-h100")
    known = device_class(named or "dranet-rdma", TWO_NICS)
    two = choice(machine, known, nic_class=named, gpus=2, nics=2)

    assert "8 GPUs (dra.net) and 2 RDMA NICs (dra.net)" in describe(two)[1]
    assert [trial.possible for trial in two.attempt.trials] == [1]
    assert written(two) == ["dranet-gpu"]
    assert len(allocate_choice(two, machine)) == 4
    with pytest.raises(NotAvailable, match=f"offers 2 RDMA NICs of the DeviceClass {named or 'dranet-rdma'}"):
        choice(machine, known, nic_class=named, nics=3)


def test_of_gpus_that_the_class_does_not_select_none_is_counted_on() -> None:
    one = 'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == "0000:43:00.0"'
    known = device_class("one", f'device.driver == "dra.net" && {one}')
    found = choice(world("dgx-h100"), known, gpu_class="one")
    given = allocate_choice(found, world("dgx-h100"))

    assert "0000:43:00.0" in {device.pci_address for device in given}
    assert found.attempt.is_perfect
    with pytest.raises(NotAvailable, match="has 1 of the DeviceClass one"):
        choice(world("dgx-h100"), known, gpu_class="one", gpus=2)


def test_a_class_that_selects_no_nic_is_named() -> None:
    with pytest.raises(NotAvailable, match="the DeviceClass none of this cluster selects no NIC") as refused:
        choice(world("dgx-h100"), device_class("none", NO_NICS), nic_class="none")
    assert "--class" in refused.value.hint


def test_a_class_that_the_scheduler_could_not_ask_is_refused_with_its_error() -> None:
    broken = device_class("broken", 'device.attributes["dra.net"].rail == "0"')

    with pytest.raises(NotAvailable, match="the device has no attribute or capacity 'rail'") as refused:
        choice(world("dgx-h100"), broken, nic_class="broken")
    assert "fewer" not in refused.value.hint


@pytest.mark.parametrize(
    ("classes", "is_said"), [(None, False), ({}, True), (device_class(Driver.NVIDIA, "true"), False)]
)
def test_a_vendors_class_that_is_not_there_is_said(
    classes: dict[str, JsonObject] | None, is_said: bool
) -> None:
    found = choice(world("dgx-h100", Gpus.VENDOR), classes)

    assert ("without it no pod starts: --gpu-class names another" in describe(found)[2]) is is_said

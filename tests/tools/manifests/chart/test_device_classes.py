"""The DeviceClasses of the chart, asked of every device of every layout: what they choose, and that they
never fail, because a selector that fails on one device keeps a claim from all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dranet.desk.cel.selector import DeviceSelector
from dranet.desk.templates.chart_classes import CHART_CLASSES, build_chart_classes
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import build_slices
from dranet.model.device import Device
from dranet.settings import PublishGpus
from tests.data.layouts import LAYOUTS, read_layout
from tests.tools.manifests.chart.rendering import of_kind, render
from tests.tools.manifests.chart.value_sets import OTHER_NAME

DRIVERS = {"dra.net": {}, "nic.example.com": OTHER_NAME}


def selectors_of(driver: str) -> dict[str, DeviceSelector]:
    """By key of the class."""
    rendered = of_kind(render(DRIVERS[driver], name="dranet"), "DeviceClass")
    assert len(rendered) == len(CHART_CLASSES)
    expressions = [item["spec"]["selectors"][0]["cel"]["expression"] for item in rendered]
    return {
        known.key: DeviceSelector.compile(text)
        for known, text in zip(CHART_CLASSES, expressions, strict=True)
    }


def published(layout: str) -> Iterator[Device]:
    """With its GPUs, as where nobody else gives them away."""
    policy = Policy(publish_gpus=PublishGpus.ALWAYS)
    decisions = take_inventory(read_layout(layout).facts, {}, policy)
    for page in build_slices([decision.device for decision in decisions if decision.published], policy):
        yield from page


def choose(selectors: dict[str, DeviceSelector], driver: str, device: Device) -> set[str]:
    return {key for key, one in selectors.items() if one.matches(driver, device.attributes)}


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_class_chooses_what_it_says_on_every_layout(driver: str) -> None:
    selectors = selectors_of(driver)
    seen: set[str] = set()
    for layout in LAYOUTS:
        for device in published(layout):
            chosen = choose(selectors, driver, device)
            seen |= chosen
            has_interface = bool(device.attributes.get("dra.net/ifName"))
            has_rdma = device.attributes.get("dra.net/rdma") is True
            is_gpu = device.attributes.get("dra.net/type") == "gpu"
            assert chosen == {
                "all",
                *(["nic"] if has_interface and not device.attributes.get("dra.net/virtual") else []),
                *(["rdma"] if has_rdma else []),
                *(["rdmaOnly"] if has_rdma and not has_interface else []),
                *(["gpu"] if is_gpu else []),
            }, f"{layout}: {device.name}"
    assert seen == {known.key for known in CHART_CLASSES}, "a class that chose nothing was not tried"


def test_a_device_of_another_driver_is_never_chosen() -> None:
    """Also one that has none of our attributes: the driver's name is looked at first."""
    selectors = selectors_of("dra.net")
    for attributes in ({}, {"gpu.nvidia.com/type": "gpu"}):
        assert {key for key, one in selectors.items() if one.matches("gpu.nvidia.com", attributes)} == set()


def test_the_classes_that_the_desk_assumes_are_those_that_the_chart_installs() -> None:
    rendered = [
        {"name": one["metadata"]["name"], "spec": one["spec"]}
        for one in of_kind(render({}, name="dranet"), "DeviceClass")
    ]
    assumed = [{"name": one["metadata"]["name"], "spec": one["spec"]} for one in build_chart_classes()]
    assert rendered == assumed

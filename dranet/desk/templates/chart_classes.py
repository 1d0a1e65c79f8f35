"""The DeviceClasses that the chart installs by default: they are assumed where no classes are given.

The chart's file of them is generated from this table (``tools.manifests.chart_files``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from dranet.desk.hardware.nodes import is_gpu_driver
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.templates import selectors

PREFIX, DEFAULT_DRIVER = "dranet", "dra.net"
"""First part of the classes' names with the default driver name; else that is the driver's name."""

PART_CLASSES = {"gpu.nvidia.com": "mig.nvidia.com"}
"""Driver -> its class of parts of GPUs, where that is not the class of GPUs."""

VENDOR_CLASSES = (
    *("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com"),
    *("compute-domain-daemon.nvidia.com", "compute-domain-default-channel.nvidia.com"),
)
"""Names of classes that the charts of GPU drivers install."""

MEMLOCK = {"rdma": {"memlock": "unlimited"}}


class ChartClass(Struct, frozen=True):
    """A class. ``key`` is its name among the chart's values."""

    key: str
    suffix: str
    select: Callable[[str], str]
    """Driver -> CEL expression."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


CHART_CLASSES = (
    ChartClass("all", "", selectors.of_driver),
    ChartClass("nic", "-nic", selectors.nic_with_interface),
    ChartClass("rdma", "-rdma", selectors.rdma_nic, MEMLOCK),
    ChartClass("rdmaOnly", "-rdma-only", selectors.rdma_without_interface, MEMLOCK),
    ChartClass("gpu", "-gpu", selectors.own_gpu),
)


def build_chart_classes(driver: str = DEFAULT_DRIVER) -> tuple[JsonObject, ...]:
    """The classes as the chart with its default values installs them."""
    prefix = PREFIX if driver == DEFAULT_DRIVER else driver
    return tuple(
        build_class(f"{prefix}{one.suffix}", one.select(driver), driver, one.parameters)
        for one in CHART_CLASSES
    )


def assume_classes(slices: Iterable[JsonObject], driver: str = DEFAULT_DRIVER) -> tuple[JsonObject, ...]:
    """The classes of the chart, and that of each GPU vendor's driver in the slices, as the vendor's chart
    installs it."""
    drivers = sorted({body["spec"]["driver"] for body in slices} - {driver})
    of_vendors = [build_class(d, selectors.vendors_gpu(d)) for d in drivers if is_gpu_driver(d)]
    parts = [
        build_class(PART_CLASSES[d], selectors.vendors_gpu_part(d)) for d in drivers if d in PART_CLASSES
    ]
    return (*build_chart_classes(driver), *of_vendors, *parts)


def assume_missing_classes(
    known: Iterable[JsonObject], slices: Iterable[JsonObject], driver: str = DEFAULT_DRIVER
) -> tuple[JsonObject, ...]:
    """The classes to assume next to the known ones: the chart's, and where none are known those of GPU
    vendors as well."""
    names = {body["metadata"]["name"] for body in known}
    charts = build_chart_classes(driver) if names else assume_classes(slices, driver)
    return tuple(body for body in charts if body["metadata"]["name"] not in names)


def build_class(
    name: str, expression: str, driver: str = "", parameters: Mapping[str, Any] | None = None
) -> JsonObject:
    """A DeviceClass with one selector, and parameters for the driver."""
    spec: JsonObject = {"selectors": [{"cel": {"expression": expression}}]}
    if parameters:
        spec["config"] = [{"opaque": {"driver": driver, "parameters": dict(parameters)}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }

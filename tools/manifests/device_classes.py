"""The DeviceClasses that the chart brings: the ones that `dranet claim new` writes, and two more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from dranet.cluster.permissions import DRIVER_NAME
from dranet.desk.templates import selectors
from dranet.model import attributes as a

PREFIX = "dranet"
"""Of the classes' names, for the driver's name by default."""


class DeviceClass(Struct, frozen=True):
    """One class. ``key`` is its name among the chart's values."""

    key: str
    suffix: str
    about: str
    expression: str
    """Beside the one for the driver's name; empty is every device."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_default: bool = True

    @property
    def default_name(self) -> str:
        return PREFIX + self.suffix


def _without_driver(build: Callable[[str], str]) -> str:
    """The chart says itself which driver: its name is a value."""
    return build(DRIVER_NAME).removeprefix(f"{selectors.of_driver(DRIVER_NAME)} && ")


_NO_INTERFACE = f'device.attributes["{a.DOMAIN}"].?{a.IFNAME.name}.orValue("") == ""'
_RDMA = {"rdma": {"memlock": "unlimited"}}
"""RDMA pins what it sends and receives; the limit of most runtimes is too small for that."""

CLASSES = (
    DeviceClass("all", "", "Every device of the driver; claims choose by attributes.", ""),
    DeviceClass(
        "nic", "-nic", "Hardware with a network interface.", _without_driver(selectors.nic_with_interface)
    ),
    DeviceClass(
        "rdma",
        "-rdma",
        "NICs with RDMA, with an interface or without. It lifts the limit of locked memory, which RDMA "
        "needs.",
        _without_driver(selectors.rdma_nic),
        _RDMA,
    ),
    DeviceClass(
        "rdmaOnly",
        "-rdma-only",
        "RDMA devices without a network interface, such as InfiniBand adapters and EFA.",
        f"{_without_driver(selectors.rdma_nic)} && {_NO_INTERFACE}",
        _RDMA,
    ),
    DeviceClass(
        "gpu",
        "-gpu",
        "GPUs that this driver gives away (docs/user/gpus.md).",
        _without_driver(selectors.own_gpu),
    ),
)

"""The DeviceClasses that the chart brings: the ones that `dranet claim new` writes, and two more."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dranet.cluster.permissions import DRIVER_NAME
from dranet.desk.templates import selectors
from dranet.model import attributes as a

PREFIX = "dranet"
"""Of the classes' names, for the driver's name by default."""


class DeviceClass(Struct, frozen=True):
    """A class. ``key`` is its name among the chart's values.

    ``expression`` selects devices in addition to the driver's name; empty selects every device.
    """

    key: str
    suffix: str
    expression: str


def _without_driver(build: Callable[[str], str]) -> str:
    """The chart says itself which driver: its name is a value."""
    return build(DRIVER_NAME).removeprefix(f"{selectors.of_driver(DRIVER_NAME)} && ")


_NO_INTERFACE = f'device.attributes["{a.DOMAIN}"].?{a.IFNAME.name}.orValue("") == ""'
CLASSES = (
    DeviceClass("all", "", ""),
    DeviceClass("nic", "-nic", _without_driver(selectors.nic_with_interface)),
    DeviceClass("rdma", "-rdma", _without_driver(selectors.rdma_nic)),
    DeviceClass("rdmaOnly", "-rdma-only", f"{_without_driver(selectors.rdma_nic)} && {_NO_INTERFACE}"),
    DeviceClass("gpu", "-gpu", _without_driver(selectors.own_gpu)),
)
"""Their help, and the parameters that they have by default, are in ``values.yaml``."""

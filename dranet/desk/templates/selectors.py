"""CEL selectors of the manifests.

Each is safe on every device of our driver: no attribute is taken for granted but those that all of them have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dranet.desk.hardware.nodes import GPU_DRIVER_PREFIX, PROFILES, WHOLE_TYPES
from dranet.model import attributes as a
from dranet.model.facts import Distance

_EMPTY, _GPU = '""', '"gpu"'


def _optional(name: str, default: str, domain: str = a.DOMAIN) -> str:
    return f'device.attributes["{domain}"].?{name}.orValue({default})'


def of_driver(driver: str) -> str:
    return f'device.driver == "{driver}"'


def rdma_nic(driver: str) -> str:
    """For a DeviceClass: any NIC with RDMA, with an interface or without."""
    return f"{of_driver(driver)} && {a.RDMA.selector}"


def rdma_without_interface(driver: str) -> str:
    """For a DeviceClass: RDMA devices such as InfiniBand adapters and EFA."""
    return f'{rdma_nic(driver)} && {_optional(a.IFNAME.name, _EMPTY)} == ""'


def nic_with_interface(driver: str) -> str:
    """For a DeviceClass: hardware with a network interface."""
    interface = _optional(a.IFNAME.name, _EMPTY)
    return f'{of_driver(driver)} && {interface} != "" && !{a.VIRTUAL.selector}'


def own_gpu(driver: str) -> str:
    """For a DeviceClass: a GPU that our driver publishes."""
    return f'{of_driver(driver)} && {_optional(a.TYPE.name, _EMPTY)} == "gpu"'


_CLASSES_OF_EVERYTHING = frozenset({"gpu.amd.com", "gpu.intel.com"})
"""As the vendors' charts bring them: each device of the driver, also parts of GPUs."""


def vendors_gpu(driver: str) -> str:
    """For what a vendor's own DeviceClass is taken to be."""
    if not driver.startswith(GPU_DRIVER_PREFIX) or driver in _CLASSES_OF_EVERYTHING:
        return of_driver(driver)
    return f"{of_driver(driver)} && {whole_gpu(driver)}"


def whole_gpu(driver: str) -> str:
    """For a request, where the driver publishes parts of GPUs as well and the class may select them."""
    return f"{_optional(a.TYPE.name, _GPU, driver)} in {json.dumps(WHOLE_TYPES)}"


def gpu_part(driver: str, profile: str) -> str:
    """The parts of GPUs with this profile."""
    return f"{_optional(PROFILES[driver], _EMPTY, driver)} == {json.dumps(profile)}"


def vendors_gpu_part(driver: str) -> str:
    """For what a vendor's own DeviceClass of parts is taken to be."""
    return f"{of_driver(driver)} && !({whole_gpu(driver)})"


def fabric_is(fabric: str) -> str:
    """``InfiniBand`` or ``Ethernet``, as RDMA NICs publish it."""
    return f"{_optional(a.RDMA_LINK_LAYER.name, _EMPTY)} == {json.dumps(fabric)}"


def port_is_up(rdma: bool) -> str:
    """A port that can be used; a device without a state is taken to be usable."""
    if rdma:
        return _optional(a.RDMA_PORT_STATE.name, '"ACTIVE"') + ' == "ACTIVE"'
    return _optional(a.STATE.name, '"up"') + ' in ["up", "unknown"]'


def is_not_shared() -> str:
    """A whole NIC, where some of the node's are shared by several claims."""
    return "!device.allowMultipleAllocations"


def is_shared() -> str:
    """A NIC that several claims may hold at once."""
    return "device.allowMultipleAllocations"


def nearest_gpu_is(levels: Iterable[Distance]) -> str:
    words = json.dumps([level.name for level in sorted(levels)])
    return f"{_optional(a.NEAREST_GPU_DISTANCE.name, _EMPTY)} in {words}"


def address_is_one_of(addresses: Iterable[str], attribute: str) -> str:
    """By a qualified name that all devices of the class have or lack."""
    domain, _, name = attribute.rpartition("/")
    words = sorted(addresses)
    value = _optional(name, _EMPTY, domain)
    return f"{value} == {json.dumps(words[0])}" if len(words) == 1 else f"{value} in {json.dumps(words)}"


def rail_is(rail: int) -> str:
    return f"{_optional(a.RAIL.name, '-1')} == {rail}"


def numa_node_is(node: int) -> str:
    return f"{_optional(a.NUMA_NODE.name, '-1')} == {node}"


def numa_node_is_known() -> str:
    return f'"{a.NUMA_NODE.name}" in device.attributes["{a.DOMAIN}"]'


def switch_is(address: str) -> str:
    return f"{_optional(a.PCIE_SWITCH.name, _EMPTY)} == {json.dumps(address)}"

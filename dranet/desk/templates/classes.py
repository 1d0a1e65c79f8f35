"""DeviceClasses: which ones requests name, which of them are written, and what those of the cluster select.

A class that the cluster has is used as it is: it is an administrator's, and every claim that names it would
change with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.requests import parse_claim
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.templates import selectors
from dranet.desk.templates.ask import Ask
from dranet.desk.templates.hardware import Hardware, Spot
from dranet.desk.templates.shapes import JsonObject

Classes = Mapping[str, JsonObject]
"""DeviceClasses by name."""

_RDMA_CLASS, _NIC_CLASS, _GPU_CLASS = "dranet-rdma", "dranet-nic", "dranet-gpu"


def nic_class_name(ask: Ask, rdma: bool) -> str:
    return ask.nic_class or (_RDMA_CLASS if rdma else _NIC_CLASS)


def gpu_class_name(ask: Ask, hardware: Hardware) -> str:
    """What the user says; else ours for our own GPUs; else the driver's name, as vendors call their class."""
    return ask.gpu_class or (_GPU_CLASS if hardware.has_own_gpus else hardware.gpu_driver)


def build_classes(ask: Ask, hardware: Hardware, rdma: bool, known: Classes) -> tuple[JsonObject, ...]:
    """The classes that the manifests bring with them: none that the cluster has, and not a vendor's."""
    driver = hardware.nic_driver
    classes = [_nic_class(nic_class_name(ask, rdma), driver, rdma)]
    if ask.gpus and hardware.has_own_gpus:
        classes.append(_device_class(gpu_class_name(ask, hardware), selectors.own_gpu(driver)))
    return tuple(one for one in classes if one["metadata"]["name"] not in known)


def assumed_classes(ask: Ask, hardware: Hardware) -> dict[str, JsonObject]:
    """A vendor's class as it must be for the manifests to work, for a look without the cluster's own."""
    if not ask.gpus or hardware.has_own_gpus:
        return {}
    name = gpu_class_name(ask, hardware)
    return {name: _device_class(name, selectors.vendors_gpu(hardware.gpu_driver))}


def select(spots: Sequence[Spot], class_name: str, known: Classes) -> tuple[Spot, ...]:
    """Those that the class selects, by the scheduler's rules; all of a class that is not known, or of which
    the scheduler would make an error: the trial comes to that."""
    request = {"name": "any", "exactly": {"deviceClassName": class_name}}
    claim = {"metadata": {"name": "any"}, "spec": {"devices": {"requests": [request]}}}
    try:
        (alternative,) = parse_claim(claim, known).requests[0].alternatives
    except AllocationError:
        return tuple(spots)
    selector_results = [SelectorResults().of(alternative, spot.device) for spot in spots]
    return tuple(s for s, one in zip(spots, selector_results, strict=True) if one.matches or one.error)


def _nic_class(name: str, driver: str, rdma: bool) -> JsonObject:
    """RDMA pins what it sends and receives, and the limit of most runtimes is too small for that. The class
    raises it, so that no claim has to, and none for GPUs does."""
    if not rdma:
        return _device_class(name, selectors.nic_with_interface(driver))
    made = _device_class(name, selectors.rdma_nic(driver))
    parameters = {"rdma": {"memlock": "unlimited"}}
    made["spec"]["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return made


def _device_class(name: str, expression: str) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }

"""What claims and pods ask for, as far as alignment is concerned: NICs of ours and GPUs of any driver.

A GPU's class is known by the devices that it selects, by its selectors, or by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from dranet.desk.allocation.explain.subject import classes_by_resource, iter_resources
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint.parameters import brings_rdma, kinds_of
from dranet.desk.lint.scope import Alternative, Sample, Scope, expressions, iter_alternatives
from dranet.desk.lint.selectors import (
    class_selectors,
    find_compared,
    find_used,
    match_all,
    request_selectors,
)
from dranet.desk.templates.hardware import is_gpu_driver
from dranet.model.attributes import RDMA, TYPE
from dranet.model.device import DeviceKind, find_resource_vendor

_GPU_CLASSES = {"dranet-gpu": "", "mig.nvidia.com": "gpu.nvidia.com", "vfio.gpu.nvidia.com": "gpu.nvidia.com"}
"""Class -> driver, where it has another name; ours is empty."""
_NIC_CLASSES = frozenset({"dranet-nic", "dranet-rdma"})
_DRIVER = re.compile(r"""["'](gpu\.[\w.-]+)["']""", re.ASCII)
_PLACES = frozenset(
    {"pciBusID", "pciAddress", "pciAddr", "pcieBusID", "pcieRoot", "pcieSwitch", "pciRoot"}
    | {"numaNode", "numa", "uuid", "parentUUID", "index", "minor", "ifName", "rdmaDevice"}
)
"""Attributes whose value names a device or its place, without their domains."""
_NEAR_GPUS = frozenset({"nearestGpus", "nearestGpus2", "numaNodeGpus", "numaNodeGpus2"})


class DemandKind(Enum):
    NIC = "NIC"
    GPU = "GPU"


class Demand(NamedTuple):
    """Devices of one kind that one request, or one extended resource, asks for."""

    kind: DemandKind
    name: str
    """The request, or the extended resource."""
    path: str
    number: int | None
    """``None`` for all of the node."""
    device_class: str
    driver: str = ""
    """The GPUs' driver, where it is known."""
    is_placed: bool = False
    """A selector names the device or its place."""
    is_rdma: bool = False
    alternatives: tuple[str, ...] = ()
    """By which constraints name them."""


def read_demands(spec: JsonObject, path: str, scope: Scope) -> tuple[Demand, ...]:
    """The requests for NICs and GPUs of a claim's spec; what is neither, or may be both, is left out."""
    by_request: dict[str, list[Alternative]] = {}
    for alternative in iter_alternatives(spec, path):
        by_request.setdefault(alternative.name.partition("/")[0], []).append(alternative)
    found = (read_demand(name, several, scope) for name, several in by_request.items())
    return tuple(demand for demand in found if demand is not None)


def read_demand(name: str, alternatives: Sequence[Alternative], scope: Scope) -> Demand | None:
    """What one request asks for; ``None`` if that is neither, or may be both."""
    kinds = {_kind_of(alternative, scope) for alternative in alternatives}
    kind, driver = kinds.pop()
    if kinds or kind is None:
        return None
    numbers = [alternative.number for alternative in alternatives]
    first = alternatives[0]
    return Demand(
        kind,
        name,
        first.path,
        None if None in numbers else min(number or 1 for number in numbers),
        first.class_name,
        driver,
        all(_is_placed(alternative, scope) for alternative in alternatives),
        kind is DemandKind.NIC and all(_is_rdma(alternative, scope) for alternative in alternatives),
        tuple(alternative.name for alternative in alternatives),
    )


def _kind_of(alternative: Alternative, scope: Scope) -> tuple[DemandKind | None, str]:
    """With the driver of GPUs."""
    of_class, is_known = class_selectors(alternative.class_name, scope)
    own = request_selectors(alternative)
    if not is_known or own is None:
        return _kind_by_name(alternative.class_name, scope)
    matching = [sample for sample in scope.devices if match_all((*of_class, *own), sample)]
    if matching:
        found = {_kind_of_sample(sample) for sample in matching}
        return found.pop() if len(found) == 1 else (None, "")
    ours = kinds_of(alternative, scope)
    if ours:
        return (DemandKind.GPU, scope.driver) if ours == {DeviceKind.GPU} else _nic_unless_gpu(ours)
    texts = expressions(scope.classes[alternative.class_name].get("spec") or {})
    named = next(filter(None, map(_DRIVER.search, [*texts, *expressions(alternative.demand)])), None)
    return (DemandKind.GPU, named[1]) if named else (None, "")


def _nic_unless_gpu(kinds: frozenset[DeviceKind]) -> tuple[DemandKind | None, str]:
    return (None, "") if DeviceKind.GPU in kinds else (DemandKind.NIC, "")


def _kind_by_name(name: str, scope: Scope) -> tuple[DemandKind | None, str]:
    if name in _NIC_CLASSES:
        return DemandKind.NIC, ""
    if name in _GPU_CLASSES:
        return DemandKind.GPU, _GPU_CLASSES[name] or scope.driver
    return (DemandKind.GPU, name) if is_gpu_driver(name) else (None, "")


def _kind_of_sample(sample: Sample) -> tuple[DemandKind | None, str]:
    if RDMA.qualified in sample.attributes:
        is_gpu = sample.attributes.get(TYPE.qualified) == "gpu"
        return (DemandKind.GPU, sample.driver) if is_gpu else (DemandKind.NIC, "")
    return (DemandKind.GPU, sample.driver) if is_gpu_driver(sample.driver) else (None, "")


def _is_placed(alternative: Alternative, scope: Scope) -> bool:
    of_class, _ = class_selectors(alternative.class_name, scope)
    placed = (*of_class, *(request_selectors(alternative) or ()))
    return any(_PLACES & find_compared(one) or _NEAR_GPUS & find_used(one) for one in placed)


def _is_rdma(alternative: Alternative, scope: Scope) -> bool:
    if class_selectors(alternative.class_name, scope)[1]:
        return brings_rdma(alternative, scope)
    return alternative.class_name == "dranet-rdma"


# --- extended resources --------------------------------------------------------------------------------


class PodResource(NamedTuple):
    """What a pod's containers ask for of an extended resource."""

    demand: Demand
    is_plugin: bool
    """A device plugin gives them: no DeviceClass stands for the resource."""


def read_resources(spec: JsonObject, path: str, scope: Scope) -> Iterator[PodResource]:
    """GPUs and NICs of a pod that no claim of its spec asks for."""
    known = classes_by_resource(scope.classes)
    for resource, number in _count_resources(spec).items():
        if resource in known:
            alternative = Alternative(resource, path, {"deviceClassName": known[resource]})
            demand = read_demand(resource, [alternative], scope)
            if demand is not None:
                yield PodResource(demand._replace(number=number), is_plugin=False)
        elif find_resource_vendor(resource):
            yield PodResource(Demand(DemandKind.GPU, resource, path, number, ""), is_plugin=True)


def _count_resources(spec: JsonObject) -> Mapping[str, int]:
    """Containers run together, init containers before them, one after the other."""
    together: dict[str, int] = {}
    for resources in iter_resources({"spec": {"containers": spec.get("containers")}}):
        for name, number in resources.items():
            together[name] = together.get(name, 0) + number
    for resources in iter_resources({"spec": {"initContainers": spec.get("initContainers")}}):
        for name, number in resources.items():
            together[name] = max(together.get(name, 0), number)
    return together


def of_kind(demands: Iterable[Demand], kind: DemandKind) -> tuple[Demand, ...]:
    return tuple(demand for demand in demands if demand.kind is kind)

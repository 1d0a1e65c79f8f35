"""What claims and pods ask for, as far as alignment is concerned: NICs of ours and GPUs of any driver.

A GPU's class is known by the devices that it selects, by its selectors, or by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from dranet.desk.explain.subject import classes_by_resource, iter_resources
from dranet.desk.hardware.nodes import PROFILES, is_gpu_driver
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.lint.parameters import brings_rdma, kinds_of
from dranet.desk.lint.scope import Alternative, Sample, Scope, expressions, iter_alternatives
from dranet.desk.lint.selectors import (
    Placed,
    class_selectors,
    find_used,
    find_values,
    match_all,
    request_selectors,
)
from dranet.model.attributes import (
    MORE_NEAREST_GPUS,
    MORE_NUMA_NODE_GPUS,
    NEAREST_GPUS,
    NUMA_NODE_GPUS,
    RDMA,
    TYPE,
)
from dranet.model.device import DeviceKind, find_resource_vendor

_GPU_CLASSES = {"dranet-gpu": "", "mig.nvidia.com": "gpu.nvidia.com", "vfio.gpu.nvidia.com": "gpu.nvidia.com"}
"""Class -> driver, where it has another name; ours is empty."""
_PART_CLASSES = frozenset({"mig.nvidia.com"})
UNKNOWN_PART = "PROFILE"
_NIC_CLASSES = frozenset({"dranet-nic", "dranet-rdma"})
_DRIVER = re.compile(r"""["'](gpu\.[\w.-]+)["']""", re.ASCII)
_PLACES = frozenset(
    {"pciBusID", "pciAddress", "pciAddr", "pcieBusID", "pcieRoot", "pcieSwitch", "pciRoot"}
    | {"numaNode", "numa", "uuid", "parentUUID", "index", "minor", "ifName", "rdmaDevice"}
)
"""Attributes whose value names a device or its place, without their domains."""
_NEAR_GPUS = frozenset(
    attribute.name for attribute in (NEAREST_GPUS, MORE_NEAREST_GPUS, NUMA_NODE_GPUS, MORE_NUMA_NODE_GPUS)
)


class DemandKind(Enum):
    NIC = "NIC"
    GPU = "GPU"


class Demand(NamedTuple):
    """Devices of one kind that one request, or one extended resource, asks for."""

    kind: DemandKind
    name: str = ""
    """The request, or the extended resource."""
    path: str = ""
    number: int | None = None
    """``None`` for all of the node."""
    device_class: str = ""
    driver: str = ""
    """The GPUs' driver, where it is known."""
    part: str = ""
    """Profile of the parts of GPUs; ``PROFILE`` where it is not known which."""
    is_placed: bool = False
    """A selector names the device or its place."""
    is_rdma: bool = False
    numa_nodes: frozenset[object] = frozenset()
    """Those that selectors name."""
    alternatives: tuple[str, ...] = ()
    """By which constraints name them."""
    devices: frozenset[str] = frozenset()
    """The given devices that match, as ``driver/pool/device``; empty where they are not known."""
    selection: tuple[str, ...] = ()
    """Classes and selectors: with the same ones another request has the same devices."""


class _Look(NamedTuple):
    """An alternative with its selectors, those of its class first."""

    alternative: Alternative
    selectors: tuple[Placed, ...]
    is_known: bool
    """These are all that there are, and they compile."""
    matching: tuple[Sample, ...]
    """The given devices that pass them; none where they are not known."""

    @property
    def class_name(self) -> str:
        return self.alternative.class_name

    @property
    def values(self) -> dict[str, object]:
        """What the selectors compare attributes with."""
        return {name: value for one in self.selectors for name, value in find_values(one).items()}


def _look(alternative: Alternative, scope: Scope) -> _Look:
    of_class, is_known = class_selectors(alternative.class_name, scope)
    own = request_selectors(alternative)
    placed = (*of_class, *(own or ()))
    is_known = is_known and own is not None
    matching = (
        scope.once(("matching", *_select(alternative)), lambda: _match(placed, scope)) if is_known else ()
    )
    return _Look(alternative, placed, is_known, matching)


def _select(alternative: Alternative) -> tuple[str, ...]:
    return alternative.class_name, *expressions(alternative.demand)


def _match(placed: Sequence[Placed], scope: Scope) -> tuple[Sample, ...]:
    return tuple(sample for sample in scope.devices if match_all(placed, sample))


def find_matching(alternative: Alternative, scope: Scope) -> tuple[Sample, ...]:
    """The given devices that an alternative may get; none where a selector is not known."""
    return _look(alternative, scope).matching


def read_demands(spec: JsonObject, path: str, scope: Scope) -> tuple[Demand, ...]:
    """The requests for NICs and GPUs of a claim's spec; what is neither, or may be both, is left out."""
    by_request: dict[str, list[Alternative]] = {}
    for alternative in iter_alternatives(spec, path):
        by_request.setdefault(alternative.name.partition("/")[0], []).append(alternative)
    found = (read_demand(name, several, scope) for name, several in by_request.items())
    return tuple(demand for demand in found if demand is not None)


def read_demand(name: str, alternatives: Sequence[Alternative], scope: Scope) -> Demand | None:
    """What one request asks for; ``None`` if that is neither, or may be both."""
    selection = tuple(text for alternative in alternatives for text in _select(alternative))
    found = scope.once(("demand", *selection), lambda: _read_selection(alternatives, selection, scope))
    if found is None:
        return None
    numbers = [alternative.number for alternative in alternatives]
    return found._replace(
        name=name,
        path=alternatives[0].path,
        number=None if None in numbers else min(number or 1 for number in numbers),
        alternatives=tuple(alternative.name for alternative in alternatives),
    )


def _read_selection(
    alternatives: Sequence[Alternative], selection: tuple[str, ...], scope: Scope
) -> Demand | None:
    """What follows from classes and selectors alone."""
    looks = [_look(alternative, scope) for alternative in alternatives]
    kinds = {_kind_of(look, scope) for look in looks}
    kind, driver = kinds.pop()
    if kinds or kind is None:
        return None
    numas = {value for look in looks for key, value in look.values.items() if key.endswith("/numaNode")}
    return Demand(
        kind,
        device_class=looks[0].class_name,
        driver=driver,
        part=_find_part(looks[0], driver),
        is_placed=all(map(_is_placed, looks)),
        is_rdma=kind is DemandKind.NIC and all(_is_rdma(look, scope) for look in looks),
        numa_nodes=frozenset(numas),
        devices=frozenset(sample.label for look in looks for sample in look.matching),
        selection=selection,
    )


def _kind_of(look: _Look, scope: Scope) -> tuple[DemandKind | None, str]:
    """With the driver of GPUs."""
    if not look.is_known:
        return _kind_by_name(look.class_name, scope)
    if look.matching:
        found = {_kind_of_sample(sample) for sample in look.matching}
        return found.pop() if len(found) == 1 else (None, "")
    ours = kinds_of(look.alternative, scope)
    if ours:
        return (DemandKind.GPU, scope.driver) if ours == {DeviceKind.GPU} else _nic_unless_gpu(ours)
    texts = expressions(scope.classes[look.class_name].get("spec") or {})
    named = map(_DRIVER.search, [*texts, *expressions(look.alternative.demand)])
    driver = next((match[1] for match in named if match), "")
    return (DemandKind.GPU, driver) if driver else (None, "")


def _find_part(look: _Look, driver: str) -> str:
    """By a selector, by the devices that match, or by the class; empty for whole GPUs and NICs."""
    attribute = f"{driver}/{PROFILES.get(driver, '')}"
    if named := look.values.get(attribute):
        return str(named)
    found = {sample.attributes.get(attribute) for sample in look.matching if not _is_whole(sample)}
    if len(found) == 1:
        return str(found.pop() or UNKNOWN_PART)
    return UNKNOWN_PART if found or look.class_name in _PART_CLASSES else ""


def _is_whole(sample: Sample) -> bool:
    """A NIC counts as whole."""
    kind = str(sample.attributes.get(f"{sample.driver}/type") or "gpu")
    return "gpu" in kind and "partition" not in kind


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


def _is_placed(look: _Look) -> bool:
    names = {name.rpartition("/")[2] for name in look.values}
    return bool(_PLACES & names) or any(_NEAR_GPUS & find_used(one) for one in look.selectors)


def _is_rdma(look: _Look, scope: Scope) -> bool:
    return brings_rdma(look.alternative, scope) if look.is_known else look.class_name == "dranet-rdma"


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
            part = resource.partition("/mig-")[2]
            yield PodResource(Demand(DemandKind.GPU, resource, path, number, part=part), is_plugin=True)


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

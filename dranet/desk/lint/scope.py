"""What is known besides the object that is linted: other objects, and devices to try selectors on.

The devices are those of slices and captures, and sample devices of every kind that the driver publishes.
The catalogue (``omitted_when``) describes which attributes a kind of device leaves out: a condition about
the kind itself decides, any other means that every device may lack the attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field

from dranet.cel import CelError, Version
from dranet.desk.cel import DeviceValues
from dranet.desk.kubeapi.objects import JsonObject
from dranet.model.attributes import CATALOGUE, STANDARD_PCIE_ROOT, Attribute, AttributeType
from dranet.model.device import DeviceKind

_T = TypeVar("_T")

OTHER_DRIVER = "gpu.example.com"

_SAMPLES: Mapping[AttributeType, Any] = {
    AttributeType.STRING: "x",
    AttributeType.INT: 1,
    AttributeType.BOOL: True,
}
_EMPTY_ON_GPU = ("ifName", "rdmaDevice")


class Sample(Struct, frozen=True, dict=True):
    """One device."""

    label: str
    driver: str
    attributes: Mapping[str, Any]
    kind: DeviceKind | None = None
    """``None`` for a device of another driver."""
    omits: str = ""
    """What a made-up device was made to lack."""
    capacity: Mapping[str, Any] | None = None
    shared: bool = False
    node: str = ""

    @cached_property
    def values(self) -> DeviceValues:
        """As selectors take it; converted once."""
        return DeviceValues(self.driver, self.attributes, self.capacity, self.shared)


class _Kind(Struct, frozen=True):
    label: str
    kind: DeviceKind
    type: str
    has: frozenset[str]
    """Some of ``link``, ``pci``, ``rdma``, ``gpu``, ``vf``, ``pcie``."""


_KINDS = (
    _Kind("a NIC with RDMA", DeviceKind.NIC, "device", frozenset({"link", "pci", "rdma", "pcie"})),
    _Kind("a NIC without RDMA", DeviceKind.NIC, "device", frozenset({"link", "pci", "pcie"})),
    _Kind("a virtual function", DeviceKind.NIC, "device", frozenset({"link", "pci", "rdma", "vf"})),
    _Kind("an interface made by software", DeviceKind.NIC, "dummy", frozenset({"link"})),
    _Kind("an RDMA-only device", DeviceKind.RDMA, "", frozenset({"pci", "rdma", "pcie"})),
    _Kind("a GPU", DeviceKind.GPU, "gpu", frozenset({"pci", "gpu", "pcie"})),
)
_NEEDS: Mapping[str, str] = {
    "the device has no network interface": "link",
    "the device is not on PCI": "pci",
    "no PCI, or a domain of over 4 digits": "pci",
    "the device has no RDMA device": "rdma",
    "the device is not a GPU": "gpu",
    "it is not a virtual function": "vf",
    "the function has no PCIe link of its own": "pcie",
}
"""Reason of the catalogue -> the property of a kind without which it holds."""


@cache
def make_samples(driver: str) -> tuple[Sample, ...]:
    """Make a device of each kind with all of its attributes, each again without one that it may omit, and a
    device of another driver."""
    return (*(sample for kind in _KINDS for sample in _variants(kind, driver)), _stranger())


def _variants(kind: _Kind, driver: str) -> Iterator[Sample]:
    attributes = [attribute for attribute in CATALOGUE if _has_attribute(attribute, kind)]
    full = {attribute.qualified: _sample(attribute, kind) for attribute in attributes}
    yield Sample(kind.label, driver, full, kind.kind)
    for attribute in attributes:
        if _may_omit(attribute, kind):
            rest = {name: value for name, value in full.items() if name != attribute.qualified}
            yield Sample(kind.label, driver, rest, kind.kind, attribute.qualified)


def _has_attribute(attribute: Attribute, kind: _Kind) -> bool:
    if kind.kind is DeviceKind.GPU and attribute.name in _EMPTY_ON_GPU:
        return True
    if attribute.omitted_when == "the device is RDMA-only":
        return kind.kind is not DeviceKind.RDMA
    if kind.kind is DeviceKind.GPU and ("GPU" in attribute.omitted_when and "gpu" not in attribute.name):
        return False
    need = _NEEDS.get(attribute.omitted_when, "gpu" if attribute.name.startswith("gpu") else "")
    return not need or need in kind.has


def _may_omit(attribute: Attribute, kind: _Kind) -> bool:
    """Whether some device of the kind has all attributes except this."""
    if kind.kind is DeviceKind.GPU and attribute.name in _EMPTY_ON_GPU:
        return False
    return bool(attribute.omitted_when) and attribute.omitted_when not in (*_NEEDS, "the device is RDMA-only")


def _sample(attribute: Attribute, kind: _Kind) -> Any:
    if attribute.name == "type":
        return kind.type
    if attribute.name in ("rdma", "virtual"):
        return ("rdma" in kind.has) if attribute.name == "rdma" else kind.has == {"link"}
    if kind.kind is DeviceKind.GPU and attribute.name in _EMPTY_ON_GPU:
        return ""
    return _SAMPLES[attribute.type]


def _stranger() -> Sample:
    attributes = {f"{OTHER_DRIVER}/model": "x", STANDARD_PCIE_ROOT.qualified: "pci0000:00"}
    return Sample("a device of another driver", OTHER_DRIVER, attributes)


def read_devices(slices: Iterable[JsonObject]) -> tuple[Sample, ...]:
    """The devices of ResourceSlices, in order; what an API server would not take is left out."""
    return tuple(sample for body in slices for sample in _read_slice(body["spec"]))


def _read_slice(spec: JsonObject) -> Iterator[Sample]:
    driver, node = spec["driver"], spec.get("nodeName") or ""
    for device in spec.get("devices") or ():
        attributes = {
            name: _plain(*next(iter(value.items())))
            for name, value in (device.get("attributes") or {}).items()
            if value
        }
        sample = Sample(
            f"{driver}/{spec['pool']['name']}/{device['name']}",
            driver,
            {_qualify(name, driver): value for name, value in attributes.items()},
            capacity={n: str(c["value"]) for n, c in (device.get("capacity") or {}).items()},
            shared=bool(device.get("allowMultipleAllocations")),
            node=device.get("nodeName") or node,
        )
        try:
            _ = sample.values
        except CelError:
            continue
        yield sample


def _plain(kind: str, value: Any) -> Any:
    if kind == "version":
        return Version(value)
    return [Version(item) for item in value] if kind == "versions" else value


def _qualify(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


class Key(NamedTuple):
    """Which object; cluster-scoped ones have no namespace."""

    namespace: str
    name: str


class Scope(Struct, frozen=True, dict=True):
    """Objects by name. With ``is_live`` the cluster has no others."""

    driver: str = "dra.net"
    classes: Mapping[str, JsonObject] = field(default_factory=dict)
    claims: Mapping[Key, JsonObject] = field(default_factory=dict)
    templates: Mapping[Key, JsonObject] = field(default_factory=dict)
    devices: tuple[Sample, ...] = ()
    """Devices of slices and captures."""
    slices: tuple[JsonObject, ...] = ()
    """The same, as they were read."""
    is_live: bool = False
    assumed_classes: frozenset[str] = frozenset()
    """Names of classes that charts install: they were not given."""

    @cached_property
    def _found(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, find: Callable[[], _T]) -> _T:
        """What ``find`` returns, called once for all objects with this key: many claims are alike, and a
        cluster has many devices."""
        if key not in self._found:
            self._found[key] = find()
        found: _T = self._found[key]
        return found


class Alternative(NamedTuple):
    """What one request asks for, or one of its prioritised alternatives."""

    name: str
    """``req`` or ``req/sub``."""
    path: str
    demand: JsonObject

    @property
    def class_name(self) -> str:
        return str(self.demand.get("deviceClassName") or "")

    @property
    def number(self) -> int | None:
        """``None`` asks for all devices."""
        return None if self.demand.get("allocationMode") == "All" else int(self.demand.get("count") or 1)


def claim_devices(spec: JsonObject) -> JsonObject:
    """``spec.devices``; empty if the claim has none."""
    return spec.get("devices") or {}


def iter_alternatives(spec: JsonObject, path: str) -> Iterator[Alternative]:
    """Iterate over the alternatives of all requests of a claim's spec at ``path``, in order."""
    for number, request in enumerate(claim_devices(spec).get("requests") or ()):
        where = f"{path}.devices.requests[{number}]"
        if request.get("exactly"):
            yield Alternative(request["name"], f"{where}.exactly", request["exactly"])
        for place, one in enumerate(request.get("firstAvailable") or ()):
            yield Alternative(f"{request['name']}/{one['name']}", f"{where}.firstAvailable[{place}]", one)


def covers(requests: list[str] | None, alternative: str) -> bool:
    """An empty list covers all; a request's own name its alternatives."""
    return not requests or alternative in requests or alternative.partition("/")[0] in requests


def expressions(owner: JsonObject) -> list[str]:
    """The selectors of a class or a request."""
    return [selector["cel"]["expression"] for selector in owner.get("selectors") or () if selector.get("cel")]

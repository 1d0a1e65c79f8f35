"""ResourceSlices -> the links and the placement of each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from dranet.desk.fabric.levels import CLOUD_OF_ATTRIBUTE
from dranet.desk.fabric.links import Link
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.pools import choose_newest
from dranet.model.attributes import (
    DOMAIN,
    IFNAME,
    IS_SRIOV_VF,
    LINK_SPEED,
    PCI_ADDRESS,
    PCI_DEVICE,
    TYPE,
    VIRTUAL,
)

_CHASSIS, _PORT, _SWITCH, _RAIL = (
    f"{DOMAIN}/{name}" for name in ("switchChassisId", "switchPortId", "switchName", "rail")
)
_GPU = "gpu"
Placement = Mapping[str, frozenset[str]]
"""Attribute of a cloud -> the values that the devices of a node have for it: one, if they agree."""


class NodeReading(Struct, frozen=True):
    """The content of one node's slices, as far as the fabric needs it."""

    name: str
    links: tuple[Link, ...]
    placement: Placement


def read_nodes(slices: Collection[JsonObject], driver: str) -> tuple[NodeReading, ...]:
    """The nodes that have slices of the driver, in the order of their slices."""
    by_node: dict[str, list[JsonObject]] = defaultdict(list)
    for body in slices:
        spec = body["spec"]
        if spec["driver"] == driver and spec.get("nodeName"):
            by_node[spec["nodeName"]].append(body)
    return tuple(read_node(name, bodies) for name, bodies in by_node.items())


def read_node(name: str, slices: Collection[JsonObject]) -> NodeReading:
    """Read the newest slices of each pool."""
    links: list[Link] = []
    placement: dict[str, set[str]] = defaultdict(set)
    for body in choose_newest(slices):
        prefix = f"{body['spec']['driver']}/"
        for device in body["spec"].get("devices") or ():
            values = _Values(device.get("attributes") or {}, prefix)
            for attribute in CLOUD_OF_ATTRIBUTE:
                if value := values.text(attribute):
                    placement[attribute].add(value)
            if values.is_nic_with_a_port:
                links.append(_read_link(name, device["name"], values))
    return NodeReading(name, tuple(links), {key: frozenset(found) for key, found in placement.items()})


_READ = frozenset(
    {
        *CLOUD_OF_ATTRIBUTE,
        *(_CHASSIS, _PORT, _SWITCH, _RAIL),
        *(one.qualified for one in (IFNAME, IS_SRIOV_VF, LINK_SPEED, PCI_ADDRESS, PCI_DEVICE, TYPE, VIRTUAL)),
    }
)


def keep_what_is_read(body: JsonObject) -> JsonObject:
    """A slice with the fields that are read here, for a program that remembers all of
    them."""
    spec = body["spec"]
    prefix = f"{spec['driver']}/"
    devices = [
        {
            "name": device["name"],
            "attributes": {
                name: value
                for name, value in (device.get("attributes") or {}).items()
                if name in _READ or prefix + name in _READ
            },
        }
        for device in spec.get("devices") or ()
    ]
    kept = {key: spec[key] for key in ("driver", "pool", "nodeName") if key in spec}
    return {"spec": {**kept, "devices": devices}}


class _Values:
    """Attributes of a device. Those of the driver's own domain may be written without it."""

    def __init__(self, attributes: Mapping[str, JsonObject], prefix: str) -> None:
        self._attributes, self._prefix = attributes, prefix

    def _find(self, name: str, kind: str) -> object:
        body = self._attributes.get(name)
        if body is None and name.startswith(self._prefix):
            body = self._attributes.get(name.removeprefix(self._prefix))
        return (body or {}).get(kind)

    def text(self, name: str) -> str:
        value = self._find(name, "string")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        value = self._find(name, "int")
        return value if type(value) is int else None

    def holds(self, name: str) -> bool:
        return self._find(name, "bool") is True

    @property
    def is_nic_with_a_port(self) -> bool:
        """Whether a cable can be in it: virtual functions and software links have none of their own."""
        is_hardware = not self.holds(VIRTUAL.qualified) and not self.holds(IS_SRIOV_VF.qualified)
        is_nic = bool(self.text(IFNAME.qualified)) and self.text(TYPE.qualified) != _GPU
        return (is_nic and is_hardware) or bool(self.text(_CHASSIS) or self.text(_SWITCH))


def _read_link(node: str, device: str, values: _Values) -> Link:
    ifname, chassis = values.text(IFNAME.qualified), values.text(_CHASSIS)
    return Link(
        node=node,
        device=device,
        ifname=ifname,
        slot=values.text(PCI_ADDRESS.qualified) or ifname,
        model=values.text(PCI_DEVICE.qualified),
        rail=values.number(_RAIL),
        speed_mbps=values.number(LINK_SPEED.qualified),
        switch=chassis or values.text(_SWITCH),
        switch_name=values.text(_SWITCH),
        port=values.text(_PORT),
    )


def iter_links(nodes: Iterable[NodeReading]) -> Iterator[Link]:
    for node in nodes:
        yield from node.links

"""Where published devices sit, as far as their attributes tell: enough to measure distances by.

A slice has no PCI paths. A NIC of ours says which GPUs are nearest to it and how far they are, on which
switch and below which root it is; a GPU, whoever publishes it, may say its PCI address, root and NUMA node.
From these a path is made up for each device, so that :func:`dranet.model.distance.distance` gives what was
said. What nobody said counts as farther: devices below one root as ``PHB``, and none at all as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.devices import Candidate
from dranet.model import attributes as a
from dranet.model.distance import Distance

DeviceId = tuple[str, str, str]
"""Driver, pool, device."""
_Statement = tuple[DeviceId, Distance, DeviceId]
"""A NIC, how far, and one of the GPUs that are so near to it."""

ADDRESSES = (a.STANDARD_PCI_BUS_ID.qualified, a.PCI_ADDRESS.qualified)
"""Where drivers publish the PCI address, the best first."""
NUMA_NODES = (a.STANDARD_NUMA_NODE.qualified, a.NUMA_NODE.qualified)
PLACES = (*ADDRESSES, *NUMA_NODES, a.STANDARD_PCIE_ROOT.qualified, a.PCIE_SWITCH.qualified)
"""All by which two devices may be told to be near each other."""


@dataclass(frozen=True, slots=True)
class Place:
    """As :class:`dranet.model.distance.Placed` has it."""

    pci_path: tuple[str, ...] = ()
    pcie_root: str = ""
    numa_node: int | None = None
    switch: str = ""
    """As ``dra.net/pcieSwitch``, published or said of it by a NIC; empty where nobody said."""


def value_of(device: Candidate, name: str) -> object:
    """The value of an attribute by its qualified name; of a list the first; ``None`` if it is not there."""
    found = device.find_attribute(name)
    return found.values[0] if found is not None else None


def text_of(device: Candidate, name: str) -> str:
    value = value_of(device, name)
    return value if isinstance(value, str) else ""


def address_of(device: Candidate) -> str:
    """PCI address; empty where it is not published."""
    own = (f"{device.driver}/{word}" for word in ("pciBusID", "pciAddress", "pciAddr", "pcieBusID"))
    return next(filter(None, (text_of(device, name).lower() for name in (*ADDRESSES, *own))), "")


def near_of(nic: Candidate) -> tuple[Distance | None, tuple[str, ...]]:
    """What a NIC says of its nearest GPUs: how far, and their PCI addresses."""
    word = text_of(nic, a.NEAREST_GPU_DISTANCE.qualified)
    addresses = text_of(nic, a.NEAREST_GPUS.qualified).split(",")
    known = Distance.__members__.get(word)
    return (known, tuple(filter(None, addresses))) if known is not None else (None, ())


def locate(nics: Sequence[Candidate], gpus: Sequence[Candidate]) -> dict[DeviceId, Place]:
    """The place of each device of one node."""
    devices = (*nics, *gpus)
    numas = {device.id: _numa_of(device) for device in devices}
    roots = {device.id: text_of(device, a.STANDARD_PCIE_ROOT.qualified) for device in devices}
    switches = {device.id: text_of(device, a.PCIE_SWITCH.qualified) for device in devices}
    statements = tuple(_statements(nics, gpus))
    for nic, far, gpu in statements:
        if far <= Distance.NODE and numas[gpu] is None:
            numas[gpu] = numas[nic]
        if far <= Distance.PHB and not roots[gpu]:
            roots[gpu] = roots[nic]
        if far is Distance.PIX and not switches[gpu]:
            switches[gpu] = switches[nic]
    own = {device.id: switches[device.id] or f"port above {address_of(device)}" for device in devices}
    ports = _join_ports(own, statements)
    return {
        device.id: _place(device, ports[device.id], roots[device.id], numas[device.id], switches[device.id])
        for device in devices
    }


def _statements(nics: Iterable[Candidate], gpus: Iterable[Candidate]) -> Iterator[_Statement]:
    at = {address_of(gpu): gpu.id for gpu in gpus if address_of(gpu)}
    for nic in nics:
        far, addresses = near_of(nic)
        if far is not None:
            yield from ((nic.id, far, at[address]) for address in addresses if address in at)


def _place(device: Candidate, port: str, root: str, numa: int | None, switch: str) -> Place:
    """Root port, switch, port of the switch, function; only ``PIX`` and ``PXB`` depend on the first two."""
    address = address_of(device)
    if not address:
        return Place()
    path = (port, switch or f"switch of {address}", f"port of {address}", address)
    return Place(path, root or f"root of {address}", numa, switch)


def _numa_of(device: Candidate) -> int | None:
    own = (f"{device.driver}/{word}" for word in ("numaNode", "numa"))
    values = (value_of(device, name) for name in (*NUMA_NODES, *own))
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def _join_ports(ports: Mapping[DeviceId, str], statements: Iterable[_Statement]) -> Mapping[DeviceId, str]:
    """The name of the root port above each device: one for what a NIC says is ``PXB`` to it."""
    for nic, far, gpu in statements:
        if far is Distance.PXB and ports[nic] != ports[gpu]:
            old, new = ports[gpu], ports[nic]
            ports = {device: new if port == old else port for device, port in ports.items()}
    return ports

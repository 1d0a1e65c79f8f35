"""Published attributes -> where each device of a node is.

A slice has no PCI paths. One of our NICs publishes which GPUs are nearest to it and how far they are, the
GPUs of its NUMA node, its switch and its root; a GPU of any driver may publish its PCI address, root and NUMA
node. A path is invented for each device from these, so that :func:`dranet.model.facts.distance` returns what
was published. What is not published counts as farther: devices below one root as ``PHB``, and without a root
and a NUMA node as unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.devices import Candidate
from dranet.desk.hardware.platforms import Assumption, assume_numa_nodes
from dranet.model import attributes as a
from dranet.model.facts import Distance

DeviceId = tuple[str, str, str]
"""Driver, pool, device."""
_Numas = dict[DeviceId, int | None]
_Statement = tuple[DeviceId, Distance, DeviceId]
"""A NIC, how far, and one of the GPUs that are so near to it."""

ADDRESSES = (a.STANDARD_PCI_BUS_ID.qualified, a.PCI_ADDRESS.qualified)
"""Where drivers publish the PCI address, the best first."""
_OWN_ADDRESSES = ("pciBusID", "pciAddress", "pciAddr", "pcieBusID", "parentPciAddr")
"""Names in the driver's own domain: NVIDIA's until 25.8, Intel's, AMD's 0.1 (a GPU, a part of one)."""
NUMA_NODES = (a.STANDARD_NUMA_NODE.qualified, a.NUMA_NODE.qualified)
PLACES = (*ADDRESSES, *NUMA_NODES, a.STANDARD_PCIE_ROOT.qualified, a.PCIE_SWITCH.qualified)
"""All attributes from which it may follow that two devices are near each other."""

ELSEWHERE = -1
"""The NUMA node of a GPU that is on none of those with NICs."""
_MOST_ADDRESSES = 10
"""In two attributes."""


@dataclass(frozen=True, slots=True)
class Place:
    """As :class:`dranet.model.facts.Placed` has it."""

    pci_path: tuple[str, ...] = ()
    pcie_root: str = ""
    numa_node: int | None = None
    switch: str = ""
    """As ``dra.net/pcieSwitch``, published by the device or by a NIC next to it; empty if unknown."""
    roots: str = ""
    """Equal for devices that ``matchAttribute`` on ``pcieRoot`` takes together: a root complex, or one of
    those that lists join."""


@dataclass(frozen=True, slots=True)
class NearGpus:
    """What a NIC publishes of the GPUs of its node, by PCI address."""

    distance: Distance | None = None
    """That of the nearest GPUs."""
    nearest: tuple[str, ...] = ()
    numa_node: tuple[str, ...] = ()
    """All GPUs of its NUMA node."""

    @property
    def on_numa_node(self) -> tuple[str, ...]:
        """Those that are known to be on its NUMA node."""
        are_nearest = self.distance is not None and self.distance <= Distance.NODE
        return (*(self.nearest if are_nearest else ()), *self.numa_node)

    def is_elsewhere(self, address: str) -> bool:
        """Whether the GPU is not on the NIC's NUMA node. Ten addresses may not be all."""
        if self.distance is Distance.SYS:
            return address in self.nearest
        return 0 < len(self.numa_node) < _MOST_ADDRESSES and address not in self.numa_node


def value_of(device: Candidate, name: str) -> object:
    """The value of an attribute by its qualified name; the first of a list; ``None`` without the
    attribute."""
    found = device.find_attribute(name)
    return found.values[0] if found is not None else None


def text_of(device: Candidate, name: str) -> str:
    value = value_of(device, name)
    return value if isinstance(value, str) else ""


def address_of(device: Candidate) -> str:
    """PCI address; empty where it is not published."""
    return next(filter(None, (text_of(device, name).lower() for name in address_names(device))), "")


def address_names(device: Candidate) -> tuple[str, ...]:
    """Attributes that may have its PCI address, by qualified name."""
    return (*ADDRESSES, *(f"{device.driver}/{word}" for word in _OWN_ADDRESSES))


def numa_node_of(device: Candidate) -> int | None:
    """AMD's driver publishes -1 where the kernel knows of none."""
    own = (f"{device.driver}/{word}" for word in ("numaNode", "numa"))
    values = (value_of(device, name) for name in (*NUMA_NODES, *own))
    numbers = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((number for number in numbers if number >= 0), None)


def read_near_gpus(nic: Candidate) -> NearGpus:
    known = Distance.__members__.get(text_of(nic, a.NEAREST_GPU_DISTANCE.qualified))
    if known is None:
        return NearGpus()
    on_node = _read_addresses(nic, a.NUMA_NODE_GPUS, a.MORE_NUMA_NODE_GPUS)
    return NearGpus(known, _read_addresses(nic, a.NEAREST_GPUS, a.MORE_NEAREST_GPUS), on_node)


def _read_addresses(nic: Candidate, *attributes: a.Attribute) -> tuple[str, ...]:
    texts = (text_of(nic, attribute.qualified) for attribute in attributes)
    return tuple(address for text in texts for address in text.split(",") if address)


def locate(
    nics: Sequence[Candidate], gpus: Sequence[Candidate]
) -> tuple[dict[DeviceId, Place], Assumption | None]:
    """The place of each device of one node, and what was assumed of the GPUs, where no attribute has their
    NUMA nodes.

    Args:
        nics: those of this driver, or of DraNet.
        gpus: those of any driver.
    """
    devices = (*nics, *gpus)
    near = {nic.id: read_near_gpus(nic) for nic in nics}
    statements = tuple(_statements(near, gpus))
    numas = _find_numa_nodes(devices, near, gpus)
    assumption = _assume(near.values(), gpus)
    if assumption is not None:
        numas |= {
            gpu.id: node for gpu in gpus if (node := assumption.numa_nodes.get(address_of(gpu))) is not None
        }
    roots = {device.id: text_of(device, a.STANDARD_PCIE_ROOT.qualified) for device in devices}
    switches = {device.id: text_of(device, a.PCIE_SWITCH.qualified) for device in devices}
    for nic, far, gpu in statements:
        if far <= Distance.PHB and not roots[gpu]:
            roots[gpu] = roots[nic]
        if far is Distance.PIX and not switches[gpu]:
            switches[gpu] = switches[nic]
    own = {device.id: switches[device.id] or f"port above {address_of(device)}" for device in devices}
    ports, lists = _join_ports(own, statements), _join_roots(nics)
    places = {
        device.id: _place(
            device,
            ports[device.id],
            roots[device.id],
            numas[device.id],
            switches[device.id],
            lists.get(roots[device.id], roots[device.id]),
        )
        for device in devices
    }
    return places, assumption


def _assume(near: Iterable[NearGpus], gpus: Iterable[Candidate]) -> Assumption | None:
    """Only where neither the NICs nor the GPUs publish anything about the place of a GPU."""
    lost = [gpu for gpu in gpus if numa_node_of(gpu) is None]
    if not lost or any(known.distance is not None for known in near):
        return None
    return assume_numa_nodes({address_of(gpu) for gpu in lost})


def _statements(near: Mapping[DeviceId, NearGpus], gpus: Iterable[Candidate]) -> Iterator[_Statement]:
    """Parts of a GPU have its address."""
    at: dict[str, list[DeviceId]] = defaultdict(list)
    for gpu in gpus:
        at[address_of(gpu)].append(gpu.id)
    for nic, known in near.items():
        if known.distance is not None:
            yield from ((nic, known.distance, gpu) for address in known.nearest for gpu in at[address])


def _find_numa_nodes(
    devices: Iterable[Candidate], near: Mapping[DeviceId, NearGpus], gpus: Iterable[Candidate]
) -> _Numas:
    """A NIC that names a GPU of its NUMA node takes precedence over the node that the GPU's driver publishes:
    on GB200 this may be that of the GPU's memory (kubernetes-sigs/dra-driver-nvidia-gpu#1242)."""
    numas = {device.id: numa_node_of(device) for device in devices}
    named = {
        address: numas[nic]
        for nic, known in near.items()
        for address in known.on_numa_node
        if numas[nic] is not None
    }
    for gpu in gpus:
        address = address_of(gpu)
        if address in named:
            numas[gpu.id] = named[address]
        elif numas[gpu.id] is None and address:
            is_elsewhere = bool(near) and all(known.is_elsewhere(address) for known in near.values())
            numas[gpu.id] = ELSEWHERE if is_elsewhere else None
    return numas


def _place(device: Candidate, port: str, root: str, numa: int | None, switch: str, roots: str) -> Place:
    """Root port, switch, port of the switch, function; only ``PIX`` and ``PXB`` depend on the first two."""
    address = address_of(device)
    if not address:
        return Place()
    path = (port, switch or f"switch of {address}", f"port of {address}", address)
    return Place(path, root or f"root of {address}", numa, switch, roots)


def _join_ports(ports: Mapping[DeviceId, str], statements: Iterable[_Statement]) -> Mapping[DeviceId, str]:
    """The name of the root port above each device: the same for a NIC and a GPU at distance ``PXB``."""
    for nic, far, gpu in statements:
        if far is Distance.PXB and ports[nic] != ports[gpu]:
            old, new = ports[gpu], ports[nic]
            ports = {device: new if port == old else port for device, port in ports.items()}
    return ports


def _join_roots(nics: Iterable[Candidate]) -> Mapping[str, str]:
    """Each root of a list -> the same name for all that a list has in common with another."""
    joined: dict[str, str] = {}
    for nic in nics:
        found = nic.find_attribute(a.STANDARD_PCIE_ROOT.qualified)
        if found is not None and found.listed:
            roots = [str(value) for value in found.values]
            names = {joined.get(root, root) for root in roots}
            joined |= {
                root: min(names) for root in (*roots, *(r for r, name in joined.items() if name in names))
            }
    return joined

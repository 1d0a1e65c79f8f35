"""ResourceSlices -> for each node the NICs and GPUs that a claim may choose from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dranet.allocation.devices import Candidate
from dranet.allocation.nodes import JsonObject, Node
from dranet.allocation.pools import Inventory
from dranet.model import attributes as a
from dranet.model.distance import Distance, distance
from dranet.templates.places import Place, address_of, locate, near_of, text_of, value_of

_GPU_DRIVER_PREFIX = "gpu."
"""Vendors call their drivers so: ``gpu.nvidia.com``, ``gpu.amd.com``, ``gpu.intel.com``."""
_KEEPS_OUT = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, eq=False)
class Spot:
    """One published device and its place."""

    device: Candidate
    place: Place

    @property
    def pci_path(self) -> tuple[str, ...]:
        return self.place.pci_path

    @property
    def pcie_root(self) -> str:
        return self.place.pcie_root

    @property
    def numa_node(self) -> int | None:
        return self.place.numa_node

    @property
    def address(self) -> str:
        return address_of(self.device)

    @property
    def name(self) -> str:
        return self.device.id[2]

    @property
    def ifname(self) -> str:
        return text_of(self.device, a.IFNAME.qualified)

    @property
    def has_rdma(self) -> bool:
        return value_of(self.device, a.RDMA.qualified) is True

    @property
    def is_up(self) -> bool:
        """Whether its port has a link, as far as it says."""
        state = text_of(self.device, a.RDMA_PORT_STATE.qualified)
        if self.has_rdma and state:
            return state == "ACTIVE"
        return text_of(self.device, a.STATE.qualified) in ("", "up", "unknown")

    @property
    def nearest_gpu(self) -> Distance | None:
        """How far it says that its nearest GPUs are."""
        return near_of(self.device)[0]


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """What one node offers, in the scheduler's order."""

    node: Node
    nics: tuple[Spot, ...]
    gpus: tuple[Spot, ...]
    slices: tuple[JsonObject, ...]
    """Those that this was read from, of this node alone."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def makeup(self) -> object:
        """Equal for nodes that are alike in all that a choice depends on."""
        return tuple(
            (spot.device.driver, spot.name, spot.place, spot.is_up, spot.has_rdma, spot.ifname)
            for spot in (*self.nics, *self.gpus)
        )

    @property
    def is_measured(self) -> bool:
        """Whether every distance is told. Of GPUs that are not its nearest a NIC says nothing; the switch,
        root and NUMA node of both tell the rest, but not ``PXB`` from ``PHB``."""
        return all(_is_measured(nic, distance(nic, gpu)) for nic in self.nics for gpu in self.gpus)

    @property
    def up(self) -> NodeHardware:
        """Without NICs whose port is down."""
        return replace(self, nics=tuple(nic for nic in self.nics if nic.is_up))


def _is_measured(nic: Spot, found: Distance | None) -> bool:
    return found is not None and not (found is Distance.PHB and nic.nearest_gpu is Distance.PIX)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Every node of a cluster with the drivers of its NICs and GPUs."""

    nodes: tuple[NodeHardware, ...]
    nic_driver: str = a.DOMAIN
    gpu_driver: str = ""
    """Empty where no GPU is published."""
    other_gpu_drivers: tuple[str, ...] = ()
    """They have GPUs, too, which are left out: a request is for the devices of one class."""
    has_shared_nics: bool = False
    """There are NICs, too, that several claims may hold at once: no claim for a whole NIC may get one."""

    @property
    def has_own_gpus(self) -> bool:
        return self.gpu_driver == self.nic_driver


def read_hardware(
    slices: Sequence[JsonObject], nodes: Iterable[JsonObject] = (), only: Collection[str] = ()
) -> Hardware:
    """Read what may be claimed: no tainted devices, no shared ones, no links that software made.

    Args:
        slices: of all drivers.
        nodes: Node objects, for their labels; nodes without one are taken from the slices.
        only: names of the nodes that count; empty: all.
    """
    slices = [_with_name(entry, number) for number, entry in enumerate(slices)]
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    of_node = {str(entry["spec"].get("nodeName") or "") for entry in slices}
    names = sorted(name for name in labels.keys() | of_node if name and (not only or name in only))
    inventory = Inventory.read(slices)
    found = {name: _candidates(inventory, Node(name, labels.get(name, {}))) for name in names}
    every = [device for devices in found.values() for device in devices]
    nic_driver = next((device.driver for device in every if _is_ours(device)), a.DOMAIN)
    gpu_drivers = _gpu_drivers(found.values(), nic_driver)
    gpu_driver = next(iter(gpu_drivers), "")
    read = (_read_node(Node(name, labels.get(name, {})), found[name], gpu_driver, slices) for name in names)
    shared = any(device.shared and _is_ours(device) for device in every)
    useful = tuple(node for node in read if node.nics or node.gpus)
    return Hardware(useful, nic_driver, gpu_driver, gpu_drivers[1:], shared)


def _with_name(entry: JsonObject, number: int) -> JsonObject:
    """A slice that no server has named yet keeps its place among the others."""
    metadata = entry["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '')}{number:05}"
    return {**entry, "metadata": {**metadata, "name": name}}


def _candidates(inventory: Inventory, node: Node) -> tuple[Candidate, ...]:
    return tuple(device for pool in inventory.pools_for(node) if not pool.defect for device in pool.devices)


def _read_node(
    node: Node, devices: Sequence[Candidate], gpu_driver: str, slices: Sequence[JsonObject]
) -> NodeHardware:
    free = [device for device in devices if not any(taint.effect in _KEEPS_OUT for taint in device.taints)]
    nics = [device for device in free if _is_nic(device)]
    gpus = [device for device in free if device.driver == gpu_driver and _is_gpu(device)]
    places = locate(nics, gpus)
    own = tuple(entry for entry in slices if entry["spec"].get("nodeName") in (None, "", node.name))
    return NodeHardware(
        node,
        tuple(Spot(nic, places[nic.id]) for nic in nics),
        tuple(Spot(gpu, places[gpu.id]) for gpu in gpus),
        own,
    )


def _is_ours(device: Candidate) -> bool:
    return device.find_attribute(a.RDMA.qualified) is not None


def _is_nic(device: Candidate) -> bool:
    if not _is_ours(device) or device.shared or _is_gpu(device):
        return False
    return value_of(device, a.RDMA.qualified) is True or value_of(device, a.VIRTUAL.qualified) is False


def _is_gpu(device: Candidate) -> bool:
    """One of ours says so; one of a vendor's driver may be a part of a GPU, and says that instead."""
    if _is_ours(device):
        return value_of(device, a.TYPE.qualified) == "gpu"
    kind = text_of(device, f"{device.driver}/type")
    return device.driver.startswith(_GPU_DRIVER_PREFIX) and (not kind or "gpu" in kind)


def _gpu_drivers(nodes: Iterable[Sequence[Candidate]], nic_driver: str) -> tuple[str, ...]:
    """First the one with most GPUs beside NICs; a vendor's before ours, which steps back for it."""
    beside: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for devices in nodes:
        found = Counter(device.driver for device in devices if _is_gpu(device))
        every += found
        if any(map(_is_nic, devices)):
            beside += found
    order = sorted(every, key=lambda driver: (driver in beside, driver != nic_driver, beside[driver], driver))
    return tuple(reversed(order))

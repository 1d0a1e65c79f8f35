"""ResourceSlices -> for each node the NICs and GPUs that a claim may choose from, and their places."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dranet.desk.allocation.devices import Candidate, Node
from dranet.desk.allocation.pools import Inventory, Pool
from dranet.desk.hardware.places import (
    PLACES,
    Place,
    address_of,
    locate,
    read_near_gpus,
    text_of,
    value_of,
)
from dranet.desk.hardware.platforms import Assumption
from dranet.desk.kubeapi.objects import JsonObject
from dranet.model import attributes as a
from dranet.model.facts import Distance, distance
from dranet.quantity import NANO

GPU_DRIVER_PREFIX = "gpu."
"""Vendors call their drivers so: ``gpu.nvidia.com``, ``gpu.amd.com``, ``gpu.intel.com``."""
_ACCELERATOR_DRIVERS = frozenset({"gaudi.intel.com", "neuron.aws.com", "tpu.google.com"})
"""Those that do not. Each of their devices counts."""
_PUBLISHED_BY_US_ALONE = (a.CARRIER.qualified, a.RDMA_PORT_STATE.qualified)
"""Attributes that DraNet's devices do not have; they share the other names."""
_KEEPS_OUT = ("NoSchedule", "NoExecute")
WHOLE_TYPES = ("gpu", "amdgpu")
"""``type`` of a whole GPU. Others are parts (``mig``, ``amdgpu-partition``, ``vf``), or GPUs for virtual
machines (``vfio``)."""
PROFILES = {"gpu.nvidia.com": "profile", "gpu.amd.com": "partitionProfile"}
"""Driver -> the attribute with the profile of a part of a GPU."""
_UNPUBLISHED = "unpublished.gpus"
"""In place of the driver of GPUs that no driver publishes."""


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
    def rail(self) -> int | None:
        """From its switch, or from a rule of the administrator."""
        value = value_of(self.device, a.RAIL.qualified)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def fabric(self) -> str:
        """``InfiniBand`` or ``Ethernet``, where it has RDMA and publishes it."""
        return text_of(self.device, a.RDMA_LINK_LAYER.qualified)

    @property
    def is_up(self) -> bool:
        """Whether its port has a link, as far as it is published."""
        state = text_of(self.device, a.RDMA_PORT_STATE.qualified)
        if self.has_rdma and state:
            return state == "ACTIVE"
        return text_of(self.device, a.STATE.qualified) in ("", "up", "unknown")

    @property
    def is_offered(self) -> bool:
        """Whether no taint keeps claims away from it."""
        return not _taint_of(self.device)

    @property
    def nearest_gpu(self) -> Distance | None:
        """The published distance of its nearest GPUs."""
        return read_near_gpus(self.device).distance

    @property
    def makeup(self) -> object:
        """What a choice depends on: its place, and the attributes of it that a constraint compares."""
        published = tuple(self.device.find_attribute(name) for name in PLACES)
        kind = (self.device.driver, self.name, self.is_up, self.has_rdma, self.fabric, bool(self.ifname))
        return kind, self.place, self.nearest_gpu, published, self.rail


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """What one node offers, in the scheduler's order."""

    node: Node
    nics: tuple[Spot, ...]
    gpus: tuple[Spot, ...]
    slices: tuple[JsonObject, ...]
    """Those that this was read from, of this node alone."""
    tainted: tuple[str, ...] = ()
    """NICs and GPUs that are left out for now, each with the taint."""
    named_gpus: tuple[Spot, ...] = ()
    """GPUs that no driver publishes: the NICs name their addresses."""
    assumption: Assumption | None = None
    """Used where no attribute has the NUMA nodes of the GPUs."""
    extended: Mapping[str, int] | None = None
    """Allocatable extended resources; ``None`` where the Node was not read."""
    gpu_resource: str = ""
    """The extended resource by which a device plugin gives the GPUs: no claim can."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def makeup(self) -> object:
        """Equal for nodes that are alike in all that a choice depends on. The order of GPUs does not count:
        NVIDIA's and Intel's driver publish them in random order."""
        gpus = frozenset(gpu.makeup for gpu in self.gpus)
        return tuple(nic.makeup for nic in self.nics), gpus, self.allocatable_gpus

    @property
    def allocatable_gpus(self) -> int:
        """For a device plugin what the Node has, which may be shares of GPUs, or the healthy ones alone."""
        return (self.extended or {}).get(self.gpu_resource, len(self.gpus))

    @property
    def gpu_count(self) -> int:
        """The most that a pod can have."""
        return min(len(self.gpus), self.allocatable_gpus)

    @property
    def is_measured(self) -> bool:
        """Whether every distance is known. A NIC publishes only its nearest GPUs; the switch, root and NUMA
        node of both give the rest, but do not distinguish ``PXB`` from ``PHB``, nor without a root of the GPU
        ``PHB`` from ``NODE``."""
        return all(_is_measured(nic, gpu) for nic in self.nics for gpu in self.gpus)

    @property
    def has_gpus_nearby(self) -> bool:
        """Whether a NIC publishes a nearest GPU; the GPU itself may be published by no driver."""
        return any(nic.nearest_gpu is not None for nic in self.nics)

    def has_all(self, gpus: int) -> bool:
        """Whether a pod with so many GPUs of a device plugin has every GPU of the node."""
        return bool(self.gpu_resource) and gpus == len(self.gpus) == self.allocatable_gpus

    def with_nics(self, is_wanted: Callable[[Spot], bool]) -> NodeHardware:
        """With those of its NICs alone."""
        return replace(self, nics=tuple(filter(is_wanted, self.nics)))


def _is_measured(nic: Spot, gpu: Spot) -> bool:
    found, nearest = distance(nic, gpu), nic.nearest_gpu
    if found is Distance.NODE and not gpu.place.roots:
        return nearest is None or nearest >= Distance.NODE
    return found is not None and not (found is Distance.PHB and nearest is Distance.PIX)


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
    other_nic_drivers: tuple[str, ...] = ()
    """They publish NICs in the same words, which are left out likewise."""
    defects: tuple[str, ...] = ()
    """Pools of which no scheduler would take anything, each with the reason."""
    gpu_parts: tuple[str, ...] = ()
    """Profiles of the parts of GPUs that are offered."""
    most_bandwidth: int = 0
    """Bits per second: the largest that a shared NIC has as a capacity."""
    has_other_gpu_devices: bool = False
    """The GPUs' driver offers parts of GPUs or GPUs for virtual machines, which a class of its may select."""

    @property
    def has_own_gpus(self) -> bool:
        return self.gpu_driver == self.nic_driver


def read_hardware(
    slices: Sequence[JsonObject],
    nodes: Iterable[JsonObject] = (),
    only: Collection[str] = (),
    gpu_part: str = "",
    bandwidth: int = 0,
) -> Hardware:
    """Read what may be claimed: no tainted devices, no shared ones, no links that software made.

    Args:
        slices: those of all drivers.
        nodes: Node objects, for their labels; nodes without one are taken from the slices.
        only: names of the nodes that count; empty: all.
        gpu_part: the parts of GPUs with this profile (``1g.10gb``) are the GPUs; empty: whole GPUs are.
        bandwidth: the NICs are the shared ones with so many bits per second as a capacity; 0: whole NICs are.
    """
    slices = [_with_name(entry, number) for number, entry in enumerate(slices)]
    objects = {node["metadata"]["name"]: node for node in nodes}
    labels = {name: node["metadata"].get("labels") or {} for name, node in objects.items()}
    by_node: dict[str, list[JsonObject]] = defaultdict(list)
    for entry in slices:
        by_node[entry["spec"].get("nodeName") or ""].append(entry)
    names = sorted(name for name in {*labels, *by_node} if name and (not only or name in only))
    places = [Node(name, labels.get(name, {})) for name in names]
    inventory = Inventory.read(slices)
    pools = [inventory.pools_for(node) for node in places]
    offered = [_candidates(of_node) for of_node in pools]
    found = [tuple(_choose_gpus(devices, gpu_part)) for devices in offered]
    every = [device for devices in found for device in devices]
    nic_driver, *other_nic_drivers = _nic_drivers(every) or [a.DOMAIN]
    gpu_driver, *other_gpu_drivers = _gpu_drivers(found, nic_driver) or [""]
    read = (
        _read_node(node, devices, (nic_driver, gpu_driver), (*by_node[""], *by_node[node.name]), bandwidth)
        for node, devices in zip(places, found, strict=True)
    )
    return Hardware(
        tuple(
            replace(node, extended=_read_extended(objects.get(node.name)))
            for node in read
            if node.nics or node.gpus or node.tainted
        ),
        nic_driver,
        gpu_driver,
        tuple(driver for driver in other_gpu_drivers if not _are_published_twice(found, driver, gpu_driver)),
        has_shared_nics=any(device.shared and device.driver == nic_driver for device in every),
        other_nic_drivers=tuple(other_nic_drivers),
        defects=tuple(dict.fromkeys(why for of_node in pools for why in _defects(of_node))),
        gpu_parts=tuple(sorted({profile_of(device) for devices in offered for device in devices} - {""})),
        most_bandwidth=max(map(bandwidth_of, every), default=0),
        has_other_gpu_devices=any(
            device.driver == gpu_driver and is_gpu_or_part(device) and not is_gpu(device)
            for devices in offered
            for device in devices
        ),
    )


def _choose_gpus(devices: Iterable[Candidate], part: str) -> Iterator[Candidate]:
    """With those GPUs alone that count."""
    for device in devices:
        if not is_gpu_or_part(device) or (profile_of(device) == part if part else is_gpu(device)):
            yield device


def _are_published_twice(nodes: Iterable[Sequence[Candidate]], driver: str, chosen: str) -> bool:
    """Whether the chosen driver publishes all GPUs of another one: a capture shows the latter without the
    former."""
    return all(_addresses(devices, driver) <= _addresses(devices, chosen) for devices in nodes)


def _addresses(devices: Iterable[Candidate], driver: str) -> set[str]:
    return {address_of(device) for device in devices if device.driver == driver and is_gpu_or_part(device)}


def _read_extended(node: JsonObject | None) -> Mapping[str, int] | None:
    """Those of device plugins are whole numbers, of a name with a domain."""
    allocatable = ((node or {}).get("status") or {}).get("allocatable")
    if allocatable is None:
        return None
    return {name: int(text) for name, text in allocatable.items() if "/" in name and str(text).isdecimal()}


def _defects(pools: Iterable[Pool]) -> Iterator[str]:
    for pool in pools:
        if pool.defect and any(_is_ours(device) or is_gpu(device) for device in pool.devices):
            yield f"the pool {pool} is {pool.defect}"


def _with_name(entry: JsonObject, number: int) -> JsonObject:
    """A slice that no server has named yet keeps its place among the others."""
    metadata = entry["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '')}{number:05}"
    return {**entry, "metadata": {**metadata, "name": name}}


def _candidates(pools: Iterable[Pool]) -> tuple[Candidate, ...]:
    return tuple(device for pool in pools if not pool.defect for device in pool.devices)


def _read_node(
    node: Node,
    devices: Sequence[Candidate],
    drivers: tuple[str, str],
    slices: tuple[JsonObject, ...],
    bandwidth: int,
) -> NodeHardware:
    nic_driver, gpu_driver = drivers
    free = [device for device in devices if not _taint_of(device)]
    is_wanted = (lambda device: bandwidth_of(device) >= bandwidth) if bandwidth else _is_nic
    nics = [device for device in free if device.driver == nic_driver and is_wanted(device)]
    gpus = [device for device in free if device.driver == gpu_driver and is_gpu_or_part(device)]
    named = _name_gpus(node, nics, [device for device in devices if is_gpu_or_part(device)])
    places, assumption = locate(nics, [*gpus, *named])
    nic_spots, gpu_spots, named_spots = (
        tuple(Spot(device, places[device.id]) for device in kind) for kind in (nics, gpus, named)
    )
    tainted = tuple(_of_tainted([device for device in devices if device.driver in drivers]))
    return NodeHardware(node, nic_spots, gpu_spots, slices, tainted, named_spots, assumption)


def _name_gpus(node: Node, nics: Sequence[Candidate], gpus: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """A device for each address that NICs name and no driver publishes, as a driver would publish it."""
    near = [read_near_gpus(nic) for nic in nics]
    named = {address for known in near for address in (*known.nearest, *known.numa_node)}
    devices = [
        {"name": f"gpu-{number}", "attributes": {a.STANDARD_PCI_BUS_ID.qualified: {"string": address}}}
        for number, address in enumerate(sorted(named - set(map(address_of, gpus))))
    ]
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _UNPUBLISHED, "nodeName": node.name, "pool": pool, "devices": devices}
    inventory = Inventory.read([{"metadata": {"name": _UNPUBLISHED}, "spec": spec}])
    return _candidates(inventory.pools_for(node))


def _taint_of(device: Candidate) -> str:
    """The first that keeps claims away from it."""
    kept_out = (taint for taint in device.taints if taint.effect in _KEEPS_OUT)
    return next((f"{taint.key}:{taint.effect}" for taint in kept_out), "")


def _of_tainted(devices: Iterable[Candidate]) -> Iterator[str]:
    for device in devices:
        if (_is_nic(device) or is_gpu_or_part(device)) and (taint := _taint_of(device)):
            yield f"{device.id[2]} is tainted {taint}"


def _is_ours(device: Candidate) -> bool:
    """Whether it is a device of this driver, or of another one with the same attributes."""
    return device.find_attribute(a.RDMA.qualified) is not None


def _is_nic(device: Candidate) -> bool:
    if not _is_ours(device) or device.shared or is_gpu(device):
        return False
    return value_of(device, a.RDMA.qualified) is True or value_of(device, a.VIRTUAL.qualified) is False


def bandwidth_of(device: Candidate) -> int:
    """Bits per second that claims can take of a shared NIC; 0 for any other device."""
    capacity = device.capacity.get(a.BANDWIDTH)
    return capacity.value // NANO if device.shared and capacity is not None else 0


def is_network_device(device: Candidate) -> bool:
    """Whether it is a NIC of this driver, of whatever kind: shared or not, made by software or not."""
    return _is_ours(device) and not is_gpu(device)


def is_gpu_driver(driver: str) -> bool:
    """Whether a vendor's driver is for GPUs or other accelerators, by its name."""
    return driver.startswith(GPU_DRIVER_PREFIX) or driver in _ACCELERATOR_DRIVERS


def is_gpu_or_part(device: Candidate) -> bool:
    """Whether it is a GPU of any driver, or a part of one."""
    return is_gpu(device) or is_gpu_driver(device.driver)


def profile_of(device: Candidate) -> str:
    """``1g.10gb`` for a part of a GPU (MIG), ``cpx_nps1`` (AMD); empty for a whole GPU."""
    return "" if is_gpu(device) else text_of(device, f"{device.driver}/{PROFILES.get(device.driver, '')}")


def is_gpu(device: Candidate) -> bool:
    """Whether it is a whole GPU; a device of a vendor's driver may be a part of one, as its type shows."""
    if _is_ours(device):
        return value_of(device, a.TYPE.qualified) == "gpu"
    kind = text_of(device, f"{device.driver}/type")
    if device.driver.startswith(GPU_DRIVER_PREFIX):
        return kind in ("", *WHOLE_TYPES)
    return device.driver in _ACCELERATOR_DRIVERS


def _nic_drivers(devices: Sequence[Candidate]) -> list[str]:
    """First the driver with most attributes that only this driver publishes, then that with most devices."""
    every = Counter(device.driver for device in devices if _is_ours(device) and not is_gpu(device))
    own = Counter(d.driver for d in devices if any(map(d.find_attribute, _PUBLISHED_BY_US_ALONE)))
    return sorted(every, key=lambda driver: (-own[driver], -every[driver], driver != a.DOMAIN, driver))


def _gpu_drivers(nodes: Iterable[Sequence[Candidate]], nic_driver: str) -> tuple[str, ...]:
    """First the driver with most GPUs on nodes with NICs; a vendor's before ours, which yields to it."""
    beside: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for devices in nodes:
        found = Counter(device.driver for device in devices if is_gpu_or_part(device))
        every += found
        if any(device.driver == nic_driver and _is_nic(device) for device in devices):
            beside += found
    order = sorted(every, key=lambda driver: (driver in beside, driver != nic_driver, beside[driver], driver))
    return tuple(reversed(order))

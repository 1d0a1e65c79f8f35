"""NCCL's topology as a tree: which of a pod's devices hang on which PCIe switches and processors.

It has the pod's GPUs and network devices, and the bridges above them. What a device *is* (link speed, ports,
GPU generation) is left out, because NCCL asks the device itself: it takes the file first, looks for what it
lacks in the container's sysfs, finds a function of the file again by its address, and removes what no
process of the job uses (``src/graph/xml.cc``, ``topo.cc``). So a GPU that is not in the file is found all
the same. The class of a function is there for containers without sysfs: NCCL gives up where it finds none.

The file lists all processors, those with devices first, and one with number -1, to which NCCL attaches what
sysfs does not show. A processor that NCCL has to add is taken, from 2.21 to 2.26, for one of another machine
without a path to it. Processors are described in full: NCCL hangs a device that is not on PCI, as the pod's
``eth0``, on the first one of the file, and gives up over what that lacks.

A switch appears as its upstream port only, because NCCL goes up two steps at a time. A way between two
bridges is for it one between two switches (``paths.cc``), so every port more would make devices on one
switch look like devices on several.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from dranet.model.claim import Processor
from dranet.model.cpus import format_cpu_mask, parse_cpu_list
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts, PciFunction

BRIDGE_CLASS = 0x060400
"""PCI-to-PCI bridge: any function with something below it."""
_CLASSES = {DeviceKind.NIC: 0x020000, DeviceKind.RDMA: 0x020700, DeviceKind.GPU: 0x030200}
"""Class of a function that the last scan did not find."""
NO_NUMA_NODE = -1
"""The number that the kernel, and so NCCL, uses where the platform reports none."""

NCCL, RCCL = 1, 2
"""Versions of the format. A reader gives up over that of the other one."""
_READ_BY_RCCL = frozenset({"amd", "hygon"})
_READ_BY_NCCL = frozenset({"nvidia"})

UNKNOWN = Processor()
_X86 = "x86_64"
_OTHER_ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}
_LAST_FAMILY = 15

MOST_ELEMENTS = 256
"""That NCCL can hold for all processes of a pod together; it gives up beyond."""
MOST_BELOW = 32
"""One element, before NCCL 2.21."""
_FIRST_FUNCTION = ":00.0"
_ELEMENTS_PER_NIC, _ELEMENTS_PER_OTHER_FUNCTION = 2, 4
"""Elements that NCCL adds for a network function. For further functions of a card it takes the first one for
all (``NCCL_IB_MERGE_VFS``), and adds elements where it joins ports."""
_ELEMENTS_PER_GPU = 10
"""That NCCL adds: itself, its links to seven peers or to the switches between them, and to a processor."""
_MOST_NICS = 32
"""That NCCL takes."""
_SPARE_ELEMENTS = 32
"""For a socket's interface, and GPUs that are not in the file."""


class PciNode(Struct, frozen=True):
    """A function with what is below it, by address."""

    address: str
    class_code: int
    vendor_id: int | None = None
    """``None`` for bridges, of which a scan keeps the address alone."""
    device_id: int | None = None
    below: tuple[PciNode, ...] = ()


class CpuKind(Struct, frozen=True):
    """As NCCL numbers it."""

    architecture: str
    vendor: str = ""
    """Empty but on x86, as what follows."""
    family: int | None = None
    model: int | None = None


class CpuNode(Struct, frozen=True):
    """A NUMA node with the functions that hang on it, by address."""

    numa_node: int
    below: tuple[PciNode, ...] = ()
    affinity: str = ""
    """Its CPUs, as a mask; empty where there is no such node."""
    kind: CpuKind | None = None
    """``None`` where the node does not report it."""


class Topology(Struct, frozen=True):
    """The processors, those with devices first, each by number."""

    cpus: tuple[CpuNode, ...] = ()
    version: int = NCCL
    """Version of the format: :data:`NCCL` or :data:`RCCL`."""

    @property
    def has_devices(self) -> bool:
        return any(cpu.below for cpu in self.cpus)

    @property
    def size(self) -> int:
        return 1 + sum(1 + sum(map(_count, cpu.below)) for cpu in self.cpus)


def _count(node: PciNode) -> int:
    return 1 + sum(map(_count, node.below))


def build_topology(
    nics: Iterable[Device],
    gpus: Iterable[Device],
    facts: NodeFacts,
    processor: Processor = UNKNOWN,
    version: int = NCCL,
) -> Topology:
    """The tree of these devices; one that is no PCI function is left out, and NCCL finds it by itself."""
    on_pci = (device for device in (*nics, *gpus) if device.pci_address and device.pci_path)
    devices = {device.pci_address: device for device in on_pci}
    wanted = devices.keys()
    functions = {function.address: function for function in facts.pci_functions if function.address in wanted}
    numa_nodes = _find_numa_nodes(devices.values())
    tree: dict[int, _Branch] = {}
    for device in devices.values():
        branch = tree.setdefault(numa_nodes[device.pci_path[0]], {})
        # Every second step, counted from the function upwards: the function, and the switches above it.
        for step in device.pci_path[(len(device.pci_path) - 1) % 2 :: 2]:
            branch = branch.setdefault(step, {})
    classes = {address: _CLASSES[device.kind] for address, device in devices.items()}
    affinities = {n.node: format_cpu_mask(parse_cpu_list(n.cpus)) for n in facts.numa_nodes if n.cpus}
    kind = find_kind(facts.host.architecture, processor)
    idle = {*affinities, NO_NUMA_NODE} - tree.keys()
    return Topology(
        tuple(
            CpuNode(numa, _build(tree.get(numa, {}), functions, classes), affinities.get(numa, ""), kind)
            for numa in (*sorted(tree), *sorted(idle))
        ),
        version,
    )


def find_version(gpus: Iterable[Device], facts: NodeFacts) -> int | None:
    """For which library the file is: by the makers of the pod's GPUs, or of the node's where none of the pod
    is known. ``None``: it may be either."""
    addresses = {gpu.pci_address for gpu in gpus}
    known = [gpu.vendor for gpu in facts.gpus if gpu.pci_address in addresses]
    makers = set(known or (gpu.vendor for gpu in facts.gpus))
    if makers.isdisjoint(_READ_BY_RCCL):
        return NCCL
    return RCCL if makers.isdisjoint(_READ_BY_NCCL) else None


def find_kind(architecture: str, processor: Processor) -> CpuKind | None:
    """Return the CPU kind for an architecture of ``uname``; ``None`` where NCCL would lack something."""
    if architecture != _X86:
        known = _OTHER_ARCHITECTURES.get(architecture)
        return None if known is None else CpuKind(known)
    family, model = processor.family, processor.model
    if not processor.vendor or family is None or model is None:
        return None
    extended = family - _LAST_FAMILY  # apart in the processor (CPUID 1): NCCL shifts it, Linux adds it
    number = family if extended <= 0 else _LAST_FAMILY + (extended << 4)
    return CpuKind(_X86, processor.vendor, number, model)


_Branch = dict[str, "_Branch"]


def _find_numa_nodes(devices: Iterable[Device]) -> dict[str, int]:
    """Map each root port to one NUMA node for all functions below it, as NCCL does. A function without a NUMA
    node does not hide that of its neighbours."""
    found: dict[str, int] = {}
    for device in sorted(devices, key=lambda device: device.pci_address):
        numa = NO_NUMA_NODE if device.numa_node is None else device.numa_node
        if found.setdefault(device.pci_path[0], numa) == NO_NUMA_NODE:
            found[device.pci_path[0]] = numa
    return found


def _build(
    branch: _Branch, functions: Mapping[str, PciFunction], classes: Mapping[str, int]
) -> tuple[PciNode, ...]:
    nodes = []
    for address, below in sorted(branch.items()):
        ids: tuple[int, int | None, int | None] = (classes.get(address, BRIDGE_CLASS), None, None)
        if function := functions.get(address):
            ids = function.class_code, function.vendor_id, function.device_id
        nodes.append(PciNode(address, *ids, _build(below, functions, classes)))
    return tuple(nodes)


def fits(topology: Topology, nics: Iterable[Device], gpus: Collection[Device]) -> bool:
    """Whether NCCL can hold it with what it adds itself for these devices."""
    are_first = (nic.pci_address == _first_function(nic.pci_address) for nic in nics)
    added = sorted(_ELEMENTS_PER_NIC if first else _ELEMENTS_PER_OTHER_FUNCTION for first in are_first)
    size = topology.size + sum(added[-_MOST_NICS:]) + _ELEMENTS_PER_GPU * len(gpus) + _SPARE_ELEMENTS
    return size <= MOST_ELEMENTS and max(_widths(topology)) < MOST_BELOW


def _first_function(address: str) -> str:
    bus, _, _ = address.rpartition(":")
    return f"{bus}{_FIRST_FUNCTION}"


def _widths(topology: Topology) -> Iterator[int]:
    """How many are below each element, with the first functions of cards that NCCL adds."""
    yield len(topology.cpus)
    todo = [cpu.below for cpu in topology.cpus]
    while todo:
        below = todo.pop()
        functions = {node.address for node in below}
        yield len(functions.union(_first_function(node.address) for node in below if not node.below))
        todo += (node.below for node in below)


_TAG = re.compile(r' *<(/?)([a-z]+)((?: [a-z]+="[^"<>&]{0,254}")*)(/?)>\n')
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID = re.compile(r"0x[0-9a-f]{1,6}")
_MASK = re.compile(r"(?:[0-9a-f]{1,8}(?:,[0-9a-f]{8})*)?")
_ARCHITECTURE = re.compile(r"[a-z0-9_]{1,16}")
_VENDOR = re.compile(r"[A-Za-z0-9 ]{1,12}")
"""The 12 characters of CPUID 0."""
_NUMBER = re.compile(r"-1|[0-9]{1,6}")
_IDS = ("vendor", "device")
_DEEPEST = 64
MOST_ATTRIBUTES = 16
"""Attributes of one element; NCCL ignores more."""


class TopologyError(ValueError):
    """A text is no topology that we write, or a tree has a name that NCCL could not read."""


def render_topology(topology: Topology) -> str:
    """The file: the same tree gives the same text.

    Raises:
        TopologyError: an address is not one.
    """
    lines = [f'<system version="{topology.version}">']
    for cpu in topology.cpus:
        lines.append(f'  <cpu numaid="{cpu.numa_node}" affinity="{cpu.affinity}"{_render_kind(cpu.kind)}>')
        lines += (line for node in cpu.below for line in _render(node, 4))
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])


def _render_kind(kind: CpuKind | None) -> str:
    if kind is None:
        return ""
    text = f' arch="{kind.architecture}"'
    if not kind.vendor:
        return text
    if not _VENDOR.fullmatch(kind.vendor):
        raise TopologyError(f"not a processor's vendor: {kind.vendor!r}")
    return f'{text} vendor="{kind.vendor}" familyid="{kind.family}" modelid="{kind.model}"'


def _render(node: PciNode, indent: int) -> Iterator[str]:
    if not _ADDRESS.fullmatch(node.address):
        raise TopologyError(f"not a PCI address: {node.address!r}")
    attributes = f'busid="{node.address}" class="0x{node.class_code:06x}"'
    if node.vendor_id is not None and node.device_id is not None:
        attributes += f' vendor="0x{node.vendor_id:04x}" device="0x{node.device_id:04x}"'
    space = " " * indent
    yield f"{space}<pci {attributes}{'' if node.below else '/'}>"
    for below in node.below:
        yield from _render(below, indent + 2)
    if node.below:
        yield f"{space}</pci>"


def parse_topology(text: str) -> Topology:
    """The tree in a file of ours.

    Raises:
        TopologyError: it is not one.
    """
    lines = iter(text.splitlines(keepends=True))
    system = _parse_line(next(lines, ""))
    version = next((one for one in (NCCL, RCCL) if system.attributes == {"version": str(one)}), None)
    if (system.name, system.kind) != ("system", _OPENS) or version is None:
        raise TopologyError("it does not begin with a system of version 1 or 2")
    cpus = []
    for cpu in _iter_below("system", lines):
        if cpu.name != "cpu" or cpu.kind != _OPENS:
            raise TopologyError(f"{cpu.name} below system")
        below = tuple(_parse_pci(tag, lines, 0) for tag in _iter_below("cpu", lines))
        cpus.append(
            CpuNode(int(cpu.get("numaid", _NUMBER)), below, cpu.get("affinity", _MASK), _parse_kind(cpu))
        )
    if next(lines, ""):
        raise TopologyError("something follows the system")
    return Topology(tuple(cpus), version)


_OPENS, _CLOSES, _IS_EMPTY = "opens", "closes", "is empty"


class _Tag(Struct, frozen=True):
    name: str
    kind: str
    attributes: Mapping[str, str]

    def get(self, name: str, form: re.Pattern[str]) -> str:
        value = self.attributes.get(name, "")
        if not form.fullmatch(value):
            raise TopologyError(f"{name} of {self.name} is {value!r}")
        return value


def _parse_line(line: str) -> _Tag:
    found = _TAG.fullmatch(line)
    if found is None:
        raise TopologyError(f"not a tag: {line[:80]!r}")
    closes, name, attributes, stands_alone = found.groups()
    pairs = _ATTRIBUTE.findall(attributes)
    if len(pairs) > MOST_ATTRIBUTES or len({key for key, _ in pairs}) < len(pairs):
        raise TopologyError(f"{name} has too many attributes, or one of them twice")
    return _Tag(name, _CLOSES if closes else _IS_EMPTY if stands_alone else _OPENS, dict(pairs))


def _parse_kind(cpu: _Tag) -> CpuKind | None:
    if "arch" not in cpu.attributes:
        return None
    architecture = cpu.get("arch", _ARCHITECTURE)
    if "vendor" not in cpu.attributes:
        return CpuKind(architecture)
    family, model = (int(cpu.get(name, _NUMBER)) for name in ("familyid", "modelid"))
    return CpuKind(architecture, cpu.get("vendor", _VENDOR), family, model)


def _iter_below(name: str, lines: Iterator[str]) -> Iterator[_Tag]:
    """Yield the tags up to the one that closes ``name``; the caller reads what is below each."""
    for line in lines:
        tag = _parse_line(line)
        if tag.kind == _CLOSES:
            if tag.name != name:
                raise TopologyError(f"{tag.name} closes {name}")
            return
        yield tag
    raise TopologyError(f"{name} is not closed")


def _parse_pci(tag: _Tag, lines: Iterator[str], depth: int) -> PciNode:
    if tag.name != "pci" or depth > _DEEPEST:
        raise TopologyError(f"{tag.name} where only pci may be, or too deep")
    is_open = tag.kind == _OPENS
    below = tuple(_parse_pci(one, lines, depth + 1) for one in _iter_below("pci", lines)) if is_open else ()
    if is_open and not below:
        raise TopologyError("an empty pci with a closing tag")
    ids = [int(tag.get(name, _ID), 16) if name in tag.attributes else None for name in _IDS]
    class_code = int(tag.get("class", _ID), 16)
    return PciNode(tag.get("busid", _ADDRESS), class_code, ids[0], ids[1], below)

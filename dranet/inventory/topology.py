"""How the parts of a node are connected: where devices sit in the PCIe and NUMA tree, what is nearest, and
which links the node needs.

The node needs its uplinks (the links of its default routes, and those by which rules send the traffic of
others, such as pods) and what carries its protected addresses (its own and that of the API server). A link
depends on one of them if taking it away, or taking along what belongs to it, may cut the node off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, Link, NodeFacts, NumaNode, PciFunction, distance
from dranet.model.uplinks import (
    DEFAULT_ROUTE,
    OPENVSWITCH,
    TUNNEL_KINDS,
    UNTOLD,
    UNTOLD_DEFAULT_ROUTE,
    Addresses,
    Routing,
    find_uplinks,
    has_local_parent,
    is_hardware,
    may_carry,
)

PCI_CLASS_NETWORK = 0x02

_Path = tuple[list[str], str]
"""Root complex, bridges and function; and the name of the device at the end."""


class DistanceMatrix(Struct, frozen=True):
    """How far each device is from each other one. ``cells[row][column]`` is symmetric; ``None`` is unknown,
    and fills the unused diagonal."""

    devices: tuple[Device, ...]
    cells: tuple[tuple[Distance | None, ...], ...]


class Nearest(Struct, frozen=True):
    """Those of some candidates that are nearest to a device, all at the same distance."""

    distance: Distance
    devices: tuple[Device, ...]
    numa_node: tuple[Device, ...] = ()
    """All on the device's NUMA node; empty where the NUMA node of some candidate is unknown."""
    roots: tuple[str, ...] = ()
    """Root complexes of those on its NUMA node, where neither side has a partner below its own root."""


class TopologyNode(Struct, frozen=True):
    """One line of the tree: a NUMA node, a root complex, a bridge, or the place of devices."""

    label: str
    devices: tuple[str, ...] = ()
    """Names of the devices right here."""
    children: tuple[TopologyNode, ...] = ()


def matrix(devices: Iterable[Device]) -> DistanceMatrix:
    """All distances, GPUs first as ``nvidia-smi`` prints them, else in the given order."""
    ordered = tuple(sorted(devices, key=lambda device: device.kind is not DeviceKind.GPU))
    cells = tuple(tuple(None if a is b else distance(a, b) for b in ordered) for a in ordered)
    return DistanceMatrix(ordered, cells)


def nearest(device: Device, candidates: Iterable[Device]) -> Nearest | None:
    """The nearest of ``candidates`` in their order; ``None`` where no distance is known."""
    known = [(far, other) for other in candidates if (far := distance(device, other)) is not None]
    best = min((far for far, _ in known), default=None)
    return None if best is None else Nearest(best, tuple(other for far, other in known if far == best))


def short_names(devices: Iterable[Device]) -> Mapping[str, str]:
    """Device name -> ``GPU0``, ``NIC0`` ..., counted in the given order; an RDMA-only device is a NIC."""
    names: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    for device in devices:
        word = "GPU" if device.kind is DeviceKind.GPU else "NIC"
        names[device.name] = f"{word}{count[word]}"
        count[word] += 1
    return names


def topology_tree(devices: Iterable[Device]) -> tuple[TopologyNode, ...]:
    """NUMA nodes -> root complexes -> bridges -> devices; devices without PCI last, under their own label."""
    by_numa: dict[tuple[bool, int], list[_Path]] = defaultdict(list)
    plain: list[str] = []
    for device in devices:
        if device.pci_path and device.pcie_root:
            path = [device.pcie_root, *device.pci_path]
            by_numa[device.numa_node is None, device.numa_node or 0].append((path, device.name))
        else:
            plain.append(device.name)
    trees = [
        TopologyNode("NUMA node unknown" if unknown else f"NUMA node {node}", (), _branch(members))
        for (unknown, node), members in sorted(by_numa.items())
    ]
    if plain:
        trees.append(TopologyNode("no PCI", tuple(sorted(plain))))
    return tuple(trees)


def _branch(paths: Iterable[_Path]) -> tuple[TopologyNode, ...]:
    grouped: dict[str, list[_Path]] = defaultdict(list)
    for (head, *rest), name in paths:
        grouped[head].append((rest, name))
    return tuple(
        TopologyNode(
            label,
            devices=tuple(sorted(name for rest, name in members if not rest)),
            children=_branch([(rest, name) for rest, name in members if rest]),
        )
        for label, members in sorted(grouped.items())
    )


_Place = tuple[tuple[str, ...], int, str, int | None]
"""Bridges above a function and its depth, root complex, NUMA node: all that a distance depends on."""


class NearestGpus:
    """The GPUs of one scan as each NIC sees them. It is worked out once for each place, because the virtual
    functions of a port share it."""

    def __init__(self, gpus: Sequence[Device], functions: Iterable[PciFunction] = ()) -> None:
        """``functions`` are all of the node; of these the NICs count."""
        self._gpus = gpus
        self._nic_roots = {f.root for f in functions if f.base_class == PCI_CLASS_NETWORK}
        self._known: dict[_Place, Nearest | None] = {}

    def of(self, function: PciFunction) -> Nearest | None:
        """All GPUs at the smallest distance; ``None`` where there is no GPU, or no place is known."""
        if not self._gpus:
            return None
        place = (function.path[:-1], len(function.path), function.root, function.numa_node)
        if place not in self._known:
            self._known[place] = self._find(function)
        return self._known[place]

    def _find(self, function: PciFunction) -> Nearest | None:
        placed = Device(
            function.address,
            DeviceKind.NIC,
            pci_path=function.path,
            pcie_root=function.root,
            numa_node=function.numa_node,
        )
        found = nearest(placed, self._gpus)
        if found is None or function.numa_node is None:
            return found
        on_node = tuple(gpu for gpu in self._gpus if gpu.numa_node == function.numa_node)
        has_all = all(gpu.numa_node is not None for gpu in self._gpus)
        roots = self._find_lone_roots(on_node) if found.distance >= Distance.NODE else ()
        return replace(found, numa_node=on_node if has_all else (), roots=roots)

    def _find_lone_roots(self, gpus: Iterable[Device]) -> tuple[str, ...]:
        """A GPU with a NIC below its root is left out: a farther NIC must not take it from that one."""
        return tuple(sorted({gpu.pcie_root for gpu in gpus} - self._nic_roots - {""}))


def near_numa_nodes(nodes: Iterable[NumaNode]) -> Mapping[int, tuple[int, ...]]:
    """Each NUMA node -> itself and then, sorted, the nearest other nodes of its socket, as the list form of
    ``resource.kubernetes.io/numaNode`` (KEP-6072) wants it. A node whose distances or socket are not known
    has only itself: a list that is too long would match what is far away."""
    unique = {entry.node: entry for entry in sorted(nodes, key=repr)}  # the same one if a node occurs twice
    ordered = sorted(unique.values(), key=lambda entry: entry.node)
    return {entry.node: (entry.node, *_neighbours(entry, ordered)) for entry in ordered}


def processor_nodes(nodes: Iterable[NumaNode]) -> Mapping[int, int]:
    """Each NUMA node without CPUs -> the nearest node with CPUs. The memory of a GPU may be such a node
    (Grace), and be the one that the firmware reports for the GPU. A node whose distances do not decide is
    left out."""
    ordered = sorted({entry.node: entry for entry in nodes}.values(), key=lambda entry: entry.node)
    found: dict[int, int] = {}
    for own in ordered:
        if own.cpus or len(own.distances) != len(ordered):
            continue
        far = sorted(
            (far, other.node) for far, other in zip(own.distances, ordered, strict=True) if other.cpus
        )
        if far and (len(far) == 1 or far[0][0] < far[1][0]):
            found[own.node] = far[0][1]
    return found


def _neighbours(own: NumaNode, ordered: Sequence[NumaNode]) -> list[int]:
    if own.socket is None or len(own.distances) != len(ordered):
        return []
    pairs = zip(own.distances, ordered, strict=True)
    others = [(far, other) for far, other in pairs if other.node != own.node]
    smallest = min((far for far, _ in others), default=0)
    return [other.node for far, other in others if far == smallest and other.socket in (own.socket, None)]


def carrier(link: Link, functions: Mapping[str, PciFunction]) -> str:
    """Address of the PCI function that makes up one device with the link, or empty: a USB adapter has a PCI
    function behind it as well, its host controller, which is no NIC, and is a device of its own."""
    function = functions.get(link.pci_address)
    if function is None or function.base_class == PCI_CLASS_NETWORK or link.parent_bus == "pci":
        return link.pci_address
    return ""


class Dependency(Struct, frozen=True):
    """Why a link must stay on the node."""

    root: str
    """Name of the link that the node needs: the link itself or one that it depends on."""
    why: str
    """What ``root`` does for the node: ``carries a default route``."""
    is_uplink: bool
    """It carries a default route, or traffic of others by policy routing (else a protected address)."""

    def reason_for(self, ifname: str) -> str:
        """A clause that reads after the device's name."""
        if ifname != self.root:
            part = "the node's uplink" if self.is_uplink else f"which {self.why}"
            return f"is tied to {self.root}, {part}"
        return f"is the node's uplink: {self.root} {self.why}" if self.is_uplink else self.why


class LinkDependencies(Struct, frozen=True):
    links: Mapping[str, Dependency]
    """By interface name."""
    functions: Mapping[str, Dependency]
    """Physical functions of tied virtual functions, by PCI address: without its driver, or with it in
    another namespace, a virtual function is cut off or re-made."""


def find_link_dependencies(facts: NodeFacts) -> LinkDependencies:
    """Walk from each link that the node needs along masters, ports, parents and children, to the end. A link
    that the scan missed (it came while the kernel listed them) still connects its relatives."""
    by_index = {link.ifindex: link for link in facts.links}
    dependencies = _roots(facts, by_index)
    if not dependencies:
        return LinkDependencies({}, {})
    relations = _relations(facts.links)
    _spread(dependencies, relations)
    dependencies |= _below_tunnels(dependencies, facts.links)
    _spread(dependencies, relations)
    links = {
        by_index[index].ifname: dependency for index, dependency in dependencies.items() if index in by_index
    }
    return LinkDependencies(links, _physical_functions(facts, dependencies))


def _roots(facts: NodeFacts, by_index: Mapping[int, Link]) -> dict[int, Dependency]:
    def name(index: int) -> str:
        return by_index[index].ifname if index in by_index else f"interface {index}"

    routing = Routing(facts.default_routes, facts.rules, facts.policy_routes)
    addresses = Addresses(lambda: {link.ifindex: link.addresses for link in facts.links})
    uplinks = find_uplinks(routing, by_index.get, addresses)
    untold = [
        f"may carry {line.purpose} {line.address}, {UNTOLD}"
        for line in facts.protected_links
        if not line.ifindex
    ]
    untold += [UNTOLD_DEFAULT_ROUTE] if uplinks.untold else []
    dependencies: dict[int, Dependency] = {}
    for why in untold:
        cards = (link for link in facts.links if may_carry(link))
        dependencies |= {
            link.ifindex: Dependency(link.ifname, why, is_uplink=why == UNTOLD_DEFAULT_ROUTE)
            for link in cards
        }
    for line in reversed([line for line in facts.protected_links if line.ifindex]):
        dependencies[line.ifindex] = Dependency(
            name(line.ifindex), f"carries {line.purpose} {line.address}", is_uplink=False
        )
    ways = {**uplinks.by_policy, **dict.fromkeys(uplinks.by_default, DEFAULT_ROUTE)}
    return dependencies | {
        index: Dependency(name(index), ways[index], is_uplink=True) for index in sorted(ways)
    }


def _below_tunnels(dependencies: Mapping[int, Dependency], links: Sequence[Link]) -> dict[int, Dependency]:
    """If the node's way out is a tunnel (PPPoE, WireGuard ...) and no hardware is known below it, it may be
    any that is up."""
    tied = [link for link in links if link.ifindex in dependencies]
    uplinks = [link for link in tied if dependencies[link.ifindex].why == DEFAULT_ROUTE]
    ways = uplinks or [link for link in tied if not dependencies[link.ifindex].is_uplink] or tied
    tunnels = [dependencies[link.ifindex] for link in ways if link.kind in TUNNEL_KINDS]
    if not tunnels or any(map(is_hardware, ways)):
        return {}
    candidates = (link for link in links if link.ifindex not in dependencies)
    return {link.ifindex: tunnels[0] for link in candidates if link.is_up and is_hardware(link)}


def _spread(dependencies: dict[int, Dependency], neighbours: Mapping[int, Sequence[int]]) -> None:
    queue = list(dependencies)
    while queue:
        index = queue.pop()
        for other in neighbours.get(index, ()):
            if other not in dependencies:
                dependencies[other] = dependencies[index]
                queue.append(other)


def _relations(links: Iterable[Link]) -> Mapping[int, Sequence[int]]:
    neighbours: dict[int, list[int]] = defaultdict(list)
    for one, other in _pairs(links):
        neighbours[one].append(other)
        neighbours[other].append(one)
    return neighbours


def _pairs(links: Iterable[Link]) -> Iterator[tuple[int, int]]:
    """A synthetic card and the function under it have one hardware address, also while the second has come
    and is not yet enslaved to the first."""
    switch_port = 0
    cards: dict[str, int] = {}
    for link in links:
        if not link.virtual and is_hardware(link) and link.mac.strip("0:"):
            yield link.ifindex, cards.setdefault(link.mac, link.ifindex)
        if link.master:
            yield link.ifindex, link.master
        if link.lower and link.link_netnsid is None and has_local_parent(link):
            yield link.ifindex, link.lower
        if link.kind == OPENVSWITCH:
            if switch_port:
                yield link.ifindex, switch_port
            switch_port = link.ifindex


def _physical_functions(facts: NodeFacts, dependencies: Mapping[int, Dependency]) -> dict[str, Dependency]:
    """Find physical functions, not unused virtual functions of an uplink: those may be offered."""
    functions: Mapping[str, PciFunction] = {function.address: function for function in facts.pci_functions}
    found: dict[str, Dependency] = {}
    for link in facts.links:
        if link.ifindex in dependencies and link.pci_address:
            function = functions.get(carrier(link, functions))
            if function and function.physical_function:
                found.setdefault(function.physical_function, dependencies[link.ifindex])
    return found

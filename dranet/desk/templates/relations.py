"""What NIC and GPU may have in common on this hardware, from the nearest relation to the farthest: a ladder.

A relation is something that a claim can ask for. Where both devices publish one attribute of one type, it is
a ``matchAttribute``. Where the GPU's driver does not publish what the NIC publishes, it is a division into
groups: which GPU (by PCI address) belongs to which group of NICs, both as alternatives of their requests
(``shapes`` describes how they are kept together). A relation that no pair of this hardware has, or the same
pairs as another one, is left out: on Azure ``pcieRoot`` never matches, on a DGX H100 the root is as fine as
the switch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dranet.desk.hardware.nodes import NodeHardware, Spot
from dranet.desk.hardware.places import ADDRESSES, ELSEWHERE, NUMA_NODES, address_names, text_of
from dranet.desk.kubeapi.objects import MAX_ALTERNATIVES
from dranet.desk.templates import selectors
from dranet.model import attributes as a

_Key = Callable[[Spot], object]
"""What two related devices have in common; a device with ``None`` is related to no other."""
_Pairs = frozenset[tuple[str, str, str]]
"""Node, NIC, GPU."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some NICs and the GPUs that belong to them."""

    name: str
    nic_selector: str
    gpu_selector: str
    sizes: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """How many GPUs and NICs each node has of it."""

    def has_room(self, gpus: int, nics: int) -> bool:
        return any(size[0] >= gpus and size[1] >= nics for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation. Without attribute and groups it asks for nothing."""

    name: str
    """Name of the alternative in the claim."""
    meaning: str
    attribute: str = ""
    groups: tuple[Group, ...] = ()
    nic_selector: str = ""
    """The NICs that may have it, where not all may."""
    is_pcie: bool = False
    """Traffic of such a pair does not leave the root complex: worth waiting for."""
    is_listed: bool = False
    """The attribute is a list on some NIC."""
    is_alone: bool = False
    """No part of a ladder, because some GPU lacks the attribute: a constraint that names a request refuses
    every device without it, even where nothing else that it names is chosen."""
    key: _Key = field(default=lambda _: "", compare=False)

    def count_gpus_with(self, node: NodeHardware, nics: int) -> int:
        """How many GPUs of the node may have so many NICs each on this rung, all at once."""
        of_gpus, of_nics = Counter(map(self.key, node.gpus)), Counter(map(self.key, node.nics))
        return sum(min(of_gpus[key], of_nics[key] // nics) for key in of_gpus if key is not None)

    def has_room(self, node: NodeHardware, gpus: int, nics: int) -> bool:
        """Whether the node may have so many pairs on this rung alone. A scheduler would try every order of
        devices before it gives up, so what cannot be is not even tried."""
        of_gpus, of_nics = Counter(map(self.key, node.gpus)), Counter(map(self.key, node.nics))
        each = -(-nics // gpus)
        pairs = sum(min(of_gpus[key], of_nics[key]) for key in of_gpus if key is not None)
        fed = sum(min(of_gpus[key] * each, of_nics[key]) for key in of_gpus if key is not None)
        whole = sum(min(of_gpus[key], of_nics[key] // each) for key in of_gpus if key is not None)
        return pairs >= min(gpus, nics) and fed >= nics and (nics % gpus != 0 or whole >= gpus)


ANY = Relation("any", "anywhere on the node")
_KNOWN = Relation(
    "known", "on another NUMA node, if it is known which", nic_selector=selectors.numa_node_is_known()
)
"""Before :data:`ANY` where some NICs do not publish their NUMA node: an unknown distance comes last."""


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    meaning: str
    key: _Key
    attributes: tuple[str, ...]
    nic_selector: Callable[[Spot], str] | None = None
    """Selects the NICs of its group, for a rung by groups."""
    is_pcie: bool = False


_SWITCH = _Kind(
    "same-switch",
    "on the same PCIe switch",
    lambda spot: spot.place.switch or None,
    (a.PCIE_SWITCH.qualified,),
    lambda spot: selectors.switch_is(spot.place.switch),
    is_pcie=True,
)
_ROOT = _Kind(
    "same-root",
    "below the same PCIe root complex",
    lambda spot: spot.pcie_root or None,
    (a.STANDARD_PCIE_ROOT.qualified,),
    is_pcie=True,
)
_LISTED_ROOT = _Kind(
    "listed-root",
    "below a PCIe root complex that the NIC lists",
    lambda spot: spot.place.roots or None,
    (a.STANDARD_PCIE_ROOT.qualified,),
)
"""Where NICs that share no root with a GPU publish the roots of those on their NUMA node."""
_NUMA = _Kind(
    "same-numa",
    "on the same NUMA node",
    lambda spot: spot.numa_node,
    NUMA_NODES,
    lambda spot: selectors.numa_node_is(spot.numa_node if spot.numa_node is not None else -1),
)


def find_relations(nodes: Sequence[NodeHardware]) -> tuple[Relation, ...]:
    """The rungs of these nodes, the nearest first; the last one is always :data:`ANY`."""
    relations: list[Relation] = [ANY]
    known: list[_Pairs] = [_pairs(nodes, lambda _: "")]
    for kind in (
        _NUMA,
        _LISTED_ROOT if _is_listed(a.STANDARD_PCIE_ROOT.qualified, nodes) else _ROOT,
        _SWITCH,
    ):
        pairs = _pairs(nodes, kind.key)
        relation = _build(kind, nodes) if pairs else None
        if relation is None:
            continue
        if pairs == known[0] and not relation.is_alone and not relations[0].is_alone:
            if kind in (_ROOT, _LISTED_ROOT) and relations[0].name == _NUMA.name:
                relations[0] = relation
            continue
        relations.insert(0, relation)
        known.insert(0, pairs)
    numas = {nic.numa_node is None for node in nodes for nic in node.nics}
    return tuple([*relations[:-1], _KNOWN, ANY] if len(numas) == 2 else relations)


def _is_listed(attribute: str, nodes: Iterable[NodeHardware]) -> bool:
    """Whether a NIC has a list of it."""
    values = (nic.device.find_attribute(attribute) for node in nodes for nic in node.nics)
    return any(found is not None and found.listed for found in values)


def _pairs(nodes: Iterable[NodeHardware], key: _Key) -> _Pairs:
    return frozenset(
        (node.name, nic.name, gpu.name)
        for node in nodes
        for nic in node.nics
        for gpu in node.gpus
        if key(nic) is not None and key(nic) == key(gpu)
    )


def _build(kind: _Kind, nodes: Sequence[NodeHardware]) -> Relation | None:
    """By an attribute that related devices have in common, which is best if every GPU has it, else by groups;
    ``None`` if a claim cannot express it."""
    relation = Relation(kind.name, kind.meaning, is_pcie=kind.is_pcie, key=kind.key)
    agreeing = (name for name in kind.attributes if all(_agrees(name, kind.key, node) for node in nodes))
    matching = sorted(agreeing, key=lambda name: _is_listed(name, nodes))
    gpus = [gpu.device for node in nodes for gpu in node.gpus]
    for attribute in matching:
        if all(gpu.find_attribute(attribute) for gpu in gpus):
            return replace(relation, attribute=attribute, is_listed=_is_listed(attribute, nodes))
    if groups := _build_groups(kind, nodes):
        return replace(relation, groups=groups)
    return replace(relation, attribute=matching[0], is_alone=True) if matching else None


def _agrees(attribute: str, key: _Key, node: NodeHardware) -> bool:
    """Whether a constraint on the attribute takes exactly the pairs with equal ``key`` together."""
    for nic in node.nics:
        for gpu in node.gpus:
            ours, theirs = nic.device.elements(attribute), gpu.device.elements(attribute)
            meet = ours is not None and theirs is not None and not ours.isdisjoint(theirs)
            if meet != (key(nic) is not None and key(nic) == key(gpu)):
                return False
    return True


def _build_groups(kind: _Kind, nodes: Sequence[NodeHardware]) -> tuple[Group, ...]:
    """Every GPU in one group, by its PCI address, which must mean the same on each node; in one without NICs
    are those with an unknown place."""
    attribute = find_address_attribute(gpu for node in nodes for gpu in node.gpus)
    addresses: dict[object, set[str]] = defaultdict(set)
    nic_of: dict[object, Spot] = {}
    for node in nodes:
        nic_of.update({kind.key(nic): nic for nic in node.nics if kind.key(nic) is not None})
        for gpu in node.gpus:
            addresses[kind.key(gpu)].add(gpu.address)
    sizes = sum(map(len, addresses.values()))
    ambiguous = sizes != len(set().union(*addresses.values()))
    if not attribute or ambiguous or not 1 < len(addresses) < MAX_ALTERNATIVES - 1:
        return ()
    if kind.nic_selector is None:
        return ()
    return tuple(
        Group(
            f"{kind.name.removeprefix('same-')}-{_name_group(key, number)}",
            kind.nic_selector(nic_of[key]) if key in nic_of else "",
            selectors.address_is_one_of(addresses[key], attribute),
            tuple((_count(kind, key, node.gpus), _count(kind, key, node.nics)) for node in nodes),
        )
        for number, key in enumerate(sorted(addresses, key=str))
    )


def _name_group(key: object, number: int) -> str:
    """A NUMA node has its own number, and switches are counted."""
    if key is None or key == ELSEWHERE:
        return "other" if key is None else "far"
    return str(key) if isinstance(key, int) else str(number)


def _count(kind: _Kind, key: object, spots: Iterable[Spot]) -> int:
    return sum(kind.key(spot) == key for spot in spots)


def find_address_attribute(spots: Iterable[Spot]) -> str:
    """The attribute with the PCI address that all of these publish; empty if no attribute does."""
    devices = [spot.device for spot in spots]
    names = dict.fromkeys(name for device in devices[:1] for name in address_names(device))
    return next((name for name in names if all(text_of(device, name) for device in devices)), "")


def find_unequal_attribute(nodes: Sequence[NodeHardware]) -> str:
    """An attribute that all NICs and GPUs publish, and that no NIC has in common with a GPU: a constraint on
    it keeps any two of them apart; empty if no attribute does."""
    for name in (*ADDRESSES, a.STANDARD_PCIE_ROOT.qualified):
        spots = [spot for node in nodes for spot in (*node.nics, *node.gpus)]
        if spots and all(spot.device.elements(name) for spot in spots) and not any(map(_meet(name), nodes)):
            return name
    return ""


def _meet(attribute: str) -> Callable[[NodeHardware], bool]:
    def elements(spots: Iterable[Spot]) -> set[object]:
        return {element for spot in spots for element in spot.device.elements(attribute) or ()}

    return lambda node: not elements(node.nics).isdisjoint(elements(node.gpus))

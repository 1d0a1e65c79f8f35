"""The node as pictures and lists show it: facts and decisions, and the hardware as a tree with short
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from msgspec import Struct

from dranet.inventory.policy import Decision
from dranet.inventory.topology import TopologyNode, short_names
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts
from dranet.pictures.device_summary import DeviceSummarizer, short_address


class Look(Struct, frozen=True):
    """Facts and decisions of one scan."""

    facts: NodeFacts
    inventory: tuple[Decision, ...]
    """In the order of publication: preferred devices first."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """In the order in which users look for a device: by PCI address or name, GPUs last."""
        return tuple(sorted(self.inventory, key=lambda decision: _place(decision.device)))

    @property
    def devices(self) -> tuple[Device, ...]:
        """All of them, offered or not."""
        return tuple(decision.device for decision in self.decisions)


def _place(device: Device) -> tuple[bool, bool, str, str]:
    return (device.kind is DeviceKind.GPU, not device.pci_address, device.pci_address, device.name)


def summarize(decisions: Iterable[Decision], shows_all: bool) -> str:
    """``8 NICs, 8 GPUs offered; 3 not offered (--all shows why)``."""
    everything = tuple(decisions)
    offered = [decision.device.kind for decision in everything if decision.published]
    counts = [_count(offered.count(kind), word) for kind, word in _KIND_WORDS.items() if kind in offered]
    not_offered = len(everything) - len(offered)
    text = f"{', '.join(counts) or 'nothing'} offered"
    if not not_offered:
        return text
    return f"{text}; {not_offered} not offered" + ("" if shows_all else " (--all shows why)")


_KIND_WORDS = {DeviceKind.NIC: "NIC", DeviceKind.RDMA: "RDMA-only device", DeviceKind.GPU: "GPU"}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


class Branch(Struct, frozen=True):
    """A line of the tree: a bridge, or a device (``device`` is its name and ``label`` empty)."""

    label: str
    device: str = ""
    children: tuple[Branch, ...] = ()


def choose_hardware(look: Look) -> tuple[Decision, ...]:
    """Return devices with a place in the hardware, and software links only if they are offered."""
    reader = DeviceSummarizer(look.facts)
    return tuple(d for d in look.decisions if d.published or not reader.read(d.device).is_software)


def name_hardware(look: Look) -> Mapping[str, str]:
    """Return the short names, the same in the tree, the matrix and the picture."""
    reader = DeviceSummarizer(look.facts)
    return short_names(device for device in look.devices if not reader.read(device).is_software)


def cpus_of(facts: NodeFacts) -> Mapping[int, str]:
    """Return the CPUs by NUMA node, as ``0-55,112-167``."""
    return {node.node: node.cpus for node in facts.numa_nodes}


def root_branches(root: TopologyNode) -> tuple[Branch, ...]:
    """Return a root complex with its descendants; addresses are without the domain that it names."""
    domain = root.label.removeprefix("pci").partition(":")[0]
    return _bridge_branches(root, domain, below_switch=False)


def _bridge_branches(node: TopologyNode, domain: str, *, below_switch: bool) -> tuple[Branch, ...]:
    """Join bridges in a row into one line, and omit ports of a switch on the way to a single function: only
    branches matter for the distance."""
    labels, end = [node.label], node
    while len(end.children) == 1 and not end.devices:
        end = end.children[0]
        labels.append(end.label)
    if end.devices:
        labels.pop()  # the function itself
        if below_switch and not end.children:
            return leaves(end)
    below = (_bridge_branches(child, domain, below_switch=True) for child in end.children)
    text = " / ".join(short_address(label, domain) for label in labels)
    return (Branch(text, children=(*leaves(end), *chain.from_iterable(below))),)


def leaves(node: TopologyNode) -> tuple[Branch, ...]:
    """Return the devices right here."""
    return tuple(Branch("", device=name) for name in node.devices)

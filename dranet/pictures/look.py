"""What was seen of a node, and what the driver makes of it: what every picture and list is drawn from."""

from __future__ import annotations

from collections.abc import Iterable

from dranet.dataclass import dataclass
from dranet.inventory.decision import Decision
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a node."""

    facts: NodeFacts
    inventory: tuple[Decision, ...]
    """In the order in which the driver publishes: what a claim should rather get comes first."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """In the order in which people look for a device: by PCI address or name, GPUs last."""
        return tuple(sorted(self.inventory, key=lambda decision: _place(decision.device)))

    @property
    def devices(self) -> tuple[Device, ...]:
        """All of them, held back or not."""
        return tuple(decision.device for decision in self.decisions)


def _place(device: Device) -> tuple[bool, bool, str, str]:
    return (device.kind is DeviceKind.GPU, not device.pci_address, device.pci_address, device.name)


def summarize(decisions: Iterable[Decision], shows_all: bool) -> str:
    """``8 NICs, 8 GPUs offered; 3 held back (--all says why)``."""
    everything = tuple(decisions)
    offered = [decision.device.kind for decision in everything if decision.published]
    counts = [_count(offered.count(kind), word) for kind, word in _KIND_WORDS.items() if kind in offered]
    held_back = len(everything) - len(offered)
    text = f"{', '.join(counts) or 'nothing'} offered"
    if not held_back:
        return text
    return f"{text}; {held_back} held back" + ("" if shows_all else " (--all says why)")


_KIND_WORDS = {DeviceKind.NIC: "NIC", DeviceKind.RDMA: "RDMA-only device", DeviceKind.GPU: "GPU"}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"

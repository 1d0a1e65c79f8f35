"""CPUs of the node: the kernel's ways of writing sets of them, and which ones are near a device.

Pure. Lists (``0-3,8``) and masks (``00000000,0000010f``) are those of sysfs and procfs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from dranet.model.facts import NumaNode

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{1,8})*")
_WORD_BITS = 32

MOST_CPUS = 8192
"""The most that Linux is built for (``NR_CPUS_RANGE_END``); a list that names more is not from the kernel."""


class CpuLayout(Struct, frozen=True):
    """The CPUs of a node, as far as they matter for the choice of CPUs for a device."""

    online: tuple[int, ...] = ()
    kept_free: tuple[int, ...] = ()
    """Isolated, without a tick or without interrupts (``isolcpus``, ``nohz_full``, ``irqaffinity``): to be
    left undisturbed."""
    numa_nodes: tuple[NumaNode, ...] = ()


class CpuSurroundings(Struct, frozen=True):
    """What was found at Prepare for a device that asks for CPU locality."""

    layout: CpuLayout
    irqs: Mapping[str, str] = field(default_factory=dict)
    """The CPUs that each interrupt of the function may go to, by its number."""
    queues: Mapping[str, str] = field(default_factory=dict)
    """The content of ``tx-0/xps_cpus`` and its like."""
    balancer: str = ""
    """Why the interrupts are not ours to place; empty where they are."""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``0-2,8`` -> (0, 1, 2, 8); nothing of what is no list (``(null)``)."""
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= MOST_CPUS:
            return ()
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """(0, 1, 2, 8) -> ``0-2,8``, as the kernel writes it."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_cpu_mask(text: str) -> int | None:
    """``00000001,00000003`` as a number; ``None`` for what is no mask."""
    if not _MASK.fullmatch(text):
        return None
    value = 0
    for word in text.split(","):
        value = value << _WORD_BITS | int(word, 16)
    return value


def format_cpu_mask(cpus: Iterable[int]) -> str:
    """(0, 1, 32) -> ``1,00000003``: words of 32 bits, the highest first."""
    value = sum(1 << cpu for cpu in set(cpus))
    words = [value & 0xFFFFFFFF]
    while value := value >> _WORD_BITS:
        words.append(value & 0xFFFFFFFF)
    head, *rest = reversed(words)
    return ",".join([f"{head:x}", *(f"{word:08x}" for word in rest)])


def mask_to_cpus(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def find_local_cpus(layout: CpuLayout, numa_node: int | None) -> tuple[int, ...]:
    """The CPUs that are nearest to a device, in ascending order, without those that are kept free.

    A NUMA node of memory alone has none: then those of the nearest node that has. Where the machine is one
    NUMA node all are near.

    Raises:
        LookupError: no CPU is known to be near; the text reads after a colon.
    """
    if numa_node is None and len(layout.numa_nodes) > 1:
        raise LookupError("the node does not report to which of its NUMA nodes the device belongs")
    local = set(layout.online) if numa_node is None else _cpus_of(layout.numa_nodes, numa_node)
    near = local & set(layout.online)
    if not near:
        raise LookupError(f"NUMA node {numa_node} and its neighbors have no CPU that is online")
    left = near - set(layout.kept_free)
    if not left:
        where = "the node" if numa_node is None else f"NUMA node {numa_node}"
        raise LookupError(
            f"all CPUs of {where} ({format_cpu_list(near)}) are isolated or kept free of interrupts"
        )
    return tuple(sorted(left))


def _cpus_of(nodes: Collection[NumaNode], number: int) -> set[int]:
    """Return the CPUs of this node, or of the nearest one that has any."""
    known = {node.node: set(parse_cpu_list(node.cpus)) for node in nodes}
    if known.get(number):
        return known[number]
    distances = next((node.distances for node in nodes if node.node == number), ())
    if len(distances) != len(known):
        return set()
    near = [(distance, node) for distance, node in zip(distances, sorted(known), strict=True) if known[node]]
    least = min((distance for distance, _ in near), default=0)
    return set().union(*(known[node] for distance, node in near if distance == least))

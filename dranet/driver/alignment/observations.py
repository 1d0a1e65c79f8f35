"""Which GPUs of this node a container has, from what it shows. Pure.

A GPU that is given to a container is named there (variable, mount, CDI device, an id at the kubelet), and its
device node is in the container. Names take precedence over nodes, because a privileged container has the
nodes of all GPUs. Nodes take precedence over indices, because the container's toolkit may count in another
order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dranet.model.claim import Container
from dranet.model.device import (
    GPU_VARIABLES,
    HABANA,
    NVIDIA,
    GpuSource,
    find_mount_name,
    is_gpu_variable,
    is_shared_node,
    may_be_gpu_node,
    names_gpus,
    parse_cdi_name,
    split_names,
)
from dranet.model.facts import Gpu, NodeFacts

MAX_OBSERVED = 256
"""For each kind, for one container."""
MAX_SHOWN = 80
"""Characters of an unknown name in messages."""
MAX_NAME = 128
"""Characters of a name; no GPU has a longer one."""
_NOTHING = frozenset({"", "void", "none"})
_REPLICA = "::"
"""Separates the id of a GPU from the number of a share of it (time slicing, MPS)."""
_INDEX = re.compile(r"([0-9]{1,3})(?::[0-9]+)?")
"""Index of a GPU, or of a GPU and the MIG device on it."""
_MIG_OF_GPU = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/.*")
"""The older names of MIG devices contain that of the GPU."""


class GpuName(NamedTuple):
    """One name of a GPU, and its source."""

    source: GpuSource
    vendor: str
    name: str


class ContainerObservation(Struct, frozen=True):
    """What is kept of one container."""

    container: str
    names: tuple[GpuName, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    """Major and minor numbers of its character devices."""


class FoundGpu(NamedTuple):
    """A GPU of this node, and the source that reported it."""

    pci_address: str
    source: GpuSource


class GpuMatch(Struct, frozen=True):
    """The GPUs that a container's observation, or the kubelet's answer, refers to."""

    found: tuple[FoundGpu, ...] = ()
    unclear: tuple[str, ...] = ()
    """What may be GPUs and cannot be identified, a clause each. The kubelet may know more."""


def observe_container(container: Container) -> ContainerObservation:
    """Return names of GPUs and numbers of device nodes of a container."""
    numbers = ((node.major, node.minor) for node in container.devices if may_be_gpu_node(node.path))
    return ContainerObservation(
        container.name,
        tuple(dict.fromkeys(_find_names(container)))[:MAX_OBSERVED],
        tuple(dict.fromkeys(numbers))[:MAX_OBSERVED],
    )


def _find_names(container: Container) -> Iterator[GpuName]:
    """Truncate: a pod chooses what its containers show, and it is kept for the pod's life."""
    return (name._replace(name=name.name[:MAX_NAME]) for name in _find_whole_names(container))


def _find_whole_names(container: Container) -> Iterator[GpuName]:
    for name in container.cdi_devices:
        if (parsed := parse_cdi_name(name)) is not None:
            yield GpuName(GpuSource.CDI, *parsed)
    for name, value in container.env.items():
        if is_gpu_variable(name) and value.strip().lower() not in _NOTHING:
            yield from (
                GpuName(GpuSource.ENVIRONMENT, GPU_VARIABLES[name], part) for part in split_names(value)
            )
    for mount in container.mounts:
        if names_gpus(mount.destination):
            yield GpuName(GpuSource.MOUNTS, NVIDIA, find_mount_name(mount.destination))


def match_container(seen: ContainerObservation, facts: NodeFacts) -> GpuMatch:
    """Return the GPUs of this node that the container shows."""
    reading = _match(seen, facts)
    unclear = (f"container {seen.container}: {text}" for text in reading.unclear)
    return replace(reading, unclear=tuple(unclear))


def _match(seen: ContainerObservation, facts: NodeFacts) -> GpuMatch:
    gpus = facts.gpus
    by_name = match_names(seen.names, facts, _match_name)
    by_node = tuple(FoundGpu(address, GpuSource.DEVICE_NODES) for address in _match_nodes(seen.nodes, gpus))
    has_every_node = 0 < len(by_node) == len([gpu for gpu in gpus if _own_nodes(gpu)])
    if by_name.found and not by_name.unclear:
        return by_name
    if by_node and not has_every_node:
        known = {found.pci_address for found in by_name.found}
        return GpuMatch((*by_name.found, *(found for found in by_node if found.pci_address not in known)))
    counted = match_names(seen.names, facts, _match_name_or_index)
    if counted.found or not has_every_node:
        return counted
    whose = f"all {len(by_node)} GPUs" if len(by_node) > 1 else "the only GPU"
    text = f"it has the device nodes of {whose} of the node, as a privileged one has"
    return GpuMatch(unclear=(*counted.unclear, text))


_Match = Callable[[GpuName, Sequence[Gpu]], str]


def match_ids(names: Iterable[GpuName], facts: NodeFacts) -> GpuMatch:
    """Return the GPUs for the ids of a device plugin."""
    return match_names(names, facts, _match_name_or_index)


def match_names(names: Iterable[GpuName], facts: NodeFacts, match: _Match) -> GpuMatch:
    """Return the GPUs with these names, each once, with the source of the first name that matches."""
    found: dict[str, FoundGpu] = {}
    unclear: list[str] = []
    for name in names:
        mine = sorted((gpu for gpu in facts.gpus if gpu.vendor == name.vendor), key=_by_address)
        address = match(name, mine)
        if address:
            found.setdefault(address, FoundGpu(address, name.source))
        else:
            unclear.append(f"{name.source.meaning} has {name.name[:MAX_SHOWN]!r}")
    return GpuMatch(tuple(found.values()), tuple(dict.fromkeys(unclear)))


def _by_address(gpu: Gpu) -> str:
    return gpu.pci_address


def _match_name(name: GpuName, gpus: Sequence[Gpu]) -> str:
    """Return the PCI address; empty if it is unclear. ``all`` is: an image may set it in a container that
    gets none."""
    text = name.name.partition(_REPLICA)[0]
    part = _MIG_OF_GPU.fullmatch(text)
    wanted = (part[1] if part else text).lower()
    return next((gpu.pci_address for gpu in gpus if wanted in _names_of(gpu)), "")


def _match_name_or_index(name: GpuName, gpus: Sequence[Gpu]) -> str:
    """Vendors' tools count in the order of PCI addresses and skip GPUs without their driver (those of virtual
    machines); Habana's index is the number of the node."""
    known = _match_name(name, gpus)
    index = _INDEX.fullmatch(name.name.partition(_REPLICA)[0])
    if known or index is None:
        return known
    if name.vendor == HABANA:
        return _match_name(name._replace(name=f"accel{index[1]}"), gpus)
    counted = [gpu.pci_address for gpu in gpus if _own_nodes(gpu)]
    return counted[int(index[1])] if int(index[1]) < len(counted) else ""


def _names_of(gpu: Gpu) -> Iterator[str]:
    yield gpu.pci_address
    if gpu.uuid:
        uuid = gpu.uuid.lower().removeprefix("0x")
        yield from (uuid, f"0x{uuid}", f"gpu-{uuid}")
    for node in gpu.char_devices:
        if not is_shared_node(node.path):
            yield node.path.rpartition("/")[2].lower()


def _match_nodes(nodes: Sequence[tuple[int, int]], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Return GPUs with a node of their own among these; nodes that GPUs share identify none."""
    wanted = set(nodes)
    return (gpu.pci_address for gpu in gpus if _own_nodes(gpu) & wanted)


def _own_nodes(gpu: Gpu) -> set[tuple[int, int]]:
    """Numbers of the nodes of this GPU alone; none if its kernel driver is not bound."""
    return {(node.major, node.minor) for node in gpu.char_devices if not is_shared_node(node.path)}

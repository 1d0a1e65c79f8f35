"""Machines that nobody builds: devices anywhere in a random tree, and what is best there by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from dranet.claims.alignment import level
from dranet.model.facts import (
    CharDevice,
    Gpu,
    Link,
    NodeFacts,
    PciFunction,
    Placed,
    RdmaDevice,
    RdmaPort,
    distance,
)

Rank = tuple[int, int]
"""The worst level and the sum of all."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place where a function can be plugged in."""

    root: str
    above: tuple[str, ...]
    numa_node: int | None


def random_machine(random: Random) -> NodeFacts:
    """1 to 4 GPUs and 1 to 6 NICs below up to four root complexes; some do not say their NUMA node."""
    slots = [slot for number in range(random.randint(1, 4)) for slot in _slots(random, number)]
    gpus = [
        _function(random, number, 0x030200, "nvidia", slots)
        for number in range(0xA0, 0xA1 + random.randrange(4))
    ]
    nics = [
        _function(random, number, 0x020000, "mlx5_core", slots)
        for number in range(0x10, 0x11 + random.randrange(6))
    ]
    return NodeFacts(
        pci_functions=tuple(sorted([*gpus, *nics], key=lambda one: one.address)),
        links=tuple(_link(number, one.address) for number, one in enumerate(nics)),
        rdma_devices=tuple(_rdma(number, one.address) for number, one in enumerate(nics)),
        gpus=tuple(_gpu(number, gpu.address) for number, gpu in enumerate(gpus)),
    )


def _gpu(number: int, address: str) -> Gpu:
    return Gpu(
        address, "nvidia", "NVIDIA B200", char_devices=(CharDevice(f"/dev/nvidia{number}", 195, number),)
    )


def best_by_brute_force(
    nics: Sequence[Placed], gpus: Sequence[Placed], nic_count: int, gpu_count: int
) -> Rank:
    """Of all choices of devices and all ways to share the GPUs evenly among the NICs."""
    return min(
        (max(levels), sum(levels))
        for some_gpus in combinations(gpus, gpu_count)
        for some_nics in combinations(nics, nic_count)
        for levels in _matches(some_nics, some_gpus)
    )


def _matches(nics: Sequence[Placed], gpus: Sequence[Placed]) -> Iterator[list[int]]:
    """Levels of every match in which no GPU has two NICs more than another."""
    for chosen in product(range(len(gpus)), repeat=len(nics)):
        numbers = [chosen.count(number) for number in range(len(gpus))]
        if max(numbers) - min(numbers) <= 1:
            yield [level(distance(nic, gpus[number])) for nic, number in zip(nics, chosen, strict=True)]


def _slots(random: Random, number: int) -> list[_Slot]:
    """Root ports of one root complex: bare ones, switches, switches behind switches."""
    root = f"pci0000:{number:02x}"
    numa_node = random.choice([0, 1, None]) if random.random() < 0.3 else number % 2
    paths: list[tuple[str, ...]] = []
    for port in range(random.randint(1, 2)):
        above: tuple[str, ...] = (f"0000:{number:02x}:{port:02x}.0",)
        kind = random.choice(["bare", "switch", "switch", "switches"])
        if kind == "bare":
            paths.append(above)
            continue
        switch = (*above, f"up-{number}-{port}")
        paths += [(*switch, f"down-{number}-{port}-{i}") for i in range(3)]
        if kind == "switches":
            deeper = (*switch, f"down-{number}-{port}-9", f"up-{number}-{port}-9")
            paths += [(*deeper, f"down-{number}-{port}-9-{i}") for i in range(3)]
    return [_Slot(root, path, numa_node) for path in paths]


def _function(random: Random, bus: int, class_code: int, driver: str, slots: Sequence[_Slot]) -> PciFunction:
    slot = random.choice(slots)
    address = f"0000:{bus:02x}:00.0"
    return PciFunction(
        address,
        class_code,
        0x15B3,
        0x1021,
        driver=driver,
        numa_node=slot.numa_node,
        root=slot.root,
        path=(*slot.above, address),
    )


def _link(number: int, address: str) -> Link:
    return Link(
        ifindex=number + 2,
        ifname=f"eth{number}",
        flags=Link.IFF_UP,
        operstate="up",
        carrier=True,
        mtu=1500,
        parent_bus="pci",
        parent_device=address,
        pci_address=address,
    )


def _rdma(number: int, address: str) -> RdmaDevice:
    port = RdmaPort(1, "ACTIVE", "Ethernet", netdevs=(f"eth{number}",))
    return RdmaDevice(f"mlx5_{number}", address, ports=(port,))

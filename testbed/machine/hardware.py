"""What the machine is made of, as one value: QEMU's arguments and the tests' expectations derive from it.

Bus numbers follow the firmware: depth first from each root, every port's bus is the next free one. A virtual
function's number is the physical one's plus offset and stride (128 and 2 on igb): slot and function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Model(Enum):
    """A QEMU device: its name, PCI class, vendor and device, and the driver that a stock kernel binds."""

    IGB = ("igb", 0x020000, 0x8086, 0x10C9, "igb")
    IGB_VF = ("igb-vf", 0x020000, 0x8086, 0x10CA, "igbvf")
    E1000E = ("e1000e", 0x020000, 0x8086, 0x10D3, "e1000e")
    VIRTIO_NET = ("virtio-net-pci", 0x020000, 0x1AF4, 0x1041, "virtio-pci")
    BOCHS_DISPLAY = ("bochs-display", 0x038000, 0x1234, 0x1111, "bochs-drm")
    VIRTIO_GPU = ("virtio-gpu-pci", 0x038000, 0x1AF4, 0x1050, "virtio-pci")
    ATI_VGA = ("ati-vga", 0x030000, 0x1002, 0x5046, "")

    def __init__(self, qemu: str, class_code: int, vendor_id: int, device_id: int, driver: str) -> None:
        self.qemu = qemu
        self.class_code = class_code
        self.vendor_id = vendor_id
        self.device_id = device_id
        self.driver = driver

    @property
    def is_nic(self) -> bool:
        return self.class_code >> 8 == 0x0200

    @property
    def is_gpu(self) -> bool:
        return self.class_code >> 16 == 0x03


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A card. ``virtual_functions`` are made at boot through ``sriov_numvfs``."""

    name: str
    model: Model
    mac: str = ""
    virtual_functions: int = 0


@dataclass(frozen=True, slots=True)
class Switch:
    """A PCIe switch with one card at each downstream port."""

    cards: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """A root complex with one root port for each card or switch. ``numa_node`` None: no proximity given.

    Bus 0 is the chipset, whose cards sit in it directly, from slot 7 on.
    """

    bus: int
    below: tuple[Endpoint | Switch, ...]
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class RdmaStandIn:
    """An RDMA device to make at boot.

    ``soft`` is rdma_rxe on the card's link: real verbs, no PCI parent. Else vnode_hca on the card (or its
    virtual function ``vf``): the shape of an adapter, no data path. ``bare``: without the function's link.
    """

    name: str
    card: str
    vf: int | None = None
    link_layer: str = "Ethernet"
    soft: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function as the kernel should show it. ``path`` runs from below the root down to itself."""

    name: str
    model: Model
    address: str
    path: tuple[str, ...]
    root: str
    numa_node: int | None
    mac: str = ""
    physical_function: str = ""
    vf_index: int | None = None
    total_vfs: int = 0
    num_vfs: int = 0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine: one CPU and half the memory in each NUMA node."""

    roots: tuple[Root, ...]
    rdma: tuple[RdmaStandIn, ...] = ()
    numa_distances: tuple[tuple[int, ...], ...] = ((10, 21), (21, 10))
    memory_mib: int = 2048

    def functions(self) -> Iterator[Function]:
        """Every card and virtual function, root by root."""
        for root in self.roots:
            yield from _Numbering(root).functions()

    def function(self, name: str) -> Function:
        """A card by its name, a virtual function as ``igb0/1``."""
        return next(function for function in self.functions() if function.name == name)


FIRST_CHIPSET_SLOT = 7
"""Slots 2 to 6 of bus 0 carry what the guest boots with."""

_VF_OFFSET, _VF_STRIDE = 128, 2

IGB_TOTAL_VFS = 7
"""The function has 8; the driver keeps one for itself."""


class _Numbering:
    """Walks one root as the firmware does."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._next_bus = root.bus

    def functions(self) -> Iterator[Function]:
        if self._root.bus == 0:
            for slot, card in enumerate(self._root.below, FIRST_CHIPSET_SLOT):
                assert isinstance(card, Endpoint), "the chipset has no switch"
                yield from self._card(card, 0, slot, ())
            return
        for slot, below in enumerate(self._root.below):
            yield from self._below((_address(self._root.bus, slot),), below)

    def _below(self, path: tuple[str, ...], below: Endpoint | Switch) -> Iterator[Function]:
        bus = self._take_bus()
        if isinstance(below, Endpoint):
            yield from self._card(below, bus, 0, path)
            return
        inside = self._take_bus()
        for slot, card in enumerate(below.cards):
            ports = (*path, _address(bus, 0), _address(inside, slot))
            yield from self._card(card, self._take_bus(), 0, ports)

    def _take_bus(self) -> int:
        self._next_bus += 1
        return self._next_bus

    def _card(self, card: Endpoint, bus: int, slot: int, path: tuple[str, ...]) -> Iterator[Function]:
        address, root, numa = _address(bus, slot), f"pci0000:{self._root.bus:02x}", self._root.numa_node
        total = IGB_TOTAL_VFS if card.model is Model.IGB else 0
        yield Function(
            card.name, card.model, address, (*path, address), root, numa, card.mac,
            total_vfs=total, num_vfs=card.virtual_functions,
        )  # fmt: skip
        for index in range(card.virtual_functions):
            number = slot * 8 + _VF_OFFSET + index * _VF_STRIDE
            vf = _address(bus, number // 8, number % 8)
            yield Function(
                f"{card.name}/{index}", Model.IGB_VF, vf, (*path, vf), root, numa,
                physical_function=address, vf_index=index,
            )  # fmt: skip


def _address(bus: int, slot: int, function: int = 0) -> str:
    return f"0000:{bus:02x}:{slot:02x}.{function:x}"


MACHINE = Hardware(
    roots=(
        Root(0x00, (Endpoint("chipset", Model.E1000E, "52:54:00:00:00:01"),)),
        Root(
            0x20,
            (
                Endpoint("igb0", Model.IGB, "52:54:00:00:10:00", virtual_functions=3),
                Endpoint("gpu0", Model.BOCHS_DISPLAY),
                Switch(
                    (
                        Endpoint("switched", Model.E1000E, "52:54:00:00:11:00"),
                        Endpoint("gpu1", Model.VIRTIO_GPU),
                    )
                ),
            ),
            numa_node=0,
        ),
        Root(
            0x80,
            (
                Endpoint("igb1", Model.IGB, "52:54:00:00:20:00", virtual_functions=2),
                Endpoint("gpu2", Model.ATI_VGA),
                Endpoint("virtio0", Model.VIRTIO_NET, "52:54:00:00:21:00"),
            ),
            numa_node=1,
        ),
        Root(0xC0, (Endpoint("virtio1", Model.VIRTIO_NET, "52:54:00:00:30:00"),)),
    ),
    rdma=(
        RdmaStandIn("mlx5_0", "igb0"),
        RdmaStandIn("mlx5_1", "igb0", vf=0),
        RdmaStandIn("mlx5_2", "igb1", vf=0, link_layer="InfiniBand", bare=True),
        RdmaStandIn("rxe0", "virtio0", soft=True),
    ),
)
"""Two NUMA nodes; a root on each with an SR-IOV NIC, a GPU stand-in and either a switch or a virtio NIC; a
root and the chipset without proximity. A GPU stand-in is a display adapter."""

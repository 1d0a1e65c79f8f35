"""RDMA devices: facts from sysfs (``Documentation/ABI/stable/sysfs-class-infiniband``).

Namespace mode and moves go through netlink (``netlink.rdma``). Management nodes (``umad``, ``issm``) belong
to no device that is offered, and are read only for a claim that asks for them: they give a pod subnet
management access to the whole fabric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from dranet.kernel.sysfs.files import PseudoFiles, nearest_pci_address
from dranet.model.device import NamedRdma, RdmaIdentity
from dranet.model.facts import CharDevice, RdmaDevice, RdmaPort
from dranet.model.workload import GidSlot

Slot = TypeVar("Slot")

RDMA_CLASS = "class/infiniband"
"""There as soon as the kernel's RDMA core is loaded, even while all devices are in pods."""

_VERBS_CLASS = "class/infiniband_verbs"
_CM_ENTRY = "class/misc/rdma_cm"
_MAD_CLASS = "class/infiniband_mad"
"""``umadN`` for each port and, on InfiniBand, ``issmN`` (``Documentation/infiniband/user_mad.rst``)."""

_DEVICE_FOLDER = "/dev/infiniband"

_NODE_MODE = re.compile(r"^DEVMODE=0([0-7]{1,4})$", re.MULTILINE)
_DEFAULT_MODE = 0o600
"""The mode in devtmpfs of a node whose driver sets none."""

_INFINIBAND = "InfiniBand"

_LONGEST_GAP = 16
"""Empty slots after which a table is taken to be at its end. The kernel fills the first free slot, and a
table of 256 GIDs holds a handful: to read them all costs thousands of failing reads on a machine with eight
NICs. A gap this long needs sixteen addresses taken away while a later one stayed."""

_MOST_SLOTS = 1024
"""Slots looked at in one table, whatever is in them."""

_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_NO_GUID = "0000:0000:0000:0000"
"""Not assigned yet: a virtual function on InfiniBand."""
_NO_GID = ":".join(["0000"] * 8)
"""In an empty slot; some kernels fail with EINVAL instead."""


def read_rdma_devices(sysfs: PseudoFiles) -> list[RdmaDevice]:
    """Read all RDMA devices visible in the namespace that sysfs was mounted from, sorted by name."""
    names = sysfs.entries(RDMA_CLASS)
    nodes = read_rdma_nodes(sysfs) if names else {}
    return [with_nodes(read_rdma_device(sysfs, name), nodes) for name in names]


def read_rdma_nodes(sysfs: PseudoFiles) -> dict[str, CharDevice]:
    """Map RDMA device name to its ``uverbsN`` (the numbers do not follow the order of the names), and the
    empty name to ``rdma_cm``, which all devices share."""
    nodes = {}
    for number in sysfs.numbered(_VERBS_CLASS, "uverbs"):
        entry = f"uverbs{number}"
        name = sysfs.text(f"{_VERBS_CLASS}/{entry}/ibdev")
        node = _read_node(sysfs, f"{_VERBS_CLASS}/{entry}")
        if name and node:
            nodes[name] = node
    shared = _read_node(sysfs, _CM_ENTRY)
    return {**nodes, "": shared} if shared else nodes


def read_management_nodes(sysfs: PseudoFiles, rdma_device: str) -> tuple[CharDevice, ...]:
    """The ``umadN`` and ``issmN`` of all ports of one device, in the order of their names; empty without any.

    Read from the namespace that has the device: in exclusive mode no other one sees them.
    """
    entries = [f"{_MAD_CLASS}/{name}" for name in sysfs.entries(_MAD_CLASS)]
    mine = [entry for entry in entries if sysfs.text(f"{entry}/ibdev") == rdma_device]
    return tuple(node for entry in mine if (node := _read_node(sysfs, entry)) is not None)


def find_rdma_device(sysfs: PseudoFiles, identity: RdmaIdentity) -> str:
    """The name by which sysfs shows a device now; empty where it shows none."""

    def read_address(name: str) -> str:
        return nearest_pci_address(sysfs.home(f"{RDMA_CLASS}/{name}"))

    def read(name: str) -> NamedRdma:
        return NamedRdma(name, _read_guid(sysfs, f"{RDMA_CLASS}/{name}/node_guid"))

    if sysfs.has(f"{RDMA_CLASS}/{identity.name}"):
        same_name = read(identity.name)
        is_same = identity.node_guid in ("", same_name.node_guid)
        if is_same and identity.pci_address in ("", read_address(identity.name)):
            return identity.name
    return identity.choose([read(name) for name in sysfs.entries(RDMA_CLASS)], read_address)


def read_nodes_of(sysfs: PseudoFiles, rdma_device: str, kinds: Collection[str]) -> tuple[CharDevice, ...]:
    """The nodes of one device of these kinds: ``uverbs``, ``umad``, ``issm``, and the shared ``rdma_cm``."""
    entries: list[str] = []
    for folder, prefixes in ((_VERBS_CLASS, ("uverbs",)), (_MAD_CLASS, ("umad", "issm"))):
        wanted = tuple(prefix for prefix in prefixes if prefix in kinds)
        entries += _entries_of(sysfs, folder, rdma_device, wanted) if wanted else ()
    entries += [_CM_ENTRY] if "rdma_cm" in kinds else []
    return tuple(node for entry in entries if (node := _read_node(sysfs, entry)) is not None)


def _entries_of(sysfs: PseudoFiles, folder: str, rdma_device: str, prefixes: tuple[str, ...]) -> list[str]:
    """Looked for at the function that carries the device, which has few; a software device has none."""
    near = f"{RDMA_CLASS}/{rdma_device}/device/{folder.removeprefix('class/')}"
    names = sysfs.entries(near) or sysfs.entries(folder)
    entries = [f"{folder}/{name}" for name in names if name.startswith(prefixes)]
    return [entry for entry in entries if sysfs.text(f"{entry}/ibdev") == rdma_device]


def _read_node(sysfs: PseudoFiles, entry: str) -> CharDevice | None:
    """The character device of a class entry, with the mode that devtmpfs gives it."""
    node = sysfs.char_device(f"{entry}/dev", f"{_DEVICE_FOLDER}/{entry.rpartition('/')[2]}")
    uevent = sysfs.whole_text(f"{entry}/uevent") if node else ""
    if node is None or not uevent:
        return node
    mode = _NODE_MODE.search(uevent)
    return replace(node, file_mode=int(mode[1], 8) & 0o777 if mode else _DEFAULT_MODE)


def with_nodes(device: RdmaDevice, nodes: dict[str, CharDevice]) -> RdmaDevice:
    """The device with its own node and the shared one."""
    return replace(device, char_devices=tuple(nodes[name] for name in (device.name, "") if name in nodes))


def read_rdma_device(sysfs: PseudoFiles, name: str) -> RdmaDevice:
    """Everything about one device but its nodes."""
    folder = f"{RDMA_CLASS}/{name}"
    pci_address = nearest_pci_address(sysfs.home(folder))
    # A software device (rxe) has no device behind it, but names the interface that it runs on.
    parent = "" if pci_address else sysfs.text(f"{folder}/parent")
    numbers = sysfs.numbered(f"{folder}/ports")
    return RdmaDevice(
        name=name,
        pci_address=pci_address,
        node_guid=_read_guid(sysfs, f"{folder}/node_guid"),
        firmware=sysfs.text(f"{folder}/fw_ver"),
        node_type=_read_named(sysfs, f"{folder}/node_type"),
        system_image_guid=_read_guid(sysfs, f"{folder}/sys_image_guid"),
        board_id=sysfs.text(f"{folder}/board_id"),
        ports=tuple(_read_port(sysfs, f"{folder}/ports/{number}", number, parent) for number in numbers),
        auxiliary=any(".rdma." in entry for entry in sysfs.entries(f"{folder}/device")),
    )


def _read_port(sysfs: PseudoFiles, port: str, number: int, parent: str) -> RdmaPort:
    link_layer = sysfs.text(f"{port}/link_layer")
    is_infiniband = link_layer == _INFINIBAND
    netdevs, gid_types = _read_gids(sysfs, f"{port}/gid_attrs", is_infiniband)
    return RdmaPort(
        number=number,
        state=_read_named(sysfs, f"{port}/state"),
        link_layer=link_layer,
        rate=sysfs.text(f"{port}/rate"),
        netdevs=tuple(sorted(netdevs | {parent} - {""})),
        phys_state=_read_named(sysfs, f"{port}/phys_state"),
        lid=sysfs.integer(f"{port}/lid", base=16, most=0xFFFFFFFF) if is_infiniband else None,
        guid=_read_port_guid(sysfs, f"{port}/gids/0"),
        gid_types=tuple(sorted(gid_types)),
        pkeys=tuple(_read_pkeys(sysfs, f"{port}/pkeys")),
    )


def read_gid_table(sysfs: PseudoFiles, rdma_device: str) -> tuple[GidSlot, ...]:
    """Return the entries of a device's GID tables that are not empty, by port and index.

    ``sysfs`` must be one that shows the device (:func:`~dranet.kernel.namespaces.sysfs_mount.open_sysfs`).
    """
    return tuple(_iter_gid_slots(sysfs, rdma_device, with_types=True))


def read_gids(sysfs: PseudoFiles, rdma_device: str) -> tuple[str, ...]:
    """Return the GIDs of :func:`read_gid_table` alone, as the kernel writes them.

    With RoCE the kernel fills the tables some milliseconds after an address was set.
    """
    return tuple(slot.gid for slot in _iter_gid_slots(sysfs, rdma_device, with_types=False))


def _iter_gid_slots(sysfs: PseudoFiles, rdma_device: str, *, with_types: bool) -> Iterator[GidSlot]:
    """Read tables up to a long gap instead of listing them: some have a thousand slots."""
    for port in sysfs.numbered(f"{RDMA_CLASS}/{rdma_device}/ports"):
        folder = f"{RDMA_CLASS}/{rdma_device}/ports/{port}"

        def read(index: int, folder: str = folder, port: int = port) -> GidSlot | None:
            gid = _read_gid(sysfs, f"{folder}/gids", index)
            gid_type = sysfs.text(f"{folder}/gid_attrs/types/{index}") if gid and with_types else ""
            return GidSlot(port, index, gid, gid_type) if gid else None

        yield from _read_slots(range(_MOST_SLOTS), read)


def _read_gid(sysfs: PseudoFiles, folder: str, slot: int) -> str:
    gid = sysfs.text(f"{folder}/{slot}").lower()
    if gid and not _GID.fullmatch(gid):
        sysfs.warn(f"{folder}/{slot}", f"not a GID: {gid[:40]!r}")
        return ""
    return "" if gid == _NO_GID else gid


def _read_gids(sysfs: PseudoFiles, folder: str, is_infiniband: bool) -> tuple[set[str], set[str]]:
    """Interfaces and types of the GIDs. An InfiniBand port names no interface."""
    kinds = ("types",) if is_infiniband else ("types", "ndevs")
    slots = {number for kind in kinds for number in sysfs.numbered(f"{folder}/{kind}")}

    def read(slot: int) -> dict[str, str]:
        texts = {kind: sysfs.text(f"{folder}/{kind}/{slot}") for kind in kinds}
        return {kind: text for kind, text in texts.items() if text}

    gids = list(_read_slots(sorted(slots), read))
    return {gid["ndevs"] for gid in gids if "ndevs" in gid}, {gid["types"] for gid in gids if "types" in gid}


def _read_pkeys(sysfs: PseudoFiles, folder: str) -> Iterator[str]:
    def read(slot: int) -> str:
        pkey = sysfs.integer(f"{folder}/{slot}", base=16, most=0xFFFF)
        return f"0x{pkey:04x}" if pkey else ""

    return _read_slots(sysfs.numbered(folder), read)


def _read_slots(slots: Sequence[int], read: Callable[[int], Slot | None]) -> Iterator[Slot]:
    """The slots of a table that are not empty, up to a long gap."""
    gap = 0
    for slot in slots[:_MOST_SLOTS]:
        content = read(slot)
        gap = 0 if content else gap + 1
        if content:
            yield content
        elif gap == _LONGEST_GAP:
            return


def _read_named(sysfs: PseudoFiles, path: str) -> str:
    """The name in ``4: ACTIVE``."""
    text = sysfs.text(path)
    return text.partition(": ")[2] or text


def _read_guid(sysfs: PseudoFiles, path: str) -> str:
    guid = sysfs.text(path).lower()
    if guid and not _GUID.fullmatch(guid):
        sysfs.warn(path, f"not a GUID: {guid[:40]!r}")
        return ""
    return "" if guid == _NO_GUID else guid


def _read_port_guid(sysfs: PseudoFiles, path: str) -> str:
    """The interface identifier: the last 64 bits of a GID."""
    gid = sysfs.text(path).lower()
    if gid and not _GID.fullmatch(gid):
        sysfs.warn(path, f"not a GID: {gid[:40]!r}")
        return ""
    guid = gid[-len(_NO_GUID) :]
    return "" if guid == _NO_GUID else guid

"""RDMA devices: facts from sysfs (``Documentation/ABI/stable/sysfs-class-infiniband``).

Namespace mode and moves go through netlink, in ``rdmanl``. Management nodes (``umad``, ``issm``) are never
offered: they give a pod subnet management access to the whole fabric.
"""

from __future__ import annotations

from dranet.kernel.sysfs import PseudoFiles, nearest_pci_address
from dranet.model.facts import CharDevice, RdmaDevice, RdmaPort

RDMA_CLASS = "class/infiniband"
"""There as soon as the kernel's RDMA core is loaded, even while all devices are in pods."""

_VERBS_CLASS = "class/infiniband_verbs"


def read_rdma_devices(sysfs: PseudoFiles) -> list[RdmaDevice]:
    """Read all RDMA devices visible in the namespace that sysfs was mounted from, sorted by name."""
    names = sysfs.entries(RDMA_CLASS)
    if not names:
        return []
    nodes = _read_verbs_nodes(sysfs)
    shared = sysfs.char_device("class/misc/rdma_cm/dev", "/dev/infiniband/rdma_cm")
    return [_read_device(sysfs, name, nodes.get(name), shared) for name in names]


def _read_verbs_nodes(sysfs: PseudoFiles) -> dict[str, CharDevice]:
    """Map RDMA device name to its ``uverbsN``; the numbers do not follow the order of the names."""
    nodes = {}
    for entry in sysfs.entries(_VERBS_CLASS):
        name = sysfs.text(f"{_VERBS_CLASS}/{entry}/ibdev")
        node = sysfs.char_device(f"{_VERBS_CLASS}/{entry}/dev", f"/dev/infiniband/{entry}")
        if name and node:
            nodes[name] = node
    return nodes


def _read_device(
    sysfs: PseudoFiles, name: str, node: CharDevice | None, shared: CharDevice | None
) -> RdmaDevice:
    folder = f"{RDMA_CLASS}/{name}"
    ports = [_read_port(sysfs, folder, port) for port in sysfs.entries(f"{folder}/ports") if port.isdigit()]
    return RdmaDevice(
        name=name,
        pci_address=nearest_pci_address(sysfs.home(folder)),
        node_guid=sysfs.text(f"{folder}/node_guid"),
        firmware=sysfs.text(f"{folder}/fw_ver"),
        ports=tuple(sorted(ports, key=lambda port: port.number)),
        char_devices=tuple(device for device in (node, shared) if device is not None),
    )


def _read_port(sysfs: PseudoFiles, folder: str, number: str) -> RdmaPort:
    port = f"{folder}/ports/{number}"
    state = sysfs.text(f"{port}/state")  # "4: ACTIVE"
    netdevs = {sysfs.text(f"{port}/gid_attrs/ndevs/{n}") for n in sysfs.entries(f"{port}/gid_attrs/ndevs")}
    return RdmaPort(
        number=int(number),
        state=state.partition(": ")[2] or state,
        link_layer=sysfs.text(f"{port}/link_layer"),
        rate=sysfs.text(f"{port}/rate"),
        netdevs=tuple(sorted(netdevs - {""})),
    )

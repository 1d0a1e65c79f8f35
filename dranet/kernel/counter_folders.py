"""Where the host shows the counters of a device: folders of sysfs that stay while its links come and go.

Below a PCI function the kernel keeps one folder for its network interfaces and one for its RDMA devices. What
moves to another namespace vanishes from the folder and comes back to it; the folder itself stays for as long
as the function has any (``get_device_parent`` in ``drivers/base/core.c``; seen on Linux 6.12 with igb and an
RDMA device). So a mount of it never lacks its source, which one of ``net/eth1/statistics`` would.
"""

from __future__ import annotations

from pathlib import Path

from dranet.kernel.sysfs import is_pci_address

_KINDS = ("net", "infiniband")
_PCI_DEVICES = "bus/pci/devices"
_BUS_BELOW = "virtio*"
"""A virtio device stands between its PCI function and the interface."""


def find_counter_folders(sysfs_root: Path, pci_address: str) -> dict[str, Path]:
    """The folders of one PCI function, by ``net`` and ``infiniband``; none for what is not on PCI.

    Software links have one folder in common, with those of everybody else, so there is none for them.
    """
    if not is_pci_address(pci_address):
        return {}
    home = Path(sysfs_root, _PCI_DEVICES, pci_address)
    try:
        homes = [home, *sorted(home.glob(_BUS_BELOW))]
        found = {kind: each / kind for each in reversed(homes) for kind in _KINDS if (each / kind).is_dir()}
        return {kind: found[kind].resolve() for kind in _KINDS if kind in found}
    except OSError:  # unplugged meanwhile
        return {}

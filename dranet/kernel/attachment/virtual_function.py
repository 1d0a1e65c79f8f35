"""Administer the virtual function of an attached device, and restore what it had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dranet.errors import DeviceError, DranetError, Reason
from dranet.kernel.attachment.links import find_step, read_link
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.netlink.vf import VfAdmin
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.plan import AttachPlan, SetVf
from dranet.model.virtual_functions import VfSettings


def iter_physical_links(netlink: NetlinkSocket, sysfs_root: Path, pci_address: str) -> Iterator[VfAdmin]:
    """The links of a physical function in the namespace of ``netlink``. In switchdev mode those of its
    representors are among them, which have no virtual functions."""
    for ifname in PseudoFiles(sysfs_root, []).entries(f"bus/pci/devices/{pci_address}/net"):
        link = read_link(netlink, ifname=ifname)
        if link is not None:
            yield VfAdmin(netlink, link.ifindex, link.ifname)


def find_vf(netlink: NetlinkSocket, sysfs_root: Path, pci_address: str, index: int) -> VfAdmin:
    """The link through which one virtual function is administered.

    Raises:
        DeviceError: the physical function has no link here, as while a pod has it.
    """
    for admin in iter_physical_links(netlink, sysfs_root, pci_address):
        if index in admin.read():
            return admin
    raise DeviceError(
        f"virtual function {index} cannot be administered: the physical function {pci_address} has no "
        "interface on the node that knows it",
        hint="is the physical function in a pod, or its driver unbound?",
        reason=Reason.DEVICE_BUSY,
    )


def read_vf(netlink: NetlinkSocket, sysfs_root: Path, pci_address: str, index: int) -> VfSettings:
    return find_vf(netlink, sysfs_root, pci_address, index).read()[index]


def set_vf(netlink: NetlinkSocket, sysfs_root: Path, step: SetVf) -> None:
    """Set and read back; safe to repeat. ``MissingFeature``: the driver cannot, and nothing is changed."""
    find_vf(netlink, sysfs_root, step.physical_function, step.index).apply(step.index, step.settings)


def restore_vf(netlink: NetlinkSocket, sysfs_root: Path, plan: AttachPlan) -> list[str]:
    """Restore what a :class:`SetVf` changed; returns what could not be restored."""
    step = find_step(plan, SetVf)
    if step is None or plan.vf is None:
        return []
    try:
        admin = find_vf(netlink, sysfs_root, step.physical_function, step.index)
        return admin.restore(step.index, plan.vf)
    except DranetError as error:
        return [error.message]

"""What a plan needs to know of the node: links, rules, CPUs and RDMA, read when a claim is prepared."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.hardware import open_queues
from dranet.kernel.attachment.links import open_host_side, read_link
from dranet.kernel.attachment.restore import read_ipoib_states, read_link_state
from dranet.kernel.attachment.traffic import read_rules
from dranet.kernel.attachment.virtual_function import read_vf
from dranet.kernel.discovery.hardware import read_management_nodes
from dranet.kernel.ethtool.settings import read_ethtool_state
from dranet.kernel.netlink.rdma import read_netns_exclusive
from dranet.kernel.netlink.socket import NETLINK_GENERIC, NetlinkSocket
from dranet.kernel.sysfs.files import PseudoFiles, read_link_sysctls
from dranet.kernel.sysfs.irq import InterruptFiles, find_balancer, read_cpu_layout
from dranet.model.cpus import CpuSurroundings, format_cpu_list
from dranet.model.facts import CharDevice, Link
from dranet.model.plan import (
    RECORD_VERSION,
    AddRule,
    IpoibState,
    LinkState,
)
from dranet.model.virtual_functions import VfSettings


class NodeReader:
    """Reads the network namespace of the calling thread, and sysfs and procfs below these roots. Raises
    DeviceError for a device that is gone or cannot be used as it is, and KernelError."""

    def __init__(self, sysfs_root: Path, procfs_root: Path = Path("/proc")) -> None:
        self._sysfs_root, self._procfs_root = sysfs_root, procfs_root

    def read_mac(self, ifname: str) -> str:
        with NetlinkSocket.open() as rtnl:
            return _read_present(rtnl, ifname).mac

    def read_link(self, ifname: str) -> LinkState:
        return read_link_state(ifname)

    def read_ipoib(self, pci_address: str) -> tuple[IpoibState, ...]:
        """Read the IPoIB interfaces of a PCI function whose RDMA device will move."""
        return read_ipoib_states(pci_address)

    def read_parent(self, ifname: str) -> LinkState:
        """Read a link that stays: what links on top of it depend on, without addresses and routes."""
        with NetlinkSocket.open() as rtnl:
            link = _read_present(rtnl, ifname)
            _check_parent(rtnl, link)
        with NetlinkSocket.open(NETLINK_GENERIC) as genl:
            ethtool = read_ethtool_state(genl, link.ifindex, link=link.ifname)
        return LinkState(
            ifindex=link.ifindex,
            ifname=link.ifname,
            mac=link.mac,
            mtu=link.mtu,
            up=link.is_up,
            permanent_mac=link.permanent_mac,
            version=RECORD_VERSION,
            ethtool=ethtool,
            sysctls=read_link_sysctls(link.ifname),
        )

    def read_rules(self) -> tuple[AddRule, ...]:
        with NetlinkSocket.open() as rtnl:
            return tuple(rule for version in (4, 6) for rule in read_rules(rtnl, version) or ())

    def read_physical_function_mtu(self, pci_address: str) -> int | None:
        """The largest MTU among the links of a physical function (of two ports either may be the virtual
        function's); ``None`` while none is on this node."""
        sysfs = PseudoFiles(self._sysfs_root, [])
        ports = sysfs.entries(f"bus/pci/devices/{pci_address}/net")
        return max((sysfs.integer(f"class/net/{port}/mtu") or 0 for port in ports), default=0) or None

    def read_vf(self, physical_function: str, index: int) -> VfSettings:
        """What a virtual function has, as its physical function reports it."""
        with NetlinkSocket.open() as rtnl:
            return read_vf(rtnl, self._sysfs_root, physical_function, index)

    def read_cpu_surroundings(self, pci_address: str, ifname: str, asked: Collection[str]) -> CpuSurroundings:
        """Which CPUs there are, and which work for a device now, as far as asked (irq, xps, rps)."""
        sysfs, procfs = PseudoFiles(self._sysfs_root, []), PseudoFiles(self._procfs_root, [])
        irqs, queues, balancer = dict[int, tuple[int, ...]](), dict[str, str](), ""
        if "irq" in asked:
            irqs = InterruptFiles(self._sysfs_root, self._procfs_root).read(pci_address)
            balancer = find_balancer(procfs, sysfs, pci_address, irqs)
        if ifname and {"xps", "rps"} & set(asked):
            with open_host_side() as home, open_queues(home, ifname) as found:
                queues = found.read(xps="xps" in asked, rps="rps" in asked)
        recorded = {str(irq): format_cpu_list(cpus) for irq, cpus in irqs.items()}
        return CpuSurroundings(read_cpu_layout(sysfs, procfs), recorded, queues, balancer)

    def read_rdma_exclusive(self) -> bool:
        """Whether RDMA devices belong to one network namespace each, now: an administrator may change it. A
        guess would leave the device on the wrong side."""
        warnings: list[str] = []
        exclusive = read_netns_exclusive(warnings)
        if warnings:
            raise KernelError(f"the RDMA namespace mode cannot be read: {warnings[0]}", operation="rdma-mode")
        return exclusive

    def read_management_nodes(self, rdma_device: str) -> tuple[CharDevice, ...]:
        """``umad`` and ``issm`` of an RDMA device."""
        warnings: list[str] = []
        nodes = read_management_nodes(PseudoFiles(self._sysfs_root, warnings), rdma_device)
        if not nodes:
            why = "; ".join(warnings) or "is ib_umad loaded?"
            raise DeviceError(
                f"RDMA device {rdma_device} has no management nodes: {why}",
                hint="load ib_umad on the node, or leave rdma.managementDevices out",
            )
        return nodes


def _read_present(rtnl: NetlinkSocket, ifname: str) -> Link:
    link = read_link(rtnl, ifname=ifname)
    if link is None:
        raise DeviceError(f"link {ifname} is not on this node")
    return link


def _check_parent(rtnl: NetlinkSocket, link: Link) -> None:
    if link.master is not None:
        master = read_link(rtnl, link.master)
        name = master.ifname if master else str(link.master)
        raise DeviceError(
            f"link {link.ifname} is enslaved to {name}, so that nothing can be put on top of it",
            reason=Reason.DEVICE_BUSY,
        )
    if not link.is_up:
        raise DeviceError(
            f"link {link.ifname} is down, so that nothing on top of it would work",
            hint=f"set it up on the node: ip link set {link.ifname} up",
            reason=Reason.DEVICE_BUSY,
        )

"""What Prepare asks the node's kernel while it plans a claim. Slow look-ups belong here, not in the hook."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.ipoib import read_ipoib_states
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.attachment.locate import open_host_side
from dranet.kernel.attachment.queues import open_queues
from dranet.kernel.attachment.record import read_link_state
from dranet.kernel.attachment.routing import read_rules
from dranet.kernel.cpus import read_cpu_layout
from dranet.kernel.discovery.rdma import read_management_nodes
from dranet.kernel.ethtool import read_ethtool_state
from dranet.kernel.genl import NETLINK_GENERIC
from dranet.kernel.irq import InterruptFiles
from dranet.kernel.irqbalance import find_balancer
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.rdma_cm import read_cm_defaults
from dranet.kernel.rdmanl import read_netns_exclusive
from dranet.kernel.sysctl import read_link_sysctls
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.cpus import CpuSurroundings, format_cpu_list
from dranet.model.facts import CharDevice, Link
from dranet.model.plan import RECORD_VERSION, AddRule, IpoibState, LinkState


class NodeReader:
    """Reads the network namespace of the calling thread, and sysfs and procfs below these roots."""

    def __init__(self, sysfs_root: Path, procfs_root: Path = Path("/proc")) -> None:
        self._sysfs_root, self._procfs_root = sysfs_root, procfs_root

    def read_mac(self, ifname: str) -> str:
        """The hardware address of a link.

        Raises:
            DeviceError: there is no such link.
            KernelError: netlink failed.
        """
        with NetlinkSocket.open() as rtnl:
            return _read_present(rtnl, ifname).mac

    def has_sysctl(self, name: str) -> bool:
        """Whether the kernel has a setting: ``net.ipv4.tcp_mtu_probing``."""
        return Path("/proc/sys", *name.split(".")).exists()

    def read_link(self, ifname: str) -> LinkState:
        """The state of a link that will move.

        Raises:
            DeviceError: it is gone, enslaved, or could not be given back as it is.
            KernelError: netlink failed.
        """
        return read_link_state(ifname)

    def read_ipoib(self, pci_address: str) -> tuple[IpoibState, ...]:
        """The IPoIB interfaces of a PCI function whose RDMA device will move.

        Raises:
            DeviceError: one could not be restored.
            KernelError: netlink failed.
        """
        return read_ipoib_states(pci_address)

    def read_parent(self, ifname: str) -> LinkState:
        """Of a link that stays: what links on top of it depend on, without addresses and routes.

        Raises:
            DeviceError: it is gone, down or enslaved, so that nothing can be put on top of it.
            KernelError: netlink failed.
        """
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
        """The policy rules of the namespace, of both IP versions.

        Raises:
            KernelError: netlink failed.
        """
        with NetlinkSocket.open() as rtnl:
            return tuple(rule for version in (4, 6) for rule in read_rules(rtnl, version) or ())

    def read_physical_function_mtu(self, pci_address: str) -> int | None:
        """The largest MTU among the links of a physical function; ``None`` while none is on this node.

        A function of two ports does not say which of them a virtual function belongs to.
        """
        sysfs = PseudoFiles(self._sysfs_root, [])
        ports = sysfs.entries(f"bus/pci/devices/{pci_address}/net")
        return max((sysfs.integer(f"class/net/{port}/mtu") or 0 for port in ports), default=0) or None

    def read_cpu_surroundings(self, pci_address: str, ifname: str, asked: Collection[str]) -> CpuSurroundings:
        """Which CPUs there are, and who works for a device now, as far as ``irq``, ``xps`` and ``rps`` ask.

        Raises:
            KernelError: the link's queues cannot be seen.
        """
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
        """Whether RDMA devices belong to one network namespace each, now: an administrator may change it.

        Raises:
            KernelError: the kernel does not tell; a guess would leave the device on the wrong side.
        """
        warnings: list[str] = []
        exclusive = read_netns_exclusive(warnings)
        if warnings:
            raise KernelError(f"the RDMA namespace mode cannot be read: {warnings[0]}", operation="rdma-mode")
        return exclusive

    def read_cm_defaults(self, rdma_device: str) -> Mapping[str, str]:
        """The defaults of ``rdma_cm`` that a device loses when it moves, by ``1/default_roce_mode``."""
        return read_cm_defaults(rdma_device)

    def read_management_nodes(self, rdma_device: str) -> tuple[CharDevice, ...]:
        """``umad`` and ``issm`` of an RDMA device.

        Raises:
            DeviceError: it has none (is ``ib_umad`` loaded?), or they cannot be read.
        """
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

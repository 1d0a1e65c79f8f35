"""Facts read from the kernel (links, PCI functions, RDMA devices, GPUs), and distances between devices.

Filled by ``dranet.kernel.discovery.scan`` from netlink and sysfs, read by ``dranet.inventory``. Sources: the
kernel's ``Documentation/ABI/testing/sysfs-bus-pci``, ``sysfs-class-net``, ``sysfs-class-infiniband`` and
``rtnetlink(7)``. A fact that the kernel does not give is ``None`` (or empty), never a guess.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import takewhile
from typing import Protocol

from msgspec import Struct, field

# linux/if_addr.h: flags of an address
IFA_F_TEMPORARY, IFA_F_NODAD, IFA_F_DADFAILED = 0x01, 0x02, 0x08
"""``IFA_F_TEMPORARY`` marks privacy addresses of IPv6. The same bit of an IPv4 address means "secondary"."""
IFA_F_MANAGETEMPADDR, IFA_F_NOPREFIXROUTE, IFA_F_MCAUTOJOIN = 0x100, 0x200, 0x400

RTNH_F_ONLINK = 4
"""``linux/rtnetlink.h``: the gateway of the route is on the link, whatever its prefix."""

TABLE_MAIN = 254
"""``RT_TABLE_MAIN`` of ``linux/rtnetlink.h``: the routing table of routes and rules that name none."""


class Address(Struct, frozen=True):
    """One interface address. ``cidr`` keeps the host bits: ``10.0.0.5/24``, ``2001:db8::5/64``."""

    cidr: str
    scope: int = 0
    """``rtnetlink(7)`` scope: 0 universe, 253 link, 254 host."""
    flags: int = 0
    """``IFA_F_*`` bits (``linux/if_addr.h``)."""
    label: str = ""
    peer: str = ""
    """Point-to-point peer in CIDR form, or empty."""
    broadcast: str = ""
    valid_seconds: int | None = None
    """Remaining valid lifetime; ``None``: unlimited."""
    preferred_seconds: int | None = None
    metric: int = 0
    """Metric of the prefix route that the kernel makes from it; 0 is the kernel's own."""


class Link(Struct, frozen=True):
    """One network interface of the namespace that was scanned."""

    ifindex: int
    ifname: str
    kind: str = ""
    """``IFLA_INFO_KIND`` (``veth``, ``bridge`` ...); empty for a physical device."""
    mac: str = ""
    """Lower-case, colon separated; 6 bytes for Ethernet, 20 for InfiniBand."""
    permanent_mac: str = ""
    mtu: int = 0
    flags: int = 0
    """``IFF_*`` bits (``netdevice(7)``)."""
    operstate: str = "unknown"
    """RFC 2863 text as the kernel prints it: ``up``, ``down``, ``lowerlayerdown`` ..."""
    carrier: bool = False
    arp_type: int = 1
    """``ARPHRD_*``: 1 Ethernet, 32 InfiniBand, 772 loopback."""
    alias: str = ""
    altnames: tuple[str, ...] = ()
    group: int = 0
    tx_queue_length: int = 0
    master: int | None = None
    """ifindex of the bridge, bond or VRF it is enslaved to."""
    lower: int | None = None
    """``IFLA_LINK``: ifindex of the parent of a VLAN, macvlan ...; it counts in another
    namespace when ``link_netnsid`` is set."""
    link_netnsid: int | None = None
    parent_bus: str = ""
    parent_device: str = ""
    """``IFLA_PARENT_DEV_NAME``: the PCI address (or ``virtio3`` ...) behind the link."""
    pci_address: str = ""
    """The PCI function that carries the link, also through virtio and auxiliary buses; else empty."""
    virtual: bool = False
    """Its sysfs home is ``/sys/devices/virtual``."""
    addresses: tuple[Address, ...] = ()
    vlan_id: int | None = None
    netns_immutable: bool = False
    """The kernel refuses to move it out of its network namespace."""
    phys_switch_id: str = ""
    """Hex; the same for all ports of one embedded switch (``switchdev``), its representors among them."""
    phys_port_name: str = ""
    """``p0`` for an uplink port, ``pf0vf3`` for a representor."""
    driver: str = ""
    """As the driver names itself to ethtool; empty for software links and where it was not read."""
    driver_version: str = ""
    firmware: str = ""
    speed_mbps: int | None = None
    """Negotiated speed in Mbit/s; ``None`` while the link is down or the driver does not know."""
    duplex: str = ""
    """``full``, ``half`` or empty."""
    queues: int | None = None
    """Receive queues in use (ethtool channels: rx + combined)."""
    xdp: bool = False
    """An XDP program is attached."""
    tc_filters: tuple[str, ...] | None = None
    """Names of the BPF programs on the TC ingress and egress hooks, sorted; ``None``: not read."""
    tcx_programs: tuple[str, ...] | None = None
    """Names of the BPF programs on the TCX hooks (Linux 6.6), sorted; ``None``: not read."""

    IFF_UP = 0x1
    IFF_LOOPBACK = 0x8

    @property
    def is_up(self) -> bool:
        """Administratively up (``IFF_UP``)."""
        return bool(self.flags & self.IFF_UP)

    @property
    def is_loopback(self) -> bool:
        return bool(self.flags & self.IFF_LOOPBACK)


class Route(Struct, frozen=True):
    """One route of any table. ``destination`` is a CIDR; a default route is ``0.0.0.0/0`` or ``::/0``."""

    destination: str
    gateway: str = ""
    ifindex: int = 0
    """Output interface (``RTA_OIF``), 0 when the route has only next hops."""
    next_hops: tuple[int, ...] = ()
    """Output interfaces of a multipath route."""
    source: str = ""
    """Preferred source address."""
    scope: int = 0
    table: int = TABLE_MAIN
    protocol: int = 0
    """``RTPROT_*``: 2 kernel, 3 boot, 4 static, 16 dhcp."""
    metric: int = 0
    type: int = 1
    """``RTN_*``: 1 unicast."""
    flags: int = 0
    """``RTNH_F_*``: 4 onlink."""
    mtu: int = 0


class RoutingRule(Struct, frozen=True):
    """One policy rule (``ip-rule(8)``) that looks up a table. What it matches on besides is not recorded: it
    may be true of any traffic."""

    family: int
    """4 or 6."""
    table: int
    source: str = ""
    """CIDR of the source addresses; empty: all."""
    destination: str = ""
    """CIDR of the destinations; empty: all."""
    input_interface: str = ""
    """Name of the link that the traffic came in by; ``lo`` is the node's own."""
    output_interface: str = ""
    """Name of the link that the sender bound its socket to."""
    inverted: bool = False
    """Matches what the rest does not (``not``)."""
    suppresses_default: bool = False
    """The table's default routes do not count (``suppress_prefixlength``)."""

    @property
    def is_from_one_address(self) -> bool:
        """It matches one source, as rules for pods do."""
        return self.source.endswith("/128" if self.family == 6 else "/32") and not self.inverted


class Neighbour(Struct, frozen=True):
    """One permanent neighbour (ARP or ND) entry, or an address that the link answers for (``proxy``)."""

    address: str
    mac: str
    proxy: bool = False


class CharDevice(Struct, frozen=True):
    """A character device node a container may be given: path inside ``/dev`` and its numbers."""

    path: str
    major: int
    minor: int
    file_mode: int | None = None
    """Permission bits that its driver wants for the node (``DEVMODE`` of its uevent); ``None``: not
    reported."""


class PciFunction(Struct, frozen=True):
    """One PCI function, as in ``/sys/bus/pci/devices/<address>``."""

    address: str
    """``dddd:bb:dd.f`` in lower case (the domain may have more digits)."""
    class_code: int
    """24 bits: base class, sub class, programming interface."""
    vendor_id: int
    device_id: int
    subsystem_vendor_id: int = 0
    subsystem_device_id: int = 0
    driver: str = ""
    numa_node: int | None = None
    """``None`` where the platform reports -1."""
    root: str = ""
    """Root complex, ``pci0000:00``."""
    path: tuple[str, ...] = ()
    """Addresses from just below the root down to this function itself: bridges, switch ports, function."""
    physical_function: str = ""
    """Address of the SR-IOV physical function, on a virtual function."""
    virtual_function_index: int | None = None
    sriov_total_vfs: int = 0
    sriov_num_vfs: int = 0
    link_speed: str = ""
    """``current_link_speed`` text, e.g. ``32.0 GT/s PCIe``."""
    link_width: int = 0
    """Lanes in use; 0 where the function has no link of its own."""
    max_link_speed: str = ""
    max_link_width: int = 0
    vendor_name: str = ""
    """As in pci.ids, whole; empty where the database is missing or does not know the id."""
    device_name: str = ""

    @property
    def base_class(self) -> int:
        """0x02 network, 0x03 display, 0x12 processing accelerator."""
        return self.class_code >> 16


class RdmaPort(Struct, frozen=True):
    """One port of an RDMA device (``/sys/class/infiniband/<dev>/ports/<n>``)."""

    number: int
    state: str = ""
    """``ACTIVE``, ``DOWN`` ..."""
    link_layer: str = ""
    """``Ethernet`` or ``InfiniBand``."""
    rate: str = ""
    """As the kernel prints it: ``400 Gb/sec (4X NDR)``."""
    netdevs: tuple[str, ...] = ()
    """Interfaces named by ``gid_attrs/ndevs`` (RoCE)."""
    phys_state: str = ""
    """``LinkUp``, ``Polling``, ``Disabled`` ..."""
    lid: int | None = None
    """Local identifier; InfiniBand only."""
    guid: str = ""
    """Port GUID, ``0c42:a103:0065:7b22``: the interface identifier of GID 0."""
    gid_types: tuple[str, ...] = ()
    """What the GID table holds, sorted: ``IB/RoCE v1``, ``RoCE v2``."""
    pkeys: tuple[str, ...] = ()
    """Partition keys in table order, ``0xffff``; invalid (zero) entries are left out."""


class RdmaDevice(Struct, frozen=True):
    """One RDMA device (``/sys/class/infiniband/<name>``)."""

    name: str
    pci_address: str = ""
    node_guid: str = ""
    firmware: str = ""
    node_type: str = ""
    """``CA``, ``RNIC`` (iWARP) ..."""
    system_image_guid: str = ""
    """The same for all functions of one card."""
    board_id: str = ""
    ports: tuple[RdmaPort, ...] = ()
    char_devices: tuple[CharDevice, ...] = ()
    """``/dev/infiniband/uverbsN`` of this device and the shared ``rdma_cm``."""
    auxiliary: bool = False
    """Its driver is bound to an auxiliary device of the PCI function (``mlx5_core.rdma.0``), and so does not
    follow what becomes of the function's link; ``False`` also where it was not read."""


class Gpu(Struct, frozen=True):
    """A GPU or other accelerator: PCI class 0x03 (3D, display) or 0x12, with the nodes a container needs."""

    pci_address: str
    vendor: str
    """``nvidia``, ``amd``, ``intel`` or the vendor id in hex."""
    model: str = ""
    uuid: str = ""
    char_devices: tuple[CharDevice, ...] = ()
    parts: str = ""
    """What it is cut into (``MIG``, ``CPX``): its nodes are not the whole then. Empty: nothing known."""


class NumaNode(Struct, frozen=True):
    """One NUMA node (``/sys/devices/system/node/nodeN``)."""

    node: int
    cpus: str = ""
    """``cpulist``: ``0-55,112-167``."""
    distances: tuple[int, ...] = ()
    """ACPI SLIT distances to each online node, in their order; 10 is local."""
    socket: int | None = None
    """The processor package of its CPUs (``physical_package_id``); ``None`` for a node without CPUs."""


class ProtectedLink(Struct, frozen=True):
    """By which link the node reaches, or answers at, an address that it cannot live without."""

    purpose: str
    """Reads after "carries": ``the route to the API server``, ``the node's address``."""
    address: str
    ifindex: int
    """0: a route exists, and its output is unknown."""


class Host(Struct, frozen=True):
    """The machine itself."""

    name: str = ""
    kernel: str = ""
    """``uname -r``."""
    architecture: str = ""
    product: str = ""
    """Maker and model from DMI; never a serial number."""


class ProvidedAttribute(Struct, frozen=True):
    """An attribute from a provider, with exactly one value."""

    name: str
    """Qualified: ``gce.dra.net/block``."""
    string: str | None = None
    integer: int | None = None
    boolean: bool | None = None

    @property
    def value(self) -> str | int | bool:
        if self.string is not None:
            return self.string
        return self.integer if self.integer is not None else bool(self.boolean)


class ProvidedFacts(Struct, frozen=True):
    """Facts of a cloud's metadata service or a webhook: about one device (by its name, by the hardware
    address of its interface or by its RDMA device), or, without any of these, about all devices of the
    node."""

    device: str = ""
    mac: str = ""
    rdma_device: str = ""
    attributes: tuple[ProvidedAttribute, ...] = ()


class LldpNeighbour(Struct, frozen=True):
    """The port at the other end of a link's cable, as it announces itself (IEEE 802.1AB). What the texts hold
    is up to the switch; they are printable."""

    ifname: str
    """Name of the link on the node, also while a pod has it."""
    chassis_id: str
    port_id: str
    system_name: str = ""
    port_description: str = ""


class NodeFacts(Struct, frozen=True):
    """Everything one scan read. Tuples are sorted (links by ifindex, the rest by address or name)."""

    links: tuple[Link, ...] = ()
    pci_functions: tuple[PciFunction, ...] = ()
    rdma_devices: tuple[RdmaDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    default_routes: tuple[Route, ...] = ()
    """Main-table default routes of both families, all metrics."""
    rules: tuple[RoutingRule, ...] = ()
    """Rules of both families that look up a table other than local and main."""
    policy_routes: tuple[Route, ...] = ()
    """From the tables that ``rules`` look up: the default routes and, where a rule names a source, one of the
    other routes for each output."""
    protected_links: tuple[ProtectedLink, ...] = ()
    """The node's own addresses and the ways to the API server."""
    numa_nodes: tuple[NumaNode, ...] = ()
    host: Host = field(default=Host())
    rdma_netns_exclusive: bool = False
    """RDMA devices belong to one network namespace each (``rdma system``); ``False`` is shared mode."""
    provided: tuple[ProvidedFacts, ...] = ()
    """From outside the kernel; checked by ``model.provider``."""
    lldp_neighbours: tuple[LldpNeighbour, ...] = ()
    """One for each link whose neighbour is known; only with the setting ``lldp``."""
    warnings: tuple[str, ...] = field(default=())
    """One line for each thing that could not be read; one odd device never hides the others."""


class Distance(IntEnum):
    """Ordered: smaller is nearer."""

    PIX, PXB, PHB, NODE, SYS = range(5)

    @property
    def meaning(self) -> str:
        """What it is, for a legend."""
        return _MEANINGS[self]


_MEANINGS = {
    Distance.PIX: "the same PCIe switch (at most one bridge between them)",
    Distance.PXB: "several PCIe switches, but not the CPU",
    Distance.PHB: "the CPU's PCIe host bridge",
    Distance.NODE: "several host bridges of one NUMA node",
    Distance.SYS: "the link between NUMA nodes",
}


class Placed(Protocol):
    """What has a place: a :class:`~dranet.model.device.Device`, or what is known of another driver's."""

    @property
    def pci_path(self) -> tuple[str, ...]:
        """Bridges and switch ports from below the root down to the function itself."""

    @property
    def pcie_root(self) -> str:
        """``pci0000:15``; empty where it is not on PCI."""

    @property
    def numa_node(self) -> int | None:
        """``None`` where the platform does not report it."""


def distance(a: Placed, b: Placed) -> Distance | None:
    """How far ``a`` and ``b`` are from each other; symmetric; ``None`` where the facts are missing.

    With a switch, a path is ``root port, upstream port, downstream port, function``. Two functions on one
    switch part after its upstream port, which leaves each two hops below the last common bridge; NCCL
    counts the same way. Functions of one card, virtual ones among them, part at the last hop. A virtual
    machine that shows each function in a PCI domain of its own leaves only the NUMA nodes for comparison.
    """
    if not (a.pci_path and b.pci_path and a.pcie_root and b.pcie_root):
        return None
    if a.pcie_root != b.pcie_root:
        if a.numa_node is None or b.numa_node is None:
            return None
        return Distance.NODE if a.numa_node == b.numa_node else Distance.SYS
    steps = zip(a.pci_path, b.pci_path, strict=False)
    common = sum(1 for _ in takewhile(lambda step: step[0] == step[1], steps))
    if common == 0:
        return Distance.PHB
    deepest = max(len(a.pci_path), len(b.pci_path)) - common
    return Distance.PIX if deepest <= 2 else Distance.PXB

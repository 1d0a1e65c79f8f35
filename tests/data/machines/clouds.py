"""Virtual machines and bare metal of cloud providers."""

from __future__ import annotations

from dranet.model.capture import Capture
from dranet.model.facts import Address, Host, NumaNode, PciFunction
from tests.data import parts
from tests.data.authoring import ETHERNET_UP, Machine, two_sockets

_NETVSC = "00000000-0000-4000-8000-00000000000{}"
"""A VMBus channel: Hyper-V gives each synthetic device a GUID of its own."""


def aws_p5() -> Capture:
    """Groups of one GPU and four EFA on one switch, each group below a root of its own."""
    machine = Machine(
        "Documentation: the NCCL topology file that AWS publishes for p5.48xlarge (which four EFA are "
        "beside which GPU; the names of the EFA devices, which hold their bus numbers; speeds and widths) "
        "and the hwloc listing of a p5en.48xlarge in the tests of AWS' libfabric plug-in (roots, switch "
        "ports, ids, no interface on EFA). Filled in: bus numbers of GPUs by the pattern of the EFA "
        "names, the split into two NUMA nodes (the file has all in one), the ENA, its address and all "
        "links of the CNI.",
        Host("ip-192-0-2-20", "6.8.0-1030-aws", "x86_64", "Amazon EC2 p5.48xlarge"),
        two_sockets(("0-47,96-143", "48-95,144-191"), 32),
    )
    ena = machine.function(parts.ENA, "pci0000:43", "43:00.0/44:00.0/45:00.0/46:00.0", 0)
    uplink = machine.nic(ena, "enp70s0", mtu=9001, queues=32, addresses=(Address("192.0.2.20/24"),))
    machine.uplink(uplink, "192.0.2.1")
    for group in range(8):
        _p5_group(machine, group)
    machine.link("pod-id-link0", kind="dummy", flags=0x82, operstate="down", addresses=())
    machine.link("eni3f5b0a1c2d3", kind="veth", lower=3, link_netnsid=0, mtu=9001)
    machine.link("eni9d8c7b6a5f4", kind="veth", lower=3, link_netnsid=1, mtu=9001)
    machine.link("vlan.eth.1", kind="vlan", lower=uplink.ifindex, vlan_id=1, mtu=9001)
    return machine.capture()


def _p5_group(machine: Machine, group: int) -> None:
    root = 0x43 + 17 * group
    numa = group // 4
    way = f"{root:02x}:00.0/{root + 1:02x}:00.0/{root + 2:02x}"
    for lane in range(4):
        bus = root + 12 + lane
        efa = machine.function(
            parts.EFA, f"pci0000:{root:02x}", f"{way}:{_port(root, bus)}/{bus:02x}:00.0", numa
        )
        machine.rdma(
            efa,
            f"rdmap{bus}s0",
            parts.EFA,
            "100 Gb/sec (4X EDR)",
            link_layer="Unknown",
            lid=0,
            gid_types=(),
            node_type="unspecified",
        )
    bus = root + 16
    gpu = machine.function(
        parts.H100, f"pci0000:{root:02x}", f"{way}:{_port(root, bus)}/{bus:02x}:00.0", numa
    )
    machine.gpu(gpu, "NVIDIA H100 80GB HBM3", group)


def _port(root: int, bus: int) -> str:
    """The switch port above a bus: eight functions for each device number."""
    number = bus - root - 3
    return f"{number // 8:02x}.{number % 8}"


def azure_nd_h100_v5() -> Capture:
    """Every passed-through function is alone in a PCI domain, below a channel of the VMBus."""
    machine = Machine(
        "Documentation: the NCCL topology file that Azure publishes for ND H100 v5 (PCI domain, class and "
        "NUMA node of each GPU and InfiniBand function; which are beside each other below switches that "
        "the guest cannot see) and DraNet's training example on it (nvidia-smi topo -m: NODE on the own "
        "NUMA node, else SYS; order of mlx5_N). Filled in: names and addresses of the IPoIB interfaces, "
        "the synthetic Ethernet with its accelerated virtual function, and the links of the CNI.",
        Host(
            "aks-h100-00000000-vmss000000",
            "5.15.0-1089-azure",
            "x86_64",
            "Microsoft Corporation Virtual Machine",
        ),
        two_sockets(("0-47", "48-95")),
    )
    _accelerated_networking(machine, parts.CX_VF_ETH, "7870:00:02.0", "enP30832s1", rdma="mlx5_8")
    for position, domain in enumerate((1, 2, 3, 8, 9, 0xA, 0xB, 0xC)):
        gpu = _alone(machine, parts.H100, domain, position // 4)
        machine.gpu(gpu, "NVIDIA H100 80GB HBM3", position)
        vf = _alone(machine, parts.CX_VF_IB, 0x101 + position, position // 4)
        device = machine.rdma(vf, f"mlx5_{position}", parts.CX_VF_IB, "400 Gb/sec (4X NDR)")
        address = Address(f"198.51.100.{position + 10}/24")
        machine.ipoib(vf, f"ib{position}", device.node_guid, mbps=400_000, addresses=(address,))
    machine.link("azv3c9f0a1b2d4", kind="veth", lower=2, link_netnsid=0)
    return machine.capture()


def azure_gb300() -> Capture:
    """InfiniBand functions without interfaces, GPUs on the processor's own link."""
    machine = Machine(
        "Documentation: DraNet's example for Azure ND GB300 v6, its text and the ResourceSlices of a live "
        "node (PCI address, vendor, device, NUMA node and mlx5_N of each NIC, PCI address and root of "
        "each GPU; nvidia-smi topo -m: NODE on the own NUMA node, else SYS; no interface on any of these "
        "NICs). Filled in: the bridges above the GPUs, NUMA nodes of GPU memory, the synthetic Ethernet "
        "with its function.",
        Host(
            "aks-gb300-00000000-vmss000000",
            "6.8.0-1044-azure-nvidia",
            "aarch64",
            "Microsoft Corporation Virtual Machine",
        ),
        _grace_blackwell_nodes(64),
    )
    _accelerated_networking(machine, parts.MANA_VF, "7870:00:00.0", "enP30832s1")
    _grace_blackwell_gpus(machine, parts.GB300, "NVIDIA GB300")
    for position in range(4):
        vf = _alone(machine, parts.CX_VF_IB, 0x101 + position, position // 2, subsystem_device_id=0x0240)
        machine.rdma(vf, f"mlx5_{position}", parts.CX_VF_IB, "800 Gb/sec (4X XDR)")
    return machine.capture()


def gb200_nvl72() -> Capture:
    """A compute tray as NVIDIA designed it: one NIC for each GPU, GPUs right below a root port."""
    machine = Machine(
        "Documentation: PCI addresses and ids of the GPUs from the lspci and nvidia-smi listings of trays in "
        "public issues (NVIDIA/mig-parted#227, NVIDIA/kubevirt-gpu-device-plugin#154); addresses of the "
        "four ConnectX-7 from Oracle's tables of RDMA addresses for BM.GPU.GB200.4, which is such a tray; "
        "names and addresses of the BlueField-3 from a table of mlx5 names beside them. NUMA nodes by the "
        "rule of Grace: sixteen PCI domains for each processor. Filled in: bridges, GPU memory nodes, the "
        "front-end addresses.",
        Host("gb200-00", "6.8.0-1024-nvidia-64k", "aarch64", "NVIDIA GB200 NVL"),
        _grace_blackwell_nodes(72),
    )
    front = machine.function(parts.BF3, "pci0006:00", "00:00.0/01:00.0/02:00.0/09:00.0", 0)
    uplink = machine.nic(front, "eth0", 200_000, mtu=9000, addresses=(Address("192.0.2.31/24"),))
    machine.uplink(uplink, "192.0.2.1")
    machine.rdma(front, "mlx5_2", parts.BF3, "200 Gb/sec (4X HDR)", netdevs=("eth0",))
    _grace_blackwell_gpus(machine, parts.GB200, "NVIDIA GB200", "00:00.0/01:00.0")
    for position, name in enumerate(("mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4")):
        domain = (0x0000, 0x0002, 0x0010, 0x0012)[position]
        way = "00:00.0/01:00.0/02:00.0/03:00.0"
        function = machine.function(parts.CX7_IB, f"pci{domain:04x}:00", way, position // 2)
        device = machine.rdma(function, name, parts.CX7_IB, "400 Gb/sec (4X NDR)")
        machine.ipoib(function, f"ib{position}", device.node_guid, mbps=400_000)
    return machine.capture()


def oci_gb200() -> Capture:
    """Dual-port NICs: two functions each, two cards a NUMA node; GPUs on the processor's own link."""
    machine = Machine(
        "Documentation: DraNet's example for OCI BM.GPU.GB200-v3.4, its text and the ResourceSlices of a "
        "live node (interface, PCI address, root, NUMA node, mlx5_N, MTU and SR-IOV of each NIC; PCI "
        "address and root of each GPU; exclusive RDMA namespaces from Oracle's image notes). nvidia-smi "
        "topo -m says SYS for each pair of them, because it does not follow the processor's own link to "
        "the GPU; by NUMA nodes half of them are near, as the measurements there show. Filled in: "
        "bridges, GPU memory nodes, the front-end card (mlx5_4 is missing in the documented numbering), "
        "addresses.",
        Host("inst-00000-oke-rdma", "6.8.0-1024-oracle", "aarch64", "NVIDIA GB200 NVL"),
        _grace_blackwell_nodes(72),
        rdma_netns_exclusive=True,
    )
    front = machine.function(parts.BF3, "pci0006:00", "00:00.0/01:00.0/02:00.0/03:00.0", 0)
    uplink = machine.nic(front, "eth0", 200_000, mtu=9000, addresses=(Address("192.0.2.30/24"),))
    machine.uplink(uplink, "192.0.2.1")
    machine.rdma(front, "mlx5_4", parts.BF3, "200 Gb/sec (4X HDR)", netdevs=("eth0",))
    _grace_blackwell_gpus(machine, parts.GB200, "NVIDIA GB200")
    names = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8")
    for position, name in enumerate(names):
        domain = (0x0000, 0x0002, 0x0010, 0x0012)[position // 2]
        way = f"00:00.0/01:00.0/02:00.0/03:00.{position % 2}"
        function = machine.function(parts.CX8_ETH, f"pci{domain:04x}:00", way, position // 4)
        addresses = (Address(f"2001:db8:0:{position:x}::1/64"), Address(f"fe80::{position + 1:x}/64", 253))
        machine.nic(function, f"rdma{position}", 400_000, mtu=9000, addresses=addresses)
        machine.rdma(function, name, parts.CX8_ETH, "400 Gb/sec (4X NDR)", netdevs=(f"rdma{position}",))
    return machine.capture()


def _alone(machine: Machine, part: parts.Part, domain: int, numa: int, **more: int) -> PciFunction:
    return machine.function(part, f"pci{domain:04x}:00", "00:00.0", numa, **more)


def _accelerated_networking(
    machine: Machine, part: parts.Part, address: str, ifname: str, rdma: str = ""
) -> None:
    """The synthetic interface, and the virtual function that it hides behind itself (its port)."""
    root = f"pci{address[:7]}"
    vf = machine.function(part, root, address, None)
    eth0 = machine.link(
        "eth0",
        parent_bus="vmbus",
        parent_device=_NETVSC.format(1),
        virtual=False,
        driver="hv_netvsc",
        addresses=(Address("192.0.2.40/24"),),
    )
    machine.uplink(eth0, "192.0.2.1")
    flags = ETHERNET_UP | 0x800  # IFF_SLAVE
    machine.nic(vf, ifname, 100_000, master=eth0.ifindex, mac=eth0.mac, permanent_mac=eth0.mac, flags=flags)
    if rdma:
        machine.rdma(vf, rdma, part, "100 Gb/sec (4X EDR)", netdevs=(ifname,))


def _grace_blackwell_gpus(
    machine: Machine, part: parts.Part, model: str, way: str = "00:00.0/01:00.0/02:00.0/06:00.0"
) -> None:
    for position, domain in enumerate((0x08, 0x09, 0x18, 0x19)):
        gpu = machine.function(part, f"pci{domain:04x}:00", way, position // 2)
        machine.gpu(gpu, model, position)


def _grace_blackwell_nodes(cores: int) -> tuple[NumaNode, ...]:
    """Two processors, and four nodes that are the memory of the GPUs and have no CPUs."""
    distances = {0: (10, 40, 80, 80, 120, 120), 1: (40, 10, 120, 120, 80, 80)}
    processors = (NumaNode(n, f"{n * cores}-{(n + 1) * cores - 1}", distances[n], n) for n in (0, 1))
    memories = (
        NumaNode(node, "", (*((80, 120) if near == 0 else (120, 80)), *(_self_or_far(position))))
        for position, (node, near) in enumerate(((2, 0), (10, 0), (18, 1), (26, 1)))
    )
    return (*processors, *memories)


def _self_or_far(position: int) -> tuple[int, ...]:
    return tuple(10 if other == position else 160 for other in range(4))

"""Bare metal with GPUs."""

from __future__ import annotations

from typing import Any

from dranet.model.capture import Capture
from dranet.model.facts import Address, CharDevice, Gpu, Host, NumaNode, PciFunction
from testbed.node.hardware import Placed, load_hardware
from tests.data import parts
from tests.data.authoring import ETHERNET_UP, Machine, two_sockets

_DOWN = ETHERNET_UP & ~0x10041


def dgx_h100() -> Capture:
    """One NIC beside each GPU below a switch of their own; dual-port storage cards; a node full of pods."""
    machine = Machine(
        "Documentation: NVIDIA's DGX H100 user guide (network modules: which mlx5_N and interface is "
        "beside which GPU, bus numbers through the names of the interfaces, dual-port storage cards, "
        "management port), as in the testbed's own description of that machine. Filled in: bridges and "
        "switch ports, addresses, Ethernet instead of InfiniBand on the cluster ports, and all links of "
        "Kubernetes.",
        Host("dgx-00", "5.15.0-1063-nvidia", "x86_64", "NVIDIA DGXH100"),
        two_sockets(("0-55,112-167", "56-111,168-223")),
    )
    for placed in load_hardware("dgx-h100").placed():
        _dgx_function(machine, placed)
    _second_port(machine, 0x29, "mlx5_2", "enp41s0f1np1")
    _second_port(machine, 0xAA, "mlx5_8", "enp170s0f1np1")
    _kubernetes_links(machine)
    return machine.capture()


def _second_port(machine: Machine, bus: int, name: str, ifname: str) -> None:
    """Of a storage card; nothing is plugged in."""
    root = bus - 3
    way = f"{root:02x}:05.0/{bus:02x}:00.1"
    function = machine.function(parts.CX7_ETH, f"pci0000:{root:02x}", way, int(bus > 0x80))
    machine.nic(function, ifname, flags=_DOWN, operstate="down", carrier=False)
    port: dict[str, Any] = {"state": "DOWN", "phys_state": "Disabled", "netdevs": (ifname,)}
    machine.rdma(function, name, parts.CX7_ETH, "40 Gb/sec (4X QDR)", **port)


_DGX_PARTS = {
    "h100": parts.H100,
    "connectx7": parts.CX7_ETH,
    "x550": parts.X550,
    "bmc-vga": parts.BMC_VGA,
    "nvswitch": parts.NVSWITCH,
}


def _dgx_function(machine: Machine, placed: Placed) -> None:
    part = _DGX_PARTS.get(placed.function.part)
    if part is None:
        return
    function = machine.function(part, placed.root, "/".join(placed.path), placed.numa_node)
    if placed.function.gpu:
        machine.gpu(function, "NVIDIA H100 80GB HBM3", placed.function.gpu.minor)
    nic = placed.function.nic
    if nic and not nic.rdma:
        machine.uplink(
            machine.nic(function, nic.ifname, 10_000, addresses=(Address("192.0.2.10/24"),)), "192.0.2.1"
        )
    elif nic:
        number = len(machine.rdma_devices)
        address = Address(f"198.51.100.{10 + number * 16}/28")
        machine.nic(function, nic.ifname, 400_000, mtu=9000, queues=63, addresses=(address,))
        machine.rdma(function, nic.rdma, part, "400 Gb/sec (4X NDR)", netdevs=(nic.ifname,))


def _kubernetes_links(machine: Machine) -> None:
    cni0 = machine.link("cni0", kind="bridge", addresses=(Address("203.0.113.1/25"),))
    machine.link(
        "flannel.1", kind="vxlan", mtu=1450, operstate="unknown", addresses=(Address("203.0.113.0/32"),)
    )
    services = tuple(Address(f"203.0.113.{200 + n}/32") for n in range(4))
    machine.link("kube-ipvs0", kind="dummy", flags=0x82, operstate="down", carrier=False, addresses=services)
    machine.link(
        "nodelocaldns", kind="dummy", flags=0x82, operstate="down", addresses=(Address("169.254.20.10/32"),)
    )
    for number in range(3):
        machine.link(f"veth0000000{number}", kind="veth", lower=2, link_netnsid=number, master=cni0.ifindex)
    cilium = machine.link("cilium_host", kind="veth", mtu=9000)
    machine.link("cilium_net", kind="veth", mtu=9000, lower=cilium.ifindex)


_A100_GROUPS = (
    # root, NUMA node, GPUs, NICs; in the order of their buses
    (0x00, 3, (0x07, 0x0F), (0x0C, 0x12)),
    (0x40, 1, (0x47, 0x4E), (0x4B, 0x54)),
    (0x80, 7, (0x87, 0x90), (0x8D, 0x94)),
    (0xB0, 5, (0xB7, 0xBD), (0xBA, 0xCC)),
)


def dgx_a100() -> Capture:
    """Two GPUs and two NICs below one root, each behind switches of its own; eight NUMA nodes."""
    machine = Machine(
        "Documentation: nvidia-smi topo -m of two DGX A100 in public bug reports (NVIDIA/DCGM issue 149, "
        "NVIDIA/nccl issue 1505: two GPUs and two NICs are PXB, everything else SYS; CPUs and NUMA nodes), "
        "the topology that NCCL saw on the second (three levels of switches above a GPU, two above a NIC; "
        "ids and speeds), NVIDIA's DGX A100 user guide (parts, buses through the names of the interfaces). "
        "Filled in: bus numbers of bridges, NUMA nodes of the storage cards, addresses, link layer.",
        Host("a100-00", "5.15.0-1063-nvidia", "x86_64", "NVIDIA DGXA100"),
        _eight_numa_nodes(),
    )
    board = machine.function(parts.I210, "pci0000:e0", "e0:03.0/e2:00.0", 4)
    machine.uplink(machine.nic(board, "enp226s0", 1_000, addresses=(Address("192.0.2.15/24"),)), "192.0.2.1")
    for group, (root, numa, gpus, nics) in enumerate(_A100_GROUPS):
        top = f"{root:02x}:01.1/{root + 1:02x}:00.0/{root + 2:02x}"
        shared = f"{top}:04.0/{nics[0] - 2:02x}:00.0/{nics[0] - 1:02x}"
        gpu_ways = (f"{top}:00.0/{root + 3:02x}:00.0/{root + 4:02x}:10.0", f"{shared}:10.0")
        nic_ways = (f"{shared}:00.0", f"{top}:08.0/{nics[1] - 2:02x}:00.0/{nics[1] - 1:02x}:00.0")
        for number, (bus, way) in enumerate(zip(gpus, gpu_ways, strict=True)):
            path = f"{way}/{bus - 2:02x}:00.0/{bus - 1:02x}:00.0/{bus:02x}:00.0"
            gpu = machine.function(parts.A100, f"pci0000:{root:02x}", path, numa)
            machine.gpu(gpu, "NVIDIA A100-SXM4-40GB", group * 2 + number)
        for bus, way in zip(nics, nic_ways, strict=True):
            nic = machine.function(parts.CX6_ETH, f"pci0000:{root:02x}", f"{way}/{bus:02x}:00.0", numa)
            _a100_nic(machine, nic, f"enp{bus}s0")
        if group % 2:
            _a100_storage(machine, root=root // 0x80 * 0x80 + 0x60, numa=group // 2 * 4)
    return machine.capture()


def _a100_nic(machine: Machine, function: PciFunction, ifname: str) -> None:
    number = len(machine.rdma_devices)
    address = Address(f"198.51.100.{10 + number * 16}/28")
    machine.nic(function, ifname, 200_000, mtu=9000, queues=63, addresses=(address,))
    machine.rdma(function, f"mlx5_{number}", parts.CX6_ETH, "200 Gb/sec (4X HDR)", netdevs=(ifname,))


def _a100_storage(machine: Machine, root: int, numa: int) -> None:
    """A dual-port card beside no GPU."""
    for port in range(2):
        way = f"{root:02x}:01.0/{root + 1:02x}:00.{port}"
        function = machine.function(parts.CX6_ETH, f"pci0000:{root:02x}", way, numa)
        _a100_nic(machine, function, f"enp{root + 1}s0f{port}")


def _eight_numa_nodes() -> tuple[NumaNode, ...]:
    """Two sockets of four nodes."""
    return tuple(
        NumaNode(
            node,
            f"{node * 16}-{node * 16 + 15},{node * 16 + 128}-{node * 16 + 143}",
            tuple(10 if node == m else 12 if node // 4 == m // 4 else 32 for m in range(8)),
            node // 4,
        )
        for node in range(8)
    )


def hgx_b200() -> Capture:
    """Four NUMA nodes on two sockets: a socket that is split in two has two NICs and GPUs a node."""
    machine = Machine(
        "Documentation: nvidia-smi topo -m of an 8-GPU B200 machine with nine NICs in a public bug report "
        "(unslothai/unsloth issue 3872): NIC n and GPU n are PIX, two of each a NUMA node, four NUMA "
        "nodes with CPUs 0-27, 28-55, 56-83 and 84-111; NIC8 on node 0 beside no GPU; NVIDIA's DGX B200 "
        "user guide (parts). Filled in: PCI addresses, bridges, names of interfaces, addresses, Ethernet "
        "as link layer.",
        Host("b200-00", "6.8.0-60-generic", "x86_64", "NVIDIA HGX B200"),
        _split_sockets(),
    )
    vga = "00:1c.0/02:00.0"
    machine.function(parts.BMC_VGA, "pci0000:00", vga, 0)
    front = machine.function(parts.BF3, "pci0000:26", "26:01.0/27:00.0", 0)
    uplink = machine.nic(front, "enp39s0f0np0", 200_000, addresses=(Address("192.0.2.50/24"),))
    machine.uplink(uplink, "192.0.2.1")
    machine.rdma(front, "mlx5_8", parts.BF3, "200 Gb/sec (4X HDR)", netdevs=("enp39s0f0np0",))
    for number, root in enumerate((0x15, 0x37, 0x48, 0x59, 0x97, 0xB7, 0xC7, 0xD7)):
        switch = f"{root:02x}:01.0/{root + 1:02x}:00.0/{root + 2:02x}"
        numa = number // 2
        nic = machine.function(
            parts.CX7_ETH, f"pci0000:{root:02x}", f"{switch}:00.0/{root + 3:02x}:00.0", numa
        )
        ifname = f"enp{root + 3}s0np0"
        address = Address(f"2001:db8:0:{number:x}::10/64")
        machine.nic(nic, ifname, 400_000, mtu=9000, queues=63, addresses=(address,))
        machine.rdma(nic, f"mlx5_{number}", parts.CX7_ETH, "400 Gb/sec (4X NDR)", netdevs=(ifname,))
        gpu = machine.function(parts.B200, f"pci0000:{root:02x}", f"{switch}:02.0/{root + 6:02x}:00.0", numa)
        machine.gpu(gpu, "NVIDIA B200", number)
    return machine.capture()


def _split_sockets() -> tuple[NumaNode, ...]:
    """Two sockets of two NUMA nodes each; the other half of the own socket is nearer than the other one."""
    return tuple(
        NumaNode(
            node,
            f"{node * 28}-{node * 28 + 27}",
            tuple(_split_distance(node, m) for m in range(4)),
            node // 2,
        )
        for node in range(4)
    )


def _split_distance(a: int, b: int) -> int:
    if a == b:
        return 10
    return 12 if a // 2 == b // 2 else 21


_MI300X_WAYS = (
    ("00:01.1/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0", "00:01.1/01:00.0/02:01.0/09:00.0", "enp9s0np0"),
    ("18:01.1/19:00.0/1a:04.0/29:00.0/2a:00.0/2b:00.0", "18:01.1/19:00.0/1a:03.0/23:00.0", "enp35s0np0"),
    ("48:01.1/49:00.0/4a:04.0/59:00.0/5a:00.0/5b:00.0", "48:01.1/49:00.0/4a:03.0/53:00.0", "enp83s0np0"),
    ("60:01.1/61:00.0/62:00.0/63:00.0/64:00.0/65:00.0", "60:01.1/61:00.0/62:01.0/69:00.0", "enp105s0np0"),
    ("78:01.1/79:00.0/7a:00.0/7b:00.0/7c:00.0/7d:00.0", "78:01.1/79:00.0/7a:05.0/8f:00.0", "enp143s0np0"),
    ("98:01.1/99:00.0/9a:03.0/a3:00.0/a4:00.0/a5:00.0", "98:01.1/99:00.0/9a:01.0/9c:00.0", "enp156s0np0"),
    ("c8:01.1/c9:00.0/ca:03.0/d3:00.0/d4:00.0/d5:00.0", "c8:01.1/c9:00.0/ca:02.0/cd:00.0", "enp205s0np0"),
    ("e0:01.1/e1:00.0/e2:02.0/e5:00.0/e6:00.0/e7:00.0", "e0:01.1/e1:00.0/e2:04.0/f1:00.0", "enp241s0np0"),
)
"""Of each GPU and the NIC beside it, as lspci -PP prints it."""


def mi300x() -> Capture:
    """Accelerators of class 0x1200, two bridges deep inside their own package."""
    machine = Machine(
        "Documentation: AMD's system acceptance guide, page on mapping NICs to GPUs (lspci -PP of eight "
        "MI300X and of eight ConnectX-7 in one machine, its table of which NIC is beside which GPU and "
        "processor, the names of the interfaces, and the front-end NIC ens99f0np0 at b9:00.0). Filled in: "
        "roots, the order of mlx5_N, addresses, speeds, DRM numbers.",
        Host("mi300x-00", "6.8.0-60-generic", "x86_64", "AMD MI300X platform"),
        two_sockets(("0-95,192-287", "96-191,288-383"), 32),
    )
    machine.function(parts.BMC_VGA, "pci0000:30", "30:05.2/31:00.0/32:00.0", 0)
    front = machine.function(parts.CX7_ETH, "pci0000:b0", "b0:03.1/b9:00.0", 1)
    uplink = machine.nic(front, "ens99f0np0", 200_000, addresses=(Address("192.0.2.60/24"),))
    machine.uplink(uplink, "192.0.2.1")
    machine.rdma(front, "mlx5_8", parts.CX7_ETH, "200 Gb/sec (4X HDR)", netdevs=("ens99f0np0",))
    for number, (gpu_way, nic_way, ifname) in enumerate(_MI300X_WAYS):
        root = f"pci0000:{gpu_way[:2]}"
        gpu = machine.function(parts.MI300X, root, gpu_way, number // 4)
        nodes = (
            CharDevice("/dev/kfd", 510, 0),
            CharDevice(f"/dev/dri/renderD{128 + 8 * number}", 226, 128 + 8 * number),
        )
        machine.gpus.append(Gpu(gpu.address, "amd", "AMD Instinct MI300X OAM", f"{number + 1:016x}", nodes))
        nic = machine.function(parts.CX7_ETH, root, nic_way, number // 4)
        address = Address(f"198.51.100.{10 + number * 16}/28")
        machine.nic(nic, ifname, 400_000, mtu=9000, addresses=(address,))
        machine.rdma(nic, f"mlx5_{number}", parts.CX7_ETH, "400 Gb/sec (4X NDR)", netdevs=(ifname,))
    return machine.capture()

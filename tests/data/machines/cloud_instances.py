"""Instances whose attributes come from a cloud, for ``tests/providers/cloud``.

Each names the machine of ``tests/data/cloud`` that it is. Where public documentation does not give a PCI
address, the pattern of the baseboard is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dranet.model.facts import Address, Host, NodeFacts
from tests.data import parts
from tests.data.authoring import Machine, two_sockets
from tests.data.layouts import read_layout
from tests.providers.cloud.machines import read_machine

_CPUS = ("0-51,104-155", "52-103,156-207")
_HOST = Host("node-0", "6.12.0", "x86_64", "cloud instance")


def _list_macs(name: str) -> Sequence[str]:
    return list(read_machine(name).interfaces)


def _add_gpus(machine: Machine, part: parts.Part, model: str) -> None:
    for position in range(8):
        bus = 0x04 + 6 * (position // 2) + position % 2 + (0x68 if position >= 4 else 0)
        root = f"pci0000:{bus - position % 2 - 3:02x}"
        function = machine.function(part, root, f"{bus - 3:02x}:01.0/{bus:02x}:00.0", position // 4)
        machine.gpu(function, model, position)


def gce_a3_mega() -> NodeFacts:
    """Two GPUs and two gVNICs below each switch (the order of Google's guide for GPUDirect-TCPXO)."""
    machine = Machine("Documentation, see tests/data/cloud", _HOST, two_sockets(_CPUS))
    first, *macs = _list_macs("gce-a3-megagpu-8g")
    host = machine.function(parts.GVNIC, "pci0000:00", "00:0b.0", 0)
    machine.uplink(machine.nic(host, "eth0", mac=first, addresses=(Address("10.128.0.70/24"),)), "10.128.0.1")
    _add_gpus(machine, parts.H100, "NVIDIA H100 80GB HBM3")
    for position, mac in enumerate(macs):
        bus = 0x06 + 6 * (position // 2) + position % 2 + (0x68 if position >= 4 else 0)
        root = f"pci0000:{bus - position % 2 - 5:02x}"
        nic = machine.function(parts.GVNIC, root, f"{bus - 5:02x}:02.0/{bus:02x}:00.0", position // 4)
        machine.nic(nic, f"eth{position + 1}", 200_000, mtu=8244, mac=mac)
    return machine.capture().facts


def _gce_rdma(name: str, gpu: parts.Part, model: str) -> NodeFacts:
    """Two gVNICs for the host, and a virtual function of a ConnectX-7 for each GPU."""
    machine = Machine("Documentation, see tests/data/cloud", _HOST, two_sockets(_CPUS))
    first, second, *macs = _list_macs(name)
    host = machine.function(parts.GVNIC, "pci0000:00", "00:0b.0", 0)
    machine.uplink(machine.nic(host, "eth0", mac=first, addresses=(Address("10.128.0.70/24"),)), "10.128.0.1")
    machine.nic(machine.function(parts.GVNIC, "pci0000:80", "80:0b.0", 1), "eth1", mac=second)
    _add_gpus(machine, gpu, model)
    for position, mac in enumerate(macs):
        bus = 0x06 + 6 * (position // 2) + position % 2 + (0x68 if position >= 4 else 0)
        root = f"pci0000:{bus - position % 2 - 5:02x}"
        nic = machine.function(parts.CX_VF_ETH, root, f"{bus - 5:02x}:02.0/{bus:02x}:00.0", position // 4)
        ifname = f"gpu{position}rdma0"
        machine.nic(nic, ifname, 400_000, mtu=8896, mac=mac)
        machine.rdma(nic, f"mlx5_{position}", parts.CX_VF_ETH, "400 Gb/sec (4X NDR)", netdevs=(ifname,))
    return machine.capture().facts


def gce_a3_ultra() -> NodeFacts:
    return _gce_rdma("gce-a3-ultragpu-8g", parts.H100, "NVIDIA H200")


def gce_a4() -> NodeFacts:
    return _gce_rdma("gce-a4-highgpu-8g", parts.B200, "NVIDIA B200")


def aws_p6_b200() -> NodeFacts:
    """One EFA of 400 Gbit/s for each GPU."""
    machine = Machine("Documentation, see tests/data/cloud", _HOST, two_sockets(_CPUS))
    ena = machine.function(parts.ENA, "pci0000:43", "43:00.0/44:00.0", 0)
    mac = _list_macs("aws-p6-b200-48xlarge")[0]
    machine.uplink(machine.nic(ena, "enp68s0", mac=mac, addresses=(Address("192.0.2.20/24"),)), "192.0.2.1")
    for group in range(8):
        root = 0x50 + 0x10 * group
        way, numa = f"{root:02x}:00.0/{root + 1:02x}:00.0", group // 4
        efa = machine.function(parts.EFA, f"pci0000:{root:02x}", f"{way}/{root + 2:02x}:00.0", numa)
        none: dict[str, Any] = {
            "link_layer": "Unknown",
            "lid": 0,
            "gid_types": (),
            "node_type": "unspecified",
        }
        machine.rdma(efa, f"rdmap{root + 2}s0", parts.EFA, "400 Gb/sec (4X NDR)", **none)
        gpu = machine.function(parts.B200, f"pci0000:{root:02x}", f"{way}/{root + 3:02x}:00.0", numa)
        machine.gpu(gpu, "NVIDIA B200", group)
    return machine.capture().facts


def oci_h100() -> NodeFacts:
    """Eight dual-port ConnectX-7, by the PCI addresses of Oracle's list of RDMA interfaces of the shape."""
    machine = Machine("Documentation, see tests/data/cloud", _HOST, two_sockets(_CPUS))
    front = machine.function(parts.BF3, "pci0000:30", "30:01.0/31:00.0", 0)
    machine.uplink(machine.nic(front, "eth0", addresses=(Address("192.0.2.30/24"),)), "192.0.2.1")
    for card, bus in enumerate((0x0C, 0x2A, 0x41, 0x58, 0x86, 0xA5, 0xBD, 0xD5)):
        root, numa = f"pci0000:{bus - 4:02x}", card // 4
        gpu = machine.function(parts.H100, root, f"{bus - 4:02x}:01.0/{bus + 3:02x}:00.0", numa)
        machine.gpu(gpu, "NVIDIA H100 80GB HBM3", card)
        for port in range(2):
            nic = machine.function(parts.CX7_ETH, root, f"{bus - 4:02x}:02.0/{bus:02x}:00.{port}", numa)
            number = 2 * card + port
            machine.nic(nic, f"rdma{number}", 200_000, mtu=4220)
            machine.rdma(
                nic, f"mlx5_{number}", parts.CX7_ETH, "200 Gb/sec (4X HDR)", netdevs=(f"rdma{number}",)
            )
    return machine.capture().facts


def alibaba_erdma() -> NodeFacts:
    """An elastic RDMA function for each elastic network interface."""
    machine = Machine("Documentation, see tests/data/cloud", _HOST, two_sockets(_CPUS))
    for position, mac in enumerate(_list_macs("alibaba-ebmgn8v")):
        nic = machine.function(parts.VIRTIO, "pci0000:00", f"00:{5 + position:02x}.0", 0)
        addresses = (Address(f"10.{position}.0.5/24"),)
        link = machine.nic(nic, f"eth{position}", mac=mac, addresses=addresses)
        if position == 0:
            machine.uplink(link, "10.0.0.1")
        erdma = machine.function(parts.ERDMA, "pci0000:00", f"00:{10 + position:02x}.0", 0)
        machine.rdma(erdma, f"erdma_{position}", parts.ERDMA, "100 Gb/sec (4X EDR)", netdevs=(link.ifname,))
    return machine.capture().facts


INSTANCES: Mapping[str, Callable[[], NodeFacts]] = {
    "aws-p5-48xlarge": lambda: read_layout("aws-p5").facts,
    "aws-p6-b200-48xlarge": aws_p6_b200,
    "aws-p6e-gb200-36xlarge": lambda: read_layout("gb200-nvl72").facts,
    "gce-a3-megagpu-8g": gce_a3_mega,
    "gce-a3-ultragpu-8g": gce_a3_ultra,
    "gce-a4-highgpu-8g": gce_a4,
    "azure-nd-h100-v5": lambda: read_layout("azure-nd-h100-v5").facts,
    "azure-nd-gb300-v6": lambda: read_layout("azure-gb300").facts,
    "oke-bm-gpu-h100-8": oci_h100,
    "oke-bm-gpu-gb200-4": lambda: read_layout("oci-gb200").facts,
    "alibaba-ebmgn8v": alibaba_erdma,
}
"""Facts of the kernel, by machine of ``tests/data/cloud``. A p6e-gb200 is a tray of NVIDIA's here,
because the PCI addresses of its EFA are not published."""

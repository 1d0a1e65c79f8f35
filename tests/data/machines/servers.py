"""Bare metal for other purposes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dranet.model.capture import Capture
from dranet.model.facts import Address, Host
from tests.data import parts
from tests.data.authoring import ETHERNET_UP, Machine, two_sockets


def infiniband_only() -> Capture:
    """No Ethernet at all: the node lives on IPoIB, some adapters have no interface, one has virtual "
    "functions."""
    machine = Machine(
        "Documentation: ibdev2netdev of an H100 machine on a pure InfiniBand fabric in a public bug "
        "report (imbue-ai/cluster-health issue 4: bus numbers and mlx5_N of the eight ConnectX-7), with "
        "its Ethernet cards left out. Filled in: GPUs beside the adapters, bridges, IPoIB as the node's "
        "only network, a partition interface, adapters without IPoIB, a port that is down, a ConnectX-6 "
        "with virtual functions.",
        Host("ib-00", "5.14.0-427.el9.x86_64", "x86_64", "Maker H100 server"),
        two_sockets(("0-47", "48-95")),
    )
    for number, (bus, name) in enumerate(_INFINIBAND_BUSES):
        _adapter_beside_gpu(machine, number, bus, name)
    parent = next(link for link in machine.links if link.ifname == "ibp60s0")
    partition = replace(parent, ifindex=len(machine.links) + 1, ifname="ibp60s0.8001", kind="ipoib")
    machine.links.append(replace(partition, lower=parent.ifindex, addresses=(Address("198.51.100.135/25"),)))
    _infiniband_functions(machine)
    return machine.capture()


_INFINIBAND_BUSES = (
    (26, "mlx5_0"),
    (60, "mlx5_3"),
    (77, "mlx5_4"),
    (94, "mlx5_5"),
    (156, "mlx5_6"),
    (188, "mlx5_9"),
    (204, "mlx5_10"),
    (220, "mlx5_11"),
)


def _adapter_beside_gpu(machine: Machine, number: int, bus: int, name: str) -> None:
    root, switch = f"pci0000:{bus - 5:02x}", f"{bus - 5:02x}:01.0/{bus - 4:02x}:00.0/{bus - 3:02x}"
    numa = number // 4
    nic = machine.function(parts.CX7_IB, root, f"{switch}:00.0/{bus:02x}:00.0", numa)
    gpu = machine.function(parts.H100, root, f"{switch}:02.0/{bus + 1:02x}:00.0", numa)
    machine.gpu(gpu, "NVIDIA H100 80GB HBM3", number)
    if bus == 220:
        port: dict[str, Any] = {"state": "DOWN", "phys_state": "Polling", "lid": 0xFFFF}
        device = machine.rdma(nic, name, parts.CX7_IB, "10 Gb/sec (4X SDR)", **port)
        machine.ipoib(nic, f"ibp{bus}s0", device.node_guid, carrier=False, operstate="down")
        return
    device = machine.rdma(nic, name, parts.CX7_IB, "400 Gb/sec (4X NDR)", pkeys=("0xffff", "0x8001"))
    if bus == 26:
        address = Address("192.0.2.70/24")
        uplink = machine.ipoib(nic, "ibp26s0", device.node_guid, mbps=400_000, addresses=(address,))
        machine.uplink(uplink, "192.0.2.1")
    elif bus == 60:
        address = Address("198.51.100.7/25")
        machine.ipoib(nic, "ibp60s0", device.node_guid, mbps=400_000, addresses=(address,))


def _infiniband_functions(machine: Machine) -> None:
    root, port = "pci0000:e2", "e2:03.0"
    physical = machine.function(parts.CX6_IB, root, f"{port}/e3:00.0", 1, sriov_num_vfs=2)
    machine.rdma(physical, "mlx5_12", parts.CX6_IB, "200 Gb/sec (4X HDR)")
    for index in range(2):
        virtual = machine.function(
            parts.CX_VF_IB,
            root,
            f"{port}/e3:00.{index + 1}",
            1,
            physical_function=physical.address,
            virtual_function_index=index,
        )
        machine.rdma(virtual, f"mlx5_{13 + index}", parts.CX_VF_IB, "200 Gb/sec (4X HDR)")


def plain_server() -> Capture:
    """No GPU and no NUMA: a bond that carries all, VLANs, bridges, Open vSwitch, SR-IOV."""
    machine = Machine(
        "Made up from the kernel's and the projects' documentation of what such links look like: bonding "
        "(uplink of two X710 ports, its VLANs 100 and 200), bridges, Open vSwitch (ports have ovs-system "
        "as master), SR-IOV (an E810 with four virtual functions: two with interfaces, one bound to "
        "vfio-pci, one without driver), Docker, libvirt, and links that a pod may have. The platform does "
        "not say NUMA nodes.",
        Host("plain-00", "6.12.0-1-amd64", "x86_64", "Maker Plain server"),
    )
    ports = [machine.function(parts.X710, "pci0000:00", f"00:01.0/01:00.{n}", None) for n in range(2)]
    bond = machine.link("bond0", kind="bond", driver="bonding", speed_mbps=20_000, duplex="full")
    for number, port in enumerate(ports):
        machine.nic(
            port, f"enp1s0f{number}", 10_000, master=bond.ifindex, mac=bond.mac, flags=ETHERNET_UP | 0x800
        )
    on_bond = {"kind": "vlan", "mac": bond.mac, "lower": bond.ifindex}
    address = Address("192.0.2.80/24")
    uplink = machine.link("bond0.100", **on_bond, vlan_id=100, addresses=(address,))
    machine.uplink(uplink, "192.0.2.1")
    bridge = machine.link("br0", kind="bridge", addresses=(Address("198.51.100.1/24"),))
    machine.link("bond0.200", **on_bond, vlan_id=200, master=bridge.ifindex)
    switch = machine.link("ovs-system", kind="openvswitch", flags=0x1002, operstate="down", carrier=False)
    machine.link("br-int", kind="openvswitch", operstate="unknown")
    for number in range(2):
        port = machine.function(parts.X550, "pci0000:00", f"00:02.0/02:00.{number}", None)
        machine.nic(port, f"enp2s0f{number}", 10_000, master=switch.ifindex if number == 0 else None)
    _virtual_functions(machine)
    _small_links(machine)
    return machine.capture()


def _virtual_functions(machine: Machine) -> None:
    physical = machine.function(parts.E810, "pci0000:40", "40:03.0/41:00.0", None, sriov_num_vfs=4)
    machine.nic(physical, "ens3f0", 25_000, queues=16)
    for index, driver in enumerate(("iavf", "iavf", "vfio-pci", "")):
        virtual = machine.function(
            parts.E810_VF,
            "pci0000:40",
            f"40:03.0/41:01.{index}",
            None,
            driver=driver,
            physical_function=physical.address,
            virtual_function_index=index,
        )
        if driver == "iavf":
            machine.nic(virtual, f"ens3f0v{index}", 25_000)


def _small_links(machine: Machine) -> None:
    spare = next(link for link in machine.links if link.ifname == "enp2s0f1")
    machine.link(
        "docker0", kind="bridge", operstate="down", carrier=False, addresses=(Address("203.0.113.1/24"),)
    )
    machine.link("virbr0", kind="bridge", operstate="down", carrier=False)
    machine.link("dummy0", kind="dummy", operstate="unknown", alias="for tests")
    machine.link("macvlan0", kind="macvlan", lower=spare.ifindex)
    machine.link("wg0", kind="wireguard", mac="", arp_type=65534, flags=0x10091, operstate="unknown")
    machine.link("tun0", kind="tun", mac="", arp_type=65534, flags=0x1091, operstate="unknown")

"""A small node for the tests of the command line: one GPU beside one NIC, an uplink, a card with virtual
functions on the other socket, and two links that software made."""

from __future__ import annotations

from msgspec.structs import replace

from dranet.model.facts import (
    Address,
    CharDevice,
    Gpu,
    Host,
    Link,
    NodeFacts,
    NumaNode,
    PciFunction,
    RdmaDevice,
    RdmaPort,
    Route,
)

_SWITCH = ("0000:20:01.0", "0000:21:00.0")
_UP = 0x1


def pci(address: str, root: str, *above: str, numa: int | None = 0) -> PciFunction:
    return PciFunction(
        address,
        0x020000,
        0x15B3,
        0x1021,
        driver="mlx5_core",
        numa_node=numa,
        root=root,
        path=(*above, address),
        vendor_name="Mellanox Technologies",
        device_name="MT2910 Family [ConnectX-7]",
    )


def nic(ifindex: int, ifname: str, address: str) -> Link:
    return Link(
        ifindex,
        ifname,
        mac=f"02:00:00:00:00:{ifindex:02x}",
        mtu=1500,
        flags=_UP,
        operstate="up",
        carrier=True,
        parent_bus="pci",
        parent_device=address,
        pci_address=address,
        addresses=(Address(f"10.0.0.{ifindex}/24"), Address(f"fe80::{ifindex}/64", scope=253)),
        speed_mbps=400_000,
    )


RAIL = "0000:23:00.0"
GPU = "0000:24:00.0"
UPLINK = "0000:01:00.0"
CARD = "0000:81:00.0"
VF = "0000:81:00.2"

_NODES = CharDevice("/dev/nvidia0", 195, 0), CharDevice("/dev/nvidia-uvm", 508, 0)

SMALL = NodeFacts(
    links=(
        Link(1, "lo", mac="00:00:00:00:00:00", flags=0x9, arp_type=772, virtual=True),
        replace(nic(2, "eno1", UPLINK), speed_mbps=1000),
        nic(3, "rail0", RAIL),
        nic(4, "ens1f0", CARD),
        replace(nic(5, "ens1f0v0", VF), operstate="down", carrier=False, speed_mbps=None),
        Link(6, "dummy0", kind="dummy", mac="02:00:00:00:00:06", mtu=1500, virtual=True),
    ),
    pci_functions=(
        replace(
            pci(UPLINK, "pci0000:00", "0000:00:1c.0"),
            vendor_id=0x8086,
            device_id=0x1563,
            vendor_name="",
            device_name="",
        ),
        pci(RAIL, "pci0000:20", *_SWITCH, "0000:22:00.0"),
        replace(pci(GPU, "pci0000:20", *_SWITCH, "0000:22:01.0"), class_code=0x030200, driver="nvidia"),
        replace(pci(CARD, "pci0000:80", "0000:80:01.0", numa=1), sriov_total_vfs=8, sriov_num_vfs=1),
        replace(
            pci(VF, "pci0000:80", "0000:80:01.0", numa=1), physical_function=CARD, virtual_function_index=0
        ),
    ),
    rdma_devices=(
        RdmaDevice(
            "mlx5_0",
            pci_address=RAIL,
            ports=(RdmaPort(1, "ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)", ("rail0",)),),
        ),
    ),
    gpus=(Gpu(GPU, "nvidia", "NVIDIA H100 80GB HBM3", char_devices=_NODES),),
    default_routes=(Route("0.0.0.0/0", gateway="10.0.0.254", ifindex=2),),
    numa_nodes=(NumaNode(0, "0-3", (10, 21)), NumaNode(1, "4-7", (21, 10))),
    host=Host("node-1", product="ACME Box 9000"),
)

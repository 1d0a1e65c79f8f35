"""How a machine is described for ``tests/data``: parts, a PCIe tree, links. The result is a capture.

A test aid. The captures are what is tested; a description only makes one short enough to be checked against
the documentation that it was taken from. Serial-like values are locally administered (``02:00:00``) or made
for documentation, and come from counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from dranet.model.capture import Capture
from dranet.model.facts import (
    Address,
    CharDevice,
    Gpu,
    Host,
    Link,
    NodeFacts,
    NumaNode,
    PciFunction,
    ProtectedLink,
    RdmaDevice,
    RdmaPort,
    Route,
    RoutingRule,
)
from tests.data.parts import Part

UP, RUNNING, LOOPBACK, BROADCAST, MULTICAST, NO_ARP = 0x1, 0x40, 0x8, 0x2, 0x1000, 0x80
ETHERNET_UP = UP | RUNNING | BROADCAST | MULTICAST | 0x10000

UVERBS_MAJOR, UVERBS_FIRST_MINOR = 231, 192
RDMA_CM = CharDevice("/dev/infiniband/rdma_cm", 10, 122)


@dataclass
class Machine:
    """Collects the facts of one machine; ``capture`` sorts them as a scan does."""

    source: str
    host: Host
    numa_nodes: tuple[NumaNode, ...] = ()
    rdma_netns_exclusive: bool = False
    links: list[Link] = field(default_factory=list)
    functions: list[PciFunction] = field(default_factory=list)
    rdma_devices: list[RdmaDevice] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    rules: list[RoutingRule] = field(default_factory=list)
    policy_routes: list[Route] = field(default_factory=list)
    protected_links: list[ProtectedLink] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _macs: int = 0
    _guids: int = 0

    def __post_init__(self) -> None:
        self.link(
            "lo",
            mac="00:00:00:00:00:00",
            mtu=65536,
            flags=UP | LOOPBACK | RUNNING,
            operstate="unknown",
            arp_type=772,
            addresses=(Address("127.0.0.1/8", 254, 128, "lo"), Address("::1/128", 254, 128)),
        )

    def capture(self) -> Capture:
        facts = NodeFacts(
            links=tuple(self.links),
            pci_functions=tuple(sorted(self.functions, key=lambda function: function.address)),
            rdma_devices=tuple(sorted(self.rdma_devices, key=lambda device: device.name)),
            gpus=tuple(sorted(self.gpus, key=lambda gpu: gpu.pci_address)),
            default_routes=tuple(self.routes),
            rules=tuple(self.rules),
            policy_routes=tuple(self.policy_routes),
            protected_links=tuple(self.protected_links),
            numa_nodes=self.numa_nodes,
            host=self.host,
            rdma_netns_exclusive=self.rdma_netns_exclusive,
            warnings=tuple(self.warnings),
        )
        return Capture(facts, self.source)

    def function(self, part: Part, root: str, path: str, numa: int | None, **more: Any) -> PciFunction:
        """A function at the end of ``path``: ``00:01.1/01:00.0``, in the domain of the root."""
        domain = root.removeprefix("pci").split(":")[0]
        steps = tuple(step if step.count(":") == 2 else f"{domain}:{step}" for step in path.split("/"))
        function = PciFunction(
            address=steps[-1],
            class_code=part.class_code,
            vendor_id=part.id[0],
            device_id=part.id[1],
            subsystem_vendor_id=part.subsystem[0],
            subsystem_device_id=part.subsystem[1],
            driver=part.driver,
            numa_node=numa,
            root=root,
            path=steps,
            sriov_total_vfs=part.total_vfs,
            link_speed=part.speed,
            link_width=part.width,
            max_link_speed=part.speed,
            max_link_width=part.width,
            vendor_name=part.vendor_name,
            device_name=part.device_name,
        )
        function = replace(function, **more)
        self.functions.append(function)
        return function

    def gpu(self, function: PciFunction, model: str, minor: int) -> None:
        """An NVIDIA GPU with its driver loaded."""
        nodes = (
            CharDevice(f"/dev/nvidia{minor}", 195, minor),
            CharDevice("/dev/nvidiactl", 195, 255),
            CharDevice("/dev/nvidia-uvm", 509, 0),
            CharDevice("/dev/nvidia-uvm-tools", 509, 1),
        )
        uuid = f"GPU-00000000-0000-4000-8000-{minor:012x}"
        self.gpus.append(Gpu(function.address, "nvidia", model, uuid, nodes))

    def link(self, ifname: str, **more: Any) -> Link:
        """A link that is up and running; software unless ``nic`` made it."""
        known: dict[str, Any] = {
            "ifindex": len(self.links) + 1,
            "mtu": 1500,
            "flags": ETHERNET_UP,
            "operstate": "up",
            "carrier": True,
            "tx_queue_length": 1000,
            "virtual": True,
            "tc_filters": (),
            "tcx_programs": (),
        }
        link = Link(ifname=ifname, **({"mac": self._mac()} | known | more))
        self.links.append(link)
        return link

    def nic(self, function: PciFunction, ifname: str, mbps: int | None = None, **more: Any) -> Link:
        """The Ethernet interface of a function."""
        mac = self._mac()
        known: dict[str, Any] = {
            "mac": mac,
            "permanent_mac": mac,
            "parent_bus": "pci",
            "parent_device": function.address,
            "pci_address": function.address,
            "virtual": False,
            "driver": function.driver,
            "speed_mbps": mbps,
            "duplex": "full" if mbps else "",
        }
        return self.link(ifname, **(known | more))

    def ipoib(self, function: PciFunction, ifname: str, guid: str, **more: Any) -> Link:
        """The IPoIB interface of an InfiniBand function; its address ends in the port's GUID."""
        digits = guid.replace(":", "")
        tail = ":".join(digits[i : i + 2] for i in range(0, 16, 2))
        mac = f"00:00:10:29:fe:80:00:00:00:00:00:00:{tail}"
        known = {"mac": mac, "permanent_mac": mac, "arp_type": 32, "mtu": 4092, "tx_queue_length": 256}
        return self.nic(function, ifname, **{"driver": f"{function.driver}[ib_ipoib]", **known, **more})

    def rdma(
        self, function: PciFunction, name: str, part: Part, rate: str, node_type: str = "CA", **port: Any
    ) -> RdmaDevice:
        """The RDMA device of a function with one port."""
        guid = self._guid()
        is_infiniband = part.class_code == 0x020700
        known: dict[str, Any] = {
            "state": "ACTIVE",
            "phys_state": "LinkUp",
            "link_layer": "InfiniBand" if is_infiniband else "Ethernet",
            "rate": rate,
            "guid": guid,
            "lid": 0x100 + self._guids if is_infiniband else None,
            "gid_types": ("IB/RoCE v1",) if is_infiniband else ("IB/RoCE v1", "RoCE v2"),
            "pkeys": ("0xffff",),
        }
        minor = UVERBS_FIRST_MINOR + len(self.rdma_devices)
        node = CharDevice(f"/dev/infiniband/uverbs{len(self.rdma_devices)}", UVERBS_MAJOR, minor)
        device = RdmaDevice(
            name=name,
            pci_address=function.address,
            node_guid=guid,
            firmware=part.firmware,
            node_type=node_type,
            system_image_guid="0000:0000:0000:0000" if node_type == "unspecified" else guid,
            board_id=part.board_id,
            ports=(RdmaPort(1, **(known | port)),),
            char_devices=(node, RDMA_CM),
        )
        self.rdma_devices.append(device)
        return device

    def uplink(self, link: Link, gateway: str, metric: int = 100) -> None:
        """The IPv4 default route, and the way to the API server behind it."""
        source = link.addresses[0].cidr.split("/")[0]
        index = link.ifindex
        self.routes.append(Route("0.0.0.0/0", gateway, index, source=source, protocol=16, metric=metric))
        self.protected_links.append(ProtectedLink("the node's address", source, link.ifindex))
        self.protected_links.append(
            ProtectedLink("the route to the API server", "198.51.100.1", link.ifindex)
        )

    def _mac(self) -> str:
        self._macs += 1
        return f"02:00:00:00:{self._macs >> 8:02x}:{self._macs & 255:02x}"

    def _guid(self) -> str:
        self._guids += 1
        return f"0200:0000:0000:{self._guids:04x}"


def two_sockets(cpus: Sequence[str], distance: int = 21) -> tuple[NumaNode, ...]:
    """One NUMA node for each socket, all equally far from each other."""
    return tuple(
        NumaNode(node, text, tuple(10 if other == node else distance for other in range(len(cpus))), node)
        for node, text in enumerate(cpus)
    )

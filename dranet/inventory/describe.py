"""The published attributes of a device, from the facts that make it up.

Each function covers one kind of fact and returns catalogue entries; ``None`` means "left out". What may be
published, and how it is called, is declared in ``dranet.model.attributes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dranet.model import attributes as a
from dranet.model.device import AttributeValue
from dranet.model.facts import Address, Gpu, Link, PciFunction, RdmaDevice, RdmaPort

Values = Mapping[a.Attribute, AttributeValue | None]

_ENCAPSULATION = {
    1: "ether",
    32: "infiniband",
    512: "ppp",
    519: "rawip",
    768: "ipip",
    769: "tunnel6",
    772: "loopback",
    776: "sit",
    778: "gre",
    823: "gre6",
    65534: "none",
    65535: "void",
}
"""``ARPHRD_*`` of ``linux/if_arp.h`` by the names that iproute2 prints."""

_STANDARD_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_NOT_GLOBAL_UNICAST = re.compile(
    r"127\.|169\.254\.|2(2[4-9]|3\d)\.|(0\.0\.0\.0|255\.255\.255\.255)/"
    r"|::1?/|fe[89ab][0-9a-f]:|ff[0-9a-f]{2}:"
)
"""By Go's definition, which DraNet publishes by: private addresses count, link-local ones do not. On text,
because a node may have thousands of addresses and the kernel's room writes them in one canonical form."""

_GIGABITS = re.compile(r"(\d+)(?:\.\d+)? Gb/sec")


def describe_link(link: Link) -> Values:
    """What the network interface says."""
    return {
        a.IFNAME: link.ifname,
        a.TYPE: link.kind or "device",
        a.MAC: link.mac,
        a.MTU: link.mtu,
        a.ENCAPSULATION: _ENCAPSULATION.get(link.arp_type, f"unknown{link.arp_type}"),
        a.STATE: link.operstate,
        a.ALIAS: link.alias,
        a.VIRTUAL: link.virtual,
        a.IPV4: _joined_addresses(link.addresses, ipv6=False),
        a.IPV6: _joined_addresses(link.addresses, ipv6=True),
    }


def describe_pci(function: PciFunction) -> Values:
    """What the PCI function says, whether or not it carries an interface."""
    address = function.address.lower()
    return {
        a.PCI_ADDRESS: address,
        a.PCI_VENDOR_ID: f"{function.vendor_id:04x}",
        a.PCI_DEVICE_ID: f"{function.device_id:04x}",
        a.NUMA_NODE: function.numa_node,
        a.STANDARD_NUMA_NODE: function.numa_node,
        a.STANDARD_PCIE_ROOT: function.root if function.root.startswith("pci") else None,
        a.STANDARD_PCI_BUS_ID: address if _STANDARD_BUS_ID.fullmatch(address) else None,
    }


def describe_sriov(function: PciFunction | None) -> Values:
    """SR-IOV of the function behind an interface; ``sriov`` is false for one without PCI, as in DraNet."""
    if function is None:
        return {a.SRIOV: False}
    is_physical = function.sriov_total_vfs > 0
    return {
        a.SRIOV: is_physical,
        a.SRIOV_VFS: function.sriov_num_vfs if is_physical else None,
        a.IS_SRIOV_VF: True if function.physical_function else None,
    }


def describe_rdma(rdma: RdmaDevice | None, ifname: str = "") -> Values:
    """The RDMA device and its port: the one that names the interface, else the first."""
    if rdma is None:
        return {a.RDMA: False}
    port = next((p for p in rdma.ports if ifname and ifname in p.netdevs), None)
    return {a.RDMA: True, a.RDMA_DEVICE: rdma.name, **_describe_port(port or next(iter(rdma.ports), None))}


def describe_gpu(gpu: Gpu) -> Values:
    """A GPU. It says ``rdma`` and ``virtual`` too, which selectors for NICs test unguarded."""
    return {
        a.TYPE: "gpu",
        a.IFNAME: "",
        a.RDMA: False,
        a.VIRTUAL: False,
        a.PCI_ADDRESS: gpu.pci_address.lower(),
        a.GPU_VENDOR: gpu.vendor,
        a.GPU_MODEL: gpu.model or None,
        a.GPU_UUID: gpu.uuid or None,
    }


def _describe_port(port: RdmaPort | None) -> Values:
    if port is None:
        return {}
    rate = _GIGABITS.match(port.rate)
    return {
        a.RDMA_LINK_LAYER: port.link_layer or None,
        a.RDMA_PORT_STATE: port.state or None,
        a.RDMA_RATE: int(rate[1]) if rate else None,
    }


def _joined_addresses(addresses: Iterable[Address], *, ipv6: bool) -> str | None:
    """Sorted, comma-joined CIDRs; whole addresses only, as many as fit in one attribute."""
    cidrs = (address.cidr for address in addresses)
    texts = {cidr for cidr in cidrs if (":" in cidr) is ipv6 and not _NOT_GLOBAL_UNICAST.match(cidr)}
    joined = ""
    for text in sorted(texts):
        longer = f"{joined},{text}" if joined else text
        if len(longer) > a.MAX_VALUE_BYTES:
            break
        joined = longer
    return joined or None

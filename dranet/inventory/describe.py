"""The published attributes of a device, from the facts that make it up.

Each function covers one kind of fact and returns catalogue entries; ``None`` means "left out". What may be
published, and how it is called, is declared in ``dranet.model.attributes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dranet.inventory.topology import Nearest
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
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NOT_GLOBAL_UNICAST = re.compile(
    r"127\.|169\.254\.|2(2[4-9]|3\d)\.|(0\.0\.0\.0|255\.255\.255\.255)/"
    r"|::1?/|fe[89ab][0-9a-f]:|ff[0-9a-f]{2}:"
)
"""By Go's definition, which DraNet publishes by: private addresses count, link-local ones do not. On text,
because a node may have thousands of addresses and the kernel's room writes them in one canonical form."""

_GIGABITS = re.compile(r"(\d{1,6})(?:\.\d+)? Gb/sec")
_GIGATRANSFERS = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_PCIE_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""The kernel reports 0 or 255 for an unknown width."""

_KINDS_WITH_PEER = frozenset({"veth", "netkit", "vxcan"})
"""Their ``IFLA_LINK`` is the other end, which is no parent."""

_NO_VERSION = frozenset({"", "N/A"})
_UNKNOWN = "unknown"
_ERDMA_DRIVER = "erdma"


def describe_link(link: Link) -> Values:
    """Attributes of the network interface."""
    return {
        a.IFNAME: link.ifname,
        a.TYPE: link.kind or "device",
        a.MAC: link.mac,
        a.MTU: link.mtu,
        a.ENCAPSULATION: _ENCAPSULATION.get(link.arp_type) or f"unknown{link.arp_type}",
        a.STATE: link.operstate,
        a.ALIAS: link.alias,
        a.VIRTUAL: link.virtual,
        a.IPV4: _joined_addresses(link.addresses, ipv6=False),
        a.IPV6: _joined_addresses(link.addresses, ipv6=True),
        a.ADMIN_UP: link.is_up,
        a.CARRIER: link.carrier,
        a.VLAN_ID: link.vlan_id,
        a.LINK_SPEED: link.speed_mbps,
        a.DUPLEX: link.duplex or None,
        a.QUEUES: link.queues,
        a.PERMANENT_MAC: link.permanent_mac or None,
        **_describe_programs(link),
    }


def describe_relatives(link: Link, links: Mapping[int, Link]) -> Values:
    """The interfaces it belongs to; ``links`` by ifindex."""
    master = links.get(link.master) if link.master else None
    has_parent = link.lower and link.link_netnsid is None and link.kind not in _KINDS_WITH_PEER
    parent = links.get(link.lower) if has_parent and link.lower is not None else None
    return {
        a.BOND: master.ifname if master and master.kind == "bond" else None,
        a.BRIDGE: master.ifname if master and master.kind == "bridge" else None,
        a.PARENT: parent.ifname if parent and parent is not link else None,
    }


def describe_versions(link: Link | None, rdma: RdmaDevice | None, function: PciFunction | None) -> Values:
    """Driver and firmware: the interface's word first, then that of the RDMA device and the function."""
    rdma_firmware = _version(rdma.firmware) if rdma else None
    firmware = (_version(link.firmware) if link else None) or rdma_firmware
    is_repeated = firmware is not None and rdma_firmware is not None and firmware.startswith(rdma_firmware)
    return {
        a.DRIVER: (link.driver if link else "") or (function.driver if function else "") or None,
        a.DRIVER_VERSION: _version(link.driver_version) if link else None,
        a.FIRMWARE_VERSION: firmware,
        a.RDMA_FIRMWARE: None if is_repeated else rdma_firmware,
    }


def describe_address(address: str) -> Values:
    """Attributes that follow from the PCI address alone."""
    lower = address.lower()
    return {
        a.PCI_ADDRESS: lower,
        a.STANDARD_PCI_BUS_ID: lower if _STANDARD_BUS_ID.fullmatch(lower) else None,
    }


def describe_pci(function: PciFunction) -> Values:
    """Attributes of the PCI function, with or without an interface.

    Names that pci.ids lacks are ``unknown``, as in DraNet, whose device class for EFA asks every device for
    ``pciDevice`` unguarded.
    """
    return {
        **describe_address(function.address),
        a.PCI_VENDOR_ID: f"{function.vendor_id:04x}",
        a.PCI_DEVICE_ID: f"{function.device_id:04x}",
        a.PCI_VENDOR: function.vendor_name or _UNKNOWN,
        a.PCI_DEVICE: function.device_name or _UNKNOWN,
        a.PCI_SUBSYSTEM: f"{function.subsystem_device_id:04x}",
        a.STANDARD_PCIE_ROOT: function.root if _ROOT_COMPLEX.fullmatch(function.root) else None,
        a.PCIE_SWITCH: _switch_above(function.path),
        a.PCIE_GENERATION: _pcie_generation(function.link_speed),
        a.PCIE_WIDTH: _pcie_width(function.link_width),
        a.PCIE_MAX_GENERATION: _pcie_generation(function.max_link_speed),
        a.PCIE_MAX_WIDTH: _pcie_width(function.max_link_width),
    }


def describe_place(function: PciFunction) -> Values:
    """Where the function is in the PCIe tree, for a device that is not the function itself."""
    described = describe_pci(function)
    return {name: described[name] for name in (a.STANDARD_PCIE_ROOT, a.PCIE_SWITCH)}


def _switch_above(path: Sequence[str]) -> str | None:
    """The bridge above the port that the function is plugged into: whatever else has it there is at most one
    switch away, by the definition of ``PIX``."""
    return path[max(len(path) - 3, 0)] if len(path) > 1 else None


def describe_numa(node: int | None, lists: Mapping[int, tuple[int, ...]] | None) -> Values:
    """The NUMA node; never -1, which would match every other device that has none.

    Args:
        node: the function's NUMA node.
        lists: ``nearness.near_numa_nodes`` where the cluster takes lists, else ``None``.
    """
    if node is None or node < 0:
        return {}
    standard = node if lists is None else lists.get(node, (node,))
    return {a.NUMA_NODE: node, a.STANDARD_NUMA_NODE: standard}


def describe_sriov(function: PciFunction | None) -> Values:
    """SR-IOV of the function; ``sriov`` is false for an interface without PCI, as in DraNet."""
    if function is None:
        return {a.SRIOV: False}
    is_physical = function.sriov_total_vfs > 0
    return {
        a.SRIOV: is_physical,
        a.SRIOV_VFS: function.sriov_num_vfs if is_physical else None,
        a.IS_SRIOV_VF: True if function.physical_function else None,
        a.SRIOV_PF_ADDRESS: function.physical_function.lower() or None,
        a.SRIOV_VF_INDEX: function.virtual_function_index if function.physical_function else None,
    }


def describe_rdma(rdma: RdmaDevice | None, ifname: str = "") -> Values:
    """The RDMA device and its port: the one that names the interface, else the first."""
    if rdma is None:
        return {a.RDMA: False}
    port = next((p for p in rdma.ports if ifname and ifname in p.netdevs), None)
    return {
        a.RDMA: True,
        a.RDMA_DEVICE: rdma.name,
        a.RDMA_NODE_GUID: rdma.node_guid or None,
        **_describe_port(port or next(iter(rdma.ports), None)),
    }


def describe_erdma(function: PciFunction) -> Values:
    """Whether it is Alibaba's elastic RDMA, whose function is no network function by its class."""
    return {a.ERDMA: True if function.driver == _ERDMA_DRIVER else None}


def describe_near_gpus(near: Nearest | None) -> Values:
    """The nearest GPUs and their distance."""
    if near is None:
        return {}
    return {
        a.NEAREST_GPUS: a.join_whole(gpu.pci_address for gpu in near.devices),
        a.NEAREST_GPU_DISTANCE: near.distance.name,
    }


def describe_gpu(gpu: Gpu) -> Values:
    """Attributes of a GPU, including those that DraNet's manifests read of every device without a guard."""
    return {
        a.TYPE: "gpu",
        a.IFNAME: "",
        a.RDMA: False,
        a.RDMA_DEVICE: "",
        a.VIRTUAL: False,
        a.GPU_VENDOR: gpu.vendor,
        a.GPU_MODEL: gpu.model or None,
        a.GPU_UUID: gpu.uuid or None,
    }


def _describe_programs(link: Link) -> Values:
    """BPF programs. ``ebpf`` speaks of TC and TCX, as in DraNet, and is left out when neither was read."""
    is_read = link.tc_filters is not None and link.tcx_programs is not None
    has_any = bool(link.tc_filters or link.tcx_programs)
    return {
        a.EBPF: has_any if is_read or has_any else None,
        a.TC_FILTERS: _joined_names(link.tc_filters),
        a.TCX_PROGRAMS: _joined_names(link.tcx_programs),
        a.XDP: link.xdp,
    }


def _describe_port(port: RdmaPort | None) -> Values:
    if port is None:
        return {}
    rate = _GIGABITS.match(port.rate)
    return {
        a.RDMA_LINK_LAYER: port.link_layer or None,
        a.RDMA_PORT_STATE: port.state or None,
        a.RDMA_RATE: int(rate[1]) if rate else None,
        a.RDMA_PORT_GUID: port.guid or None,
        a.RDMA_GID_TYPES: a.join_whole(sorted(port.gid_types)),
        a.RDMA_PKEYS: a.join_whole(port.pkeys),
    }


def _joined_addresses(addresses: Sequence[Address], *, ipv6: bool) -> str | None:
    """Sorted, comma-joined CIDRs; whole addresses only, as many as fit in one attribute."""
    if not addresses:
        return None
    cidrs = (address.cidr for address in addresses)
    texts = {cidr for cidr in cidrs if (":" in cidr) is ipv6 and not _NOT_GLOBAL_UNICAST.match(cidr)}
    return a.join_whole(sorted(texts))


def _joined_names(names: Iterable[str] | None) -> str | None:
    """Program names; the first one is cut if it alone is too long."""
    if not names:
        return None
    ordered = sorted(set(names))
    return a.join_whole(ordered) or next(iter(ordered), None)


def _version(text: str) -> str | None:
    return None if text in _NO_VERSION else text


def _pcie_generation(speed: str) -> int | None:
    found = _GIGATRANSFERS.match(speed)
    return _PCIE_GENERATIONS.get(float(found[1])) if found else None


def _pcie_width(lanes: int) -> int | None:
    return lanes if lanes in _PCIE_WIDTHS else None

"""Devices as ResourceSlices have them: names, attributes, pages within the limits of the Kubernetes API.

The API server refuses a slice whole: one odd value would hide every device of the node. So a value or
device that cannot be published is left out with a line in the log. The order of devices is kept: it is the
order of preference. Where the pages fall depends on the devices and the policy alone, so that nothing is
rewritten while nothing changes.

Names follow DraNet's rules. Those of PCI functions survive renames, moves between namespaces and reboots; a
name made from an interface name changes with it."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.inventory.topology import Nearest
from dranet.model import attributes as a
from dranet.model import cloud_attributes
from dranet.model.device import AttributeValue, Device
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
"""Alibaba's elastic RDMA, whose function is no network function by its class."""


def describe_link(link: Link) -> Values:
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
    lower = address.lower()
    return {a.PCI_ADDRESS: lower, a.STANDARD_PCI_BUS_ID: lower if _STANDARD_BUS_ID.fullmatch(lower) else None}


def describe_pci(function: PciFunction) -> Values:
    """Attributes of the PCI function. Names that pci.ids lacks are ``unknown``, as in DraNet, whose device
    class for EFA asks every device for ``pciDevice`` unguarded."""
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
        a.ERDMA: True if function.driver == _ERDMA_DRIVER else None,
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
    """The NUMA node; never -1, which would match every other device that has none. ``lists`` are those of
    ``topology.near_numa_nodes`` where the cluster takes lists."""
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


def describe_near_gpus(near: Nearest | None) -> Values:
    if near is None:
        return {}
    nearest, more_nearest = _join_twice(near.devices)
    on_node, more_on_node = _join_twice(near.numa_node)
    return {
        a.NEAREST_GPUS: nearest,
        a.NEAREST_GPU_DISTANCE: near.distance.name,
        a.NUMA_NODE_GPUS: on_node,
        a.MORE_NEAREST_GPUS: more_nearest,
        a.MORE_NUMA_NODE_GPUS: more_on_node,
    }


def _join_twice(gpus: Iterable[Device]) -> tuple[str | None, str | None]:
    """The addresses in two attributes, as an attribute takes five."""
    addresses = [gpu.pci_address for gpu in gpus]
    joined = a.join_whole(addresses)
    return joined, a.join_whole(addresses[joined.count(",") + 1 :]) if joined else None


def describe_roots(root: str, near: Nearest | None) -> Values:
    """``pcieRoot`` as a list, where a cluster takes lists: KEP-5491 matches a device with each of them."""
    if near is None or not near.roots or not _ROOT_COMPLEX.fullmatch(root):
        return {}
    return {a.STANDARD_PCIE_ROOT: (root, *near.roots)}


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


MAX_DEVICES_PER_SLICE = 128
MAX_DEVICES_PER_SHORT_SLICE = 64
"""``resource.k8s.io/v1``, for a slice with taints (since 1.35) or list attributes (since 1.36); or with
counters, which we do not use."""

NO_ROOM = "there is no room"
_NO_LISTS = "is a list, and the setting list_attributes is off"
_BAD_NAME = "is no attribute name that Kubernetes takes"

Pages = tuple[tuple[Device, ...], ...]
"""The devices of each slice."""

_Rank = tuple[int, int, str]


def _order_names() -> Iterator[str]:
    """The catalogue, and after all that claims align by what only we publish for clouds."""
    for attribute in a.CATALOGUE:
        yield attribute.qualified
        if attribute is a.LINK_SPEED:
            yield from cloud_attributes.OURS


_PLACES = {name: place for place, name in enumerate(_order_names())}
"""Qualified name -> place in the budget."""


class SlicePlan(Struct, frozen=True):
    """``pages``: devices as published."""

    pages: Pages
    losses: tuple[str, ...]
    """One line for each device that lost an invalid value, or one that the operator added or prefers."""
    crowded: Mapping[str, tuple[str, ...]]
    """By device: what a slice has no room for, the last of the catalogue and of the cloud's that are ours."""


def build_slices(devices: Sequence[Device], policy: Policy = DEFAULT_POLICY) -> Pages:
    return plan_slices(devices, policy).pages


def plan_slices(devices: Sequence[Device], policy: Policy = DEFAULT_POLICY) -> SlicePlan:
    """Pages of at most 128 devices, or 64 with counters and where the policy allows taints or lists: a page
    may get one at any time, and would then push devices from page to page. Without devices one empty page,
    which marks the pool as complete.
    """
    published: list[Device] = []
    losses: list[str] = []
    crowded: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for device in devices:
        fault = _name_fault(device.name, taken)
        if fault:
            losses.append(f"device {device.name!r} is left out: {fault}")
            continue
        taken.add(device.name)
        fitted = fit_attributes(device, policy)
        is_whole = fitted.kept == device.attributes
        published.append(device if is_whole else replace(device, attributes=fitted.kept))
        expected = tuple(sorted(_expected_losses(fitted.left_out, policy)))
        losses += _describe_losses(device, fitted.left_out, expected)
        if expected:
            crowded[device.name] = expected
    return SlicePlan(_paginate(published, policy), tuple(losses), crowded)


def fit_attributes(device: Device, policy: Policy = DEFAULT_POLICY) -> a.FittedValues:
    """Which attributes of ``device`` a slice can take: at most 32, and at most 48 values with the items of
    lists. Kept first are those without which nothing works, then the operator's own and those that DraNet
    publishes for clouds, then those that the operator prefers, then the others in their order. Values are cut
    and invalid ones left out."""
    valid: dict[str, AttributeValue] = {}
    left_out = dict(device.left_out)
    for name, value in device.attributes.items():
        fitted, fault = _fit(name, value, policy)
        if fitted is None:
            left_out[name] = fault
        else:
            valid[name] = fitted
    room = a.MAX_ATTRIBUTES_PER_DEVICE - (device.bandwidth is not None)
    if sum(map(_size, valid.values())) > room:
        _make_room(valid, left_out, policy, room)
    return a.FittedValues(valid, left_out)


def _fit(name: str, value: AttributeValue, policy: Policy) -> tuple[AttributeValue | None, str]:
    """The value as the cluster takes it, or ``None`` and the reason."""
    if name not in a.PLACES and not a.is_qualified_name(name):
        return None, _BAD_NAME
    fitted = a.fit_value(value)
    if fitted is None:
        return None, a.describe_fault(value)
    if not isinstance(fitted, tuple) or policy.list_attributes:
        return fitted, ""
    if name in a.LIST_FORMS:  # recorded before the setting was taken back
        return fitted[0], ""
    return None, _NO_LISTS


def _make_room(
    valid: dict[str, AttributeValue], left_out: dict[str, str], policy: Policy, attributes: int
) -> None:
    values = a.MAX_VALUES_PER_DEVICE
    for name in sorted(valid, key=lambda name: _rank(name, policy.prefer_attributes)):
        size = _size(valid[name])
        if attributes and size <= values:
            attributes, values = attributes - 1, values - size
        else:
            del valid[name]
            left_out[name] = NO_ROOM


@lru_cache(maxsize=4096)  # the names are few, and the same on every device of every scan
def _rank(name: str, prefer_attributes: tuple[str, ...]) -> _Rank:
    """Place in the budget; names that have none are the operator's, a webhook's, or DraNet's for a cloud."""
    preferred = [_qualify(entry) for entry in prefer_attributes]
    place = preferred.index(name) if name in preferred else len(preferred)
    if name in a.ESSENTIAL_NAMES:
        return (0, _PLACES[name], name)
    if name not in _PLACES or name in a.SETTABLE_NAMES:
        return (1, place, name)
    return (2, place, name) if name in preferred else (3, _PLACES[name], name)


def _qualify(name: str) -> str:
    return name if "/" in name else f"{a.DOMAIN}/{name}"


def _size(value: AttributeValue) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _name_fault(name: str, taken: set[str]) -> str:
    if not is_device_name(name):
        return "its name is no DNS label of at most 63 characters"
    return "another device has the same name" if name in taken else ""


def _expected_losses(left_out: Mapping[str, str], policy: Policy) -> Iterator[str]:
    """Attributes that do not fit into a slice and that the operator has not asked for."""
    preferred = {_qualify(entry) for entry in policy.prefer_attributes}
    return (
        name
        for name, reason in left_out.items()
        if reason == NO_ROOM and name in _PLACES and name not in preferred
    )


def _describe_losses(device: Device, left_out: Mapping[str, str], expected: Collection[str]) -> list[str]:
    missed = {name: reason for name, reason in left_out.items() if name not in expected}
    crowded = sorted(name for name, reason in missed.items() if reason == NO_ROOM)
    faults = [f"{name} {reason}" for name, reason in sorted(missed.items()) if reason != NO_ROOM]
    if crowded:
        faults.append(f"there is no room for {', '.join(crowded)}")
    if not faults:
        return []
    return [f"device {device.name} is published without some attributes: {'; '.join(faults)}"]


def _paginate(devices: Sequence[Device], policy: Policy) -> Pages:
    has_parts = any(device.counters is not None for device in devices)
    is_short = policy.taints or policy.list_attributes or has_parts
    limit = MAX_DEVICES_PER_SHORT_SLICE if is_short else MAX_DEVICES_PER_SLICE
    starts = range(0, len(devices), limit)
    return tuple(tuple(devices[start : start + limit]) for start in starts) or ((),)


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_LENGTH = 63
_CHECKSUM_DIGITS = 8


def is_device_name(name: str) -> bool:
    return _DNS_LABEL.fullmatch(name) is not None


def pci_device_name(address: str) -> str:
    """``0000:1a:00.0`` -> ``pci-0000-1a-00-0``."""
    return "pci-" + _flat(address)


def gpu_device_name(address: str) -> str:
    """``0000:1b:00.0`` -> ``gpu-0000-1b-00-0``."""
    return "gpu-" + _flat(address)


def may_be_gpu(name: str) -> bool:
    """Whether a device of that name may be a GPU; an interface may also have such a name."""
    return name.startswith("gpu-")


@lru_cache(maxsize=4096)  # a node full of pods asks for the same thousand names at each scan
def link_device_name(ifname: str) -> str:
    """The interface name itself if it is a DNS label, else :func:`encoded_link_name`. An interface name has
    at most 15 characters, a name with a PCI address at least 16."""
    return ifname if is_device_name(ifname) else encoded_link_name(ifname)


def encoded_link_name(ifname: str) -> str:
    """``net-`` and the interface name in lower-case base32 without padding: ``eth_0`` -> ``net-mv2gqxzq``."""
    return _encoded("net-", ifname)


def rdma_device_name(rdma_device: str) -> str:
    """Name of an RDMA device without PCI address and interface: ``rxe0`` -> ``rdma-rxe0``. A kernel name that
    is no DNS label (``mlx5_0``) goes through base32 like an interface's."""
    name = f"rdma-{rdma_device}"
    return name if is_device_name(name) else _encoded("rdma-", rdma_device)


def _flat(address: str) -> str:
    return address.lower().replace(":", "-").replace(".", "-")


def _encoded(prefix: str, text: str) -> str:
    """What would be too long (an RDMA device may have 63 characters) ends in a checksum, so that two names
    that begin alike stay two."""
    data = _to_bytes(text)
    name = prefix + base64.b32encode(data).decode().rstrip("=").lower()
    if len(name) <= _MAX_LENGTH:
        return name
    return f"{name[: _MAX_LENGTH - _CHECKSUM_DIGITS]}{zlib.crc32(data):08x}"


def _to_bytes(text: str) -> bytes:
    """Names come from the kernel as bytes; those that are not UTF-8 travel as surrogate escapes. A capture
    that was edited may also hold any other surrogate."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")

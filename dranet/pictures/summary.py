"""The node as lists and pictures show it: the hardware as a tree with short names, and short texts about each
device, from the facts behind it; the exact values are the attributes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

from msgspec import Struct

from dranet.inventory.policy import Decision
from dranet.inventory.topology import Nearest, TopologyNode, short_names
from dranet.model.device import MEGABIT, Bandwidth, Device, DeviceKind
from dranet.model.facts import NodeFacts, PciFunction, RdmaDevice, RdmaPort
from dranet.terminal import count_of


class Look(Struct, frozen=True):
    facts: NodeFacts
    inventory: tuple[Decision, ...]
    """In the order of publication: preferred devices first."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """In the order in which users look for a device: by PCI address or name, GPUs last."""

        def place(decision: Decision) -> tuple[bool, bool, str, str]:
            device = decision.device
            is_gpu = device.kind is DeviceKind.GPU
            return is_gpu, not device.pci_address, device.pci_address, device.name

        return tuple(sorted(self.inventory, key=place))

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(decision.device for decision in self.decisions)


def summarize(decisions: Iterable[Decision], shows_all: bool) -> str:
    """``8 NICs, 8 GPUs offered; 3 not offered (--all shows why)``."""
    everything = tuple(decisions)
    offered = [decision.device.kind for decision in everything if decision.published]
    counts = [count_of(offered.count(kind), word) for kind, word in _KIND_WORDS.items() if kind in offered]
    text = f"{', '.join(counts) or 'nothing'} offered"
    if len(offered) == len(everything):
        return text
    not_offered = f"{text}; {len(everything) - len(offered)} not offered"
    return not_offered if shows_all else f"{not_offered} (--all shows why)"


_KIND_WORDS = {DeviceKind.NIC: "NIC", DeviceKind.RDMA: "RDMA-only device", DeviceKind.GPU: "GPU"}


class Branch(Struct, frozen=True):
    """A line of the tree: a bridge, or a device (``device`` is its name and ``label`` empty)."""

    label: str
    device: str = ""
    children: tuple[Branch, ...] = ()


def choose_hardware(look: Look) -> tuple[Decision, ...]:
    """Devices with a place in the hardware, and software links only if they are offered."""
    reader = DeviceSummarizer(look.facts)
    return tuple(d for d in look.decisions if d.published or not reader.read(d.device).is_software)


def name_hardware(look: Look) -> Mapping[str, str]:
    """Short names, the same in the tree, the matrix and the picture."""
    reader = DeviceSummarizer(look.facts)
    return short_names(device for device in look.devices if not reader.read(device).is_software)


def cpus_of(facts: NodeFacts) -> Mapping[int, str]:
    """By NUMA node, as ``0-55,112-167``."""
    return {node.node: node.cpus for node in facts.numa_nodes}


def root_branches(root: TopologyNode) -> tuple[Branch, ...]:
    """A root complex with its descendants; addresses are without the domain that it names."""
    domain = root.label.removeprefix("pci").partition(":")[0]
    return _bridge_branches(root, domain, below_switch=False)


def _bridge_branches(node: TopologyNode, domain: str, *, below_switch: bool) -> tuple[Branch, ...]:
    """Bridges in a row are one line, and ports of a switch on the way to a single function are left out: only
    branches matter for the distance."""
    labels, end = [node.label], node
    while len(end.children) == 1 and not end.devices:
        end = end.children[0]
        labels.append(end.label)
    if end.devices:
        labels.pop()  # the function itself
        if below_switch and not end.children:
            return leaves(end)
    below = (_bridge_branches(child, domain, below_switch=True) for child in end.children)
    text = " / ".join(short_address(label, domain) for label in labels)
    return (Branch(text, children=(*leaves(end), *chain.from_iterable(below))),)


def leaves(node: TopologyNode) -> tuple[Branch, ...]:
    return tuple(Branch("", device=name) for name in node.devices)


UNKNOWN = "-"
GIGABIT = 1000 * MEGABIT

_RATE = re.compile(r"([0-9.]+) Gb/sec(?: \([0-9]+X ([A-Z0-9]+)\))?")
_BRACKETS = re.compile(r"\[([^\]]+)\]")
_COMPANY_ENDINGS = re.compile(
    r",? (inc|corporation|corp|ltd|limited|llc|co|gmbh|technologies|technology|systems|semiconductor)\.?,?$",
    re.IGNORECASE,
)
_LINK_LOCAL_SCOPE = 253
_NOT_UP = ("down", "lowerlayerdown")


class DeviceSummary(Struct, frozen=True):
    """Empty if unknown."""

    addresses: tuple[str, ...] = ()
    state: str = ""
    speed: str = ""
    rate: str = ""
    """Rate of the RDMA port."""
    model: str = ""
    sriov: str = ""
    """``PF 4/16``: four of sixteen virtual functions exist; ``VF 2 of 3b:00.0``."""
    is_software: bool = False
    """A link without hardware."""

    @property
    def speed_or_state(self) -> str:
        """``down``, or the RDMA rate, which names the generation; the link's speed if they differ, because
        RDMA in software invents a rate."""
        if self.state in _NOT_UP:
            return self.state
        return self.rate if self.rate.startswith(self.speed) else self.speed


class DeviceSummarizer:
    def __init__(self, facts: NodeFacts) -> None:
        self._links = {link.ifname: link for link in facts.links}
        self._functions = {function.address: function for function in facts.pci_functions}
        self._rdma = {rdma.name: rdma for rdma in facts.rdma_devices}
        self._gpus = {gpu.pci_address: gpu for gpu in facts.gpus}

    def read(self, device: Device) -> DeviceSummary:
        link = self._links.get(device.ifname)
        function = self._functions.get(device.pci_address)
        gpu = self._gpus.get(device.pci_address)
        port = _main_port(self._rdma.get(device.rdma_device), device.ifname)
        return DeviceSummary(
            addresses=tuple(a.cidr for a in link.addresses if a.scope < _LINK_LOCAL_SCOPE) if link else (),
            state=link.operstate if link else (port.state.lower() if port else ""),
            speed=speed_text(link.speed_mbps) if link else "",
            rate=rate_text(port.rate) if port else "",
            model=(gpu.model if gpu else "") or (model_text(function) if function else ""),
            sriov=_sriov(function) if function else "",
            is_software=link is not None and not device.pci_address and not link.parent_device,
        )


def _main_port(rdma: RdmaDevice | None, ifname: str) -> RdmaPort | None:
    ports = rdma.ports if rdma else ()
    own = (port for port in ports if ifname and ifname in port.netdevs)
    return next(own, next(iter(ports), None))


def _sriov(function: PciFunction) -> str:
    if function.physical_function:
        index = function.virtual_function_index
        return f"VF{'' if index is None else f' {index}'} of {short_address(function.physical_function)}"
    if function.sriov_total_vfs:
        return f"PF {function.sriov_num_vfs}/{function.sriov_total_vfs}"
    return ""


def speed_text(mbps: int | None) -> str:
    """``400 Gb/s``, ``2.5 Gb/s``, ``100 Mb/s``; empty if unknown."""
    if mbps is None:
        return ""
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


def bandwidth_text(bandwidth: Bandwidth | None, allocated: int | None) -> str:
    """``20/100 Gb/s``: what claims have of the capacity; ``100 Gb/s`` if that is unknown; empty if it is not
    counted."""
    if bandwidth is None:
        return ""
    have = "" if allocated is None else f"{allocated / GIGABIT:g}/"
    return f"{have}{bandwidth.total / GIGABIT:g} Gb/s"


def rate_text(rate: str) -> str:
    """``400 Gb/sec (4X NDR)`` -> ``400 Gb/s NDR``."""
    match = _RATE.fullmatch(rate)
    return f"{match[1]} Gb/s {match[2] or ''}".rstrip() if match else rate


def model_text(function: PciFunction) -> str:
    """``Mellanox ConnectX-7`` from the names in pci.ids, or the ids."""
    if not function.device_name:
        return f"{function.vendor_id:04x}:{function.device_id:04x}"
    brackets = _BRACKETS.search(function.device_name)
    name = brackets[1] if brackets else function.device_name
    vendor = vendor_text(function.vendor_name)
    return name if name.startswith(vendor) else f"{vendor} {name}".strip()


def vendor_text(name: str) -> str:
    """A company's usual name: ``Mellanox Technologies`` -> ``Mellanox``."""
    brackets = _BRACKETS.search(name)
    if brackets:
        return brackets[1]
    shorter = _COMPANY_ENDINGS.sub("", name)
    return shorter if shorter == name else vendor_text(shorter)


def short_address(address: str, domain: str = "0000") -> str:
    """A PCI address without the usual domain: ``0000:3b:00.0`` -> ``3b:00.0``."""
    return address.removeprefix(f"{domain}:")


def nearest_text(found: Nearest | None) -> str:
    """``PIX gpu-0000-1b-00-0 +1``: the distance, the first device at it, and the number of others."""
    if found is None:
        return ""
    return f"{found.distance.name} {first_of(gpu.name for gpu in found.devices)}"


def nearest_words(found: Nearest | None, names: Mapping[str, str]) -> str:
    """``NODE to GPU0``, by short names; the number of GPUs if there are more than two."""
    if found is None:
        return ""
    gpus = [names.get(gpu.name, gpu.name) for gpu in found.devices]
    return f"{found.distance.name} to {', '.join(gpus) if len(gpus) <= 2 else f'{len(gpus)} GPUs'}"


def first_of(texts: Iterable[str]) -> str:
    """``10.0.0.1/24 +2``: the first, and the number of others."""
    first, *others = tuple(texts) or ("",)
    return f"{first} +{len(others)}" if others else first

"""What users want to see of a device at a glance: speed, state, model, SR-IOV.

The exact values are the attributes; these are short texts, from the facts behind the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from dranet.inventory.topology import Nearest
from dranet.model.device import Device
from dranet.model.facts import Gpu, Link, NodeFacts, PciFunction, RdmaDevice, RdmaPort

UNKNOWN = "-"

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
    """Whether it is a link without hardware."""

    @property
    def speed_or_state(self) -> str:
        """``down``, or the RDMA rate, which names the generation; the link's speed if they differ, because
        RDMA in software invents a rate."""
        if self.state in _NOT_UP:
            return self.state
        return self.rate if self.rate.startswith(self.speed) else self.speed


class DeviceSummarizer:
    """The facts of one view, indexed."""

    def __init__(self, facts: NodeFacts) -> None:
        self._links: Mapping[str, Link] = {link.ifname: link for link in facts.links}
        self._functions: Mapping[str, PciFunction] = {f.address: f for f in facts.pci_functions}
        self._rdma: Mapping[str, RdmaDevice] = {rdma.name: rdma for rdma in facts.rdma_devices}
        self._gpus: Mapping[str, Gpu] = {gpu.pci_address: gpu for gpu in facts.gpus}

    def read(self, device: Device) -> DeviceSummary:
        link = self._links.get(device.ifname)
        function = self._functions.get(device.pci_address)
        gpu = self._gpus.get(device.pci_address)
        port = _main_port(self._rdma.get(device.rdma_device), device.ifname)
        return DeviceSummary(
            addresses=_addresses(link) if link else (),
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


def _addresses(link: Link) -> tuple[str, ...]:
    return tuple(address.cidr for address in link.addresses if address.scope < _LINK_LOCAL_SCOPE)


def _sriov(function: PciFunction) -> str:
    if function.physical_function:
        index = function.virtual_function_index
        number = "" if index is None else f" {index}"
        return f"VF{number} of {short_address(function.physical_function)}"
    if function.sriov_total_vfs:
        return f"PF {function.sriov_num_vfs}/{function.sriov_total_vfs}"
    return ""


def speed_text(mbps: int | None) -> str:
    """``400 Gb/s``, ``2.5 Gb/s``, ``100 Mb/s``; empty if unknown."""
    if mbps is None:
        return ""
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


def rate_text(rate: str) -> str:
    """``400 Gb/sec (4X NDR)`` -> ``400 Gb/s NDR``."""
    match = _RATE.fullmatch(rate)
    if match is None:
        return rate
    return f"{match[1]} Gb/s {match[2] or ''}".rstrip()


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
    first, *others = found.devices
    more = f" +{len(others)}" if others else ""
    return f"{found.distance.name} {first.name}{more}"


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

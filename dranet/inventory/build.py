"""Facts -> devices: which PCI functions, links, RDMA devices and GPUs make one device each.

Pure: it takes what ``dranet.kernel.scan`` read and what the store says pods have now, and knows neither.
Whether a device is offered is ``filter``'s business; here even the loopback is a device, so that
``dranet devices --all`` can say why it stays home.

A device that a pod has is out of the scan's sight: its link is in another namespace while its PCI function
(and, in shared RDMA mode, its RDMA device) is still here. Judged by such half facts it would look like an
RDMA-only device and could be given away twice. So its recorded self is used, and none of its facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dranet.inventory import describe, naming
from dranet.inventory.infrastructure import infrastructure_reason
from dranet.model.attributes import VIRTUAL, Attribute, attribute_map
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import Gpu, Link, NodeFacts, PciFunction, RdmaDevice

PASSTHROUGH_DRIVERS = frozenset({"vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"})
"""A function bound to one of these belongs to a virtual machine or to user space, not to the kernel."""

_PCI_CLASS_NETWORK = 0x02


def build_devices(facts: NodeFacts, held: Mapping[str, Device]) -> tuple[Device, ...]:
    """Every device of the node, NICs and RDMA devices before GPUs, each in the order of PCI address or name.

    The order is that of preference for consumers: a class that tests only ``device.driver`` gets a NIC.

    Args:
        facts: one scan of the host.
        held: the devices that pods have now, by name, as recorded when they were prepared. Each keeps
            every field but ``ifname``, which is emptied.
    """
    parts = _Parts.of(facts, held)
    devices = {name: replace(device, ifname="") for name, device in held.items()}
    for device in (*parts.pci_devices(), *parts.link_devices(), *parts.rdma_devices(), *parts.gpu_devices()):
        devices.setdefault(device.name, device)
    return tuple(sorted(devices.values(), key=_preference))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The facts of what no pod has, indexed by the PCI function that carries them."""

    functions: Mapping[str, PciFunction]
    links_on: Mapping[str, list[Link]]
    rdma_on: Mapping[str, list[RdmaDevice]]
    gpus: tuple[Gpu, ...]
    held_addresses: frozenset[str]

    @classmethod
    def of(cls, facts: NodeFacts, held: Mapping[str, Device]) -> _Parts:
        functions = {function.address: function for function in facts.pci_functions}
        held_rdma = {device.rdma_device for device in held.values() if device.rdma_device}
        links_on: dict[str, list[Link]] = defaultdict(list)
        rdma_on: dict[str, list[RdmaDevice]] = defaultdict(list)
        for link in facts.links:
            links_on[carrier(link, functions)].append(link)
        for rdma in facts.rdma_devices:
            if rdma.name not in held_rdma:
                rdma_on[rdma.pci_address].append(rdma)
        addresses = frozenset(device.pci_address for device in held.values() if device.pci_address)
        return cls(functions, links_on, rdma_on, facts.gpus, addresses)

    def pci_devices(self) -> Iterator[Device]:
        """One device for each network function, and for each other function with a link or RDMA device."""
        nics = {f.address for f in self.functions.values() if _is_attachable_nic(f)}
        for address in sorted(nics | {*self.links_on, *self.rdma_on} - {""}):
            if address not in self.held_addresses:
                function = self.functions.get(address)
                link = _main_link(address, self.links_on.get(address, ()))
                rdma = _main_rdma(link, self.rdma_on.get(address, ()))
                yield _device(naming.pci_device_name(address), link, rdma, function, address)

    def link_devices(self) -> Iterator[Device]:
        """Links without PCI. A name that the rules give twice goes through base32 the second time.

        The node's own links stay bare: nobody selects by attributes of what is never offered.
        """
        taken: set[str] = set()
        for link in self.links_on.get("", ()):
            name = naming.link_device_name(link.ifname)
            name = naming.encoded_link_name(link.ifname) if name in taken else name
            taken.add(name)
            if infrastructure_reason(link):
                yield Device(name, DeviceKind.NIC, ifname=link.ifname)
            else:
                yield _device(name, link, self._soft_rdma(link))

    def rdma_devices(self) -> Iterator[Device]:
        """RDMA devices without PCI whose interface, if they have one, is not among the links."""
        ifnames = {link.ifname for link in self.links_on.get("", ())}
        for rdma in self.rdma_on.get("", ()):
            if ifnames.isdisjoint(_netdevs(rdma)):
                yield _device(naming.rdma_device_name(rdma.name), None, rdma)

    def gpu_devices(self) -> Iterator[Device]:
        for gpu in self.gpus:
            if gpu.pci_address not in self.held_addresses:
                yield _gpu_device(gpu, self.functions.get(gpu.pci_address))

    def _soft_rdma(self, link: Link) -> RdmaDevice | None:
        on_link = (rdma for rdma in self.rdma_on.get("", ()) if link.ifname in _netdevs(rdma))
        return min(on_link, key=lambda rdma: rdma.name, default=None)


def carrier(link: Link, functions: Mapping[str, PciFunction]) -> str:
    """Address of the PCI function that makes up one device with the link, or empty.

    A USB adapter has a PCI function behind it as well, its host controller, which is no NIC: such a link is
    a device of its own.
    """
    function = functions.get(link.pci_address)
    if function is None or function.base_class == _PCI_CLASS_NETWORK or link.parent_bus == "pci":
        return link.pci_address
    return ""


def _is_attachable_nic(function: PciFunction) -> bool:
    """A network function that a kernel driver runs.

    The driver and not the link decides, because the driver stays in sight while the link is elsewhere.
    """
    if function.base_class != _PCI_CLASS_NETWORK or not function.driver:
        return False
    return function.driver not in PASSTHROUGH_DRIVERS


def _main_link(address: str, links: Iterable[Link]) -> Link | None:
    """The link that stands for the function where it has several (representors, sub-functions, two ports).

    First one whose parent is the function itself, that is no child of another link, and then the oldest
    (lowest ifindex): drivers make a function's own link before its representors.
    """
    return min(links, key=lambda k: (k.parent_device != address, bool(k.lower), k.ifindex), default=None)


def _main_rdma(link: Link | None, devices: Iterable[RdmaDevice]) -> RdmaDevice | None:
    """The RDMA device that names the link if there are several on one function, else the first by name."""
    ifname = link.ifname if link else ""
    return min(devices, key=lambda rdma: (ifname not in _netdevs(rdma), rdma.name), default=None)


def _netdevs(rdma: RdmaDevice) -> set[str]:
    return {ifname for port in rdma.ports for ifname in port.netdevs}


def _kind(link: Link | None, rdma: RdmaDevice | None, function: PciFunction | None) -> DeviceKind:
    """RDMA-only needs more than a link out of sight: RoCE always has one, perhaps in another namespace.

    The exception is RDMA over Ethernet on a function that is no network function by its class (Alibaba's
    eRDMA, 00ff): its link is another device's.
    """
    if link is not None or rdma is None:
        return DeviceKind.NIC
    is_roce = any(port.link_layer == "Ethernet" for port in rdma.ports)
    owns_link = function is None or function.base_class == _PCI_CLASS_NETWORK
    return DeviceKind.NIC if is_roce and owns_link else DeviceKind.RDMA


def _device(
    name: str,
    link: Link | None,
    rdma: RdmaDevice | None,
    function: PciFunction | None = None,
    address: str = "",
) -> Device:
    ifname = link.ifname if link else ""
    attributes: dict[Attribute, AttributeValue | None] = {VIRTUAL: False}
    attributes |= describe.describe_pci(function) if function else {}
    attributes |= {**describe.describe_link(link), **describe.describe_sriov(function)} if link else {}
    attributes |= describe.describe_rdma(rdma, ifname)
    device = Device(
        name=name,
        kind=_kind(link, rdma, function),
        attributes=attribute_map(attributes),
        ifname=ifname,
        pci_address=address,
        rdma_device=rdma.name if rdma else "",
        char_devices=rdma.char_devices if rdma else (),
    )
    return _placed(device, function)


def _gpu_device(gpu: Gpu, function: PciFunction | None) -> Device:
    values = {**(describe.describe_pci(function) if function else {}), **describe.describe_gpu(gpu)}
    device = Device(
        name=naming.gpu_device_name(gpu.pci_address),
        kind=DeviceKind.GPU,
        attributes=attribute_map(values),
        pci_address=gpu.pci_address,
        char_devices=gpu.char_devices,
    )
    return _placed(device, function)


def _placed(device: Device, function: PciFunction | None) -> Device:
    """The device with its place in the PCIe and NUMA tree."""
    if function is None:
        return device
    return replace(device, pci_path=function.path, pcie_root=function.root, numa_node=function.numa_node)


def _preference(device: Device) -> tuple[bool, bool, str, str]:
    return (device.kind is DeviceKind.GPU, not device.pci_address, device.pci_address, device.name)

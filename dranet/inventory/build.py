"""Facts -> devices: which PCI functions, links, RDMA devices and GPUs make one device each.

``offer`` decides whether a device is offered; here even the loopback is one, so that ``dranet devices
--all`` can show why it is excluded. A device that a pod has is out of the scan's sight: its link is in
another namespace while its PCI function (and, in shared RDMA mode, its RDMA device) is still here, and by
such half facts it could be given away twice. So its recorded self is used, even when its function is gone.

One PCI function is one device, as in DraNet. Where it carries several links (ConnectX-3, cxgb4), the first
one stands for it and the others stay on the node; representors and sub-functions never do. With RoCE LAG the
one RDMA device (``mlx5_bond_0``) belongs to the bond, although it sits on the first of the functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.inventory import slices
from dranet.inventory.cabling import describe_neighbour
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.inventory.topology import (
    PCI_CLASS_NETWORK,
    NearestGpus,
    carrier,
    near_numa_nodes,
    processor_nodes,
)
from dranet.model.attributes import SRIOV_VFS, VIRTUAL, Attribute, FittedValues, fit_values
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import Gpu, Link, LldpNeighbour, NodeFacts, PciFunction, RdmaDevice

_ARPHRD_INFINIBAND = 32

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
_Values = dict[Attribute, AttributeValue | None]


def build_devices(
    facts: NodeFacts, held: Mapping[str, Device], policy: Policy = DEFAULT_POLICY
) -> tuple[Device, ...]:
    """Every device of the node, NICs and RDMA devices before GPUs, each in the order of PCI address or name.
    The order is that of preference for consumers: a class that tests only ``device.driver`` gets a NIC. The
    order of the facts does not matter. ``held`` are the devices that pods have now, by name, as recorded at
    Prepare; each keeps every field but ``ifname``, which is emptied."""
    parts = _Hardware.of(facts, held, policy)
    devices = {name: replace(device, ifname="") for name, device in held.items()}
    for device in (*parts.pci_devices(), *parts.link_devices(), *parts.rdma_devices(), *parts.gpu_devices()):
        devices.setdefault(device.name, device)
    return _by_preference(devices.values())


@lru_cache(maxsize=4096)
def bare_device(name: str, ifname: str) -> Device:
    """One of the node's own links. A node full of pods has the same thousand of them at each scan."""
    return Device(name, DeviceKind.NIC, ifname=ifname)


class _Hardware(Struct, frozen=True):
    """The facts of what no pod has, indexed by the PCI function that carries them."""

    functions: Mapping[str, PciFunction]
    links_on: Mapping[str, Sequence[Link]]
    rdma_on: Mapping[str, Sequence[RdmaDevice]]
    rdma_under: Mapping[str, Sequence[RdmaDevice]]
    """RDMA devices without PCI (soft RDMA), by the name of each interface below them."""
    lags: Mapping[str, _Lag]
    """By the name of the bond."""
    gpus: Mapping[str, Gpu]
    held_functions: frozenset[str]
    """Addresses of the functions whose network or RDMA device a pod has. A GPU on the same function (Gaudi)
    is another device."""
    links: Mapping[int, Link]
    """By ifindex."""
    near_gpus: NearestGpus
    numa_lists: Mapping[int, tuple[int, ...]] | None
    """``None`` where the cluster does not take lists."""
    policy: Policy
    neighbours: Mapping[str, LldpNeighbour]
    """By interface name."""

    @property
    def takes_lists(self) -> bool:
        return self.numa_lists is not None

    @classmethod
    def of(cls, facts: NodeFacts, held: Mapping[str, Device], policy: Policy) -> _Hardware:
        functions = _index(facts.pci_functions, lambda function: function.address)
        functions |= _gpus_at_processors(facts, functions)
        links = _index(facts.links, lambda link: link.ifindex)
        gpus = _index(facts.gpus, lambda gpu: gpu.pci_address)
        rdma_on = _group_rdma(facts.rdma_devices, held)
        lags = _find_lags(links.values(), functions, rdma_on)
        of_lags = {lag.rdma.name for lag in lags.values()}
        rdma_under: dict[str, list[RdmaDevice]] = defaultdict(list)
        for rdma in rdma_on.get("", ()):
            for ifname in _netdevs(rdma):
                rdma_under[ifname].append(rdma)
        moves_ipoib = policy.move_ib_interfaces and not facts.rdma_netns_exclusive
        return cls(
            functions,
            _group_links(links, functions, moves_ipoib),
            {address: [d for d in devices if d.name not in of_lags] for address, devices in rdma_on.items()},
            rdma_under,
            lags,
            gpus,
            frozenset(d.pci_address for d in held.values() if d.kind is not DeviceKind.GPU),
            links,
            NearestGpus(_place_gpus(gpus, functions), functions.values()),
            near_numa_nodes(facts.numa_nodes) if policy.list_attributes else None,
            policy,
            {neighbour.ifname: neighbour for neighbour in facts.lldp_neighbours},
        )

    def pci_devices(self) -> Iterator[Device]:
        """One device for each network function, and for each other function with a link or RDMA device; also
        without a kernel driver, so that the reason for its exclusion can be shown."""
        nics = {f.address for f in self.functions.values() if f.base_class == PCI_CLASS_NETWORK}
        for address in sorted(nics | {*self.links_on, *self.rdma_on} - {""}):
            if address not in self.held_functions:
                link = _main_link(address, self.links_on.get(address, ()))
                rdma = _main_rdma(link, self.rdma_on.get(address, ())) or self._soft_rdma(link)
                yield self._device(slices.pci_device_name(address), link, rdma, address)

    def link_devices(self) -> Iterator[Device]:
        """Links without PCI. A name that the rules give twice goes through base32 the second time. The node's
        own links stay bare: attributes of what is never offered have no use."""
        taken: set[str] = set()
        for link in self.links_on.get("", ()):
            name = slices.link_device_name(link.ifname)
            name = slices.encoded_link_name(link.ifname) if name in taken else name
            taken.add(name)
            lag = self.lags.get(link.ifname)
            if infrastructure_reason(link, {link.kind} if lag else self.policy.offer_link_kinds):
                yield bare_device(name, link.ifname)
            elif lag:
                yield self._device(name, link, lag.rdma, place=lag.place)
            else:
                yield self._device(name, link, self._soft_rdma(link))

    def rdma_devices(self) -> Iterator[Device]:
        """RDMA devices without PCI that no interface in sight has below it."""
        ifnames = {link.ifname for link in self.links.values()}
        for rdma in self.rdma_on.get("", ()):
            if ifnames.isdisjoint(_netdevs(rdma)):
                yield self._device(slices.rdma_device_name(rdma.name), None, rdma)

    def gpu_devices(self) -> Iterator[Device]:
        for address, gpu in sorted(self.gpus.items()):
            function = self.functions.get(address)
            values: _Values = {**slices.describe_address(address)}
            if function:
                values |= slices.describe_pci(function)
                values |= slices.describe_numa(function.numa_node, self.numa_lists)
            values |= {**slices.describe_versions(None, None, function), **slices.describe_gpu(gpu)}
            fitted = fit_values(values)
            yield replace(_placed_gpu(gpu, function), attributes=fitted.kept, left_out=fitted.left_out)

    def _neighbour(self, link: Link, function: PciFunction | None) -> LldpNeighbour | None:
        """The switch at the other end; a virtual function has the cable of its physical function."""
        pf = function.physical_function if function else ""
        wire = _main_link(pf, self.links_on.get(pf, ())) if pf else link
        return self.neighbours.get(wire.ifname) if wire else None

    def _soft_rdma(self, link: Link | None) -> RdmaDevice | None:
        on_link = self.rdma_under.get(link.ifname, ()) if link else ()
        return min(on_link, key=lambda rdma: rdma.name, default=None)

    def _device(
        self,
        name: str,
        link: Link | None,
        rdma: RdmaDevice | None,
        address: str = "",
        place: PciFunction | None = None,
    ) -> Device:
        """``place``: where a device without a function of its own sits in the PCIe and NUMA tree."""
        function = self.functions.get(address)
        fitted = self._describe(link, rdma, function, address, place)
        at = function or place
        return Device(
            name,
            _kind(link, rdma, function),
            fitted.kept,
            ifname=link.ifname if link else "",
            pci_address=address,
            pci_path=at.path if at else (),
            pcie_root=at.root if at else "",
            physical_function=function.physical_function if function else "",
            vf_index=function.virtual_function_index if function and function.physical_function else None,
            numa_node=at.numa_node if at else None,
            rdma_device=rdma.name if rdma else "",
            char_devices=rdma.char_devices if rdma else (),
            rdma_guid=rdma.node_guid if rdma else "",
            rdma_pci_address=rdma.pci_address if rdma else "",
            left_out=fitted.left_out,
        )

    def _describe(
        self,
        link: Link | None,
        rdma: RdmaDevice | None,
        function: PciFunction | None,
        address: str,
        place: PciFunction | None,
    ) -> FittedValues:
        values: _Values = {VIRTUAL: False}
        if address:
            values |= slices.describe_address(address)
        if at := function or place:
            values |= slices.describe_pci(function) if function else slices.describe_place(at)
            values |= slices.describe_numa(at.numa_node, self.numa_lists)
            near = self.near_gpus.of(at)
            values |= slices.describe_near_gpus(near)
            values |= slices.describe_roots(at.root, near) if self.takes_lists else {}
        if link or function:
            values |= slices.describe_sriov(function)
        if link:
            values |= slices.describe_link(link)
            values |= slices.describe_relatives(link, self.links)
            if self.neighbours:
                values |= describe_neighbour(self._neighbour(link, function), self.policy.rail_pattern)
        values |= slices.describe_rdma(rdma, link.ifname if link else "")
        values |= slices.describe_versions(link, rdma, function)
        return fit_values(values)


class _Lag(Struct, frozen=True):
    """A bond whose ports' functions share one RDMA device."""

    rdma: RdmaDevice
    place: PciFunction | None
    """The function of the RDMA device, with those parts of its place that the ports have in common."""


def _find_lags(
    links: Collection[Link], functions: Mapping[str, PciFunction], rdma_on: Mapping[str, Sequence[RdmaDevice]]
) -> Mapping[str, _Lag]:
    """The bonds of RoCE LAG. The GID table of each port of an ordinary bond names the bond as well; so there
    must be one RDMA device for all ports."""
    ports: dict[int, set[str]] = defaultdict(set)
    for link in links:
        if link.master and link.pci_address and (address := carrier(link, functions)):
            ports[link.master].add(address)
    found: dict[str, _Lag] = {}
    for bond in (link for link in links if link.kind == "bond"):
        addresses = sorted(ports[bond.ifindex])
        devices = [rdma for address in addresses for rdma in rdma_on.get(address, ())]
        if len(addresses) > 1 and len(devices) == 1 and bond.ifname in _netdevs(devices[0]):
            members = [functions[address] for address in addresses if address in functions]
            found[bond.ifname] = _Lag(devices[0], _common_place(devices[0], members))
    return found


def _common_place(rdma: RdmaDevice, members: Sequence[PciFunction]) -> PciFunction | None:
    own = next((function for function in members if function.address == rdma.pci_address), None)
    if own is None:
        return None
    has_root = all(function.root == own.root for function in members)
    has_numa = all(function.numa_node == own.numa_node for function in members)
    return replace(
        own,
        path=own.path if has_root else (),
        root=own.root if has_root else "",
        numa_node=own.numa_node if has_numa else None,
    )


def is_ipoib(link: Link) -> bool:
    return link.kind == "ipoib" or link.arp_type == _ARPHRD_INFINIBAND


def _index(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, _T]:
    """``items`` by their key. Keys are unique, or the facts are odd: then any one counts, but always the
    same one."""
    found: dict[_K, _T] = {}
    for item in items:
        known = found.setdefault(key(item), item)
        if known is not item and repr(item) < repr(known):
            found[key(item)] = item
    return found


def _group_links(
    links: Mapping[int, Link], functions: Mapping[str, PciFunction], moves_ipoib: bool
) -> Mapping[str, Sequence[Link]]:
    """Links by the function that carries them (empty: none), each in the order of ifindex. An IPoIB interface
    is no device where its adapter's RDMA device moves to the pod: the kernel destroys the interface then."""
    grouped: dict[str, list[Link]] = defaultdict(list)
    for index in sorted(links):
        link = links[index]
        if moves_ipoib or not is_ipoib(link):
            grouped[carrier(link, functions) if link.pci_address else ""].append(link)
    return grouped


def _group_rdma(
    devices: Iterable[RdmaDevice], held: Mapping[str, Device]
) -> Mapping[str, Sequence[RdmaDevice]]:
    """RDMA devices that no pod has, by PCI address (empty: none), each in the order of names."""
    guids = {device.rdma_guid for device in held.values()} - {""}
    names = {device.rdma_device for device in held.values() if not device.rdma_guid}
    grouped: dict[str, list[RdmaDevice]] = defaultdict(list)
    for name, rdma in sorted(_index(devices, lambda rdma: rdma.name).items()):
        if rdma.node_guid not in guids and name not in names:
            grouped[rdma.pci_address].append(rdma)
    return grouped


def _main_link(address: str, links: Iterable[Link]) -> Link | None:
    """The link that stands for the function: one whose parent is the function itself, that is no child of
    another link, and then the oldest (lowest ifindex): drivers make a function's own link, and its first
    port, first."""
    own = (link for link in links if not is_representor(link) and not is_sub_function(link))
    return min(own, key=lambda k: (k.parent_device != address, bool(k.lower), k.ifindex), default=None)


def _main_rdma(link: Link | None, devices: Iterable[RdmaDevice]) -> RdmaDevice | None:
    """The RDMA device that names the link if there are several on one function, else the first by name."""
    ifname = link.ifname if link else ""
    return min(devices, key=lambda rdma: (ifname not in _netdevs(rdma), rdma.name), default=None)


def _netdevs(rdma: RdmaDevice) -> set[str]:
    return {ifname for port in rdma.ports for ifname in port.netdevs}


def _kind(link: Link | None, rdma: RdmaDevice | None, function: PciFunction | None) -> DeviceKind:
    """RDMA-only needs more than a link out of sight: RoCE always has one, perhaps in another namespace. The
    exception is RDMA over Ethernet on a function that is no network function by its class (Alibaba's eRDMA,
    00ff): its link is another device's."""
    if link is not None or rdma is None:
        return DeviceKind.NIC
    is_roce = any(port.link_layer == "Ethernet" for port in rdma.ports)
    owns_link = function is None or function.base_class == PCI_CLASS_NETWORK
    return DeviceKind.NIC if is_roce and owns_link else DeviceKind.RDMA


def _gpus_at_processors(facts: NodeFacts, functions: Mapping[str, PciFunction]) -> dict[str, PciFunction]:
    """The functions of GPUs whose NUMA node is memory alone, at the nearest processor: NICs are there."""
    processors = processor_nodes(facts.numa_nodes)
    gpus = [functions[gpu.pci_address] for gpu in facts.gpus if gpu.pci_address in functions]
    return {
        gpu.address: replace(gpu, numa_node=processors[gpu.numa_node])
        for gpu in gpus
        if gpu.numa_node is not None and gpu.numa_node in processors
    }


def _place_gpus(gpus: Mapping[str, Gpu], functions: Mapping[str, PciFunction]) -> list[Device]:
    """In the order of PCI addresses, without virtual functions: a claim is for the GPU that they are of."""
    placed = [
        (_placed_gpu(gpus[address], functions.get(address)), functions.get(address))
        for address in sorted(gpus)
    ]
    return [gpu for gpu, function in placed if function is None or function.physical_function not in gpus]


def _placed_gpu(gpu: Gpu, function: PciFunction | None) -> Device:
    """The GPU with its place in the PCIe and NUMA tree, still without attributes."""
    return Device(
        slices.gpu_device_name(gpu.pci_address),
        DeviceKind.GPU,
        pci_address=gpu.pci_address,
        pci_path=function.path if function else (),
        pcie_root=function.root if function else "",
        numa_node=function.numa_node if function else None,
        char_devices=gpu.char_devices,
    )


def _by_preference(devices: Collection[Device]) -> tuple[Device, ...]:
    """Cards, software links, GPUs. A physical function with virtual ones comes after the other cards: a pod
    that gets it takes the link from the pods that have its virtual functions."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    cards = [device for device in devices if device.pci_address and device.kind is not DeviceKind.GPU]
    software = [device for device in devices if not device.pci_address and device.kind is not DeviceKind.GPU]
    return (
        *sorted(cards, key=lambda d: (bool(d.attributes.get(SRIOV_VFS.qualified)), d.pci_address, d.name)),
        *sorted(software, key=attrgetter("name")),
        *sorted(gpus, key=attrgetter("pci_address", "name")),
    )


OFFERED_KINDS = frozenset({"", "dummy", "ipoib", "ipvlan", "macvlan", "netdevsim", "vlan"})
"""``IFLA_INFO_KIND`` of links without PCI that a pod may have; empty is hardware (USB, VMBus ...)."""

PAIR_KINDS = frozenset({"netkit", "veth"})
"""Links that come in pairs; ``IFLA_LINK`` names the other end."""

_NODE_LINK_NAMES = re.compile(
    r"(antrea-|azv|cali|cilium_|cni|docker|flannel|ipvl_|lxc|nerdctl|ovn-k8s-|podman|virbr|vlan\.eth\.|weave).*"
    r"|(egress|vxlan|vxlan-v6)\.calico|(wireguard|wg-v6)\.cali|(bpfin|bpfout)\.cali|tunl0"
    r"|cbr0|kube-bridge|kube-dummy-if|kube-ipvs0|nodelocaldns|ovn0|pod-id-link0"
    r"|(genev|vxlan)_sys_\d+"
)
"""Links that container networks and their helpers make for themselves, whatever their kind. By kind alone
kube-ipvs0, nodelocaldns, kube-dummy-if, pod-id-link0 (EKS) and antrea-egress0 would be offered as dummies,
vlan.eth.7 (EKS) and antrea-ext.7 as VLANs, ipvl_7 (Terway) as an ipvlan."""


def infrastructure_reason(link: Link, offered_kinds: Collection[str] = ()) -> str:
    """Why a link without PCI is not for pods (a clause that reads after its name); empty if it may be.
    ``offered_kinds``: further kinds that the operator offers."""
    if link.kind in PAIR_KINDS and link.link_netnsid is not None:
        return (
            f"is part of the node's own network: of kind {link.kind}, its other end is in another namespace"
        )
    if link.kind not in OFFERED_KINDS and link.kind not in offered_kinds:
        return f"is part of the node's own network: of kind {link.kind}"
    if not link.kind and link.is_loopback:
        return "is the loopback"
    if not link.kind and link.virtual:
        return "is part of the node's own network: made by software, of no kind that the kernel names"
    if _NODE_LINK_NAMES.fullmatch(link.ifname):
        return f"is part of the node's own network: {link.ifname} is made by its container network"
    if is_representor(link):
        return f"is a representor: {link.phys_port_name} of an embedded switch"
    return ""


_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
"""``pf0vf3``, ``c1pf0sf88``, ``pf0``; the wire's own port is ``p0``."""

_SUB_FUNCTION = re.compile(r".+\.sf\.\d+")
"""``mlx5_core.sf.4``."""


def is_representor(link: Link) -> bool:
    return bool(link.phys_port_name) and _REPRESENTOR.fullmatch(link.phys_port_name) is not None


def is_sub_function(link: Link) -> bool:
    """Whether it is the link of a sub-function, a part of the PCI function below it."""
    return link.parent_bus == "auxiliary" and _SUB_FUNCTION.fullmatch(link.parent_device) is not None

"""What a testbed node is made of: a file with sockets, PCIe trees, NICs, GPUs and networks.

Pure: it reads a file and answers questions. ``sysfs_tree`` writes what a kernel would show of it,
``fabric`` makes its links. It must not know the driver's idea of a device: the testbed is the other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from testbed.yamlfile import DATA, find_file, read_model

PciAddress = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")]
IdPair = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
Mac = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")]
Ifname = Annotated[str, StringConstraints(pattern=r"^[^\s/:]{1,15}$")]
"""IFNAMSIZ is 16 with the terminating zero."""

_BRIDGE_CLASS = "0604"
_ADDRESSES_PER_NODE = 16
"""How far the addresses of one NIC in two neighboring nodes are apart."""


def _unicast(mac: str) -> str:
    if int(mac[:2], 16) & 1:
        raise ValueError("is a multicast address")
    return mac


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Model):
    """A kind of PCI function; many functions of a node are the same part."""

    description: str
    class_code: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{6}$")] = Field(alias="class")
    id: IdPair
    """``vendor:device``."""
    subsystem: IdPair = "0000:0000"
    driver: str = ""
    speed: str = ""
    """``current_link_speed``."""
    width: int = 0
    rdma_rate: str = ""
    """As ``ports/1/rate`` prints it; for NICs with RDMA."""
    firmware: str = ""
    total_vfs: Annotated[int, Field(ge=0, le=64)] = 0
    """``sriov_totalvfs``; 0 for a part without SR-IOV."""


class Nic(_Model):
    """The network interface of a function."""

    ifname: Ifname
    mac: Annotated[Mac, AfterValidator(_unicast)]
    network: str
    address: IPv4Interface
    rdma: str = ""
    """RDMA device name; empty for a NIC without RDMA."""


class Hca(_Model):
    """An InfiniBand adapter without IPoIB: an RDMA device, and no network interface."""

    rdma: str
    guid: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class Gpu(_Model):
    """The NVIDIA device behind a function: ``/dev/nvidia<minor>``."""

    minor: Annotated[int, Field(ge=0, le=254)]
    uuid: str


class Function(_Model):
    """One PCI function and what hangs below it (of a bridge)."""

    address: PciAddress
    part: str
    below: tuple[Function, ...] = ()
    nic: Nic | None = None
    hca: Hca | None = None
    gpu: Gpu | None = None
    vf_of: PciAddress | None = None
    """The physical function of a virtual one."""


class Root(_Model):
    """A PCIe root complex: ``/sys/devices/pciDDDD:BB``."""

    name: Annotated[str, StringConstraints(pattern=r"^pci[0-9a-f]{4}:[0-9a-f]{2}$")]
    functions: tuple[Function, ...] = ()


class Socket(_Model):
    """One CPU socket, which is one NUMA node here."""

    numa_node: Annotated[int, Field(ge=0)]
    cpus: str
    roots: tuple[Root, ...]


class NetworkRoute(_Model):
    """A route that every NIC of the network gets through the network's gateway."""

    to: IPv4Network | Literal["default"]
    metric: Annotated[int, Field(ge=0)]


class Network(_Model):
    """One segment of the fabric: a bridge whose own address is the gateway to the other segments."""

    gateway: IPv4Interface
    mtu: Annotated[int, Field(ge=1280, le=65535)]
    routes: tuple[NetworkRoute, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A function with its place: everything sysfs knows of it."""

    function: Function
    part: Part
    root: str
    numa_node: int
    cpus: str
    path: tuple[str, ...]
    """Addresses from just below the root down to this function itself."""

    @property
    def address(self) -> str:
        return self.function.address


@dataclass(frozen=True, slots=True)
class PlacedNic:
    """A NIC with its place and network."""

    nic: Nic
    placed: Placed
    network: Network


class Hardware(_Model):
    """A whole node."""

    name: str
    description: str
    parts: dict[str, Part]
    networks: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,12}$")], Network]
    sockets: Annotated[tuple[Socket, ...], Field(min_length=1)]

    def placed(self) -> Iterator[Placed]:
        """Every function, parents first, in the order of the file."""
        for socket in self.sockets:
            for root in socket.roots:
                for function in root.functions:
                    yield from self._below(function, socket, root.name, ())

    def nics(self) -> tuple[PlacedNic, ...]:
        """Every NIC, in the order of the file."""
        return tuple(
            PlacedNic(nic, placed, self.networks[nic.network])
            for placed in self.placed()
            if (nic := placed.function.nic)
        )

    def virtual_functions(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the virtual functions of each physical one, in the order of their indexes."""
        pairs = [(placed.function.vf_of, placed.address) for placed in self.placed()]
        parents = dict.fromkeys(parent for parent, _ in pairs if parent)
        return {parent: tuple(vf for of, vf in pairs if of == parent) for parent in parents}

    def as_node(self, number: int) -> Hardware:
        """The same hardware in another node of one network: MAC and IP addresses differ. Node 0 is this one.

        Raises:
            ValueError: a network has no such addresses.
        """
        data = self.model_dump(by_alias=True)
        functions = [f for socket in data["sockets"] for root in socket["roots"] for f in root["functions"]]
        while functions:
            function = functions.pop()
            functions += function["below"]
            if nic := function["nic"]:
                nic["mac"] = _renumber_mac(nic["mac"], number)
                nic["address"] = IPv4Interface(
                    (nic["address"].ip + _ADDRESSES_PER_NODE * number, nic["address"].network.prefixlen)
                )
        return Hardware.model_validate(data)

    def _below(
        self, function: Function, socket: Socket, root: str, above: tuple[str, ...]
    ) -> Iterator[Placed]:
        path = (*above, function.address)
        yield Placed(function, self.parts[function.part], root, socket.numa_node, socket.cpus, path)
        for child in function.below:
            yield from self._below(child, socket, root, path)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        faults = [
            *self._unknown_names(),
            *self._duplicates(),
            *self._misplaced(),
            *self._off_network(),
            *self._strange_parents(),
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _functions(self) -> Iterator[tuple[str, Function]]:
        """Every function with its field path; usable before the names are known to be good."""
        for s, socket in enumerate(self.sockets):
            for r, root in enumerate(socket.roots):
                yield from _walk(f"sockets[{s}].roots[{r}].functions", root.functions)

    def _unknown_names(self) -> Iterator[str]:
        for where, function in self._functions():
            if function.part not in self.parts:
                yield f"{where}.part: no part {function.part!r}"
            if function.nic and function.nic.network not in self.networks:
                yield f"{where}.nic.network: no network {function.nic.network!r}"

    def _duplicates(self) -> Iterator[str]:
        seen: dict[tuple[str, object], str] = {}
        for where, function in self._functions():
            for field, value in _unique_values(function):
                first = seen.setdefault((field, value), where)
                if first != where:
                    yield f"{where}.{field}: {value} is already at {first}"

    def _misplaced(self) -> Iterator[str]:
        for where, function in self._functions():
            part = self.parts.get(function.part)
            if part and function.below and not part.class_code.startswith(_BRIDGE_CLASS):
                yield f"{where}.below: only a bridge (class 0604xx) has functions below it"

    def _off_network(self) -> Iterator[str]:
        for where, function in self._functions():
            network = self.networks.get(function.nic.network) if function.nic else None
            if function.nic and network and function.nic.address.network != network.gateway.network:
                yield f"{where}.nic.address: {function.nic.address} is not in {network.gateway.network}"

    def _strange_parents(self) -> Iterator[str]:
        parents = {f.address: self.parts[f.part] for _, f in self._functions() if f.part in self.parts}
        for where, function in self._functions():
            if function.vf_of and not (parent := parents.get(function.vf_of)):
                yield f"{where}.vf_of: no function {function.vf_of}"
            elif function.vf_of and parent and not parent.total_vfs:
                yield f"{where}.vf_of: {function.vf_of} has no total_vfs"


def load_hardware(name_or_path: str) -> Hardware:
    """Read a shipped file by name (``dgx-h100``) or any file by path.

    Raises:
        InvalidFile: every fault at once, with its field path.
    """
    return read_model(find_file(name_or_path, DATA), Hardware)


def known_hardware() -> tuple[Path, ...]:
    """The files that the package ships."""
    return tuple(sorted(DATA.glob("*.yaml")))


def _renumber_mac(mac: str, number: int) -> str:
    """The vendor's half stays."""
    octets = mac.split(":")
    octets[3] = f"{(int(octets[3], 16) + _ADDRESSES_PER_NODE * number) % 256:02x}"
    return ":".join(octets)


def _walk(where: str, functions: tuple[Function, ...]) -> Iterator[tuple[str, Function]]:
    for index, function in enumerate(functions):
        here = f"{where}[{index}]"
        yield here, function
        yield from _walk(f"{here}.below", function.below)


def _unique_values(function: Function) -> Iterator[tuple[str, object]]:
    yield "address", function.address
    if nic := function.nic:
        yield "nic.ifname", nic.ifname
        yield "nic.mac", nic.mac
        yield "nic.address", nic.address.ip
        if nic.rdma:
            yield "nic.rdma", nic.rdma
    if function.hca:
        yield "nic.rdma", function.hca.rdma
    if function.gpu:
        yield "gpu.minor", function.gpu.minor
        yield "gpu.uuid", function.gpu.uuid

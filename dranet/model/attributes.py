"""The catalogue of published attributes: every name with its type, its meaning and when it is left out.

Names and types are DraNet's where DraNet has them, because users' selectors name them. Limits are those of
``resource.k8s.io/v1``: a value that the API server would refuse takes the whole slice with it, so it is cut
or left out here. Where a device has more than a slice can take, the order of :data:`CATALOGUE` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import force_setattr

from dranet.model.device import AttributeValue

DOMAIN = "dra.net"
"""Domain of our attributes, as in DraNet; the same under any driver name, so that selectors keep working."""

STANDARD_DOMAIN = "resource.kubernetes.io"
"""Names standardised by Kubernetes; drivers meet on them with ``matchAttribute``."""

ALIBABA_DOMAIN = "alibaba.dra.net"
"""DraNet's manifests for Alibaba's cloud select in it."""

MAX_VALUE_BYTES = 64
MAX_NAME_LENGTH = 32
_MAX_DOMAIN_LENGTH = 63
MAX_ATTRIBUTES_PER_DEVICE = 32
"""Together with capacities."""
MAX_VALUES_PER_DEVICE = 48
"""A list counts its items (Kubernetes 1.36)."""

BANDWIDTH = f"{DOMAIN}/bandwidth"
"""The capacity of a shared device, in bits per second."""

NOT_TEXT = "is no text (bytes that are not UTF-8)"

_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_INT = 2**63 - 1


class AttributeType(StrEnum):
    """The scalar kinds of DeviceAttribute that we use."""

    STRING = "string"
    INT = "int"
    BOOL = "bool"


_PythonType = type[bool | int | str]
_PYTHON_TYPES: dict[str, _PythonType] = {"string": str, "int": int, "bool": bool}


class Stability(StrEnum):
    """What a selector may rely on, in the words of the page."""

    STANDARD = "Kubernetes standard"
    DRANET = "as in DraNet"
    KEPT = "ours, kept"
    MAY_CHANGE = "ours, may change"


class Attribute(
    Struct, frozen=True, eq=False
):  # hashed by identity: it is a key for every fact of every scan
    """One published attribute. ``omitted_when`` is empty where every device has it.

    Its place in the budget is its place in :data:`CATALOGUE`; an ``essential`` one comes even before the
    operator's own attributes.
    """

    name: str
    type: AttributeType
    meaning: str
    omitted_when: str = ""
    domain: str = DOMAIN
    stability: Stability = Stability.KEPT
    essential: bool = False
    may_be_set: bool = False
    """The operator's rules may set it as well, and take precedence."""
    has_list_form: bool = False
    """The value may be a list of its type, if the operator has declared that the cluster accepts lists."""
    qualified: str = ""
    """``domain/name``, the key in ``Device.attributes``; derived from ``domain`` and ``name``."""
    python_type: _PythonType = str
    """Derived from ``type``."""

    def __post_init__(self) -> None:
        force_setattr(self, "qualified", f"{self.domain}/{self.name}")
        force_setattr(self, "python_type", _PYTHON_TYPES[self.type])

    __hash__ = object.__hash__

    @property
    def selector(self) -> str:
        """How a CEL selector spells it."""
        return f'device.attributes["{self.domain}"].{self.name}'


_S, _I, _B = AttributeType.STRING, AttributeType.INT, AttributeType.BOOL
_dranet = partial(Attribute, stability=Stability.DRANET)
_essential = partial(_dranet, essential=True)
_standard = partial(Attribute, domain=STANDARD_DOMAIN, stability=Stability.STANDARD, essential=True)
_may_change = partial(Attribute, stability=Stability.MAY_CHANGE)
_NO_LINK = "the device has no network interface"
_NO_PCI = "the device is not on PCI"
_NO_RDMA = "the device has no RDMA device"
_NO_GPU = "the device is not a GPU"
_NOT_REPORTED = "the driver does not report it"
_NO_VF = "it is not a virtual function"
_NO_PCI_LINK = "the function has no PCIe link of its own"
_AS_MANY = "joined by commas, as many as fit"

# Essential: without these nothing can be selected or aligned.
RDMA = _essential("rdma", _B, "whether the device has an RDMA device")
VIRTUAL = _essential("virtual", _B, "whether it is a software interface (below `/sys/devices/virtual`)")
TYPE = _essential(
    "type",
    _S,
    "kind of the interface (`device` for hardware, `dummy`, `vlan`, `macvlan`, `ipoib` ...); `gpu` for a GPU",
    "the device is RDMA-only",
)
IFNAME = _essential(
    "ifName",
    _S,
    "name of the interface on the node; empty on a GPU, so that a claim which selects by it skips GPUs",
    _NO_LINK,
)
STANDARD_PCIE_ROOT = _standard(
    "pcieRoot",
    _S,
    "PCIe root complex, `pci0000:00`; with the setting `list_attributes`, on a NIC that has no GPU below its "
    "root, a list: its own root, then those of the GPUs of its NUMA node that have no NIC below theirs",
    _NO_PCI,
    has_list_form=True,
)
STANDARD_PCI_BUS_ID = _standard(
    "pciBusID", _S, "PCI address, `dddd:bb:dd.f`", "no PCI, or a domain of over 4 digits"
)
STANDARD_NUMA_NODE = _standard(
    "numaNode",
    _I,
    "NUMA node; with the setting `list_attributes` a list: this node, then the nearest others of its socket",
    "the platform does not report it",
    has_list_form=True,
)

# What DraNet publishes for all interfaces.
RDMA_DEVICE = _dranet(
    "rdmaDevice", _S, "kernel name of the RDMA device; empty on a GPU, as `ifName` is", _NO_RDMA
)
NUMA_NODE = _dranet(
    "numaNode",
    _I,
    "NUMA node; for a GPU whose node has no CPUs, the closest node with CPUs",
    "the platform does not report it",
)
PCI_ADDRESS = _dranet("pciAddress", _S, "PCI address, `dddd:bb:dd.f`", _NO_PCI)
PCI_VENDOR = _dranet(
    "pciVendor", _S, "PCI vendor's name, as in pci.ids; `unknown` if it is not there", _NO_PCI
)
PCI_DEVICE = _dranet(
    "pciDevice",
    _S,
    "PCI device's name, as in pci.ids: `Elastic Fabric Adapter (EFA)`; `unknown` if it is not there",
    _NO_PCI,
)
PCI_SUBSYSTEM = _dranet(
    "pciSubsystem", _S, "PCI subsystem's device id, four hex digits; `0000` without one", _NO_PCI
)
IS_SRIOV_VF = _dranet("isSriovVf", _B, "always true", _NO_VF)
SRIOV = _dranet(
    "sriov",
    _B,
    "whether the function can make virtual functions",
    "neither an interface nor on PCI, or a GPU",
)
SRIOV_VFS = _dranet("sriovVfs", _I, "virtual functions made now", "it cannot make any")
MAC = _dranet("mac", _S, "hardware address", _NO_LINK)
MTU = _dranet("mtu", _I, "MTU in bytes", _NO_LINK)
STATE = _dranet("state", _S, "operational state: `up`, `down`, `lowerlayerdown` ...", _NO_LINK)
ENCAPSULATION = _dranet("encapsulation", _S, "link layer: `ether`, `infiniband` ...", _NO_LINK)
ALIAS = _dranet("alias", _S, "the interface's alias, may be empty", _NO_LINK)
EBPF = _dranet(
    "ebpf",
    _B,
    "whether BPF programs are attached to the TC or TCX hooks",
    "no interface, or it could not be read",
)
ERDMA = _dranet(
    "erdma",
    _B,
    "always true: the RDMA function's driver is `erdma`",
    "it is not Alibaba's eRDMA",
    ALIBABA_DOMAIN,
)

# What a claim aligns by.
NEAREST_GPUS = Attribute(
    "nearestGpus",
    _S,
    f"PCI addresses of the GPUs closest to the function, sorted, {_AS_MANY}",
    "a GPU, no PCI, or there is no GPU whose place is known",
)
NEAREST_GPU_DISTANCE = Attribute(
    "nearestGpuDistance",
    _S,
    "distance to these GPUs: `PIX`, `PXB`, `PHB`, `NODE` or `SYS`, as in `nvidia-smi topo -m`",
    "a GPU, no PCI, or there is no GPU whose place is known",
)
PCIE_SWITCH = Attribute(
    "pcieSwitch",
    _S,
    "PCI address of the switch (its upstream port) above the function, or of the root port where "
    "there is no switch: functions with the same value are `PIX`",
    "no PCI, or the function is on the root bus",
)
SRIOV_PF_ADDRESS = Attribute("sriovPfAddress", _S, "PCI address of the physical function", _NO_VF)
SRIOV_VF_INDEX = Attribute(
    "sriovVfIndex", _I, "number of the virtual function, from 0, as in `ip link set PF vf N`", _NO_VF
)
RDMA_LINK_LAYER = Attribute(
    "rdmaLinkLayer",
    _S,
    "link layer of the RDMA port (the one of the interface, else the first): `Ethernet` or `InfiniBand`",
    _NO_RDMA,
)
RDMA_PORT_STATE = Attribute("rdmaPortState", _S, "state of that port: `ACTIVE`, `DOWN` ...", _NO_RDMA)
RDMA_RATE = Attribute(
    "rdmaRateGbps", _I, "rate of that port in Gbit/s, rounded down", "the kernel does not report it"
)
LINK_SPEED = Attribute(
    "linkSpeedMbps", _I, "negotiated speed in Mbit/s", "the link is down, or the driver does not report it"
)
# Where its cable goes: only with the setting `lldp`, and `rail` also by a rule of the operator.
_NO_NEIGHBOUR = "`lldp` is off, or no switch has announced itself"
RAIL = Attribute(
    "rail",
    _I,
    "number of the rail, as `rail_pattern` finds it in what the switch announces (LLDP); a virtual function "
    "has that of its physical function. A rule of `attributes_file` may set it instead",
    "neither gives one",
    may_be_set=True,
)
SWITCH_NAME = Attribute("switchName", _S, "system name that the switch announces", _NO_NEIGHBOUR)
SWITCH_CHASSIS_ID = Attribute(
    "switchChassisId", _S, "chassis id that the switch announces, mostly a MAC address", _NO_NEIGHBOUR
)
SWITCH_PORT_ID = Attribute(
    "switchPortId", _S, "id of the switch's port, as it announces it: `swp7`, `Ethernet1/5`", _NO_NEIGHBOUR
)

NUMA_NODE_GPUS = Attribute(
    "numaNodeGpus",
    _S,
    f"PCI addresses of all GPUs on the function's NUMA node, sorted, {_AS_MANY}; every other GPU is `SYS`",
    "there is no GPU on it, or the NUMA node of the function or of some GPU is unknown",
)
MORE_NEAREST_GPUS = Attribute(
    "moreNearestGpus", _S, "what does not fit into `nearestGpus`", "`nearestGpus` has all"
)
MORE_NUMA_NODE_GPUS = Attribute(
    "moreNumaNodeGpus", _S, "what does not fit into `numaNodeGpus`", "`numaNodeGpus` has all"
)

# What comes and goes while the node runs.
_ADDRESSES = "global unicast {} addresses in CIDR form, sorted, " + _AS_MANY
IPV4 = _dranet("ipv4", _S, _ADDRESSES.format("IPv4"), "it has none")
IPV6 = _dranet("ipv6", _S, _ADDRESSES.format("IPv6"), "it has none")
TC_FILTERS = _dranet(
    "tcFilterNames", _S, f"names of the BPF programs on the TC hooks, sorted, {_AS_MANY}", "it has none"
)
TCX_PROGRAMS = _dranet(
    "tcxProgramNames", _S, f"names of the BPF programs on the TCX hooks, sorted, {_AS_MANY}", "it has none"
)

# The rest, the most useful first.
GPU_VENDOR = Attribute("gpuVendor", _S, "`nvidia`, `amd`, `intel` ..., or the vendor id in hex", _NO_GPU)
GPU_MODEL = Attribute("gpuModel", _S, "model name", "no GPU, or its driver does not report it")
GPU_UUID = Attribute("gpuUUID", _S, "the vendor's unique id", "no GPU, or its driver does not report it")
BOND = Attribute("bond", _S, "the bond whose port the interface is", "it is not a port of a bond")
BRIDGE = Attribute("bridge", _S, "the bridge whose port the interface is", "it is not a port of a bridge")
PARENT = Attribute(
    "parent", _S, "the interface below this one (of a VLAN, macvlan ...)", "the node has no such interface"
)
VLAN_ID = Attribute("vlanId", _I, "VLAN id", "the interface is not a VLAN")
PCI_VENDOR_ID = Attribute("pciVendorId", _S, "PCI vendor id, four hex digits", _NO_PCI)
PCI_DEVICE_ID = Attribute("pciDeviceId", _S, "PCI device id, four hex digits", _NO_PCI)
DRIVER = Attribute(
    "driver",
    _S,
    "kernel driver, as the interface names it (`ethtool -i`), else the PCI function's",
    "a software interface, or it has none",
)
PCIE_GENERATION = Attribute("pcieGeneration", _I, "PCIe generation of the link now, 1 to 6", _NO_PCI_LINK)
PCIE_WIDTH = Attribute("pcieWidth", _I, "PCIe lanes of the link now", _NO_PCI_LINK)
PCIE_MAX_GENERATION = Attribute("pcieMaxGeneration", _I, "highest PCIe generation it supports", _NO_PCI_LINK)
PCIE_MAX_WIDTH = Attribute("pcieMaxWidth", _I, "highest number of PCIe lanes it supports", _NO_PCI_LINK)
CARRIER = Attribute("carrier", _B, "whether the interface has a carrier", _NO_LINK)
ADMIN_UP = Attribute("adminUp", _B, "whether the interface is set up (`IFF_UP`)", _NO_LINK)
FIRMWARE_VERSION = Attribute(
    "firmwareVersion",
    _S,
    "firmware reported by the interface (`ethtool -i`), else by the RDMA device",
    _NOT_REPORTED,
)
RDMA_PORT_GUID = Attribute("rdmaPortGuid", _S, "GUID of that RDMA port", "the port has none")
RDMA_NODE_GUID = Attribute("rdmaNodeGuid", _S, "GUID of the RDMA device", "the RDMA device has none")
RDMA_GID_TYPES = _may_change(
    "rdmaGidTypes",
    _S,
    f"GID types of that RDMA port, sorted, {_AS_MANY}: `IB/RoCE v1,RoCE v2`",
    "its GID table is empty",
)
RDMA_PKEYS = _may_change(
    "rdmaPkeys", _S, f"partition keys of that RDMA port, in the order of the table, {_AS_MANY}", "it has none"
)
PERMANENT_MAC = Attribute("permanentMac", _S, "permanent hardware address", _NOT_REPORTED)
DUPLEX = Attribute("duplex", _S, "`full` or `half`", "the link is down, or the driver does not report it")
QUEUES = _may_change("queues", _I, "receive queues in use", _NOT_REPORTED)
XDP = _may_change("xdp", _B, "whether an XDP program is attached", _NO_LINK)
DRIVER_VERSION = _may_change("driverVersion", _S, "version of the driver", _NOT_REPORTED)
RDMA_FIRMWARE = _may_change(
    "rdmaFirmware",
    _S,
    "firmware reported by the RDMA device",
    "it is what `firmwareVersion` begins with, or the RDMA device does not report it",
)


CATALOGUE: tuple[Attribute, ...] = tuple(
    value for value in tuple(vars().values()) if isinstance(value, Attribute)
)
"""In the order in which they are kept when a device has more than a slice can take.

What comes and goes while the node runs (addresses, BPF programs) comes after what a claim aligns by: one more
address must not cost a device its place next to a GPU. What DraNet publishes for all interfaces precedes
both.
"""

PLACES: dict[str, int] = {attribute.qualified: place for place, attribute in enumerate(CATALOGUE)}
"""Qualified name -> place in the budget."""

LIST_FORMS = frozenset(attribute.qualified for attribute in CATALOGUE if attribute.has_list_form)
"""Such a list begins with the value that the device has where lists are off."""

SETTABLE_NAMES = frozenset(attribute.qualified for attribute in CATALOGUE if attribute.may_be_set)

ESSENTIAL_NAMES = frozenset(attribute.qualified for attribute in CATALOGUE if attribute.essential)


class FittedValues(Struct, frozen=True):
    """``kept``: qualified names to valid values, sorted by name; ``left_out``: to what is wrong with them."""

    kept: dict[str, AttributeValue]
    left_out: dict[str, str]


def fit_values(values: Mapping[Attribute, AttributeValue | None]) -> FittedValues:
    """What the API server accepts of ``values``; ``None`` is no value.

    Strings are cut at 64 bytes. A string that is not text (bytes that were not UTF-8), an integer beyond 64
    bits and an empty list are left out.

    Raises:
        TypeError: a value of another type than the catalogue declares (our bug).
    """
    kept: dict[str, AttributeValue] = {}
    left_out: dict[str, str] = {}
    for attribute, value in values.items():
        if value is None:
            continue
        if type(value) is not attribute.python_type and not (
            isinstance(value, tuple) and attribute.has_list_form
        ):
            raise TypeError(f"{attribute.qualified} is declared {attribute.type}, not {value!r}")
        fitted = fit_value(value)
        if fitted is None:
            left_out[attribute.qualified] = describe_fault(value)
        else:
            kept[attribute.qualified] = fitted
    return FittedValues(dict(sorted(kept.items())), left_out)


def fit_value(value: AttributeValue) -> AttributeValue | None:
    """The value as the API server accepts it, strings cut at 64 bytes; ``None`` if it cannot be made to
    fit."""
    if isinstance(value, str):
        is_fine = len(value) <= MAX_VALUE_BYTES and value.isascii()
        return value if is_fine else cut_text(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return _fit_list(value)
    return value if _is_int64(value) else None


def _fit_list(values: tuple[int | str, ...]) -> AttributeValue | None:
    """A list has one item at the least, and all of one type."""
    texts = [cut_text(value) for value in values if isinstance(value, str)]
    if values and not texts:
        return values if all(map(_is_int64, values)) else None
    whole = tuple(text for text in texts if text is not None)
    return whole if whole and len(whole) == len(values) else None


def cut_text(value: str, limit: int = MAX_VALUE_BYTES) -> str | None:
    """``value`` cut to ``limit`` bytes of UTF-8 at a character boundary; ``None`` if it is not text."""
    if value.isascii():
        return value[:limit]
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return None
    return data[:limit].decode(errors="ignore")


def join_whole(texts: Iterable[str], limit: int = MAX_VALUE_BYTES) -> str | None:
    """``texts`` joined by commas up to the last that fits whole into ``limit`` bytes; ``None`` for nothing.

    What is not text is passed over.
    """
    joined = ""
    for text in texts:
        if cut_text(text, limit) is not None:
            longer = f"{joined},{text}" if joined else text
            if cut_text(longer, limit) != longer:
                break
            joined = longer
    return joined or None


def is_attribute_name(name: str) -> bool:
    """Whether the API accepts ``name`` (without domain): a C identifier of at most 32 characters."""
    return len(name) <= MAX_NAME_LENGTH and _C_IDENTIFIER.fullmatch(name) is not None


def is_qualified_name(name: str) -> bool:
    """Whether the API accepts ``name`` with its domain, a DNS subdomain of at most 63 characters."""
    domain, slash, rest = name.partition("/")
    if not slash or len(domain) > _MAX_DOMAIN_LENGTH or not is_attribute_name(rest):
        return False
    return _DNS_SUBDOMAIN.fullmatch(domain) is not None


def describe_fault(value: AttributeValue) -> str:
    """Why :func:`fit_value` gives up on a value (a clause that reads after the attribute's name)."""
    if isinstance(value, str):
        return NOT_TEXT
    return "is an empty list" if value == () else "does not fit into 64 bits"


def _is_int64(value: object) -> bool:
    return type(value) is int and -_MAX_INT - 1 <= value <= _MAX_INT  # in a list a bool is no int

"""The catalogue of published attributes: every name with its type, its meaning and when it is left out.

``inventory`` publishes from it, ``docs/user/attributes.md`` is generated from it (:func:`render_markdown`)
and a test fails when the page is stale. Names and types are DraNet's where DraNet has them, because users'
selectors name them. Limits are those of ``resource.k8s.io/v1``: a value that the API server would refuse
takes the whole slice with it, so it is cut or left out here, never sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dranet.model.device import AttributeValue

DOMAIN = "dra.net"
"""Domain of our attributes, as in DraNet; the same under any driver name, so that selectors keep working."""

STANDARD_DOMAIN = "resource.kubernetes.io"
"""Names standardised by Kubernetes; drivers meet on them with ``matchAttribute``."""

MAX_VALUE_BYTES = 64
MAX_NAME_LENGTH = 32
MAX_ATTRIBUTES_PER_DEVICE = 32

_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class AttributeType(StrEnum):
    """The scalar kinds of DeviceAttribute that we use."""

    STRING = "string"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity: it is a key for every fact of every scan
class Attribute:
    """One published attribute. ``omitted_when`` is empty where every device has it."""

    name: str
    type: AttributeType
    meaning: str
    omitted_when: str = ""
    domain: str = DOMAIN

    @property
    def qualified(self) -> str:
        """``domain/name``, the key in ``Device.attributes``."""
        return f"{self.domain}/{self.name}"

    @property
    def selector(self) -> str:
        """How a CEL selector spells it."""
        return f'device.attributes["{self.domain}"].{self.name}'


_S, _I, _B = AttributeType.STRING, AttributeType.INT, AttributeType.BOOL
_NO_LINK = "the device has no network interface"
_NO_PCI = "the device is not on PCI"
_NO_RDMA = "the device has no RDMA device"
_NO_GPU = "the device is not a GPU"

RDMA = Attribute("rdma", _B, "whether the device has an RDMA device")
VIRTUAL = Attribute("virtual", _B, "whether the interface is made by software (below `/sys/devices/virtual`)")
IFNAME = Attribute(
    "ifName",
    _S,
    "name of the interface on the node; empty on a GPU, so that a claim which selects by it skips GPUs",
    _NO_LINK,
)
TYPE = Attribute(
    "type",
    _S,
    "kind of the interface (`device` for hardware, `dummy`, `vlan`, `macvlan`, `ipoib` ...); `gpu` for a GPU",
    "the device is RDMA-only",
)
MAC = Attribute("mac", _S, "hardware address", _NO_LINK)
MTU = Attribute("mtu", _I, "MTU in bytes", _NO_LINK)
ENCAPSULATION = Attribute("encapsulation", _S, "link layer: `ether`, `infiniband` ...", _NO_LINK)
STATE = Attribute("state", _S, "operational state: `up`, `down`, `lowerlayerdown` ...", _NO_LINK)
ALIAS = Attribute("alias", _S, "the interface's alias, may be empty", _NO_LINK)
_ADDRESSES = "global unicast {} addresses in CIDR form, sorted, joined by commas, as many as fit whole"
IPV4 = Attribute("ipv4", _S, _ADDRESSES.format("IPv4"), "there is none")
IPV6 = Attribute("ipv6", _S, _ADDRESSES.format("IPv6"), "there is none")
SRIOV = Attribute("sriov", _B, "whether the function can make virtual functions", _NO_LINK)
SRIOV_VFS = Attribute("sriovVfs", _I, "virtual functions made now", "it cannot make any")
IS_SRIOV_VF = Attribute("isSriovVf", _B, "always true", "it is not a virtual function")
RDMA_DEVICE = Attribute("rdmaDevice", _S, "kernel name of the RDMA device", _NO_RDMA)
RDMA_LINK_LAYER = Attribute(
    "rdmaLinkLayer", _S, "link layer of the first RDMA port: `Ethernet` or `InfiniBand`", _NO_RDMA
)
RDMA_PORT_STATE = Attribute(
    "rdmaPortState", _S, "state of the first RDMA port: `ACTIVE`, `DOWN` ...", _NO_RDMA
)
RDMA_RATE = Attribute(
    "rdmaRateGbps", _I, "rate of the first RDMA port in Gbit/s, rounded down", "the kernel does not say"
)
PCI_ADDRESS = Attribute("pciAddress", _S, "PCI address, `dddd:bb:dd.f`", _NO_PCI)
PCI_VENDOR_ID = Attribute("pciVendorId", _S, "PCI vendor id, four hex digits", _NO_PCI)
PCI_DEVICE_ID = Attribute("pciDeviceId", _S, "PCI device id, four hex digits", _NO_PCI)
NUMA_NODE = Attribute("numaNode", _I, "NUMA node", "the platform does not say")
STANDARD_PCIE_ROOT = Attribute(
    "pcieRoot", _S, "PCIe root complex, `pci0000:00`", _NO_PCI, domain=STANDARD_DOMAIN
)
STANDARD_PCI_BUS_ID = Attribute(
    "pciBusID",
    _S,
    "PCI address, `dddd:bb:dd.f`",
    "no PCI, or a domain of over 4 digits",
    domain=STANDARD_DOMAIN,
)
STANDARD_NUMA_NODE = Attribute(
    "numaNode", _I, "NUMA node", "the platform does not say", domain=STANDARD_DOMAIN
)
GPU_VENDOR = Attribute("gpuVendor", _S, "`nvidia`, `amd`, `intel` or the vendor id in hex", _NO_GPU)
GPU_MODEL = Attribute("gpuModel", _S, "model name", "no GPU, or its driver does not say")
GPU_UUID = Attribute("gpuUUID", _S, "the vendor's unique id", "no GPU, or its driver does not say")

CATALOGUE: tuple[Attribute, ...] = (
    RDMA,
    VIRTUAL,
    IFNAME,
    TYPE,
    MAC,
    MTU,
    ENCAPSULATION,
    STATE,
    ALIAS,
    IPV4,
    IPV6,
    SRIOV,
    SRIOV_VFS,
    IS_SRIOV_VF,
    RDMA_DEVICE,
    RDMA_LINK_LAYER,
    RDMA_PORT_STATE,
    RDMA_RATE,
    PCI_ADDRESS,
    PCI_VENDOR_ID,
    PCI_DEVICE_ID,
    NUMA_NODE,
    STANDARD_PCIE_ROOT,
    STANDARD_PCI_BUS_ID,
    STANDARD_NUMA_NODE,
    GPU_VENDOR,
    GPU_MODEL,
    GPU_UUID,
)


def attribute_map(values: Mapping[Attribute, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Qualified names to values that the API server accepts, sorted by name; ``None`` is left out.

    Strings are cut at 64 bytes. A string that is not text (bytes that were not UTF-8) and an integer
    beyond 64 bits are left out.

    Raises:
        TypeError: a value of another type than the catalogue declares (our bug).
        ValueError: more attributes than a device may have (our bug).
    """
    fitted = {a.qualified: _fit(a, value) for a, value in values.items() if value is not None}
    kept = {name: value for name, value in sorted(fitted.items()) if value is not None}
    if len(kept) > MAX_ATTRIBUTES_PER_DEVICE:
        raise ValueError(f"{len(kept)} attributes, a device may have {MAX_ATTRIBUTES_PER_DEVICE}")
    return kept


def cut_text(value: str, limit: int = MAX_VALUE_BYTES) -> str | None:
    """``value`` cut to ``limit`` bytes of UTF-8 at a character boundary; ``None`` if it is not text."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return None
    return data[:limit].decode(errors="ignore")


def is_attribute_name(name: str) -> bool:
    """Whether the API accepts ``name`` (without domain): a C identifier of at most 32 characters."""
    return len(name) <= MAX_NAME_LENGTH and _C_IDENTIFIER.fullmatch(name) is not None


def render_markdown() -> str:
    """The page ``docs/user/attributes.md``."""
    rows = [
        f"| `{a.qualified}` | {a.type} | {a.meaning} | {a.omitted_when or 'never'} |"
        for a in sorted(CATALOGUE, key=lambda a: (a.domain != DOMAIN, a.name.lower()))
    ]
    return "\n".join([*_PAGE_HEAD, *rows, *_PAGE_TAIL]) + "\n"


def _fit(attribute: Attribute, value: AttributeValue) -> AttributeValue | None:
    if attribute.type is AttributeType.STRING and isinstance(value, str):
        return cut_text(value)
    if attribute.type is AttributeType.BOOL and isinstance(value, bool):
        return value
    if attribute.type is AttributeType.INT and isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**63 else None
    raise TypeError(f"{attribute.qualified} is declared {attribute.type}, not {value!r}")


_PAGE_HEAD = (
    "# Attributes",
    "",
    "<!-- Generated from dranet/model/attributes.py; do not edit. -->",
    "",
    "What a ResourceSlice says about each device. Select on it in a DeviceClass or a claim:",
    "",
    "```yaml",
    "selectors:",
    "- cel:",
    "    expression: >-",
    '      device.driver == "dra.net" && device.attributes["dra.net"].rdma &&',
    '      device.attributes["dra.net"].?ifName.orValue("").startsWith("eth")',
    "```",
    "",
    "An attribute that a device lacks is an error in CEL, not false, and stops the scheduling of the pod.",
    "Test with `has(...)` or `.?name.orValue(...)` each attribute whose last column is not `never`. While a",
    "pod has a device, the slice keeps the values from before the pod got it.",
    "",
    "| attribute | type | meaning | left out when |",
    "|---|---|---|---|",
)
_PAGE_TAIL = (
    "",
    f"Strings are cut at {MAX_VALUE_BYTES} bytes, the limit of the Kubernetes API. The domain `dra.net`",
    "stays the same whatever name the driver runs under.",
)

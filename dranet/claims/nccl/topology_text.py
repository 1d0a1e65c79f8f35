"""A :class:`~dranet.claims.nccl.topology.Topology` as the XML that NCCL reads, and back.

NCCL has a reader of its own, which takes less than XML: no declaration, one space between attributes, no line
break in a tag, no tab, no value above 254 bytes, no entities. So only plain values are written, and
:func:`parse_topology` is as strict as that reader; what is written is read back before a container gets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dranet.claims.nccl.topology import NCCL, RCCL, CpuKind, CpuNode, PciNode, Topology

_TAG = re.compile(r' *<(/?)([a-z]+)((?: [a-z]+="[^"<>&]{0,254}")*)(/?)>\n')
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID = re.compile(r"0x[0-9a-f]{1,6}")
_MASK = re.compile(r"(?:[0-9a-f]{1,8}(?:,[0-9a-f]{8})*)?")
_ARCHITECTURE = re.compile(r"[a-z0-9_]{1,16}")
_VENDOR = re.compile(r"[A-Za-z0-9 ]{1,12}")
"""12 characters that the processor says (CPUID 0)."""
_NUMBER = re.compile(r"-1|[0-9]{1,6}")
_IDS = ("vendor", "device")
_DEEPEST = 64
MOST_ATTRIBUTES = 16
"""Of one element; NCCL ignores more."""


class TopologyError(ValueError):
    """A text is no topology that we write, or a tree has a name that NCCL could not read."""


def render_topology(topology: Topology) -> str:
    """The file: the same tree gives the same text.

    Raises:
        TopologyError: an address is not one.
    """
    lines = [f'<system version="{topology.version}">']
    for cpu in topology.cpus:
        lines.append(f'  <cpu numaid="{cpu.numa_node}" affinity="{cpu.affinity}"{_render_kind(cpu.kind)}>')
        lines += (line for node in cpu.below for line in _render(node, 4))
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])


def _render_kind(kind: CpuKind | None) -> str:
    if kind is None:
        return ""
    text = f' arch="{kind.architecture}"'
    if not kind.vendor:
        return text
    if not _VENDOR.fullmatch(kind.vendor):
        raise TopologyError(f"not a processor's vendor: {kind.vendor!r}")
    return f'{text} vendor="{kind.vendor}" familyid="{kind.family}" modelid="{kind.model}"'


def _render(node: PciNode, indent: int) -> Iterator[str]:
    if not _ADDRESS.fullmatch(node.address):
        raise TopologyError(f"not a PCI address: {node.address!r}")
    attributes = f'busid="{node.address}" class="0x{node.class_code:06x}"'
    if node.vendor_id is not None and node.device_id is not None:
        attributes += f' vendor="0x{node.vendor_id:04x}" device="0x{node.device_id:04x}"'
    space = " " * indent
    if not node.below:
        yield f"{space}<pci {attributes}/>"
        return
    yield f"{space}<pci {attributes}>"
    for below in node.below:
        yield from _render(below, indent + 2)
    yield f"{space}</pci>"


def parse_topology(text: str) -> Topology:
    """The tree in a file of ours.

    Raises:
        TopologyError: it is not one.
    """
    lines = iter(text.splitlines(keepends=True))
    system = _parse_line(next(lines, ""))
    version = next((one for one in (NCCL, RCCL) if system.attributes == {"version": str(one)}), None)
    if (system.name, system.kind) != ("system", _OPENS) or version is None:
        raise TopologyError("it does not begin with a system of version 1 or 2")
    cpus = []
    for cpu in _iter_below("system", lines):
        if cpu.name != "cpu" or cpu.kind != _OPENS:
            raise TopologyError(f"{cpu.name} below system")
        below = tuple(_parse_pci(tag, lines, 0) for tag in _iter_below("cpu", lines))
        cpus.append(
            CpuNode(int(cpu.get("numaid", _NUMBER)), below, cpu.get("affinity", _MASK), _parse_kind(cpu))
        )
    if next(lines, ""):
        raise TopologyError("something follows the system")
    return Topology(tuple(cpus), version)


_OPENS, _CLOSES, _STANDS_ALONE = "opens", "closes", "stands alone"


class _Tag(Struct, frozen=True):
    name: str
    kind: str
    attributes: Mapping[str, str]

    def get(self, name: str, form: re.Pattern[str]) -> str:
        value = self.attributes.get(name, "")
        if not form.fullmatch(value):
            raise TopologyError(f"{name} of {self.name} is {value!r}")
        return value


def _parse_line(line: str) -> _Tag:
    found = _TAG.fullmatch(line)
    if found is None:
        raise TopologyError(f"not a tag: {line[:80]!r}")
    closes, name, attributes, stands_alone = found.groups()
    pairs = _ATTRIBUTE.findall(attributes)
    if len(pairs) > MOST_ATTRIBUTES or len({key for key, _ in pairs}) < len(pairs):
        raise TopologyError(f"{name} has too many attributes, or one of them twice")
    return _Tag(name, _CLOSES if closes else _STANDS_ALONE if stands_alone else _OPENS, dict(pairs))


def _parse_kind(cpu: _Tag) -> CpuKind | None:
    if "arch" not in cpu.attributes:
        return None
    architecture = cpu.get("arch", _ARCHITECTURE)
    if "vendor" not in cpu.attributes:
        return CpuKind(architecture)
    family, model = (int(cpu.get(name, _NUMBER)) for name in ("familyid", "modelid"))
    return CpuKind(architecture, cpu.get("vendor", _VENDOR), family, model)


def _iter_below(name: str, lines: Iterator[str]) -> Iterator[_Tag]:
    """The tags up to the one that closes ``name``; whoever takes one reads what is below it."""
    for line in lines:
        tag = _parse_line(line)
        if tag.kind == _CLOSES:
            if tag.name != name:
                raise TopologyError(f"{tag.name} closes {name}")
            return
        yield tag
    raise TopologyError(f"{name} is not closed")


def _parse_pci(tag: _Tag, lines: Iterator[str], depth: int) -> PciNode:
    if tag.name != "pci" or depth > _DEEPEST:
        raise TopologyError(f"{tag.name} where only pci may be, or too deep")
    is_open = tag.kind == _OPENS
    below = tuple(_parse_pci(one, lines, depth + 1) for one in _iter_below("pci", lines)) if is_open else ()
    if is_open and not below:
        raise TopologyError("an empty pci that does not stand alone")
    ids = [int(tag.get(name, _ID), 16) if name in tag.attributes else None for name in _IDS]
    class_code = int(tag.get("class", _ID), 16)
    return PciNode(tag.get("busid", _ADDRESS), class_code, ids[0], ids[1], below)

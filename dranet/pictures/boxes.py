"""The content of the picture: panels (NUMA nodes), groups (root complexes, switches), boxes (devices)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from dranet.inventory.policy import Decision
from dranet.inventory.topology import nearest, topology_tree
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, distance
from dranet.pictures.summary import (
    Branch,
    DeviceSummarizer,
    DeviceSummary,
    Look,
    choose_hardware,
    cpus_of,
    name_hardware,
    nearest_words,
    root_branches,
    summarize,
)
from dranet.terminal import printable

MAX_ALIKE = 4
"""More virtual functions of one card than this are one box."""

MAX_BOXES = 48
"""Boxes of a group; the number of others is shown."""


class Tone(StrEnum):
    """The look of a box; the value is its class in the style sheet."""

    GPU = "gpu"
    NIC = "nic"
    RDMA = "rdma"
    NOT_OFFERED = "held"


class Mark(Struct, frozen=True):
    pod: str = ""
    """The pod that has it; its box leaves out the namespace."""
    fault: str = ""
    """Why it does not work; empty: it works, or that is unknown."""


NOTHING = Mark()


class Box(Struct, frozen=True):
    """One device. A box shows the words of each line that fit, the first ones first."""

    tone: Tone
    name: str
    corner: str = ""
    lines: tuple[tuple[str, ...], ...] = ()
    tooltip: str = ""
    mark: Mark = NOTHING


class Group(Struct, frozen=True):
    """A root complex or a switch: its members are closer to each other than to the rest."""

    label: str
    gpus: tuple[Box, ...] = ()
    others: tuple[Box, ...] = ()
    groups: tuple[Group, ...] = ()
    bond: Distance | None = None
    """Distance of every pair of a GPU and another device right here; ``None`` if they differ or none is."""


class Panel(Struct, frozen=True):
    """A NUMA node, or the devices whose place is unknown."""

    title: str
    subtitle: str
    groups: tuple[Group, ...]
    is_numa_node: bool = True


class Picture(Struct, frozen=True):
    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    distances: tuple[Distance, ...]
    """Those between a GPU and another device, for the legend."""


def build_picture(
    look: Look, shown: Sequence[Decision] | None = None, marks: Mapping[str, Mark] = MappingProxyType({})
) -> Picture:
    """The picture of a node; by default of all its hardware, offered or not. ``marks`` are by device."""
    shown = choose_hardware(look) if shown is None else shown
    artist = _Artist(look, shown, marks)
    host, counts = look.facts.host, summarize(shown, shows_all=True)
    return Picture(
        title=printable(host.name or host.product or "this node"),
        subtitle=printable(" · ".join(filter(None, (host.name and host.product, counts)))),
        panels=tuple(artist.panels()),
        distances=artist.distances(),
    )


class _Artist:
    def __init__(self, look: Look, shown: Sequence[Decision], marks: Mapping[str, Mark]) -> None:
        self._marks = marks
        self._cpus = cpus_of(look.facts)
        self._shown = {decision.device.name: decision for decision in shown}
        self._names = name_hardware(look)
        self._address_names = {d.pci_address: self._names.get(d.name, d.name) for d in look.devices}
        self._reader = DeviceSummarizer(look.facts)
        self._gpus = [device for device in self._devices() if device.kind is DeviceKind.GPU]

    def _devices(self) -> Iterator[Device]:
        return (decision.device for decision in self._shown.values())

    def distances(self) -> tuple[Distance, ...]:
        others = [device for device in self._devices() if device.kind is not DeviceKind.GPU]
        found = {distance(gpu, other) for gpu in self._gpus for other in others}
        return tuple(sorted(far for far in found if far is not None))

    def panels(self) -> Iterator[Panel]:
        cpus = {f"NUMA node {node}": f"CPUs {cpus}" for node, cpus in self._cpus.items() if cpus}
        for node in topology_tree(self._devices()):
            groups = [self._group(b) for child in node.children for b in root_branches(child)]
            if node.devices:
                others = self._boxes([self._shown[name] for name in node.devices], bond=None)
                groups.append(Group("", others=tuple(others)))
            yield Panel(
                _PANEL_TITLES.get(node.label, node.label),
                cpus.get(node.label, ""),
                tuple(sorted(groups, key=_importance)),
                is_numa_node=node.label not in _PANEL_TITLES,
            )

    def _group(self, branch: Branch) -> Group:
        is_switch = " / " in branch.label
        members, groups = [], []
        for child in branch.children:
            if child.device:
                members.append(self._shown[child.device])
            elif is_switch and _is_card(child):
                members += [self._shown[function.device] for function in child.children]
            else:
                groups.append(self._group(child))
        gpus = [d for d in members if d.device.kind is DeviceKind.GPU]
        others = [d for d in members if d.device.kind is not DeviceKind.GPU]
        pairs = {distance(gpu.device, other.device) for gpu in gpus for other in others}
        bond = pairs.pop() if len(pairs) == 1 else None
        return Group(
            branch.label,
            gpus=tuple(self._boxes(gpus, bond)),
            others=tuple(self._boxes(others, bond)),
            groups=tuple(groups),
            bond=bond,
        )

    def _boxes(self, members: Sequence[Decision], bond: Distance | None) -> list[Box]:
        alike: dict[str, list[Decision]] = defaultdict(list)
        for member in members:
            alike[member.device.physical_function or member.device.name].append(member)
        boxes: list[Box] = []
        for key, same in alike.items():
            plain = [decision for decision in same if decision.device.name not in self._marks]
            boxes += [self._box(decision, bond) for decision in same if decision.device.name in self._marks]
            if len(plain) > MAX_ALIKE:
                boxes.append(self._many(key, plain))
            else:
                boxes += [self._box(decision, bond) for decision in plain]
        if len(boxes) > MAX_BOXES:
            boxes[MAX_BOXES:] = [Box(Tone.NOT_OFFERED, "…", lines=((f"and {len(boxes) - MAX_BOXES} more",),))]
        return boxes

    def _many(self, physical_function: str, same: Sequence[Decision]) -> Box:
        offered = sum(decision.published for decision in same)
        parent = self._address_names.get(physical_function, physical_function)
        lines = ((f"virtual functions of {parent}",), (f"{offered} of them offered",))
        tone = Tone.NIC if offered else Tone.NOT_OFFERED
        return Box(tone, f"{len(same)} VFs", "", lines, "\n".join(d.device.name for d in same))

    def _box(self, decision: Decision, bond: Distance | None) -> Box:
        device, summary = decision.device, self._reader.read(decision.device)
        near = None if device.kind is DeviceKind.GPU or bond is not None else nearest(device, self._gpus)
        mark = self._marks.get(device.name, NOTHING)
        third = [nearest_words(near, self._names), summary.model]
        if not decision.published:
            third = [decision.reason.partition(":")[0]]  # the rest is in the tooltip
        if mark is not NOTHING:
            third = [mark.fault.partition(":")[0], mark.pod and f"in {mark.pod.rpartition('/')[2]}"]
        return Box(
            tone=_tone(decision),
            name=self._names.get(device.name, printable(device.name)),
            corner=printable(summary.speed_or_state),
            lines=tuple(tuple(map(printable, line)) for line in (_second_line(device, summary), third)),
            tooltip=_tooltip(decision, summary, mark),
            mark=mark,
        )


_PANEL_TITLES = {"NUMA node unknown": "NUMA node not known", "no PCI": "Not on PCI"}


def _second_line(device: Device, summary: DeviceSummary) -> tuple[str, ...]:
    if device.kind is DeviceKind.GPU:
        return (device.name,)
    return (device.ifname or device.name, device.rdma_device, summary.sriov)


def _tone(decision: Decision) -> Tone:
    if not decision.published:
        return Tone.NOT_OFFERED
    return {DeviceKind.GPU: Tone.GPU, DeviceKind.RDMA: Tone.RDMA}.get(decision.device.kind, Tone.NIC)


def _tooltip(decision: Decision, summary: DeviceSummary, mark: Mark) -> str:
    device = decision.device
    path = " / ".join((device.pcie_root, *device.pci_path)) if device.pci_path else ""
    not_offered = "" if decision.published else f"not offered: {decision.reason}"
    lines = (device.name, summary.model, path, not_offered, mark.fault, mark.pod and f"in {mark.pod}")
    return "\n".join(printable(line) for line in lines if line)


def _is_card(branch: Branch) -> bool:
    """Functions behind one port without a switch: next to a switch's other cards they are equal."""
    return " / " not in branch.label and all(child.device for child in branch.children)


def _importance(group: Group) -> int:
    """GPUs with their NICs first, then other offered devices, then the rest."""
    boxes = [*iter_boxes(group)]
    tones = {box.tone for box in boxes}
    if tones == {Tone.NOT_OFFERED}:
        return 3
    if Tone.GPU in tones:
        return 0 if len(boxes) > 1 else 1
    return 2


def iter_boxes(group: Group) -> Iterator[Box]:
    yield from group.gpus
    yield from group.others
    for inner in group.groups:
        yield from iter_boxes(inner)

"""Plain lines of text about a node and its pods, shown while a scenario runs. Pure, no decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dranet.inventory.policy import Decision
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, distance
from testbed.traffic import TrafficResult

_WITH_SWITCH = 4
"""Length of a path through a switch: root port, upstream port, downstream port, function."""


def draw_topology(decisions: Iterable[Decision], published: Collection[str]) -> tuple[str, ...]:
    """NUMA node, PCIe root, switch, device, and the name under which it is offered or why it is not."""
    placed = sorted(
        (d for d in decisions if d.device.pcie_root),
        key=lambda d: (d.device.numa_node or 0, d.device.pcie_root, d.device.pci_address),
    )
    rows: list[tuple[str, ...]] = []
    above: tuple[str, ...] = ()
    for decision in placed:
        device = decision.device
        place = (f"NUMA {device.numa_node}", device.pcie_root, _switch(device))
        rows.append((*_once(place, above), *_what(device), _offer(decision, published)))
        above = place
    return tuple(align(rows))


def align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def describe_alignment(pod: str, devices: Sequence[Device]) -> tuple[list[str], list[Distance | None]]:
    """One line for each NIC of a pod with its nearest GPU, and the distances."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    lines: list[str] = []
    distances: list[Distance | None] = []
    for nic in (device for device in devices if device.kind is not DeviceKind.GPU):
        known = [(far, gpu) for gpu in gpus if (far := distance(gpu, nic)) is not None]
        far, gpu = min(known, key=lambda pair: pair[0], default=(None, None))
        distances.append(far)
        beside = f"{gpu.name} ({_place(gpu)})" if gpu else "no GPU"
        how_far = far.name if far is not None else "unknown"
        lines.append(f"{pod}: {beside} and {nic.name} ({_place(nic)}): {how_far}")
    return lines, distances


def describe_traffic(result: TrafficResult) -> tuple[str, ...]:
    """Throughput, latency, and the proof of the way it took."""
    speed = f"{result.bits_per_second / 1e9:.2f} Gbit/s over {result.seconds:.1f} s"
    latency = f"median {result.median_microseconds:.0f} us, p99 {result.p99_microseconds:.0f} us"
    counters = f"{result.client_sent_bytes:,} bytes sent, {result.server_received_bytes:,} received"
    return (
        f"{speed} (virtual links of this machine, not hardware)",
        f"round trip of 64 bytes: {latency}",
        f"the NICs' own counters: {counters}",
    )


def describe_link(link: Mapping[str, Any]) -> str:
    """One link of ``ip -json address`` in a line."""
    addresses = " ".join(f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", ()))
    state = "up" if is_up(link) else "down"
    return f"{link['ifname']}: {state} mtu {link['mtu']} mac {link.get('address', '')} {addresses}".rstrip()


def is_up(link: Mapping[str, Any]) -> bool:
    """Administratively up."""
    return "UP" in link.get("flags", ())


def _once(place: tuple[str, ...], above: tuple[str, ...]) -> tuple[str, ...]:
    """Blank what repeats the line above."""
    same = True
    cells = []
    for cell, over in zip(place, above or ("",) * len(place), strict=True):
        same = same and cell == over
        cells.append("" if same else cell)
    return tuple(cells)


def _switch(device: Device) -> str:
    return f"switch {device.pci_path[1]}" if len(device.pci_path) >= _WITH_SWITCH else ""


def _what(device: Device) -> tuple[str, str, str]:
    if device.kind is DeviceKind.GPU:
        return "GPU", str(device.attributes.get("dra.net/gpuModel", "")), device.pci_address
    return "NIC", f"{device.ifname} {device.rdma_device}".rstrip(), device.pci_address


def _offer(decision: Decision, published: Collection[str]) -> str:
    if decision.device.name in published:
        return decision.device.name
    return f"not offered: {decision.reason}" if not decision.published else "not published"


def _place(device: Device) -> str:
    names = [device.rdma_device or str(device.attributes.get("dra.net/gpuModel", "")), device.pcie_root]
    return ", ".join(name for name in names if name)

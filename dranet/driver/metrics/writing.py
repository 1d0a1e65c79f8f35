"""Writes snapshot and readings as the text of a scrape. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from dranet.driver.metrics.reading import HOST, Readings
from dranet.driver.metrics.snapshot import NodeDevice, PodDevice, Snapshot
from dranet.kernel.counters import PortReading, Traffic, parse_rate
from dranet.model.health import PcieLink
from dranet.telemetry.node import DeviceFamilies
from dranet.telemetry.recorder import Declared, Exposition, Sample, format_labels

BITS = 8
MEGA, GIGA = 1_000_000, 1_000_000_000

Key = TypeVar("Key")
Counted = tuple[str, Traffic]
"""Labels, and the link's counters."""
Port = tuple[str, PortReading]


class _Shown(Struct, frozen=True):
    """One device with what was read of it."""

    labels: str
    node: NodeDevice
    traffic: Traffic | None
    carrier_losses: int | None
    speed_mbps: int | None


def write_devices(out: Exposition, families: DeviceFamilies, snapshot: Snapshot, readings: Readings) -> None:
    """The series of devices and RDMA ports."""
    shown = [_show(node, readings) for node in snapshot.devices]
    out.add(families.device_info, ((_describe(device.node), 1) for device in shown))
    counted = [(device.labels, device.traffic) for device in shown if device.traffic is not None]
    _write_traffic(out, families.device_traffic, counted)
    _write_links(out, families, shown)
    _write_pauses(out, families, shown, readings)
    _write_pcie(out, families, [(d.labels, d.node.pcie) for d in shown if d.node.pcie is not None])
    healthy = ((d.labels, int(d.node.healthy)) for d in shown if d.node.healthy is not None)
    out.add(families.device_healthy, healthy)
    out.add(families.device_fault, _find_faults(shown))
    _write_ports(out, families, shown, readings)


def write_pods(out: Exposition, families: DeviceFamilies, snapshot: Snapshot, readings: Readings) -> None:
    """The series of pods' devices."""
    pods = [(format_labels(_identify(found)), found) for found in snapshot.in_pods]
    out.add(families.pod_device_info, ((_describe_in_pod(found), 1) for _, found in pods))
    counted = [
        (labels, traffic) for labels, found in pods if (traffic := _find_traffic(found, readings)) is not None
    ]
    _write_traffic(out, families.pod_traffic, counted)
    out.add(families.pod_limit_drops, _find_limit_drops(snapshot, readings))
    ports = [
        (_port_labels(found, port.number), port)
        for _, found in pods
        if not found.is_shared
        for port in readings.ports.get(found.prepared.device.name, ())
    ]
    for word, declared in families.pod_rdma.items():
        out.add(declared, _pick(ports, word))
    judged = [found for _, found in pods if found.distance is not None]
    out.add(families.pod_alignment, (_show_level(found) for found in judged))
    out.add(families.pod_worse, ((format_labels(_identify(found)), int(found.is_worse)) for found in judged))


# --- devices --------------------------------------------------------------------------------------------


def _show(node: NodeDevice, readings: Readings) -> _Shown:
    link, name = node.link, node.device.name
    place = readings.traffic.get(node.pod_uid or HOST, {})
    on_host = readings.carrier_losses.get(link.ifindex) if link is not None else None
    return _Shown(
        format_labels({"device": name}),
        node,
        place.get(link.ifindex) if link is not None else None,
        node.carrier_losses if node.pod_uid else on_host,
        readings.speeds.get(name) if node.pod_uid else link.speed_mbps if link is not None else None,
    )


def _describe(node: NodeDevice) -> str:
    device = node.device
    return format_labels(
        {
            "device": device.name,
            "kind": device.kind,
            "interface": node.ifname,
            "rdma_device": device.rdma_device,
            "pci_address": device.pci_address,
            "numa_node": "" if device.numa_node is None else str(device.numa_node),
            "driver": node.driver,
        }
    )


def _write_traffic(out: Exposition, declared: Mapping[str, Declared], counted: Sequence[Counted]) -> None:
    for field, family in declared.items():
        get: Callable[[Traffic], int] = itemgetter(Traffic._fields.index(field))
        out.add(family, [(labels, get(traffic)) for labels, traffic in counted])


def _write_links(out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown]) -> None:
    links = [(device.labels, device.node.link) for device in shown if device.node.link is not None]
    out.add(families.device_up, ((labels, int(link.operstate == "up")) for labels, link in links))
    out.add(families.device_carrier, ((labels, int(link.carrier)) for labels, link in links))
    losses = ((d.labels, d.carrier_losses) for d in shown if d.carrier_losses is not None)
    out.add(families.device_carrier_losses, losses)
    speeds = ((d.labels, d.speed_mbps * MEGA // BITS) for d in shown if d.speed_mbps is not None)
    out.add(families.device_speed, speeds)
    out.add(families.device_mtu, ((labels, link.mtu) for labels, link in links))


def _write_pauses(
    out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown], readings: Readings
) -> None:
    pauses = [
        (format_labels({"device": device.node.device.name, "priority": str(pause.priority)}), pause)
        for device in shown
        for pause in readings.pauses.get(device.node.device.name, ())
    ]
    out.add(families.pauses_received, ((labels, pause.received) for labels, pause in pauses))
    out.add(families.pauses_transmitted, ((labels, pause.transmitted) for labels, pause in pauses))


def _write_pcie(out: Exposition, families: DeviceFamilies, links: Sequence[tuple[str, PcieLink]]) -> None:
    """The slow link of a suspended function means nothing."""
    awake = [(labels, link) for labels, link in links if not link.asleep]
    out.add(families.pcie_speed, _known(awake, lambda link: int(link.speed * GIGA)))
    out.add(families.pcie_max_speed, _known(links, lambda x: int(_least(x.most_speed, x.port_speed) * GIGA)))
    out.add(families.pcie_lanes, _known(awake, lambda link: link.width))
    out.add(families.pcie_max_lanes, _known(links, lambda x: int(_least(x.most_width, x.port_width))))


def _known(links: Iterable[tuple[str, PcieLink]], get: Callable[[PcieLink], int]) -> Iterator[Sample]:
    """Leave out 0, which means that it is not reported."""
    return ((labels, value) for labels, link in links if (value := get(link)))


def _least(ours: float, port: float) -> float:
    return min(ours, port) if port else ours


def _find_faults(shown: Iterable[_Shown]) -> Iterator[Sample]:
    for device in shown:
        for fault in device.node.faults:
            yield format_labels({"device": device.node.device.name, "fault": fault}), 1


def _write_ports(
    out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown], readings: Readings
) -> None:
    ports = [
        (format_labels({"device": device.node.device.name, "port": str(port.number)}), port)
        for device in shown
        for port in readings.ports.get(device.node.device.name, ())
    ]
    out.add(families.rdma_up, ((labels, int(p.state == "ACTIVE")) for labels, p in ports if p.state))
    rates = ((labels, rate) for labels, port in ports if (rate := parse_rate(port.rate)) is not None)
    out.add(families.rdma_speed, rates)
    for word, declared in families.rdma_counters.items():
        out.add(declared, _pick(ports, word))


def _pick(ports: Sequence[Port], word: str) -> Iterator[Sample]:
    return ((labels, port.counters[word]) for labels, port in ports if word in port.counters)


# --- pods -----------------------------------------------------------------------------------------------


def _identify(found: PodDevice) -> dict[str, str]:
    return {
        "namespace": found.record.pod.namespace,
        "pod": found.record.pod.name,
        "claim": found.record.claim.name,
        "device": found.prepared.device.name,
        "interface": found.pod_ifname,
    }


def _describe_in_pod(found: PodDevice) -> str:
    more = {"request": found.prepared.request, "shared": str(found.is_shared).lower()}
    return format_labels({**_identify(found), **more})


def _port_labels(found: PodDevice, number: int) -> str:
    identity = {name: value for name, value in _identify(found).items() if name != "interface"}
    return format_labels({**identity, "port": str(number)})


def _find_traffic(found: PodDevice, readings: Readings) -> Traffic | None:
    if found.seen is None:
        return None
    return readings.traffic.get(found.record.pod.uid, {}).get(found.seen.link.ifindex)


def _find_limit_drops(snapshot: Snapshot, readings: Readings) -> Iterator[Sample]:
    for found in snapshot.in_pods:
        drops = readings.limit_drops.get(found.record.pod.uid, {})
        for direction, ifindex in found.limited.items():
            if ifindex in drops:
                yield format_labels({**_identify(found), "direction": direction}), drops[ifindex]


def _show_level(found: PodDevice) -> Sample:
    assert found.distance is not None, "asked for judged ones"
    return format_labels({**_identify(found), "level": found.distance.name}), found.distance.value + 1

"""Faults that one observation of a device shows, and the taints that follow from them.

The taints are those of KEP-5055. Only a device that carries nothing may keep pods away or evict them. Every
other fault is shown with the effect ``None``. There is one key for each class of faults, four at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranet.model.device import Taint, TaintEffect
from dranet.model.facts import RdmaPort
from dranet.model.health import FaultKind, FaultSeverity, HealthObservation, PcieLink


def find_present(seen: HealthObservation) -> dict[FaultKind, str]:
    """Return the faults that a single observation shows, each with what was seen."""
    present: dict[FaultKind, str] = {}
    link = seen.link
    if link is not None and link.is_up and not link.carrier and not is_on_infiniband(seen):
        present[FaultKind.LINK_DOWN] = f"{link.ifname} has no carrier"
        return present  # a RoCE port goes down with its link: one cause, one fault
    ports = _own_ports(seen)
    down = [text for port in ports if (text := _why_down(port, seen))]
    if down and not any(port.state == "ACTIVE" for port in ports):
        present[FaultKind.RDMA_PORT_DOWN] = "; ".join(down)
    return present


def is_on_infiniband(seen: HealthObservation) -> bool:
    """Whether an enabled InfiniBand port shows the state of the device, whatever its IPoIB interface does.

    The interface has no carrier when its partition or multicast group is refused, and is switched off on most
    nodes. RDMA works all the same.
    """
    return any(port.link_layer == "InfiniBand" and port.phys_state != "Disabled" for port in _own_ports(seen))


def _own_ports(seen: HealthObservation) -> tuple[RdmaPort, ...]:
    """Return the ports that name the device's link, if any does: a card may have another port without a
    cable."""
    ifname = seen.link.ifname if seen.link is not None else ""
    return tuple(port for port in seen.ports if ifname in port.netdevs) or seen.ports


def _why_down(port: RdmaPort, seen: HealthObservation) -> str:
    """Return why the port is down; empty if it works or is switched off."""
    if port.state == "ACTIVE" or _is_switched_off(port, seen):
        return ""
    physical = f" ({port.phys_state})" if port.phys_state else ""
    return f"{seen.rdma_device} port {port.number} is {port.state or 'in an unknown state'}{physical}"


def _is_switched_off(port: RdmaPort, seen: HealthObservation) -> bool:
    """Whether the port is off on purpose. A RoCE port follows its link: nothing is known while that is down
    or out of sight."""
    if port.phys_state == "Disabled":
        return True
    return port.link_layer == "Ethernet" and seen.has_link and (seen.link is None or not seen.link.is_up)


def find_unknown(seen: HealthObservation) -> str:
    """Return why the health of the device is unknown; empty if something works or shows a fault."""
    link = seen.link
    if any(port.state == "ACTIVE" for port in _own_ports(seen)) or (link is not None and link.is_up):
        return ""
    if is_on_infiniband(seen):
        return ""
    if link is not None:
        return f"{link.ifname} is administratively down" + (" in the pod" if seen.holder else "")
    if seen.has_link:
        return "its link is in a pod's network namespace, and not in sight" if seen.holder else "no link"
    if seen.ports and all(port.phys_state == "Disabled" for port in seen.ports):
        return f"{seen.rdma_device} is switched off"
    return "" if seen.ports else "nothing of it is watched"


TAINT_DOMAIN = "dra.net"

_KEYS: Mapping[FaultKind, str] = {
    FaultKind.LINK_DOWN: "link-down",
    FaultKind.RDMA_PORT_DOWN: "rdma-port-down",
    FaultKind.LINK_FLAPPING: "degraded",
    FaultKind.LINK_ERRORS: "degraded",
    FaultKind.PCIE_DEGRADED: "degraded",
    FaultKind.FIRMWARE_CHANGED: "changed",
    FaultKind.DRIVER_CHANGED: "changed",
}

TAINT_KEYS = tuple(dict.fromkeys(f"{TAINT_DOMAIN}/{key}" for key in _KEYS.values()))


def build_taints(faults: Iterable[FaultKind], hardest: TaintEffect | None) -> tuple[Taint, ...]:
    """Return the taints of a device with these faults, sorted by key; none if ``hardest`` is ``None``.

    ``hardest`` is the effect of a fault that leaves nothing working. The value names the fault. If several
    faults share a key it names the first, so that the value does not change while others come and go.
    """
    if hardest is None:
        return ()
    wanted = set(faults)
    taints: dict[str, Taint] = {}
    for kind in FaultKind:
        if kind in wanted:
            key = f"{TAINT_DOMAIN}/{_KEYS[kind]}"
            effect = hardest if kind.severity is FaultSeverity.HARD else TaintEffect.NONE
            taints.setdefault(key, Taint(key, effect, str(kind)))
    return tuple(taints[key] for key in sorted(taints))


_RISES_OF_A_SAVER = 2
"""A link whose speed rose twice saves power; a single rise may be a repair."""


class PcieJudge:
    """Decides whether the PCIe link of one device is slower or narrower than it should be.

    A slot may have fewer lanes than the card, so the slot's port counts as much as the card. A device may
    lower the speed of its link while it is idle and raise it under load: one that was seen doing so is no
    longer judged by speed. A suspended function is not judged.
    """

    def __init__(self) -> None:
        self._best_width = 0
        self._best_speed = 0.0
        self._last_speed = 0.0
        self._rises = 0

    def judge(self, link: PcieLink) -> str:
        """Return what is wrong with the link; empty if nothing is, or nothing is known."""
        if link.asleep or not link.width:
            return ""
        self._remember(link)
        width = _possible(link.most_width, link.port_width, self._best_width)
        speed = _possible(link.most_speed, link.port_speed, self._best_speed)
        problems = []
        if link.width < width:
            problems.append(f"x{link.width} instead of x{width:g}")
        if 0 < link.speed < speed and self._rises < _RISES_OF_A_SAVER:
            problems.append(f"{link.speed:g} GT/s instead of {speed:g} GT/s")
        return f"PCIe link at {' and '.join(problems)}" if problems else ""

    def _remember(self, link: PcieLink) -> None:
        self._rises += 0 < self._last_speed < link.speed
        self._last_speed = link.speed or self._last_speed
        self._best_width = max(self._best_width, link.width)
        self._best_speed = max(self._best_speed, link.speed)


def _possible(card: float, port: float, best_seen: float) -> float:
    """Return what both ends support; if the port does not report it (virtual machines hide it), the best seen
    so far."""
    return min(card, port) if card and port else best_seen

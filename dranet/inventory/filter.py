"""Publish or hold back: one decision for each device, with its reason in words.

The node comes first: what carries its default route, and everything tied to that link, is never offered.
Next come links that a pod cannot or should not have: pieces of the node's own network (bridges, tunnels,
other pods' veths) and ports of a bond or bridge. A kind of software link that is not known to be harmless
is held back, not offered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dranet.inventory.build import carrier
from dranet.inventory.infrastructure import infrastructure_reason
from dranet.model.attributes import MTU
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Link, NodeFacts, Route

_RTN_UNICAST = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether ``device`` is offered, and why (a clause that reads after its name)."""

    device: Device
    published: bool
    reason: str


def decide(devices: Sequence[Device], facts: NodeFacts) -> tuple[Decision, ...]:
    """One decision for each device, in the same order.

    Args:
        devices: as built from the same ``facts``.
        facts: one scan of the host.
    """
    view = _HostView.of(facts)
    return tuple(_decide(device, view) for device in devices)


def uplink_names(facts: NodeFacts) -> frozenset[str]:
    """Interface names of the node's uplinks and of everything tied to them; for the check at attach, too.

    Uplinks are the links of the default routes with the lowest metric of each address family, every next
    hop of a multipath route among them. If one of those links is down or out of sight, another default
    route of that family may carry the node now, so all of them count.

    Tied to an uplink are its master, the master's other ports, its parent (VLAN, macvlan ...) and its
    children, and what is tied to these.
    """
    return frozenset(_HostView.of(facts).tied)


@dataclass(frozen=True, slots=True)
class _HostView:
    """The host's links, indexed for the questions that a decision asks."""

    by_name: Mapping[str, Link]
    by_index: Mapping[int, Link]
    on_function: Mapping[str, tuple[Link, ...]]
    riders: Mapping[int, str]
    """ifindex -> name of a link that rides on it (VLAN, macvlan ...)."""
    tied: Mapping[str, str]
    """Names that must stay home -> the uplink they are tied to (itself, for an uplink)."""

    @classmethod
    def of(cls, facts: NodeFacts) -> _HostView:
        by_index = {link.ifindex: link for link in facts.links}
        functions = {function.address: function for function in facts.pci_functions}
        on_function: dict[str, tuple[Link, ...]] = defaultdict(tuple)
        for link in facts.links:
            on_function[carrier(link, functions)] += (link,)
        return cls(
            by_name={link.ifname: link for link in facts.links},
            by_index=by_index,
            on_function={address: links for address, links in on_function.items() if address},
            riders={
                link.lower: link.ifname for link in facts.links if link.lower and _has_local_parent(link)
            },
            tied=_tied_names(by_index, _uplink_indexes(facts.default_routes, by_index)),
        )

    def links_of(self, device: Device) -> tuple[Link, ...]:
        """Every link that goes, or breaks, with the device."""
        return self.on_function.get(device.pci_address) or (self.by_name[device.ifname],)


def _decide(device: Device, view: _HostView) -> Decision:
    if device.kind is DeviceKind.GPU:
        return Decision(device, True, "is a GPU")
    if not device.ifname and MTU.qualified in device.attributes:  # recorded with the link that it had
        return Decision(device, True, "belongs to a pod now and keeps its place")
    if device.kind is DeviceKind.RDMA:
        return Decision(device, True, "is an RDMA device without network interface")
    if device.ifname not in view.by_name:
        return Decision(device, False, "has no network interface in the host's network namespace")
    reason = _reason_to_hold(device, view)
    return Decision(device, not reason, reason or "is a network interface that the node can spare")


def _reason_to_hold(device: Device, view: _HostView) -> str:
    """Empty if nothing speaks against offering the device."""
    links = view.links_of(device)
    for link in links:
        reason = _uplink_reason(link, view) or _dependents_reason(link, view)
        if reason:
            return reason
    return "" if device.pci_address else infrastructure_reason(view.by_name[device.ifname])


def _uplink_reason(link: Link, view: _HostView) -> str:
    uplink = view.tied.get(link.ifname)
    if uplink is None:
        return ""
    if uplink == link.ifname:
        return f"is the node's uplink: {uplink} carries a default route"
    return f"is tied to the node's uplink: {link.ifname} is a relative of {uplink}"


def _dependents_reason(link: Link, view: _HostView) -> str:
    if link.is_loopback:
        return "is the loopback"
    if link.master is not None:
        master = view.by_index.get(link.master)
        name = f"{master.ifname} ({master.kind})" if master else f"interface {link.master}"
        return f"is enslaved: {link.ifname} is a port of {name}"
    rider = view.riders.get(link.ifindex)
    return f"carries another interface: {rider} on {link.ifname} would be lost" if rider else ""


def _uplink_indexes(routes: Sequence[Route], by_index: Mapping[int, Link]) -> set[int]:
    found: set[int] = set()
    for family in (False, True):
        own = [r for r in routes if r.type == _RTN_UNICAST and (":" in r.destination) is family]
        best = [r for r in own if r.metric == min(route.metric for route in own)]
        certain = all(_is_usable(by_index.get(index)) for index in _outputs(best))
        found |= _outputs(best if certain else own)
    return found


def _outputs(routes: Iterable[Route]) -> set[int]:
    return {index for route in routes for index in (route.ifindex, *route.next_hops) if index}


def _is_usable(link: Link | None) -> bool:
    """Some drivers leave ``operstate`` unknown while they work; the carrier decides then."""
    return link is not None and link.is_up and (link.carrier or link.operstate in ("up", "unknown"))


def _tied_names(by_index: Mapping[int, Link], uplinks: Iterable[int]) -> dict[str, str]:
    """Walk from each uplink along masters, ports, parents and children, both ways, to the end.

    A link that the scan missed (it came while the kernel listed them) still ties its relatives.
    """
    neighbours = _relations(by_index.values())
    names = {index: link.ifname for index, link in by_index.items()}
    tied = {index: names.get(index, f"interface {index}") for index in sorted(uplinks)}
    queue = list(tied)
    while queue:
        index = queue.pop()
        for other in sorted(neighbours.get(index, set()) - tied.keys()):
            tied[other] = tied[index]
            queue.append(other)
    return {names[index]: uplink for index, uplink in tied.items() if index in names}


def _relations(links: Iterable[Link]) -> Mapping[int, set[int]]:
    neighbours: dict[int, set[int]] = defaultdict(set)
    for link in links:
        parent = link.lower if _has_local_parent(link) else None
        for other in (link.master, parent):
            if other:
                neighbours[link.ifindex].add(other)
                neighbours[other].add(link.ifindex)
    return neighbours


def _has_local_parent(link: Link) -> bool:
    """With ``link_netnsid`` set, ``lower`` is an index of another namespace and names nothing here."""
    return bool(link.lower) and link.lower != link.ifindex and link.link_netnsid is None

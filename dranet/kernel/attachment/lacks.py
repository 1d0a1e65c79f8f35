"""Is a link in the pod as its plan says? Asked after an attach, and before each container starts."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from dranet.kernel.attachment.differences import neighbour_what, route_what
from dranet.kernel.attachment.locate import Side, is_same_device
from dranet.kernel.attachment.readback import SeenLink
from dranet.kernel.attachment.routing import PodRules, has_rival, is_in
from dranet.kernel.attachment.sublink import is_planned_sublink
from dranet.kernel.attachment.vrf import is_in_vrf
from dranet.kernel.inet import IFA_F_DADFAILED, address_key
from dranet.kernel.rules import rule_text
from dranet.model.facts import Address, Link
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    AttachPlan,
    CreateLink,
    JoinVrf,
    MoveLink,
    SetUp,
    Step,
)


def find_lack(plan: AttachPlan, pod: Side, seen: SeenLink | None, rules: PodRules) -> str:
    """What the link in the pod lacks of its plan, as a clause; empty when nothing.

    Looked at is what its own message tells, its addresses, and what else the plan has of routes, rules and
    neighbours; the master takes one look-up more.

    Raises:
        KernelError: netlink failed.
    """
    if seen is None or seen.link.ifname != plan.pod_ifname:
        return "the link is not in the pod"
    lacks = (_find_step_lack(step, plan, pod, seen.link) for step in plan.steps)
    return (
        next(filter(None, lacks), "")
        or _find_address_lack(plan, seen.addresses)
        or _find_routing_lack(plan, pod, seen, rules)
    )


def _find_step_lack(step: Step, plan: AttachPlan, pod: Side, link: Link) -> str:
    match step:
        case MoveLink() if plan.host is not None and not is_same_device(link, plan, plan.host):
            return f"the link {link.ifname} is another device"
        case CreateLink() if not is_planned_sublink(link, step):
            return f"the link {link.ifname} is not the {step.kind} on {step.parent_ifname}"
        case MoveLink() | CreateLink() if step.mtu not in (None, link.mtu):
            return f"the MTU is {link.mtu}, not {step.mtu}"
        case MoveLink() | CreateLink() if step.mac not in (None, link.mac):
            return f"the MAC address is {link.mac}, not {step.mac}"
        case SetUp() if not link.is_up:
            return "the link is not up"
        case JoinVrf() if not is_in_vrf(pod, link, step):
            return f"the link is not in the VRF {step.name}"
    return ""


def _find_address_lack(plan: AttachPlan, addresses: Sequence[Address]) -> str:
    present = {address_key(address): address for address in addresses}
    planned = {address_key(s.address): s.address.cidr for s in plan.steps if isinstance(s, AddAddress)}
    missing = [cidr for key, cidr in planned.items() if key not in present]
    if missing:
        return f"without address {', '.join(missing)}"
    in_use = [cidr for key, cidr in planned.items() if _is_duplicate(present[key])]
    return f"somebody else on the network has {', '.join(in_use)}" if in_use else ""


def _find_routing_lack(plan: AttachPlan, pod: Side, seen: SeenLink, rules: PodRules) -> str:
    """What a process of the pod has put in the place of a route, or made of a neighbour, is the pod's own
    choice; what is gone can be added again."""
    present = {ip_address(neighbour.address) for neighbour in seen.neighbours}
    for step in plan.steps:
        match step:
            case AddRoute() if not is_in(seen.routes, pod, seen.link, step) and not has_rival(pod, step):
                return f"without {route_what(step.route)}"
            case AddNeighbour() if ip_address(step.neighbour.address) not in present:
                return f"without {neighbour_what(step.neighbour)}"
    missing = rules.find_missing(step for step in plan.steps if isinstance(step, AddRule))
    return f"without the rule {rule_text(missing[0])}" if missing else ""


def _is_duplicate(address: Address) -> bool:
    """IPv6 only: of an IPv4 address the same bit means nothing."""
    return ":" in address.cidr and bool(address.flags & IFA_F_DADFAILED)

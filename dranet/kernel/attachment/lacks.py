"""Is a link in the pod as its plan says? Asked after an attach, and before each container starts."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.kernel.attachment.locate import Side, is_same_device
from dranet.kernel.attachment.sublink import is_planned_sublink
from dranet.kernel.attachment.vrf import is_in_vrf
from dranet.kernel.inet import IFA_F_DADFAILED, address_key
from dranet.model.facts import Address, Link
from dranet.model.plan import AddAddress, AttachPlan, CreateLink, JoinVrf, MoveLink, SetUp, Step


def find_lack(plan: AttachPlan, pod: Side, link: Link | None, addresses: Sequence[Address]) -> str:
    """What the link in the pod lacks of its plan, as a clause; empty when nothing.

    Looked at is what its own message and its addresses tell; the master takes one look-up more.

    Raises:
        KernelError: netlink failed.
    """
    if link is None or link.ifname != plan.pod_ifname:
        return "the link is not in the pod"
    lacks = (_find_step_lack(step, plan, pod, link) for step in plan.steps)
    return next(filter(None, lacks), "") or _find_address_lack(plan, addresses)


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


def _is_duplicate(address: Address) -> bool:
    """IPv6 only: of an IPv4 address the same bit means nothing."""
    return ":" in address.cidr and bool(address.flags & IFA_F_DADFAILED)

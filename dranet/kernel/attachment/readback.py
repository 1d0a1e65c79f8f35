"""The links of a pod's devices as they are there now: what is told of them, whatever was planned."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_interface

from dranet.kernel.attachment.linkstate import read_addresses, read_link
from dranet.kernel.attachment.locate import Side, open_pod_side
from dranet.kernel.netns import NetworkNamespace
from dranet.model.facts import Address, Link
from dranet.model.plan import AttachPlan
from dranet.model.status import AttachedLink


def read_attached(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[AttachedLink, ...]:
    """One entry for each plan whose link is in ``netns`` under its planned name.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        found = [_read(plan, pod) for plan in plans if plan.pod_ifname]
    return tuple(link for link in found if link is not None)


def _read(plan: AttachPlan, pod: Side) -> AttachedLink | None:
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    return None if link is None else describe(plan, link, read_addresses(pod.rtnl, link))


def describe(plan: AttachPlan, link: Link, addresses: Sequence[Address]) -> AttachedLink:
    """What is told of a link that was read in the pod."""
    interfaces = [ip_interface(address.cidr) for address in addresses]
    cidrs = tuple(str(interface) for interface in interfaces if not interface.ip.is_link_local)
    return AttachedLink(plan.device, link.ifname, link.mac, link.mtu, cidrs)

"""Is a device where it is said to be? Less than ``lacks`` asks: what a pod has set on its link is its own."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.kernel.attachment.linkstate import read_addresses, read_link
from dranet.kernel.attachment.locate import Side, find_link, is_same_device, open_host_side, open_pod_side
from dranet.kernel.attachment.sublink import is_planned_sublink, planned_creation
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.rdmanl import has_rdma
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, LinkState, MoveRdma


def find_absent(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices that are not in ``netns`` under their names.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        return tuple(plan.device for plan in plans if not _is_present(plan, pod))


def _is_present(plan: AttachPlan, pod: Side) -> bool:
    if not all(has_rdma(step.rdma_device, pod.netns) for step in plan.steps if isinstance(step, MoveRdma)):
        return False
    creation = planned_creation(plan)
    if plan.host is None and creation is None:
        return True
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    if link is None:
        return False
    if creation is not None:
        return is_planned_sublink(link, creation)
    return plan.host is None or is_same_device(link, plan, plan.host)


def find_strayed(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is in the calling thread's namespace, and as the kernel brings one back
    from a namespace that died: under another name, or down and without the addresses that it had.

    Raises:
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]
    if not moved:
        return ()
    with open_host_side() as home:
        return tuple(plan.device for plan, host in moved if _has_strayed(plan, host, home))


def _has_strayed(plan: AttachPlan, host: LinkState, home: Side) -> bool:
    found = find_link(plan, host, home, None)
    return found is not None and (found.link.ifname != host.ifname or _is_bare(found.link, host, home))


def _is_bare(link: Link, host: LinkState, home: Side) -> bool:
    """Whoever sets a link down by hand leaves it its IPv4 addresses. Without any nobody can tell."""
    had = {address.cidr for address in host.addresses if ":" not in address.cidr}
    if link.is_up or not host.up or not had:
        return False
    return had.isdisjoint(address.cidr for address in read_addresses(home.rtnl, link))

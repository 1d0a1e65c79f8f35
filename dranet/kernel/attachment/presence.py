"""Is a device where it is said to be? Less than ``lacks`` asks: what a pod has set on its link is its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dranet.kernel.attachment.ipoib import find_ipoib
from dranet.kernel.attachment.linkstate import STACKED_KINDS, read_addresses, read_link
from dranet.kernel.attachment.locate import Side, find_link, is_same_device, open_host_side, open_pod_side
from dranet.kernel.attachment.sublink import is_planned_sublink, planned_creation
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.rdmanl import has_rdma
from dranet.kernel.rtnl import decode_all, dump_links_request, parse_link
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, LinkState, MoveRdma


def find_absent(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices that are not in ``netns``, under whatever names.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        names = {plan.pod_ifname for plan in plans}
        return tuple(plan.device for plan in plans if not _is_present(plan, pod, names))


def find_lost(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices whose link is neither in ``netns`` nor in the calling thread's namespace: to
    attach them would fail.

    Raises:
        KernelError: as :func:`find_absent`.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]
    with open_host_side() as home, open_pod_side(netns) as pod:
        return tuple(plan.device for plan, host in moved if find_link(plan, host, home, pod) is None)


def _is_present(plan: AttachPlan, pod: Side, names: Collection[str]) -> bool:
    """``names`` are those that the pod's links have by their plans."""
    if not all(has_rdma(step.identity, pod.netns) for step in plan.steps if isinstance(step, MoveRdma)):
        return False
    if plan.host is None and planned_creation(plan) is None:
        return True
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    if link is not None and _is_planned(link, plan):
        return True
    links = decode_all(parse_link, pod.rtnl.dump(dump_links_request()), [])
    return any(_is_renamed(link, plan, names) for link in links)


def _is_planned(link: Link, plan: AttachPlan) -> bool:
    creation = planned_creation(plan)
    if creation is not None:
        return is_planned_sublink(link, creation)
    return plan.host is None or is_same_device(link, plan, plan.host)


def _is_renamed(link: Link, plan: AttachPlan, names: Collection[str]) -> bool:
    """The name is the pod's to change, too. A bond, a VLAN and the like wear the address of a link below,
    which may be gone."""
    is_wearing = planned_creation(plan) is None and link.kind in (*STACKED_KINDS, "bond", "bridge", "team")
    return link.ifname not in names and not is_wearing and _is_planned(link, plan)


def find_strayed(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is in the calling thread's namespace, and as the kernel brings one back
    from a namespace that died: under another name, or down and without the addresses that it had.

    Raises:
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]
    remade = [plan for plan in plans if plan.ipoib]
    if not (moved or remade):
        return ()
    with open_host_side() as home:
        return (
            *(plan.device for plan, host in moved if _has_strayed(plan, host, home)),
            *(plan.device for plan in remade if _has_bare_ipoib(plan, home)),
        )


def find_down(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is down in the calling thread's namespace, and was up at Prepare.

    Raises:
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and plan.host.up]
    if not moved:
        return ()
    with open_host_side() as home:
        found = [(plan, find_link(plan, host, home, None)) for plan, host in moved]
        return tuple(plan.device for plan, there in found if there is not None and not there.link.is_up)


def _has_strayed(plan: AttachPlan, host: LinkState, home: Side) -> bool:
    found = find_link(plan, host, home, None)
    return found is not None and (found.link.ifname != host.ifname or _is_bare(found.link, host, home))


def _has_bare_ipoib(plan: AttachPlan, home: Side) -> bool:
    """Whether the RDMA device is home and the interfaces that the kernel made again are not as recorded."""
    for step in plan.steps:
        if isinstance(step, MoveRdma) and has_rdma(step.identity, home.netns):
            found = [(find_ipoib(home, state, step.pci_address), state.link) for state in plan.ipoib]
            return any(
                link is not None and (link.ifname != host.ifname or _is_bare(link, host, home))
                for link, host in found
            )
    return False


def _is_bare(link: Link, host: LinkState, home: Side) -> bool:
    """Whoever sets a link down by hand leaves it its IPv4 addresses. Without any nobody can tell."""
    had = {address.cidr for address in host.addresses if ":" not in address.cidr}
    if link.is_up or not host.up or not had:
        return False
    return had.isdisjoint(address.cidr for address in read_addresses(home.rtnl, link))

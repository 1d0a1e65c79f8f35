"""Bring devices back from a pod and give the host what Prepare recorded. It goes on after a refusal and
collects problems: a link that is back with a wrong MTU is better than one left in a dying namespace."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from dranet.errors import DeviceError, DranetError, KernelError
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.hardware import restore_cpus
from dranet.kernel.attachment.links import (
    STACKED_KINDS,
    Found,
    Side,
    find_link,
    find_step,
    open_host_side,
    open_pod_side,
    read_link,
    steps_of,
)
from dranet.kernel.attachment.restore import restore_ipoib, restore_link
from dranet.kernel.attachment.steps import delete_sublink, remove_unused_vrf
from dranet.kernel.attachment.traffic import remove_limits, remove_multipath_route, remove_rules
from dranet.kernel.attachment.virtual_function import restore_vf
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.rdma import detach_rdma, restore_cm_defaults, restore_rdma_name
from dranet.kernel.netlink.socket import Request, attribute_text, attribute_u32
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.facts import Link
from dranet.model.plan import (
    AddRoute,
    AddRule,
    AttachPlan,
    CreateLink,
    JoinVrf,
    LimitRate,
    LinkState,
    MoveRdma,
)

INTERRUPTS = InterruptFiles()


class DetachReport(Struct, frozen=True):
    """What became of each device. One that is neither restored nor missing is still in the pod."""

    restored: tuple[str, ...] = ()
    """Back on the host. ``problems`` lists the state that could not be restored."""
    missing: tuple[str, ...] = ()
    """A virtual link that was destroyed with its namespace, a NIC that was unplugged."""
    problems: tuple[str, ...] = ()
    """One line each, with the device's name first."""


class LinkMissing(DeviceError):
    """The link is on neither side."""


def detach(
    plans: Sequence[AttachPlan], netns: NetworkNamespace | None, *, interrupts: InterruptFiles = INTERRUPTS
) -> DetachReport:
    """Bring every planned device back to the calling thread's namespace; safe to repeat.

    ``netns`` is the pod's namespace, ``None`` where it is gone: then the kernel has already returned what it
    could, perhaps under another name, and it is looked for on the host.
    """
    with ExitStack() as stack:
        home = stack.enter_context(open_host_side())
        pod = stack.enter_context(open_pod_side(netns)) if netns is not None and netns != home.netns else None
        restored: list[str] = []
        missing: list[str] = []
        problems: list[str] = []
        for plan in plans:
            try:
                problems += _return_device(plan, home, pod, interrupts)
                restored.append(plan.device)
            except LinkMissing:  # a function may be there without its link, and the next one to have it
                missing.append(plan.device)
                unset = restore_vf(home.rtnl, interrupts.sysfs_root, plan)
                problems += [f"{plan.device}: {problem}" for problem in unset]
            except DranetError as error:
                problems.append(f"{plan.device}: {error.message}")
        return DetachReport(tuple(restored), tuple(missing), tuple(problems))


def _return_device(plan: AttachPlan, home: Side, pod: Side | None, interrupts: InterruptFiles) -> list[str]:
    """Return one device to the host; returns the state that could not be restored. Other errors than
    :class:`LinkMissing` mean that the link or its RDMA device is still in the pod."""
    stuck: DranetError | None = None
    problems: list[str] = []
    if pod is not None:  # RDMA first: the link's return makes watchers scan
        problems += [problem for remove in _iter_removals(plan, pod) for problem in _try(remove)]
        reached(Failpoint.RELEASE_EXTRAS_REMOVED)
    try:
        problems += return_rdma(plan, home, pod)
    except LinkMissing:
        raise
    except DranetError as error:
        stuck = error
    creation = find_step(plan, CreateLink)
    if creation is not None and pod is not None:
        delete_sublink(pod, creation)
        reached(Failpoint.RELEASE_SUBLINK_DELETED)
    elif creation is None and plan.host is not None:
        problems += return_link(plan, plan.host, home, pod, interrupts)
        problems += restore_vf(home.rtnl, interrupts.sysfs_root, plan)
        reached(Failpoint.RELEASE_LINK_RESTORED)
    else:
        problems += restore_cpus(plan, interrupts, None, "")
    for step in steps_of(plan, JoinVrf):
        if pod is not None:
            problems += _try(partial(remove_unused_vrf, pod, step))
    if stuck is not None:
        raise stuck
    problems += restore_rdma_defaults(plan)
    return [f"{plan.device}: {problem}" for problem in problems]


def _try(function: Callable[[], None]) -> list[str]:
    try:
        function()
    except DranetError as error:
        return [error.message]
    return []


def _iter_removals(plan: AttachPlan, pod: Side) -> Iterator[Callable[[], None]]:
    """Remove what does not move with the link. Sysctls of the pod's namespace stay as the claim had them:
    they end with it, and other claims of the pod may have set the same."""
    rules = steps_of(plan, AddRule)
    if rules:
        yield partial(remove_rules, pod, rules, plan.pod_ifname)
    for step in plan.steps:
        if isinstance(step, AddRoute) and step.next_hops:
            yield partial(remove_multipath_route, pod, plan.pod_ifname, step)
        if isinstance(step, LimitRate):
            yield partial(_remove_limits, pod, plan.pod_ifname)


def _remove_limits(pod: Side, pod_ifname: str) -> None:
    """Those on a link that has another name go with it; no link has the index 0."""
    link = read_link(pod.rtnl, ifname=pod_ifname)
    remove_limits(pod, link.ifindex if link is not None else 0, pod_ifname)


def return_rdma(plan: AttachPlan, home: Side, pod: Side | None) -> list[str]:
    """Move the RDMA device of a plan to the host if it is in the pod; restore its name and IPoIB interfaces.
    Returns what could not be restored. After ``LinkMissing`` its IPoIB interfaces are gone with it, after any
    other ``KernelError`` it is still in the pod."""
    problems: list[str] = []
    for step in steps_of(plan, MoveRdma):
        try:
            if pod is not None and detach_rdma(step.identity, home.netns, pod.netns):
                reached(Failpoint.RELEASE_RDMA_HOME)
            problems += _restore_rdma(plan, step, home)
        except KernelError as error:
            if error.errno != errno.EPROTONOSUPPORT:  # without RDMA netlink nothing can have moved
                raise
    return problems


def _restore_rdma(plan: AttachPlan, step: MoveRdma, home: Side) -> list[str]:
    """What a device of the host gets back. Its name is an identity for programs, and never worth a device."""
    problems: list[str] = []
    is_home = True
    try:
        is_home = restore_rdma_name(step.identity, home.netns)
    except KernelError as error:
        if error.errno == errno.EPROTONOSUPPORT:
            raise
        problems.append(error.message)
    if plan.ipoib and not is_home:
        raise LinkMissing(f"RDMA device {step.rdma_device} is on neither side, nor are its interfaces")
    for state in plan.ipoib:
        try:
            problems += restore_ipoib(home, state, step.pci_address)
        except DranetError as error:  # the device is home
            problems.append(error.message)
    return problems


def restore_rdma_defaults(plan: AttachPlan) -> list[str]:
    """Write what ``rdma_cm`` forgot of the RDMA device of a plan when it moved; returns what could not be
    written."""
    names = [step.rdma_device for step in steps_of(plan, MoveRdma)]
    return [problem for name in names for problem in restore_cm_defaults(name, plan.rdma_cm)]


def return_link(
    plan: AttachPlan, host: LinkState, home: Side, pod: Side | None, interrupts: InterruptFiles = INTERRUPTS
) -> list[str]:
    """Return the link of a plan to the host, restore it and its CPUs; returns what could not be restored.
    After another ``KernelError`` than ``LinkMissing`` it is still in the pod."""
    link = _bring_home(plan, host, home, pod)
    problems = restore_link(home, link, host)
    if plan.cpus is None:
        return problems
    reached(Failpoint.RELEASE_LINK_SETTLED)
    restored = read_link(home.rtnl, link.ifindex)
    return [*problems, *restore_cpus(plan, interrupts, home, restored.ifname if restored else host.ifname)]


def _bring_home(plan: AttachPlan, host: LinkState, home: Side, pod: Side | None) -> Link:
    found = find_link(plan, host, home, pod)
    if found is None:
        raise LinkMissing("gone while it was being restored")
    if found.side is home:
        return found.link
    _move_home(found, host, home)
    reached(Failpoint.RELEASE_LINK_HOME)
    link = read_link(home.rtnl, ifname=host.ifname)
    if link is None or link.mac != found.link.mac:
        returned = find_link(plan, host, home, None)
        if returned is None:
            raise KernelError(f"move back {host.ifname}: it did not appear on the host", link=host.ifname)
        link = returned.link
    return link


def _move_home(found: Found, host: LinkState, home: Side) -> None:
    """Move a link out of the pod, under whatever name the host has free; after an error it is still there."""
    _delete_links_on_top(found)
    _drop_clashing_altnames(found, home)
    requests = _moves(found.link, host, home)
    for request in requests:
        (outcome,) = found.side.rtnl.batch([request])
        if not isinstance(outcome, KernelError) or not _is_still_in(found):
            return  # it may have left and only the new name was refused: restoring sees to that
        if request is requests[-1] or outcome.errno not in (errno.EEXIST, errno.EBUSY):
            raise outcome


def _delete_links_on_top(found: Found) -> None:
    """A macvlan that a tenant put on the link would go on to use it from the pod when the next one has it."""
    for link in rtnl.decode_all(rtnl.parse_link, found.side.rtnl.dump(rtnl.dump_links_request()), []):
        if link.lower == found.link.ifindex and link.link_netnsid is None and link.kind in STACKED_KINDS:
            found.side.rtnl.batch([rtnl.delete_link_request(link.ifindex, link.ifname)])


def _drop_clashing_altnames(found: Found, home: Side) -> None:
    """The kernel moves no link whose alternative name is in use on the other side, and a tenant may have
    given it any."""
    clashing = [name for name in found.link.altnames if read_link(home.rtnl, ifname=name) is not None]
    if clashing:
        found.side.rtnl.batch([rtnl.delete_altnames_request(found.link.ifindex, clashing, found.link.ifname)])


def _moves(link: Link, host: LinkState, home: Side) -> tuple[Request, ...]:
    """First with name and index as they were; where the index or the name is taken, without."""
    target = attribute_u32(rtnl.IFLA_NET_NS_FD, home.netns.fileno())
    name = attribute_text(rtnl.IFLA_IFNAME, host.ifname)
    index = attribute_u32(rtnl.IFLA_NEW_IFINDEX, host.ifindex)
    any_name = attribute_text(rtnl.IFLA_IFNAME, "dev%d")  # as the kernel itself does when a namespace dies
    return tuple(
        rtnl.set_link_request(link.ifindex, *attributes, operation="move back", link=host.ifname)
        for attributes in ((target, name, index), (target, name), (target, any_name))
    )


def _is_still_in(found: Found) -> bool:
    link = read_link(found.side.rtnl, found.link.ifindex)
    return link is not None and link.mac == found.link.mac

"""Apply attach plans in a pod's network namespace: all of a pod's devices, or none. The hook path: each
namespace is entered once, a link's settings are sent together, and links are looked up one by one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import TypeVar

from msgspec import Struct

from dranet.errors import DeviceError, DranetError, KernelError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.checks import UplinkGuard, UplinkRules, describe, find_drift, look_at
from dranet.kernel.attachment.detach import INTERRUPTS, restore_rdma_defaults, return_link, return_rdma
from dranet.kernel.attachment.hardware import restore_cpus, set_cpu_locality
from dranet.kernel.attachment.links import (
    Side,
    UndoStack,
    find_link,
    find_step,
    is_same_device,
    open_host_side,
    open_pod_side,
    read_link,
    steps_of,
)
from dranet.kernel.attachment.steps import (
    Target,
    apply_group,
    apply_multipath_route,
    apply_sysctls,
    check_parent,
    create_sublink,
    delete_sublink,
    explain_refusal,
    find_sublink,
    group_of,
)
from dranet.kernel.attachment.traffic import PodRules
from dranet.kernel.attachment.virtual_function import restore_vf, set_vf
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.rdma import attach_rdma, find_rdma_name
from dranet.kernel.netlink.socket import attribute, attribute_text, attribute_u32
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.facts import Link
from dranet.model.plan import (
    AddRoute,
    AttachPlan,
    CreateLink,
    LinkState,
    MoveLink,
    MoveRdma,
    SetCpuLocality,
    SetSysctl,
    SetVf,
    Step,
)
from dranet.model.status import AttachedLink

ONLY_DEFAULT_ROUTES = UplinkRules()

_KEPT_REASONS = (Reason.MISSING_FEATURE, Reason.DHCP_LEASE_EXPIRED)
"""Reasons of a refused step that identify who must act. Every other reason means that the attach failed."""

T = TypeVar("T")

StepObserver = Callable[[str, float], None]
Interrupt = Callable[[], str]


def attach(
    plans: Sequence[AttachPlan],
    netns: NetworkNamespace,
    rules: UplinkRules = ONLY_DEFAULT_ROUTES,
    *,
    why_stop: Interrupt = lambda: "",
    interrupts: InterruptFiles = INTERRUPTS,
    observe: StepObserver = lambda _step, _seconds: None,
    confirm: Callable[[], None] = lambda: None,
) -> tuple[AttachedLink, ...]:
    """Attach every planned device, in order, from the calling thread's namespace; safe to repeat.

    A device that is already attached is completed. After a failure the devices that this call brought in are
    back on the host as Prepare found them, and what it set in the pod's namespace is as before; what it
    completed on a link that was in the pod already stays. Returns one entry per plan with a link, read back
    from the pod.

    ``why_stop`` is asked before each step; a reason is a failure like any other. A step that the kernel is
    busy with is not cut off. ``observe`` hears of each step that was taken, by the name of the first of those
    that went out together, and for how many seconds. Both must be quick. ``confirm`` is called when all is in
    place: what it raises undoes the attach as a refused step does.

    Raises:
        DeviceError: a link is gone or another device than the one prepared (``DeviceNotFound``), enslaved
            (``DeviceBusy``), or the node's uplink (``DeviceIsUplink``).
        KernelError: a step failed (``AttachFailed``, ``MissingFeature``, ``DHCPLeaseExpired``: ``operation``
            is the step, ``link`` the pod's name for it), ``why_stop`` gave a reason, or the namespace could
            not be entered.
    """
    with ExitStack() as stack:
        home = stack.enter_context(open_host_side())
        if netns == home.netns:
            raise KernelError("the pod's network namespace is the node's own", reason=Reason.ATTACH_FAILED)
        pod = stack.enter_context(open_pod_side(netns))
        undo = UndoStack()
        guard = UplinkGuard(home.rtnl, rules)
        attachment = _Attachment(home, pod, guard, undo, why_stop, interrupts, observe, PodRules(pod))
        try:
            links = attachment.attach_all(plans)
            confirm()
        except DranetError as error:
            error.hint = "; ".join(filter(None, (error.hint, *undo.run())))
            raise
        except BaseException:
            undo.run()
            raise
        return links


class _Attachment(Struct, frozen=True):
    home: Side
    pod: Side
    guard: UplinkGuard
    undo: UndoStack
    why_stop: Interrupt
    interrupts: InterruptFiles
    observe: StepObserver
    rules: PodRules

    def attach_all(self, plans: Sequence[AttachPlan]) -> tuple[AttachedLink, ...]:
        attached = [(plan, self._attach(plan)) for plan in plans]
        links = [(plan, target) for plan, target in attached if target is not None]
        for plan, target in links:  # their ways may lead through any link of the pod
            for step in steps_of(plan, AddRoute):
                if step.next_hops:
                    self._apply(plan, step, partial(apply_multipath_route, target, step))
        rules = PodRules(self.pod)  # read afresh
        return tuple(self._read_back(plan, target.link.ifindex, rules) for plan, target in links)

    def _attach(self, plan: AttachPlan) -> Target | None:
        target = self._bring_in(plan)
        for _, group in groupby(filter(_is_applied_in_turn, plan.steps), group_of):
            steps = list(group)
            if isinstance(steps[0], MoveRdma):
                apply = partial(self._move_rdma, plan, steps)
            elif isinstance(steps[0], SetVf):
                apply = partial(self._administer, plan, steps[0])
            elif isinstance(steps[0], SetCpuLocality):  # a device without a link also has interrupts
                apply = partial(self._set_locality, plan, steps[0])
            elif isinstance(steps[0], SetSysctl):  # a device without a link may have some of the namespace
                apply = partial(apply_sysctls, self.pod, plan.device, steps, self.undo)
            elif target is not None:
                apply = partial(apply_group, target, steps)
            else:
                raise ValueError(f"plan of {plan.device} has no link for its step {steps[0].step}")
            self._apply(plan, steps[0], apply)
        return target

    def _apply(self, plan: AttachPlan, first: Step, apply: Callable[[], T]) -> T:
        why_stop = self.why_stop()
        if why_stop:
            raise _failure(plan, KernelError(f"{why_stop}, before {first.step}", operation="attach"))
        start = perf_counter()
        try:
            applied = apply()
        except KernelError as refusal:
            raise _failure(plan, refusal) from refusal
        self.observe(first.step, perf_counter() - start)
        reached(Failpoint.ATTACH_STEPS_APPLIED)
        return applied

    def _bring_in(self, plan: AttachPlan) -> Target | None:
        """The device's link in the pod; ``None`` for a device without one."""
        creation, move = find_step(plan, CreateLink), find_step(plan, MoveLink)
        if creation is not None:
            return self._apply(plan, creation, partial(self._create, plan, creation))
        if plan.host is None:
            return None
        if move is None:
            raise ValueError(f"plan of {plan.device} has a link but no step that moves or makes it")
        return self._apply(plan, move, partial(self._move_in, plan, plan.host, move))

    def _target(self, plan: AttachPlan, link: Link, *, is_new: bool) -> Target:
        return Target(plan.device, self.pod, link, plan.pod_ifname, self.undo, is_new, self.rules, plan.lease)

    def _create(self, plan: AttachPlan, step: CreateLink) -> Target:
        check_parent(self.home, step)
        found = find_sublink(self.pod, step)
        if found is not None:
            return self._repair(plan, found, step)
        self.undo.later(plan.device, partial(delete_sublink, self.pod, step))
        try:
            link = create_sublink(self.home, self.pod, step)
            reached(Failpoint.ATTACH_SUBLINK_CREATED)
        except KernelError as refusal:
            self._explain_taken_name(plan, refusal)
            explain_refusal(refusal, step)
            raise
        return self._target(plan, link, is_new=True)

    def _move_in(self, plan: AttachPlan, host: LinkState, move: MoveLink) -> Target:
        """The host's link, moved unless it is in the pod already."""
        found = find_link(plan, host, self.home, self.pod)
        if found is None or not is_same_device(found.link, plan, host):
            raise DeviceError(f"{plan.device}: the link {host.ifname} that was prepared is not on this node")
        if found.side is self.pod:
            return self._repair(plan, found.link, move)
        self.guard.check(found.link)
        if found.link.master is not None:
            raise DeviceError(f"link {found.link.ifname} is enslaved on the node", reason=Reason.DEVICE_BUSY)
        self.undo.later(plan.device, partial(return_link, plan, host, self.home, self.pod, self.interrupts))
        reached(Failpoint.ATTACH_LINK_FOUND)
        # One message. The kernel closes the link itself before it leaves, so that name and MAC address may
        # change; an explicit down would only add a second wait for traffic to drain.
        request = rtnl.set_link_request(
            found.link.ifindex,
            attribute_u32(rtnl.IFLA_NET_NS_FD, self.pod.netns.fileno()),
            attribute_text(rtnl.IFLA_IFNAME, move.pod_ifname),
            *_properties(move.mtu, move.mac),
            operation="move-link",
            link=host.ifname,
        )
        try:
            self.home.rtnl.request(request)
            reached(Failpoint.ATTACH_LINK_MOVED)
        except KernelError as refusal:
            self._explain_taken_name(plan, refusal)
            raise
        moved = read_link(self.pod.rtnl, ifname=plan.pod_ifname)
        if moved is None:
            raise KernelError("the link did not appear in the pod", operation="move-link")
        return self._target(plan, moved, is_new=True)

    def _explain_taken_name(self, plan: AttachPlan, refusal: KernelError) -> None:
        is_taken = refusal.errno == errno.EEXIST
        taken_by = read_link(self.pod.rtnl, ifname=plan.pod_ifname) if is_taken else None
        if taken_by is not None:
            kind = f"{taken_by.kind} " if taken_by.kind else ""
            refusal.message += f": the pod has a {kind}link {plan.pod_ifname} ({taken_by.mac}) already"
            refusal.hint = "set interface.name to a name that is free in the pod"

    def _repair(self, plan: AttachPlan, link: Link, step: MoveLink | CreateLink) -> Target:
        """A link that is in the pod already, with the planned name, MTU and MAC address."""
        attributes = _properties(
            None if step.mtu == link.mtu else step.mtu, None if step.mac == link.mac else step.mac
        )
        if link.ifname != plan.pod_ifname:
            attributes.append(attribute_text(rtnl.IFLA_IFNAME, plan.pod_ifname))
        if attributes:
            self.pod.rtnl.request(
                rtnl.set_link_request(link.ifindex, *attributes, operation=step.step, link=plan.pod_ifname)
            )
        return self._target(plan, link, is_new=False)

    def _move_rdma(self, plan: AttachPlan, steps: Sequence[Step]) -> None:
        for identity in [step.identity for step in steps if isinstance(step, MoveRdma)]:
            if plan.host is None:  # a link has been checked, with all that belongs to it
                self.guard.check_rdma(find_rdma_name(identity, self.home.netns))
            if attach_rdma(identity, self.pod.netns):
                self.undo.later(plan.device, partial(restore_rdma_defaults, plan))  # once it is home again
                self.undo.later(plan.device, partial(return_rdma, plan, self.home, self.pod))
                restore_rdma_defaults(plan)  # the pod's connections have them as well
                reached(Failpoint.ATTACH_RDMA_MOVED)

    def _administer(self, plan: AttachPlan, step: SetVf) -> None:
        home, root = self.home.rtnl, self.interrupts.sysfs_root
        self.undo.later(plan.device, partial(restore_vf, home, root, plan))
        set_vf(home, root, step)

    def _set_locality(self, plan: AttachPlan, step: SetCpuLocality) -> None:
        """Restored with the link, if there is one."""
        if plan.host is None:
            self.undo.later(plan.device, partial(restore_cpus, plan, self.interrupts, None, ""))
        set_cpu_locality(step, self.pod, plan.pod_ifname, self.interrupts)
        reached(Failpoint.ATTACH_CPUS_SET)

    def _read_back(self, plan: AttachPlan, ifindex: int, rules: PodRules) -> AttachedLink:
        seen = look_at(plan, self.pod, read_link(self.pod.rtnl, ifindex))
        drift = find_drift(plan, self.pod, seen, rules)
        if seen is None or drift:
            raise _failure(plan, KernelError(drift, operation="read back"))
        return describe(plan, seen, rules)


def _is_applied_in_turn(step: Step) -> bool:
    """What neither brings the link in nor waits for other links."""
    if isinstance(step, MoveLink | CreateLink):
        return False
    return not (isinstance(step, AddRoute) and step.next_hops)


def _properties(mtu: int | None, mac: str | None) -> list[bytes]:
    properties = []
    if mtu is not None:
        properties.append(attribute_u32(rtnl.IFLA_MTU, mtu))
    if mac is not None:
        properties.append(attribute(rtnl.IFLA_ADDRESS, rtnl.mac_bytes(mac)))
    return properties


def _failure(plan: AttachPlan, refusal: KernelError) -> KernelError:
    name = f" as {plan.pod_ifname}" if plan.pod_ifname else ""
    return KernelError(
        f"attach {plan.device}{name}: {refusal.message}",
        errno=refusal.errno,
        operation=refusal.operation,
        link=plan.pod_ifname,
        hint=refusal.hint,
        reason=refusal.reason if refusal.reason in _KEPT_REASONS else Reason.ATTACH_FAILED,
    )


# --- setting links down before they move ----------------------------------------------------------------
# A NIC's driver may take half a second to stop its queues. Prepare has more time for that than the
# runtime's hook, which blocks all other pods of the node.


def set_down(plans: Sequence[AttachPlan], rules: UplinkRules) -> None:
    """Set the link of each plan down in the calling thread's namespace; safe to repeat. One that is missing,
    enslaved or already down is skipped: the attach reports what is wrong with it. The node's uplink stays up,
    and is a ``DeviceError`` (``DeviceIsUplink``)."""
    moved = [(plan, plan.host) for plan in plans if plan.host is not None]
    if not moved:
        return
    with open_host_side() as home:
        guard = UplinkGuard(home.rtnl, rules)
        for plan, host in moved:
            found = find_link(plan, host, home, None)
            if found is None or not is_same_device(found.link, plan, host):
                continue
            link = found.link
            if link.is_up and link.master is None:
                guard.check(link)
                home.rtnl.request(
                    rtnl.set_link_request(
                        link.ifindex, operation="set-down", link=link.ifname, flags=0, change=rtnl.IFF_UP
                    )
                )

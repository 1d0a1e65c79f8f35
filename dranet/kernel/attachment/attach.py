"""Apply attach plans in a pod's network namespace: all of a pod's devices, or none.

The hook path. A move costs some 18 ms in the kernel, whoever asks; everything else here is kept to a few
system calls: each namespace is entered once, a link's settings go out together, and links are looked
up one by one, never by listing all.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from dranet.errors import DeviceError, DranetError, KernelError, Reason
from dranet.kernel.attachment.detach import undo_attach
from dranet.kernel.attachment.linkstate import has_route, read_addresses, read_link
from dranet.kernel.attachment.locate import (
    Side,
    find_link,
    is_same_device,
    open_host_side,
    open_pod_side,
    planned_move,
)
from dranet.kernel.attachment.uplink import UplinkGuard, UplinkRules
from dranet.kernel.inet import (
    RT_SCOPE_LINK,
    RTN_UNICAST,
    add_address_request,
    add_route_request,
    address_key,
)
from dranet.kernel.netlink import Request, attribute, attribute_text, attribute_u32
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.rdmanl import attach_rdma, has_rdma
from dranet.kernel.rtnl import (
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_IFNAME,
    IFLA_MTU,
    IFLA_NET_NS_FD,
    mac_bytes,
    set_link_request,
)
from dranet.model.facts import Address, Link, Route
from dranet.model.plan import AddAddress, AddRoute, AttachPlan, LinkState, MoveLink, MoveRdma, SetUp, Step
from dranet.model.status import AttachedLink

NO_MORE_RULES = UplinkRules()
"""The node lives by its default routes alone."""


def attach(
    plans: Sequence[AttachPlan], netns: NetworkNamespace, rules: UplinkRules = NO_MORE_RULES
) -> tuple[AttachedLink, ...]:
    """Attach every planned device, in order, from the calling thread's namespace; safe to repeat.

    A device that is already attached is completed. After a failure the devices moved by this call are back
    on the host as Prepare found them. Returns one entry per plan with a link, read back from the pod.

    Raises:
        DeviceError: a link is gone or another device than the one prepared (``DeviceNotFound``), enslaved
            (``DeviceBusy``), or the node's uplink (``DeviceIsUplink``).
        KernelError: the kernel refused a step (``AttachFailed``: ``operation`` is the step, ``link`` the
            pod's name for it), or the namespace could not be entered.
    """
    with ExitStack() as stack:
        home = stack.enter_context(open_host_side())
        if netns == home.netns:
            raise KernelError("the pod's network namespace is the node's own", reason=Reason.ATTACH_FAILED)
        pod = stack.enter_context(open_pod_side(netns))
        undo_problems: list[str] = []
        try:
            with ExitStack() as undo:
                attachment = _Attachment(home, pod, UplinkGuard(home.rtnl, rules), undo, undo_problems)
                attached = [attachment.attach(plan) for plan in plans]
                undo.pop_all()
        except DranetError as error:
            if undo_problems:
                error.hint = "; ".join((*([error.hint] if error.hint else []), *undo_problems))
            raise
        return tuple(link for link in attached if link is not None)


@dataclass(frozen=True, slots=True)
class _Attachment:
    """One call of :func:`attach`: both sides, the guard and the undo stack."""

    home: Side
    pod: Side
    guard: UplinkGuard
    undo: ExitStack
    undo_problems: list[str]

    def attach(self, plan: AttachPlan) -> AttachedLink | None:
        link = None if plan.host is None else self._bring_in(plan, plan.host)
        if link is not None:
            self._configure(plan, link)
        for step in plan.steps:
            if isinstance(step, MoveRdma):
                self._move_rdma(plan, step)
        return self._read_back(plan, link.ifindex) if link is not None else None

    def _undo_later(self, plan: AttachPlan) -> None:
        self.undo.callback(lambda: self.undo_problems.extend(undo_attach(plan, self.home, self.pod)))

    def _bring_in(self, plan: AttachPlan, host: LinkState) -> Link:
        """The link inside the pod, moved there unless it was."""
        move = planned_move(plan)
        if move is None:
            raise ValueError(f"plan of {plan.device} has a link but no step that moves it")
        found = find_link(plan, host, self.home, self.pod)
        if found is None or not is_same_device(found.link, plan, host):
            raise DeviceError(f"{plan.device}: the link {host.ifname} that was prepared is not on this node")
        if found.side is self.pod:
            self._apply(plan, _repair_requests(found.link, move, plan.pod_ifname))
            return found.link
        self._check_is_free(found.link)
        self._undo_later(plan)
        self._move(plan, host, move, found.link)
        moved = read_link(self.pod.rtnl, ifname=plan.pod_ifname)
        if moved is None:
            raise _failure(plan, "move-link", "the link did not appear in the pod")
        return moved

    def _check_is_free(self, link: Link) -> None:
        self.guard.check(link)
        if link.master is not None:
            raise DeviceError(f"link {link.ifname} is enslaved on the node", reason=Reason.DEVICE_BUSY)

    def _move(self, plan: AttachPlan, host: LinkState, move: MoveLink, link: Link) -> None:
        """One message. The kernel closes the link itself before it leaves, so that name and MAC address may
        change; an explicit down would only add a second wait for traffic to drain."""
        target = attribute_u32(IFLA_NET_NS_FD, self.pod.netns.fileno())
        attributes = [target, attribute_text(IFLA_IFNAME, plan.pod_ifname), *_properties(move)]
        request = set_link_request(link.ifindex, *attributes, operation="move-link", link=host.ifname)
        self._apply(plan, [request], self.home)

    def _move_rdma(self, plan: AttachPlan, step: MoveRdma) -> None:
        if plan.host is None:  # a link has been checked, with all that belongs to it
            self.guard.check_rdma(step.rdma_device)
        try:
            moved = attach_rdma(step.rdma_device, self.pod.netns)
        except KernelError as error:
            raise _step_failure(plan, error) from error
        if moved:
            self._undo_later(plan)

    def _configure(self, plan: AttachPlan, link: Link) -> None:
        """All settings inside the pod at once."""
        routes: dict[int, Route] = {}
        requests: list[Request] = []
        for step in plan.steps:
            if isinstance(step, AddRoute):
                routes[len(requests)] = step.route
            requests += _step_requests(step, link, plan.pod_ifname)
        for position, outcome in enumerate(self.pod.rtnl.batch(requests)):
            route = routes.get(position)
            if isinstance(outcome, KernelError) and not self._has(link, route, outcome):
                raise _step_failure(plan, outcome) from outcome

    def _has(self, link: Link, route: Route | None, refusal: KernelError) -> bool:
        return refusal.errno == errno.EEXIST and route is not None and has_route(self.pod.rtnl, link, route)

    def _apply(self, plan: AttachPlan, requests: Sequence[Request], side: Side | None = None) -> None:
        for outcome in (side or self.pod).rtnl.batch(requests):
            if isinstance(outcome, KernelError):
                raise _step_failure(plan, outcome) from outcome

    def _read_back(self, plan: AttachPlan, ifindex: int) -> AttachedLink:
        link = read_link(self.pod.rtnl, ifindex)
        addresses = read_addresses(self.pod.rtnl, link) if link is not None else ()
        lack = _find_lack(plan, link, addresses)
        if link is None or lack:
            raise _failure(plan, "read back", lack)
        return AttachedLink(plan.device, link.ifname, link.mac, link.mtu, _global_cidrs(addresses))


def verify(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices that are not in ``netns`` as planned: absent, down, or without an address.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        return tuple(plan.device for plan in plans if not _is_attached(plan, pod))


def _is_attached(plan: AttachPlan, pod: Side) -> bool:
    steps = [step for step in plan.steps if isinstance(step, MoveRdma)]
    if not all(has_rdma(step.rdma_device, pod.netns) for step in steps):
        return False
    if plan.host is None:
        return True
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    addresses = read_addresses(pod.rtnl, link) if link is not None else ()
    return not _find_lack(plan, link, addresses)


def _find_lack(plan: AttachPlan, link: Link | None, addresses: Sequence[Address]) -> str:
    """What the link in the pod lacks of its plan; empty when nothing."""
    if link is None or plan.host is None:
        return "the link is not in the pod"
    if not is_same_device(link, plan, plan.host):
        return f"the link {link.ifname} is another device"
    if not link.is_up and any(isinstance(step, SetUp) for step in plan.steps):
        return "the link is not up"
    present = {address_key(address) for address in addresses}
    planned = [step.address for step in plan.steps if isinstance(step, AddAddress)]
    missing = [address.cidr for address in planned if address_key(address) not in present]
    return f"without address {', '.join(missing)}" if missing else ""


def _step_requests(step: Step, link: Link, pod_ifname: str) -> list[Request]:
    if isinstance(step, AddAddress):
        return [add_address_request(link.ifindex, step.address, pod_ifname, skip_dad=True)]
    if isinstance(step, AddRoute):
        return [add_route_request(link.ifindex, _with_scope(step.route), pod_ifname)]
    if isinstance(step, SetUp):
        return [
            set_link_request(link.ifindex, operation="set-up", link=pod_ifname, flags=IFF_UP, change=IFF_UP)
        ]
    return []


def _with_scope(route: Route) -> Route:
    """An IPv4 route without a gateway reaches its neighbours directly: link scope, or the kernel takes no
    gateway from behind it."""
    is_direct = not route.gateway and route.type == RTN_UNICAST and ":" not in route.destination
    return replace(route, scope=RT_SCOPE_LINK) if is_direct and route.scope == 0 else route


def _properties(move: MoveLink) -> list[bytes]:
    properties = []
    if move.mtu is not None:
        properties.append(attribute_u32(IFLA_MTU, move.mtu))
    if move.mac is not None:
        properties.append(attribute(IFLA_ADDRESS, mac_bytes(move.mac)))
    return properties


def _repair_requests(link: Link, move: MoveLink, pod_ifname: str) -> list[Request]:
    """Bring a link that is in the pod already to the planned name, MTU and MAC address."""
    wanted = replace(
        move,
        mtu=None if move.mtu == link.mtu else move.mtu,
        mac=None if move.mac == link.mac else move.mac,
    )
    attributes = _properties(wanted)
    if link.ifname != pod_ifname:
        attributes.append(attribute_text(IFLA_IFNAME, pod_ifname))
    if not attributes:
        return []
    return [set_link_request(link.ifindex, *attributes, operation="move-link", link=pod_ifname)]


def _global_cidrs(addresses: Sequence[Address]) -> tuple[str, ...]:
    interfaces = [ip_interface(address.cidr) for address in addresses]
    return tuple(str(interface) for interface in interfaces if not interface.ip.is_link_local)


def _step_failure(plan: AttachPlan, refusal: KernelError) -> KernelError:
    return _failure(plan, refusal.operation, refusal.message, refusal.errno)


def _failure(plan: AttachPlan, step: str, text: str, number: int = 0) -> KernelError:
    return KernelError(
        f"attach {plan.device} as {plan.pod_ifname}: {text}",
        errno=number,
        operation=step,
        link=plan.pod_ifname,
        reason=Reason.ATTACH_FAILED,
    )

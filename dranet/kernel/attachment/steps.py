"""The steps of a plan that configure the link once it is in the pod.

The steps of one :func:`group_of` are sent together. A refusal is a ``KernelError`` with the kernel's text,
and with a hint where the fix is known. What a step would leave behind when the link goes has an undo.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.attachment.locate import Side, Undo, UndoStack, write_pod_sysctls
from dranet.kernel.attachment.programs import remove_programs
from dranet.kernel.attachment.rates import limit_rate, remove_limits
from dranet.kernel.attachment.routing import (
    REPEATED_ROUTE,
    PodRules,
    add_multipath_route,
    describe_rival,
    has_same_route,
    remove_multipath_route,
    remove_rules,
    route_request,
)
from dranet.kernel.attachment.sublink import join_vrf
from dranet.kernel.dhcp.message import seconds_left
from dranet.kernel.ethtool.settings import set_ethtool
from dranet.kernel.netlink.inet import add_address_request, add_neighbour_request
from dranet.kernel.netlink.rtnl import (
    IFF_UP,
    IFLA_TXQLEN,
    decode,
    get_link_request,
    ipv6_token_attribute,
    offload_size_attributes,
    parse_ipv6_token,
    set_link_request,
)
from dranet.kernel.netlink.socket import Request, attribute_u32
from dranet.kernel.sysfs.sysctl import read_sysctl
from dranet.model.facts import Address, Link
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    DhcpLease,
    JoinVrf,
    LimitRate,
    RemovePrograms,
    SetEthtool,
    SetLink,
    SetSysctl,
    SetToken,
    SetUp,
    Step,
)

_REQUESTS = (SetLink, SetToken, AddAddress, SetUp, AddRoute, AddNeighbour)
"""What is one request about the link; consecutive ones go out together."""

_IPV6_OFF = (
    "IPv6 is off in the pod: set interface.ipv6.enabled to true, or leave the node's routes and neighbours "
    "there with interface.inheritRouting: false"
)
_HINTS = {
    (AddAddress, errno.EACCES): "IPv6 is off in the pod: set interface.ipv6.enabled to true",
    (AddRoute, errno.ENETUNREACH): "the gateway must be in the network of an address, or the route onlink",
    (AddRoute, errno.EHOSTUNREACH): "the gateway must be in the network of an address, or the route onlink",
    (AddRoute, errno.ENETDOWN): "the link is down",
    (AddRoute, errno.EACCES): _IPV6_OFF,
    (AddNeighbour, errno.EINVAL): _IPV6_OFF,
    (SetUp, errno.ENETDOWN): "the parent is down: set it up on the node",
    (
        SetToken,
        errno.EINVAL,
    ): "a token needs router advertisements: ipv6.acceptRA, which is 2 with forwarding",
    (JoinVrf, errno.EOPNOTSUPP): "load the kernel module vrf on the node",
}


def group_of(step: Step) -> type:
    """Consecutive steps of one group are applied by one :func:`apply_group`."""
    return AddAddress if isinstance(step, _REQUESTS) else type(step)


class Target(Struct, frozen=True):
    """The link in the pod that steps are applied to."""

    device: str
    pod: Side
    link: Link
    pod_ifname: str
    undo: UndoStack
    is_new: bool
    """It was brought into the pod by this attach."""
    rules: PodRules
    lease: DhcpLease | None = None
    """Where one of its addresses is from."""

    def undo_later(self, undo: Undo) -> None:
        """Take this back if a later step fails."""
        self.undo.later(self.device, undo)


def apply_group(target: Target, steps: Sequence[Step]) -> None:
    """Apply consecutive steps of one group.

    Raises:
        KernelError: the kernel refused one of them.
    """
    pod, name = target.pod, target.pod_ifname
    if isinstance(steps[0], AddRule):
        rules = (step for step in steps if isinstance(step, AddRule))
        target.rules.add(
            rules, name, lambda rule: target.undo_later(partial(remove_rules, pod, [rule], name))
        )
    elif isinstance(steps[0], _REQUESTS):
        _send(target, steps)
    else:
        for step in steps:
            _call_with_hint(target, step)


def _call_with_hint(target: Target, step: Step) -> None:
    try:
        _call(target, step)
    except KernelError as refusal:
        _explain(target, step, refusal)
        raise


def _call(target: Target, step: Step) -> None:
    """Apply a step that is a conversation of its own."""
    pod, link, name = target.pod, target.link, target.pod_ifname
    match step:
        case SetEthtool():
            set_ethtool(pod.genl, link.ifindex, step.settings, name)
        case JoinVrf():
            join_vrf(pod, target.device, link, step, target.undo)
        case LimitRate():
            _limit_rate(target, step)
        case RemovePrograms():
            # A link that is up went through this before: what is on it now is the pod's own.
            if target.is_new or not link.is_up:
                remove_programs(pod, link.ifindex, name)
        case _:
            raise ValueError(f"{step.step} is no step of a link in the pod")


def _limit_rate(target: Target, step: LimitRate) -> None:
    """Limit the rate and keep a queue length of 0, which the kernel changes to 1000 when a queue is added to
    a software link (``qdisc_create``)."""
    pod, index, name = target.pod, target.link.ifindex, target.pod_ifname
    if target.is_new:
        target.undo_later(partial(remove_limits, pod, index, name))
    before = read_link(pod.rtnl, index)
    limit_rate(pod, index, name, step)
    if before is not None and not before.tx_queue_length:
        for request in _iter_property_requests(index, name, SetLink(tx_queue_length=0)):
            pod.rtnl.request(request)


# --- sysctls --------------------------------------------------------------------------------------------


def apply_sysctls(pod: Side, device: str, steps: Sequence[Step], undo: UndoStack) -> None:
    """Write consecutive sysctls; also for a device without a link.

    Raises:
        KernelError: the kernel refused one of them.
    """
    wanted = [(step.path, step.value) for step in steps if isinstance(step, SetSysctl)]
    write_pod_sysctls(pod, device, wanted, undo)


# --- requests -------------------------------------------------------------------------------------------


def _send(target: Target, steps: Sequence[Step]) -> None:
    """Send all requests at once; the first refusal counts."""
    pairs = [(step, request) for step in steps for request in _iter_requests(target, step)]
    outcomes = target.pod.rtnl.batch([request for _, request in pairs])
    for (step, _), outcome in zip(pairs, outcomes, strict=True):
        if isinstance(outcome, KernelError) and not _is_there(target, step, outcome):
            _explain(target, step, outcome)
            raise outcome


def _iter_requests(target: Target, step: Step) -> Iterator[Request]:
    index, name = target.link.ifindex, target.pod_ifname
    match step:
        case AddAddress():
            yield add_address_request(index, _with_lifetime(target, step.address), name)
        case AddRoute():
            yield route_request(index, step.route, name)
        case AddNeighbour():
            yield add_neighbour_request(index, step.neighbour, name)
        case SetUp():
            yield set_link_request(index, operation="set-up", link=name, flags=IFF_UP, change=IFF_UP)
        case SetLink():
            yield from _iter_property_requests(index, name, step)
        case SetToken():
            # Set again, it would end the addresses that were made with it.
            if target.is_new or _read_token(target) != step.token:
                attributes = ipv6_token_attribute(step.token)
                yield set_link_request(index, attributes, operation="set-token", link=name)


def _with_lifetime(target: Target, address: Address) -> Address:
    """Give a leased address the lifetime of its lease, and an advertised one that of the advertisement if the
    pod listens to routers. Nothing renews any other address in the pod: it is permanent.

    Raises:
        KernelError: ``DHCPLeaseExpired``: another host may have the address by now.
    """
    if target.lease is not None and address.cidr == target.lease.address:
        return _with_time_left(address, target.lease)
    if address.valid_seconds is None or (":" in address.cidr and _hears_routers(target)):
        return address
    return replace(address, valid_seconds=None, preferred_seconds=None)


def _hears_routers(target: Target) -> bool:
    """Whether the kernel renews, from router advertisements, the address that it makes of the link's hardware
    address (``accept_ra`` in ``Documentation/networking/ip-sysctl.rst``)."""
    names = ("accept_ra", "forwarding", "autoconf", "accept_ra_pinfo", "addr_gen_mode")
    try:
        accepts, *rest = target.pod.run(
            lambda: [read_sysctl(f"ipv6/conf/{target.pod_ifname}/{name}") for name in names]
        )
    except KernelError:  # no IPv6: adding the address reports it
        return False
    forwards, *made = rest
    return made == ["1", "1", "0"] and (accepts == "2" or (accepts == "1" and forwards == "0"))


def _with_time_left(address: Address, lease: DhcpLease) -> Address:
    """What is left of the lease, which was taken at Prepare.

    Raises:
        KernelError: ``DHCPLeaseExpired``.
    """
    left = seconds_left(lease, time.time())
    if left == 0:
        raise KernelError(
            f"the DHCP lease of {lease.address} from {lease.server} has ended",
            operation="add-address",
            hint="it is asked for again; does the server still know this client?",
            reason=Reason.DHCP_LEASE_EXPIRED,
        )
    return replace(address, valid_seconds=left, preferred_seconds=left)


def _iter_property_requests(index: int, name: str, step: SetLink) -> Iterator[Request]:
    properties = offload_size_attributes(step.offload_sizes)
    if step.tx_queue_length is not None:
        properties.append(attribute_u32(IFLA_TXQLEN, step.tx_queue_length))
    if properties:
        yield set_link_request(index, *properties, operation="set-link", link=name)


def _read_token(target: Target) -> str:
    (answer,) = target.pod.rtnl.request(get_link_request(target.link.ifindex))
    return decode(parse_ipv6_token, answer.payload)


def _is_there(target: Target, step: Step, refusal: KernelError) -> bool:
    return (
        refusal.errno in REPEATED_ROUTE
        and isinstance(step, AddRoute)
        and has_same_route(target.pod, target.link.ifindex, step.route)
    )


def _explain(target: Target, step: Step, refusal: KernelError) -> None:
    """Add to a refusal what caused it and how to fix it, where that is known."""
    if isinstance(step, AddRoute) and refusal.errno == errno.EEXIST:
        rival = describe_rival(target.pod, step.route)
        refusal.message += f": the pod has another route with that destination and metric ({rival})"
        refusal.hint = (
            "give the route a metric of its own (routes[].metric); one of the node's stays there with "
            "interface.inheritRouting: false"
        )
    refusal.hint = refusal.hint or _HINTS.get((type(step), refusal.errno), "")


# --- routes with several ways ---------------------------------------------------------------------------


def apply_multipath_route(target: Target, step: AddRoute) -> None:
    """Add a route with several ways, once all links of the pod are configured.

    Raises:
        KernelError: one of its links is not in the pod, or the kernel refused.
    """
    try:
        added = add_multipath_route(target.pod, target.link.ifindex, target.pod_ifname, step)
    except KernelError as refusal:
        _explain(target, step, refusal)
        raise
    if added:
        target.undo_later(partial(remove_multipath_route, target.pod, target.pod_ifname, step))

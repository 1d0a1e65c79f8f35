"""The steps of a plan: make the link or configure it in the pod. The steps of one :func:`group_of` are sent
together. What a step would leave behind when the link goes has an undo."""

from __future__ import annotations

import errno
import hashlib
import struct
import time
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.hardware import remove_programs
from dranet.kernel.attachment.links import (
    Side,
    Undo,
    UndoStack,
    read_link,
    read_link_message,
    write_pod_sysctls,
)
from dranet.kernel.attachment.traffic import (
    REPEATED_ROUTE,
    PodRules,
    add_multipath_route,
    describe_rival,
    has_same_route,
    limit_rate,
    remove_limits,
    remove_multipath_route,
    remove_rules,
    route_request,
)
from dranet.kernel.dhcp.message import seconds_left
from dranet.kernel.ethtool.settings import set_ethtool
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.inet import add_address_request, add_neighbour_request
from dranet.kernel.netlink.socket import Request, attribute, attribute_text, attribute_u16, attribute_u32
from dranet.kernel.sysfs.files import read_sysctl
from dranet.model.facts import Address, Link
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    CreateLink,
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
    "IPv6 is off in the pod: set interface.ipv6.enabled to true, or leave the node's routes and neighbors "
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
        self.undo.later(self.device, undo)


def apply_group(target: Target, steps: Sequence[Step]) -> None:
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
            try:
                _call(target, step)
            except KernelError as refusal:
                _explain(target, step, refusal)
                raise


def _call(target: Target, step: Step) -> None:
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


def apply_sysctls(pod: Side, device: str, steps: Sequence[Step], undo: UndoStack) -> None:
    wanted = [(step.path, step.value) for step in steps if isinstance(step, SetSysctl)]
    write_pod_sysctls(pod, device, wanted, undo)


# --- requests -------------------------------------------------------------------------------------------


def _send(target: Target, steps: Sequence[Step]) -> None:
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
            yield rtnl.set_link_request(
                index, operation="set-up", link=name, flags=rtnl.IFF_UP, change=rtnl.IFF_UP
            )
        case SetLink():
            yield from _iter_property_requests(index, name, step)
        case SetToken():
            there = None if target.is_new else read_link_message(target.pod.rtnl, index)
            # Set again, it would end the addresses that were made with it.
            if there is None or rtnl.decode(rtnl.parse_ipv6_token, there) != step.token:
                attributes = rtnl.ipv6_token_attribute(step.token)
                yield rtnl.set_link_request(index, attributes, operation="set-token", link=name)


def _with_lifetime(target: Target, address: Address) -> Address:
    """Give a leased address the lifetime of its lease, and an advertised one that of the advertisement if the
    pod listens to routers. Nothing renews any other address in the pod: it is permanent."""
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
    left = seconds_left(lease, time.time())
    if left == 0:  # another host may have the address by now
        raise KernelError(
            f"the DHCP lease of {lease.address} from {lease.server} has ended",
            operation="add-address",
            hint="it is asked for again; does the server still know this client?",
            reason=Reason.DHCP_LEASE_EXPIRED,
        )
    return replace(address, valid_seconds=left, preferred_seconds=left)


def _iter_property_requests(index: int, name: str, step: SetLink) -> Iterator[Request]:
    properties = rtnl.offload_size_attributes(step.offload_sizes)
    if step.tx_queue_length is not None:
        properties.append(attribute_u32(rtnl.IFLA_TXQLEN, step.tx_queue_length))
    if properties:
        yield rtnl.set_link_request(index, *properties, operation="set-link", link=name)


def _is_there(target: Target, step: Step, refusal: KernelError) -> bool:
    return (
        refusal.errno in REPEATED_ROUTE
        and isinstance(step, AddRoute)
        and has_same_route(target.pod, target.link.ifindex, step.route)
    )


def _explain(target: Target, step: Step, refusal: KernelError) -> None:
    if isinstance(step, AddRoute) and refusal.errno == errno.EEXIST:
        rival = describe_rival(target.pod, step.route)
        refusal.message += f": the pod has another route with that destination and metric ({rival})"
        refusal.hint = (
            "give the route a metric of its own (routes[].metric); one of the node's stays there with "
            "interface.inheritRouting: false"
        )
    refusal.hint = refusal.hint or _HINTS.get((type(step), refusal.errno), "")


def apply_multipath_route(target: Target, step: AddRoute) -> None:
    """Add a route with several ways, once all links of the pod are configured."""
    try:
        added = add_multipath_route(target.pod, target.link.ifindex, target.pod_ifname, step)
    except KernelError as refusal:
        _explain(target, step, refusal)
        raise
    if added:
        target.undo_later(partial(remove_multipath_route, target.pod, target.pod_ifname, step))


# --- links on top of a parent that stays on the node: macvlan, ipvlan, VLAN -----------------------------
# They are asked for on the node's side, where their parent is, and made straight in the pod's namespace:
# asked for from there, kernels before 6.15 make them on the node and move them. But on this side a name that
# the node has is refused though the pod has not; then the link is made under a passing name and renamed in
# the pod.

# linux/if_link.h
IFLA_MACVLAN_MODE = 1
IFLA_IPVLAN_MODE, IFLA_IPVLAN_FLAGS = 1, 2

_MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4}
_IPVLAN_MODES = {"l2": 0, "l3": 1, "l3s": 2}
_IPVLAN_FLAGS = {"bridge": 0, "private": 1, "vepa": 2}
_VLAN_PROTOCOLS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}

_MODULES = {"vlan": "8021q"}


def check_parent(home: Side, step: CreateLink) -> None:
    """Refuse a parent that is gone or another device than the one prepared (``DeviceNotFound``), or enslaved
    (``DeviceBusy``)."""
    parent = read_link(home.rtnl, step.parent_ifindex)
    if parent is None or parent.mac != step.parent_mac:
        raise DeviceError(f"the link {step.parent_ifname} that was prepared is not on this node")
    if parent.master is not None:
        raise DeviceError(f"link {parent.ifname} is enslaved on the node", reason=Reason.DEVICE_BUSY)


def explain_refusal(refusal: KernelError, step: CreateLink) -> None:
    """Add the meaning of a refused creation, where it is known and not in the error yet."""
    parent = step.parent_ifname
    if refusal.hint:
        return
    if refusal.errno == errno.EEXIST and step.kind == "vlan":
        refusal.message += f": {parent} has a VLAN {step.vlan_id} already"
        refusal.hint = "another pod or the node itself uses it: choose another interface.vlan.id"
    elif refusal.errno == errno.EBUSY:
        refusal.hint = f"{parent} carries links of a kind that excludes {step.kind}, or is a bridge port"
    elif refusal.errno == errno.EOPNOTSUPP:
        refusal.hint = f"load the kernel module {_MODULES.get(step.kind, step.kind)} on the node"
    elif refusal.errno == errno.EINVAL and step.mtu is not None:
        refusal.hint = f"interface.mtu must not be above that of {parent}"


def find_sublink(pod: Side, step: CreateLink) -> Link | None:
    """The planned link in the pod, by name; a VLAN also under a name that the tenant gave it, because a
    parent has each id but once. Other renamed links look like any and go with the namespace."""
    for name in (step.pod_ifname, _passing_name(step)):
        link = read_link(pod.rtnl, ifname=name)
        if link is not None and is_planned_sublink(link, step):
            return link
    if step.kind != "vlan":
        return None
    vlans = rtnl.decode_all(rtnl.parse_link, pod.rtnl.dump(rtnl.dump_links_request("vlan")), [])
    return next((vlan for vlan in vlans if is_planned_sublink(vlan, step)), None)


def _passing_name(step: CreateLink) -> str:
    """A name that no claim can ask for (the tilde), the same for a second try."""
    return "new~" + hashlib.sha256(step.pod_ifname.encode()).hexdigest()[:8]


def is_planned_sublink(link: Link, step: CreateLink) -> bool:
    return (
        link.kind == step.kind
        and link.lower == step.parent_ifindex
        and link.link_netnsid is not None
        and link.vlan_id == step.vlan_id
    )


def create_sublink(home: Side, pod: Side, step: CreateLink) -> Link:
    """Make the link; name, MTU and MAC address are in the same message. It is down. EEXIST: the name, or the
    VLAN id of the parent, is taken."""
    is_name_free_here = read_link(home.rtnl, ifname=step.pod_ifname) is None
    name = step.pod_ifname if is_name_free_here else _passing_name(step)
    home.rtnl.request(_create_request(step, name, pod))
    link = read_link(pod.rtnl, ifname=name)
    if link is None:
        raise KernelError("the link did not appear in the pod", operation="create-link", link=step.pod_ifname)
    if name != step.pod_ifname:
        reached(Failpoint.ATTACH_SUBLINK_UNNAMED)
        rename = attribute_text(rtnl.IFLA_IFNAME, step.pod_ifname)
        pod.rtnl.request(
            rtnl.set_link_request(link.ifindex, rename, operation="create-link", link=step.pod_ifname)
        )
    return link


def delete_sublink(pod: Side, step: CreateLink) -> None:
    link = find_sublink(pod, step)
    if link is None:
        return
    (outcome,) = pod.rtnl.batch([rtnl.delete_link_request(link.ifindex, link.ifname)])
    if isinstance(outcome, KernelError) and outcome.errno != errno.ENODEV:
        raise outcome


def _create_request(step: CreateLink, name: str, pod: Side) -> Request:
    attributes = [
        attribute_u32(rtnl.IFLA_LINK, step.parent_ifindex),
        attribute_u32(rtnl.IFLA_NET_NS_FD, pod.netns.fileno()),
    ]
    if step.mtu is not None:
        attributes.append(attribute_u32(rtnl.IFLA_MTU, step.mtu))
    if step.mac is not None:
        attributes.append(attribute(rtnl.IFLA_ADDRESS, rtnl.mac_bytes(step.mac)))
    request = rtnl.create_link_request(step.kind, _kind_data(step), *attributes, link=name)
    return replace(request, link=step.pod_ifname)


def _kind_data(step: CreateLink) -> bytes:
    if step.kind == "macvlan":
        return attribute_u32(IFLA_MACVLAN_MODE, _MACVLAN_MODES[step.mode or "bridge"])
    if step.kind == "ipvlan":
        mode = attribute_u16(IFLA_IPVLAN_MODE, _IPVLAN_MODES[step.mode or "l2"])
        return mode + attribute_u16(IFLA_IPVLAN_FLAGS, _IPVLAN_FLAGS[step.flag or "bridge"])
    protocol = attribute(rtnl.IFLA_VLAN_PROTOCOL, struct.pack("!H", _VLAN_PROTOCOLS[step.vlan_protocol]))
    return attribute_u16(rtnl.IFLA_VLAN_ID, step.vlan_id or 0) + protocol


# --- VRFs, shared by the links that name the same one ---------------------------------------------------
# A VRF that the driver created carries a mark as its alias, so that release recognises it after a
# restart.

OUR_MARK = "dra.net"

_VRF = "vrf"
_IFLA_VRF_TABLE = 1
"""``linux/if_link.h``."""

_ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")
"""Sockets that are bound to no VRF take what comes in through one; for IPv6 too."""


def join_vrf(pod: Side, device: str, link: Link, step: JoinVrf, undo: UndoStack) -> None:
    """Enslave ``link`` to the VRF, which is created if it does not exist; safe to repeat. EEXIST: another
    link or another table has the name."""
    vrf = _find_vrf(pod, step) or _create_vrf(pod, device, step, undo)
    if not vrf.is_up:
        up = rtnl.set_link_request(
            vrf.ifindex, operation="join-vrf", link=step.name, flags=rtnl.IFF_UP, change=rtnl.IFF_UP
        )
        pod.rtnl.request(up)
    write_pod_sysctls(pod, device, [(path, "1") for path in _ACCEPT], undo)
    if link.master != vrf.ifindex:
        pod.rtnl.request(_enslave_request(link, vrf.ifindex, step))
        undo.later(device, partial(_leave_vrf, pod, link, step))


def is_in_vrf(pod: Side, link: Link, step: JoinVrf) -> bool:
    vrf = read_link(pod.rtnl, ifname=step.name) if link.master else None
    return vrf is not None and vrf.kind == _VRF and vrf.ifindex == link.master


def remove_unused_vrf(pod: Side, step: JoinVrf) -> None:
    vrf = read_link(pod.rtnl, ifname=step.name)
    if vrf is None or vrf.kind != _VRF or vrf.alias != OUR_MARK:
        return
    links = rtnl.decode_all(rtnl.parse_link, pod.rtnl.dump(rtnl.dump_links_request(master=vrf.ifindex)), [])
    if not any(link.master == vrf.ifindex for link in links):
        pod.rtnl.request(rtnl.delete_link_request(vrf.ifindex, step.name))


def _find_vrf(pod: Side, step: JoinVrf) -> Link | None:
    payload = read_link_message(pod.rtnl, ifname=step.name)
    if payload is None:
        return None
    link = rtnl.decode(rtnl.parse_link, payload)
    table = rtnl.u32(rtnl.parse_link_data(payload, frozenset({_IFLA_VRF_TABLE})), _IFLA_VRF_TABLE)
    if link.kind != _VRF or table != step.table:
        other = f"a VRF with table {table}" if link.kind == _VRF else f"a {link.kind or 'physical'} link"
        raise KernelError(
            f"{step.name} is {other} in the pod, not a VRF with table {step.table}",
            errno=errno.EEXIST,
            operation="join-vrf",
            hint="choose another interface.vrf.name, or the table that it has",
        )
    return link


def _create_vrf(pod: Side, device: str, step: JoinVrf, undo: UndoStack) -> Link:
    table = attribute_u32(_IFLA_VRF_TABLE, step.table)
    by_name = attribute_text(rtnl.IFLA_IFNAME, step.name)
    mark = attribute(rtnl.IFLA_IFALIAS, OUR_MARK.encode())
    created, marked = pod.rtnl.batch(
        [
            rtnl.create_link_request(_VRF, table, link=step.name, flags=rtnl.IFF_UP),
            rtnl.set_link_request(0, by_name, mark, operation="mark vrf", link=step.name),
        ]
    )
    if isinstance(created, KernelError):
        raise created
    undo.later(device, partial(_delete_vrf, pod, step))
    if isinstance(marked, KernelError):
        raise marked
    vrf = _find_vrf(pod, step)
    if vrf is None:
        raise KernelError(f"the VRF {step.name} was made and is not there", operation="join-vrf")
    return vrf


def _delete_vrf(pod: Side, step: JoinVrf) -> None:
    vrf = read_link(pod.rtnl, ifname=step.name)
    if vrf is not None and vrf.kind == _VRF:
        pod.rtnl.request(rtnl.delete_link_request(vrf.ifindex, step.name))


def _enslave_request(link: Link, master: int, step: JoinVrf) -> Request:
    attributes = attribute_u32(rtnl.IFLA_MASTER, master)
    return rtnl.set_link_request(link.ifindex, attributes, operation="join-vrf", link=step.name)


def _leave_vrf(pod: Side, link: Link, step: JoinVrf) -> None:
    pod.rtnl.request(_enslave_request(link, link.master or 0, step))

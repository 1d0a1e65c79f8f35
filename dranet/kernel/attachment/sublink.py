"""Links on top of a parent that stays on the node: macvlan, ipvlan, VLAN.

They are asked for on the node's side, where their parent is, and made straight in the pod's namespace: asked
for from there, kernels before 6.15 make them on the node and move them. But on this side a name that the node
has is refused though the pod has not; then the link is made under a passing name and renamed in the pod.
"""

from __future__ import annotations

import errno
import hashlib
import struct
from functools import partial

from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.linkstate import is_no_such_link, read_link
from dranet.kernel.attachment.locate import Side, UndoStack, write_pod_sysctls
from dranet.kernel.netlink.rtnl import (
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_LINK,
    IFLA_MASTER,
    IFLA_MTU,
    IFLA_NET_NS_FD,
    IFLA_VLAN_ID,
    IFLA_VLAN_PROTOCOL,
    create_link_request,
    decode,
    decode_all,
    delete_link_request,
    dump_links_request,
    get_link_request,
    mac_bytes,
    parse_link,
    parse_link_data,
    set_link_request,
    u32,
)
from dranet.kernel.netlink.socket import (
    Outcome,
    Request,
    attribute,
    attribute_text,
    attribute_u16,
    attribute_u32,
)
from dranet.model.facts import Link
from dranet.model.plan import AttachPlan, CreateLink, JoinVrf

# linux/if_link.h
IFLA_MACVLAN_MODE = 1
IFLA_IPVLAN_MODE, IFLA_IPVLAN_FLAGS = 1, 2

_MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4}
_IPVLAN_MODES = {"l2": 0, "l3": 1, "l3s": 2}
_IPVLAN_FLAGS = {"bridge": 0, "private": 1, "vepa": 2}
_VLAN_PROTOCOLS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}

_MODULES = {"vlan": "8021q"}


def planned_creation(plan: AttachPlan) -> CreateLink | None:
    """The step that makes the link; ``None`` for a device whose own link moves, or without a link."""
    return next((step for step in plan.steps if isinstance(step, CreateLink)), None)


def check_parent(home: Side, step: CreateLink) -> None:
    """Pass a parent that is the one that was prepared and may carry links.

    Raises:
        DeviceError: it is gone or another device (``DeviceNotFound``), or enslaved (``DeviceBusy``).
    """
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
    """The planned link in the pod.

    By name; a VLAN also under a name that the tenant gave it, because a parent has each id but once. A
    renamed macvlan or ipvlan looks like any other and goes with the namespace.
    """
    for name in (step.pod_ifname, _passing_name(step)):
        link = read_link(pod.rtnl, ifname=name)
        if link is not None and is_planned_sublink(link, step):
            return link
    if step.kind != "vlan":
        return None
    vlans = decode_all(parse_link, pod.rtnl.dump(dump_links_request("vlan")), [])
    return next((vlan for vlan in vlans if is_planned_sublink(vlan, step)), None)


def _passing_name(step: CreateLink) -> str:
    """A name that no claim can ask for (the tilde), the same for a second try."""
    return "new~" + hashlib.sha256(step.pod_ifname.encode()).hexdigest()[:8]


def is_planned_sublink(link: Link, step: CreateLink) -> bool:
    """Whether this is a link of the planned kind on the planned parent."""
    return (
        link.kind == step.kind
        and link.lower == step.parent_ifindex
        and link.link_netnsid is not None
        and link.vlan_id == step.vlan_id
    )


def create_sublink(home: Side, pod: Side, step: CreateLink) -> Link:
    """Make the link; name, MTU and MAC address are in the same message. It is down.

    Raises:
        KernelError: the kernel refused; EEXIST: the name, or the VLAN id of the parent, is taken.
    """
    is_name_free_here = read_link(home.rtnl, ifname=step.pod_ifname) is None
    name = step.pod_ifname if is_name_free_here else _passing_name(step)
    home.rtnl.request(_create_request(step, name, pod))
    link = read_link(pod.rtnl, ifname=name)
    if link is None:
        raise KernelError("the link did not appear in the pod", operation="create-link", link=step.pod_ifname)
    if name != step.pod_ifname:
        reached(Failpoint.ATTACH_SUBLINK_UNNAMED)
        rename = attribute_text(IFLA_IFNAME, step.pod_ifname)
        pod.rtnl.request(
            set_link_request(link.ifindex, rename, operation="create-link", link=step.pod_ifname)
        )
    return link


def delete_sublink(pod: Side, step: CreateLink) -> None:
    """Delete the link; passes where it is gone.

    Raises:
        KernelError: it is still there.
    """
    link = find_sublink(pod, step)
    if link is None:
        return
    (outcome,) = pod.rtnl.batch([delete_link_request(link.ifindex, link.ifname)])
    if isinstance(outcome, KernelError) and outcome.errno != errno.ENODEV:
        raise outcome


def _create_request(step: CreateLink, name: str, pod: Side) -> Request:
    attributes = [
        attribute_u32(IFLA_LINK, step.parent_ifindex),
        attribute_u32(IFLA_NET_NS_FD, pod.netns.fileno()),
    ]
    if step.mtu is not None:
        attributes.append(attribute_u32(IFLA_MTU, step.mtu))
    if step.mac is not None:
        attributes.append(attribute(IFLA_ADDRESS, mac_bytes(step.mac)))
    request = create_link_request(step.kind, _kind_data(step), *attributes, link=name)
    return replace(request, link=step.pod_ifname)


def _kind_data(step: CreateLink) -> bytes:
    if step.kind == "macvlan":
        return attribute_u32(IFLA_MACVLAN_MODE, _MACVLAN_MODES[step.mode or "bridge"])
    if step.kind == "ipvlan":
        mode = attribute_u16(IFLA_IPVLAN_MODE, _IPVLAN_MODES[step.mode or "l2"])
        return mode + attribute_u16(IFLA_IPVLAN_FLAGS, _IPVLAN_FLAGS[step.flag or "bridge"])
    protocol = attribute(IFLA_VLAN_PROTOCOL, struct.pack("!H", _VLAN_PROTOCOLS[step.vlan_protocol]))
    return attribute_u16(IFLA_VLAN_ID, step.vlan_id or 0) + protocol


# --- VRFs, shared by the links that name the same one ---------------------------------------------------
# A VRF that the driver created carries a mark as its alias, so that release recognises it after a
# restart.

OUR_MARK = "dra.net"

_KIND = "vrf"
_IFLA_VRF_TABLE = 1
"""``linux/if_link.h``."""

_ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")
"""Sockets that are bound to no VRF take what comes in through one; for IPv6 too."""


def join_vrf(pod: Side, device: str, link: Link, step: JoinVrf, undo: UndoStack) -> None:
    """Enslave ``link`` to the VRF, which is created if it does not exist; safe to repeat.

    Raises:
        KernelError: another link or another table has the name (EEXIST), or the kernel refused.
    """
    vrf = _find(pod, step) or _create(pod, device, step, undo)
    if not vrf.is_up:
        up = set_link_request(vrf.ifindex, operation="join-vrf", link=step.name, flags=IFF_UP, change=IFF_UP)
        pod.rtnl.request(up)
    write_pod_sysctls(pod, device, [(path, "1") for path in _ACCEPT], undo)
    if link.master != vrf.ifindex:
        pod.rtnl.request(_enslave_request(link, vrf.ifindex, step))
        undo.later(device, partial(_release, pod, link, step))


def is_in_vrf(pod: Side, link: Link, step: JoinVrf) -> bool:
    """Whether the link's master has the VRF's name."""
    vrf = read_link(pod.rtnl, ifname=step.name) if link.master else None
    return vrf is not None and vrf.kind == _KIND and vrf.ifindex == link.master


def remove_unused_vrf(pod: Side, step: JoinVrf) -> None:
    """Remove the VRF if we made it and no link is in it any more.

    Raises:
        KernelError: the kernel refused.
    """
    vrf = read_link(pod.rtnl, ifname=step.name)
    if vrf is None or vrf.kind != _KIND or vrf.alias != OUR_MARK:
        return
    links = decode_all(parse_link, pod.rtnl.dump(dump_links_request(master=vrf.ifindex)), [])
    if not any(link.master == vrf.ifindex for link in links):
        pod.rtnl.request(delete_link_request(vrf.ifindex, step.name))


def _find(pod: Side, step: JoinVrf) -> Link | None:
    (outcome,) = pod.rtnl.batch([get_link_request(ifname=step.name)])
    return _parse(outcome, step)


def _create(pod: Side, device: str, step: JoinVrf, undo: UndoStack) -> Link:
    """Made, marked and read back in one go."""
    table = attribute_u32(_IFLA_VRF_TABLE, step.table)
    by_name = attribute_text(IFLA_IFNAME, step.name)
    mark = attribute(IFLA_IFALIAS, OUR_MARK.encode())
    requests = (
        create_link_request(_KIND, table, link=step.name, flags=IFF_UP),
        set_link_request(0, by_name, mark, operation="mark vrf", link=step.name),
        get_link_request(ifname=step.name),
    )
    created, marked, answer = pod.rtnl.batch(requests)
    if isinstance(created, KernelError):
        raise created
    undo.later(device, partial(_delete, pod, step))
    if isinstance(marked, KernelError):
        raise marked
    vrf = _parse(answer, step)
    if vrf is None:
        raise KernelError(f"the VRF {step.name} was made and is not there", operation="join-vrf")
    return vrf


def _parse(outcome: Outcome, step: JoinVrf) -> Link | None:
    """The VRF in the kernel's answer; ``None`` where there is no such link."""
    if isinstance(outcome, KernelError):
        if is_no_such_link(outcome):
            return None
        raise outcome
    payload = outcome[0].payload
    link = decode(parse_link, payload)
    table = u32(parse_link_data(payload, frozenset({_IFLA_VRF_TABLE})), _IFLA_VRF_TABLE)
    if link.kind != _KIND or table != step.table:
        other = f"a VRF with table {table}" if link.kind == _KIND else f"a {link.kind or 'physical'} link"
        raise KernelError(
            f"{step.name} is {other} in the pod, not a VRF with table {step.table}",
            errno=errno.EEXIST,
            operation="join-vrf",
            hint="choose another interface.vrf.name, or the table that it has",
        )
    return link


def _delete(pod: Side, step: JoinVrf) -> None:
    vrf = read_link(pod.rtnl, ifname=step.name)
    if vrf is not None and vrf.kind == _KIND:
        pod.rtnl.request(delete_link_request(vrf.ifindex, step.name))


def _enslave_request(link: Link, master: int, step: JoinVrf) -> Request:
    attributes = attribute_u32(IFLA_MASTER, master)
    return set_link_request(link.ifindex, attributes, operation="join-vrf", link=step.name)


def _release(pod: Side, link: Link, step: JoinVrf) -> None:
    pod.rtnl.request(_enslave_request(link, link.master or 0, step))

"""VRFs of a pod: links that name the same one share it.

A VRF that we made carries our mark as its alias, so that the give-back knows it, also after a restart.
"""

from __future__ import annotations

import errno
from functools import partial

from dranet.errors import KernelError
from dranet.kernel.attachment.linkstate import is_no_such_link, read_link
from dranet.kernel.attachment.locate import Side
from dranet.kernel.attachment.pod_sysctls import write_pod_sysctls
from dranet.kernel.attachment.undo import UndoStack
from dranet.kernel.netlink import Outcome, Request, attribute, attribute_text, attribute_u32
from dranet.kernel.rtnl import (
    IFF_UP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MASTER,
    create_link_request,
    decode,
    decode_all,
    delete_link_request,
    dump_links_request,
    get_link_request,
    parse_link,
    parse_link_data,
    set_link_request,
    u32,
)
from dranet.model.facts import Link
from dranet.model.plan import JoinVrf

OUR_MARK = "dra.net"

_KIND = "vrf"
_IFLA_VRF_TABLE = 1
"""``linux/if_link.h``."""

_ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")
"""Sockets that are bound to no VRF take what comes in through one; for IPv6 too."""


def join_vrf(pod: Side, device: str, link: Link, step: JoinVrf, undo: UndoStack) -> None:
    """Enslave ``link`` to the VRF, made where there is none; nothing changes where it is in it.

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

"""BPF programs on one link: what is on it, and taking them off in the pod.

A move removes TC filters from a link; TCX and XDP programs stay on it. This module reads the
traffic hooks (filters of clsact or ingress, and TCX) and XDP in each of its modes. The clsact qdisc itself
stays, as with DraNet: it does nothing, and the pod's rate limit may use it. So do pins of programs and of BPF
links (below ``/sys/fs/bpf``): what they name stays loaded, but is on no hook of this link any more.
"""

from __future__ import annotations

import errno

from msgspec import Struct

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.locate import Side
from dranet.kernel.discovery import programs as bpf
from dranet.kernel.netlink.rtnl import IFLA_XDP, decode, get_link_request, link_header, set_link_request, u32
from dranet.kernel.netlink.socket import Request, attribute, attribute_u32, nested, parse_attributes
from dranet.kernel.netlink.tc import (
    CLSACT_EGRESS,
    CLSACT_INGRESS,
    Filter,
    delete_filter_request,
    format_handle,
    read_hook_filters,
)

# linux/if_link.h
_IFLA_XDP_FD, _IFLA_XDP_FLAGS = 1, 3
_XDP_MODES = {5: 1 << 2, 6: 1 << 1, 7: 1 << 3}
"""Attribute with a mode's program -> the mode's flag: driver, generic, hardware."""
_NO_PROGRAM = b"\xff\xff\xff\xff"

_TCX_HOOKS = {bpf.BPF_TCX_INGRESS: "ingress", bpf.BPF_TCX_EGRESS: "egress"}

_NOT_THERE = frozenset({errno.ENOENT, errno.EINVAL})
"""The filter or its whole qdisc was removed meanwhile; a second read shows it."""


class _OnHooks(Struct, frozen=True):
    """What is on a link."""

    filters: tuple[Filter, ...]
    tcx: tuple[tuple[int, bpf.Attached], ...]
    """With the number of the hook."""
    xdp: tuple[tuple[int, int], ...]
    """Flag of the mode, program."""

    def __bool__(self) -> bool:
        return bool(self.filters or self.tcx or self.xdp)


def read_program_names(side: Side, ifindex: int) -> tuple[str, ...]:
    """The programs on a link: ``tc ingress prog.o:[tc]``, ``tcx egress to_pod``, ``xdp program 42`` (one
    without a name). TCX programs are left out where we may not ask for them.

    Raises:
        KernelError: the kernel refused for another reason.
    """
    try:
        tcx = side.run(lambda: _read_tcx(ifindex))
    except KernelError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        tcx = ()
    return _name_all(_OnHooks(_read_filters(side, ifindex), tcx, _read_xdp(side, ifindex)))


def remove_programs(pod: Side, ifindex: int, pod_ifname: str) -> None:
    """Remove every program from a link that is in the pod, whatever process attached or holds it.

    Raises:
        KernelError: the kernel refused, or a program is on the link still (``AttachFailed``).
    """
    try:
        found = _read(pod, ifindex)
        if not found:
            return
        _remove_filters(pod, found, ifindex, pod_ifname)
        pod.run(lambda: _remove_tcx(found, ifindex))
        _remove_xdp(pod, found, ifindex, pod_ifname)
        left = _read(pod, ifindex)
    except KernelError as error:
        raise _failure(pod_ifname, error.message, error.errno, error.hint) from error
    if left:
        raise _failure(pod_ifname, f"still there: {', '.join(_name_all(left))}", errno.EBUSY)


def _failure(pod_ifname: str, text: str, number: int, hint: str = "") -> KernelError:
    return KernelError(
        f"remove BPF programs from {pod_ifname}: {text}",
        errno=number,
        operation="remove-programs",
        link=pod_ifname,
        hint=hint,
        reason=Reason.ATTACH_FAILED,
    )


# --- reading --------------------------------------------------------------------------------------------


def _read(side: Side, ifindex: int) -> _OnHooks:
    tcx = side.run(lambda: _read_tcx(ifindex))
    return _OnHooks(_read_filters(side, ifindex), tcx, _read_xdp(side, ifindex))


def _read_filters(side: Side, ifindex: int) -> tuple[Filter, ...]:
    hooks = (CLSACT_INGRESS, CLSACT_EGRESS)
    filters = (found for hook in hooks for found in read_hook_filters(side.rtnl, ifindex, hook))
    return tuple(found for found in filters if found.program_name is not None)


def _read_tcx(ifindex: int) -> tuple[tuple[int, bpf.Attached], ...]:
    try:
        return tuple((hook, on_it) for hook in _TCX_HOOKS for on_it in bpf.query_attached(ifindex, hook))
    except KernelError as error:
        if error.errno == errno.EINVAL:  # before Linux 6.6: there is no such hook, so nothing is on it
            return ()
        raise


def _read_xdp(side: Side, ifindex: int) -> tuple[tuple[int, int], ...]:
    return decode(_parse_xdp, side.rtnl.request(get_link_request(ifindex))[0].payload)


def _parse_xdp(payload: bytes) -> tuple[tuple[int, int], ...]:
    xdp = parse_attributes(payload, len(link_header()), frozenset({IFLA_XDP})).get(IFLA_XDP, b"")
    found = parse_attributes(xdp, 0, frozenset(_XDP_MODES))
    return tuple((flag, u32(found, mode)) for mode, flag in _XDP_MODES.items() if u32(found, mode))


def _name_all(found: _OnHooks) -> tuple[str, ...]:
    filters = [f"tc {format_handle(f.parent)} {f.program_name or 'without a name'}" for f in found.filters]
    tcx = [f"tcx {_TCX_HOOKS[hook]} {_name(attached.program_id)}" for hook, attached in found.tcx]
    return (*filters, *tcx, *(f"xdp {_name(program_id)}" for _, program_id in found.xdp))


def _name(program_id: int) -> str:
    try:
        program = bpf.read_program(program_id)
    except KernelError:
        program = None  # not permitted: the number identifies it
    return program.name if program and program.name else f"program {program_id}"


# --- removing -------------------------------------------------------------------------------------------


def _remove_filters(pod: Side, found: _OnHooks, ifindex: int, pod_ifname: str) -> None:
    requests = [delete_filter_request(ifindex, each, pod_ifname) for each in found.filters]
    for outcome in pod.rtnl.batch(requests):
        if isinstance(outcome, KernelError) and outcome.errno not in _NOT_THERE:
            raise outcome


def _remove_tcx(found: _OnHooks, ifindex: int) -> None:
    for hook, attached in found.tcx:
        try:
            if attached.link_id:
                bpf.detach_link(attached.link_id)
            else:
                bpf.detach_program(ifindex, hook, attached.program_id)
        except KernelError as error:
            if error.errno not in _NOT_THERE:
                raise


def _remove_xdp(pod: Side, found: _OnHooks, ifindex: int, pod_ifname: str) -> None:
    requests = [_remove_xdp_request(ifindex, flag, pod_ifname) for flag, _ in found.xdp]
    for (_, program_id), outcome in zip(found.xdp, pod.rtnl.batch(requests), strict=True):
        if not isinstance(outcome, KernelError):
            continue
        if outcome.errno != errno.EBUSY:
            raise outcome
        _detach_xdp_link(ifindex, program_id)


def _remove_xdp_request(ifindex: int, flag: int, pod_ifname: str) -> Request:
    xdp = nested(IFLA_XDP, attribute(_IFLA_XDP_FD, _NO_PROGRAM), attribute_u32(_IFLA_XDP_FLAGS, flag))
    return set_link_request(ifindex, xdp, operation="remove XDP program of", link=pod_ifname)


def _detach_xdp_link(ifindex: int, program_id: int) -> None:
    """A BPF link holds the program. It has index and program, not the namespace: if they do not identify it,
    nothing is detached, because it may belong to another pod's interface.

    Raises:
        KernelError: it could not be found, or not for certain.
    """
    links = (bpf.read_link(link_id) for link_id in bpf.iter_link_ids())
    wanted = (bpf.BPF_LINK_TYPE_XDP, program_id, ifindex)
    holders = [link for link in links if link and (link.type, link.program_id, link.ifindex) == wanted]
    if len(holders) > 1:
        raise KernelError(
            f"XDP program {_name(program_id)} is held by one of {len(holders)} BPF links, on interfaces of "
            "the same index in several namespaces",
            errno=errno.EBUSY,
        )
    for holder in holders:
        bpf.detach_link(holder.id)

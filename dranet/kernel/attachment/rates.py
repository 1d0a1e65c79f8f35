"""Rate limits of a link in a pod, by token buckets.

What the pod sends waits in a token bucket (tbf) at the root of the link, in place of what was there: a
multi-queue root (mq) is a single queue then. What it receives is redirected, by the first filter of the
link's ingress hook, into an ``ifb`` link next to it, which has the token bucket and returns the packets to
the stack. TCX programs of the link see them before that; its other filters no longer see them. A packet
counts with its link-layer header, as on the wire without preamble and checksum, and a GSO packet as the
packets that it becomes.

Kernel modules: sch_tbf; for the receive direction also ifb, sch_ingress, cls_u32 and act_mirred. The kernel
loads them by itself where it can; ifb then makes two idle links on the node, unless it has ``numifbs=0``.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment.locate import Side
from dranet.kernel.netlink.rtnl import (
    IFF_UP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IFLA_MTU,
    RTM_NEWLINK,
    decode,
    decode_all,
    delete_link_request,
    dump_links_request,
    get_link_request,
    link_header,
    parse_link,
    set_link_request,
    u32,
)
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NetlinkSocket,
    Outcome,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    kernel_error,
    nested,
    parse_attributes,
)
from dranet.kernel.netlink.tc import (
    CLSACT_EGRESS,
    CLSACT_HANDLE,
    CLSACT_INGRESS,
    TC_H_INGRESS,
    TC_H_ROOT,
    TokenBucket,
    add_hooks_request,
    delete_qdisc_request,
    delete_redirect_request,
    read_hook_filters,
    redirect_request,
    set_bucket_request,
)
from dranet.model.facts import Link
from dranet.model.plan import LimitRate

# linux/if_link.h: the largest GSO and GRO packets, for both IP versions and for IPv4 alone
_MERGED_SIZES = frozenset({41, 58, 63, 64})
_USUAL_MERGED_BYTES = 65536
_IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE, _IN6_ADDR_GEN_MODE_NONE = 26, 8, 1

BUCKET_HANDLE = 0xD2A00000
"""``d2a0:`` marks the root qdisc of a rate limit; the kernel itself counts from ``8001:``."""

_PRIORITY = 1
"""The first of the ingress hook, so that no other filter lets packets past the limit."""

_HEADER_BYTES = 64
"""More than any link layer puts before a packet: 14 bytes and two VLAN tags, InfiniBand's 44."""

_MOST_BURST_BYTES = 2**32 - 1

_SLACK_SECONDS = 0.004
"""How late the kernel may hand out tokens without a loss of rate: the timer is exact, but the core that
serves it may be busy."""

_BIG_PACKET_SECONDS = 0.02
"""A GSO packet passes whole where the rate carries it within this time; else the bucket cuts it, so that a
slow link is also exact over short times."""

_QUEUE_SECONDS = 0.05
_QUEUE_PACKETS = 10
"""Below 2.5 Mbit/s, 50 ms are so few packets that TCP waits for its timer after each loss."""

_IFB = "ifb"
_IFNAME_BYTES = 15

_MODULES = {
    "make link": "ifb",
    "add qdisc tbf of": "sch_tbf",
    "add qdisc clsact of": "sch_ingress",
    "redirect what arrives on": "cls_u32, act_mirred",
}
"""By what was refused: the modules that have it."""

_IS_THERE = frozenset({errno.EEXIST})
_NOT_THERE = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV})
"""No such qdisc or filter, another one in its place, or the link has left."""
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EINVAL})


def limit_rate(pod: Side, ifindex: int, pod_ifname: str, step: LimitRate) -> None:
    """Limit a link that is in the pod; again with other numbers replaces them. A direction that is not asked
    for is left alone. After a failure the link has no limit at all.

    Quickest on a link that is down: one that is up waits until its old queues are unused (a grace period).

    Raises:
        KernelError: refused; ``MissingFeature`` when the kernel lacks a module, which the hint names.
    """
    try:
        _limit(pod.rtnl, ifindex, pod_ifname, step)
    except KernelError as error:
        with suppress(KernelError):  # report the first refusal
            remove_limits(pod, ifindex, pod_ifname)
        raise _explained(error, pod_ifname) from error


def _limit(rtnl: NetlinkSocket, ifindex: int, pod_ifname: str, step: LimitRate) -> None:
    sizes = _read_sizes(rtnl, ifindex)
    requests: list[_LimitRequest] = []
    if step.egress_bits_per_second is not None:
        bucket = choose_bucket(step.egress_bits_per_second, step.egress_burst_bytes, sizes)
        requests.append(_LimitRequest(set_bucket_request(ifindex, BUCKET_HANDLE, bucket, pod_ifname)))
    if step.ingress_bits_per_second is not None:
        bucket = choose_bucket(step.ingress_bits_per_second, step.ingress_burst_bytes, sizes)
        ifb = _make_ifb(rtnl, pod_ifname)
        requests += _iter_ingress_requests(ifindex, pod_ifname, ifb, bucket)
    _apply(rtnl, requests)


def remove_limits(pod: Side, ifindex: int, pod_ifname: str) -> None:
    """Remove what :func:`limit_rate` made, also after the link has left the pod (which took its qdiscs with
    it). Nothing to remove is fine. Traffic hooks with filters of other programs stay.

    Raises:
        KernelError: refused.
    """
    ifbs = _find_ifbs(pod.rtnl, pod_ifname)
    redirection, _ = _apply(
        pod.rtnl,
        [
            _LimitRequest(delete_redirect_request(ifindex, _PRIORITY, pod_ifname), _NOT_THERE),
            _LimitRequest(delete_qdisc_request(ifindex, BUCKET_HANDLE, TC_H_ROOT, pod_ifname), _NOT_THERE),
        ],
    )
    if ifbs or not isinstance(redirection, KernelError):
        _remove_empty_hooks(pod.rtnl, ifindex, pod_ifname)
    _apply(
        pod.rtnl, [_LimitRequest(delete_link_request(link.ifindex, link.ifname), _NOT_THERE) for link in ifbs]
    )


# --- how large ------------------------------------------------------------------------------------------


class PacketSizes(Struct, frozen=True):
    """Bytes of a link's packets."""

    mtu: int
    merged: int
    """The largest GSO or GRO packet."""

    @property
    def single(self) -> int:
        """The largest packet on the wire."""
        return self.mtu + _HEADER_BYTES


def choose_bucket(bits_per_second: int, burst_bytes: int | None, sizes: PacketSizes) -> TokenBucket:
    """The token bucket for a rate. A ``burst_bytes`` that the claim asks for is kept, but a packet must fit.

    Else the burst is the largest packet that is to pass whole, and what the rate carries while the kernel may
    be late. Before it is a queue of 50 ms, or of ten packets.
    """
    rate = max(bits_per_second // 8, 1)
    if burst_bytes is None:
        whole = min(sizes.merged, round(rate * _BIG_PACKET_SECONDS))
        slack = round(rate * max(_SLACK_SECONDS, read_timer_seconds()))
        burst_bytes = max(whole, sizes.single) + slack
    burst_bytes = min(max(burst_bytes, sizes.single), _MOST_BURST_BYTES)
    queue = max(round(rate * _QUEUE_SECONDS), _QUEUE_PACKETS * sizes.single)
    return TokenBucket(rate, burst_bytes, burst_bytes + queue)


@cache
def read_timer_seconds() -> float:
    """The resolution of the packet scheduler's timer: a nanosecond, or a tick where there is no better one.

    The last number of ``/proc/net/psched`` (``net/sched/sch_api.c``) is how many there are in a second; a
    tick of 10 ms if it is not reported.
    """
    try:
        return 1 / int(Path("/proc/net/psched").read_text().split()[3], 16)
    except (OSError, ValueError, LookupError, ZeroDivisionError):
        return 0.01


def _read_sizes(rtnl: NetlinkSocket, ifindex: int) -> PacketSizes:
    return decode(_parse_sizes, rtnl.request(get_link_request(ifindex))[0].payload)


def _parse_sizes(payload: bytes) -> PacketSizes:
    found = parse_attributes(payload, len(link_header()), _MERGED_SIZES | {IFLA_MTU})
    merged = [u32(found, kind) for kind in _MERGED_SIZES]
    return PacketSizes(u32(found, IFLA_MTU), max(_USUAL_MERGED_BYTES, *merged))


# --- the receive direction ------------------------------------------------------------------------------


def ifb_name(pod_ifname: str) -> str:
    """The name of the link that ``pod_ifname`` receives through.

    A claim cannot give a link such a name: the tilde is not among the characters that it may use.
    """
    name = f"ifb~{pod_ifname}"
    if len(name) <= _IFNAME_BYTES:
        return name
    return "ifb~~" + hashlib.sha256(pod_ifname.encode()).hexdigest()[: _IFNAME_BYTES - 5]


def _ifb_alias(pod_ifname: str) -> str:
    return f"dranet: what {pod_ifname} receives"


def _make_ifb(rtnl: NetlinkSocket, pod_ifname: str) -> int:
    """The index of our ifb, made unless it is there."""
    name = ifb_name(pod_ifname)
    kind = nested(IFLA_LINKINFO, attribute_text(IFLA_INFO_KIND, _IFB))
    body = link_header() + attribute_text(IFLA_IFNAME, name) + kind
    make = Request(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, operation="make link", link=name)
    made, found = _apply(rtnl, [_LimitRequest(make, _IS_THERE), _LimitRequest(get_link_request(ifname=name))])
    assert not isinstance(found, KernelError), "that would have been raised"
    link = decode(parse_link, found[0].payload)
    if isinstance(made, KernelError) and not _is_own_ifb(link, pod_ifname):
        raise kernel_error(errno.EEXIST, "another program has a link of that name", "make link", name)
    return link.ifindex


def _iter_ingress_requests(
    ifindex: int, pod_ifname: str, ifb: int, bucket: TokenBucket
) -> Iterator[_LimitRequest]:
    name = ifb_name(pod_ifname)
    alias = attribute(IFLA_IFALIAS, _ifb_alias(pod_ifname).encode())
    no_address = nested(
        _IFLA_AF_SPEC,
        nested(socket.AF_INET6, attribute_u8(_IFLA_INET6_ADDR_GEN_MODE, _IN6_ADDR_GEN_MODE_NONE)),
    )
    yield _LimitRequest(
        set_link_request(ifb, no_address, operation="take addresses from", link=name), _NO_IPV6
    )
    yield _LimitRequest(set_bucket_request(ifb, BUCKET_HANDLE, bucket, name))
    yield _LimitRequest(
        set_link_request(ifb, alias, operation="set up", link=name, flags=IFF_UP, change=IFF_UP)
    )
    yield _LimitRequest(add_hooks_request(ifindex, pod_ifname), _IS_THERE)
    yield _LimitRequest(delete_redirect_request(ifindex, _PRIORITY, pod_ifname), _NOT_THERE)
    yield _LimitRequest(redirect_request(ifindex, ifb, _PRIORITY, pod_ifname))


def _find_ifbs(rtnl: NetlinkSocket, pod_ifname: str) -> list[Link]:
    """Ours, by alias: a tenant may have renamed it."""
    links = decode_all(parse_link, rtnl.dump(dump_links_request(_IFB)), [])
    return [link for link in links if _is_own_ifb(link, pod_ifname)]


def _is_own_ifb(link: Link, pod_ifname: str) -> bool:
    is_unmarked = link.ifname == ifb_name(pod_ifname) and not link.alias  # we were killed while making it
    return link.kind == _IFB and (link.alias == _ifb_alias(pod_ifname) or is_unmarked)


def _remove_empty_hooks(rtnl: NetlinkSocket, ifindex: int, pod_ifname: str) -> None:
    if any(read_hook_filters(rtnl, ifindex, hook) for hook in (CLSACT_INGRESS, CLSACT_EGRESS)):
        return
    request = delete_qdisc_request(ifindex, CLSACT_HANDLE, TC_H_INGRESS, pod_ifname)
    _apply(rtnl, [_LimitRequest(request, _NOT_THERE)])


# --- requests and refusals ------------------------------------------------------------------------------


class _LimitRequest(Struct, frozen=True):
    """A request, and the errnos that are fine."""

    request: Request
    fine: frozenset[int] = frozenset()


def _apply(rtnl: NetlinkSocket, requests: Sequence[_LimitRequest]) -> list[Outcome]:
    """Send all at once; raise the first refusal that is not fine."""
    outcomes = rtnl.batch([item.request for item in requests])
    for item, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, KernelError) and outcome.errno not in item.fine:
            raise outcome
    return outcomes


def _explained(refusal: KernelError, pod_ifname: str) -> KernelError:
    modules = _MODULES.get(refusal.operation, "")
    is_missing = bool(modules) and refusal.errno in (errno.ENOENT, errno.EOPNOTSUPP)
    return KernelError(
        f"limit rate of {pod_ifname}: {refusal.message}",
        errno=refusal.errno,
        operation="limit-rate",
        link=pod_ifname,
        hint=f"the node's kernel lacks {modules}: load or build it" if is_missing else "",
        reason=Reason.MISSING_FEATURE if is_missing else Reason.ATTACH_FAILED,
        retryable=not is_missing,
    )

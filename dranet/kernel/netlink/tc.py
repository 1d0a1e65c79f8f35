"""Traffic control and Data Center Bridging of a link, read and written (``linux/pkt_sched.h``, ``pkt_cls.h``,
``tc_act/tc_mirred.h``, ``dcbnl.h``). Items are kept as the kernel reports them, so that unknown kinds are
also restored; ``_REPAIRS`` converts what it reports in another form than it accepts. It refuses choke, gred
and red, whose tables it does not report."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.netlink.rtnl import decode, text, u32
from dranet.kernel.netlink.socket import (
    NLA_F_NESTED,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
    attribute_u32,
    iter_attributes,
    kernel_error,
    nested,
    parse_attributes,
    report_unreadable,
)
from dranet.model.plan import DcbState, TrafficControl

# linux/rtnetlink.h
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TCA_KIND, TCA_OPTIONS, TCA_STAB, TCA_CHAIN, TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK = 1, 2, 8, 11, 13, 14

# linux/pkt_sched.h: a handle is major:minor, 16 bits each
TC_H_ROOT, TC_H_INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
CLSACT_INGRESS, CLSACT_EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
"""The two hooks of a clsact qdisc; a qdisc of kind ingress has the first."""
HOOKS: Mapping[str, tuple[int, ...]] = {
    "clsact": (CLSACT_INGRESS, CLSACT_EGRESS),
    "ingress": (CLSACT_INGRESS,),
}
"""Qdiscs whose filters may be programs on a traffic hook, and where these hang."""
CLSACT_HANDLE = 0xFFFF0000
_LINKLAYER_ETHERNET = 1
_NS_PER_TICK = 64
"""``PSCHED_SHIFT``, the unit of times in token buckets."""

# linux/pkt_cls.h, linux/tc_act/tc_mirred.h
TCA_BPF_NAME, TCA_BPF_ID = 7, 11
_ETH_P_ALL = 0x0300
"""In network order, as in ``tcm_info``."""
_TCA_U32_SEL, _TCA_U32_ACT = 5, 7
_TC_U32_TERMINAL = 1
_TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_MIRRED_PARMS = 1, 2, 2
_TC_ACT_STOLEN, _TCA_EGRESS_REDIR = 4, 1
_TCA_TBF_PARMS, _TCA_TBF_RATE64, _TCA_TBF_BURST = 1, 4, 6

TCMSG = struct.Struct("=BxxxiIII")
"""``struct tcmsg``: family, ifindex, handle, parent, info."""
_U32 = struct.Struct("=I")
_RATE = struct.Struct("=BBHhHI")
"""``struct tc_ratespec``: cell_log, linklayer, overhead, cell_align, mpu, rate in bytes per second."""

_CLASS_KINDS = frozenset({"htb", "hfsc", "drr", "qfq"})
"""Kinds whose classes are created by requests; the others create their own."""


# --- what is on a link ----------------------------------------------------------------------------------


def read_traffic_control(rtnl: NetlinkSocket, ifindex: int) -> tuple[TrafficControl, ...]:
    """The qdiscs and classes that a program added to the link, parents before children, else by handle. The
    kernel's own have no handle and come back by themselves. Counters are left out: two readings can be
    compared."""
    found = [qdisc.item for qdisc in _read_qdiscs(rtnl, ifindex)]
    if any(item.kind in _CLASS_KINDS for item in found):
        body = TCMSG.pack(0, ifindex, 0, 0, 0)
        payloads = rtnl.dump(Request(RTM_GETTCLASS, body, 0, "read classes of link", str(ifindex)))
        classes = (decode(partial(parse_class, ifindex=ifindex), payload) for payload in payloads)
        found += [item for item in classes if item is not None]
    return _parents_first(found)


def add_requests(ifindex: int, items: Iterable[TrafficControl], link: str) -> list[Request]:
    """Put qdiscs and classes on a link that has only the kernel's own, in the order of ``items``. One that is
    there already with the same handle and kind is changed, where its kind can be changed."""
    return [_add_request(ifindex, item, link) for item in items]


def _add_request(ifindex: int, item: TrafficControl, link: str) -> Request:
    body = TCMSG.pack(0, ifindex, item.handle, item.parent, 0) + attribute_text(TCA_KIND, item.kind)
    if item.options:  # some kinds (ets, fq_pie) insist on the mark of nesting, none minds it
        body += attribute(TCA_OPTIONS | NLA_F_NESTED, bytes.fromhex(item.options))
    message = RTM_NEWQDISC if item.what == "qdisc" else RTM_NEWTCLASS
    operation = f"add {item.what} {item.kind} {format_handle(item.handle)} of"
    return Request(message, body, NLM_F_CREATE | NLM_F_REPLACE, operation, link)


def format_handle(handle: int) -> str:
    """``1:``, ``1:10``, ``root``, as ``tc`` writes it."""
    if handle in _PLACES:
        return _PLACES[handle]
    return f"{handle >> 16:x}:{handle & 0xFFFF:x}" if handle & 0xFFFF else f"{handle >> 16:x}:"


_PLACES: Mapping[int, str] = {
    TC_H_ROOT: "root",
    TC_H_INGRESS: "ingress",
    CLSACT_INGRESS: "ingress",
    CLSACT_EGRESS: "egress",
}


class Qdisc(Struct, frozen=True):
    """A qdisc of a link, and the part of it that a :class:`TrafficControl` cannot express."""

    item: TrafficControl
    blocks: tuple[int, ...] = ()
    """Filter blocks that it shares with other links."""
    has_size_table: bool = False


def dump_qdiscs_request() -> Request:
    return Request(RTM_GETQDISC, TCMSG.pack(0, 0, 0, 0, 0), operation="read qdiscs")


def _read_qdiscs(rtnl: NetlinkSocket, ifindex: int) -> list[Qdisc]:
    payloads = rtnl.dump(dump_qdiscs_request())
    qdiscs = (decode(partial(parse_qdisc, ifindex=ifindex), payload) for payload in payloads)
    return [qdisc for qdisc in qdiscs if qdisc is not None]


_QDISC_ATTRIBUTES = frozenset({TCA_KIND, TCA_OPTIONS, TCA_STAB, TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK})


def parse_qdisc(payload: bytes, ifindex: int) -> Qdisc | None:
    """Parse RTM_NEWQDISC; ``None`` for the kernel's own and those of other links."""
    _, index, handle, parent, _ = TCMSG.unpack_from(payload)
    if index != ifindex or not handle:
        return None
    found = parse_attributes(payload, TCMSG.size, _QDISC_ATTRIBUTES)
    kind = text(found[TCA_KIND])
    item = TrafficControl("qdisc", kind, handle, parent, _repair(kind, found.get(TCA_OPTIONS, b"")).hex())
    blocks = tuple(u32(found, block) for block in (TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK) if u32(found, block))
    return Qdisc(item, blocks, TCA_STAB in found)


def parse_class(payload: bytes, ifindex: int) -> TrafficControl | None:
    """Parse RTM_NEWTCLASS; ``None`` for one that its qdisc makes by itself (hfsc makes one without a minor
    number) and those of other links."""
    _, index, handle, parent, _ = TCMSG.unpack_from(payload)
    found = parse_attributes(payload, TCMSG.size, frozenset({TCA_KIND, TCA_OPTIONS}))
    kind = text(found.get(TCA_KIND, b""))
    if index != ifindex or kind not in _CLASS_KINDS or not handle & 0xFFFF:
        return None
    return TrafficControl("class", kind, handle, parent, found.get(TCA_OPTIONS, b"").hex())


def _parents_first(items: Sequence[TrafficControl]) -> tuple[TrafficControl, ...]:
    by_handle = {item.handle: item for item in items}

    def depth(item: TrafficControl) -> int:
        """Count the parents among ``items``; only a corrupt message has an endless chain."""
        seen = {item.handle}
        above = _above(item, by_handle)
        while above is not None and above.handle not in seen:
            seen.add(above.handle)
            above = _above(above, by_handle)
        return len(seen)

    return tuple(sorted(items, key=lambda item: (depth(item), item.what, item.handle)))


def _above(item: TrafficControl, by_handle: Mapping[int, TrafficControl]) -> TrafficControl | None:
    """The class or qdisc that ``item`` hangs on. A class without a parent hangs on its qdisc, and so does a
    qdisc whose parent is a class that was left out."""
    if item.what == "class" and item.parent == TC_H_ROOT:
        return by_handle.get(item.handle & 0xFFFF0000)
    return by_handle.get(item.parent) or by_handle.get(item.parent & 0xFFFF0000)


# --- options that the kernel reports in another form than it accepts ------------------------------------


def _repair(kind: str, options: bytes) -> bytes:
    repair = _REPAIRS.get(kind)
    return repair(options) if repair and options else options


def _repair_htb(options: bytes) -> bytes:
    """``struct tc_htb_glob``: the version is reported as 3.17 and accepted as 3; packets that bypass all
    classes are counted."""
    version, quantum, default, debug, _ = struct.unpack("=5I", dict(iter_attributes(options))[2][:20])
    init = struct.pack("=5I", version >> 16 or version, quantum, default, debug, 0)
    return _replaced(options, frozenset({2}), lambda _: init)


def _repair_sfq(options: bytes) -> bytes:
    """``struct tc_sfq_qopt_v1`` ends with counters. More flows than packets there are only without a given
    limit, and a given one would cut them."""
    quantum, period, limit, divisor, flows = struct.unpack_from("=5I", options)
    limit = 0 if flows > limit else limit
    head = struct.pack("=5I", quantum, period, limit, divisor, flows)
    return head + options[len(head) : 48] + bytes(len(options[48:]))


def _repair_mqprio(options: bytes) -> bytes:
    """``struct tc_mqprio_qopt``; the attributes after it are taken only where the hardware does it."""
    in_hardware = options[17]
    return options if in_hardware else options[:82]


def _repair_times(options: bytes, kinds: frozenset[int]) -> bytes:
    """Microseconds are kept in another unit and rounded down both ways: one more gives the same again."""
    return _replaced(options, kinds, lambda reported: _U32.pack(min(_U32.unpack(reported)[0] + 1, 2**32 - 1)))


_REPAIRS: Mapping[str, Callable[[bytes], bytes]] = {
    "htb": _repair_htb,
    "sfq": _repair_sfq,
    "mqprio": _repair_mqprio,
    "codel": partial(_repair_times, kinds=frozenset({1, 3, 5})),  # target, interval, ce_threshold
    "fq_codel": partial(_repair_times, kinds=frozenset({1, 3, 7})),
    "pie": partial(_repair_times, kinds=frozenset({1})),  # target
    "fq_pie": partial(_repair_times, kinds=frozenset({3})),
}


def _replaced(options: bytes, kinds: frozenset[int], change: Callable[[bytes], bytes]) -> bytes:
    return b"".join(
        attribute(kind, change(payload) if kind in kinds else payload)
        for kind, payload in iter_attributes(options)
    )


# --- filters --------------------------------------------------------------------------------------------


class Filter(Struct, frozen=True):
    """One filter; ``info`` is its priority and protocol in one number."""

    kind: str
    handle: int
    parent: int
    info: int
    chain: int = 0
    options: bytes = b""

    @property
    def program_name(self) -> str | None:
        """What ``tc`` gave a BPF program (``prog.o:[section]``), maybe empty; ``None`` for another kind and
        for classic BPF."""
        if self.kind != "bpf":
            return None
        found = parse_attributes(self.options, 0, frozenset({TCA_BPF_NAME, TCA_BPF_ID}))
        return found.get(TCA_BPF_NAME, b"").rstrip(b"\0").decode(errors="replace") if found else None

    @property
    def is_hash_table(self) -> bool:
        """A table of u32, which is listed among its filters."""
        return self.kind == "u32" and not self.handle & 0xFFF


def read_hook_filters(rtnl: NetlinkSocket, ifindex: int, parent: int) -> list[Filter]:
    payloads = rtnl.dump(dump_filters_request(ifindex, parent))
    filters = (decode(parse_filter, payload) for payload in payloads)
    # Filters of a block that several links share do not have the parent.
    return [replace(found, parent=parent) for found in filters if found is not None]


def dump_filters_request(ifindex: int, parent: int) -> Request:
    body = TCMSG.pack(0, ifindex, 0, parent, 0)
    return Request(RTM_GETTFILTER, body, operation="read filters of link", link=str(ifindex))


def parse_filter(payload: bytes) -> Filter | None:
    """Parse RTM_NEWTFILTER; ``None`` for the message that only announces a priority."""
    _, _, handle, parent, info = TCMSG.unpack_from(payload)
    found = parse_attributes(payload, TCMSG.size, frozenset({TCA_KIND, TCA_OPTIONS, TCA_CHAIN}))
    if not handle or TCA_OPTIONS not in found:
        return None
    return Filter(text(found[TCA_KIND]), handle, parent, info, u32(found, TCA_CHAIN), found[TCA_OPTIONS])


def read_filters(rtnl: NetlinkSocket, ifindex: int) -> tuple[str, ...]:
    """Describe what is on the link besides its qdiscs and classes, and cannot be restored: filters that are
    no programs of the traffic hooks, blocks that several links share, and size tables."""
    qdiscs = _read_qdiscs(rtnl, ifindex)
    words = [f"block {block} of shared filters" for qdisc in qdiscs for block in qdisc.blocks]
    tables = (qdisc.item for qdisc in qdiscs if qdisc.has_size_table)
    words += [f"size table of {item.what} {item.kind} {format_handle(item.handle)}" for item in tables]
    classes = (item.handle for item in read_traffic_control(rtnl, ifindex) if item.what == "class")
    hooks = (HOOKS.get(qdisc.item.kind, (qdisc.item.handle,)) for qdisc in qdiscs)
    for parent in chain(*hooks, classes):
        on_hook = parent in (CLSACT_INGRESS, CLSACT_EGRESS)
        for found in read_hook_filters(rtnl, ifindex, parent):
            if not found.is_hash_table and not (on_hook and found.program_name is not None):
                words.append(f"{found.kind} filter {_filter_handle(found)} on {format_handle(parent)}")
    return tuple(words)


def _filter_handle(found: Filter) -> str:
    """As ``tc`` writes it: table, bucket and node of u32, a number of the others."""
    if found.kind != "u32":
        return f"{found.handle:#x}"
    bucket = found.handle >> 12 & 0xFF
    return f"{found.handle >> 20:x}:{format(bucket, 'x') if bucket else ''}:{found.handle & 0xFFF:x}"


def delete_filter_request(ifindex: int, found: Filter, link: str) -> Request:
    body = TCMSG.pack(0, ifindex, found.handle, found.parent, found.info)
    body += attribute_text(TCA_KIND, found.kind)
    if found.chain:
        body += attribute_u32(TCA_CHAIN, found.chain)
    return Request(RTM_DELTFILTER, body, operation="remove filter of", link=link)


# --- rate limits ----------------------------------------------------------------------------------------


class TokenBucket(Struct, frozen=True):
    """Parameters of a tbf qdisc: tokens and queue in bytes."""

    bytes_per_second: int
    burst_bytes: int
    """The most that passes at once; a larger packet never does. At most 2**32 - 1."""
    limit_bytes: int
    """Limit of the queue in front of it."""


def set_bucket_request(ifindex: int, handle: int, bucket: TokenBucket, link: str) -> Request:
    """Make a token bucket the root qdisc of a link, instead of another, or change it."""
    most = 2**32 - 1
    rate = _RATE.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(bucket.bytes_per_second, most))
    ticks = bucket.burst_bytes * 10**9 // (bucket.bytes_per_second * _NS_PER_TICK)
    no_peak_rate = bytes(_RATE.size)
    # struct tc_tbf_qopt; kernels that know TCA_TBF_BURST (3.12) take the burst in bytes from there.
    parameters = rate + no_peak_rate + struct.pack("=3I", min(bucket.limit_bytes, most), min(ticks, most), 0)
    options = attribute(_TCA_TBF_PARMS, parameters) + attribute_u32(_TCA_TBF_BURST, bucket.burst_bytes)
    if bucket.bytes_per_second > most:
        options += attribute(_TCA_TBF_RATE64, struct.pack("=Q", bucket.bytes_per_second))
    body = TCMSG.pack(0, ifindex, handle, TC_H_ROOT, 0)
    body += attribute_text(TCA_KIND, "tbf") + attribute(TCA_OPTIONS, options)
    return Request(RTM_NEWQDISC, body, NLM_F_CREATE | NLM_F_REPLACE, operation="add qdisc tbf of", link=link)


def add_hooks_request(ifindex: int, link: str) -> Request:
    """Give a link the traffic hooks (clsact); EEXIST where it has them or an ingress qdisc."""
    body = TCMSG.pack(0, ifindex, CLSACT_HANDLE, TC_H_INGRESS, 0) + attribute_text(TCA_KIND, "clsact")
    return Request(RTM_NEWQDISC, body, NLM_F_CREATE | NLM_F_EXCL, operation="add qdisc clsact of", link=link)


def delete_qdisc_request(ifindex: int, handle: int, parent: int, link: str) -> Request:
    """Remove a qdisc and all below it; ENOENT if it does not exist, EINVAL if another one does."""
    body = TCMSG.pack(0, ifindex, handle, parent, 0)
    return Request(RTM_DELQDISC, body, operation=f"remove qdisc {format_handle(handle)} of", link=link)


def redirect_request(ifindex: int, target_ifindex: int, priority: int, link: str) -> Request:
    """On the ingress hook, send every packet out of another link: u32 that matches all, with mirred."""
    selector = struct.pack("=BBBxHHhhI", _TC_U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0)  # struct tc_u32_sel, one key:
    selector += bytes(16)  # whatever is at offset 0, under a mask of no bits
    mirred = struct.pack("=IIiiiiI", 0, 0, _TC_ACT_STOLEN, 0, 0, _TCA_EGRESS_REDIR, target_ifindex)
    action = nested(
        1,
        attribute_text(_TCA_ACT_KIND, "mirred"),
        nested(_TCA_ACT_OPTIONS, attribute(_TCA_MIRRED_PARMS, mirred)),
    )
    body = TCMSG.pack(0, ifindex, 0, CLSACT_INGRESS, priority << 16 | _ETH_P_ALL)
    body += attribute_text(TCA_KIND, "u32")
    body += nested(TCA_OPTIONS, attribute(_TCA_U32_SEL, selector), nested(_TCA_U32_ACT, action))
    return Request(RTM_NEWTFILTER, body, NLM_F_CREATE | NLM_F_EXCL, "redirect what arrives on", link)


def delete_redirect_request(ifindex: int, priority: int, link: str) -> Request:
    """Remove u32 filters of one priority from the ingress hook; ENOENT or EINVAL if none exist."""
    body = TCMSG.pack(0, ifindex, 0, CLSACT_INGRESS, priority << 16 | _ETH_P_ALL)
    body += attribute_text(TCA_KIND, "u32")
    return Request(RTM_DELTFILTER, body, operation="remove redirection of", link=link)


# --- Data Center Bridging (IEEE 802.1Qaz) ---------------------------------------------------------------
# Only drivers with ``dcbnl_ops`` answer (mlx5, mlx4, bnxt, ice, i40e and others). The kernel drops the APP
# table of a link that leaves its namespace (Linux 5.18), so that is restored whatever a tenant did.

RTM_GETDCB, RTM_SETDCB = 78, 79
CMD_IEEE_SET, CMD_IEEE_GET, CMD_SDCBX, CMD_IEEE_DEL = 20, 21, 23, 27
ATTR_IFNAME, ATTR_IEEE, ATTR_DCBX = 1, 13, 14
IEEE_ETS, IEEE_PFC, IEEE_APP_TABLE, IEEE_MAXRATE = 1, 2, 3, 7

_DCB_HEADER = struct.Struct("=BBH")
"""``struct dcbmsg``: family, command, padding."""
_APP = struct.Struct("=BBH")
"""``struct dcb_app``: selector, priority, protocol."""

_DCB_SETTINGS: Mapping[str, tuple[int, int, int]] = {
    "ets": (IEEE_ETS, 59, 59),
    "pfc": (IEEE_PFC, 6, 136),
    "maxrate": (IEEE_MAXRATE, 64, 64),
}
"""Attribute, bytes that are settings, bytes of the structure: behind those of PFC there are counters."""


def read_dcb(rtnl: NetlinkSocket, ifname: str) -> DcbState:
    """Read the settings of a link of the socket's namespace; empty if its driver reports none."""
    try:
        request = _dcb_request(RTM_GETDCB, CMD_IEEE_GET, ifname, operation="read DCB settings of")
        answers = rtnl.request(request)
        return parse_dcb(answers[0].payload) if answers else DcbState()
    except KernelError as error:
        report_unreadable(ifname, "dcb", error)
        return DcbState()


def parse_dcb(payload: bytes) -> DcbState:
    found = dict(iter_attributes(payload, _DCB_HEADER.size))
    ieee = dict(iter_attributes(found.get(ATTR_IEEE, b"")))
    settings = {
        name: ieee[kind][:used].hex()
        for name, (kind, used, size) in _DCB_SETTINGS.items()
        if len(ieee.get(kind, b"")) >= size
    }
    if ATTR_DCBX in found:
        settings["dcbx"] = found[ATTR_DCBX].hex()
    apps = (
        f"{kind}:{','.join(map(str, _APP.unpack(app)))}"
        for kind, app in iter_attributes(ieee.get(IEEE_APP_TABLE, b""))
        if len(app) == _APP.size
    )
    return DcbState(settings, tuple(sorted(apps)))


def dcb_difference(wanted: DcbState, found: DcbState) -> list[str]:
    lines = [
        f"DCB {name}: wanted {value}, found {found.settings.get(name, 'nothing')}"
        for name, value in wanted.settings.items()
        if found.settings.get(name) != value
    ]
    if wanted.apps is not None and wanted.apps != found.apps:
        now, then = " ".join(found.apps or ()) or "nothing", " ".join(wanted.apps) or "nothing"
        lines.append(f"DCB apps: wanted {then}, found {now}")
    return lines


def restore_dcb(rtnl: NetlinkSocket, ifname: str, wanted: DcbState, found: DcbState) -> list[str]:
    """Write what differs; returns the refusals. A driver that leaves DCBX to its firmware takes nothing else
    before that is as it was, so it comes first."""
    refusals: list[str] = []
    for request in _iter_dcb_writes(ifname, wanted, found):
        try:
            _write_dcb(rtnl, request)
        except KernelError as error:
            refusals.append(error.message)
    return refusals


def _iter_dcb_writes(ifname: str, wanted: DcbState, found: DcbState) -> Iterator[Request]:
    differing = {
        name: bytes.fromhex(value)
        for name, value in wanted.settings.items()
        if found.settings.get(name) != value
    }
    if "dcbx" in differing:
        dcbx = attribute(ATTR_DCBX, differing.pop("dcbx"))
        yield _dcb_request(RTM_SETDCB, CMD_SDCBX, ifname, dcbx, operation="set DCB dcbx of")
    for name, value in differing.items():
        kind, _, size = _DCB_SETTINGS[name]
        setting = nested(ATTR_IEEE, attribute(kind, value.ljust(size, b"\0")))
        yield _dcb_request(RTM_SETDCB, CMD_IEEE_SET, ifname, setting, operation=f"set DCB {name} of")
    if wanted.apps is None:
        return
    present = set(found.apps or ())
    for apps, command, word in (
        (present - set(wanted.apps), CMD_IEEE_DEL, "delete"),
        (set(wanted.apps) - present, CMD_IEEE_SET, "add"),
    ):
        for app in sorted(apps):
            number, _, values = app.partition(":")
            encoded = attribute(int(number), _APP.pack(*map(int, values.split(","))))
            table = nested(ATTR_IEEE, nested(IEEE_APP_TABLE, encoded))
            yield _dcb_request(RTM_SETDCB, command, ifname, table, operation=f"{word} DCB app {app} of")


def _dcb_request(kind: int, command: int, ifname: str, *attributes: bytes, operation: str) -> Request:
    body = _DCB_HEADER.pack(0, command, 0) + attribute_text(ATTR_IFNAME, ifname) + b"".join(attributes)
    return Request(kind, body, operation=operation, link=ifname)


def _write_dcb(rtnl: NetlinkSocket, request: Request) -> None:
    """Send one write. The kernel acknowledges it and adds the driver's result to the answer, one byte."""
    for answer in rtnl.request(request):
        for kind, value in iter_attributes(answer.payload, _DCB_HEADER.size):
            if kind in (ATTR_IEEE, ATTR_DCBX) and len(value) == 1 and value[0]:
                number = (256 - value[0]) if value[0] > 127 else errno.EINVAL
                raise kernel_error(number, "", request.operation, request.link)


# --- pause counters of priority flow control ------------------------------------------------------------

_PFC = struct.Struct("@BBBxH2x8Q8Q")
"""``struct ieee_pfc``: capacity, enabled, MACsec bypass, delay, then frames sent and received by priority."""


class Pauses(Struct, frozen=True):
    """Pause frames of one priority that has flow control."""

    priority: int
    transmitted: int
    """Frames by which we asked the other side to wait."""
    received: int


def get_pauses_request(ifname: str) -> Request:
    """Ask for one link's; EOPNOTSUPP where its driver has no such thing."""
    return _dcb_request(RTM_GETDCB, CMD_IEEE_GET, ifname, operation="read flow control")


def find_flow_control(payload: bytes) -> bytes:
    """``struct ieee_pfc`` of an answer; empty where it does not speak of it."""
    ieee = parse_attributes(payload, _DCB_HEADER.size, frozenset({ATTR_IEEE})).get(ATTR_IEEE, b"")
    return parse_attributes(ieee, 0, frozenset({IEEE_PFC})).get(IEEE_PFC, b"")


def parse_pauses(payload: bytes) -> tuple[Pauses, ...]:
    """The priorities that have flow control; raises what ``rtnl.decode`` turns into a ``KernelError``."""
    pfc = find_flow_control(payload)
    if len(pfc) < _PFC.size:
        return ()
    _, enabled, _, _, *frames = _PFC.unpack_from(pfc)
    return tuple(
        Pauses(priority, frames[priority], frames[8 + priority])
        for priority in range(8)
        if enabled >> priority & 1
    )

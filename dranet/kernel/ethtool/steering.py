"""How a NIC spreads what it receives over its queues: RSS and flow rules, read and restored. By
``SIOCETHTOOL``, because netlink sets none of it before Linux 6.17; only the list of additional RSS contexts
is a dump of netlink (Linux 6.11). A context steers nothing without a flow rule that names it, and rules are
restored on any kernel."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.ethtool.messages import ETHTOOL_FAMILY, ask_by_ioctl, ethtool_request
from dranet.kernel.netlink.rtnl import decode, u32
from dranet.kernel.netlink.socket import (
    GENL_HEADER_BYTES,
    NetlinkSocket,
    attribute_u32,
    iter_attributes,
    kernel_error,
    report_unreadable,
    resolve_family,
)
from dranet.model.plan import FlowRule, RssContext, SteeringState

# linux/ethtool.h
GRXFH, SRXFH, GRXRINGS = 0x29, 0x2A, 0x2D
GRXCLSRLCNT, GRXCLSRULE, GRXCLSRLALL, SRXCLSRLDEL, SRXCLSRLINS = 0x2E, 0x2F, 0x30, 0x31, 0x32
GRSSH, SRSSH = 0x46, 0x47
NEW_CONTEXT = NO_CHANGE = 0xFFFFFFFF
"""``ETH_RXFH_CONTEXT_ALLOC``, ``ETH_RXFH_INDIR_NO_CHANGE``."""

# linux/ethtool_netlink.h
_RSS_GET = 38
_CONTEXT, _FUNCTION, _TABLE, _KEY, _TRANSFORM, _START_CONTEXT = 2, 3, 4, 5, 6, 7

RSS = struct.Struct("=IIIIBBxxI")
"""``struct ethtool_rxfh``: command, context, entries of the table, bytes of the key, hash function, input
transformation; table and key follow."""
FLOWS = struct.Struct("=IIQ168sI4x")
"""``struct ethtool_rxnfc``: command, flow type, data, rule, number of rules or RSS context."""
RULE_LOCATIONS = 188
_FLOW_RSS = 0x20000000
"""In the flow type of a rule: it spreads over an RSS context."""
_U32 = struct.Struct("=I")
_SPEC = struct.Struct("=160sI4x")
"""``struct ethtool_rx_flow_spec``: what it matches and the queue, and its location."""

FLOW_TYPES: Mapping[str, int] = {
    "tcp4": 1, "udp4": 2, "sctp4": 3, "ah-esp4": 4, "tcp6": 5, "udp6": 6, "sctp6": 7, "ah-esp6": 8,
}  # fmt: skip
"""By ethtool's words (``ethtool -n LINK rx-flow-hash tcp4``)."""

EQUAL = "equal "
"""``ethtool -X LINK equal 8`` with eight queues: the kernel makes such a table where no administrator did. A
table that was set keeps the number of channels from being lowered, so this one is restored by a reset."""

T = TypeVar("T")


class Nic(Struct, frozen=True):
    genl: NetlinkSocket
    ifindex: int
    ifname: str

    def ask(self, data: bytes, operation: str) -> bytes:
        try:
            return ask_by_ioctl(self.genl.fileno(), self.ifname, data)
        except OSError as error:
            raise kernel_error(error.errno or 0, "", operation, self.ifname) from error


# --- reading -------------------------------------------------------------------------------------------


def read_steering(nic: Nic, recorded: SteeringState | None = None) -> SteeringState:
    """Read what the driver reports. What it refuses is ``None`` or absent; with a record, so is what the
    record does not have."""
    wants = recorded or SteeringState(RssContext(), (), FLOW_TYPES, ())
    rss = _if_readable(nic, "RSS", _read_main) if wants.rss is not None else None
    has_contexts = rss is not None and wants.contexts is not None
    return SteeringState(
        rss=rss,
        contexts=_if_readable(nic, "RSS contexts", _read_contexts) if has_contexts else None,
        hash_fields=_read_hash_fields(nic, wants.hash_fields),
        rules=_if_readable(nic, "flow rules", _read_rules) if wants.rules is not None else None,
    )


def _if_readable(nic: Nic, part: str, read: Callable[[Nic], T]) -> T | None:
    try:
        return read(nic)
    except KernelError as error:
        report_unreadable(nic.ifname, part, error)
        return None


def _read_main(nic: Nic) -> RssContext:
    operation = "read RSS table of"
    asked = nic.ask(RSS.pack(GRSSH, 0, 0, 0, 0, 0, 0), operation)
    _, _, entries, key_bytes, _, _, _ = RSS.unpack_from(asked)
    answer = nic.ask(
        RSS.pack(GRSSH, 0, entries, key_bytes, 0, 0, 0) + bytes(4 * entries + key_bytes), operation
    )
    _, _, _, _, function, transform, _ = RSS.unpack_from(answer)
    end = RSS.size + 4 * entries
    table = _table_text(answer[RSS.size : end], _read_queues(nic))
    return RssContext(0, table, answer[end : end + key_bytes].hex(), function, transform)


def _read_queues(nic: Nic) -> int:
    """Return the number of receive queues; 0 if the driver does not report it."""
    try:
        return int(FLOWS.unpack_from(_flows(nic, GRXRINGS, "read receive queues of"))[2])
    except KernelError:
        return 0


def _table_text(table: bytes, queues: int = 0) -> str:
    """``equal 8`` for what the kernel makes of so many queues (``ethtool_rxfh_indir_default``)."""
    count = len(table) // 4
    entries = struct.unpack_from(f"={count}I", table)
    if count and queues and entries == tuple(place % queues for place in range(count)):
        return f"{EQUAL}{queues}"
    return ",".join(map(str, entries))


def _read_contexts(nic: Nic) -> tuple[RssContext, ...]:
    family = resolve_family(nic.genl, ETHTOOL_FAMILY)
    start = attribute_u32(_START_CONTEXT, 1)
    request = ethtool_request(
        family, _RSS_GET, nic.ifindex, start, operation="read RSS contexts of", link=nic.ifname
    )
    found = (decode(parse_context, payload) for payload in nic.genl.dump(request))
    return tuple(sorted((context for context in found if context.number), key=lambda one: one.number))


def parse_context(payload: bytes) -> RssContext:
    found = dict(iter_attributes(payload, GENL_HEADER_BYTES))
    number, function, transform = (u32(found, kind) for kind in (_CONTEXT, _FUNCTION, _TRANSFORM))
    return RssContext(
        number, _table_text(found.get(_TABLE, b"")), found.get(_KEY, b"").hex(), function, transform
    )


def _read_hash_fields(nic: Nic, wanted: Mapping[str, int]) -> dict[str, int]:
    """Read the hashed fields by flow. A driver that fails the first one is not asked for the others."""
    found: dict[str, int] = {}
    for flow in wanted:
        try:
            answer = _flows(nic, GRXFH, "read flow hash of", (FLOW_TYPES[flow], 0))
        except KernelError as error:  # drivers refuse the flows that they do not know with any errno
            if error.errno == errno.ENODEV:
                raise
            if not found:
                break
        else:
            found[flow] = int(FLOWS.unpack_from(answer)[2])
    return found


def _flows(
    nic: Nic,
    command: int,
    operation: str,
    flow: tuple[int, int] = (0, 0),  # its type, and data of it
    spec: bytes = b"",
    last: int = 0,
    room: int = 0,
) -> bytes:
    return nic.ask(FLOWS.pack(command, *flow, spec, last) + bytes(room), operation)


def _read_rules(nic: Nic) -> tuple[FlowRule, ...]:
    operation = "read flow rules of"
    count = int(FLOWS.unpack_from(_flows(nic, GRXCLSRLCNT, operation))[4])
    if not count:
        return ()
    answer = _flows(nic, GRXCLSRLALL, operation, last=count, room=4 * count)
    count = min(count, int(FLOWS.unpack_from(answer)[4]))
    locations = sorted(struct.unpack_from(f"={count}I", answer, RULE_LOCATIONS))
    return tuple(_read_rule(nic, location) for location in locations)


def _read_rule(nic: Nic, location: int) -> FlowRule:
    answer = _flows(nic, GRXCLSRULE, "read flow rules of", spec=_SPEC.pack(b"", location))
    _, _, _, spec, context = FLOWS.unpack_from(answer)
    has_context = _U32.unpack_from(spec)[0] & _FLOW_RSS
    return FlowRule(location, spec[:160].rstrip(b"\0").hex(), context if has_context else 0)


# --- what differs --------------------------------------------------------------------------------------


def steering_difference(wanted: SteeringState, found: SteeringState) -> list[str]:
    """One line for each thing that is not as recorded: ``flow rule 7: wanted nothing, found a rule``."""
    return [f"{what}: wanted {before}, found {now}" for what, before, now in _iter_differences(wanted, found)]


def _iter_differences(wanted: SteeringState, found: SteeringState) -> Iterator[tuple[str, str, str]]:
    if wanted.rss is not None and wanted.rss != found.rss:
        yield from _differing_rss("RSS", wanted.rss, found.rss)
    yield from _differing_contexts(wanted.contexts, found.contexts)
    for flow, fields in wanted.hash_fields.items():
        if found.hash_fields.get(flow) != fields:
            now = found.hash_fields.get(flow)
            yield f"flow hash {flow}", f"{fields:#x}", "nothing" if now is None else f"{now:#x}"
    if wanted.rules is not None:
        before = {rule.location: rule for rule in wanted.rules}
        after = {rule.location: rule for rule in found.rules or ()}
        for location in sorted(before.keys() | after.keys()):
            old, new = before.get(location), after.get(location)
            if old != new:
                yield f"flow rule {location}", _rule_text(old), _rule_text(new)


def _differing_contexts(
    wanted: tuple[RssContext, ...] | None, found: tuple[RssContext, ...] | None
) -> Iterator[tuple[str, str, str]]:
    before = {context.number: context for context in wanted or ()}
    after = {context.number: context for context in found or ()} if wanted is not None else {}
    for number in sorted(before.keys() | after.keys()):
        name = f"RSS context {number}"
        if number not in before:
            yield name, "nothing", "a table"
        elif before[number] != after.get(number):
            yield from _differing_rss(name, before[number], after.get(number))


def _differing_rss(name: str, wanted: RssContext, found: RssContext | None) -> Iterator[tuple[str, str, str]]:
    if found is None:
        yield name, "a table", "nothing"
        return
    for what, before, now in (
        ("table", wanted.table, found.table),
        ("key", wanted.key, found.key),
        ("hash function", str(wanted.function), str(found.function)),
        ("input transformation", str(wanted.transform), str(found.transform)),
    ):
        if before != now:
            yield f"{name} {what}", _shorten(before), _shorten(now)


def _shorten(text: str, most: int = 40) -> str:
    return (text if len(text) <= most else f"{text[:most]}...") or "nothing"


def _rule_text(rule: FlowRule | None) -> str:
    return "nothing" if rule is None else _shorten(f"rule {rule.spec}")


# --- restoring -----------------------------------------------------------------------------------------


def restore_steering(nic: Nic, wanted: SteeringState, found: SteeringState) -> list[str]:
    """Make ``found`` what was recorded; returns the kernel's refusals. First goes what a tenant added: rules
    before the contexts that they name."""
    refusals: list[str] = []
    numbers: dict[int, int] = {}
    for write in (*_iter_removals(nic, wanted, found), *_iter_writes(nic, wanted, found, numbers)):
        try:
            write()
        except KernelError as error:
            refusals.append(error.message)
    return refusals


def _iter_removals(nic: Nic, wanted: SteeringState, found: SteeringState) -> Iterator[Callable[[], object]]:
    if wanted.rules is not None:
        yield from (
            partial(_delete_rule, nic, rule.location)
            for rule in found.rules or ()
            if rule not in wanted.rules
        )
    if wanted.contexts is not None:
        kept = {context.number for context in wanted.contexts}
        yield from (
            partial(_delete_context, nic, context.number)
            for context in found.contexts or ()
            if context.number not in kept
        )


def _iter_writes(
    nic: Nic, wanted: SteeringState, found: SteeringState, numbers: dict[int, int]
) -> Iterator[Callable[[], object]]:
    """``numbers``: old number of a context -> its new number; filled by the writes."""
    there = {context.number: context for context in found.contexts or ()}
    if wanted.rss is not None and wanted.rss != found.rss:
        yield partial(_set_rss, nic, wanted.rss, found.rss, numbers)
    for context in wanted.contexts or ():
        if context != there.get(context.number):
            yield partial(_set_rss, nic, context, there.get(context.number), numbers)
    for flow, fields in wanted.hash_fields.items():
        if found.hash_fields.get(flow) != fields:
            yield partial(_flows, nic, SRXFH, f"set flow hash {flow} of", (FLOW_TYPES[flow], fields))
    for rule in wanted.rules or ():
        if rule not in (found.rules or ()):
            yield partial(_insert_rule, nic, rule, numbers)


def _delete_rule(nic: Nic, location: int) -> None:
    _flows(nic, SRXCLSRLDEL, f"delete flow rule {location} of", spec=_SPEC.pack(b"", location))


def _insert_rule(nic: Nic, rule: FlowRule, numbers: Mapping[int, int]) -> None:
    spec = _SPEC.pack(bytes.fromhex(rule.spec), rule.location)
    context = numbers.get(rule.context, rule.context)
    _flows(nic, SRXCLSRLINS, f"add flow rule {rule.location} of", spec=spec, last=context)


def _delete_context(nic: Nic, number: int) -> None:
    nic.ask(RSS.pack(SRSSH, number, 0, 0, 0, 0, 0), f"delete RSS context {number} of")


def _set_rss(nic: Nic, wanted: RssContext, found: RssContext | None, numbers: dict[int, int]) -> None:
    """Write what differs: drivers refuse a key or a function that they cannot change, though it is the same.
    A context that is gone gets a new number, which goes into ``numbers``."""
    before = found or RssContext(wanted.number)
    number = wanted.number if found is not None or not wanted.number else NEW_CONTEXT
    entries, table = NO_CHANGE, b""
    if wanted.table.startswith(EQUAL) and wanted.table != before.table:
        entries = 0  # reset
    elif wanted.table and wanted.table != before.table:
        queues = [int(queue) for queue in wanted.table.split(",")]
        entries, table = len(queues), struct.pack(f"={len(queues)}I", *queues)
    key = bytes.fromhex(wanted.key) if wanted.key != before.key else b""
    function = wanted.function if wanted.function != before.function else 0
    head = RSS.pack(SRSSH, number, entries, len(key), function, wanted.transform, 0)
    what = f"set RSS context {wanted.number} of" if wanted.number else "set RSS of"
    answer = nic.ask(head + table + key, what)
    numbers[wanted.number] = int(RSS.unpack_from(answer)[1])

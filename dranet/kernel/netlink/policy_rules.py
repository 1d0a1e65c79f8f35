"""Policy rules between the rtnetlink wire and ``model.plan.AddRule``.

Layout and numbers are those of ``linux/fib_rules.h``. Rules belong to a network namespace, not to a link.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_network

from msgspec.structs import replace

from dranet.kernel.netlink.inet import RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_UNSPEC, RTPROT_STATIC
from dranet.kernel.netlink.rtnl import RTM_DELRULE, RTM_GETRULE, RTM_NEWRULE, text, u32
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    iter_attributes,
    parse_attributes,
)
from dranet.model.facts import RoutingRule
from dranet.model.plan import AddRule

FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK = 1, 2, 3, 6, 10
FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME = 14, 15, 16, 17
FRA_PROTOCOL = 21
FR_ACT_TO_TBL = 1
FIB_RULE_INVERT, FIB_RULE_IIF_DETACHED, FIB_RULE_OIF_DETACHED = 0x02, 0x08, 0x10
ALL_BITS = 0xFFFFFFFF

_RULE = struct.Struct("=BBBBBxxBI")
_STATE_FLAGS = FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED
_SAYABLE = frozenset(
    {
        FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME,
        FRA_PROTOCOL,
    }
)  # fmt: skip
_LOOKUP = frozenset({FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_OIFNAME, FRA_TABLE, FRA_SUPPRESS_PREFIXLEN})
_LOCAL_AND_MAIN = (bytes([RT_TABLE_LOCAL]), bytes([RT_TABLE_MAIN]))
_NO_SUPPRESSION = b"\xff" * 4
_FAMILIES = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}


def canonical_rule(rule: AddRule) -> AddRule:
    """Return the rule in the spelling of :func:`parse_rule`: for the kernel a mark with an empty mask does
    not exist."""
    is_marked = rule.mark is not None and bool(rule.mark or rule.mask != 0)
    return replace(
        rule,
        table=rule.table or RT_TABLE_MAIN,
        source=_canonical_prefix(rule.source),
        destination=_canonical_prefix(rule.destination),
        mark=rule.mark if is_marked else None,
        mask=(ALL_BITS if rule.mask is None else rule.mask) if is_marked else None,
    )


def _canonical_prefix(prefix: str) -> str:
    """Empty for what every address is in."""
    if not prefix:
        return ""
    network = ip_network(prefix)
    return str(network) if network.prefixlen else ""


def parse_rule(payload: bytes) -> AddRule | None:
    """Parse RTM_NEWRULE; ``None`` for one that :class:`AddRule` cannot express (goto, ports, user ids
    ...)."""
    family, destination_length, source_length, tos, _, action, flags = _RULE.unpack_from(payload)
    if family not in _FAMILIES.values() or action != FR_ACT_TO_TBL or tos or flags & ~_STATE_FLAGS:
        return None
    found = dict(iter_attributes(payload, _RULE.size))
    if found.pop(FRA_SUPPRESS_PREFIXLEN, _NO_SUPPRESSION) != _NO_SUPPRESSION or not found.keys() <= _SAYABLE:
        return None
    has_mark = FRA_FWMARK in found or FRA_FWMASK in found
    return AddRule(
        family=4 if family == socket.AF_INET else 6,
        table=u32(found, FRA_TABLE),
        priority=u32(found, FRA_PRIORITY),
        source=_prefix(family, found.get(FRA_SRC), source_length),
        destination=_prefix(family, found.get(FRA_DST), destination_length),
        mark=u32(found, FRA_FWMARK) if has_mark else None,
        mask=u32(found, FRA_FWMASK) if has_mark else None,
        input_interface=text(found.get(FRA_IIFNAME, b"")),
        output_interface=text(found.get(FRA_OIFNAME, b"")),
    )


def _narrowing(prefix: str) -> str:
    """Empty for what every address is in. The kernel keeps the host bits of a rule as they were given."""
    return "" if prefix.endswith("/0") else prefix


def _prefix(family: int, address: bytes | None, length: int) -> str:
    return f"{socket.inet_ntop(family, address)}/{length}" if address is not None else ""


def is_of_local_or_main(payload: bytes) -> bool:
    """Whether a rule looks up a table that the kernel has by itself; asked before parsing, a node may have a
    rule for each pod."""
    return payload[4:5] in _LOCAL_AND_MAIN


def parse_lookup(payload: bytes) -> RoutingRule | None:
    """Parse the part of RTM_NEWRULE that selects traffic and its table; ``None`` for one that looks up
    none (``goto``, ``unreachable`` ...) or that of a VRF (``l3mdev``), whose outputs are ports of the VRF."""
    family, destination_length, source_length, _, _, action, flags = _RULE.unpack_from(payload)
    found = parse_attributes(payload, _RULE.size, _LOOKUP)
    table = u32(found, FRA_TABLE) or payload[4]
    if family not in _FAMILIES.values() or action != FR_ACT_TO_TBL or table == RT_TABLE_UNSPEC:
        return None
    return RoutingRule(
        family=4 if family == socket.AF_INET else 6,
        table=table,
        source=_narrowing(_prefix(family, found.get(FRA_SRC), source_length)),
        destination=_narrowing(_prefix(family, found.get(FRA_DST), destination_length)),
        input_interface=text(found.get(FRA_IIFNAME, b"")),
        output_interface=text(found.get(FRA_OIFNAME, b"")),
        inverted=bool(flags & FIB_RULE_INVERT),
        suppresses_default=found.get(FRA_SUPPRESS_PREFIXLEN, _NO_SUPPRESSION) != _NO_SUPPRESSION,
    )


def dump_rules_request(family: int) -> Request:
    """Ask for the rules of an IP version (4 or 6)."""
    return Request(RTM_GETRULE, _RULE.pack(_FAMILIES[family], 0, 0, 0, 0, 0, 0), operation="read rules")


def add_rule_request(rule: AddRule, link: str) -> Request:
    """Add a rule; without a priority the kernel puts it before the rules that were added so far."""
    return Request(RTM_NEWRULE, _rule_body(rule), NLM_F_CREATE | NLM_F_EXCL, _describe("add", rule), link)


def delete_rule_request(rule: AddRule, link: str) -> Request:
    """Remove a rule that was added by :func:`add_rule_request`.

    The kernel takes the first one that has all of this, and perhaps more: give the priority.
    """
    return Request(RTM_DELRULE, _rule_body(rule), operation=_describe("remove", rule), link=link)


def _rule_body(rule: AddRule) -> bytes:
    wanted = canonical_rule(rule)
    family = _FAMILIES[wanted.family]
    source_length, source = _encode_prefix(FRA_SRC, wanted.source)
    destination_length, destination = _encode_prefix(FRA_DST, wanted.destination)
    parts = [
        _RULE.pack(family, destination_length, source_length, 0, 0, FR_ACT_TO_TBL, 0),
        attribute_u32(FRA_TABLE, wanted.table),
        attribute_u8(FRA_PROTOCOL, RTPROT_STATIC),
        source,
        destination,
    ]
    if wanted.priority:
        parts.append(attribute_u32(FRA_PRIORITY, wanted.priority))
    if wanted.mark is not None and wanted.mask is not None:
        parts += [attribute_u32(FRA_FWMARK, wanted.mark), attribute_u32(FRA_FWMASK, wanted.mask)]
    if wanted.input_interface:
        parts.append(attribute_text(FRA_IIFNAME, wanted.input_interface))
    if wanted.output_interface:
        parts.append(attribute_text(FRA_OIFNAME, wanted.output_interface))
    return b"".join(parts)


def _encode_prefix(kind: int, prefix: str) -> tuple[int, bytes]:
    if not prefix:
        return 0, b""
    network = ip_network(prefix)
    return network.prefixlen, attribute(kind, network.network_address.packed)


def _describe(verb: str, rule: AddRule) -> str:
    return f"{verb} rule {rule_text(rule)}"


def rule_text(rule: AddRule) -> str:
    """``from 10.0.0.5/32 table 100``."""
    parts: list[str] = []
    parts += [f"from {rule.source}"] if rule.source else []
    parts += [f"to {rule.destination}"] if rule.destination else []
    return " ".join((*parts, f"table {rule.table}"))

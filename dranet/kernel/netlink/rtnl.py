"""rtnetlink: message numbers, odd messages, and links and policy rules between the wire and ``model``; no
I/O. Layouts and numbers are those of ``linux/rtnetlink.h``, ``if_link.h`` and ``fib_rules.h``. What a parser
cannot read is a ``KernelError``, so that the caller can turn one odd message into one warning."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_network
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    iter_attributes,
    nested,
    parse_attributes,
)
from dranet.kernel.sysfs.files import nearest_pci_address
from dranet.model.facts import Address, Link, RoutingRule
from dranet.model.plan import AddRule

# linux/rtnetlink.h
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWNEXTHOP, RTM_DELNEXTHOP, RTM_GETNEXTHOP = 104, 105, 106
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109
RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE = 1, 5, 7, 8
RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE = 9, 11, 19
RTNLGRP_NEXTHOP = 32
RT_TABLE_UNSPEC, RT_TABLE_COMPAT, RT_TABLE_DEFAULT = 0, 252, 253
RT_TABLE_MAIN, RT_TABLE_LOCAL = 254, 255
RTPROT_REDIRECT, RTPROT_KERNEL, RTPROT_STATIC, RTPROT_RA = 1, 2, 4, 9
RTEXT_FILTER_SKIP_STATS = 8

# linux/if_link.h
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK = 1, 3, 4, 5
IFLA_MASTER, IFLA_TXQLEN, IFLA_OPERSTATE, IFLA_LINKINFO = 10, 13, 16, 18
IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_GROUP, IFLA_NET_NS_FD, IFLA_EXT_MASK = 20, 26, 27, 28, 29
IFLA_CARRIER, IFLA_PHYS_SWITCH_ID, IFLA_LINK_NETNSID, IFLA_PHYS_PORT_NAME = 33, 36, 37, 38
IFLA_GSO_MAX_SIZE, IFLA_XDP, IFLA_NEW_IFINDEX = 41, 43, 49
IFLA_PROP_LIST, IFLA_ALT_IFNAME, IFLA_PERM_ADDRESS = 52, 53, 54
MOST_IFNAME_BYTES = 15
"""``IFNAMSIZ`` without the terminating zero; an alternative name may be longer (``ALTIFNAMSIZ``)."""
IFLA_PARENT_DEV_NAME, IFLA_PARENT_DEV_BUS_NAME, IFLA_GRO_MAX_SIZE = 56, 57, 58
IFLA_GSO_IPV4_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE, IFLA_NETNS_IMMUTABLE = 63, 64, 67
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
IFLA_VLAN_ID, IFLA_VLAN_PROTOCOL = 1, 5
IFLA_XDP_ATTACHED = 2
IFLA_INET6_TOKEN = 7
IFF_UP, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_MULTICAST = 0x1, 0x80, 0x100, 0x200, 0x1000

OFFLOAD_SIZES = {
    "gso_max_size": IFLA_GSO_MAX_SIZE,
    "gro_max_size": IFLA_GRO_MAX_SIZE,
    "gso_ipv4_max_size": IFLA_GSO_IPV4_MAX_SIZE,
    "gro_ipv4_max_size": IFLA_GRO_IPV4_MAX_SIZE,
}
"""Attributes by the names of ``model.plan``; each is a u32 of bytes."""

_LINK = struct.Struct("=BxHiII")
_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")

_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
"""RFC 2863, in the kernel's order (``linux/if.h``)."""

_LINK_ATTRIBUTES = frozenset(
    {
        IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_TXQLEN, IFLA_OPERSTATE,
        IFLA_LINKINFO, IFLA_IFALIAS, IFLA_GROUP, IFLA_CARRIER, IFLA_LINK_NETNSID, IFLA_PROP_LIST,
        IFLA_PERM_ADDRESS, IFLA_PARENT_DEV_NAME, IFLA_PARENT_DEV_BUS_NAME, IFLA_PHYS_SWITCH_ID,
        IFLA_PHYS_PORT_NAME, IFLA_XDP, IFLA_NETNS_IMMUTABLE,
    }
)  # fmt: skip
_INFO_ATTRIBUTES = frozenset({IFLA_INFO_KIND, IFLA_INFO_DATA})

_NO_XDP = attribute_u8(IFLA_XDP_ATTACHED, 0)[:5]
"""What the kernel reports for almost every link; the last byte, the mode, is 0 without a program."""

T = TypeVar("T")


def decode(parse: Callable[[bytes], T], payload: bytes) -> T:
    """Run a parser on a message; whatever is odd in the message becomes a ``KernelError``."""
    try:
        return parse(payload)
    except (struct.error, ValueError, LookupError, OSError) as error:
        raise KernelError(f"malformed rtnetlink message: {error!r}") from error


def decode_all(parse: Callable[[bytes], T | None], payloads: Iterable[bytes], warnings: list[str]) -> list[T]:
    """Parse each message; ``None`` is left out, an odd message becomes a warning and hides no other."""
    found: list[T] = []
    for payload in payloads:
        try:
            parsed = decode(parse, payload)
        except KernelError as error:
            warnings.append(error.message)
            continue
        if parsed is not None:
            found.append(parsed)
    return found


class Surroundings(Struct, frozen=True):
    """What completes a link beyond its own message."""

    addresses: Mapping[int, tuple[Address, ...]] = field(default_factory=dict)
    """By ifindex."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Interface name to its path below ``devices/`` in sysfs."""


_ALONE = Surroundings()


def parse_link(payload: bytes, surroundings: Surroundings = _ALONE) -> Link:
    _, arp_type, ifindex, flags, _ = _LINK.unpack_from(payload)
    found = parse_attributes(payload, _LINK.size, _LINK_ATTRIBUTES)
    ifname = text(found[IFLA_IFNAME])
    kind, vlan_id = _kind_and_vlan(found[IFLA_LINKINFO]) if IFLA_LINKINFO in found else ("", None)
    state = found.get(IFLA_OPERSTATE, b"\0")[0]
    parent_bus = text(found[IFLA_PARENT_DEV_BUS_NAME]) if IFLA_PARENT_DEV_BUS_NAME in found else ""
    parent_device = text(found[IFLA_PARENT_DEV_NAME]) if IFLA_PARENT_DEV_NAME in found else ""
    pci_address, virtual = _place(surroundings.homes.get(ifname, ""), kind, parent_bus, parent_device)
    return Link(
        ifindex=ifindex,
        ifname=ifname,
        kind=kind,
        mac=found[IFLA_ADDRESS].hex(":") if IFLA_ADDRESS in found else "",
        permanent_mac=found[IFLA_PERM_ADDRESS].hex(":") if IFLA_PERM_ADDRESS in found else "",
        mtu=u32(found, IFLA_MTU),
        flags=flags,
        operstate=_OPERSTATES[state] if state < len(_OPERSTATES) else "unknown",
        carrier=found.get(IFLA_CARRIER, b"\0")[0] != 0,
        arp_type=arp_type,
        alias=_free_text(found[IFLA_IFALIAS]) if IFLA_IFALIAS in found else "",
        altnames=_altnames(found[IFLA_PROP_LIST]) if IFLA_PROP_LIST in found else (),
        group=u32(found, IFLA_GROUP),
        tx_queue_length=u32(found, IFLA_TXQLEN),
        master=u32(found, IFLA_MASTER) or None,
        lower=u32(found, IFLA_LINK) or None,
        link_netnsid=u32(found, IFLA_LINK_NETNSID) if IFLA_LINK_NETNSID in found else None,
        parent_bus=parent_bus,
        parent_device=parent_device,
        pci_address=pci_address,
        virtual=virtual,
        addresses=surroundings.addresses.get(ifindex, ()),
        vlan_id=vlan_id,
        netns_immutable=found.get(IFLA_NETNS_IMMUTABLE, b"\0")[0] != 0,
        phys_switch_id=found[IFLA_PHYS_SWITCH_ID].hex() if IFLA_PHYS_SWITCH_ID in found else "",
        phys_port_name=_free_text(found[IFLA_PHYS_PORT_NAME]) if IFLA_PHYS_PORT_NAME in found else "",
        xdp=IFLA_XDP in found and not found[IFLA_XDP].startswith(_NO_XDP),
    )


def parse_link_name(payload: bytes) -> tuple[int, str]:
    """Only (ifindex, name): the name is the first attribute, so this is cheap."""
    ifindex = _LINK.unpack_from(payload)[2]
    for kind, value in iter_attributes(payload, _LINK.size):
        if kind == IFLA_IFNAME:
            return ifindex, text(value)
    raise ValueError("link without a name")


def reports_netns_immutable(payload: bytes) -> bool:
    """Whether the kernel reports which links are pinned to their namespace (Linux 6.15)."""
    return bool(parse_attributes(payload, _LINK.size, frozenset({IFLA_NETNS_IMMUTABLE})))


def _place(home: str, kind: str, parent_bus: str, parent_device: str) -> tuple[str, bool]:
    """The PCI function that carries the link, and whether the link is virtual. Netlink names it only for a
    plain NIC (Linux 5.14), the path in sysfs for the others; a link that sysfs does not show is virtual if it
    has a kind."""
    if parent_bus == "pci":
        return parent_device, False
    if not home:
        return "", bool(kind)
    if "devices/virtual/" in home:
        return "", True
    return nearest_pci_address(home), False


def _kind_and_vlan(linkinfo: bytes) -> tuple[str, int | None]:
    found = parse_attributes(linkinfo, 0, _INFO_ATTRIBUTES)
    kind = text(found.get(IFLA_INFO_KIND, b""))
    if kind != "vlan" or IFLA_INFO_DATA not in found:
        return kind, None
    data = parse_attributes(found[IFLA_INFO_DATA], 0, frozenset({IFLA_VLAN_ID}))
    return kind, int(_U16.unpack_from(data[IFLA_VLAN_ID])[0]) if IFLA_VLAN_ID in data else None


def _altnames(properties: bytes) -> tuple[str, ...]:
    return tuple(text(payload) for kind, payload in iter_attributes(properties) if kind == IFLA_ALT_IFNAME)


def parse_link_data(payload: bytes, wanted: frozenset[int]) -> dict[int, bytes]:
    """Return the data of the link's own kind in RTM_NEWLINK (``IFLA_INFO_DATA``)."""
    found = parse_attributes(payload, _LINK.size, frozenset({IFLA_LINKINFO}))
    info = parse_attributes(found.get(IFLA_LINKINFO, b""), 0, frozenset({IFLA_INFO_DATA}))
    return parse_attributes(info.get(IFLA_INFO_DATA, b""), 0, wanted)


def parse_ipv6_token(payload: bytes) -> str:
    """The IPv6 token of RTM_NEWLINK; empty where none is set or IPv6 is off."""
    found = parse_attributes(payload, _LINK.size, frozenset({IFLA_AF_SPEC}))
    families = parse_attributes(found.get(IFLA_AF_SPEC, b""), 0, frozenset({int(socket.AF_INET6)}))
    ipv6 = parse_attributes(families.get(socket.AF_INET6, b""), 0, frozenset({IFLA_INET6_TOKEN}))
    token = ipv6.get(IFLA_INET6_TOKEN, bytes(16))
    return socket.inet_ntop(socket.AF_INET6, token) if any(token) else ""


def ipv6_token_attribute(token: str) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6, token or "::")
    return nested(IFLA_AF_SPEC, nested(socket.AF_INET6, attribute(IFLA_INET6_TOKEN, packed)))


def offload_size_attributes(sizes: Mapping[str, int]) -> list[bytes]:
    return [attribute_u32(OFFLOAD_SIZES[name], size) for name, size in sizes.items()]


def link_header(ifindex: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """``struct ifinfomsg`` of any family."""
    return _LINK.pack(socket.AF_UNSPEC, 0, ifindex, flags, change)


def get_link_request(ifindex: int = 0, ifname: str = "") -> Request:
    """Ask for one link, by index or by name, an alternative one included: ``IFLA_IFNAME`` takes 15
    characters, ``IFLA_ALT_IFNAME`` more, and the kernel looks for both kinds in either."""
    body = link_header(ifindex) + attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
    if ifname:
        is_long = len(ifname.encode()) > MOST_IFNAME_BYTES
        body += attribute_text(IFLA_ALT_IFNAME if is_long else IFLA_IFNAME, ifname)
    return Request(RTM_GETLINK, body, operation="get link", link=ifname or str(ifindex))


def dump_links_request(kind: str = "", master: int = 0) -> Request:
    """Ask for all links without statistics, or for those of one kind or with one master. The kernel filters;
    it does not for a kind that it does not have."""
    body = link_header() + attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
    body += attribute_u32(IFLA_MASTER, master) if master else b""
    body += nested(IFLA_LINKINFO, attribute_text(IFLA_INFO_KIND, kind)) if kind else b""
    return Request(RTM_GETLINK, body, operation="read links")


def set_link_request(
    ifindex: int, *attributes: bytes, operation: str, link: str, flags: int = 0, change: int = 0
) -> Request:
    """Change one link: ready-made attributes, and the IFF bits ``flags`` where ``change`` is set."""
    body = link_header(ifindex, flags, change) + b"".join(attributes)
    return Request(RTM_NEWLINK, body, operation=operation, link=link)


def stay_request(ifindex: int, netns_fd: int) -> Request:
    """Move a link to the namespace where it is, which changes nothing."""
    place, operation = attribute_u32(IFLA_NET_NS_FD, netns_fd), "ask whether the kernel lets move"
    return set_link_request(ifindex, place, operation=operation, link=f"link {ifindex}")


def create_link_request(kind: str, data: bytes, *attributes: bytes, link: str, flags: int = 0) -> Request:
    """Make a link of a kind: the kind's own attributes (``IFLA_INFO_DATA``), then the general ones."""
    info = nested(IFLA_LINKINFO, attribute_text(IFLA_INFO_KIND, kind), nested(IFLA_INFO_DATA, data))
    body = link_header(0, flags, flags) + b"".join((attribute_text(IFLA_IFNAME, link), *attributes, info))
    return Request(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, f"create {kind}", link)


def delete_link_request(ifindex: int, link: str) -> Request:
    return Request(RTM_DELLINK, link_header(ifindex), operation="delete", link=link)


def delete_altnames_request(ifindex: int, altnames: Iterable[str], link: str) -> Request:
    names = (attribute_text(IFLA_ALT_IFNAME, name) for name in altnames)
    body = link_header(ifindex) + nested(IFLA_PROP_LIST, *names)
    return Request(RTM_DELLINKPROP, body, operation="remove alternative names", link=link)


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode()


def _free_text(payload: bytes) -> str:
    """What people or drivers wrote; odd bytes in it are no reason to lose the link."""
    return payload.rstrip(b"\0").decode(errors="replace")


def u32(found: Mapping[int, bytes], kind: int) -> int:
    payload = found.get(kind)
    return 0 if payload is None else int(_U32.unpack_from(payload)[0])


# --- policy rules, which belong to a network namespace, not to a link ----------------------------------

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
FAMILIES = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}


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
    if not prefix:
        return ""
    network = ip_network(prefix)
    return str(network) if network.prefixlen else ""


def parse_rule(payload: bytes) -> AddRule | None:
    """Parse RTM_NEWRULE; ``None`` for one that :class:`AddRule` cannot express (goto, ports, user ids
    ...)."""
    family, destination_length, source_length, tos, _, action, flags = _RULE.unpack_from(payload)
    if family not in FAMILIES.values() or action != FR_ACT_TO_TBL or tos or flags & ~_STATE_FLAGS:
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


def _prefix(family: int, address: bytes | None, length: int) -> str:
    """Empty for what every address is in. The kernel keeps the host bits of a rule as they were given."""
    text = socket.inet_ntop(family, address) if address is not None else ""
    return f"{text}/{length}" if text and length else ""


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
    if family not in FAMILIES.values() or action != FR_ACT_TO_TBL or table == RT_TABLE_UNSPEC:
        return None
    return RoutingRule(
        family=4 if family == socket.AF_INET else 6,
        table=table,
        source=_prefix(family, found.get(FRA_SRC), source_length),
        destination=_prefix(family, found.get(FRA_DST), destination_length),
        input_interface=text(found.get(FRA_IIFNAME, b"")),
        output_interface=text(found.get(FRA_OIFNAME, b"")),
        inverted=bool(flags & FIB_RULE_INVERT),
        suppresses_default=found.get(FRA_SUPPRESS_PREFIXLEN, _NO_SUPPRESSION) != _NO_SUPPRESSION,
    )


def dump_rules_request(family: int) -> Request:
    return Request(RTM_GETRULE, _RULE.pack(FAMILIES[family], 0, 0, 0, 0, 0, 0), operation="read rules")


def add_rule_request(rule: AddRule, link: str) -> Request:
    """Add a rule; without a priority the kernel puts it before the rules that were added so far."""
    return Request(
        RTM_NEWRULE, _rule_body(rule), NLM_F_CREATE | NLM_F_EXCL, f"add rule {rule_text(rule)}", link
    )


def delete_rule_request(rule: AddRule, link: str) -> Request:
    """Remove a rule that was added by :func:`add_rule_request`. The kernel takes the first one that has all
    of this, and perhaps more: give the priority."""
    return Request(RTM_DELRULE, _rule_body(rule), operation=f"remove rule {rule_text(rule)}", link=link)


def _rule_body(rule: AddRule) -> bytes:
    wanted = canonical_rule(rule)
    family = FAMILIES[wanted.family]
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
    interfaces = ((FRA_IIFNAME, wanted.input_interface), (FRA_OIFNAME, wanted.output_interface))
    parts += [attribute_text(kind, name) for kind, name in interfaces if name]
    return b"".join(parts)


def _encode_prefix(kind: int, prefix: str) -> tuple[int, bytes]:
    if not prefix:
        return 0, b""
    network = ip_network(prefix)
    return network.prefixlen, attribute(kind, network.network_address.packed)


def rule_text(rule: AddRule) -> str:
    """``from 10.0.0.5/32 table 100``."""
    source = f"from {rule.source} " if rule.source else ""
    destination = f"to {rule.destination} " if rule.destination else ""
    return f"{source}{destination}table {rule.table}"

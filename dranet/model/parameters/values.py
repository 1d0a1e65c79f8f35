"""The scalar values of a :class:`~.network.NetworkConfig`: JSON in, a canonical value out.

A validator raises ``ValueError`` with a text that completes "<field path>: ...", so it starts with "must" or
"is".

A sysctl may be written by a claim when it belongs to one network namespace, so that a write in the pod
changes nothing for the node or for another pod (a test tries that on the running kernel), and when a tenant
may have it: it spends no memory that is not charged to the pod, loads no kernel module, fills no log of the
node, and does not switch the pod's other interfaces. What Kubernetes calls safe of ``net`` is contained.
Sources: the kernel's ``Documentation/networking/ip-sysctl.rst``; Kubernetes, "Using sysctls in a Kubernetes
Cluster".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

from msgspec import Struct

from dranet.model.ipam import IPAM_NAME_PATTERN
from dranet.model.parameters.part import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    check_unicode,
)

IFNAME = "IFNAME"
"""Stands for the interface's name in the pod."""
VALUE_MAX_BYTES = 4096
"""What one write to ``/proc/sys`` takes."""


class SysctlGroup(Struct, frozen=True):
    """Some settings that a claim may write; ``*`` in a name stands for the rest of its last part."""

    meaning: str
    names: tuple[str, ...]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PER_INTERFACE = (
    SysctlGroup(
        "how the interface behaves; gone with it",
        _names("""
            net.ipv4.conf.IFNAME.* net.ipv6.conf.IFNAME.* net.ipv4.neigh.IFNAME.* net.ipv6.neigh.IFNAME.*
        """),
    ),
)

NAMESPACE_WIDE = (
    SysctlGroup("how many connections may wait to be accepted", ("net.core.somaxconn",)),
    SysctlGroup("TCP and UDP", ("net.ipv4.tcp_*", "net.ipv4.udp_*")),
    SysctlGroup(
        "ports and addresses that a program may bind",
        _names("""
            net.ipv4.ip_local_* net.ipv4.ip_unprivileged_port_start net.ipv4.ip_nonlocal_bind
            net.ipv6.ip_nonlocal_bind net.ipv6.bindv6only net.ipv4.raw_l3mdev_accept
        """),
    ),
    SysctlGroup(
        "packets that the pod sends",
        _names("""
            net.ipv4.ip_default_ttl net.ipv4.ip_no_pmtu_disc net.ipv4.ip_early_demux
            net.ipv4.route.min_adv_mss net.ipv4.route.min_pmtu net.ipv4.route.mtu_expires
            net.ipv6.route.min_adv_mss net.ipv6.route.mtu_expires net.ipv6.auto_flowlabels
            net.ipv6.flowlabel_consistency net.ipv6.flowlabel_reflect net.ipv6.flowlabel_state_ranges
            net.ipv6.seg6_flowlabel net.ipv4.fwmark_reflect net.ipv6.fwmark_reflect
        """),
    ),
    SysctlGroup(
        "which way of several",
        _names("""
            net.ipv4.fib_multipath_hash_fields net.ipv4.fib_multipath_hash_policy
            net.ipv4.fib_multipath_use_neigh net.ipv6.fib_multipath_hash_fields
            net.ipv6.fib_multipath_hash_policy
        """),
    ),
    SysctlGroup(
        "ICMP and multicast membership",
        _names("""
            net.ipv4.ping_group_range net.ipv4.icmp_echo_ignore_all net.ipv4.icmp_echo_ignore_broadcasts
            net.ipv4.icmp_errors_use_inbound_ifaddr net.ipv4.icmp_ratelimit net.ipv4.icmp_ratemask
            net.ipv6.icmp.echo_ignore_all net.ipv6.icmp.echo_ignore_anycast
            net.ipv6.icmp.echo_ignore_multicast net.ipv6.icmp.ratelimit net.ipv6.icmp.ratemask
            net.ipv6.anycast_src_echo_reply net.ipv4.igmp_link_local_mcast_reports
            net.ipv4.igmp_max_memberships net.ipv4.igmp_max_msf net.ipv4.igmp_qrv
        """),
    ),
    SysctlGroup(
        "every interface of the pod: the kernel combines it with the interface's own value",
        _names("""
            net.ipv4.conf.all.accept_redirects net.ipv4.conf.all.arp_accept net.ipv4.conf.all.arp_announce
            net.ipv4.conf.all.arp_filter net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_notify
            net.ipv4.conf.all.ignore_routes_with_linkdown net.ipv4.conf.all.rp_filter
            net.ipv4.conf.all.secure_redirects net.ipv4.conf.all.send_redirects
            net.ipv4.conf.all.shared_media net.ipv4.conf.all.src_valid_mark net.ipv6.conf.all.accept_dad
            net.ipv6.conf.all.ignore_routes_with_linkdown net.ipv6.conf.all.keep_addr_on_down
            net.ipv6.conf.all.ndisc_notify net.ipv6.conf.all.proxy_ndp
        """),
    ),
)

_OF_THE_NODE = "is one for the whole node"
_MEMORY = "sizes kernel memory that is not charged to the pod"
_PRIVATE = "is a secret, which does not belong into a claim"
_READ_ONLY = "cannot be written"
_ROUNDED = "is a rounded view of another setting; set"

REFUSED: Mapping[str, str] = {
    "net.ipv4.conf.IFNAME.forwarding": "has a parameter; set interface.forwarding",
    "net.ipv6.conf.IFNAME.forwarding": "has a parameter; set interface.forwarding",
    "net.ipv4.conf.IFNAME.arp_ignore": "has a parameter; set interface.arpIgnore",
    "net.ipv4.conf.IFNAME.arp_announce": "has a parameter; set interface.arpAnnounce",
    "net.ipv6.conf.IFNAME.disable_ipv6": "has a parameter; set interface.ipv6.enabled",
    "net.ipv6.conf.IFNAME.accept_ra": "has a parameter; set interface.ipv6.acceptRA",
    "net.ipv4.ip_forward": "switches every interface of the pod; set interface.forwarding",
    "net.ipv4.conf.all.forwarding": "switches every interface of the pod; set interface.forwarding",
    "net.ipv6.conf.all.forwarding": "switches every interface of the pod; set interface.forwarding",
    "net.ipv6.conf.all.disable_ipv6": "switches every interface of the pod; set interface.ipv6.enabled",
    "net.ipv4.conf.IFNAME.log_martians": "lets a pod fill the node's kernel log",
    "net.ipv4.conf.all.log_martians": "lets a pod fill the node's kernel log",
    "net.ipv4.conf.IFNAME.mc_forwarding": _READ_ONLY,
    "net.ipv6.conf.IFNAME.mc_forwarding": _READ_ONLY,
    "net.ipv6.conf.IFNAME.stable_secret": _PRIVATE,
    "net.ipv4.neigh.IFNAME.base_reachable_time": f"{_ROUNDED} base_reachable_time_ms",
    "net.ipv6.neigh.IFNAME.base_reachable_time": f"{_ROUNDED} base_reachable_time_ms",
    "net.ipv4.neigh.IFNAME.retrans_time": f"{_ROUNDED} retrans_time_ms",
    "net.ipv6.neigh.IFNAME.retrans_time": f"{_ROUNDED} retrans_time_ms",
    "net.ipv4.neigh.IFNAME.unres_qlen": f"{_ROUNDED} unres_qlen_bytes",
    "net.ipv6.neigh.IFNAME.unres_qlen": f"{_ROUNDED} unres_qlen_bytes",
    "net.ipv4.tcp_mem": _OF_THE_NODE,
    "net.ipv4.udp_mem": _OF_THE_NODE,
    "net.ipv4.tcp_max_orphans": _OF_THE_NODE,
    "net.ipv4.tcp_allowed_congestion_control": _OF_THE_NODE,
    "net.ipv4.tcp_available_congestion_control": _READ_ONLY,
    "net.ipv4.tcp_available_ulp": _READ_ONLY,
    "net.ipv4.tcp_ehash_entries": _READ_ONLY,
    "net.ipv4.udp_hash_entries": _READ_ONLY,
    "net.ipv4.tcp_congestion_control": "loads modules into the kernel; set it on the node for all pods",
    "net.ipv4.tcp_fastopen_key": _PRIVATE,
    "net.ipv4.tcp_max_tw_buckets": _MEMORY,
    "net.ipv4.tcp_child_ehash_entries": _MEMORY,
    "net.ipv4.udp_child_hash_entries": _MEMORY,
}
"""Settings that a pattern above would admit, or that users may look for, with the reason against each.

Settings with a parameter of their own are set by that parameter alone: others are checked against it.
"""

_INTERFACE_PART = re.compile(r"net\.(ipv[46])\.(conf|neigh)\.(.+)\.[a-z0-9_]+")
_OTHERS = "is not among the settings that a claim may change; docs/reference/parameters.md lists them"


def _compile(groups: tuple[SysctlGroup, ...]) -> re.Pattern[str]:
    names = (re.escape(name).replace(r"\*", "[a-z0-9_]+") for group in groups for name in group.names)
    return re.compile("|".join(names))


_PER_INTERFACE = _compile(PER_INTERFACE)
_NAMESPACE_WIDE = _compile(NAMESPACE_WIDE)


def is_per_interface(name: str) -> bool:
    """Whether the setting belongs to the interface: its name contains ``IFNAME``."""
    return bool(_PER_INTERFACE.fullmatch(name))


def find_refusal(name: str) -> str:
    """Why a claim may not write this setting, as completes "<name>: ..."; empty when it may."""
    if name in REFUSED:
        return REFUSED[name]
    if _PER_INTERFACE.fullmatch(name) or _NAMESPACE_WIDE.fullmatch(name):
        return ""
    part = _INTERFACE_PART.fullmatch(name)
    if part and part[3] != "all":
        return f"names an interface; write net.{part[1]}.{part[2]}.{IFNAME}.{name.rpartition('.')[2]}"
    return _OTHERS


def find_value_problem(value: str | int) -> str:
    """What is wrong with a value, as completes "<name>: ..."; empty when nothing is."""
    text = str(value)
    if not text.strip():
        return "must not be empty"
    if len(text.encode(errors="replace")) > VALUE_MAX_BYTES:
        return f"must have at most {VALUE_MAX_BYTES} bytes"
    if not all(" " <= character <= "~" or character == "\t" for character in text):
        return "must be one line of ASCII text"
    return ""


def build_sysctl_path(name: str, pod_ifname: str) -> str:
    """Where an allowed setting is, below ``/proc/sys/net``. Interface names may have dots."""
    return "/".join(pod_ifname if part == IFNAME else part for part in name.split(".")[1:])


IFNAME_MAX_BYTES = 15
"""``IFNAMSIZ`` less the terminating zero."""
UINT32_MAX = 2**32 - 1
UNLIMITED = -1
"""``memlock`` without a limit (``RLIM_INFINITY``)."""
QUANTITY_PATTERN = r"[0-9]{1,18}(\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?"
MARK_PATTERN = r"0[xX][0-9A-Fa-f]{1,8}|[0-9]{1,10}"

IFNAME_PATTERN = r"[A-Za-z0-9._-]+"
RESERVED_IFNAMES = frozenset({".", "..", "lo", "all", "default"})
"""Not file names; the pod's loopback; and names of ``/proc/sys/net/ipv4/conf`` that the kernel keeps."""
MAC_PATTERN = (
    r"([0-9A-Fa-f]{2}[:-]){5}([0-9A-Fa-f]{2}|(([0-9A-Fa-f]{2}[:-]){14}[0-9A-Fa-f]{2}))"
    r"|([0-9A-Fa-f]{4}\.){2}([0-9A-Fa-f]{4}|(([0-9A-Fa-f]{4}\.){7}[0-9A-Fa-f]{4}))"
)
CIDR_PATTERN = r"[0-9A-Fa-f.:]+/[0-9]{1,3}"
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SCALE |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_INT64 = range(-(2**63), 2**63)

Item = TypeVar("Item")


def ifname(value: str) -> str:
    """A name that the kernel gives a link; empty is allowed and means "not set"."""
    if len(value.encode(errors="replace")) > IFNAME_MAX_BYTES:
        raise ValueError(f"must have at most {IFNAME_MAX_BYTES} bytes")
    if value and not re.fullmatch(IFNAME_PATTERN, value):
        raise ValueError("must consist of ASCII letters, digits, '-', '_' and '.'")
    if value in RESERVED_IFNAMES:
        raise ValueError("is a reserved name")
    return value


def ipam_name(value: str) -> str:
    """An entry of ``ipam_file``, whose name may become that of a CNI network."""
    if not re.fullmatch(IPAM_NAME_PATTERN, value):
        raise ValueError("must be a name of at most 63 ASCII letters, digits, '-', '_' and '.'")
    return value


def required_ifname(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return ifname(value)


def rule_ifname(value: str) -> str:
    """As :func:`required_ifname`, or ``lo``: a rule's input interface for what the pod itself sends."""
    return value if value == "lo" else required_ifname(value)


def link_address(value: str) -> str:
    """A hardware address of Ethernet or InfiniBand, as lower case with colons."""
    if not re.fullmatch(MAC_PATTERN, value):
        raise ValueError("must be a hardware address of 6 or 20 bytes, e.g. 02:00:00:00:00:01")
    return ":".join(re.findall("..", re.sub(r"[:.-]", "", value).lower()))


def mac(value: str) -> str:
    """As :func:`link_address`, and one that a link can have as its own."""
    address = link_address(value)
    octets = bytes.fromhex(address.replace(":", ""))
    if len(octets) == 6 and (octets[0] & 1 or not any(octets)):
        raise ValueError("must be a unicast hardware address")
    return address


def interface_cidr(value: str) -> str:
    """An address with its prefix; host bits stay."""
    _require_prefix(value, "10.0.0.5/24")
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError as error:
        raise ValueError("must be an address with its prefix, e.g. 10.0.0.5/24") from error
    if interface.ip.is_multicast or interface.ip.is_unspecified or interface.ip.is_loopback:
        raise ValueError("must be a unicast address")
    return str(interface)


def network_cidr(value: str) -> str:
    """A prefix. Host bits are cleared, as DraNet does; the kernel refuses them."""
    _require_prefix(value, "10.1.0.0/16")
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError as error:
        raise ValueError("must be a CIDR, e.g. 10.1.0.0/16") from error


def _require_prefix(value: str, example: str) -> None:
    """A prefix length, and as a number: no netmask, no bare address, no zone."""
    if not re.fullmatch(CIDR_PATTERN, value):
        raise ValueError(f"must be in CIDR form with a prefix length, e.g. {example}")


def ip(value: str) -> str:
    """An address without prefix or zone."""
    if "/" in value or "%" in value:
        raise ValueError("must be an IP address without prefix or zone")
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError("must be an IP address") from error


def ipv6_token(value: str) -> str:
    """The host half of an IPv6 address (``ip token``): the upper 64 bits are zero, the lower are not."""
    try:
        token = ipaddress.IPv6Address(value)
    except ValueError as error:
        raise ValueError("must be the lower 64 bits of an IPv6 address, e.g. ::1:2") from error
    if not int(token) or int(token) >> 64:
        raise ValueError("must have 64 leading zero bits and not be ::, e.g. ::1:2")
    return str(token)


class OneOf:
    def __init__(self, *choices: int) -> None:
        self.choices = choices

    def __call__(self, value: int) -> int:
        if value not in self.choices:
            *others, last = map(str, self.choices)
            raise ValueError(f"must be {', '.join(others)} or {last}")
        return value


def distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list without repetitions, in the order of first mention."""
    return tuple(dict.fromkeys(values))


def without_nulls(value: object) -> object:
    """A map without the names that stand for nothing."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def quantity(value: object) -> object:
    """A Kubernetes quantity (``10G``, ``1.5M``, ``64Ki``) -> an integer; what is no text passes unchanged."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(QUANTITY_PATTERN, value):
        raise ValueError("must be a number or a quantity such as 10G, 1.5M or 64Ki")
    digits = value.rstrip("KkMGTi")
    whole, _, part = digits.partition(".")
    amount, rest = divmod(int(whole + part) * _SCALE[value.removeprefix(digits)], 10 ** len(part))
    if rest:
        raise ValueError("must be a whole number")
    return amount


def memlock(value: object) -> object:
    if isinstance(value, int) and value < 0:
        raise ValueError("must be bytes, a quantity such as 64Mi, or unlimited")
    return UNLIMITED if value == "unlimited" else quantity(value)


def mark(value: object) -> object:
    """A firewall mark: a number, or text such as ``0x10``."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(MARK_PATTERN, value):
        raise ValueError("must be a number, or text such as 0x10")
    return int(value, 16) if value[:2].lower() == "0x" else int(value)


def sysctl_value(value: object) -> object:
    """Text as ``/proc/sys`` takes it; a whole number is such a text."""
    if isinstance(value, int) and not isinstance(value, bool) and value in _INT64:
        return str(value)
    problem = find_value_problem(value) if isinstance(value, str) else "must be text or a 64-bit integer"
    if problem:
        raise ValueError(problem)
    return value


def _number_or_text(least: int, most: int, pattern: str) -> WithJsonSchema:
    number = {"type": "integer", "minimum": least, "maximum": most}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": f"^({pattern})$"}]})


def _pattern(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


_MAX_BYTES = 2**62
_RATE_MIN, _RATE_MAX = 8_000, 100 * 10**12

Several = Annotated[tuple[Item, ...], AfterValidator(distinct)]
"""A JSON list. What is asked twice is done once, as DraNet does with addresses."""
Ifname = Annotated[str, AfterValidator(ifname), _pattern("[A-Za-z0-9._-]{0,15}")]
RequiredIfname = Annotated[str, AfterValidator(required_ifname), _pattern("[A-Za-z0-9._-]{1,15}")]
IpamName = Annotated[str, AfterValidator(ipam_name), _pattern(IPAM_NAME_PATTERN)]
RuleIfname = Annotated[str, AfterValidator(rule_ifname), _pattern("[A-Za-z0-9._-]{1,15}")]
Text = Annotated[str, AfterValidator(check_unicode)]
LinkAddress = Annotated[str, AfterValidator(link_address), _pattern(MAC_PATTERN)]
Mac = Annotated[str, AfterValidator(mac), _pattern(MAC_PATTERN)]
InterfaceCidr = Annotated[str, AfterValidator(interface_cidr), _pattern(CIDR_PATTERN)]
NetworkCidr = Annotated[str, AfterValidator(network_cidr), _pattern(CIDR_PATTERN)]
Ip = Annotated[str, AfterValidator(ip)]
Ipv6Token = Annotated[str, AfterValidator(ipv6_token)]
UInt32 = Annotated[int, Field(ge=0, le=UINT32_MAX)]
Count = Annotated[int, Field(ge=1, le=UINT32_MAX)]
Mark = Annotated[
    int, BeforeValidator(mark), Field(ge=0, le=UINT32_MAX), _number_or_text(0, UINT32_MAX, MARK_PATTERN)
]
BitRate = Annotated[
    int,
    BeforeValidator(quantity),
    Field(ge=_RATE_MIN, le=_RATE_MAX),
    _number_or_text(_RATE_MIN, _RATE_MAX, QUANTITY_PATTERN),
]
"""Bits per second."""
Bytes = Annotated[
    int,
    BeforeValidator(quantity),
    Field(ge=1, le=UINT32_MAX),
    _number_or_text(1, UINT32_MAX, QUANTITY_PATTERN),
]
Memlock = Annotated[
    int,
    BeforeValidator(memlock),
    Field(ge=UNLIMITED, le=_MAX_BYTES),
    PlainSerializer(lambda limit: "unlimited" if limit == UNLIMITED else limit),
    _number_or_text(0, _MAX_BYTES, f"unlimited|{QUANTITY_PATTERN}"),
]
SysctlValue = Annotated[str, BeforeValidator(sysctl_value), WithJsonSchema({"type": ["string", "integer"]})]

"""Which kernel settings a claim may write in its pod's network namespace, and why not the others.

A setting is on the list when it belongs to one network namespace, so that a write in the pod changes nothing
for the node or for another pod (a test tries that on the running kernel), and when a tenant may have it: it
spends no memory that is not charged to the pod, loads no kernel module, fills no log of the node, and does
not switch the pod's other interfaces. What Kubernetes calls safe of ``net`` is contained. Sources: the
kernel's ``Documentation/networking/ip-sysctl.rst``; Kubernetes, "Using sysctls in a Kubernetes Cluster".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

IFNAME = "IFNAME"
"""Stands for the interface's name in the pod."""
VALUE_MAX_BYTES = 4096
"""What one write to ``/proc/sys`` takes."""


class SysctlGroup(Struct, frozen=True):
    """Some settings that a claim may write; ``*`` in a name stands for the rest of its last part."""

    meaning: str
    names: tuple[str, ...]


PER_INTERFACE = (
    SysctlGroup(
        "how the interface behaves; gone with it",
        (
            "net.ipv4.conf.IFNAME.*",
            "net.ipv6.conf.IFNAME.*",
            "net.ipv4.neigh.IFNAME.*",
            "net.ipv6.neigh.IFNAME.*",
        ),
    ),
)

NAMESPACE_WIDE = (
    SysctlGroup("how many connections may wait to be accepted", ("net.core.somaxconn",)),
    SysctlGroup("TCP and UDP", ("net.ipv4.tcp_*", "net.ipv4.udp_*")),
    SysctlGroup(
        "ports and addresses that a program may bind",
        (
            "net.ipv4.ip_local_*",
            "net.ipv4.ip_unprivileged_port_start",
            "net.ipv4.ip_nonlocal_bind",
            "net.ipv6.ip_nonlocal_bind",
            "net.ipv6.bindv6only",
            "net.ipv4.raw_l3mdev_accept",
        ),
    ),
    SysctlGroup(
        "packets that the pod sends",
        (
            "net.ipv4.ip_default_ttl",
            "net.ipv4.ip_no_pmtu_disc",
            "net.ipv4.ip_early_demux",
            "net.ipv4.route.min_adv_mss",
            "net.ipv4.route.min_pmtu",
            "net.ipv4.route.mtu_expires",
            "net.ipv6.route.min_adv_mss",
            "net.ipv6.route.mtu_expires",
            "net.ipv6.auto_flowlabels",
            "net.ipv6.flowlabel_consistency",
            "net.ipv6.flowlabel_reflect",
            "net.ipv6.flowlabel_state_ranges",
            "net.ipv6.seg6_flowlabel",
            "net.ipv4.fwmark_reflect",
            "net.ipv6.fwmark_reflect",
        ),
    ),
    SysctlGroup(
        "which way of several",
        (
            "net.ipv4.fib_multipath_hash_fields",
            "net.ipv4.fib_multipath_hash_policy",
            "net.ipv4.fib_multipath_use_neigh",
            "net.ipv6.fib_multipath_hash_fields",
            "net.ipv6.fib_multipath_hash_policy",
        ),
    ),
    SysctlGroup(
        "ICMP and multicast membership",
        (
            "net.ipv4.ping_group_range",
            "net.ipv4.icmp_echo_ignore_all",
            "net.ipv4.icmp_echo_ignore_broadcasts",
            "net.ipv4.icmp_errors_use_inbound_ifaddr",
            "net.ipv4.icmp_ratelimit",
            "net.ipv4.icmp_ratemask",
            "net.ipv6.icmp.echo_ignore_all",
            "net.ipv6.icmp.echo_ignore_anycast",
            "net.ipv6.icmp.echo_ignore_multicast",
            "net.ipv6.icmp.ratelimit",
            "net.ipv6.icmp.ratemask",
            "net.ipv6.anycast_src_echo_reply",
            "net.ipv4.igmp_link_local_mcast_reports",
            "net.ipv4.igmp_max_memberships",
            "net.ipv4.igmp_max_msf",
            "net.ipv4.igmp_qrv",
        ),
    ),
    SysctlGroup(
        "every interface of the pod: the kernel combines it with the interface's own value",
        (
            "net.ipv4.conf.all.accept_redirects",
            "net.ipv4.conf.all.arp_accept",
            "net.ipv4.conf.all.arp_announce",
            "net.ipv4.conf.all.arp_filter",
            "net.ipv4.conf.all.arp_ignore",
            "net.ipv4.conf.all.arp_notify",
            "net.ipv4.conf.all.ignore_routes_with_linkdown",
            "net.ipv4.conf.all.rp_filter",
            "net.ipv4.conf.all.secure_redirects",
            "net.ipv4.conf.all.send_redirects",
            "net.ipv4.conf.all.shared_media",
            "net.ipv4.conf.all.src_valid_mark",
            "net.ipv6.conf.all.accept_dad",
            "net.ipv6.conf.all.ignore_routes_with_linkdown",
            "net.ipv6.conf.all.keep_addr_on_down",
            "net.ipv6.conf.all.ndisc_notify",
            "net.ipv6.conf.all.proxy_ndp",
        ),
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
_OTHERS = "is not among the settings that a claim may change; docs/user/parameters.md lists them"


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

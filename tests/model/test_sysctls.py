"""The list of settings that a claim may write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.model.parameters.values import (
    REFUSED,
    VALUE_MAX_BYTES,
    build_sysctl_path,
    find_refusal,
    find_value_problem,
    is_per_interface,
)

KUBERNETES_SAFE = (
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
"""https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/, those of ``net``."""


@pytest.mark.parametrize("name", KUBERNETES_SAFE)
def test_what_kubernetes_calls_safe_is_allowed(name: str) -> None:
    assert find_refusal(name) == ""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.conf.IFNAME.rp_filter", "ipv4/conf/n.1/rp_filter"),
        ("net.ipv6.conf.IFNAME.use_tempaddr", "ipv6/conf/n.1/use_tempaddr"),
        ("net.ipv4.neigh.IFNAME.gc_stale_time", "ipv4/neigh/n.1/gc_stale_time"),
        ("net.ipv6.neigh.IFNAME.mcast_solicit", "ipv6/neigh/n.1/mcast_solicit"),
    ],
)
def test_settings_of_the_interface(name: str, path: str) -> None:
    assert (find_refusal(name), is_per_interface(name)) == ("", True)
    assert build_sysctl_path(name, "n.1") == path


def test_settings_of_the_namespace() -> None:
    assert not is_per_interface("net.ipv4.conf.all.rp_filter")
    assert build_sysctl_path("net.ipv6.icmp.ratelimit", "net1") == "ipv6/icmp/ratelimit"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("net.ipv6.conf.IFNAME.stable_secret", "secret"),
        ("net.ipv4.ip_forward", "interface.forwarding"),
        ("net.ipv6.conf.all.disable_ipv6", "interface.ipv6.enabled"),
        ("net.ipv4.conf.IFNAME.forwarding", "set interface.forwarding"),
        ("net.ipv6.conf.IFNAME.forwarding", "set interface.forwarding"),
        ("net.ipv4.conf.IFNAME.arp_ignore", "set interface.arpIgnore"),
        ("net.ipv4.conf.IFNAME.arp_announce", "set interface.arpAnnounce"),
        ("net.ipv6.conf.IFNAME.disable_ipv6", "set interface.ipv6.enabled"),
        ("net.ipv6.conf.IFNAME.accept_ra", "set interface.ipv6.acceptRA"),
        ("net.ipv4.tcp_mem", "whole node"),
        ("net.ipv4.tcp_congestion_control", "modules"),
        ("net.ipv4.conf.eth0.rp_filter", "write net.ipv4.conf.IFNAME.rp_filter"),
        ("net.ipv4.conf.eth0.100.rp_filter", "write net.ipv4.conf.IFNAME.rp_filter"),
        ("net.ipv4.conf.default.rp_filter", "IFNAME"),
        ("net.ipv4.conf.all.route_localnet", "not among"),
        ("net.netfilter.nf_conntrack_max", "not among"),
        ("net.core.rmem_max", "not among"),
        ("kernel.shmmax", "not among"),
        ("vm.overcommit_memory", "not among"),
        ("net.ipv4.conf.IFNAME", "not among"),
        ("net.ipv4.conf.IFNAME.a/../../b", "not among"),
        ("net/ipv4/tcp_syncookies", "not among"),
        ("net.ipv4.tcp_", "not among"),
        ("net.ipv4.tcp_syncookies\n", "not among"),
        ("net.ipv4.neigh.IFNAME.retrans_time", "retrans_time_ms"),
    ],
)
def test_others_are_refused_with_a_reason(name: str, word: str) -> None:
    assert word in find_refusal(name)


@given(st.text(max_size=40) | st.from_regex(r"net\.ipv[46]\.(conf|neigh)\.(IFNAME|all|.{1,6})\..{1,12}"))
def test_no_name_leaves_its_folder(name: str) -> None:
    if find_refusal(name):
        return
    path = build_sysctl_path(name, "net1")
    assert path.startswith(("core/", "ipv4/", "ipv6/"))
    assert not {"", ".", ".."} & set(path.split("/"))
    assert path.isascii()
    assert path.isprintable()


def test_whatever_is_refused_by_name_has_a_reason() -> None:
    assert all(find_refusal(name) == why != "" for name, why in REFUSED.items())


@pytest.mark.parametrize("value", [0, -1, 2**40, "1", "4096 131072 6291456", "1\t2", "x" * VALUE_MAX_BYTES])
def test_values(value: str | int) -> None:
    assert find_value_problem(value) == ""


@pytest.mark.parametrize("value", ["", " ", "1\n2", "1\0", "é", "\x7f", "x" * (VALUE_MAX_BYTES + 1)])
def test_values_that_are_refused(value: str) -> None:
    assert find_value_problem(value).startswith("must")

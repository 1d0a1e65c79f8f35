"""What an administrator may set on a link of a node, and what a tenant may do to it inside the pod.

As shell lines, one a setting, with ``{link}`` for its name: ``ip``, ``tc``, ``ethtool`` and ``/proc/sys`` set
and show them, none of our own code.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

_V4, _V6 = "/proc/sys/net/ipv4/conf/{link}", "/proc/sys/net/ipv6/conf/{link}"
_NEIGH4, _NEIGH6 = "/proc/sys/net/ipv4/neigh/{link}", "/proc/sys/net/ipv6/neigh/{link}"

ADDRESSES = (
    "ip addr add 10.1.0.2/24 brd + dev {link}\n"
    "ip addr add 10.1.0.3/24 dev {link} label {link}:web\n"
    "ip addr add 10.9.0.1/32 peer 10.9.0.2/32 dev {link}\n"
    "ip addr add 10.1.9.9/24 dev {link} valid_lft 7200 preferred_lft 3600\n"
    "ip addr add 10.2.0.2/24 dev {link} scope link noprefixroute\n"
    "ip addr add 10.3.0.2/24 dev {link} metric 77\n"
    "ip addr add 2001:db8:1::2/64 dev {link} nodad\n"
    "ip addr add 2001:db8:2::2/64 dev {link} nodad noprefixroute\n"
)

HOST_SETTINGS = {
    "nothing": "true",
    "mtu": "ip link set {link} mtu 9000",
    "mtu without IPv6": "ip link set {link} mtu 1000",
    "alias": "ip link set {link} alias 'rack 7, port 3'",
    "tx queue length": "ip link set {link} txqueuelen 333",
    "group": "ip link set {link} group 7",
    "mac": "ip link set {link} address 02:00:00:00:77:01",
    "promiscuous": "ip link set {link} promisc on",
    "all-multicast": "ip link set {link} allmulticast on",
    "no arp": "ip link set {link} arp off",
    "no multicast": "ip link set {link} multicast off",
    "alternative names": (
        "ip link property add dev {link} altname enp33s0f0np0\n"
        "ip link property add dev {link} altname a-name-that-is-longer-than-fifteen-bytes"
    ),
    "gso sizes": "ip link set {link} gso_max_size 32768 gso_max_segs 100",
    "large gso size": "ip link set {link} gso_max_size 131072",
    "gro size": "ip link set {link} gro_max_size 40000",
    "down": "ip link set {link} down",
    "down with addresses": "ip link set {link} down\n" + ADDRESSES,
    "token": "ip token set ::5:6 dev {link}",
    "token without routers": "ip token set ::5:6 dev {link}; echo 0 > " + _V6 + "/accept_ra",
    "token, forwarding": "ip token set ::5:6 dev {link}; echo 1 > " + _V6 + "/forwarding",
    "addresses": ADDRESSES,
    "routes": (
        ADDRESSES + "ip route add 10.50.0.0/16 via 10.1.0.1 src 10.1.0.3 metric 50 mtu 1300\n"
        "ip route add 10.51.0.0/16 dev {link} scope link\n"
        "ip route add 10.52.0.0/16 via 10.77.0.1 dev {link} onlink table 1000\n"
        "ip route add default via 10.1.0.1 dev {link} table 77\n"
        "ip route add 10.1.0.0/24 dev {link} proto kernel scope link src 10.1.0.3 table 77\n"
        "ip route add default via 2001:db8:1::1 dev {link} table 77\n"
        "ip route add 2001:db8:51::/48 dev {link} metric 77 table 99\n"
        "ip route add 2001:db8:52::/48 via 2001:db8:1::1"
    ),
    "neighbours": (
        "ip neigh add 10.1.0.9 lladdr 02:00:00:00:99:99 dev {link} nud permanent\n"
        "ip neigh add 2001:db8:1::9 lladdr 02:00:00:00:99:98 dev {link} nud permanent\n"
        "ip neigh add proxy 10.1.0.77 dev {link}\nip neigh add proxy 2001:db8:1::77 dev {link}"
    ),
    "rp_filter": f"echo 2 > {_V4}/rp_filter",
    "forwarding": f"echo 1 > {_V4}/forwarding; echo 1 > {_V6}/forwarding",
    "arp sysctls": f"echo 1 > {_V4}/arp_ignore; echo 2 > {_V4}/arp_announce; echo 1 > {_V4}/proxy_arp",
    "router advertisements": f"echo 2 > {_V6}/accept_ra; echo 1 > {_V6}/accept_ra_rt_info_max_plen",
    "duplicate detection": f"echo 2 > {_V6}/accept_dad; echo 3 > {_V6}/dad_transmits",
    "IPv6 disabled": f"echo 1 > {_V6}/disable_ipv6",
    "stable secret": (
        f"ip link set {{link}} down; echo 2001:db8::1 > {_V6}/stable_secret; ip link set {{link}} up"
    ),
    "secret, other addresses": f"echo 2001:db8::1 > {_V6}/stable_secret; echo 1 > {_V6}/addr_gen_mode",
    "neighbour times": (
        f"echo 12345 > {_NEIGH4}/base_reachable_time_ms; echo 77 > {_NEIGH4}/gc_stale_time\n"
        f"echo 2500 > {_NEIGH6}/retrans_time_ms; echo 70000 > {_NEIGH6}/unres_qlen_bytes"
    ),
    "htb": (
        "tc qdisc add dev {link} root handle 1: htb default 20\n"
        "tc class add dev {link} parent 1: classid 1:1 htb rate 100mbit\n"
        "tc class add dev {link} parent 1:1 classid 1:10 htb rate 10mbit ceil 20mbit prio 3\n"
        "tc class add dev {link} parent 1:1 classid 1:20 htb rate 30mbit burst 50k\n"
        "tc qdisc add dev {link} parent 1:10 handle 10: pfifo limit 77"
    ),
    "pfifo": "tc qdisc add dev {link} root handle 7: bfifo limit 100000",
    "clsact": "tc qdisc add dev {link} clsact",
    "offloads": "ethtool -K {link} tso off gso off rxvlan off gro on",
    "channels": "ethtool -L {link} rx 2 tx 2",
    "channels and classes": "ethtool -L {link} rx 2 tx 2\ntc qdisc replace dev {link} root handle 1: htb",
}
"""What each property may be, by name; every one of them comes back alone and with others."""

EXCLUSIVE = (
    {"mtu", "mtu without IPv6"},
    {"gso sizes", "large gso size"},
    {"down", "down with addresses", "addresses", "routes"},
    {"token", "token without routers", "token, forwarding", "no arp"},
    {"htb", "pfifo", "channels and classes"},
    {"stable secret", "secret, other addresses", "down", "down with addresses"},
    {"channels", "channels and classes"},
)
"""Of each group one at most makes sense on one link."""

WITHOUT_IPV6 = frozenset({"mtu without IPv6", "IPv6 disabled"})
NEEDS_IPV6 = frozenset(
    {
        "token", "token without routers", "token, forwarding", "addresses", "down with addresses", "routes",
        "neighbours", "forwarding", "router advertisements", "duplicate detection", "stable secret",
        "secret, other addresses", "neighbour times",
    }
)  # fmt: skip

VANDALISM = {
    "name": "ip link set {link} name mine; ip link set mine name {link}",
    "down": "ip link set {link} down",
    "mac": "ip link set {link} address 02:66:66:66:66:66",
    "mtu": "ip link set {link} mtu 1290",
    "tiny mtu": "ip link set {link} mtu 600",
    "huge mtu": "ip link set {link} mtu 65000",
    "alias": "ip link set {link} alias 'all mine'",
    "tx queue length": "ip link set {link} txqueuelen 5",
    "no queue": "ip link set {link} txqueuelen 0",
    "group": "ip link set {link} group 666",
    "promiscuous": "ip link set {link} promisc on",
    "not promiscuous": "ip link set {link} promisc off allmulticast off",
    "all-multicast": "ip link set {link} allmulticast on",
    "no arp": "ip link set {link} arp off",
    "no multicast": "ip link set {link} multicast off",
    "dynamic": "ip link set {link} dynamic on trailers on",
    "dormant": "ip link set {link} mode dormant",
    "broadcast": "ip link set {link} broadcast ff:ff:ff:00:00:00",
    "names of the node": (
        "ip link property add dev {link} altname eth3; ip link property add dev {link} altname uplink\n"
        "ip link property add dev {link} altname eth2"
    ),
    "other names": "ip link property add dev {link} altname all-mine",
    "no names": "ip link property del dev {link} altname enp33s0f0np0",
    "small sizes": "ip link set {link} gso_max_size 20000 gso_max_segs 7 gro_max_size 9000",
    "large sizes": "ip link set {link} gso_max_size 200000; ip link set {link} gro_max_size 200000",
    "token": "ip token set ::66:66 dev {link}",
    "addresses": (
        "ip addr add 10.66.0.1/24 dev {link}; ip addr add 2001:db8:66::1/64 dev {link}\n"
        "ip route add 10.67.0.0/16 via 10.66.0.2\n"
        "ip neigh add 10.66.0.9 lladdr 02:00:00:00:66:66 dev {link} nud permanent"
    ),
    "sysctls": (
        "for f in rp_filter forwarding arp_ignore proxy_arp accept_local promote_secondaries; do "
        f"echo 1 > {_V4}/$f; done\n"
        "for f in forwarding disable_ipv6 accept_ra proxy_ndp use_tempaddr keep_addr_on_down; do "
        f"echo 1 > {_V6}/$f; done\n"
        f"echo 2001:db8::66 > {_V6}/stable_secret; echo 7 > {_NEIGH4}/gc_stale_time"
    ),
    "qdisc": "tc qdisc replace dev {link} root handle 66: htb default 1; tc qdisc add dev {link} clsact",
    "offloads": "ethtool -K {link} tx off sg off rx off gro on",
    "more offloads": "ethtool -K {link} tso on gso on rxvlan on txvlan off gro off",
    "channels": "ethtool -L {link} rx 2 tx 1",
    "fewer channels": "ethtool -L {link} rx 1 tx 1",
    "bridge": "ip link add br66 type bridge; ip link set {link} master br66; ip link set br66 up",
    "links on top": "ip link add mv66 link {link} type macvlan; ip link set mv66 up",
}
"""What a container with CAP_NET_ADMIN can do to the link in its pod. Some of it is refused after other."""


def conflicts(name: str, others: Iterable[str]) -> bool:
    """Whether a host cannot have this setting beside the others."""
    beside = set(others)
    if any(name in group and beside & (group - {name}) for group in EXCLUSIVE):
        return True
    if name in WITHOUT_IPV6:
        return bool(beside & (NEEDS_IPV6 | WITHOUT_IPV6) - {name})
    return name in NEEDS_IPV6 and bool(beside & WITHOUT_IPV6)


def set_up(node: Namespace, link: str, *names: str) -> None:
    """Make the settings of these names on a link of the node; each must succeed."""
    for name in names:
        done = _shell(node, "set -e\n" + HOST_SETTINGS[name], link)
        assert done.returncode == 0, f"{name}: {done.stderr}"
    if "stable secret" in names:
        wait_until(lambda: "stable-privacy" in str(node.read("addr", "show", "dev", link)), "IPv6 is there")


def vandalise(pod: Namespace, link: str, names: Iterable[str]) -> None:
    """Let a tenant do all this; the kernel may refuse some of it."""
    _shell(pod, "\n".join(f"({VANDALISM[name]})" for name in names), link)


def _shell(namespace: Namespace, script: str, link: str) -> subprocess.CompletedProcess[str]:
    text = script.replace("{link}", link)
    return namespace.run(lambda: subprocess.run(["sh", "-c", text], capture_output=True, text=True))

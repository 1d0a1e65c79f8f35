"""Random configs that a given link can have: every parameter, and what they say to each other kept right.

For property tests: the planner's, and those that attach to real links. What the machine's kernel lacks is
left out with ``without``. Addresses are of documentation and benchmarking (RFC 5737, RFC 2544) or ULAs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_interface, ip_network
from typing import Any, TypeVar

from hypothesis import strategies as st

from dranet.model.facts import Address
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import LinkState

T = TypeVar("T")
Json = dict[str, Any]

SUBNETS = {4: ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.128/25"), 6: ("fd00:a::/64", "fd00:b::/64")}
"""Of the link's own addresses; routers have the first ten numbers in them."""
DEFAULTS = ("0.0.0.0/0", "::/0")
"""Always with a metric: the pod network has such routes too."""
DESTINATIONS = {
    4: (DEFAULTS[0], *(f"198.18.{number}.0/24" for number in range(12))),
    6: (DEFAULTS[1], *(f"fd77:{number}::/48" for number in range(12))),
}
FAR_ROUTERS = {4: tuple(f"198.19.0.{n}" for n in range(1, 9)), 6: tuple(f"fd99::{n}" for n in range(1, 9))}
"""In no subnet of the link: reachable with ``onlink`` only."""

_ANY_LINK = ("", "net1", "rail-0", "net1.100", "a", "x" * 15)
_LINK_SYSCTLS: Mapping[str, tuple[object, ...]] = {
    "net.ipv4.conf.IFNAME.rp_filter": (0, 1, 2),
    "net.ipv4.conf.IFNAME.accept_local": (0, 1),
    "net.ipv4.conf.IFNAME.arp_notify": (0, 1),
    "net.ipv4.neigh.IFNAME.gc_stale_time": (30, "90"),
    "net.ipv6.conf.IFNAME.hop_limit": (32, 255),
    "net.ipv6.conf.IFNAME.use_tempaddr": (0, 2),
    "net.ipv6.conf.IFNAME.accept_dad": (0, 1),
    "net.ipv6.neigh.IFNAME.base_reachable_time_ms": (20000, 45000),
}
_POD_SYSCTLS: Mapping[str, tuple[object, ...]] = {
    "net.core.somaxconn": (128, 8192),
    "net.ipv4.tcp_mtu_probing": (0, 1, 2),
    "net.ipv4.tcp_rmem": ("4096 131072 6291456", "4096 65536 1048576"),
    "net.ipv4.ip_local_port_range": ("32768 60999", "20000 60999"),
    "net.ipv4.ping_group_range": ("0 2147483647",),
    "net.ipv4.conf.all.rp_filter": (0, 2),
    "net.ipv6.bindv6only": (0, 1),
}


def valid_configs(
    host: LinkState,
    *,
    without: Collection[str] = (),
    types: Sequence[str] = ("passthrough", "macvlan", "ipvlan", "vlan"),
    other_links: Sequence[str] = (),
    dhcp: bool = False,
    rdma: bool = False,
    cpus: Sequence[str] = (),
    most_mtu: int = 9000,
) -> st.SearchStrategy[NetworkConfig]:
    """Configs that ``plan_device`` takes for a NIC whose link is in this state.

    Args:
        host: the link that moves, or the parent.
        without: JSON paths that are left alone, with all below them: ``interface.vrf``, ``rules``. Offloads
            of one device may depend on each other, which nobody here knows: ``ethtool.features``.
        types: those of ``interface.type``; ``passthrough`` also stands for none at all.
        other_links: what multipath routes and rules may name beside the device's own link.
        dhcp: some ask for DHCP; the caller has a lease for those.
        rdma: the device has RDMA.
        cpus: which of ``irq``, ``xps`` and ``rps`` it can have of near CPUs; the caller has found them out.
        most_mtu: the largest MTU that the device takes.
    """
    return valid_parameters(
        host,
        without=without,
        types=types,
        other_links=other_links,
        dhcp=dhcp,
        rdma=rdma,
        cpus=cpus,
        most_mtu=most_mtu,
    ).map(NetworkConfig.model_validate)


@st.composite
def valid_parameters(
    draw: st.DrawFn,
    host: LinkState,
    *,
    without: Collection[str] = (),
    types: Sequence[str] = ("passthrough", "macvlan", "ipvlan", "vlan"),
    other_links: Sequence[str] = (),
    dhcp: bool = False,
    rdma: bool = False,
    cpus: Sequence[str] = (),
    most_mtu: int = 9000,
) -> Json:
    """As :func:`valid_configs`, as the JSON that a claim would carry."""
    maker = _Maker(draw, host, frozenset(without), tuple(other_links))
    return maker.make(types, dhcp=dhcp, rdma=rdma, cpus=cpus, most_mtu=most_mtu)


class _Maker:
    """One config, drawn part by part; later parts look at what the earlier ones say."""

    def __init__(
        self, draw: st.DrawFn, host: LinkState, without: frozenset[str], other_links: tuple[str, ...]
    ) -> None:
        self._draw = draw
        self._host = host
        self._without = without
        self._other_links = other_links
        self._interface: Json = {}
        self._mac_bytes = (len(host.mac) + 1) // 3 or 6

    def make(
        self, types: Sequence[str], *, dhcp: bool, rdma: bool, cpus: Sequence[str], most_mtu: int
    ) -> Json:
        self._make_type(types)
        self._maybe("interface.name", st.sampled_from(_ANY_LINK))
        self._make_mtu(most_mtu)
        self._make_ipv6()
        self._make_addresses(dhcp)
        self._make_mac()
        self._make_queues()
        self._make_behaviour()
        self._make_token()
        self._make_vrf()
        self._make_rates()
        config: Json = {"interface": self._interface}
        config["routes"] = self._make_routes()
        config["rules"] = self._make_rules()
        config["neighbors"] = self._make_neighbours()
        config["ethtool"] = self._make_ethtool()
        config["sysctls"] = self._make_sysctls()
        config["rdma"] = self._make_rdma() if rdma and self._moves else {}
        config["cpuLocality"] = self._make_cpu_locality(cpus)
        return {name: value for name, value in config.items() if value}

    # --- what the parts ask ----------------------------------------------------------------------------

    def _allows(self, path: str) -> bool:
        parts = path.split(".")
        return not any(".".join(parts[: n + 1]) in self._without for n in range(len(parts)))

    def _chance(self, path: str) -> bool:
        return self._allows(path) and bool(self._draw(st.booleans(), label=path))

    def _pick(self, values: Sequence[T]) -> T:
        return self._draw(st.sampled_from(values))

    def _number(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))

    def _maybe(self, path: str, values: st.SearchStrategy[Any]) -> None:
        """A field of ``interface``, perhaps."""
        if self._chance(path):
            self._interface[path.rpartition(".")[2]] = self._draw(values)

    def _some(self, path: str, most: int) -> range:
        return range(self._number(0, most) if self._chance(path) else 0)

    @property
    def _moves(self) -> bool:
        return self._interface.get("type") in (None, "passthrough")

    @property
    def _ifname(self) -> str:
        return self._interface.get("name") or self._host.ifname

    @property
    def _has_ipv6(self) -> bool:
        """Something of IPv6 may be asked for."""
        is_on = self._interface.get("ipv6", {}).get("enabled") is not False
        return is_on and self._interface.get("mtu", self._host.mtu) >= 1280

    def _versions(self) -> list[int]:
        return [4, 6] if self._has_ipv6 else [4]

    # --- the interface ---------------------------------------------------------------------------------

    def _make_type(self, types: Sequence[str]) -> None:
        kinds = [kind for kind in types if kind == "passthrough" or self._allows(f"interface.{kind}")]
        kind = self._pick(kinds)
        if kind != "passthrough" or self._chance("interface.type"):
            self._interface["type"] = kind
        if kind == "macvlan" and self._chance("interface.macvlan"):
            self._interface[kind] = {"mode": self._pick(("bridge", "private", "vepa"))}
        elif kind == "ipvlan" and self._chance("interface.ipvlan"):
            flag = self._pick(("bridge", "private", "vepa"))
            self._interface[kind] = {"mode": self._pick(("l2", "l3", "l3s")), "flag": flag}
        elif kind == "vlan":
            protocol = self._pick(("802.1Q", "802.1ad"))
            self._interface[kind] = {"id": self._number(1, 4094), "protocol": protocol}

    def _make_mtu(self, most: int) -> None:
        """Small ones take IPv6 off the link, so they are only for links that keep no IPv6 address."""
        keeps_ipv6 = self._moves and any(":" in address.cidr for address in self._host.addresses)
        least = 1280 if keeps_ipv6 else 576
        most = most if self._moves else min(most, self._host.mtu)
        if least <= most:
            self._maybe("interface.mtu", st.integers(least, most))

    def _make_ipv6(self) -> None:
        if not self._allows("interface.ipv6"):
            return
        ipv6: Json = {}
        if self._chance("interface.ipv6.enabled"):
            ipv6["enabled"] = self._has_ipv6 and self._pick((True, False))
        self._interface["ipv6"] = ipv6
        if self._has_ipv6 and self._chance("interface.ipv6.acceptRA"):
            ipv6["acceptRA"] = self._pick((0, 1, 2))
        if self._has_ipv6 and self._chance("interface.ipv6.duplicateAddressDetection"):
            ipv6["duplicateAddressDetection"] = self._pick((True, False))

    def _make_addresses(self, dhcp: bool) -> None:
        is_leased = dhcp and self._interface.get("type") in (None, "passthrough", "macvlan")
        if is_leased and self._mac_bytes == 6 and self._chance("interface.dhcp"):
            self._interface["dhcp"] = True
        elif self._chance("interface.addresses"):
            wanted = self._draw(
                st.sets(st.tuples(st.sampled_from(self._versions()), st.integers(0, 5)), max_size=5)
            )
            self._interface["addresses"] = [self._address(*one) for one in sorted(wanted)]

    def _address(self, version: int, number: int) -> str:
        subnets = SUBNETS[version]
        network = ip_network(subnets[number % len(subnets)])
        return f"{network[20 + number]}/{self._pick((network.prefixlen, network.max_prefixlen))}"

    def _make_mac(self) -> None:
        if self._interface.get("type") != "ipvlan" and self._chance("interface.hardwareAddr"):
            self._interface["hardwareAddr"] = self._mac()

    def _mac(self) -> str:
        """None that the host's link has, and locally administered."""
        tail = self._draw(st.binary(min_size=self._mac_bytes - 2, max_size=self._mac_bytes - 2))
        mac = (b"\x06\xdd" + tail).hex(":")
        return mac if mac != self._host.mac else (b"\x06\xde" + tail).hex(":")

    def _make_queues(self) -> None:
        self._maybe("interface.txQueueLength", st.integers(0, 20000))
        for name in ("gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize"):
            self._maybe(f"interface.{name}", st.integers(4096, 65536))

    def _make_behaviour(self) -> None:
        self._maybe("interface.disableEbpfPrograms", st.booleans() if self._moves else st.just(False))
        self._maybe("interface.forwarding", st.booleans())
        self._maybe("interface.inheritRouting", st.booleans())
        self._maybe("interface.arpIgnore", st.sampled_from((0, 1, 2, 3, 8)))
        self._maybe("interface.arpAnnounce", st.sampled_from((0, 1, 2)))

    def _make_token(self) -> None:
        ipv6, forwards = self._interface.get("ipv6", {}), self._interface.get("forwarding")
        hears = self._has_ipv6 and ipv6.get("acceptRA") in ((2,) if forwards else (None, 1, 2))
        is_l3 = self._interface.get("ipvlan", {}).get("mode", "l2") != "l2"
        if "ipv6" in self._interface and hears and not is_l3 and self._chance("interface.ipv6.token"):
            ipv6["token"] = f"::{self._number(1, 0xFFFF):x}"

    def _make_vrf(self) -> None:
        if self._chance("interface.vrf"):
            vrf: Json = {"name": self._pick(("vrf-rail0", "blue"))}
            if self._chance("interface.vrf.table"):
                vrf["table"] = self._pick((1, 1100, 2**32 - 1))
            self._interface["vrf"] = vrf

    def _make_rates(self) -> None:
        limits: Json = {}
        for direction in ("egress", "ingress"):
            if self._chance(f"interface.rateLimit.{direction}"):
                limits[direction] = {"rate": self._pick((8000, "1.5M", "10G", 123456789))}
                if self._chance(f"interface.rateLimit.{direction}.burst"):
                    limits[direction]["burst"] = self._pick((65536, "1Mi"))
        if limits:
            self._interface["rateLimit"] = limits

    # --- routes, rules, neighbours ---------------------------------------------------------------------

    def _own_cidrs(self, version: int) -> list[str]:
        """Addresses that the link will have for certain."""
        if self._interface.get("dhcp"):
            return []
        found = self._interface.get("addresses")
        if found is None:
            found = [a.cidr for a in self._host.addresses if _is_plain(a)] if self._moves else []
        return [cidr for cidr in found if (":" in cidr) == (version == 6)]

    def _near_routers(self, version: int) -> list[str]:
        """Neighbours by the link's subnets, none of them the link itself."""
        interfaces = [ip_interface(cidr) for cidr in self._own_cidrs(version)]
        of_host = [ip_interface(address.cidr) for address in self._host.addresses]
        own = {interface.ip for interface in (*interfaces, *of_host)}
        networks = dict.fromkeys(i.network for i in interfaces if i.network.num_addresses > 16)
        return [str(network[n]) for network in networks for n in range(1, 9) if network[n] not in own]

    def _make_routes(self) -> list[Json]:
        found: dict[tuple[str, object, object], Json] = {}
        for _ in self._some("routes", 6):
            route = self._make_route(self._pick(self._versions()))
            found.setdefault((route["destination"], self._table_of(route), route.get("metric") or 0), route)
        return list(found.values())

    def _table_of(self, route: Json) -> object:
        vrf = self._interface.get("vrf")
        return "vrf" if vrf else route.get("table") or 254

    def _make_route(self, version: int) -> Json:
        route: Json = {"destination": self._pick(DESTINATIONS[version])}
        near = self._near_routers(version)
        ways = ["direct", "onlink", "multipath"] + (["router"] * 3 if near else [])
        way = self._pick(ways)
        if way == "direct":
            route["scope"] = 253
        elif way == "router":
            route["gateway"] = self._pick(near)
        elif way == "onlink":
            route |= {"gateway": self._pick(FAR_ROUTERS[version]), "onlink": True}
        else:
            route["nextHops"] = self._make_next_hops(version, near)
        self._add_route_details(route, version)
        return route

    def _make_next_hops(self, version: int, near: Sequence[str]) -> list[Json]:
        routers = [*near, *FAR_ROUTERS[version]]
        chosen = self._draw(st.lists(st.sampled_from(routers), min_size=1, max_size=4, unique=True))
        return [self._make_next_hop(router, router in near) for router in chosen]

    def _make_next_hop(self, router: str, is_near: bool) -> Json:
        """By another link only to a router that is not known to be on this one."""
        hop: Json = {"gateway": router} if is_near else {"gateway": router, "onlink": True}
        ifname = self._pick(["", self._ifname, *([] if is_near else self._other_links)])
        if ifname:
            hop["interface"] = ifname
        if self._draw(st.booleans()):
            hop["weight"] = self._number(1, 256)
        return hop

    def _add_route_details(self, route: Json, version: int) -> None:
        sources = [cidr.partition("/")[0] for cidr in self._own_cidrs(version)]
        checked = self._interface.get("ipv6", {}).get("duplicateAddressDetection") and version == 6
        if sources and not checked and self._chance("routes.source"):
            route["source"] = self._pick(sources)
        if "interface.vrf" not in self._without and self._interface.get("vrf"):
            tables: tuple[int, ...] = (0, self._interface["vrf"].get("table", 0))
        else:
            tables = (0, 254, 100, 2**32 - 1)
        if self._chance("routes.table"):
            route["table"] = self._pick(tables)
        is_default = route["destination"] in DEFAULTS
        if is_default or self._chance("routes.metric"):
            route["metric"] = self._pick((1, 50, 2**31) if is_default else (0, 1, 50, 2**31))
        if self._chance("routes.mtu"):
            route["mtu"] = self._number(1280, 1500)

    def _make_rules(self) -> list[Json]:
        if self._interface.get("vrf"):
            return []
        return [self._make_rule() for _ in self._some("rules", 4)]

    def _make_rule(self) -> Json:
        rule: Json = {}
        version = self._pick(self._versions())
        if self._chance("rules.priority"):
            rule["priority"] = self._pick((0, 1, 100, 30000))
        if self._chance("rules.table"):
            rule["table"] = self._pick((0, 100, 254, 2**32 - 1))
        for name in ("source", "destination"):
            if self._chance(f"rules.{name}"):
                rule[name] = self._pick(DESTINATIONS[version])
        if self._chance("rules.mark"):
            rule["mark"] = self._pick((1, "0x10", 2**32 - 1))
            if self._chance("rules.mask"):
                rule["mask"] = self._pick((255, "0xff00"))
        for name in ("inputInterface", "outputInterface"):
            if self._chance(f"rules.{name}"):
                rule[name] = self._pick([self._ifname, *self._other_links])
        return rule

    def _make_neighbours(self) -> list[Json]:
        found: dict[str, Json] = {}
        for number in self._some("neighbors", 4):
            router = FAR_ROUTERS[self._pick(self._versions())][number]
            found[router] = {"destination": router, "hardwareAddr": self._mac()}
        return list(found.values())

    # --- the device and the kernel ---------------------------------------------------------------------

    def _make_ethtool(self) -> Json:
        """Names and numbers that the device has. Of a link on top of it, nothing can be known beforehand."""
        if not self._moves or not self._allows("ethtool"):
            return {}
        state = self._host.ethtool
        parts = {
            "features": self._switches("features", state.features),
            "privateFlags": self._switches("privateFlags", state.private_flags),
            "rings": self._numbers("rings", state.rings, 1),
            "channels": self._numbers("channels", state.channels, 1),
            "coalesce": self._numbers("coalesce", state.coalesce, 0),
        }
        return {name: part for name, part in parts.items() if part}

    def _switches(self, part: str, present: Mapping[str, bool]) -> dict[str, bool]:
        if not present or not self._chance(f"ethtool.{part}"):
            return {}
        names = st.sampled_from(sorted(present))
        return self._draw(st.dictionaries(names, st.booleans(), max_size=4))

    def _numbers(self, part: str, present: Mapping[str, int], least: int) -> Json:
        found: Json = {}
        for name in sorted(present):
            if self._chance(f"ethtool.{part}.{_camel(name)}"):
                most = self._host.ethtool.maxima.get(f"{part}.{name}", max(1, present[name]))
                found[_camel(name)] = self._number(least, most) if most >= least else 0
                if name.startswith("adaptive"):
                    found[_camel(name)] = self._draw(st.booleans())
        return {name: value for name, value in found.items() if not (part != "coalesce" and value == 0)}

    def _make_sysctls(self) -> Json:
        names = [name for name in _LINK_SYSCTLS if self._is_possible(name)] + list(_POD_SYSCTLS)
        chosen = self._draw(st.sets(st.sampled_from(names), max_size=5)) if self._chance("sysctls") else set()
        table = {**_LINK_SYSCTLS, **_POD_SYSCTLS}
        return {name: self._pick(table[name]) for name in sorted(chosen)}

    def _is_possible(self, name: str) -> bool:
        """Set by nothing else, and known to the kernel."""
        if name.startswith("net.ipv6") and self._interface.get("mtu", self._host.mtu) < 1280:
            return False
        ipv6 = self._interface.get("ipv6", {})
        if name.endswith(".accept_dad") and "duplicateAddressDetection" in ipv6:
            return False
        _, family, kind, _, key = name.split(".")
        known = self._host.sysctls
        return not known or f"{family}/{kind}/{key}" in known

    def _make_rdma(self) -> Json:
        rdma: Json = {}
        if self._chance("rdma.memlock"):
            rdma["memlock"] = self._pick(("unlimited", 0, "64Mi"))
        if self._chance("rdma.managementDevices"):
            rdma["managementDevices"] = self._draw(st.booleans())
        return rdma

    def _make_cpu_locality(self, names: Sequence[str]) -> Json:
        """Of a link on top of the device: what is not asked for."""
        wishes = (True, False) if self._moves else (False,)
        return {name: self._pick(wishes) for name in names if self._chance(f"cpuLocality.{name}")}


def _is_plain(address: Address) -> bool:
    """Global, and the kernel makes its subnet a route: neither a privacy address nor ``NOPREFIXROUTE``."""
    return address.scope == 0 and not address.peer and not address.flags & 0x309


def _camel(name: str) -> str:
    """``rx_max_frames`` -> ``rxMaxFrames``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)

"""Whatever a valid config says comes into the plan, once, in an order that the kernel accepts."""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.claims.plan.link import plan_rdma_access
from dranet.errors import ClaimError
from dranet.model import plan as steps
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.cpus import CpuLayout, CpuSurroundings
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, CharDevice, Neighbour, Route
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import (
    AddRule,
    AttachPlan,
    DhcpLease,
    EthtoolState,
    LinkState,
    PreparedClaim,
    PreparedDevice,
)
from dranet.store.record_folder import decode_record, encode_record
from tests.claims.configs import valid_configs

NIC = Device(
    "pci-0000-1a-00-0", DeviceKind.NIC, ifname="eth1", pci_address="0000:1a:00.0", rdma_device="mlx5_0"
)
ETHTOOL = EthtoolState(
    features={"rx-gro": True, "tx-tcp-segmentation": True, "tx-tcp6-segmentation": False, "rx-all": False},
    private_flags={"rx_cqe_compress": False, "link-down-on-close": True},
    rings={"rx": 1024, "tx": 1024, "rx_jumbo": 128},
    channels={"combined": 8, "other": 1},
    coalesce={"rx_usecs": 8, "tx_usecs": 8, "rx_max_frames": 64, "adaptive_rx": 1, "adaptive_tx": 0},
    maxima={"rings.rx": 8192, "rings.tx": 4096, "channels.combined": 63},
)
SYSCTLS = {
    f"{family}/{kind}/{name}": "0"
    for family in ("ipv4", "ipv6")
    for kind, names in (
        ("conf", ("rp_filter", "accept_local", "arp_notify", "hop_limit", "use_tempaddr", "accept_dad")),
        ("neigh", ("gc_stale_time", "base_reachable_time_ms")),
    )
    for name in names
}
POLICY_TABLE = 70001
"""Of the host; no config names it."""
BARE = LinkState(5, "eth1", "02:00:00:00:00:01", 9000, up=True, ethtool=ETHTOOL, sysctls=SYSCTLS)
LIVED_IN = replace(
    BARE,
    mtu=1500,
    addresses=(
        Address("10.0.0.5/24", flags=0x80, label="eth1"),
        Address("10.0.0.6/24", flags=0x81),
        Address("169.254.7.7/16", scope=253),
        Address("fd00:5::5/64", flags=0x80, valid_seconds=600, preferred_seconds=300),
        Address("fd00:5::6/64", flags=0x01),
        Address("fe80::1/64", scope=253),
    ),
    routes=(
        Route("198.18.3.0/24", gateway="10.0.0.1", protocol=3, ifindex=5),
        Route("198.18.4.0/24", scope=253, protocol=3, table=100, ifindex=5),
        Route("fd77:3::/48", gateway="fe80::9", protocol=3, metric=1024, ifindex=5),
        Route("0.0.0.0/0", gateway="10.0.0.1", protocol=16, ifindex=5),
        Route("0.0.0.0/0", gateway="10.0.0.1", protocol=16, ifindex=5, table=POLICY_TABLE),
        Route("10.0.0.0/24", scope=253, protocol=2, ifindex=5, table=POLICY_TABLE),
        Route("::/0", gateway="fd00:5::1", protocol=9, ifindex=5, table=POLICY_TABLE),
    ),
    neighbours=(Neighbour("10.0.0.99", "02:00:00:00:99:99"), Neighbour("fd00:5::99", "02:00:00:00:99:99")),
)
HOST_RULES = (
    AddRule(4, table=255),
    AddRule(4, table=POLICY_TABLE, priority=500, source="10.0.0.5/32"),
    AddRule(6, table=POLICY_TABLE, priority=500, source="fd00:5::/64"),
    AddRule(4, table=POLICY_TABLE, priority=501, input_interface="eth1"),
    AddRule(4, table=POLICY_TABLE, priority=502, mark=1, mask=1),
    AddRule(4, table=254, priority=32766),
)
INFINIBAND = replace(BARE, ifname="ib0", mac=":".join(["80"] * 20), mtu=2044)
POOR = LinkState(7, "veth7", "02:00:00:00:00:07", 1000, up=False)
HOSTS = (BARE, LIVED_IN, INFINIBAND, POOR)
LEASE = DhcpLease(
    address="172.16.4.9/20",
    server="172.16.0.1",
    server_mac="02:00:00:00:00:aa",
    client_mac="02:00:00:00:00:01",
    obtained_at=1.7e9,
    lease_seconds=3600,
    renew_seconds=1800,
    rebind_seconds=3150,
    routers=("172.16.0.1",),
    mtu=1400,
)
TYPES = ("passthrough", "macvlan", "ipvlan", "vlan")

CPUS = CpuSurroundings(CpuLayout((0, 1, 2, 3), (2,)), {"30": "0-3"}, {"tx-0/xps_cpus": "0"})
NODES = (CPUS, replace(CPUS, irqs={}), replace(CPUS, balancer="irqbalance"), CpuSurroundings(CpuLayout()))
"""The first has near CPUs for everybody."""
WISHES = ("irq", "xps", "rps")
FIELD_PATH = re.compile(r"(interface|routes|rules|neighbors|ethtool|sysctls|rdma|cpuLocality)[]\w.\"[-]*: ")

anything = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A config is many small draws."""

ORDER = (
    (steps.MoveLink, steps.CreateLink),
    (steps.SetEthtool,),
    "early sysctl",
    (steps.SetLink,),
    (steps.JoinVrf,),
    (steps.SetToken,),
    (steps.RemovePrograms,),
    (steps.LimitRate,),
    (steps.AddAddress,),
    (steps.SetUp,),
    (steps.SetCpuLocality,),
    (steps.AddNeighbour,),
    "on-link route",
    "route through a gateway",
    "multipath route",
    (steps.AddRule,),
    "late sysctl",
    (steps.MoveRdma,),
)


def rank(step: steps.Step) -> int:
    """The place of a step in the order that the kernel needs."""
    match step:
        case steps.SetSysctl():
            return ORDER.index("early sysctl" if step.early else "late sysctl")
        case steps.AddRoute() if step.next_hops:
            return ORDER.index("multipath route")
        case steps.AddRoute():
            return ORDER.index("route through a gateway" if step.route.gateway else "on-link route")
        case _:
            return next(
                i for i, kinds in enumerate(ORDER) if isinstance(kinds, tuple) and type(step) in kinds
            )


def plan(host: LinkState, config: NetworkConfig, *, exclusive: bool = False) -> AttachPlan:
    lease = LEASE if config.interface.dhcp else None
    return plan_device(
        NIC,
        host,
        config,
        rdma_exclusive=exclusive,
        lease=lease,
        mac_seed="uid/nic",
        cpus=CPUS,
        host_rules=HOST_RULES,
    )


def hosts_with_configs() -> st.SearchStrategy[tuple[LinkState, NetworkConfig]]:
    """A link with a config that it can have."""

    def configs(host: LinkState) -> st.SearchStrategy[tuple[LinkState, NetworkConfig]]:
        types = TYPES if len(host.mac) == 17 else ("passthrough",)
        drawn = valid_configs(
            host, types=types, other_links=("net2", "eth0"), dhcp=True, rdma=True, cpus=WISHES
        )
        return drawn.map(lambda config: (host, config))

    return st.sampled_from(HOSTS).flatmap(configs)


@anything
@given(hosts_with_configs(), st.booleans())
def test_a_valid_config_gives_a_plan_in_legal_order(
    pair: tuple[LinkState, NetworkConfig], exclusive: bool
) -> None:
    made = plan(*pair, exclusive=exclusive)

    ranks = [rank(step) for step in made.steps]
    assert ranks == sorted(ranks)
    assert sum(isinstance(step, steps.SetUp) for step in made.steps) == 1
    assert (made.host is None) == isinstance(made.steps[0], steps.CreateLink)


@anything
@given(hosts_with_configs())
def test_each_configured_value_is_in_the_plan_once(pair: tuple[LinkState, NetworkConfig]) -> None:
    host, config = pair
    made = plan(host, config)

    asked, planned = Counter(asks(config, host)), Counter(says(made, inherited=host))
    assert asked == planned


@anything
@given(hosts_with_configs(), st.booleans())
def test_what_is_prepared_survives_the_store(pair: tuple[LinkState, NetworkConfig], exclusive: bool) -> None:
    nodes = (CharDevice("/dev/infiniband/uverbs0", 231, 192),)
    device = PreparedDevice(
        request="nic",
        pool="node",
        device=replace(NIC, char_devices=nodes),
        plan=plan(*pair, exclusive=exclusive),
        rdma=plan_rdma_access(NIC, pair[1], nodes, exclusive=exclusive),
    )
    record = PreparedClaim(ClaimRef("ns", "c", "u"), PodRef("ns", "p", "v"), (device,), boot_id="boot")
    assert decode_record(PreparedClaim, encode_record(record)) == record


@anything
@given(hosts_with_configs(), st.sampled_from(HOSTS), st.booleans(), st.booleans(), st.sampled_from(NODES))
def test_a_config_for_another_link_gives_a_plan_or_names_the_field(
    pair: tuple[LinkState, NetworkConfig],
    other: LinkState,
    exclusive: bool,
    has_rdma: bool,
    cpus: CpuSurroundings,
) -> None:
    device = NIC if has_rdma else replace(NIC, rdma_device="")
    lease = LEASE if pair[1].interface.dhcp else None
    try:
        made = plan_device(
            device,
            other,
            pair[1],
            rdma_exclusive=exclusive,
            lease=lease,
            cpus=cpus,
            host_rules=HOST_RULES,
        )
    except ClaimError as error:
        refusal, ranks = error.message, []
    else:
        refusal, ranks = "", [rank(step) for step in made.steps]
    assert ranks == sorted(ranks)
    assert not refusal or FIELD_PATH.match(refusal.removeprefix(f"device {device.name}: ")), refusal


@anything
@given(hosts_with_configs(), st.sampled_from([DeviceKind.RDMA, DeviceKind.GPU]))
def test_a_device_without_a_link_takes_nothing_that_needs_one(
    pair: tuple[LinkState, NetworkConfig], kind: DeviceKind
) -> None:
    rdma_device = "mlx5_1" if kind is DeviceKind.RDMA else ""
    device = Device("hca", kind, rdma_device=rdma_device, pci_address="0000:1b:00.0")
    config = pair[1]
    if config.needs_link or (kind is DeviceKind.GPU and not config.is_empty):
        with pytest.raises(ClaimError):
            plan_device(device, None, config, rdma_exclusive=True, cpus=CPUS)
    else:
        made = plan_device(device, None, config, rdma_exclusive=True, cpus=CPUS)
        possible = steps.SetSysctl | steps.MoveRdma | steps.SetCpuLocality
        assert all(isinstance(step, possible) for step in made.steps)


# --- an independent reading of configs and plans: each configured value as one fact -----------------------


def asks(config: NetworkConfig, host: LinkState) -> list[tuple[Any, ...]]:
    interface = config.interface
    facts: list[tuple[Any, ...]] = []
    for name in (
        "mtu",
        "tx_queue_length",
        "gso_max_size",
        "gro_max_size",
        "gso_ipv4_max_size",
        "gro_ipv4_max_size",
    ):
        facts += [(name, getattr(interface, name))] * (getattr(interface, name) is not None)
    facts += [("mac", interface.hardware_addr)] * bool(interface.hardware_addr)
    facts += [("address", cidr) for cidr in interface.addresses or ()]
    facts += [("vrf", interface.vrf.name)] * bool(interface.vrf) if interface.vrf else []
    facts += [("programs",)] * bool(interface.disable_ebpf_programs)
    facts += [("token", interface.ipv6.token)] * bool(interface.ipv6.token)
    facts += rate_facts(config) + route_facts(config) + ethtool_facts(config) + sysctl_facts(config, host)
    facts += [("neighbour", n.destination, n.hardware_addr) for n in config.neighbors]
    facts += [("near", name, (0, 1, 3)) for name in WISHES if getattr(config.cpu_locality, name)]
    rules = {(family, rule) for rule in config.rules for family in rule.families}
    same = {
        (
            f,
            r.table or 254,
            r.priority or 0,
            r.source,
            r.destination,
            r.mark,
            r.mask,
            r.input_interface,
            r.output_interface,
        )
        for f, r in rules
    }
    return facts + [("rule", *rule) for rule in same]


def rate_facts(config: NetworkConfig) -> list[tuple[Any, ...]]:
    limits = config.interface.rate_limit
    return [
        (direction, limit.rate, limit.burst)
        for direction, limit in (("egress", limits.egress), ("ingress", limits.ingress))
        if limit
    ]


def route_facts(config: NetworkConfig) -> list[tuple[Any, ...]]:
    return [
        (
            *("route", r.destination, r.gateway, r.source, r.scope or 0, r.metric or 0, r.mtu or 0),
            bool(r.onlink),
            *((hop.gateway, hop.weight, hop.onlink) for hop in r.next_hops),
        )
        for r in config.routes
    ]


def ethtool_facts(config: NetworkConfig) -> list[tuple[Any, ...]]:
    ethtool = config.ethtool
    parts = {"rings": ethtool.rings, "channels": ethtool.channels, "coalesce": ethtool.coalesce}
    found: list[tuple[Any, ...]] = [("features", *item) for item in ethtool.features.items()]
    found += [("private_flags", *item) for item in ethtool.private_flags.items()]
    for part, values in parts.items():
        found += [(part, name, int(value)) for name, value in values if value is not None]
    return found


def sysctl_facts(config: NetworkConfig, host: LinkState) -> list[tuple[Any, ...]]:
    """By the last part of the name: no interface name is looked at here, the table tests do that."""
    interface, ipv6 = config.interface, config.interface.ipv6
    has_ipv6 = (interface.mtu or host.mtu) >= 1280
    found = [("sysctl", name.rpartition(".")[2], str(value)) for name, value in config.sysctls.items()]
    on: list[tuple[str, int | None]] = [("forwarding", interface.forwarding)] * (2 if has_ipv6 else 1)
    on += [("arp_ignore", interface.arp_ignore), ("arp_announce", interface.arp_announce)]
    if has_ipv6:
        detect = ipv6.duplicate_address_detection
        on += [
            ("disable_ipv6", None if ipv6.enabled is None else not ipv6.enabled),
            ("accept_ra", ipv6.accept_ra),
        ]
        on += [("accept_dad", detect), ("dad_transmits", 0 if detect is False else None)]
    return found + [("sysctl", name, str(int(value))) for name, value in on if value is not None]


def says(made: AttachPlan, inherited: LinkState) -> list[tuple[Any, ...]]:
    """Without what comes from the host, from DHCP or from a choice of the planner's own."""
    facts: list[tuple[Any, ...]] = []
    for step in made.steps:
        match step:
            case steps.MoveLink() | steps.CreateLink():
                facts += [("mtu", step.mtu)] * (
                    step.mtu is not None and not (made.lease and step.mtu == LEASE.mtu)
                )
                is_made_up = (
                    made.lease
                    and isinstance(step, steps.CreateLink)
                    and not (step.mac or "").startswith("06:d")
                )
                facts += [("mac", step.mac)] * (bool(step.mac) and not is_made_up)
            case steps.SetLink():
                facts += [("tx_queue_length", step.tx_queue_length)] * (step.tx_queue_length is not None)
                facts += list(step.offload_sizes.items())
            case steps.AddAddress():
                known = {a.cidr for a in inherited.addresses} | {LEASE.address}
                facts += [("address", step.address.cidr)] * (step.address.cidr not in known)
            case steps.AddRoute() if step.route.protocol == 4:
                r = step.route
                hops = tuple((hop.gateway, hop.weight, hop.onlink) for hop in step.next_hops)
                fact = ("route", r.destination, r.gateway or None, r.source or None, r.scope, r.metric, r.mtu)
                facts.append((*fact, r.flags == 4, *hops))
            case steps.AddRule(table=table) if table == POLICY_TABLE:
                pass
            case steps.AddNeighbour() if step.neighbour in inherited.neighbours:
                pass
            case _:
                facts += simple_facts(step)
    return facts


@anything
@given(hosts_with_configs())
def test_what_travels_is_what_the_pod_can_use(pair: tuple[LinkState, NetworkConfig]) -> None:
    host, config = pair
    made = plan(host, config)

    interface = config.interface
    may_travel = interface.is_passthrough and interface.inherit_routing is not False
    routes = [step.route for step in made.steps if isinstance(step, steps.AddRoute)]
    own = [ip_interface(step.address.cidr) for step in made.steps if isinstance(step, steps.AddAddress)]
    inherited = [route for route in routes if route.protocol != 4 and (route.table == POLICY_TABLE)]
    rules = [step for step in made.steps if isinstance(step, steps.AddRule) and step.table == POLICY_TABLE]
    assert may_travel or not (inherited or rules)
    assert all(rule.mark is None for rule in rules)
    assert {rule.input_interface for rule in rules} <= {"", made.pod_ifname}
    near = [one.network for one in own] + [ip_network(r.destination) for r in routes if not r.gateway]
    for route in inherited:
        assert not route.gateway or any(ip_address(route.gateway) in network for network in near)
    for step in made.steps:
        if isinstance(step, steps.AddAddress) and step.address.valid_seconds is not None:
            assert made.lease is not None
            assert step.address.cidr == made.lease.address


def simple_facts(step: steps.Step) -> list[tuple[Any, ...]]:
    match step:
        case steps.JoinVrf():
            return [("vrf", step.name)]
        case steps.RemovePrograms():
            return [("programs",)]
        case steps.SetCpuLocality():
            return [("near", name, tuple(sorted(step.cpus))) for name in WISHES if getattr(step, name)]
        case steps.SetToken():
            return [("token", step.token)]
        case steps.SetSysctl():
            return [("sysctl", step.path.rpartition("/")[2], step.value)]
        case steps.AddNeighbour():
            return [("neighbour", step.neighbour.address, step.neighbour.mac)]
        case steps.AddRule():
            words = (
                step.source,
                step.destination,
                step.mark,
                step.mask,
                step.input_interface,
                step.output_interface,
            )
            return [
                ("rule", step.family, step.table, step.priority, *(None if w == "" else w for w in words))
            ]
        case steps.LimitRate():
            egress = ("egress", step.egress_bits_per_second, step.egress_burst_bytes)
            ingress = ("ingress", step.ingress_bits_per_second, step.ingress_burst_bytes)
            return [limit for limit in (egress, ingress) if limit[1] is not None]
        case steps.SetEthtool():
            parts = ("features", "private_flags", "rings", "channels", "coalesce")
            return [(part, *item) for part in parts for item in getattr(step.settings, part).items()]
        case _:
            return []

"""Each parameter of a device that moves: its step, and what the device must have for it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from dranet.claims.plan.device import plan_device
from dranet.claims.plan.link import plan_rdma_access
from dranet.errors import ClaimError, Reason
from dranet.model.device import Bandwidth, Device, DeviceKind
from dranet.model.facts import IFA_F_NODAD, Address, CharDevice, Neighbour
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    AttachPlan,
    EthtoolState,
    JoinVrf,
    LimitRate,
    LinkState,
    MoveRdma,
    NextHop,
    RdmaAccess,
    RemovePrograms,
    SetEthtool,
    SetLink,
    SetSysctl,
    SetToken,
    SetUp,
    SetVf,
    Step,
)
from dranet.model.virtual_functions import VfSettings

S = TypeVar("S", bound=Step)

NIC = Device("nic", DeviceKind.NIC, ifname="eth1")
ETHTOOL = EthtoolState(
    features={"rx-gro": True, "tx-tcp-segmentation": True, "tx-tcp6-segmentation": True},
    fixed={"rx-lro": False, "highdma": True},
    private_flags={"rx_cqe_compress": False},
    rings={"rx": 1024, "tx": 1024},
    channels={"combined": 8},
    coalesce={"rx_usecs": 8, "adaptive_rx": 1},
    maxima={"rings.rx": 8192, "channels.combined": 63},
)
HOST = LinkState(5, "eth1", "02:00:00:00:00:01", 1500, up=True, ethtool=ETHTOOL)
UVERBS, UMAD = CharDevice("/dev/infiniband/uverbs0", 231, 192), CharDevice("/dev/infiniband/umad0", 231, 0)


def plan(host: LinkState = HOST, device: Device = NIC, exclusive: bool = False, **fields: Any) -> AttachPlan:
    return plan_device(device, host, NetworkConfig.model_validate(fields), rdma_exclusive=exclusive)


def of(kind: type[S], made: AttachPlan) -> list[S]:
    return [step for step in made.steps if isinstance(step, kind)]


def sysctls(made: AttachPlan) -> dict[str, str]:
    return {step.path: step.value for step in of(SetSysctl, made)}


def refusal(host: LinkState = HOST, device: Device = NIC, exclusive: bool = False, **fields: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        plan(host, device, exclusive, **fields)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return caught.value.message.removeprefix(f"device {device.name}: ")


# --- the link ------------------------------------------------------------------------------------------


def test_queue_length_and_offload_sizes_are_one_step() -> None:
    sizes = {"gsoMaxSize": 65000, "groMaxSize": 65001, "gsoIPv4MaxSize": 65002, "groIPv4MaxSize": 65003}
    (step,) = of(SetLink, plan(interface={"txQueueLength": 0, **sizes}))

    assert step.tx_queue_length == 0
    assert list(step.offload_sizes.items()) == [
        ("gso_max_size", 65000),
        ("gro_max_size", 65001),
        ("gso_ipv4_max_size", 65002),
        ("gro_ipv4_max_size", 65003),
    ]


@pytest.mark.parametrize("field", ["gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize"])
def test_an_offload_size_above_the_kernels_is_refused(field: str) -> None:
    assert plan(interface={field: 8 * 65535}).steps
    assert refusal(interface={field: 8 * 65535 + 1}).startswith(f"interface.{field}: must be at most 524280")


@pytest.mark.parametrize(("value", "steps"), [(True, [RemovePrograms()]), (False, [])])
def test_programs_are_removed_when_asked(value: bool, steps: list[Step]) -> None:
    assert of(RemovePrograms, plan(interface={"disableEbpfPrograms": value})) == steps


@pytest.mark.parametrize(
    ("limits", "step"),
    [
        ({"egress": {"rate": "1G"}}, LimitRate(egress_bits_per_second=10**9)),
        (
            {"ingress": {"rate": 8000, "burst": "1Ki"}},
            LimitRate(ingress_bits_per_second=8000, ingress_burst_bytes=1024),
        ),
    ],
)
def test_rate_limits(limits: dict[str, Any], step: LimitRate) -> None:
    assert of(LimitRate, plan(interface={"rateLimit": limits})) == [step]


@pytest.mark.parametrize(
    ("limits", "egress", "ingress"),
    [
        ({}, 2 * 10**9, 2 * 10**9),
        ({"egress": {"rate": "1G"}}, 10**9, 2 * 10**9),
        ({"egress": {"rate": "5G"}, "ingress": {"rate": "3G"}}, 2 * 10**9, 2 * 10**9),
    ],
)
def test_what_the_allocation_took_is_the_most_that_the_link_carries(
    limits: dict[str, Any], egress: int, ingress: int
) -> None:
    config = NetworkConfig.model_validate({"interface": {"rateLimit": limits}})
    made = plan_device(NIC, HOST, config, rdma_exclusive=False, bandwidth=2 * 10**9)
    assert of(LimitRate, made) == [LimitRate(egress_bits_per_second=egress, ingress_bits_per_second=ingress)]


def test_a_burst_is_at_most_what_the_allocation_carries_in_50_ms() -> None:
    limits = {"egress": {"rate": "1G", "burst": 2**32 - 1}, "ingress": {"rate": "1G", "burst": "1Mi"}}
    config = NetworkConfig.model_validate({"interface": {"rateLimit": limits}})
    made = plan_device(NIC, HOST, config, rdma_exclusive=False, bandwidth=2 * 10**9)
    assert of(LimitRate, made) == [LimitRate(10**9, 12_500_000, 10**9, 2**20)]


def test_a_virtual_functions_mtu_is_at_most_its_physical_functions() -> None:
    vf = replace(NIC, physical_function="0000:1a:00.0")
    config = NetworkConfig.model_validate({"interface": {"mtu": 9000}})

    assert plan_device(vf, HOST, config, rdma_exclusive=False, physical_function_mtu=None).steps
    assert plan_device(vf, HOST, config, rdma_exclusive=False, physical_function_mtu=9000).steps
    with pytest.raises(
        ClaimError, match=r"interface\.mtu: must be at most the 1500 .* 0000:1a:00\.0, not 9000"
    ):
        plan_device(vf, HOST, config, rdma_exclusive=False, physical_function_mtu=1500)


@pytest.mark.parametrize(("asked", "rate"), [(5000, 5000), (50_000, 25_000), (0, 25_000)])
def test_a_virtual_function_never_sends_more_than_it_is_published_with(asked: int, rate: int) -> None:
    bandwidth = Bandwidth(25 * 10**9, None)
    vf = replace(NIC, physical_function="0000:1a:00.0", vf_index=1, bandwidth=bandwidth)
    config = NetworkConfig.model_validate({"interface": {"vf": {"vlan": 100, "maxTxRate": asked}}})
    made = plan_device(vf, HOST, config, rdma_exclusive=False, vf=VfSettings())
    (step,) = of(SetVf, made)
    assert step.settings == VfSettings(vlan=100, max_tx_rate=rate)


def test_a_function_keeps_to_the_bandwidth_that_it_is_published_with_also_where_nothing_is_asked() -> None:
    had = VfSettings(trust=False, vlan=5, min_tx_rate=0, max_tx_rate=25_000)
    vf = replace(NIC, physical_function="0000:1a:00.0", vf_index=1, bandwidth=Bandwidth(10 * 10**9, None))
    made = plan_device(vf, HOST, NetworkConfig(), rdma_exclusive=False, vf=had)
    assert of(SetVf, made) == [SetVf("0000:1a:00.0", 1, VfSettings(max_tx_rate=10_000))]
    assert made.vf == VfSettings(min_tx_rate=0, max_tx_rate=25_000), "what it gets back"
    on_top = NetworkConfig.model_validate({"interface": {"type": "macvlan"}})
    shared = plan_device(replace(vf, shared=True), HOST, on_top, rdma_exclusive=False)
    assert of(SetVf, shared) == [], "others have shares of it"


def test_a_least_rate_above_the_bandwidth_of_a_function_is_refused_by_name() -> None:
    vf = replace(NIC, physical_function="0000:1a:00.0", vf_index=1, bandwidth=Bandwidth(10 * 10**9, None))
    asked = NetworkConfig.model_validate({"interface": {"vf": {"minTxRate": 20_000, "maxTxRate": 30_000}}})
    with pytest.raises(ClaimError, match=r"minTxRate: 20000 Mbit/s is more than .* of 10000 Mbit/s"):
        plan_device(vf, HOST, asked, rdma_exclusive=False, vf=VfSettings())


# --- VRF -----------------------------------------------------------------------------------------------


def test_a_vrf_without_table_gets_dranets() -> None:
    (step,) = of(JoinVrf, plan(interface={"vrf": {"name": "foobar"}}))

    assert step == JoinVrf("foobar", 1000 + 0xBF9CF968 % 1000)  # FNV-1a of "foobar" as its authors publish it


def test_routes_go_into_the_table_of_the_vrf() -> None:
    route = {"destination": "10.1.0.0/16", "scope": 253}
    made = plan(
        replace(HOST, addresses=(Address("10.0.0.5/24"),)),
        interface={"vrf": {"name": "blue", "table": 77}},
        routes=[route, {"destination": "10.2.0.0/16", "gateway": "10.0.0.1", "table": 77}],
    )

    assert of(JoinVrf, made) == [JoinVrf("blue", 77)]
    assert [step.route.table for step in of(AddRoute, made)] == [77, 77]


def test_a_vrf_needs_a_name_of_its_own() -> None:
    assert refusal(interface={"name": "blue", "vrf": {"name": "blue"}}).startswith("interface.vrf.name: ")


# --- kernel settings of parameters ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        ({"forwarding": True}, {"ipv4/conf/n.1/forwarding": "1", "ipv6/conf/n.1/forwarding": "1"}),
        ({"forwarding": False}, {"ipv4/conf/n.1/forwarding": "0", "ipv6/conf/n.1/forwarding": "0"}),
        ({"arpIgnore": 8}, {"ipv4/conf/n.1/arp_ignore": "8"}),
        ({"arpAnnounce": 0}, {"ipv4/conf/n.1/arp_announce": "0"}),
        ({"ipv6": {"enabled": False}}, {"ipv6/conf/n.1/disable_ipv6": "1"}),
        ({"ipv6": {"enabled": True}}, {"ipv6/conf/n.1/disable_ipv6": "0"}),
        ({"ipv6": {"acceptRA": 2}}, {"ipv6/conf/n.1/accept_ra": "2"}),
        (
            {"ipv6": {"duplicateAddressDetection": False}},
            {"ipv6/conf/n.1/accept_dad": "0", "ipv6/conf/n.1/dad_transmits": "0"},
        ),
        ({"ipv6": {"duplicateAddressDetection": True}}, {"ipv6/conf/n.1/accept_dad": "1"}),
    ],
)
def test_parameters_that_are_kernel_settings(interface: dict[str, Any], expected: dict[str, str]) -> None:
    made = plan(interface={"name": "n.1", **interface})

    assert sysctls(made) == expected
    assert all(step.early for step in of(SetSysctl, made))


def test_a_link_too_small_for_ipv6_has_no_such_settings() -> None:
    made = plan(interface={"mtu": 1000, "forwarding": True, "ipv6": {"enabled": False}})
    assert sysctls(made) == {"ipv4/conf/eth1/forwarding": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"interface": {"ipv6": {"enabled": True}}},
        {"interface": {"ipv6": {"acceptRA": 0}}},
        {"interface": {"ipv6": {"token": "::5"}}},
        {"interface": {"ipv6": {"duplicateAddressDetection": False}}},
        {"routes": [{"destination": "fd00::/64", "scope": 253}]},
        {"neighbors": [{"destination": "fd00::9", "hardwareAddr": "02:00:00:00:00:09"}]},
        {"sysctls": {"net.ipv6.conf.IFNAME.hop_limit": 9}},
    ],
)
def test_ipv6_on_a_link_that_is_too_small_for_it_is_refused(fields: dict[str, Any]) -> None:
    assert "an MTU below 1280" in refusal(replace(HOST, mtu=1000), **fields)


def test_a_node_without_ipv6_is_told_by_the_settings_of_its_link() -> None:
    host = replace(HOST, sysctls={"ipv4/conf/rp_filter": "0"})

    assert sysctls(plan(host, interface={"forwarding": True})) == {"ipv4/conf/eth1/forwarding": "1"}
    assert [step.family for step in of(AddRule, plan(host, rules=[{"table": 100}]))] == [4]
    assert refusal(host, rules=[{"source": "fd00::/64"}]) == "rules[0]: the node has no IPv6"
    assert "the node has no IPv6" in refusal(host, sysctls={"net.ipv6.bindv6only": 1})


def test_duplicates_of_configured_addresses_are_looked_for_when_asked() -> None:
    ipv6 = {"duplicateAddressDetection": True}
    made = plan(interface={"addresses": ["fd00::5/64"], "ipv6": ipv6})
    assert of(AddAddress, made) == [AddAddress(Address("fd00::5/64"))]

    inherited = plan(replace(HOST, addresses=(Address("fd00::5/64"),)), interface={"ipv6": ipv6})
    assert of(AddAddress, inherited) == [AddAddress(Address("fd00::5/64", flags=IFA_F_NODAD))]


def test_a_route_cannot_start_from_an_address_that_is_being_checked() -> None:
    interface = {"addresses": ["fd00::5/64"], "ipv6": {"duplicateAddressDetection": True}}
    route = {"destination": "fd01::/64", "gateway": "fd00::1", "source": "fd00::5"}

    assert refusal(interface=interface, routes=[route]).startswith("routes[0].source: fd00::5")
    assert plan(interface={"addresses": ["fd00::5/64"]}, routes=[route]).steps


def test_without_ipv6_nothing_of_it_is_inherited() -> None:
    host = replace(HOST, addresses=(Address("fd00::5/64"), Address("10.0.0.5/24")))
    made = plan(host, interface={"ipv6": {"enabled": False}})

    assert [step.address.cidr for step in of(AddAddress, made)] == ["10.0.0.5/24"]


def test_a_token_comes_after_router_advertisements_are_switched() -> None:
    made = plan(interface={"forwarding": True, "ipv6": {"token": "::5", "acceptRA": 2}})
    kinds = [type(step) for step in made.steps]

    assert of(SetToken, made) == [SetToken("::5")]
    assert kinds.index(SetSysctl) < kinds.index(SetToken) < kinds.index(SetUp)


def test_a_forwarding_link_takes_a_token_only_with_router_advertisements() -> None:
    text = refusal(interface={"forwarding": True, "ipv6": {"token": "::5", "acceptRA": 1}})
    assert text.startswith("interface.ipv6.token: ")


def test_one_ipv6_address_cannot_have_two_prefix_lengths() -> None:
    assert refusal(interface={"addresses": ["fd00::5/64", "fd00::5/128"]}).startswith(
        "interface.addresses[1]: "
    )
    assert plan(interface={"addresses": ["10.0.0.5/24", "10.0.0.5/32"]}).steps


# --- sysctls -------------------------------------------------------------------------------------------


def test_sysctls_of_the_interface_are_early_and_those_of_the_namespace_late() -> None:
    made = plan(
        interface={"name": "n.1"},
        sysctls={
            "net.ipv4.tcp_mtu_probing": 1,
            "net.ipv4.conf.IFNAME.rp_filter": "2",
            "net.ipv6.neigh.IFNAME.gc_stale_time": 30,
        },
    )

    assert of(SetSysctl, made) == [
        SetSysctl("ipv4/conf/n.1/rp_filter", "2"),
        SetSysctl("ipv6/neigh/n.1/gc_stale_time", "30"),
        SetSysctl("ipv4/tcp_mtu_probing", "1", early=False),
    ]


@pytest.mark.parametrize(
    ("interface", "name", "rival"),
    [
        (
            {"ipv6": {"duplicateAddressDetection": True}},
            "net.ipv6.conf.IFNAME.accept_dad",
            "interface.ipv6.duplicateAddressDetection",
        ),
        (
            {"ipv6": {"duplicateAddressDetection": False}},
            "net.ipv6.conf.IFNAME.dad_transmits",
            "interface.ipv6.duplicateAddressDetection",
        ),
        ({"vrf": {"name": "blue"}}, "net.ipv4.tcp_l3mdev_accept", "interface.vrf"),
    ],
)
def test_a_sysctl_that_a_parameter_sets_too_is_refused(
    interface: dict[str, Any], name: str, rival: str
) -> None:
    assert plan(sysctls={name: 1}).steps
    assert refusal(interface=interface, sysctls={name: 1}).startswith(f'sysctls["{name}"]: {rival} sets it')


def test_a_sysctl_that_the_kernel_lacks_is_refused() -> None:
    host = replace(HOST, sysctls={"ipv4/conf/rp_filter": "0", "ipv6/conf/hop_limit": "64"})

    assert plan(host, sysctls={"net.ipv4.conf.IFNAME.rp_filter": 1}).steps
    text = refusal(host, sysctls={"net.ipv4.conf.IFNAME.from_the_future": 1})
    assert (
        text == 'sysctls["net.ipv4.conf.IFNAME.from_the_future"]: the kernel of this node has no such setting'
    )


# --- routes, rules, neighbours -------------------------------------------------------------------------


def test_a_route_with_everything() -> None:
    made = plan(
        interface={"addresses": ["10.0.0.5/24"]},
        routes=[
            {
                "destination": "10.1.0.0/16",
                "gateway": "192.0.2.1",
                "onlink": True,
                "source": "10.0.0.5",
                "table": 100,
                "metric": 50,
                "mtu": 1400,
            }
        ],
    )
    (route,) = (step.route for step in of(AddRoute, made))

    assert (route.destination, route.gateway, route.source) == ("10.1.0.0/16", "192.0.2.1", "10.0.0.5")
    assert (route.table, route.metric, route.mtu, route.flags, route.protocol) == (100, 50, 1400, 4, 4)


def test_multipath_routes_come_last() -> None:
    hops = [
        {"gateway": "10.0.0.1", "weight": 3},
        {"gateway": "10.5.0.1", "interface": "net2", "onlink": True},
    ]
    made = plan(
        interface={"addresses": ["10.0.0.5/24"]},
        routes=[
            {"destination": "10.1.0.0/16", "nextHops": hops},
            {"destination": "10.2.0.0/16", "gateway": "10.0.0.1"},
            {"destination": "10.3.0.0/16", "scope": 253},
        ],
    )
    added = of(AddRoute, made)

    assert [step.route.destination for step in added] == ["10.3.0.0/16", "10.2.0.0/16", "10.1.0.0/16"]
    assert added[-1].route.gateway == ""
    assert added[-1].next_hops == (NextHop("10.0.0.1", "", 3), NextHop("10.5.0.1", "net2", 1, onlink=True))


def test_the_links_own_name_in_a_next_hop_is_the_link_itself() -> None:
    hops = [{"gateway": "10.0.0.1", "interface": "net1"}]
    made = plan(
        interface={"name": "net1", "addresses": ["10.0.0.5/24"]},
        routes=[{"destination": "10.1.0.0/16", "nextHops": hops}],
    )
    assert of(AddRoute, made)[0].next_hops == (NextHop("10.0.0.1"),)


@pytest.mark.parametrize(
    ("addresses", "routes"),
    [
        (["10.0.0.5/24"], [{"destination": "10.1.0.0/16", "gateway": "10.0.0.1"}]),
        (["10.0.0.5/24"], [{"destination": "10.1.0.0/16", "gateway": "10.9.0.1", "onlink": True}]),
        ([], [{"destination": "fd01::/64", "gateway": "fe80::1"}]),
        (
            ["10.0.0.5/32"],
            [
                {"destination": "10.1.0.0/16", "gateway": "10.9.0.1", "table": 100},
                {"destination": "10.9.0.1/32", "scope": 253},
            ],
        ),
        ([], [{"destination": "10.1.0.0/16", "nextHops": [{"gateway": "10.9.0.1", "interface": "net9"}]}]),
    ],
)
def test_gateways_that_the_kernel_finds(addresses: list[str], routes: list[dict[str, Any]]) -> None:
    assert len(of(AddRoute, plan(interface={"addresses": addresses}, routes=routes))) == len(routes)


@pytest.mark.parametrize(
    ("addresses", "route", "path"),
    [
        (["10.0.0.5/24"], {"destination": "10.1.0.0/16", "gateway": "10.9.0.1"}, "routes[1].gateway"),
        (["10.0.0.5/24"], {"destination": "10.1.0.0/16", "gateway": "10.0.0.5"}, "routes[1].gateway"),
        ([], {"destination": "fd01::/64", "gateway": "fd00::1"}, "routes[1].gateway"),
        (
            ["10.0.0.5/24"],
            {"destination": "10.1.0.0/16", "nextHops": [{"gateway": "10.0.0.1"}, {"gateway": "10.9.0.1"}]},
            "routes[1].nextHops[1].gateway",
        ),
        # In another table than the route to its gateway.
        (["10.0.0.5/24"], {"destination": "10.1.0.0/16", "gateway": "10.77.0.1"}, "routes[1].gateway"),
    ],
)
def test_gateways_that_the_kernel_would_not_find(
    addresses: list[str], route: dict[str, Any], path: str
) -> None:
    elsewhere = {"destination": "10.77.0.0/24", "scope": 253, "table": 100}
    text = refusal(interface={"addresses": addresses}, routes=[elsewhere, route])
    assert text.startswith(f"{path}: ")


def test_an_ipv6_route_has_metric_1024_when_it_has_none() -> None:
    route = {"destination": "fd01::/64", "gateway": "fe80::1"}
    other = {"destination": "fd01::/64", "gateway": "fe80::2", "metric": 1024}

    assert refusal(routes=[route, other]).startswith("routes[1]: ")
    assert plan(routes=[route, {**other, "metric": 1}]).steps


def test_rules_are_for_the_versions_of_their_prefixes_or_for_both() -> None:
    made = plan(
        rules=[
            {"priority": 100, "source": "10.0.0.0/8", "table": 100},
            {"destination": "fd00::/8"},
            {"mark": "0x10", "mask": 255, "inputInterface": "net1", "outputInterface": "net2", "table": 7},
        ]
    )
    marked = AddRule(4, 7, mark=16, mask=255, input_interface="net1", output_interface="net2")

    assert of(AddRule, made) == [
        AddRule(4, 100, priority=100, source="10.0.0.0/8"),
        AddRule(6, 254, destination="fd00::/8"),
        marked,
        replace(marked, family=6),
    ]


def test_neighbours() -> None:
    entry = {"destination": "fd00::9", "hardwareAddr": "02-00-00-00-00-09"}
    assert of(AddNeighbour, plan(neighbors=[entry])) == [
        AddNeighbour(Neighbour("fd00::9", "02:00:00:00:00:09"))
    ]


def test_a_neighbour_of_another_link_layer_is_refused() -> None:
    entry = {"destination": "10.0.0.9", "hardwareAddr": ":".join(["80"] * 20)}
    assert refusal(neighbors=[entry]).startswith("neighbors[0].hardwareAddr: ")


# --- ethtool -------------------------------------------------------------------------------------------


def test_everything_of_ethtool_is_one_step_by_the_kernels_names() -> None:
    (step,) = of(
        SetEthtool,
        plan(
            ethtool={
                "features": {"tso": False, "gro": False},
                "privateFlags": {"rx_cqe_compress": True},
                "rings": {"rx": 8192},
                "channels": {"combined": 4},
                "coalesce": {"rxUsecs": 0, "adaptiveRx": False},
            }
        ),
    )

    assert step.settings == EthtoolState(
        features={"tx-tcp-segmentation": False, "tx-tcp6-segmentation": False, "rx-gro": False},
        private_flags={"rx_cqe_compress": True},
        rings={"rx": 8192},
        channels={"combined": 4},
        coalesce={"rx_usecs": 0, "adaptive_rx": 0},
    )


def test_a_feature_that_cannot_be_changed_may_be_asked_for_as_it_is() -> None:
    """As manifests for DraNet do: ``large-receive-offload: false`` on whatever NIC comes."""
    made = plan(ethtool={"features": {"large-receive-offload": False, "gro": False}})
    (step,) = of(SetEthtool, made)
    assert step.settings == EthtoolState(features={"rx-lro": False, "rx-gro": False})
    assert 'features["lro"]: the device has no lro that can be changed' in refusal(
        ethtool={"features": {"lro": True}}
    )


def test_the_record_of_a_link_has_nothing_that_cannot_be_given_back() -> None:
    host = plan(interface={"name": "net1"}).host
    assert host is not None
    assert host.ethtool == replace(ETHTOOL, fixed={})


@pytest.mark.parametrize(
    ("ethtool", "complaints"),
    [
        (
            {"features": {"warp": True, "gro": True}},
            ['features["warp"]: the device has no warp that can be changed; on the node, ethtool -k eth1'],
        ),
        (
            {"privateFlags": {"a": True, "b": False}},
            ['ethtool.privateFlags["a"]: ', 'ethtool.privateFlags["b"]: '],
        ),
        (
            {"rings": {"rx": 8193, "rxMini": 1}},
            ["ethtool.rings.rx: must be at most the 8192", "ethtool.rings.rxMini: "],
        ),
        (
            {"channels": {"combined": 64}},
            ["ethtool.channels.combined: must be at most the 63 of the device, not 64"],
        ),
        ({"coalesce": {"txUsecs": 1}}, ["ethtool.coalesce.txUsecs: "]),
        ({"features": {"tso": True, "tcp-segmentation-offload": False}}, ["ethtool.features: "]),
    ],
)
def test_what_the_device_does_not_have_is_named_all_at_once(
    ethtool: dict[str, Any], complaints: list[str]
) -> None:
    text = refusal(ethtool=ethtool)
    assert [complaint for complaint in complaints if complaint not in text] == []


@pytest.mark.parametrize(
    ("ethtool", "complaint"),
    [
        (
            {"features": {"gro": True}},
            'ethtool.features["gro"]: the device has no features that can be changed',
        ),
        ({"privateFlags": {"a": True}}, 'ethtool.privateFlags["a"]: the device has no private flags'),
        ({"rings": {"rx": 1}}, "ethtool.rings.rx: the device has no rings"),
        ({"channels": {"rx": 1}}, "ethtool.channels.rx: the device has no channels"),
        ({"coalesce": {"rxUsecs": 1}}, "ethtool.coalesce.rxUsecs: the device has no interrupt coalescing"),
    ],
)
def test_a_device_without_any_of_a_kind_says_so(ethtool: dict[str, Any], complaint: str) -> None:
    assert refusal(replace(HOST, ethtool=EthtoolState()), ethtool=ethtool).startswith(complaint)


@pytest.mark.parametrize(
    ("part", "field", "ethtool"),
    [
        ("features", "ethtool.features", {"features": {"gro": True}}),
        ("private_flags", "ethtool.privateFlags", {"privateFlags": {"a": True}}),
        ("rings", "ethtool.rings", {"rings": {"rx": 1}}),
        ("channels", "ethtool.channels", {"channels": {"rx": 1}}),
        ("coalesce", "ethtool.coalesce", {"coalesce": {"rxUsecs": 1}}),
    ],
)
def test_what_the_driver_failed_to_tell_refuses_the_claim_that_sets_it_and_no_other(
    part: str, field: str, ethtool: dict[str, Any]
) -> None:
    broken: dict[str, Any] = {part: {}, "refused": {part: "read settings: Input/output error (EIO)"}}
    host = replace(HOST, ethtool=replace(ETHTOOL, **broken))
    told = f"{field}: the driver does not report them: read settings: Input/output error (EIO)"
    assert refusal(host, ethtool=ethtool) == told
    made = plan(host, interface={"mtu": 1500})
    assert made.host is not None
    assert made.host.ethtool.refused == {}, "a record does not need it"


# --- RDMA ----------------------------------------------------------------------------------------------


def access(device: Device, exclusive: bool = False, **fields: Any) -> RdmaAccess:
    return plan_rdma_access(device, NetworkConfig.model_validate(fields), (UMAD,), exclusive=exclusive)


def test_rdma_access() -> None:
    hca = replace(NIC, rdma_device="mlx5_0", char_devices=(UVERBS,))

    assert access(hca) == RdmaAccess((UVERBS,))
    assert access(hca, rdma={"managementDevices": True}) == RdmaAccess((UVERBS, UMAD))
    assert access(hca, rdma={"memlock": "unlimited"}) == RdmaAccess((UVERBS,), -1)
    assert access(NIC) == RdmaAccess()
    assert access(Device("gpu", DeviceKind.GPU, char_devices=(UVERBS,))) == RdmaAccess()


@pytest.mark.parametrize("field", [{"managementDevices": True}, {"memlock": "1Mi"}])
def test_rdma_settings_need_rdma(field: dict[str, Any]) -> None:
    assert refusal(rdma=field) == f"rdma.{next(iter(field))}: the device has no RDMA"


def test_an_rdma_device_without_link_may_bring_settings_of_the_namespace() -> None:
    hca = Device("hca", DeviceKind.RDMA, rdma_device="mlx5_1")
    config = NetworkConfig.model_validate({"sysctls": {"net.core.somaxconn": 9000}, "rdma": {"memlock": 1}})

    assert plan_device(hca, None, config, rdma_exclusive=True).steps == (
        SetSysctl("core/somaxconn", "9000", early=False),
        MoveRdma("mlx5_1"),
    )


def test_an_rdma_device_without_link_says_every_field_that_needs_one() -> None:
    hca = Device("hca", DeviceKind.RDMA, rdma_device="mlx5_1")
    config = NetworkConfig.model_validate(
        {"interface": {"forwarding": True, "vrf": {"name": "blue"}}, "ethtool": {"features": {"gro": True}}}
    )
    with pytest.raises(ClaimError) as caught:
        plan_device(hca, None, config, rdma_exclusive=False)
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    for path in ("interface.forwarding", "interface.vrf", "ethtool.features"):
        assert path in caught.value.message

"""NetworkConfig takes what the kernel can apply, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Field, Part, ValidationError, join_path, walk_fields
from tests.model.network_documents import DOCUMENTS, JSON, NEAR_DOCUMENTS

HUGE = pytest.param(10**5000, id="of 5001 digits")
ROUTE = {"destination": "10.1.0.0/16", "gateway": "10.0.0.1"}


def interface(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"interface": fields})


def route(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"routes": [fields]})


def rule(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"rules": [fields]})


def neighbour(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"neighbors": [fields]})


def mistakes(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        NetworkConfig.model_validate(document)
    return [f"{join_path(fault.path)}: {fault.text}" for fault in caught.value.faults]


@pytest.mark.parametrize("name", ["eth1", "a", "net-1.100", "A_b", "x" * 15, ""])
def test_names_that_the_kernel_takes(name: str) -> None:
    assert interface(name=name).interface.name == name


@pytest.mark.parametrize(
    "name", ["x" * 16, ".", "..", "a/b", "a b", "ü", "lo", "all", "default", "eth%d", "a\n", 5]
)
def test_names_that_it_refuses(name: object) -> None:
    with pytest.raises(ValidationError):
        interface(name=name)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("02:00:00:00:00:01", "02:00:00:00:00:01"),
        ("02-AB-00-00-00-01", "02:ab:00:00:00:01"),
        ("0200.ab00.0001", "02:00:ab:00:00:01"),
        (":".join(["80"] + ["00"] * 18 + ["FE"]), ":".join(["80"] + ["00"] * 18 + ["fe"])),
    ],
)
def test_hardware_addresses_become_canonical(text: str, canonical: str) -> None:
    assert interface(hardwareAddr=text).interface.hardware_addr == canonical


@pytest.mark.parametrize(
    "text", ["", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02:0:0:0:0:1", "x", "02:" * 8]
)
def test_hardware_addresses_that_no_link_can_have_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="hardware address"):
        interface(hardwareAddr=text)


def test_a_neighbour_may_have_a_multicast_hardware_address_and_be_a_group() -> None:
    (cluster,) = neighbour(destination="10.0.0.9", hardwareAddr="03-BF-0A-00-00-09").neighbors
    (group,) = neighbour(destination="239.1.1.1", hardwareAddr="02:00:00:00:00:01").neighbors

    assert (cluster.hardware_addr, group.destination) == ("03:bf:0a:00:00:09", "239.1.1.1")


@pytest.mark.parametrize("mtu", [68, 1500, 65535])
def test_mtu_within_limits(mtu: int) -> None:
    assert interface(mtu=mtu).interface.mtu == mtu


@pytest.mark.parametrize("mtu", [67, 65536, True, "1500", 1500.0, float("nan"), HUGE])
def test_mtu_beyond_limits_or_of_another_type(mtu: object) -> None:
    with pytest.raises(ValidationError):
        interface(mtu=mtu)


@pytest.mark.parametrize("field", ["arpIgnore", "arpAnnounce", "txQueueLength", "gsoMaxSize"])
@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_a_number_is_neither_a_bool_nor_text(field: str, value: object) -> None:
    assert interface(**{field: 1}) != NetworkConfig()
    with pytest.raises(ValidationError):
        interface(**{field: value})


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [("arpIgnore", (0, 1, 2, 3, 8), (-1, 4, 9)), ("arpAnnounce", (0, 1, 2), (-1, 3))],
)
def test_arp_settings_are_those_of_the_kernel(
    field: str, good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    for value in good:
        interface(**{field: value})
    for value in bad:
        with pytest.raises(ValidationError, match="must be 0, 1"):
            interface(**{field: value})


def test_addresses_are_kept_in_order_with_their_host_bits() -> None:
    addresses = interface(addresses=["10.0.0.5/24", "2001:DB8::5/64"]).interface.addresses

    assert addresses == ("10.0.0.5/24", "2001:db8::5/64")


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.5",
        "10.0.0.5/33",
        "10.0.0.5/255.255.255.0",
        "10.0.0.05/24",
        "fe80::1%eth0/64",
        "224.0.0.1/4",
        "::/0",
        "127.0.0.1/8",
        "",
    ],
)
def test_addresses_that_an_interface_cannot_have(address: str) -> None:
    with pytest.raises(ValidationError):
        interface(addresses=[address])


def test_the_same_address_twice_counts_once_also_in_two_spellings() -> None:
    addresses = ["fd00::1/64", "10.0.0.1/24", "FD00:0::1/64"]

    assert interface(addresses=addresses).interface.addresses == ("fd00::1/64", "10.0.0.1/24")


def test_an_empty_list_of_addresses_is_not_the_same_as_none() -> None:
    assert interface(addresses=[]).interface.addresses == ()
    assert interface().interface.addresses is None


@pytest.mark.parametrize("value", ["10.0.0.1/24", {"a": 1}, 5, [["10.0.0.1/24"]], [None]])
def test_a_list_is_a_list(value: object) -> None:
    with pytest.raises(ValidationError):
        interface(addresses=value)


@pytest.mark.parametrize(
    "document",
    [
        {"interface": None, "routes": None, "rules": None, "neighbors": None, "ethtool": None, "rdma": None},
        {"interface": {"ipv6": None, "rateLimit": None, "vrf": None, "addresses": None}},
        {
            "ethtool": {"features": {"gro": None}, "rings": {"rx": None}},
            "sysctls": {"net.ipv4.tcp_ecn": None},
        },
    ],
)
def test_null_is_as_absent(document: dict[str, Any]) -> None:
    assert NetworkConfig.model_validate(document) == NetworkConfig()


def test_null_is_no_excuse_for_an_unknown_field() -> None:
    assert mistakes({"interface": {"mtoo": None}}) == ["interface.mtoo: unknown field"]


def test_route_destinations_lose_their_host_bits() -> None:
    assert route(destination="10.1.2.3/16", gateway="10.0.0.1").routes[0].destination == "10.1.0.0/16"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"gateway": "10.0.0.1"}, "destination: is required"),
        ({**ROUTE, "destination": "10.1.0.0"}, "destination: .*CIDR"),
        ({"destination": "10.1.0.0/16"}, "gateway: is required unless scope is 253"),
        ({**ROUTE, "gateway": "fd00::1"}, "gateway: must be of the IP version of the destination"),
        (
            {"destination": "fd01::/64", "gateway": "fd00::1", "source": "10.0.0.1"},
            "source: must be of the IP version",
        ),
        ({**ROUTE, "scope": 253}, "gateway: must be absent with scope 253"),
        (
            {"destination": "10.1.0.0/16", "scope": 253, "onlink": True},
            "onlink: must be absent with scope 253",
        ),
        ({**ROUTE, "scope": 200}, "scope: .*must be 0 or 253"),
        ({**ROUTE, "scope": False}, "scope: .*whole number"),
        ({**ROUTE, "gateway": "10.0.0.1/24"}, "gateway: .*without prefix"),
        ({**ROUTE, "gateway": "fe80::1%net1"}, "gateway: .*zone"),
        ({**ROUTE, "table": -1}, "table: .*at least"),
        ({**ROUTE, "metric": 2**32}, "metric: .*at most"),
        ({**ROUTE, "nextHops": [{"gateway": "10.0.0.2"}]}, "gateway: must be absent with nextHops"),
        (
            {"destination": "10.1.0.0/16", "nextHops": [{"gateway": "10.0.0.2"}, {"gateway": "fd00::1"}]},
            r"nextHops\[1\].gateway: must be of the IP version",
        ),
        (
            {"destination": "10.1.0.0/16", "scope": 253, "nextHops": [{"gateway": "10.0.0.2"}]},
            "scope: must not be 253",
        ),
    ],
)
def test_routes_that_cannot_be_made(fields: dict[str, Any], complaint: str) -> None:
    (mistake,) = mistakes({"routes": [fields]})
    assert_matches(mistake, r"routes\[0\]\." + complaint)


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=f"^{pattern}"):
        raise ValueError(text)


def test_a_link_scope_route_needs_no_gateway() -> None:
    assert route(destination="10.1.0.0/16", scope=253, table=100).routes[0].table == 100


def test_a_route_over_several_routers() -> None:
    hops = [{"gateway": "10.0.0.1"}, {"gateway": "10.0.0.2", "weight": 3, "interface": "net2"}]
    (found,) = route(destination="0.0.0.0/0", nextHops=hops).routes

    assert [(hop.gateway, hop.weight, hop.interface) for hop in found.next_hops] == [
        ("10.0.0.1", 1, None),
        ("10.0.0.2", 3, "net2"),
    ]


def test_what_is_asked_twice_is_done_once_and_contradictions_are_refused() -> None:
    other = {**ROUTE, "gateway": "10.0.0.2"}
    near, far = ({"destination": "10.0.0.9", "hardwareAddr": f"02:00:00:00:00:0{n}"} for n in (1, 2))

    assert len(NetworkConfig.model_validate({"routes": [ROUTE, {**other, "metric": 5}, ROUTE]}).routes) == 2
    assert len(NetworkConfig.model_validate({"rules": [{"table": 5}, {"table": 5}]}).rules) == 1
    assert mistakes({"routes": [ROUTE, ROUTE, {**other, "table": 254}]}) == [
        "routes[2]: must not have the destination, table and metric of entry 0"
    ]
    assert mistakes({"neighbors": [near, far]}) == ["neighbors[1]: must not have the destination of entry 0"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"priority": 32768}, "priority: .*32767"),
        ({"source": "10.0.0.1"}, "source: .*CIDR"),
        (
            {"source": "10.0.0.0/8", "destination": "fd00::/8"},
            "destination: must be of the IP version of the source",
        ),
        ({"mask": 1}, "mask: must come with mark"),
        ({"mark": "0xfffffffff"}, "mark: .*such as 0x10"),
        ({"mark": "9999999999"}, "mark: .*at most"),
        ({"inputInterface": ""}, "inputInterface: .*must not be empty"),
    ],
)
def test_rules_that_cannot_be_made(fields: dict[str, Any], complaint: str) -> None:
    (mistake,) = mistakes({"rules": [fields]})
    assert_matches(mistake, r"rules\[0\]\." + complaint)


def test_a_rule_may_be_about_what_the_pod_itself_sends() -> None:
    assert rule(inputInterface="lo").rules[0].input_interface == "lo"


def test_a_rule_is_for_the_families_of_its_prefixes() -> None:
    assert rule(source="10.0.0.0/8").rules[0].families == (4,)
    assert rule(destination="fd00::/8").rules[0].families == (6,)
    assert rule(mark="0x10").rules[0].families == (4, 6)


@pytest.mark.parametrize(("text", "number"), [("0x10", 16), ("16", 16), (16, 16), ("0XfF", 255), (0, 0)])
def test_marks_are_numbers_in_any_base(text: object, number: int) -> None:
    assert rule(mark=text).rules[0].mark == number


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"dhcp": True, "addresses": ["10.0.0.1/24"]}, "interface.dhcp"),
        ({"dhcp": True, "type": "vlan", "vlan": {"id": 5}}, "interface.dhcp"),
        ({"mtu": 1279, "addresses": ["fd00::1/64"]}, "interface.mtu"),
        ({"ipv6": {"enabled": False}, "addresses": ["fd00::1/64"]}, "interface.ipv6.enabled"),
        ({"ipv6": {"acceptRA": 0, "token": "::5"}}, "interface.ipv6.token"),
        ({"ipv6": {"token": "fd00::5"}}, "interface.ipv6.token"),
        ({"ipv6": {"token": "::"}}, "interface.ipv6.token"),
        ({"type": "vlan"}, "interface.vlan"),
        ({"type": "vlan", "vlan": {"id": 4095}}, "interface.vlan.id"),
        ({"type": "vlan", "vlan": {"protocol": "802.1Q"}}, "interface.vlan.id"),
        ({"macvlan": {"mode": "bridge"}}, "interface.macvlan"),
        ({"type": "ipvlan", "hardwareAddr": "02:00:00:00:00:01"}, "interface.hardwareAddr"),
        ({"vrf": {"name": ""}}, "interface.vrf.name"),
        ({"vrf": {"table": 5}}, "interface.vrf.name"),
        ({"vrf": {"name": "red", "table": 0}}, "interface.vrf.table"),
        ({"vrf": {"name": "red", "table": 254}}, "interface.vrf.table"),
        ({"gsoMaxSize": 0}, "interface.gsoMaxSize"),
        ({"rateLimit": {"egress": {"rate": 7999}}}, "interface.rateLimit.egress.rate"),
        ({"rateLimit": {"egress": {"rate": "10 G"}}}, "interface.rateLimit.egress.rate"),
        ({"rateLimit": {"egress": {"rate": "8000.5"}}}, "interface.rateLimit.egress.rate"),
        ({"rateLimit": {"ingress": {"burst": "1Mi"}}}, "interface.rateLimit.ingress.rate"),
    ],
)
def test_a_mistake_carries_the_path_of_the_field_to_mend(fields: dict[str, Any], path: str) -> None:
    (mistake,) = mistakes({"interface": fields})
    assert mistake.partition(": ")[0] == path


def test_dhcp_with_an_empty_list_of_addresses_is_what_it_says() -> None:
    assert interface(dhcp=True, addresses=[]).interface.has_own_addresses


def test_every_mistake_of_an_object_is_told_at_once() -> None:
    both = {"dhcp": True, "addresses": ["fd00::1/64"], "mtu": 1000, "ipv6": {"enabled": False}}

    assert [mistake.partition(": ")[0] for mistake in mistakes({"interface": both})] == [
        "interface.mtu",
        "interface.ipv6.enabled",
        "interface.dhcp",
    ]


def test_a_vrf_has_rules_and_a_table_of_its_own() -> None:
    vrf = {"vrf": {"name": "red", "table": 1100}}
    for table in (0, 1100):
        NetworkConfig.model_validate({"interface": vrf, "rules": [], "routes": [{**ROUTE, "table": table}]})

    found = mistakes({"interface": vrf, "rules": [{"table": 5}], "routes": [ROUTE, {**ROUTE, "table": 5}]})
    assert [mistake.partition(": ")[0] for mistake in found] == ["rules", "routes[1].table"]


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [("10G", 10**10), ("1.5M", 1_500_000), ("64Ki", 65536), ("8000", 8000), (8000, 8000), ("1Mi", 2**20)],
)
def test_quantities(quantity: object, amount: int) -> None:
    limit = interface(rateLimit={"egress": {"rate": quantity}}).interface.rate_limit.egress

    assert limit is not None
    assert limit.rate == amount


@pytest.mark.parametrize(("limit", "amount"), [("unlimited", -1), ("64Mi", 2**26), (0, 0), ("0", 0)])
def test_memlock(limit: object, amount: int) -> None:
    assert NetworkConfig.model_validate({"rdma": {"memlock": limit}}).rdma.memlock == amount


@pytest.mark.parametrize("limit", [-1, -2, True, "infinity", "-1", 2**63])
def test_memlock_that_means_nothing(limit: object) -> None:
    with pytest.raises(ValidationError):
        NetworkConfig.model_validate({"rdma": {"memlock": limit}})


@pytest.mark.parametrize(
    ("nccl", "mistake"),
    [
        ({"configFile": True, "gidIndex": -1}, "nccl.gidIndex: must be a number from 0 to 1023, or auto"),
        ({"configFile": True, "gidIndex": True}, "nccl.gidIndex: must be a number from 0 to 1023, or auto"),
        ({"configFile": True, "gidIndex": "3"}, "nccl.gidIndex: must be a number from 0 to 1023, or auto"),
        ({"configFile": True, "crossNic": 3}, "nccl.crossNic: must be a number from 0 to 2, or auto"),
        ({"configFile": True, "socketInterface": "=eth0"}, "nccl.socketInterface: must consist of ASCII"),
        ({"gidIndex": 3}, "nccl.gidIndex: must come with configFile: true"),
        ({"configFile": None, "crossNic": "auto"}, "nccl.crossNic: must come with configFile: true"),
        ({"topologyFile": True, "socketInterface": "eth0"}, "nccl.socketInterface: must come with"),
    ],
)
def test_settings_of_nccl_that_no_file_can_have_are_refused(nccl: dict[str, Any], mistake: str) -> None:
    (said,) = mistakes({"nccl": nccl})
    assert said.replace("Value error, ", "").startswith(mistake)


def test_sysctl_values_are_text() -> None:
    found = NetworkConfig.model_validate({"sysctls": {"a": -1, "b": "4096 8192"}}).sysctls

    assert found == {"a": "-1", "b": "4096 8192"}


@pytest.mark.parametrize("value", [True, 1.5, "", "a\nb", "ä", ["1"], 2**64, HUGE, "x" * 4097])
def test_sysctl_values_that_are_not_one_line_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        NetworkConfig.model_validate({"sysctls": {"a": value}})


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ({}, ()),
        (
            {"rdma": {"memlock": "unlimited", "managementDevices": True}, "sysctls": {"net.ipv4.tcp_ecn": 1}},
            (),
        ),
        ({"interface": {}, "routes": [], "ethtool": {"rings": {}}}, ()),
        (
            {"interface": {"mtu": 1500, "forwarding": False, "addresses": []}, "rules": [{"table": 5}]},
            ("interface.addresses", "interface.mtu", "interface.forwarding", "rules"),
        ),
        ({"interface": {"rateLimit": {"egress": {"rate": "1G"}}}}, ("interface.rateLimit.egress.rate",)),
        (
            {"sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}, "ethtool": {"features": {"gro": False}}},
            ("ethtool.features", 'sysctls["net.ipv4.conf.IFNAME.rp_filter"]'),
        ),
    ],
)
def test_what_needs_a_network_interface_is_named(document: dict[str, Any], paths: tuple[str, ...]) -> None:
    assert NetworkConfig.model_validate(document).needs_link == paths


def test_every_field_is_described_and_every_value_has_an_example() -> None:
    for path, field in walk_fields(NetworkConfig):
        assert field.info.description, path
        assert field.part or field.info.examples, path


@given(DOCUMENTS)
def test_valid_documents_decode_and_come_back_as_they_were_meant(document: dict[str, Any]) -> None:
    config = NetworkConfig.model_validate(document)

    again = config.to_json(exclude_unset=True)
    assert NetworkConfig.model_validate(again) == config
    assert NetworkConfig.model_validate(config.to_json()) == config


@given(NEAR_DOCUMENTS | JSON)
def test_any_json_is_either_a_valid_config_or_a_validation_error(value: Any) -> None:
    try:
        config = NetworkConfig.model_validate(value)
    except ValidationError:
        return
    assert NetworkConfig.model_validate(config.to_json()) == config


class Inner(Part):
    x: int | None = Field(default=None)


class Outer(Part):
    inner: Inner = Field(default_factory=Inner.empty)


def test_an_object_is_empty_when_it_asks_for_nothing_in_whatever_words() -> None:
    config = Outer.model_validate({})
    assert config.inner.is_empty
    assert config.inner == Inner() == Inner.model_validate({"x": None})
    assert not Outer.model_validate({"inner": {"x": 0}}).inner.is_empty


def test_every_object_of_a_config_is_such_a_one_when_it_is_absent() -> None:
    objects = {path: field for path, field in walk_fields(NetworkConfig) if field.part and not field.is_list}
    made = {path: field.info.default_factory for path, field in objects.items() if field.info.default_factory}
    assert {"interface", "interface.rateLimit", "ethtool.rings", "rdma"} < made.keys()
    assert made == {path: field.part.empty for path, field in objects.items() if field.part and path in made}


@given(DOCUMENTS)
def test_a_config_is_empty_when_nothing_of_it_would_be_written(document: dict[str, Any]) -> None:
    config = NetworkConfig.model_validate(document)
    assert config.is_empty == (not config.to_json(exclude_defaults=True))
    assert config.ethtool.is_empty == (not config.ethtool.to_json(exclude_defaults=True))

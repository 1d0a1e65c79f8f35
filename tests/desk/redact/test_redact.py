"""Redaction: nothing that tells whose a machine is survives anywhere, and the layout stays what it was."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.desk.redact.capture import redact
from dranet.model.capture import Capture, decode_capture, encode_capture
from dranet.model.facts import (
    Address,
    Gpu,
    Host,
    Link,
    LldpNeighbour,
    NodeFacts,
    PciFunction,
    ProtectedLink,
    RdmaDevice,
    RdmaPort,
    Route,
)
from tests.model.captures import facts_of_any_shape
from tests.support.processor_time import measure

DOCUMENTATION = [
    ip_network(text)
    for text in (
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        *("2001:db8::/32", "3fff::/20"),
    )
]


def bytes_of(digits: str, mark: str = ":") -> str:
    return mark.join(digits[i : i + 2] for i in range(0, len(digits), 2))


def guid_of(digits: str) -> str:
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def links_of(facts: NodeFacts) -> dict[int, Link]:
    return {link.ifindex: link for link in facts.links}


def only(link: Link) -> Link:
    return redact(NodeFacts(links=(link,))).links[0]


def with_addresses(*cidrs: str) -> list[str]:
    link = Link(2, "eth0", addresses=tuple(map(Address, cidrs)))
    return [address.cidr for address in only(link).addresses]


def survives(original: str, text: str) -> bool:
    """As a whole: ``10.0.0.1`` is not in ``10.0.0.12``."""
    return (
        re.search(rf"(?<![0-9a-f:.]){re.escape(original)}(?![0-9a-f:]|\.\d)", text, re.IGNORECASE) is not None
    )


HEX = st.text("0123456789abcdef", min_size=12, max_size=12).filter(lambda d: set(d) not in ({"0"}, {"f"}))
MACS = HEX.map(bytes_of)
GUIDS = HEX.map(lambda digits: guid_of("0c42" + digits))
UUIDS = st.uuids().map(str)
IPV4 = st.ip_addresses(v=4).filter(
    lambda a: not (a.is_multicast or a.is_loopback or not int(a) + 1 & 2**32 - 1)
)
IPV6 = st.ip_addresses(v=6).filter(lambda a: not (a.is_multicast or a.is_loopback or a.is_unspecified))
IPS = (IPV4 | IPV6).filter(lambda a: not a.is_unspecified).map(str)
SECRETS = st.one_of(MACS, GUIDS, UUIDS, IPS)
FORMS = (
    "{}",
    "in a text: {} and more",
    "({})",
    "x{}",
    "{},{}",
    "{}: gone",
    "at {}.",
    "GPU-{}",
    "{}/24",
    "{}/31",
)

SLOTS = [f"@{n}@" for n in range(4)]
WITH_SLOTS = facts_of_any_shape(
    st.sampled_from([form.replace("{}", slot) for slot in SLOTS for form in FORMS]), versions=st.just("1.2.3")
)


@st.composite
def telling_facts(draw: st.DrawFn) -> tuple[list[str], NodeFacts]:
    """Identifiers, and facts in which each text holds one of them."""
    secrets = draw(st.lists(SECRETS, min_size=len(SLOTS), max_size=len(SLOTS), unique=True))
    text = encode_capture(Capture(draw(WITH_SLOTS)))
    for slot, secret in zip(SLOTS, secrets, strict=True):
        text = text.replace(slot, secret)
    return secrets, decode_capture(text).facts


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(telling_facts())
def test_no_identifier_survives_anywhere_in_the_document(case: tuple[list[str], NodeFacts]) -> None:
    secrets, facts = case
    text = encode_capture(Capture(redact(facts)))

    assert [secret for secret in secrets if survives(secret, text)] == []


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(facts_of_any_shape())
def test_the_same_facts_always_give_the_same_result_and_nothing_but_texts_changes(facts: NodeFacts) -> None:
    once = redact(facts)

    assert redact(facts) == once
    assert [link.ifindex for link in once.links] == [link.ifindex for link in facts.links]
    assert [len(link.addresses) for link in once.links] == [len(link.addresses) for link in facts.links]
    assert [replace(node, cpus="") for node in once.numa_nodes] == [
        replace(node, cpus="") for node in facts.numa_nodes
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(MACS, unique=True, max_size=30))
def test_macs_keep_their_maker_equal_stays_equal_and_different_stays_different(macs: list[str]) -> None:
    links = tuple(Link(i, f"eth{i}", mac=mac, permanent_mac=mac) for i, mac in enumerate(macs))
    redacted = redact(NodeFacts(links=links)).links

    assert all(link.mac == link.permanent_mac for link in redacted)
    assert len({link.mac for link in redacted}) == len(macs)
    for mac, link in zip(macs, redacted, strict=True):
        is_local = int(mac[:2], 16) & 2
        assert link.mac[:8] == ("02:00:00" if is_local else mac[:8])


def test_every_way_to_write_a_mac_is_the_same_mac() -> None:
    link = only(
        Link(
            2,
            "enx0c42a1657b22",
            mac="0c:42:a1:65:7b:22",
            altnames=("rename0c-42-a1-65-7b-22", "0C:42:A1:65:7B:22"),
            addresses=(Address("192.0.2.7/24", label="enx0c42a1657b22:1"),),
        )
    )

    assert link.mac == "0c:42:a1:00:00:01"
    assert link.ifname == "enx0c42a1000001"
    assert link.altnames == ("rename0c-42-a1-00-00-01", "0C:42:A1:00:00:01")
    assert link.addresses[0].label == "enx0c42a1000001:1"


@pytest.mark.parametrize("mac", ["", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"])
def test_a_mac_that_says_nothing_stays(mac: str) -> None:
    assert only(Link(1, "lo", mac=mac)).mac == mac


def test_an_infiniband_address_ends_in_the_guid_of_its_port() -> None:
    guid = "0c42:a103:0065:7b22"
    address = "00:00:10:29:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:65:7b:22"
    facts = NodeFacts(
        links=(Link(2, "ib0", mac=address, permanent_mac=address),),
        rdma_devices=(
            RdmaDevice("mlx5_0", node_guid=guid, ports=(RdmaPort(1, guid=guid),)),
            RdmaDevice("mlx5_1", node_guid="0c42:a103:0065:7b26", system_image_guid=guid),
        ),
    )
    redacted = redact(facts)
    first, second = redacted.rdma_devices

    assert first.node_guid == "0c42:a100:0000:0001"
    assert first.ports[0].guid == second.system_image_guid == first.node_guid
    assert second.node_guid == "0c42:a100:0000:0002"
    assert redacted.links[0].mac == "00:00:10:29:fe:80:00:00:00:00:00:00:0c:42:a1:00:00:00:00:01"
    assert redacted.links[0].permanent_mac == redacted.links[0].mac


@pytest.mark.parametrize(
    ("guid", "redacted"),
    [
        ("8c54:27ff:feb1:fc59", "0200:0000:0000:0001"),  # of 8e:54:27:b1:fc:59, locally administered
        ("0e42:a1ff:fe65:7b22", "0e42:a100:0000:0001"),  # of 0c:42:a1:65:7b:22, a maker's
    ],
)
def test_a_guid_made_from_a_mac_keeps_its_maker_if_the_mac_has_one(guid: str, redacted: str) -> None:
    (device,) = redact(NodeFacts(rdma_devices=(RdmaDevice("mlx5_0", node_guid=guid),))).rdma_devices
    assert device.node_guid == redacted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(IPV4 | IPV6, st.sampled_from([1, 8, 16, 20, 24, 25, 31, 32])), max_size=20))
def test_addresses_are_nobodys_and_keep_their_prefix_length(given_: list[tuple[object, int]]) -> None:
    cidrs = [f"{address}/{length}" for address, length in given_]
    redacted = with_addresses(*cidrs)

    assert [cidr.split("/")[1] for cidr in redacted] == [cidr.split("/")[1] for cidr in cidrs]
    old = [ip_interface(cidr).ip for cidr in cidrs]
    new = [ip_interface(cidr).ip for cidr in redacted]
    assert len(set(zip(old, new, strict=True))) == len(set(old)) == len(set(new))
    for before, after in zip(old, new, strict=True):
        if before.is_unspecified:
            assert after == before
        else:
            assert after.is_link_local if before.is_link_local else any(after in net for net in DOCUMENTATION)


def test_which_addresses_are_in_one_subnet_stays() -> None:
    redacted = with_addresses("10.1.2.3/24", "10.1.2.9/24", "10.1.3.3/24", "10.2.0.4/16", "10.2.77.4/16")
    networks = [ip_interface(cidr).network for cidr in redacted]

    assert networks[0] == networks[1]
    assert networks[3] == networks[4]
    assert len(set(networks)) == 3
    assert not networks[0].overlaps(networks[2])


def test_many_subnets_stay_apart() -> None:
    redacted = with_addresses(*(f"10.{n // 256}.{n % 256}.1/24" for n in range(400)))

    assert len({ip_interface(cidr).network for cidr in redacted}) == 400


def test_ipv6_subnets_stay_apart_and_a_host_part_that_holds_a_mac_goes() -> None:
    redacted = with_addresses(
        "2a01:4f8:1:2:e42:a1ff:fe65:7b22/64",
        "2a01:4f8:1:2::5/64",
        "fd00:1::5/64",
        "fe80::e42:a1ff:fe65:7b22/64",
    )
    networks = [ip_interface(cidr).network for cidr in redacted]

    assert networks[0] == networks[1] != networks[2]
    assert redacted[3] == "fe80::1/64"
    assert "7b22" not in "".join(redacted)


def test_gateways_sources_and_protected_links_follow_the_subnet_of_the_interface() -> None:
    facts = NodeFacts(
        links=(Link(2, "eth0", addresses=(Address("10.1.2.3/24", broadcast="10.1.2.255"),)),),
        default_routes=(
            Route("0.0.0.0/0", gateway="10.1.2.1", ifindex=2, source="10.1.2.3"),
            Route("::/0", gateway="fe80::1", ifindex=2),
        ),
        protected_links=(
            ProtectedLink("the node's address", "10.1.2.3", 2),
            ProtectedLink("the way out", "10.9.0.1", 2),
        ),
    )
    redacted = redact(facts)
    address = redacted.links[0].addresses[0]
    network = ip_interface(address.cidr).network
    default = redacted.default_routes[0]

    assert default.destination == "0.0.0.0/0"
    assert default.source == address.cidr.split("/")[0] == redacted.protected_links[0].address
    assert ip_address(default.gateway) in network
    assert address.broadcast == str(network.broadcast_address)
    assert ip_address(redacted.protected_links[1].address) not in network
    assert redacted.default_routes[1].destination == "::/0"
    assert redacted.default_routes[1].gateway == "fe80::2"
    assert (redacted.protected_links[0].purpose, redacted.protected_links[0].ifindex) == (
        "the node's address",
        2,
    )


def test_loopback_multicast_and_wildcards_say_nothing_and_stay() -> None:
    cidrs = ("127.0.0.1/8", "::1/128", "0.0.0.0/32", "224.0.0.1/32", "ff02::1/128")

    assert with_addresses(*cidrs) == list(cidrs)


def test_an_address_that_is_for_documentation_already_is_replaced_all_the_same() -> None:
    assert with_addresses("192.0.2.1/24", "198.51.100.2/24") == ["203.0.113.1/24", "198.18.0.1/24"]


def test_the_host_and_its_aliases_go_wherever_they_are_quoted() -> None:
    facts = NodeFacts(
        links=(
            Link(2, "br-gpu7", alias="rack 12, port 3", altnames=("uplink-gpu7", "enp3s0")),
            Link(3, "eth1", alias="rack 12, port 3", tc_filters=("gpu7_in",), tcx_programs=("of_gpu7",)),
            Link(4, "eth2", alias="rack 12, port 4"),
        ),
        rdma_devices=(RdmaDevice("rxe_0", ports=(RdmaPort(1, netdevs=("br-gpu7",)),)),),
        host=Host("gpu7.corp.example", "6.8.0-1030-gpu7", "x86_64", "Maker Model gpu700"),
        warnings=("br-gpu7 of gpu7.corp.example: rack 12, port 3 is odd", "gpu70 is another"),
    )
    redacted = redact(facts)

    assert redacted.host == Host("node-1", "6.8.0-1030-node-1", "x86_64", "Maker Model gpu700")
    assert [link.alias for link in redacted.links] == ["alias-1", "alias-1", "alias-2"]
    assert redacted.links[0].ifname == "br-node-1"
    assert redacted.links[0].altnames == ("uplink-node-1", "enp3s0")
    assert redacted.rdma_devices[0].ports[0].netdevs == ("br-node-1",)
    assert redacted.links[1].tc_filters == ("node-1_in",)
    assert redacted.links[1].tcx_programs == ("of_node-1",)
    assert redacted.warnings == ("br-node-1 of node-1: alias-1 is odd", "gpu70 is another")


def test_switches_are_numbered_and_the_ids_of_their_ports_stay() -> None:
    facts = NodeFacts(
        host=Host("gpu7"),
        lldp_neighbours=(
            LldpNeighbour("eth0", "aa:bb:cc:00:11:22", "swp7", "leaf-01.corp.example", "gpu7, order 4711"),
            LldpNeighbour("eth1", "aa:bb:cc:00:11:22", "to-gpu7", "leaf-01.corp.example", "gpu7, order 4712"),
            LldpNeighbour("eth2", "leaf-02", "0c:42:a1:65:7b:22", "leaf-02"),
        ),
        warnings=("eth0: leaf-01.corp.example announces no speed",),
    )
    redacted = redact(facts)

    assert redacted.lldp_neighbours == (
        LldpNeighbour("eth0", "02:00:00:00:00:01", "swp7", "switch-1", "port-1"),
        LldpNeighbour("eth1", "02:00:00:00:00:01", "to-node-1", "switch-1", "port-2"),
        LldpNeighbour("eth2", "switch-2", "0c:42:a1:00:00:02", "switch-2"),
    )
    assert redacted.warnings == ("eth0: switch-1 announces no speed",)


def test_a_new_name_is_none_that_is_there_already() -> None:
    facts = NodeFacts(links=(Link(2, "node-1"), Link(3, "gpu7", alias="alias-1")), host=Host("gpu7"))
    redacted = redact(facts)

    assert redacted.host.name == "node-2"
    assert [link.ifname for link in redacted.links] == ["node-1", "node-2"]
    assert redacted.links[1].alias == "alias-2"


def test_gpu_uuids_and_switch_ids_go_in_whatever_form_they_have() -> None:
    facts = NodeFacts(
        links=(
            Link(2, "eth0", phys_switch_id="229b65a1420c"),
            Link(3, "eth1", phys_switch_id="229b65a1420c"),
            Link(4, "eth2", phys_switch_id="01020304"),
        ),
        gpus=(
            Gpu("0000:1b:00.0", "nvidia", uuid="GPU-5f3c1e0a-3d42-41c7-9b15-0c7a4f001b00"),
            Gpu("0000:1c:00.0", "amd", uuid="0x1c2d3e4f50617283"),
            Gpu("0000:1d:00.0", "9999", uuid="SN 12345"),
        ),
    )
    redacted = redact(facts)

    assert [link.phys_switch_id for link in redacted.links] == ["020000000001", "020000000001", "switch-1"]
    assert [gpu.uuid for gpu in redacted.gpus] == [
        "GPU-00000000-0000-0000-0000-000000000002",
        "0x1c2d3e0000000003",
        "gpu-1",
    ]


def test_what_makes_the_layout_stays() -> None:
    function = PciFunction(
        "0000:1a:00.0",
        0x020000,
        0x15B3,
        0x1021,
        driver="mlx5_core",
        root="pci0000:15",
        path=("0000:15:01.0", "0000:1a:00.0"),
        link_speed="32.0 GT/s PCIe",
        device_name="MT2910 Family [ConnectX-7]",
    )
    link = Link(
        2,
        "enp26s0np0",
        driver="mlx5_core",
        driver_version="24.10.1.1",
        firmware="28.39.1002",
        pci_address=function.address,
    )
    warnings = ("bus/pci/devices/0000:1a:00.0/numa_node: at 12:30:45",)
    facts = NodeFacts(links=(link,), pci_functions=(function,), warnings=warnings)

    assert redact(facts) == facts


def test_a_node_with_a_thousand_pods_is_redacted_in_a_moment() -> None:
    links = tuple(
        Link(
            n,
            f"veth{n:08x}",
            mac=f"{n:012x}",
            alias=f"pod {n}",
            addresses=(Address(f"10.{n >> 8}.{n & 255}.1/32"), Address(f"fd00::{n:x}/64")),
        )
        for n in range(1_000)
    )
    facts = NodeFacts(links=links, warnings=("pod 77 is odd",))
    results: list[NodeFacts] = []

    assert measure(lambda: results.append(redact(facts))) < 2000
    (redacted,) = results
    assert len({link.alias for link in redacted.links}) == 1_000
    assert redacted.warnings == ("alias-78 is odd",)

"""Configs are merged class first, claim last, and every mistake is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dranet
from dranet.claims.config import SelectedResult, decode_configs, inspect_configs, merge
from dranet.errors import ClaimError, Reason
from dranet.model.claim import AllocationResult, ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.provider import ProvidedConfig
from tests.model.network_documents import DOCUMENTS, JSON, NEAR_DOCUMENTS

CIDR_COMPLAINT = "must be in CIDR form with a prefix length, e.g. 10.0.0.5/24, not '10.0.0.1'"
RESULT = AllocationResult("nic", "dra.net", "pool", "eth1")
MERGED = " (all configs merged)"
CLASS, CLAIM = "config[0] (from DeviceClass fast).parameters", "config[1].parameters"


def of_class(parameters: dict[str, Any], *requests: str) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLASS, "dra.net", parameters, requests or ("nic",))


def of_claim(parameters: dict[str, Any], *requests: str) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters, requests)


def select(*configs: OpaqueConfig) -> SelectedResult:
    return SelectedResult(RESULT, configs, tuple(range(len(configs))), "fast", "default")


def decode(*configs: OpaqueConfig, kind: DeviceKind = DeviceKind.NIC) -> NetworkConfig:
    (config,) = decode_configs([(select(*configs), kind)])
    return config


def complaint(*configs: OpaqueConfig) -> str:
    with pytest.raises(ClaimError) as caught:
        decode(*configs)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return caught.value.message


def test_no_config_asks_for_nothing() -> None:
    assert decode() == NetworkConfig()
    assert decode(of_claim({})).is_empty


def test_the_claim_wins_over_the_class_field_by_field_whatever_their_order() -> None:
    base = of_class({"interface": {"name": "net0", "mtu": 9000, "vrf": {"name": "red", "table": 1100}}})
    own = of_claim({"interface": {"mtu": 1500, "vrf": {"table": 1200}}})

    for configs in ([base, own], [own, base]):
        interface = decode(*configs).interface
        assert (interface.name, interface.mtu) == ("net0", 1500)
        assert interface.vrf is not None
        assert (interface.vrf.name, interface.vrf.table) == ("red", 1200)


def test_later_configs_of_the_same_source_win() -> None:
    configs = [of_claim({"interface": {"mtu": mtu}}) for mtu in (1400, 1500)]

    assert decode(*configs).interface.mtu == 1500


def test_lists_replace_and_maps_merge() -> None:
    base = of_class(
        {
            "interface": {"addresses": ["10.0.0.1/24", "10.0.0.2/24"]},
            "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.254"}],
            "ethtool": {"features": {"gro": True, "tso": True}},
            "sysctls": {"net.ipv4.tcp_ecn": 1},
        }
    )
    own = {
        "interface": {"addresses": ["10.0.0.3/24"]},
        "routes": [],
        "ethtool": {"features": {"gro": False}},
        "sysctls": {"net.ipv4.tcp_mtu_probing": 1},
    }
    config = decode(base, of_claim(own))

    assert config.interface.addresses == ("10.0.0.3/24",)
    assert config.routes == ()
    assert config.ethtool.features == {"gro": False, "tso": True}
    assert config.sysctls == {"net.ipv4.tcp_ecn": "1", "net.ipv4.tcp_mtu_probing": "1"}


def test_explicit_values_count_and_null_does_not() -> None:
    base = of_class(
        {
            "interface": {
                "name": "net0",
                "addresses": ["10.0.0.1/24"],
                "forwarding": True,
                "arpIgnore": 1,
            },
            "ethtool": {"features": {"gro": True}},
        }
    )
    zeros = {"name": "", "addresses": [], "forwarding": False, "arpIgnore": 0}
    explicit = decode(base, of_claim({"interface": zeros})).interface
    null = decode(
        base,
        of_claim({"interface": dict.fromkeys(zeros), "routes": None, "ethtool": {"features": {"gro": None}}}),
    )

    assert (explicit.name, explicit.addresses, explicit.forwarding, explicit.arp_ignore) == ("", (), False, 0)
    assert null == decode(base)


def test_both_forms_decode() -> None:
    versioned = {"apiVersion": "dra.net/v1alpha1", "kind": "NetworkConfig", "interface": {"mtu": 9000}}

    assert decode(of_claim(versioned)) == decode(of_claim({"interface": {"mtu": 9000}}))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"apiVersion": "v1"}, "parameters.apiVersion: must be 'dra.net/v1alpha1', not 'v1'"),
        ({"kind": "NetworkConfig"}, "parameters.apiVersion: is required with kind"),
        ({"apiVersion": "dra.net/v1alpha1"}, "parameters.kind: is required with apiVersion"),
    ],
)
def test_another_version_and_half_of_one_are_refused(form: dict[str, Any], text: str) -> None:
    assert complaint(of_claim(form)) == f"config[0].{text}"


def test_every_mistake_of_every_config_is_in_one_message_with_its_path() -> None:
    message = complaint(
        of_class({"interface": {"mtu": 10}}),
        of_claim(
            {"interface": {"addresses": ["10.0.0.1", "10.0.0.2/24"], "mtoo": 1}, "routes": [{"table": "x"}]}
        ),
    )

    assert message.split("; ") == [
        "config[0] (from DeviceClass fast).parameters.interface.mtu: must be at least 68, not 10",
        "config[1].parameters.interface.addresses[0]: " + CIDR_COMPLAINT,
        "config[1].parameters.interface.mtoo: unknown field",
        "config[1].parameters.routes[0].table: must be a whole number, not 'x'",
        "config[1].parameters.routes[0].destination: is required",
    ]


def test_a_conflict_within_one_config_is_told_at_its_field() -> None:
    both = {"interface": {"dhcp": True, "addresses": ["10.0.0.1/24"]}}

    assert complaint(of_claim(both)) == "config[0].parameters.interface.dhcp: must not be true with addresses"


@pytest.mark.parametrize(
    ("class_says", "claim_says", "text"),
    [
        (
            {"interface": {"mtu": 1000}},
            {"interface": {"addresses": ["fd00::1/64"]}},
            f"{CLASS}.interface.mtu: must be at least 1280 with an IPv6 address, not 1000",
        ),
        (
            {"interface": {"vrf": {"name": "red"}}},
            {"rules": [{"table": 100}]},
            f"{CLAIM}.rules: must be empty with interface.vrf, which brings its own rule",
        ),
        (
            {"interface": {"vrf": {"name": "red", "table": 1100}}},
            {"routes": [{"destination": "10.0.0.0/8", "gateway": "10.0.0.1", "table": 5}]},
            f"{CLAIM}.routes[0].table: must be absent with interface.vrf, which has one of its own, not 5",
        ),
        (
            {"interface": {"ipv6": {"enabled": False}}},
            {"routes": [{"destination": "fd01::/64", "gateway": "fd00::1"}]},
            f"{CLASS}.interface.ipv6.enabled: must not be false with an IPv6 route or neighbor",
        ),
    ],
)
def test_a_conflict_that_only_the_merge_makes_is_found(
    class_says: dict[str, Any], claim_says: dict[str, Any], text: str
) -> None:
    decode(of_class(class_says))
    decode(of_claim(claim_says))

    assert complaint(of_class(class_says), of_claim(claim_says)) == text + MERGED


def test_a_later_config_may_mend_what_an_earlier_one_leaves_open() -> None:
    tagged = of_class({"interface": {"type": "vlan", "vlan": {"protocol": "802.1ad"}}})
    missing = "config[0] (from DeviceClass fast).parameters.interface.vlan.id: is required"

    assert complaint(tagged) == missing
    vlan = decode(tagged, of_claim({"interface": {"vlan": {"id": 7}}})).interface.vlan
    assert vlan is not None
    assert (vlan.id, vlan.protocol) == (7, "802.1ad")


def test_another_type_of_sub_interface_leaves_the_settings_of_the_former_behind() -> None:
    base = of_class({"interface": {"type": "macvlan", "macvlan": {"mode": "private"}}})

    changed = decode(base, of_claim({"interface": {"type": "ipvlan", "ipvlan": {"mode": "l3"}}})).interface
    assert (changed.type, changed.macvlan) == ("ipvlan", None)
    assert decode(base, of_claim({"interface": {"type": "passthrough"}})).interface.macvlan is None
    kept = decode(base, of_claim({"interface": {"mtu": 1500}})).interface.macvlan
    assert kept is not None
    assert kept.mode == "private"


def test_settings_of_another_type_than_the_merged_one_are_refused() -> None:
    base = of_class({"interface": {"type": "macvlan"}})

    assert decode(base, of_claim({"interface": {"macvlan": {"mode": "vepa"}}})).interface.macvlan
    text = complaint(base, of_claim({"interface": {"ipvlan": {"mode": "l3"}}}))
    assert text == "config[1].parameters.interface.ipvlan: must come with type: ipvlan"


def test_a_profile_is_refused_while_nobody_provides_any() -> None:
    text = "must not be set: no profile provider is configured"
    selection = select(of_claim({"profile": "rail"}))

    with pytest.raises(ClaimError, match=r"^config\[0\]\.parameters\.profile: ") as caught:
        decode_configs([(selection, DeviceKind.NIC)], has_profiles=False)
    assert caught.value.message.endswith(text)
    assert decode(of_claim({"profile": "rail"})).profile == "rail"
    none = select(of_class({"profile": "rail"}), of_claim({"profile": ""}))
    assert decode_configs([(none, DeviceKind.NIC)], has_profiles=False)[0].interface.is_empty


# --- configs of providers ---


def provide(*layers: dict[str, Any], over: tuple[OpaqueConfig, ...] = ()) -> NetworkConfig:
    provided = tuple(ProvidedConfig(f"layer {n}", layer) for n, layer in enumerate(layers))
    (config,) = decode_configs([(replace(select(*over), provided=provided), DeviceKind.NIC)])
    return config


def test_class_and_claim_win_over_providers_also_with_false_and_zero() -> None:
    profile = {"interface": {"mtu": 1400, "forwarding": True, "dhcp": True, "arpIgnore": 2}}
    device = {"interface": {"mtu": 1450, "arpIgnore": 1}}
    of_user = of_claim({"interface": {"forwarding": False, "arpIgnore": 0, "dhcp": False}})
    interface = provide(profile, device, over=(of_class({"interface": {"mtu": 9000}}), of_user)).interface

    assert (interface.mtu, interface.forwarding, interface.arp_ignore) == (9000, False, 0)
    assert interface.dhcp is False
    assert provide(profile, device).interface.mtu == 1450


def test_lists_of_providers_are_added_to_and_what_is_about_the_same_is_replaced() -> None:
    gateway = {"gateway": "10.0.0.1"}
    profile = {
        "interface": {"addresses": ["10.0.0.5/24"]},
        "routes": [{"destination": "10.1.0.7/16", **gateway}, {"destination": "10.2.0.0/16", **gateway}],
        "rules": [{"source": "10.0.0.5/32", "table": 100}],
        "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:00:00:00:09"}],
    }
    claim = {
        "interface": {"addresses": ["10.0.0.6/24", "10.0.0.5/24"]},
        "routes": [{"destination": "10.1.0.0/16", "table": 254, "gateway": "10.0.0.2"}],
        "rules": [{"source": "10.0.0.5/32", "table": 100}],
        "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:00:00:00:aa"}],
    }
    config = provide(profile, over=(of_claim(claim),))

    assert config.interface.addresses == ("10.0.0.6/24", "10.0.0.5/24")
    assert [(r.destination, r.gateway) for r in config.routes] == [
        ("10.2.0.0/16", "10.0.0.1"),
        ("10.1.0.0/16", "10.0.0.2"),
    ]
    assert len(config.rules) == 1
    assert [n.hardware_addr for n in config.neighbors] == ["02:00:00:00:00:aa"]
    empty = provide(profile, over=(of_claim({"routes": [], "interface": {"addresses": []}}),))
    assert (empty.routes, empty.interface.addresses) == ((), ())


def test_what_a_provider_gets_wrong_is_named_with_the_provider() -> None:
    owner = "profile rail (from the webhook provider http://p)"
    parameters = {"interface": {"mtu": "9000", "speed": 1}, "policy": {"allow": []}}
    selection = replace(select(), provided=(ProvidedConfig(owner, parameters),))

    with pytest.raises(ClaimError) as caught:
        decode_configs([(selection, DeviceKind.NIC)])
    for line in (
        f"{owner}.config.interface.mtu: must be a whole number, not '9000'",
        f"{owner}.config.interface.speed: unknown field",
        f"{owner}.config.policy: unknown field",
    ):
        assert line in caught.value.message


def test_a_conflict_between_a_provider_and_a_claim_is_the_claims_to_fix() -> None:
    profile = {"interface": {"addresses": ["10.0.0.5/24"]}}

    with pytest.raises(
        ClaimError, match=r"config\[0\].parameters.interface.dhcp: must not be true with addr"
    ):
        provide(profile, over=(of_claim({"interface": {"dhcp": True}}),))


def test_a_gpu_gets_nothing_of_a_provider() -> None:
    selection = replace(select(), provided=(ProvidedConfig("p", {"interface": {"mtu": "x"}}),))

    assert decode_configs([(selection, DeviceKind.GPU)])[0].is_empty


@given(st.one_of(JSON, DOCUMENTS, NEAR_DOCUMENTS), st.one_of(JSON, DOCUMENTS, NEAR_DOCUMENTS))
def test_whatever_a_provider_wants_is_decoded_or_refused_with_its_name(provided: Any, claimed: Any) -> None:
    layers = (ProvidedConfig("the provider", provided if isinstance(provided, dict) else {}),)
    own = of_claim(claimed if isinstance(claimed, dict) else {})
    _, problems = inspect_configs([(replace(select(own), provided=layers), DeviceKind.NIC)])
    assert all(line.startswith(("the provider.config", "config[0]")) for line in problems)


def nested(depth: int, leaf: Any, in_list: bool) -> Any:
    for _ in range(depth):
        leaf = [leaf] if in_list else {"a": leaf}
    return leaf


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"interface": 5}, "parameters.interface: must be an object, not 5"),
        ({"routes": {}}, "parameters.routes: must be a list, not an object"),
        ({"interface": {"name": "x" * 200}}, f"must have at most 15 bytes, not '{'x' * 80}'..."),
        ({"interface": {"mtu": True}}, "interface.mtu: must be a whole number, not true"),
        ({"interface": {"mtu": 1500.0}}, "interface.mtu: must be a whole number, not 1500.0"),
        ({"interface": {"mtu": float("nan")}}, "interface.mtu: must be a whole number, not nan"),
        ({"interface": {"mtu": float("-inf")}}, "interface.mtu: must be a whole number, not -inf"),
        ({"interface": {"mtu": 10**5000}}, "interface.mtu: must be at most 65535, not a very long number"),
        ({"interface": {"dhcp": 1}}, "interface.dhcp: must be true or false, not 1"),
        ({"interface": {"dhcp": "yes"}}, "interface.dhcp: must be true or false, not 'yes'"),
        ({"interface": {"arpIgnore": True}}, "interface.arpIgnore: must be a whole number, not true"),
        ({"interface": {"arpIgnore": 4}}, "interface.arpIgnore: must be 0, 1, 2, 3 or 8, not 4"),
        ({"interface": {"type": "tap"}}, "must be 'passthrough', 'macvlan', 'ipvlan' or 'vlan', not 'tap'"),
        ({"routes": [None]}, "routes[0]: must be an object, not null"),
        ({"sysctls": {"": 1}}, "sysctls[\"\"]: must not be empty, not ''"),
        ({"sysctls": {"net.ipv4.x": "a\nb"}}, 'sysctls["net.ipv4.x"]: must be one line of ASCII text'),
        ({"ethtool": {"features": {"x" * 65: True}}}, "must have at most 64 characters"),
        ({"\ud800": 1}, "config[0].parameters: must be Unicode text"),
        ({"interface": {"name": "\ud800"}}, "interface.name: must consist of ASCII letters"),
        ({"interface": {"MTU": 9000}}, "interface.MTU: unknown field; did you mean mtu?"),
        ({"routes": [{"gatway": "10.0.0.1"}]}, "routes[0].gatway: unknown field; did you mean gateway?"),
        ({"Interface": {}}, "config[0].parameters.Interface: unknown field; did you mean interface?"),
        ({"more\nlines": None}, 'config[0].parameters["more\\nlines"]: unknown field'),
        ({"x": nested(900, 1, False), "routes": nested(900, 1, False)}, "parameters.x: unknown field"),
        ({"interface": {"mtu": nested(900, 1, True)}}, "interface.mtu: must be a whole number, not a list"),
    ],
)
def test_wrong_shapes_are_told_in_plain_words(parameters: dict[str, Any], text: str) -> None:
    assert text in complaint(of_claim(parameters))
    assert text in complaint(of_claim(parameters), of_claim(parameters))


@pytest.mark.parametrize("requests", [(), ("nic", "gpu")], ids=["emptied by the scheduler", "as written"])
def test_a_gpu_takes_no_part_in_a_config_that_covers_network_devices(requests: tuple[str, ...]) -> None:
    both = select(of_claim({"interface": {"mtu": 9000}}, *requests))
    gpu, nic = decode_configs([(both, DeviceKind.GPU), (both, DeviceKind.NIC)])

    assert gpu.is_empty
    assert nic.interface.mtu == 9000


def test_a_gpu_takes_no_part_in_what_its_class_says_of_network_devices() -> None:
    assert decode(of_class({"interface": {"mtu": 9000}}), kind=DeviceKind.GPU).is_empty


@pytest.mark.parametrize("requests", [(), ("nic",)], ids=["emptied by the scheduler", "as written"])
def test_what_a_claim_says_of_gpus_alone_is_theirs_to_refuse(requests: tuple[str, ...]) -> None:
    assert not decode(of_claim({"interface": {"mtu": 9000}}, *requests), kind=DeviceKind.GPU).is_empty


def test_a_config_that_is_not_for_a_gpu_is_checked_all_the_same() -> None:
    with pytest.raises(ClaimError):
        decode(of_class({"interface": {"mtu": 1}}), kind=DeviceKind.GPU)


def test_a_whole_claim_is_decoded_at_once_and_names_each_mistake_once() -> None:
    bad, good = of_claim({"interface": {"mtu": 1}}), of_claim({"interface": {"mtu": 1500}}, "b")
    results = [AllocationResult(name, "dra.net", "pool", f"dev-{name}") for name in ("a", "b")]
    nic = DeviceKind.NIC

    with pytest.raises(ClaimError) as caught:
        decode_configs([(SelectedResult(r, (bad,), (3,)), nic) for r in results])
    assert caught.value.message == "config[3].parameters.interface.mtu: must be at least 68, not 1"

    one, two = decode_configs(
        [(SelectedResult(results[0]), nic), (SelectedResult(results[1], (good,), (0,)), nic)]
    )
    assert (one.interface.mtu, two.interface.mtu) == (None, 1500)


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_it_does_not_matter_which_two_of_three_configs_are_merged_first(
    one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]
) -> None:
    for document in (one, two, three):
        document.get("interface", {}).pop("type", None)

    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(DOCUMENTS)
def test_a_config_merged_with_nothing_or_with_itself_is_itself(document: dict[str, Any]) -> None:
    alone = NetworkConfig.model_validate(document)

    for configs in ([of_claim(document)], [of_claim({}), of_claim(document)], [of_claim(document)] * 2):
        assert decode(*configs) == alone


@given(st.lists(st.tuples(st.sampled_from(ConfigSource), NEAR_DOCUMENTS | JSON), max_size=3))
def test_any_json_is_a_config_or_an_error_with_a_field_path_in_every_line(
    given_configs: list[tuple[ConfigSource, Any]],
) -> None:
    configs = [
        OpaqueConfig(source, "dra.net", parameters, ("nic",))
        for source, parameters in given_configs
        if isinstance(parameters, dict)
    ]
    for line in lines(refusal(*configs)):
        assert re.match(
            r"config\[\d\]( \(from DeviceClass fast\))?\.parameters\b.*: (must|is|unknown) ", line
        )


def refusal(*configs: OpaqueConfig) -> str:
    try:
        decode(*configs)
    except ClaimError as error:
        return error.message
    return ""


def lines(message: str) -> Iterator[str]:
    assert message.isprintable()
    for line in message.split("; config[") if message else ():
        yield f"config[{line.removeprefix('config[')} "


def parameters_in(node: Any) -> Iterator[tuple[ConfigSource, dict[str, Any]]]:
    """Every opaque config of a Kubernetes object."""
    is_class = isinstance(node, dict) and node.get("kind") == "DeviceClass"
    spec = node["spec"].get("spec", node["spec"])
    for entry in spec.get("config", []) if is_class else spec["devices"].get("config", []):
        yield ConfigSource.CLASS if is_class else ConfigSource.CLAIM, entry["opaque"]["parameters"]


USER_PAGES = (
    "guides/claims", "guides/nccl", "guides/cpu-locality",
    "networking/ip-addressing", "networking/rdma", "networking/shared-nics",
)  # fmt: skip


def blocks_of_the_page(name: str, language: str) -> list[str]:
    page = (Path(dranet.__file__).parent.parent / "docs" / f"{name}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def examples_of_the_page(name: str) -> list[Any]:
    """Return the documents with parameters; a pod has none, nor have settings of the driver."""
    documents = [d for block in blocks_of_the_page(name, "yaml") for d in yaml.safe_load_all(block)]
    return [
        document for document in documents if document.get("kind") != "Pod" and "settings" not in document
    ]


def parameters_of_the_page(name: str) -> Iterator[tuple[ConfigSource, Any]]:
    for example in examples_of_the_page(name):
        yield from parameters_in(example) if "spec" in example else [(ConfigSource.CLAIM, example)]


@pytest.mark.parametrize("name", USER_PAGES)
def test_every_example_of_a_user_page_decodes(name: str) -> None:
    found = list(parameters_of_the_page(name))

    assert found
    for source, parameters in found:
        decode(OpaqueConfig(source, "dra.net", parameters, ("nic",)))


def test_the_messages_of_the_user_page_are_those_that_its_policy_makes() -> None:
    (device_class,) = (e for e in examples_of_the_page("guides/claims") if e.get("kind") == "DeviceClass")
    ((_, parameters),) = parameters_in(device_class)
    rail = of_class(parameters)
    told = [
        complaint(of_class({"interface": {"mtu": 10}})),
        complaint(rail, of_claim({"interface": {"adresses": []}, "routes": [{"scope": 253}]})),
        complaint(rail, of_claim({"rules": [{}]})),
        complaint(rail, of_claim({"interface": {"vrf": {"name": "red"}, "mtu": 9001}})),
    ]

    (messages,) = blocks_of_the_page("guides/claims", "text")
    for line in messages.splitlines():
        assert line.replace("DeviceClass rail", "DeviceClass fast") in "; ".join(told)

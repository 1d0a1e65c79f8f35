"""Configs are merged class first, claim last, and every mistake is told at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import dranet
from dranet.claims.config import decode_config, decode_configs
from dranet.claims.select import Selection
from dranet.errors import ClaimError, Reason
from dranet.model.claim import AllocationResult, ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.network import NOT_APPLIED, NetworkConfig

CIDR_COMPLAINT = "must be in CIDR form with a prefix length, e.g. 10.0.0.5/24, not '10.0.0.1'"


def of_class(parameters: dict[str, Any], *requests: str) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLASS, "dra.net", parameters, requests)


def of_claim(parameters: dict[str, Any], *requests: str) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters, requests)


def complaint(*configs: OpaqueConfig) -> str:
    with pytest.raises(ClaimError) as caught:
        decode_config(configs)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return caught.value.message


def test_no_config_asks_for_nothing() -> None:
    assert decode_config([]) == NetworkConfig()
    assert decode_config([of_claim({})]).is_empty


def test_the_claim_wins_over_the_class_field_by_field_whatever_their_order() -> None:
    base = of_class({"interface": {"name": "net0", "mtu": 9000}})
    own = of_claim({"interface": {"mtu": 1500}})

    for configs in ([base, own], [own, base]):
        interface = decode_config(configs).interface
        assert (interface.name, interface.mtu) == ("net0", 1500)


def test_later_configs_of_the_same_source_win() -> None:
    configs = [of_claim({"interface": {"mtu": mtu}}) for mtu in (1400, 1500)]

    assert decode_config(configs).interface.mtu == 1500


def test_lists_replace_and_do_not_append() -> None:
    base = of_class(
        {
            "interface": {"addresses": ["10.0.0.1/24", "10.0.0.2/24"]},
            "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.254"}],
        }
    )
    config = decode_config([base, of_claim({"interface": {"addresses": ["10.0.0.3/24"]}, "routes": []})])

    assert config.interface.addresses == ("10.0.0.3/24",)
    assert config.routes == ()


def test_explicit_values_count_and_null_does_not() -> None:
    base = of_class({"interface": {"name": "net0", "addresses": ["10.0.0.1/24"]}})
    explicit = decode_config([base, of_claim({"interface": {"name": "", "addresses": []}})])
    null = decode_config([base, of_claim({"interface": None, "routes": None})])

    assert (explicit.interface.name, explicit.interface.addresses) == ("", ())
    assert (null.interface.name, null.interface.addresses) == ("net0", ("10.0.0.1/24",))


def test_both_forms_decode() -> None:
    versioned = {"apiVersion": "dra.net/v1alpha1", "kind": "NetworkConfig", "interface": {"mtu": 9000}}

    assert decode_config([of_claim(versioned)]) == decode_config([of_claim({"interface": {"mtu": 9000}})])


def test_every_mistake_of_every_config_is_in_one_message_with_its_path() -> None:
    message = complaint(
        of_class({"interface": {"mtu": 10}}),
        of_claim(
            {"interface": {"addresses": ["10.0.0.1", "10.0.0.2/24"], "mtoo": 1}, "routes": [{"table": "x"}]}
        ),
    )

    assert message.split("; ") == [
        "config[0] (from the DeviceClass).parameters.interface.mtu: must be at least 68, not 10",
        "config[1].parameters.interface.addresses[0]: " + CIDR_COMPLAINT,
        "config[1].parameters.interface.mtoo: unknown field",
        "config[1].parameters.routes[0].destination: is required",
        "config[1].parameters.routes[0].table: must be a valid integer, not 'x'",
    ]


@pytest.mark.parametrize("path", sorted(NOT_APPLIED))
def test_fields_of_dranet_that_are_not_applied_are_refused_by_name(path: str) -> None:
    head, _, tail = path.partition(".")
    message = complaint(of_claim({head: {tail: False}} if tail else {head: []}))

    assert message == f"config[0].parameters.{path}: known to DraNet, not applied by this version; remove it"


def test_a_conflict_that_only_the_merge_makes_is_found() -> None:
    message = complaint(
        of_class({"interface": {"mtu": 1000}}), of_claim({"interface": {"addresses": ["fd00::1/64"]}})
    )

    assert message.startswith("merged parameters.interface: mtu must be at least 1280")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"interface": 5}, "parameters.interface: must be an object, not 5"),
        ({"routes": {}}, "parameters.routes: must be a list"),
        ({"apiVersion": "v1"}, "parameters: apiVersion and kind must be"),
        ({"interface": {"name": "x" * 200}}, "must have at most 15 bytes, not 'xxx"),
    ],
)
def test_wrong_shapes_are_told_in_plain_words(parameters: dict[str, Any], text: str) -> None:
    assert text in complaint(of_claim(parameters))


def test_a_gpu_takes_no_part_in_a_config_meant_for_the_whole_claim() -> None:
    everywhere = of_claim({"interface": {"mtu": 9000}})
    aimed = of_claim({"interface": {"mtu": 9000}}, "gpu")

    assert decode_config([everywhere], kind=DeviceKind.GPU).is_empty
    assert not decode_config([aimed], kind=DeviceKind.GPU).is_empty
    with pytest.raises(ClaimError):
        decode_config([of_claim({"interface": {"mtu": 1}})], kind=DeviceKind.GPU)


def test_a_whole_claim_is_decoded_at_once_and_names_each_mistake_once() -> None:
    bad, good = of_claim({"interface": {"mtu": 1}}), of_claim({"interface": {"mtu": 1500}}, "b")
    results = [AllocationResult(name, "dra.net", "pool", f"dev-{name}") for name in ("a", "b")]
    nic = DeviceKind.NIC

    with pytest.raises(ClaimError) as caught:
        decode_configs([(Selection(r, (bad,), (3,)), nic) for r in results])
    assert caught.value.message == "config[3].parameters.interface.mtu: must be at least 68, not 1"

    one, two = decode_configs([(Selection(results[0]), nic), (Selection(results[1], (good,), (0,)), nic)])
    assert (one.interface.mtu, two.interface.mtu) == (None, 1500)


def test_the_example_of_the_user_page_decodes() -> None:
    page = (Path(dranet.__file__).parent.parent / "docs" / "user" / "claims.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    template = yaml.safe_load(block)
    (config,) = template["spec"]["spec"]["devices"]["config"]

    decoded = decode_config([of_claim(config["opaque"]["parameters"], *config["requests"])])
    assert decoded.interface.addresses == ("192.168.10.5/24",)
    assert decoded.routes[0].gateway == "192.168.10.1"

"""A DeviceClass says what claims may set; a policy that cannot be judged lets nothing pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cel import engine
from dranet.claims.config import SelectedResult, decode_configs, select_results
from dranet.errors import ClaimError
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import walk_fields
from tests.model.network_documents import DOCUMENTS, JSON

RESULT = AllocationResult("nic", "dra.net", "pool", "eth1")
POLICY = "config[0] (from DeviceClass fast).parameters.policy"
CLAIM = "config[1].parameters"


def class_config(policy: Any, **parameters: Any) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLASS, "dra.net", {"policy": policy, **parameters}, ("nic",))


def claim_config(**parameters: Any) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters)


def decode(*configs: OpaqueConfig, namespace: str = "default") -> NetworkConfig:
    selection = SelectedResult(RESULT, configs, tuple(range(len(configs))), "fast", namespace)
    (config,) = decode_configs([(selection, DeviceKind.NIC)])
    return config


def complaints(*configs: OpaqueConfig, namespace: str = "default") -> list[str]:
    with pytest.raises(ClaimError) as caught:
        decode(*configs, namespace=namespace)
    return caught.value.message.split("; ")


def rule(**fields: str) -> dict[str, Any]:
    return {"rules": [fields]}


def judge(expression: str, namespace: str = "default", field: str = "interface.mtu", **claim: Any) -> str:
    """What is said of a claim under one rule; empty when it passes."""
    policy = class_config(rule(field=field, expression=expression))
    try:
        decode(policy, claim_config(**claim), namespace=namespace)
    except ClaimError as error:
        return error.message
    return ""


def test_only_what_is_allowed_may_be_set() -> None:
    policy = class_config({"allow": ["interface.name", "interface.vrf", "routes"]})

    decode(policy, claim_config(interface={"name": "net1", "vrf": {"name": "red"}}, routes=[]))
    refusal = "must not be set by a claim: DeviceClass fast allows interface.name, interface.vrf, routes"
    assert complaints(policy, claim_config(interface={"name": "net1", "mtu": 9000}, rules=[])) == [
        f"{CLAIM}.interface.mtu: {refusal}",
        f"{CLAIM}.rules: {refusal}",
    ]


def test_a_lock_covers_everything_below_it() -> None:
    policy = class_config({"lock": ["interface.rateLimit", "sysctls"]})

    decode(policy, claim_config(interface={"mtu": 9000}))
    limits = {"egress": {"rate": "1G"}}
    refusal = "must not be set by a claim: DeviceClass fast locks"
    assert complaints(policy, claim_config(interface={"rateLimit": limits}, sysctls={"net.a": 0})) == [
        f"{CLAIM}.interface.rateLimit.egress.rate: {refusal} interface.rateLimit",
        f"{CLAIM}.sysctls: {refusal} sysctls",
    ]


def test_a_lock_is_of_whole_names() -> None:
    decode(class_config({"lock": ["interface.gsoMaxSize"]}), claim_config(interface={"gsoIPv4MaxSize": 1}))


@pytest.mark.parametrize(
    "nothing", [{}, {"interface": {}}, {"interface": None}, {"interface": {"mtu": None}}]
)
def test_what_is_not_set_breaks_no_policy(nothing: dict[str, Any]) -> None:
    decode(class_config({"allow": []}), claim_config(**nothing))


@pytest.mark.parametrize("empty", [{"interface": {"addresses": []}}, {"routes": []}, {"profile": ""}])
def test_an_explicit_empty_value_is_set(empty: dict[str, Any]) -> None:
    assert (
        "DeviceClass fast allows nothing" in complaints(class_config({"allow": []}), claim_config(**empty))[0]
    )


def test_the_class_itself_may_set_what_it_locks() -> None:
    locked = class_config(
        {"lock": ["interface"], "rules": [{"field": "interface.mtu", "expression": "false"}]},
        interface={"mtu": 9000},
    )

    assert decode(locked, claim_config(rdma={"memlock": "unlimited"})).interface.mtu == 9000


def test_the_policies_of_all_configs_hold() -> None:
    configs = (class_config({"lock": ["routes"]}), class_config({"lock": ["rules"]}))

    found = complaints(*configs, claim_config(routes=[], rules=[]))
    assert [line.partition(":")[0] for line in found] == [
        "config[2].parameters.routes",
        "config[2].parameters.rules",
    ]


def test_the_config_that_broke_it_is_named() -> None:
    policy = class_config({"lock": ["interface.mtu"]})
    first, second = claim_config(interface={"mtu": 9000}), claim_config(interface={"name": "net1"})

    assert complaints(policy, first, second)[0].startswith("config[1].parameters.interface.mtu:")


def test_a_claim_cannot_carry_a_policy() -> None:
    text = "config[0].parameters.policy: must not be in a claim: only a DeviceClass may carry one"

    assert complaints(claim_config(policy={"allow": ["interface"]})) == [text]
    decode(claim_config(policy=None))


def test_a_rule_is_asked_only_where_the_claim_sets_its_field() -> None:
    assert judge("false") == ""
    assert judge("false", interface={"name": "net1"}) == ""
    assert judge("false", interface={"mtu": 1500}) == (
        "config[1].parameters.interface.mtu: is refused by DeviceClass fast: it must satisfy false"
    )


def test_the_message_of_a_rule_is_what_the_user_reads() -> None:
    policy = class_config(rule(field="interface.mtu", expression="value <= 1500", message="no jumbo frames"))

    (line,) = complaints(policy, claim_config(interface={"mtu": 9000}))
    assert line.endswith("interface.mtu: is refused by DeviceClass fast: no jumbo frames")


@pytest.mark.parametrize(
    ("field", "expression", "good", "bad"),
    [
        ("interface.mtu", "value <= 1500", {"interface": {"mtu": 1500}}, {"interface": {"mtu": 1501}}),
        (
            "interface.rateLimit.egress.rate",
            "value <= 1000000000",
            {"interface": {"rateLimit": {"egress": {"rate": "1G"}}}},
            {"interface": {"rateLimit": {"egress": {"rate": "1.1G"}}}},
        ),
        (
            "routes",
            'value.all(r, r.destination.startsWith("10.") && !has(r.table))',
            {"routes": [{"destination": "10.1.2.3/16", "scope": 253}]},
            {"routes": [{"destination": "10.1.0.0/16", "scope": 253, "table": 5}]},
        ),
        (
            "interface.vrf",
            'value.name == "red"',
            {"interface": {"vrf": {"name": "red"}}},
            {"interface": {"vrf": {"name": "x"}}},
        ),
        (
            "interface.hardwareAddr",
            'value.startsWith("02:ab:")',
            {"interface": {"hardwareAddr": "02-AB-00-00-00-01"}},
            {"interface": {"hardwareAddr": "02-AC-00-00-00-01"}},
        ),
        (
            "sysctls",
            'value.all(name, name == "net.ipv4.tcp_ecn" && value[name] == "1")',
            {"sysctls": {"net.ipv4.tcp_ecn": 1}},
            {"sysctls": {"net.ipv4.tcp_ecn": 0}},
        ),
        (
            "interface.addresses",
            "size(value) == 0",
            {"interface": {"addresses": []}},
            {"interface": {"addresses": ["10.0.0.1/8"]}},
        ),
    ],
)
def test_a_rule_sees_the_value_that_the_kernel_would(
    field: str, expression: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert judge(expression, field=field, **good) == ""
    assert "is refused by DeviceClass fast" in judge(expression, field=field, **bad)


def test_a_rule_sees_what_the_claim_sets_and_not_what_the_class_does() -> None:
    policy = rule(field="interface.vrf", expression="!has(value.table)")
    base = class_config(policy, interface={"vrf": {"table": 1100}})

    decode(base, claim_config(interface={"vrf": {"name": "red"}}))
    assert complaints(base, claim_config(interface={"vrf": {"name": "red", "table": 1100}}))


def test_a_rule_may_tell_namespaces_apart() -> None:
    expression = 'value <= 1500 || claim.namespace == "storage"'

    assert judge(expression, "storage", interface={"mtu": 9000}) == ""
    assert judge(expression, "default", interface={"mtu": 9000})


@pytest.mark.parametrize(
    ("policy", "path", "text"),
    [
        ({"allow": ["interface.mtoo"]}, ".allow[0]", "must be the path of a field"),
        ({"lock": ["routes[].gateway"]}, ".lock[0]", "must be the path of a field"),
        ({"lock": ["ethtool.features.gro"]}, ".lock[0]", "must be the path of a field"),
        ({"lock": ["policy"]}, ".lock[0]", "must be the path of a field"),
        ({"deny": []}, ".deny", "unknown field"),
        (rule(field="mtu", expression="true"), ".rules[0].field", "must be the path of a field"),
        (rule(field="routes"), ".rules[0].expression", "is required"),
        (rule(field="routes", expression=""), ".rules[0].expression", "must not be empty"),
        (rule(field="routes", expression="1 +"), ".rules[0].expression", "does not compile"),
        (rule(field="routes", expression="size(value)"), ".rules[0].expression", "must be a bool, not int"),
        (rule(field="routes", expression="device.driver == ''"), ".rules[0].expression", "undeclared"),
        (rule(field="routes", expression="true \ud800"), ".rules[0].expression", "must be Unicode text"),
        (
            rule(field="routes", expression="true", message="\ud800"),
            ".rules[0].message",
            "must be Unicode text",
        ),
        ("none", "", "must be an object"),
    ],
)
def test_a_policy_that_is_not_understood_lets_nothing_pass(policy: Any, path: str, text: str) -> None:
    (line,) = complaints(class_config(policy), claim_config())

    assert line.startswith(f"{POLICY}{path}: ")
    assert text in line


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("value", "must be a bool, not int"),
        ('value == 1 || value.name == "x"', "expression failed"),
        ("value / 0 == 1", "divide by zero"),
        ('value < "x"', "No matching overloads"),
    ],
)
def test_a_rule_that_cannot_be_judged_refuses_the_claim(expression: str, why: str) -> None:
    line = judge(expression, interface={"mtu": 9000})

    head = "config[1].parameters.interface.mtu: is refused: the rule of DeviceClass fast cannot be judged: "
    assert line.startswith(head)
    assert why in line


def test_no_number_means_unlimited() -> None:
    assert judge("value <= 1048576", field="rdma.memlock", rdma={"memlock": "1Mi"}) == ""
    assert "cannot be judged" in judge(
        "value <= 1048576", field="rdma.memlock", rdma={"memlock": "unlimited"}
    )


def test_an_expression_that_would_never_end_refuses_the_claim() -> None:
    ten = f"[{', '.join(map(str, range(10)))}]"
    nested = "true"
    for depth in range(12):
        nested = f"{ten}.all(x{depth}, {nested})"

    assert "too expensive" in judge(nested, interface={"mtu": 9000})


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    monkeypatch.setitem(sys.modules, "cel_expr_python.cel", None)
    engine._environment.cache_clear()
    yield
    engine._environment.cache_clear()


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_rules_refuse_every_claim_and_the_rest_of_a_policy_works() -> None:
    policy = class_config(rule(field="interface.mtu", expression="true"))

    (line,) = complaints(policy, claim_config())
    assert line.startswith(f"{POLICY}.rules[0].expression: cannot be used: CEL expressions need an engine")
    decode(class_config({"allow": ["interface"]}), claim_config(interface={"mtu": 1500}))
    assert complaints(class_config({"lock": ["interface"]}), claim_config(interface={"mtu": 1500}))


PATHS = st.lists(st.sampled_from([path for path, _ in walk_fields(NetworkConfig)]), max_size=4)


def leaves(node: Any, path: str = "") -> Iterator[str]:
    if not isinstance(node, dict):
        yield path
    for name, below in node.items() if isinstance(node, dict) else ():
        yield from leaves(below, f"{path}.{name}")


@given(DOCUMENTS, PATHS)
def test_a_claim_passes_a_lock_if_it_sets_nothing_below_and_an_allowance_if_nothing_else(
    document: dict[str, Any], paths: list[str]
) -> None:
    covered = [any(f"{leaf}.".startswith(f".{path}.") for path in paths) for leaf in leaves(document)]

    assert passes({"lock": paths}, document) is not any(covered)
    assert passes({"allow": paths}, document) is all(covered)


def passes(policy: Any, document: dict[str, Any]) -> bool:
    try:
        decode(class_config(policy), claim_config(**document))
    except ClaimError:
        return False
    return True


EXPRESSIONS = st.sampled_from(
    ["true", "value == value", "value.x == 1", "size(value) > 0", "value", "1 +", ""]
)


@given(
    DOCUMENTS,
    st.fixed_dictionaries(
        {},
        optional={
            "allow": PATHS | JSON,
            "rules": JSON
            | st.lists(
                st.fixed_dictionaries({"field": st.just("interface.mtu"), "expression": EXPRESSIONS | JSON}),
                max_size=2,
            ),
            "more": JSON,
        },
    ),
)
def test_any_policy_is_obeyed_or_refused(document: dict[str, Any], policy: dict[str, Any]) -> None:
    passes(policy, document)


def test_class_and_namespace_come_from_the_claim() -> None:
    configs = (
        OpaqueConfig(ConfigSource.CLASS, "dra.net", {"policy": {"lock": ["routes"]}}, ("nic/fast",)),
        claim_config(routes=[]),
    )
    results = (AllocationResult("nic/fast", "dra.net", "pool", "eth1"),)
    classes = {"nic/fast": "rail", "nic/slow": "any"}
    claim = Claim(ClaimRef("team", "c", "u"), True, results, configs, request_classes=classes)
    (selection,) = select_results(claim, "dra.net")

    assert (selection.device_class, selection.namespace) == ("rail", "team")
    with pytest.raises(ClaimError, match="DeviceClass rail locks routes"):
        decode_configs([(selection, DeviceKind.NIC)])


def test_a_class_without_a_name_is_still_obeyed() -> None:
    selection = SelectedResult(RESULT, (class_config({"lock": ["routes"]}), claim_config(routes=[])))

    with pytest.raises(ClaimError, match="the DeviceClass locks routes"):
        decode_configs([(selection, DeviceKind.NIC)])


@pytest.mark.parametrize("allow", [None, ["interface"], ["interface.vf.trust"]])
def test_a_virtual_function_is_administered_by_a_claim_only_where_the_class_names_it(allow: Any) -> None:
    configs = [claim_config(interface={"vf": {"vlan": 100}})]
    if allow is not None:
        configs.insert(0, class_config({"allow": allow}))
    (line, *_) = complaints(*configs)
    assert "interface.vf.vlan: must not be set by a claim" in line


@pytest.mark.parametrize("allow", ["interface.vf", "interface.vf.vlan"])
def test_a_class_opens_the_administration_by_name(allow: str) -> None:
    config = decode(class_config({"allow": [allow]}), claim_config(interface={"vf": {"vlan": 100}}))
    assert config.interface.vf.vlan == 100

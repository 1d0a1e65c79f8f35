"""The parameters policy, rule by rule: each refuses something that no other does, and lets its mend pass."""

from __future__ import annotations

import json
from typing import Annotated

import pytest

from dranet.model.parameters.part import AfterValidator

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from tests.tools.manifests.admission.evaluation import (
    claim,
    code_lines,
    complaints,
    complaints_by_rule,
    config,
    device_class,
    policy,
    rule_names,
    template,
)
from tests.tools.manifests.admission.policy_cases import CASES, Case
from tools.manifests.parameter_checks import build_check
from tools.manifests.parameters_policy import build_match_conditions, build_parameters_policy, build_rules

ONE_KIB = 1024


def objects(case: Case, parameters: dict[str, object]) -> list[dict[str, object]]:
    configs = [config(parameters)]
    return [device_class(configs)] if case.of_class else [claim(configs), template(configs)]


def test_every_rule_has_a_case_and_no_case_is_without_a_rule() -> None:
    assert set(CASES) == set(rule_names())


@pytest.mark.parametrize("name", CASES)
def test_a_rule_refuses_what_no_other_refuses(name: str) -> None:
    case = CASES[name]
    for body in objects(case, case.bad):
        found = complaints_by_rule(body)
        assert list(found) == [name]
        assert case.says in found[name]
        assert case.says in "; spec.".join(complaints(body))


@pytest.mark.parametrize("name", CASES)
def test_and_lets_the_mend_pass(name: str) -> None:
    case = CASES[name]
    for body in objects(case, case.good):
        assert complaints_by_rule(body) == {}
        assert complaints(body) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.of_class])
def test_what_a_rule_says_the_driver_says_in_the_same_words(name: str) -> None:
    case = CASES[name]
    (told,) = complaints(claim([config(case.bad)]))
    path, _, text = told.partition(": ")
    own = path.replace("spec.devices.", "").replace(".opaque", "")
    cause = text.partition(", not ")[0].partition("; fields are")[0]
    assert any(line.startswith(f"{own}: {cause}") for line in code_lines([config(case.bad)]))
    assert code_lines([config(case.good)]) == []


def test_paths_are_those_of_the_object() -> None:
    wrong = [config({}), config({"interface": {"mtu": 1}})]
    tail = "config[1].opaque.parameters.interface.mtu: must be at least 68, not 1"
    assert complaints(claim(wrong)) == [f"spec.devices.{tail}"]
    assert complaints(template(wrong)) == [f"spec.spec.devices.{tail}"]
    assert complaints(device_class(wrong)) == [f"spec.{tail}"]


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"interface": {"mtu": 1, "name": "a b"}, "routes": [{"destination": "here"}], "nccl": {"x": 1}}
    assert len(complaints(claim([config(wrong)]))) == 5


def test_another_drivers_config_is_not_looked_at() -> None:
    other = config({"interface": 5}, driver="gpu.example.com")
    assert complaints(claim([other])) == []
    assert complaints(claim([config({}), other])) == []
    assert len(complaints(claim([config({"interface": 5}), other]))) == 1


def test_a_claim_without_configs_or_devices_passes() -> None:
    specs: list[dict[str, object]] = [{}, {"devices": {}}, {"devices": {"config": []}}]
    for spec in specs:
        assert complaints({"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}) == []
    assert complaints({"kind": "DeviceClass", "metadata": {"name": "k"}, "spec": {}}) == []


def test_an_update_that_leaves_the_spec_alone_passes_whatever_the_spec_says() -> None:
    bad = device_class([config({"interface": {"mtu": 1}})])
    labelled = {**bad, "metadata": {"name": "k", "labels": {"a": "b"}}}
    assert complaints(labelled, before=bad) == []
    assert len(complaints(bad, before=device_class([config({})]))) == 1


def test_a_later_config_for_the_same_requests_may_mend_a_conflict() -> None:
    clash = {"interface": {"dhcp": True, "addresses": ["10.0.0.5/24"]}}
    mend = {"interface": {"dhcp": False}}
    assert len(complaints(claim([config(clash)]))) == 1
    assert complaints(claim([config(clash), config(mend)])) == []
    assert len(complaints(claim([config(mend), config(clash)]))) == 1
    assert len(complaints(claim([config(clash, ["a"]), config(mend, ["b"])]))) == 1
    assert complaints(claim([config(clash, ["a/fast"]), config(mend, ["a/slow", "b"])])) == []


def test_a_message_is_cut_before_kubernetes_drops_it() -> None:
    wrong = {"sysctls": {f"net.ipv4.tcp_{'ä' * 60}{number}": "" for number in range(60)}}
    (told,) = complaints(claim([config(wrong)]))[:1]
    whole = "; spec.".join(complaints(claim([config(wrong)])))
    assert told.startswith("spec.devices.config[0]")
    assert 3 * ONE_KIB // 2 < len(whole.encode()) <= 5 * ONE_KIB
    assert whole.endswith(" ... and more")


def test_lines_in_a_value_make_no_lines_in_the_message() -> None:
    (told,) = complaints(claim([config({"interface": {"name": "a\nb"}})]))
    assert "\n" not in told
    assert "'a b'" in told


def test_the_policy_is_far_below_the_limits_of_its_size() -> None:
    """``kubectl apply`` keeps a copy in an annotation, of which there may be 256 KiB."""
    assert len(json.dumps(policy())) < 100 * ONE_KIB
    longest = max(len(variable["expression"]) for variable in policy()["spec"]["variables"])
    assert longest < 10 * ONE_KIB
    assert len(build_match_conditions("dra.net")) <= 64


def test_each_variable_is_declared_once_and_before_it_is_used() -> None:
    seen: set[str] = set()
    for variable in policy()["spec"]["variables"]:
        text = variable["expression"]
        used = {word for word in rule_names() if f"variables.{word}," in text or f"variables.{word}]" in text}
        assert used <= seen
        assert variable["name"] not in seen
        seen.add(variable["name"])
    assert set(rule_names()) <= seen


def test_the_binding_does_what_it_is_told() -> None:
    _, binding = build_parameters_policy(actions=("Warn", "Audit"))
    assert binding["spec"] == {"policyName": "dranet-parameters", "validationActions": ["Warn", "Audit"]}


def test_every_rule_says_what_it_finds() -> None:
    assert [rule.name for rule in build_rules() if not rule.finds] == []


@pytest.mark.parametrize(
    ("parameters", "is_right"),
    [
        ({"routes": [{"destination": "::ffff:10.0.0.0/120", "gateway": "::ffff:10.0.0.1"}]}, True),
        ({"interface": {"addresses": ["::ffff:a00:1/120"]}}, True),
        ({"routes": [{"destination": "10.0.0.0/08", "gateway": "10.0.0.1"}]}, True),
        ({"interface": {"ipv6": {"token": "::5%eth0"}}}, True),
        ({"interface": {"rateLimit": {"egress": {"rate": "1.5Mi"}}}}, True),
        ({"interface": {"rateLimit": {"egress": {"rate": "9.00001k"}}}}, False),
        ({"interface": {"type": "vlan"}}, False),
        ({"interface": {"vrf": {"table": 5}}}, False),
        ({"nccl": {"gidIndex": 3}}, False),
        ({"routes": [{"destination": "10.1.0.0/16", "gateway": f"10.0.0.{n}"} for n in (1, 2)]}, False),
    ],
)
def test_what_cel_cannot_judge_passes_whether_it_is_right_or_not(
    parameters: dict[str, object], is_right: bool
) -> None:
    """Each line is one of ``LEFT_TO_PREPARE``; the code judges it."""
    assert complaints(claim([config(parameters)])) == []
    assert (code_lines([config(parameters)]) == []) is is_right


def test_a_validator_without_cel_stops_the_generator() -> None:
    def be_even(value: int) -> int:
        return value

    with pytest.raises(NotImplementedError, match="no CEL for"):
        build_check(Annotated[int, AfterValidator(be_even)])

"""The parameters policy and the driver's code, field by field and conflict by conflict: both say the same of
whatever can be wrong with one field, and of whatever can be taken out of a conflict.

Drawn configs (``test_policy_and_code``) find what nobody thought of; these leave nothing of the schema out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from tests.tools.manifests.admission.evaluation import (
    claim,
    code_lines,
    complaints_by_rule,
    config,
    device_class,
)
from tests.tools.manifests.admission.policy_cases import CASES, interface, neighbour, route, rule
from tests.tools.manifests.admission.test_policy_and_code import is_tolerated
from tests.tools.manifests.admission.wrong_values import (
    OF_WHOLE,
    Json,
    Told,
    iter_fields,
    told_by_code,
    told_by_policy,
    values_for,
    variations,
    wrap,
)
from tools.manifests.parameter_conflicts import iter_conflicts
from tools.manifests.parameter_rules import rule_name

CONFLICTS = {rule_name(conflict.word): conflict for conflict in iter_conflicts()}
SETTLED = [(name, field) for name, conflict in CONFLICTS.items() for field in conflict.settled]
LATER: Json = {
    "interface": {"name": "net9"},
    "routes": [],
    "rules": [],
    "neighbors": [],
    "cpuLocality": {},
    "profile": "",
}
"""Something about each outermost field, of which a later config may take back what an earlier one said."""


V6_ROUTE = {"destination": "fd00::/8", "gateway": "fd00::1"}
NEARLY_WRONG: tuple[Json, ...] = (
    interface(type="macvlan", dhcp=True),
    interface(mtu=1279, addresses=["10.0.0.5/24"]),
    interface(mtu=1280, addresses=["fd00::5/64"]),
    interface(ipv6={"enabled": True}, addresses=["fd00::5/64"]),
    interface(ipv6={"acceptRA": 0}),
    interface(vrf={"name": "blue", "table": 252}),
    interface(vrf={"name": "blue"}),
    {**interface(vrf={"name": "blue", "table": 1100}), "rules": [], **route(table=0)},
    {"routes": [V6_ROUTE]},
    {"routes": [{**V6_ROUTE, "source": "fd00::5"}]},
    {"routes": [{"destination": "fd00::/8", "scope": 253}]},
    {"routes": [{"destination": "fd00::/8", "nextHops": [{"gateway": "fd00::1"}]}]},
    rule(destination="fd00::/8", mark=1),
    rule(source="fd00::/8", mark=1),
    rule(source="fd00::/8", destination="fd01::/8"),
    {**interface(ipv6={"enabled": True}), "routes": [V6_ROUTE]},
    {**interface(ipv6={"enabled": False}), **route(), **neighbour()},
    {**interface(type="passthrough"), "cpuLocality": {"irq": True, "xps": True, "rps": True}},
    {**interface(type="macvlan"), "cpuLocality": {"irq": False, "xps": None}},
)
"""Right, and one step away from a conflict."""


def is_sure(value: object, told: Told) -> bool:
    """Whether the policy has to say it: not what it leaves to Prepare."""
    return not any(is_tolerated(f"{json.dumps(value)}: {cause}") for _, cause in told)


def of_fields(told: Told) -> Told:
    return {(path, cause) for path, cause in told if not OF_WHOLE.search(cause)}


def paths_of(told: Told) -> set[str]:
    return {path for path, _ in told}


@pytest.mark.parametrize("way", list(iter_fields()), ids=".".join)
def test_both_say_the_same_of_each_value_of_a_field(way: Sequence[str]) -> None:
    of_class = way[0] == "policy"
    values = values_for(way)
    probes = [wrap(way, value) for value in values]
    refused = 0
    for value, parameters, told in zip(
        values, probes, told_by_policy(probes, of_class=of_class), strict=True
    ):
        mine, theirs = of_fields(told), of_fields(told_by_code(parameters, of_class=of_class))
        assert paths_of(mine) <= paths_of(theirs), parameters
        if is_sure(value, theirs):
            assert paths_of(mine) == paths_of(theirs), parameters
            assert mine == theirs or str(2**63) in str(value), parameters
        refused += bool(mine)
    assert refused, "no value of it was wrong"


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_is_left_of_a_conflict_is_refused_only_where_the_code_refuses_it(name: str) -> None:
    """Parts of it are taken away, which a DeviceClass may give, or are of a kind that nobody expects."""
    case = CASES[name]
    left = [*variations(case.bad), *variations(case.good)]
    for parameters, told in zip(left, told_by_policy(left, of_class=case.of_class), strict=True):
        if told:
            assert told_by_code(parameters, of_class=case.of_class), parameters
        if told and not case.of_class:
            assert code_lines([config(parameters)], [config(case.good)]), parameters


@pytest.mark.parametrize("parameters", NEARLY_WRONG, ids=str)
def test_what_is_nearly_a_conflict_is_none(parameters: Json) -> None:
    assert code_lines([config(parameters)]) == []
    assert complaints_by_rule(claim([config(parameters)])) == {}


@pytest.mark.parametrize(("name", "field"), SETTLED)
def test_a_conflict_is_none_where_a_later_config_speaks_of_a_side(name: str, field: str) -> None:
    bad = config(CASES[name].bad)
    assert name in complaints_by_rule(claim([bad]))
    assert name not in complaints_by_rule(claim([bad, config({field: LATER[field]})]))


@pytest.mark.parametrize("name", [name for name, conflict in CONFLICTS.items() if conflict.settled])
def test_a_conflict_in_a_class_is_left_to_prepare(name: str) -> None:
    assert complaints_by_rule(device_class([config(CASES[name].bad)])) == {}

"""The admission policy for the parameters of claims, claim templates and DeviceClasses. Pure.

It reports at ``kubectl apply`` what the driver would report when a pod starts, in the same words and all at
once. It is made from the parameters' own schema and never stricter than the driver: what it cannot judge it
lets pass, and so does an expression that fails (``failurePolicy: Ignore``), because Prepare judges everything
again (docs/decisions/045-admission-policies.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dranet.cluster.permissions import DRIVER_NAME
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import walk_fields
from tools.manifests.cel_text import quote, quote_all
from tools.manifests.parameter_checks import PATHS
from tools.manifests.parameter_conflicts import iter_conflicts
from tools.manifests.parameter_rules import (
    ROOT,
    Rule,
    Variable,
    build_field_rules,
    build_place_variables,
    rule_name,
)

JsonObject = dict[str, Any]

NAME = "dranet-parameters"
PAGE = "docs/reference/parameters.md"
RESOURCES = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")

_GROUP = "admissionregistration.k8s.io/v1"
_SHOWN_BYTES = 5000
"""Kubernetes takes a message of 5 KiB, and none that is longer."""
_SHOWN_CHARACTERS = 1200
_SUM_MAX = 12
"""Rules in one sum: the depth of an expression is limited."""

LEFT_TO_PREPARE = (
    (
        "what a DeviceClass or another config can add or remove: a missing field (`vlan.id`, "
        "`vrf.name`, `rateLimit.egress.rate`), a conflict with a later config, every conflict "
        "in a DeviceClass"
    ),
    "entries of a list with the same destination, and other conflicts between entries",
    (
        "the `policy` of a DeviceClass: what its claims can set, and whether its expressions compile "
        "(expressions in the policy of a DeviceClass)"
    ),
    "`interface.vf`: whether a class opens it to its claims, and conflicts between its fields",
    "IPv4-mapped IPv6 addresses (`::ffff:10.0.0.1`), which the CEL functions do not accept",
    "prefix lengths with a leading zero (`10.0.0.0/08`), for the same reason",
    "quantities that are not whole numbers (`1.0001k`): Kubernetes does not recognise all of them",
    "scopes of IPv6 tokens (`::5%eth0`)",
    "which sysctls a claim can write, and everything that depends on the device, the link or the node",
)
"""What the policy lets pass, on the safe side; Prepare and ``dranet validate`` judge it."""

IS_CLASS = "request.resource.resource == 'deviceclasses'"
IS_TEMPLATE = "request.resource.resource == 'resourceclaimtemplates'"


def configs_of(owner: str) -> str:
    """CEL: the ``config`` list of a claim, a template or a class."""
    return (
        f"({IS_CLASS} ? {owner}.?spec.?config.orValue([]) : {IS_TEMPLATE} ? "
        f"{owner}.?spec.?spec.?devices.?config.orValue([]) : {owner}.?spec.?devices.?config.orValue([]))"
    )


def is_ours(driver: str) -> str:
    """CEL over ``c``, an entry of ``config``."""
    return f"c.?opaque.?driver.orValue('') == {quote(driver)}"


def build_rules() -> list[Rule]:
    """Return everything that the policy refuses, in the order of its report."""
    _, rules = build_field_rules()
    return [*rules, _policy_of_claim(), *(conflict.build_rule() for conflict in iter_conflicts())]


def _policy_of_claim() -> Rule:
    text = "must not be in a claim: only a DeviceClass may carry one"
    limited = f"variables.{ROOT}.filter(o, o.it[?'policy'].orValue(null) != null)"
    expression = f"variables.isClass ? '' : {limited}.map(o, o.at + {quote(f'.policy: {text}')}).join('; ')"
    return Rule(rule_name("policyInClaim"), expression, text, ("policy",))


def build_parameters_policy(
    driver: str = DRIVER_NAME, *, actions: tuple[str, ...] = ("Deny",), failure_policy: str = "Ignore"
) -> list[JsonObject]:
    """The policy and its binding."""
    variables = [
        *iter_config_variables(driver),
        *build_place_variables(),
        (PATHS, quote_all(sorted(path for path, _ in walk_fields(NetworkConfig)))),
        build_field_rules()[0],
        *((rule.name, rule.expression) for rule in build_rules()),
        *_iter_sums(),
    ]
    return [
        {
            "apiVersion": _GROUP,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": {
                "failurePolicy": failure_policy,
                "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [_resource_rule()]},
                "matchConditions": build_match_conditions(driver),
                "variables": [{"name": name, "expression": text} for name, text in variables],
                "validations": [_build_validation()],
            },
        },
        build_binding(NAME, actions),
    ]


def build_binding(name: str, actions: tuple[str, ...]) -> JsonObject:
    """The binding that puts a policy into force everywhere."""
    return {
        "apiVersion": _GROUP,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }


def _resource_rule() -> JsonObject:
    """Other versions are converted (``Equivalent``)."""
    return {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "resources": list(RESOURCES),
        "operations": ["CREATE", "UPDATE"],
    }


def build_match_conditions(driver: str) -> list[JsonObject]:
    """Skip updates that do not change the spec: controllers write finalizers and labels."""
    ours = f"{configs_of('object')}.exists(c, {is_ours(driver)})"
    changed = "request.operation == 'CREATE' || object.?spec.orValue({}) != oldObject.?spec.orValue({})"
    return [{"name": "has-our-config", "expression": ours}, {"name": "spec-changed", "expression": changed}]


def iter_config_variables(driver: str) -> Iterator[Variable]:
    """Our configs, each with its path and the later ones of the claim for the same requests."""
    yield "isClass", IS_CLASS
    path = f"{IS_TEMPLATE} ? 'spec.spec.devices.config' : 'spec.devices.config'"
    at = "variables.path + '[' + string(i) + '].opaque.parameters'"
    yield "path", f"variables.isClass ? 'spec.config' : ({path})"
    requests = "c.?requests.orValue([]).map(r, r.split('/')[0])"
    found = f"{{'at': dyn({at}), 'it': dyn(c.opaque.parameters), 'of': dyn({requests})}}"
    is_ours_and_whole = f"{is_ours(driver)} && type(c.opaque.?parameters.orValue(null)) == map"
    yield "ours", f"{configs_of('object')}.transformList(i, c, {is_ours_and_whole}, {found})"
    meets = "j > i && (c.of.size() == 0 || d.of.size() == 0 || c.of.exists(r, r in d.of))"
    later = f"variables.ours.transformList(j, d, {meets}, d.it)"
    yield (
        ROOT,
        f"variables.ours.transformList(i, c, {{'at': dyn(c.at), 'it': dyn(c.it), 'later': dyn({later})}})",
    )


def _iter_sums() -> Iterator[Variable]:
    names = [rule.name for rule in build_rules()]
    groups = [names[start : start + _SUM_MAX] for start in range(0, len(names), _SUM_MAX)]
    for number, group in enumerate(groups, start=1):
        yield f"sum{number}", f"[{', '.join(f'variables.{name}' for name in group)}]"
    sums = " + ".join(f"variables.sum{number}" for number in range(1, len(groups) + 1))
    yield "problems", f"({sums}).filter(t, t != '').join('; ')"


def _build_validation() -> JsonObject:
    cut = f"variables.problems.substring(0, {_SHOWN_CHARACTERS}) + ' ... and more'"
    too_long = (
        f"size(bytes(variables.problems)) > {_SHOWN_BYTES} && size(variables.problems) > {_SHOWN_CHARACTERS}"
    )
    return {
        "expression": "variables.problems == ''",
        "message": f"parameters of the driver are wrong; see {PAGE}",
        "messageExpression": f"({too_long} ? {cut} : variables.problems).replace('\\n', ' ')",
        "reason": "Invalid",
    }

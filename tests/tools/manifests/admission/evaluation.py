"""Objects before the parameters policy, and before the code that it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from dranet.claims.config import SelectedResult, inspect_configs
from dranet.model.claim import AllocationResult, ConfigSource, OpaqueConfig
from dranet.model.device import DeviceKind
from testbed.apiserver.admission import Admission, Evaluation, judge
from tools.manifests.parameters_policy import build_parameters_policy, build_rules

Json = dict[str, Any]
DRIVER = "dra.net"
REQUESTS = ("a", "b")
_PLURALS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
}


@cache
def policy() -> Json:
    return build_parameters_policy()[0]


@cache
def rule_names() -> tuple[str, ...]:
    return tuple(rule.name for rule in build_rules())


def config(parameters: object, requests: Sequence[str] = (), driver: str = DRIVER) -> Json:
    found: Json = {"opaque": {"driver": driver, "parameters": parameters}}
    return {**found, "requests": list(requests)} if requests else found


def claim_spec(configs: Sequence[Json]) -> Json:
    requests = [{"name": name, "exactly": {"deviceClassName": "dranet"}} for name in REQUESTS]
    return {"devices": {"requests": requests, "config": list(configs)}}


def claim(configs: Sequence[Json]) -> Json:
    return {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": claim_spec(configs)}


def template(configs: Sequence[Json]) -> Json:
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": claim_spec(configs)}}


def device_class(configs: Sequence[Json]) -> Json:
    return {"kind": "DeviceClass", "metadata": {"name": "k"}, "spec": {"config": list(configs)}}


def write(body: Json, before: Json | None = None, **fields: Any) -> Admission:
    given = {
        "operation": "UPDATE" if before else "CREATE",
        "group": "resource.k8s.io",
        "version": "v1",
        "resource": _PLURALS[body["kind"]],
        "namespace": "" if body["kind"] == "DeviceClass" else "default",
        "name": body["metadata"]["name"],
        "user_info": {"username": "somebody"},
        "before": before,
        "after": body,
    }
    return Admission(**(given | fields))


def complaints(body: Json, before: Json | None = None) -> list[str]:
    """What the policy says, line by line."""
    found = judge(policy(), write(body, before))
    return found[1].split("; spec.") if found else []


def complaints_by_rule(body: Json) -> dict[str, str]:
    """What each rule says by itself; an expression that fails is an error here."""
    evaluation = Evaluation(policy()["spec"], write(body).build_variables())
    return {name: text for name in rule_names() if (text := evaluation.get_variable(name))}


def code_lines(configs: Sequence[Json], of_class: Sequence[Json] = ()) -> list[str]:
    """What the driver says of such a claim at Prepare, for a network device of each request."""
    selections = []
    for request in REQUESTS:
        theirs = [_read(ConfigSource.CLASS, one) for one in of_class]
        own = {
            n: _read(ConfigSource.CLAIM, one)
            for n, one in enumerate(configs)
            if not one.get("requests") or request in one["requests"]
        }
        numbers = (*(1000 + n for n in range(len(theirs))), *own)
        result = AllocationResult(request, "", "", "")
        selection = SelectedResult(result, (*theirs, *own.values()), numbers, "dranet", "default")
        selections.append((selection, DeviceKind.NIC))
    return inspect_configs(selections)[1]


def class_lines(configs: Sequence[Json]) -> list[str]:
    """What the driver says of such a class whatever a claim on it says."""
    lines = code_lines([], configs)
    alone = code_lines([config({})], configs)
    return [line for line in lines if line in alone]


def _read(source: ConfigSource, body: Mapping[str, Any]) -> OpaqueConfig:
    opaque = body["opaque"]
    return OpaqueConfig(source, opaque["driver"], opaque["parameters"], tuple(body.get("requests") or ()))

"""The tenant policy: which parameters a claim may set only in namespaces that are trusted with them. Pure.

An option. A namespace is trusted by a label, or by its name in the policy; everywhere else what is powerful
comes from a DeviceClass, which only an administrator writes. Unlike the ``policy`` of a DeviceClass it cannot
be left by choosing another class; unlike that one it judges when a claim or template is made, and not
again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from dranet.cluster.permissions import DRIVER_NAME
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import walk_fields
from tools.manifests.cel_text import is_a, quote, quote_all
from tools.manifests.parameters_policy import (
    build_binding,
    build_match_conditions,
    iter_config_variables,
)

JsonObject = dict[str, Any]

NAME = "dranet-tenants"
LABEL = "dra.net/powerful-parameters"
"""``true`` on a namespace: its claims may set all of them. The same under any driver name, as attributes
are."""
DEFAULT_ROUTE = "routes.default"
"""Not a field: routes to everywhere, or to a large part of it, also as the network of an address."""

_WIDE = "/0*[0-7]$"
"""Prefixes of fewer than eight bits: two halves are a default route as well."""
_DEPTH = 4
_GROUP = "admissionregistration.k8s.io/v1"


class Powerful(Struct, frozen=True):
    """A parameter that reaches beyond the pod that asks for it."""

    path: str
    """Path of a field, including everything below it, or :data:`DEFAULT_ROUTE`."""
    why: str


POWERFUL = (
    Powerful(
        "interface.disableEbpfPrograms",
        "removes the node's own programs from the link, including those for security",
    ),
    Powerful("interface.hardwareAddr", "the pod can impersonate another host of the network"),
    Powerful("interface.vlan", "the pod chooses its VLAN"),
    Powerful("interface.vrf", "splits the pod's routing in two, and what monitors it"),
    Powerful("interface.forwarding", "the pod becomes a router between its networks"),
    Powerful("rules", "traffic of the pod bypasses the pod network and its NetworkPolicies"),
    Powerful(DEFAULT_ROUTE, "all traffic of the pod bypasses the pod network and its NetworkPolicies"),
    Powerful("neighbors", "the pod decides which host has an address"),
    Powerful("sysctls", "changes the pod's network stack in ways that the administrator may not expect"),
    Powerful(
        "ethtool.privateFlags", "switches of the NIC's own driver, some of which affect its other functions"
    ),
    Powerful("cpuLocality.irq", "interrupts of the node move to other CPUs"),
    Powerful("cpuLocality.rps", "received packets are processed by CPUs that may be reserved for other pods"),
    Powerful("rdma.managementDevices", "the pod can manage the InfiniBand subnet"),
)
"""The parameters that the policy restricts by default."""
POWERFUL_PATHS = tuple(one.path for one in POWERFUL)
PATHS = (DEFAULT_ROUTE, *sorted(path for path, _ in walk_fields(NetworkConfig)))
"""All paths that may be named instead."""


def build_tenant_policy(
    driver: str = DRIVER_NAME,
    *,
    fields: Collection[str] = POWERFUL_PATHS,
    namespaces: Collection[str] = (),
    label: str = LABEL,
    actions: tuple[str, ...] = ("Deny",),
) -> list[JsonObject]:
    """Return the policy and its binding.

    Args:
        driver: the driver whose configs are checked.
        fields: paths of the restricted parameters.
        namespaces: names of namespaces that are trusted without the label.
        label: the label of a trusted namespace, with the value ``true``.
        actions: the validation actions of the binding.
    """
    trusted = (
        f"namespaceObject.metadata.?labels[?{quote(label)}].orValue('') == 'true' || "
        f"request.namespace in {quote_all(namespaces)}"
    )
    variables = {
        **dict(iter_config_variables(driver)),
        "powerful": quote_all(fields),
        "asked": _asked(),
        "defaults": _default_routes(),
        "problems": "variables.asked + variables.defaults",
    }
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "resources": ["resourceclaims", "resourceclaimtemplates"],
        "operations": ["CREATE", "UPDATE"],
    }
    why = f'is for namespaces with the label {label}: "true"; elsewhere a DeviceClass may set it'
    text = f"variables.problems.join(', ') + {quote(': ' + why)}"
    validation = {
        "expression": f"({trusted}) || variables.problems.size() == 0",
        "message": f"a parameter {why}",
        "messageExpression": f"size(bytes({text})) > 5000 ? '' : {text}",
        "reason": "Forbidden",
    }
    return [
        {
            "apiVersion": _GROUP,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
                "matchConditions": build_match_conditions(driver),
                "variables": [{"name": name, "expression": text} for name, text in variables.items()],
                "validations": [validation],
            },
        },
        build_binding(NAME, actions),
    ]


def _asked() -> str:
    """The paths of what is set and powerful, as one list: a text of places for each config, taken apart."""
    steps = "p.split('.')"
    value = "[dyn(o.it)]"
    for number in range(_DEPTH):
        here = f"type(v) == map ? v[?{steps}[{number}]].orValue(dyn(null)) : dyn(null)"
        value += f".map(v, {steps}.size() <= {number} ? v : {here})"
    is_set = f"{value}.exists(v, v != null && v != false && v != [] && v != {{}})"
    paths = f"variables.powerful.filter(p, {is_set}).map(p, o.at + '.' + p).join(',')"
    return f"variables.configs.map(o, {paths}).filter(t, t != '').join(',').split(',').filter(t, t != '')"


def _default_routes() -> str:
    """The kernel makes a route to the network of each address: to half of everything for ``200.0.0.1/1``."""
    wide = f"type(r) == map && {is_a('string', 'r', 'destination')} && r.destination.matches({quote(_WIDE)})"
    routes = f"{is_a('list', 'o.it', 'routes')} && o.it.routes.exists(r, {wide})"
    listed = f"{is_a('map', 'o.it', 'interface')} && {is_a('list', 'o.it.interface', 'addresses')}"
    near = f"o.it.interface.addresses.exists(a, type(a) == string && a.matches({quote(_WIDE)}))"
    asked = (("routes", routes), ("interface.addresses", f"{listed} && {near}"))
    found = " + ".join(
        f"variables.configs.filter(o, {has}).map(o, o.at + '.{path} (a default route)')"
        for path, has in asked
    )
    return f"{quote(DEFAULT_ROUTE)} in variables.powerful ? {found} : []"

"""The tenant policy: powerful parameters only where they are trusted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import walk_fields
from testbed.apiserver.admission import judge
from tests.tools.manifests.admission.evaluation import Json, claim, config, template, write
from tests.tools.manifests.admission.policy_cases import NEIGHBOUR, ROUTE, VRF
from tools.manifests.tenant_policy import (
    DEFAULT_ROUTE,
    LABEL,
    PATHS,
    POWERFUL_PATHS,
    build_tenant_policy,
)

PAGE = Path(__file__).parents[4] / "docs/reference/admission.md"
EXAMPLES: dict[str, Json] = {
    "interface.disableEbpfPrograms": {"interface": {"disableEbpfPrograms": True}},
    "interface.hardwareAddr": {"interface": {"hardwareAddr": "02:00:00:00:00:01"}},
    "interface.vlan": {"interface": {"type": "vlan", "vlan": {"id": 5}}},
    "interface.vrf": {"interface": {"vrf": VRF}},
    "interface.forwarding": {"interface": {"forwarding": True}},
    "rules": {"rules": [{"mark": 1, "table": 100}]},
    DEFAULT_ROUTE: {"routes": [{**ROUTE, "destination": "0.0.0.0/0"}]},
    "neighbors": {"neighbors": [NEIGHBOUR]},
    "sysctls": {"sysctls": {"net.ipv4.tcp_ecn": 1}},
    "ethtool.privateFlags": {"ethtool": {"privateFlags": {"vf-true-promisc-support": False}}},
    "cpuLocality.irq": {"cpuLocality": {"irq": True}},
    "cpuLocality.rps": {"cpuLocality": {"rps": True}},
    "rdma.managementDevices": {"rdma": {"managementDevices": True}},
}
HARMLESS: Json = {
    "interface": {
        "name": "net1",
        "mtu": 9000,
        "addresses": ["10.0.0.5/24"],
        "forwarding": False,
        "vrf": None,
    },
    "routes": [ROUTE],
    "rules": [],
    "sysctls": {},
    "rdma": {"memlock": "unlimited"},
    "cpuLocality": {"irq": False, "rps": None, "xps": True},
    "ethtool": {"features": {"tso": True}, "privateFlags": {}},
}


def namespace(**labels: str) -> Json:
    return {"metadata": {"name": "default", "labels": labels} if labels else {"name": "default"}}


def complaint(parameters: Json, where: Json | None = None, **options: object) -> str:
    policy = build_tenant_policy(**options)[0]  # type: ignore[arg-type]
    found = judge(policy, write(claim([config(parameters)]), namespace_object=where or namespace()))
    assert found is None or found[0] == "Forbidden"
    return found[1] if found else ""


def test_every_powerful_parameter_is_a_field_that_there_is() -> None:
    assert set(POWERFUL_PATHS) <= set(PATHS)
    assert set(POWERFUL_PATHS) == set(EXAMPLES)


def test_every_parameter_is_judged_on_the_page() -> None:
    """Either a tenant may not set it, or the page says why one may."""
    section = PAGE.read_text().partition("## Parameters that tenants can set\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    left = re.findall(r"`([^`]+)`", "".join(rows))
    assert set(left) <= set(PATHS)
    assert not set(left) & set(POWERFUL_PATHS)
    fields = [path for path, found in walk_fields(NetworkConfig) if found.part is None or found.is_list]
    judged = (*left, *POWERFUL_PATHS)
    assert [path for path in fields if not any(f"{path}.".startswith(f"{one}.") for one in judged)] == []


@pytest.mark.parametrize("path", [path for path in PATHS if path != DEFAULT_ROUTE])
def test_every_name_that_may_be_chosen_is_found_in_a_claim(path: str) -> None:
    parameters: Any = "something"
    for step in reversed(path.split(".")):
        parameters = {step: parameters}
    assert complaint(parameters, fields=[path]).startswith(
        f"spec.devices.config[0].opaque.parameters.{path}: "
    )


@pytest.mark.parametrize("path", EXAMPLES)
def test_each_is_refused_in_a_namespace_that_is_not_trusted(path: str) -> None:
    said = complaint(EXAMPLES[path])
    where = "routes (a default route)" if path == DEFAULT_ROUTE else path
    assert said.startswith(
        f"spec.devices.config[0].opaque.parameters.{where}: is for namespaces with the label"
    )
    assert LABEL in said
    others = tuple(one for one in POWERFUL_PATHS if one != path)
    assert complaint(EXAMPLES[path], fields=others) == ""


@pytest.mark.parametrize("path", EXAMPLES)
def test_each_passes_where_it_is_trusted(path: str) -> None:
    assert complaint(EXAMPLES[path], namespace(**{LABEL: "true"})) == ""
    assert complaint(EXAMPLES[path], namespaces=["default"]) == ""
    assert complaint(EXAMPLES[path], namespace(**{LABEL: "false"})) != ""
    assert complaint(EXAMPLES[path], namespaces=["other"]) != ""


def test_what_is_not_powerful_passes_everywhere() -> None:
    assert complaint(HARMLESS) == ""
    assert complaint({}) == ""


@pytest.mark.parametrize("wide", ["::/0", "0.0.0.0/00", "128.0.0.0/1", "8000::/1", "64.0.0.0/07"])
def test_a_default_route_in_pieces_is_one(wide: str) -> None:
    assert complaint({"routes": [ROUTE, {**ROUTE, "destination": wide}]}) != ""


@pytest.mark.parametrize("wide", ["200.0.0.1/1", "10.0.0.5/0", "2001:db8::5/0", "64.0.0.1/07"])
def test_an_address_whose_network_is_a_default_route_is_one(wide: str) -> None:
    said = complaint({"interface": {"addresses": ["10.0.0.5/24", wide]}})
    assert said.startswith("spec.devices.config[0].opaque.parameters.interface.addresses (a default route): ")
    assert complaint({"interface": {"addresses": [wide]}}, fields=["sysctls"]) == ""


def test_templates_are_judged_with_the_paths_of_their_own() -> None:
    policy = build_tenant_policy()[0]
    body = template([config({}), config({"sysctls": {"a": 1}, "interface": {"hardwareAddr": "x"}})])
    found = judge(policy, write(body, namespace_object=namespace()))
    assert found is not None
    outer = "spec.spec.devices.config[1].opaque.parameters"
    assert found[1].startswith(f"{outer}.interface.hardwareAddr, {outer}.sysctls: is for namespaces")


@pytest.mark.parametrize("odd", [5, "text", [1], {"hardwareAddr": {"a": 1}}])
def test_parameters_of_any_form_give_an_answer(odd: object) -> None:
    said = complaint({"interface": odd, "routes": odd, "cpuLocality": odd})
    assert "evaluation failed" not in said
    assert "evaluation failed" not in complaint({"interface": {"addresses": odd}})


def test_another_drivers_config_is_not_looked_at() -> None:
    policy = build_tenant_policy()[0]
    other = config({"sysctls": {"a": 1}}, driver="other.example.com")
    assert judge(policy, write(claim([other, config({})]), namespace_object=namespace())) is None

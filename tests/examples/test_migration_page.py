"""What the page about DraNet says of the chart and the settings is so."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import yaml

from dranet.settings import Settings
from tests.examples.table import REPOSITORY
from tests.tools.manifests.chart.rendering import CHART, render

PAGE = (REPOSITORY / "docs/guides/migrate-from-dranet.md").read_text()
DRANETS_NAMES = {("ClusterRole", "dranet"), ("ClusterRoleBinding", "dranet"), ("DeviceClass", "dranet")}


def block(title: str) -> dict[str, Any]:
    """The file that the page shows under this name."""
    (text,) = re.findall(rf"^```yaml\n# {re.escape(title)}[^\n]*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def documented_release(*, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Its objects, by the commands on the page."""
    commands = re.findall(
        r"^helm (?:install|upgrade) (\S+) charts/dranet .*--values nic.yaml$", PAGE, re.MULTILINE
    )
    (name,) = set(commands)
    assert len(commands) == 2
    values = {key: value for key, value in block("nic.yaml").items() if key not in without}
    return render(values, name=name)


def node_selector(objects: Iterable[dict[str, Any]]) -> dict[str, str]:
    (daemonset,) = (item for item in objects if item["kind"] == "DaemonSet")
    selector: dict[str, str] = daemonset["spec"]["template"]["spec"]["nodeSelector"]
    return selector


def actions_of_the_parameters_policy(objects: Iterable[dict[str, Any]]) -> list[str]:
    (binding,) = (
        item["spec"]
        for item in objects
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
        and item["metadata"]["name"].endswith("-parameters")
    )
    actions: list[str] = binding["validationActions"]
    return actions


def test_the_documented_release_takes_no_name_of_dranet_and_runs_on_labelled_nodes_alone() -> None:
    objects = documented_release()
    assert {(item["kind"], item["metadata"]["name"]) for item in objects}.isdisjoint(DRANETS_NAMES)
    assert node_selector(objects)["example.com/nic-driver"] == "new"


def test_while_dranet_serves_nodes_none_of_its_claims_is_refused_at_apply() -> None:
    """The policy is about every claim for ``dra.net``, such as one with a ``profile``."""
    assert actions_of_the_parameters_policy(documented_release()) == ["Warn"]


def test_in_the_end_every_node_gets_the_driver_and_mistakes_are_refused() -> None:
    removed = re.findall(r"`(\w+)`", PAGE.partition("out of `nic.yaml`")[0].rpartition("take ")[2])
    assert len(removed) == 2
    objects = documented_release(without=removed)
    assert "example.com/nic-driver" not in node_selector(objects)
    assert actions_of_the_parameters_policy(objects) == ["Deny"]


def test_settings_and_values_of_the_table_are_there() -> None:
    rows = PAGE.partition("## Values of the chart")[2]
    settings = set(re.findall(r"`settings\.(\w+)`", rows))
    assert len(settings) > 5
    assert settings <= set(Settings.__struct_fields__)
    same = next(row for row in rows.splitlines() if row.endswith("| the same |"))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {name.partition(".")[0] for name in re.findall(r"`([\w.]+)\*?`", same)} <= values.keys()


def test_the_patch_for_dranets_daemonset_keeps_it_off_the_nodes_of_the_release() -> None:
    affinity = block("dranet-affinity.yaml")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "example.com/nic-driver", "operator": "DoesNotExist"}]}

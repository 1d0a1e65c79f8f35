"""What the page about DraNet says of the chart and the settings is so."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import yaml

from dranet.settings import Settings
from tests.chart.rendering import CHART, render
from tests.examples.table import REPOSITORY

PAGE = (REPOSITORY / "docs/user/migrate-from-dranet.md").read_text()
DRANETS_NAMES = {("ClusterRole", "dranet"), ("ClusterRoleBinding", "dranet"), ("DeviceClass", "dranet")}


def documented_release() -> tuple[str, dict[str, Any]]:
    """Name and values of the command on the page."""
    command = re.search(r"^helm install (\S+) .*?$\n(  --set.*)$", PAGE, re.MULTILINE)
    assert command
    values: dict[str, Any] = {}
    for key, text in re.findall(r"--set(?:-string)? '?([^\s']*?)=(\w+)", command[2]):
        *parents, last = re.split(r"(?<!\\)\.", key)
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last.replace("\\", "")] = yaml.safe_load(text)
    return command[1], values


def test_the_documented_release_takes_no_name_of_dranet_and_runs_on_labelled_nodes_alone() -> None:
    name, values = documented_release()
    objects = render(values, name=name)
    assert {(item["kind"], item["metadata"]["name"]) for item in objects}.isdisjoint(DRANETS_NAMES)
    (daemonset,) = (item for item in objects if item["kind"] == "DaemonSet")
    selector = daemonset["spec"]["template"]["spec"]["nodeSelector"]
    assert selector["example.com/nic-driver"] == "new"


def test_settings_and_values_of_the_table_are_there() -> None:
    rows = PAGE.partition("## Values of the chart")[2]
    settings = set(re.findall(r"`settings\.(\w+)`", rows))
    assert len(settings) > 5
    assert settings <= {field.name for field in fields(Settings)}
    same = next(row for row in rows.splitlines() if row.endswith("| the same |"))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {name.partition(".")[0] for name in re.findall(r"`([\w.]+)\*?`", same)} <= values.keys()


def test_the_patch_for_dranets_daemonset_keeps_it_off_the_nodes_of_the_release() -> None:
    (patch,) = re.findall(r"^```yaml\n(# dranet-affinity.yaml\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    affinity = yaml.safe_load(patch)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "example.com/nic-driver", "operator": "DoesNotExist"}]}

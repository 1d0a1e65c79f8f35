"""Excerpts of what the chart and the driver write are as they write it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dranet.claims.report import DATA_KEYS
from tests.documents.blocks import REPOSITORY, list_blocks
from tools.pages.conditions import CONDITIONS


def read_excerpt(page: str, begins: str) -> Any:
    (text,) = (one.text for one in list_blocks() if one.page == page and one.text.startswith(begins))
    return yaml.safe_load(text)


def is_part(part: Any, whole: Any) -> bool:
    """Whether all that ``part`` says stands in ``whole``; of a list, each entry in one of its entries."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(is_part(value, whole.get(key)) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(is_part(one, other) for other in whole) for one in part)
    return bool(part == whole)


def test_the_daemonset_of_the_page_about_updates_is_a_part_of_ours() -> None:
    made = yaml.safe_load_all((REPOSITORY / "deploy/daemonset.yaml").read_text())
    (ours,) = (item for item in made if item["kind"] == "DaemonSet")
    assert is_part(read_excerpt("docs/operations/upgrades.md", "# in the DaemonSet"), ours)
    assert not is_part({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 4}}}}, ours)


def test_the_status_of_the_page_about_statuses_is_one_that_the_driver_writes() -> None:
    published = pytest.importorskip("tests.tools.manifests.chart.published")
    excerpt = read_excerpt("docs/reference/status.md", "# kubectl get resourceclaim")
    published.check({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {}, **excerpt})
    (device,) = excerpt["status"]["devices"]
    told = {(one["type"], one["status"], one["reason"]) for one in device["conditions"]}
    assert told <= {(row.type, str(row.status), row.reason) for row in CONDITIONS}
    assert list(device["data"]) == [key for key in DATA_KEYS if key in device["data"]]

"""Labels of what is recorded come from closed lists, and the page names all that are on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

import pytest

from dranet.cluster import paths
from dranet.cluster.messages import METHOD_VERBS
from dranet.driver.alignment.watch import LEVELS
from dranet.driver.instances.leader import InstanceState
from dranet.driver.reconcile import Action
from dranet.model.plan import Step
from dranet.telemetry.metrics import RESOURCES, VERBS, LeaseOutcome, PreparePhase, Retry
from dranet.telemetry.node import ScanKind, ScanPhase
from tools.pages.metrics import list_declared

DECLARED = {one.name: one for one in list_declared()}
STEPS = [step.__struct_config__.tag for step in get_args(Step)]


@pytest.mark.parametrize(
    ("metric", "label", "values"),
    [
        ("dranet_attach_step_seconds", "step", STEPS),
        ("dranet_claim_prepare_phase_seconds", "phase", PreparePhase),
        ("dranet_reconcile_actions_total", "action", Action),
        ("dranet_dhcp_renewals_total", "outcome", LeaseOutcome),
        ("dranet_inventory_scans_total", "kind", ScanKind),
        ("dranet_inventory_scan_phase_seconds", "phase", ScanPhase),
        ("dranet_api_requests_total", "verb", VERBS),
        ("dranet_api_requests_total", "resource", RESOURCES),
        ("dranet_api_retries_total", "cause", Retry),
        ("dranet_instance_state", "state", InstanceState),
        ("dranet_alignment_devices", "level", LEVELS),
    ],
)
def test_the_page_names_what_a_label_can_be_and_nothing_else(
    metric: str, label: str, values: Iterable[str]
) -> None:
    meaning = re.sub(r"\([^)]*\)", "", DECLARED[metric].labels[label])
    assert set(re.findall(r"`([^`]+)`", meaning)) == {str(value) for value in values}


@pytest.mark.parametrize(
    ("path", "name", "is_collection"),
    [
        (paths.RESOURCE_SLICES, "resourceslices", True),
        (paths.resource_slice("node-1"), "resourceslices", False),
        (paths.resource_claims("team"), "resourceclaims", True),
        (paths.resource_claims(), "resourceclaims", True),
        (paths.resource_claim("team", "nic"), "resourceclaims", False),
        (paths.resource_claim_status("team", "nic"), "resourceclaims/status", False),
        (paths.pod("team", "worker"), "pods", False),
        (paths.node("node-1"), "nodes", False),
        (paths.events("team"), "events", True),
        (paths.event("team", "a.1"), "events", False),
        (paths.namespace("team"), "namespaces", False),
        ("/version", "", False),
        ("/apis", "", False),
    ],
)
def test_a_request_is_counted_by_what_it_is_about(path: str, name: str, is_collection: bool) -> None:
    assert paths.name_collection(path) == (name, is_collection)


def test_every_verb_that_the_client_counts_is_on_the_list() -> None:
    assert {*METHOD_VERBS.values(), "get", "list", "watch"} == set(VERBS)

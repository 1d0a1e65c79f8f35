"""The admission policies as the chart has them: which there are, what may be chosen of each, and their text
with marks in place of the names that values decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from tools.manifests import admission, tenant_policy
from tools.manifests.admission import Driver
from tools.manifests.parameters_policy import build_parameters_policy
from tools.manifests.tenant_policy import build_tenant_policy

JsonObject = dict[str, Any]

DRIVER, NAMESPACE, ACCOUNT = "{driver_name}", "{namespace}", "{service_account}"
ADMINS, FIELDS, NAMESPACES = "{admins}", "{fields}", "{namespaces}"
"""Marks that a template puts names in place of; the last ones are lists."""


class ChartPolicy(Struct, frozen=True):
    """A policy with its binding. ``key`` is its name among the chart's values, ``name`` that of the objects.

    The release's name replaces ``dranet-`` in ``name``.
    """

    key: str
    name: str
    build: Callable[[], list[JsonObject]]


def _guard(name: str) -> Callable[[], list[JsonObject]]:
    return lambda: [
        document
        for document in admission.build_policies(DRIVER, NAMESPACE, ACCOUNT)
        if document["metadata"]["name"] == name
    ]


POLICIES = (
    ChartPolicy("slices", admission.SLICES, _guard(admission.SLICES)),
    ChartPolicy("claimStatus", admission.CLAIM_STATUS, _guard(admission.CLAIM_STATUS)),
    ChartPolicy(
        "sliceOwners",
        admission.SLICE_OWNERS,
        lambda: admission.build_slice_owners(Driver(DRIVER, NAMESPACE, ACCOUNT), [ADMINS]),
    ),
    ChartPolicy("parameters", "dranet-parameters", lambda: build_parameters_policy(DRIVER)),
    ChartPolicy(
        "tenants",
        tenant_policy.NAME,
        lambda: build_tenant_policy(DRIVER, fields=("", FIELDS), namespaces=("", NAMESPACES)),
    ),
)
"""Whether a policy is on by default, and what may be chosen of it, is in ``values.yaml``."""


def build_policy_files() -> Mapping[str, JsonObject]:
    """File name -> content."""
    return {f"admission-{policy.key}.yaml": {"objects": policy.build()} for policy in POLICIES}

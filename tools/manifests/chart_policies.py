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
_NAMES = r"^[!-&(-\[\]-~]+$"
"""Nothing that ends a text in CEL."""


class ListOption(Struct, frozen=True):
    """A list of names that an administrator may give to a policy."""

    name: str
    about: str
    default: tuple[str, ...] = ()
    pattern: str = _NAMES
    choices: tuple[str, ...] = ()
    """Where there are any, nothing else is taken: a name with a mistake in it would guard nothing."""


class ChartPolicy(Struct, frozen=True):
    """One policy with its binding; ``key`` is its name among the chart's values."""

    key: str
    name: str
    """Of policy and binding, ``dranet-`` first, which the release's name replaces."""
    about: str
    build: Callable[[], list[JsonObject]]
    is_default: bool = True
    lists: tuple[ListOption, ...] = ()


def _guard(name: str) -> Callable[[], list[JsonObject]]:
    return lambda: [
        document
        for document in admission.build_policies(DRIVER, NAMESPACE, ACCOUNT)
        if document["metadata"]["name"] == name
    ]


POLICIES = (
    ChartPolicy(
        "slices",
        admission.SLICES,
        "The driver writes slices of its own node and name only: a token from one node is no use for "
        "another.",
        _guard(admission.SLICES),
    ),
    ChartPolicy(
        "claimStatus",
        admission.CLAIM_STATUS,
        "The driver writes only its own entries in a claim's status.",
        _guard(admission.CLAIM_STATUS),
    ),
    ChartPolicy(
        "sliceOwners",
        admission.SLICE_OWNERS,
        "Nobody but the driver, the control plane and the users in `admins` writes slices in the driver's "
        "name.",
        lambda: admission.build_slice_owners(Driver(DRIVER, NAMESPACE, ACCOUNT), [ADMINS]),
        is_default=False,
        lists=(ListOption("admins", "User names that may write them, too."),),
    ),
    ChartPolicy(
        "parameters",
        "dranet-parameters",
        "Mistakes in the parameters of claims, templates and DeviceClasses are refused at `kubectl apply`, "
        "in the words that the driver would use when the pod starts. It never refuses what the driver takes.",
        lambda: build_parameters_policy(DRIVER),
    ),
    ChartPolicy(
        "tenants",
        tenant_policy.NAME,
        "Parameters that reach beyond the pod are for namespaces with the label "
        f'{tenant_policy.LABEL}: "true", and for those in `namespaces`; elsewhere a DeviceClass may set '
        "them.",
        lambda: build_tenant_policy(DRIVER, fields=("", FIELDS), namespaces=("", NAMESPACES)),
        is_default=False,
        lists=(
            ListOption("namespaces", "Trusted without the label."),
            ListOption(
                "fields",
                f"Which parameters: paths, and {tenant_policy.DEFAULT_ROUTE}. Why each: "
                "docs/user/admission.md.",
                tenant_policy.POWERFUL_PATHS,
                choices=tenant_policy.PATHS,
            ),
        ),
    ),
)


def build_policy_files() -> Mapping[str, JsonObject]:
    """File name -> content."""
    return {f"admission-{policy.key}.yaml": {"objects": policy.build()} for policy in POLICIES}

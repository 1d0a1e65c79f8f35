"""What the driver may ask of the API server: one table, and the manifests made of it.

``deploy/rbac.yaml``, the page for operators and the rules that the testbed's API server enforces all come
from here (``make docs``). A test fails when the code calls something that is not in the table, and when
something in the table is never called. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

JsonObject = dict[str, Any]

NAMESPACE = "dranet-system"
SERVICE_ACCOUNT = "dranet"
ROLE = "dranet"
USER_NAME = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
DRIVER_NAME = "dra.net"
"""The driver's name by default; it is in the rules because rights on claim status are given by driver."""

_RESOURCE = "resource.k8s.io"


class Permission(Struct, frozen=True):
    """One rule of the role. ``why`` and ``when`` are for the operator who reads it."""

    group: str
    """Empty for the core group."""
    resource: str
    """With a subresource behind a slash."""
    verbs: tuple[str, ...]
    why: str
    when: str
    only_driver: bool = False
    """Only for what has the driver's name (``resourceNames``)."""


PERMISSIONS = (
    Permission(
        _RESOURCE,
        "resourceslices",
        ("list", "watch"),
        "see the slices of this node and driver, and what others did to them; on a node with GPUs, those of "
        "other drivers there: which drivers serve the GPUs, and where they sit",
        "at the start, and one watch while the driver runs; a second one on a node with GPUs",
    ),
    Permission(
        _RESOURCE,
        "resourceslices",
        ("create",),
        "publish the node's devices; find out by dry run which optional fields the server keeps",
        "when the number of slices grows, or one was deleted by others; dry runs at the start",
    ),
    Permission(
        _RESOURCE,
        "resourceslices",
        ("update",),
        "publish what changed",
        "when devices, taints or their order change",
    ),
    Permission(
        _RESOURCE,
        "resourceslices",
        ("delete",),
        "remove a slice that is one too many",
        "when there are fewer devices, or slices of another version's layout",
    ),
    Permission(
        _RESOURCE,
        "resourceclaims",
        ("get",),
        "read the claim that the kubelet names: allocation, parameters, its consumers",
        "at each Prepare, and before a status is written; the pod's other claims with the pod",
    ),
    Permission(
        _RESOURCE,
        "resourceclaims/status",
        ("patch",),
        "write into the claim what became of each device",
        "when a device is prepared, attached or released",
    ),
    Permission(
        _RESOURCE,
        "resourceclaims/driver",
        ("associated-node:patch",),
        "the same, where the server gives rights by driver and node (1.36 and later; harmless before)",
        "with each status",
        only_driver=True,
    ),
    Permission(
        "",
        "nodes",
        ("get",),
        "the node's uid, which owns its slices, its addresses, and whether device plugins serve its GPUs",
        "at the start, every ten minutes, before a GPU of this driver is prepared, and before GPUs that "
        "others served are offered",
    ),
    Permission(
        "",
        "pods",
        ("get",),
        "find the pod's claims of other drivers, to see how near its GPUs are (`TopologyAligned`)",
        "once for each pod with a network device, where another DRA driver serves the node's GPUs",
    ),
    Permission(
        "",
        "pods",
        ("list",),
        "find the pods of a PodGroup that a claim is reserved for, on this node",
        "at a Prepare of such a claim, and never otherwise",
    ),
    Permission(
        "",
        "events",
        ("create", "patch"),
        "report what happened, at the pod or the node that it is about; the same again only counts up",
        "when something fails or changes, not in a loop",
    ),
)


AUTHENTICATION_PERMISSIONS = (
    Permission(
        "authentication.k8s.io",
        "tokenreviews",
        ("create",),
        "ask whose bearer token a scraper of the metrics port has",
        "with `metrics_authentication: kubernetes` alone, once a minute for each scraper",
    ),
    Permission(
        "authorization.k8s.io",
        "subjectaccessreviews",
        ("create",),
        "ask whether that user may get `/metrics`, `/node` or `/readyz`",
        "with `metrics_authentication: kubernetes` alone, once a minute for each scraper",
    ),
)
"""Given only where ``metrics_authentication`` is ``kubernetes``; in no role by default."""


def build_rules(
    driver: str = DRIVER_NAME, permissions: Iterable[Permission] = PERMISSIONS
) -> list[JsonObject]:
    """The rules of the ClusterRole: what has the same place and names is one rule."""
    rules: dict[tuple[str, str, bool], JsonObject] = {}
    for permission in permissions:
        key = (permission.group, permission.resource, permission.only_driver)
        rule = rules.setdefault(
            key, {"apiGroups": [permission.group], "resources": [permission.resource], "verbs": []}
        )
        if permission.only_driver:
            rule["resourceNames"] = [driver]
        rule["verbs"] += permission.verbs
    return list(rules.values())


def build_rbac(driver: str = DRIVER_NAME) -> list[JsonObject]:
    """Namespace, service account, role and binding, in the order in which they are applied."""
    return list(_iter_rbac(driver))


def _iter_rbac(driver: str) -> Iterator[JsonObject]:
    rbac = "rbac.authorization.k8s.io"
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    account = {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": build_rules(driver),
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }

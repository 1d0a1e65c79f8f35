"""What the driver may ask of the API server: one table, the manifests made of it, and questions about rights
that only the server can answer.

``deploy/rbac.yaml``, the page for operators and the rules that the testbed's API server enforces all come
from here (``make docs``). A test fails when the code calls something that is not in the table, and when
something in the table is never called."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dranet.cluster.client import ApiClient, JsonObject
from dranet.errors import ProtocolError

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
        "the node's uid, which owns its slices, its addresses, its labels and provider ID (pools, clouds), "
        "and whether device plugins serve its GPUs",
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
        "only with `metrics_authentication: kubernetes`, once a minute for each scraper",
    ),
    Permission(
        "authorization.k8s.io",
        "subjectaccessreviews",
        ("create",),
        "ask whether that user may get `/metrics`, `/node` or `/readyz`",
        "only with `metrics_authentication: kubernetes`, once a minute for each scraper",
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
    rbac = "rbac.authorization.k8s.io"
    common = {"apiVersion": f"{rbac}/v1"}
    account = {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {**common, "kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": build_rules(driver)},
        {
            **common,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ROLE},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ]


ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Denied(Struct, frozen=True):
    """Something that the driver does and this caller may not. ``reason`` is the server's, often empty."""

    permission: Permission
    verb: str
    reason: str = ""

    def __str__(self) -> str:
        group = f" in {self.permission.group}" if self.permission.group else ""
        return f"{self.verb} {self.permission.resource}{group}"


async def fetch_denied(
    client: ApiClient, driver: str, permissions: Iterable[Permission] = PERMISSIONS
) -> list[Denied]:
    """What is refused of ``permissions``, one question each.

    Raises:
        ClusterError: no answer, or the server answers no such questions.
        ProtocolError: an answer that is no review.
    """
    asked = [(permission, verb) for permission in permissions for verb in permission.verbs]
    answers = [await _ask(client, driver, permission, verb) for permission, verb in asked]
    return [denied for denied in answers if denied is not None]


async def _ask(client: ApiClient, driver: str, permission: Permission, verb: str) -> Denied | None:
    status = await _review(client, ACCESS_REVIEWS, build_review(permission, verb, driver))
    if not isinstance(status.get("allowed"), bool):
        raise ProtocolError("the API server's answer to an access review contains neither yes nor no")
    if status["allowed"]:
        return None
    return Denied(permission, verb, str(status.get("reason") or ""))


def build_review(permission: Permission, verb: str, driver: str) -> JsonObject:
    """The question, for all namespaces; rights that are given by driver are asked for by its name."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {"group": permission.group, "resource": resource, "verb": verb}
    if subresource:
        attributes["subresource"] = subresource
    if permission.only_driver:
        attributes["name"] = driver
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


OF_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
OF_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(Struct, frozen=True):
    """A user as the server knows them; ``attributes`` (groups, uid, extra) are passed on as they are."""

    name: str
    attributes: JsonObject


async def fetch_user(client: ApiClient, token: str) -> User | None:
    """Return the user of a token; ``None`` if the server does not know it.

    Raises:
        ClusterError: no answer, or we may not ask.
        ProtocolError: an answer that is no review.
    """
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = await _review(client, OF_TOKENS, review)
    if status.get("authenticated") is not True:
        return None
    user = status.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
        raise ProtocolError("the API server knows a token and does not name its user")
    known = {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
    return User(user["username"], known)


async def fetch_may_get(client: ApiClient, user: User, path: str) -> bool:
    """Whether they may ``get`` this path, which is no resource.

    Raises:
        ClusterError: no answer, or we may not ask.
        ProtocolError: an answer that is no review.
    """
    asked = {"path": path, "verb": "get"}
    spec: JsonObject = {"user": user.name, "nonResourceAttributes": asked, **user.attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    status = await _review(client, OF_ACCESS, review)
    return status.get("allowed") is True and status.get("denied") is not True


async def _review(client: ApiClient, path: str, review: JsonObject) -> JsonObject:
    status = (await client.create(path, review)).get("status")
    if not isinstance(status, dict):
        raise ProtocolError(f"the API server's answer to a {review['kind']} has no status")
    return status
